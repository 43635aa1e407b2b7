// Optimizers on flat buffers. Sums and updates use double: only the storage rounds.
#include <algorithm>
#include <cmath>

#include "realrun/cpu/kernel_call.h"

namespace orrery::cpu {
namespace {

std::size_t norm_at(const KernelCall& call) { return static_cast<std::size_t>(norm_operand(call.op.kind)); }

// The operands that are read, without the norm.
std::span<const Buffer> states(const KernelCall& call) {
  return call.reads.first(std::min(norm_at(call), call.reads.size()));
}

double factor_of(const KernelCall& call) {
  if (!call.has_read(norm_at(call))) return call.op.scale;
  const Buffer& square = call.read(norm_at(call));
  call.require(square.elements() == 1, "the norm is one number");
  call.require(call.op.clip_limit > 0, "gradients are clipped to a positive norm");
  return clipped_factor(call.op, square.data[0]);
}

// The weights that are updated: fp32 master copies if there are any, otherwise the parameters. They are the second
// tensor read; the parameters are the first written.
void check_sizes(const KernelCall& call) {
  const Buffer& gradient = call.read(0);
  for (const Buffer& b : states(call))
    if (b.data != nullptr) call.require_same_elements(gradient, b);
  for (const Buffer& b : call.writes)
    if (b.data != nullptr) call.require_same_elements(gradient, b);
}

std::size_t count(std::span<const Buffer> buffers) {
  std::size_t n = 0;
  while (n < buffers.size() && buffers[n].data != nullptr) ++n;
  return n;
}

}  // namespace

void gradient_norm(const KernelCall& call) {
  double sum = 0;
  for (const float g : call.read(0).span()) sum += static_cast<double>(g) * g;
  call.require(call.write(0).elements() == 1, "the norm is one number");
  call.write(0).data[0] = static_cast<float>(sum);
}

void scale(const KernelCall& call) {
  const Buffer &x = call.read(0), &y = call.write(0);
  call.require_same_elements(x, y);
  const double factor = factor_of(call);
  for (std::int64_t i = 0; i < y.elements(); ++i) y.data[i] = static_cast<float>(factor * x.data[i]);
}

// Kingma & Ba 2015 (arXiv 1412.6980), algorithm 1; Loshchilov & Hutter 2019 (arXiv 1711.05101), algorithm 2.
void adam(const KernelCall& call) {
  check_sizes(call);
  const std::size_t written = count(call.writes);
  call.require(count(states(call)) == 4 && (written == 3 || written == 4),
               "expected gradient, weights and two moments");
  const bool has_master = written == 4;
  const std::size_t moments = has_master ? 2 : 1;
  const KernelContext& c = call.context;
  const double factor = factor_of(call);
  call.require(c.step >= 1, "steps count from 1");
  const double correction1 = 1 - std::pow(c.beta1, static_cast<double>(c.step));
  const double correction2 = 1 - std::pow(c.beta2, static_cast<double>(c.step));
  for (std::int64_t i = 0; i < call.read(0).elements(); ++i) {
    const double w = call.reads[1].data[i];
    double g = factor * call.reads[0].data[i];
    if (!call.op.decoupled_weight_decay) g += c.weight_decay * w;
    const double m = c.beta1 * call.reads[2].data[i] + (1 - c.beta1) * g;
    const double v = c.beta2 * call.reads[3].data[i] + (1 - c.beta2) * g * g;
    const double decayed = call.op.decoupled_weight_decay ? w - c.learning_rate * c.weight_decay * w : w;
    const double updated = decayed - c.learning_rate * (m / correction1) / (std::sqrt(v / correction2) + c.epsilon);
    call.writes[0].data[i] = static_cast<float>(updated);
    if (has_master) call.writes[1].data[i] = static_cast<float>(updated);
    call.writes[moments].data[i] = static_cast<float>(m);
    call.writes[moments + 1].data[i] = static_cast<float>(v);
  }
}

// As torch.optim.SGD: v = momentum v + g, w = w - learning_rate v.
void sgd(const KernelCall& call) {
  check_sizes(call);
  const std::size_t read = count(states(call)), written = count(call.writes);
  // Without master weights the parameter is read too, so that the reads are the gradient and everything written.
  const bool has_master = read == written;
  const bool has_momentum = read == 3;
  call.require((read == 2 || read == 3) && (has_master || read == written + 1),
               "expected gradient, weights and at most one moment");
  const KernelContext& c = call.context;
  const double factor = factor_of(call);
  for (std::int64_t i = 0; i < call.read(0).elements(); ++i) {
    const double w = call.reads[1].data[i];
    double g = factor * call.reads[0].data[i] + c.weight_decay * w;
    if (has_momentum) {
      g += c.momentum * call.reads[2].data[i];
      call.writes[has_master ? 2 : 1].data[i] = static_cast<float>(g);
    }
    const double updated = w - c.learning_rate * g;
    call.writes[0].data[i] = static_cast<float>(updated);
    if (has_master) call.writes[1].data[i] = static_cast<float>(updated);
  }
}

}  // namespace orrery::cpu
