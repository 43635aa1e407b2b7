// Optimizers on flat buffers. Sums and updates use double: only the storage rounds.
#include <algorithm>
#include <cmath>

#include "realrun/cpu/kernel_call.h"

namespace orrery::cpu {
namespace {

// `part`: the index of its norm, if there are several.
double factor_of(const Call& call, std::int64_t part = 0) {
  const Operand* const squares = squared_norm(call);
  return squares == nullptr ? call.op.scale : clipped_factor(call.op, Buffer(*squares).data[part]);
}

}  // namespace

void gradient_norm(const Call& call) {
  double sum = 0;
  for (const float g : call.read(0).span()) sum += static_cast<double>(g) * g;
  call.write(0).data[0] = static_cast<float>(sum);
}

void scale(const Call& call) {
  const Buffer &x = call.read(0), &y = call.write(0);
  const Operand* const sizes = sizes_of(call);
  const std::int64_t parts = scale_parts(call), part = y.elements() / parts;
  for (std::int64_t p = 0; p < parts; ++p) {
    double factor = factor_of(call, p);
    if (sizes != nullptr) factor *= std::max<double>(call.op.epsilon, std::sqrt(Buffer(*sizes).data[p]));
    for (std::int64_t i = p * part; i < (p + 1) * part; ++i) y.data[i] = static_cast<float>(factor * x.data[i]);
  }
}

// Kingma & Ba 2015 (arXiv 1412.6980), algorithm 1; Loshchilov & Hutter 2019 (arXiv 1711.05101), algorithm 2.
void adam(const Call& call) {
  const UpdateOperands u = update_operands(call);
  const Buffer gradient(u.gradient), weight(u.weight), first(u.moment), second(u.second_moment), to(u.parameter),
      master(u.master), new_first(u.new_moment), new_second(u.new_second_moment);
  const KernelContext& c = call.context;
  const double factor = factor_of(call);
  const double correction1 = 1 - std::pow(c.beta1, static_cast<double>(c.step));
  const double correction2 = 1 - std::pow(c.beta2, static_cast<double>(c.step));
  for (std::int64_t i = 0; i < gradient.elements(); ++i) {
    const double w = weight.data[i];
    double g = factor * gradient.data[i];
    if (!call.op.decoupled_weight_decay) g += c.weight_decay * w;
    const double m = c.beta1 * first.data[i] + (1 - c.beta1) * g;
    const double v = c.beta2 * second.data[i] + (1 - c.beta2) * g * g;
    const double decayed = call.op.decoupled_weight_decay ? w - c.learning_rate * c.weight_decay * w : w;
    const double updated = decayed - c.learning_rate * (m / correction1) / (std::sqrt(v / correction2) + c.epsilon);
    to.data[i] = static_cast<float>(updated);
    if (master.data != nullptr) master.data[i] = static_cast<float>(updated);
    new_first.data[i] = static_cast<float>(m);
    new_second.data[i] = static_cast<float>(v);
  }
}

void subtract(const Call& call) {
  const Buffer &a = call.read(0), &b = call.read(1), &y = call.write(0);
  for (std::int64_t i = 0; i < y.elements(); ++i) y.data[i] = a.data[i] - b.data[i];
}

void square_sums(const Call& call) {
  const Buffer &x = call.read(0), &y = call.write(0);
  const SquaresShape s = squares_shape(call);
  for (std::int64_t o = 0; o < s.outer; ++o)
    for (std::int64_t i = 0; i < s.inner; ++i) {
      double sum = 0;
      for (std::int64_t k = 0; k < s.summed; ++k) {
        const double value = x.data[(o * s.summed + k) * s.inner + i];
        sum += value * value;
      }
      y.data[o * s.inner + i] = static_cast<float>(call.op.scale * sum);
    }
}

void moving_mean(const Call& call) {
  const Buffer &mean = call.read(0), &x = call.read(1), &y = call.write(0);
  const double weight = second_moment_weight(call.context.step);
  for (std::int64_t i = 0; i < y.elements(); ++i)
    y.data[i] = static_cast<float>((1 - weight) * mean.data[i] + weight * x.data[i]);
}

// Shazeer & Stern 2018 (arXiv 1804.04235), algorithms 4 and 5. As in torch.optim, the root is at least epsilon, in
// place of the paper's term in the squares.
void factored_update(const Call& call) {
  const Buffer &gradient = call.read(0), &rows = call.read(1), &y = call.write(0);
  const FactorsShape s = factors_shape(call);
  const bool factored = s.columns > 0;
  const float* const columns = factored ? call.read(2).data : nullptr;
  const float* const sums = factored ? call.read(3).data : nullptr;
  for (std::int64_t i = 0; i < y.elements(); ++i) {
    double square = 0;
    if (factored) {
      const std::int64_t row = i / s.columns, group = row / s.rows;
      if (sums[group] > 0)
        square = static_cast<double>(rows.data[row]) * columns[group * s.columns + i % s.columns] / sums[group];
    } else {
      square = rows.data[i];
    }
    y.data[i] = static_cast<float>(gradient.data[i] / std::max(std::sqrt(square), call.context.epsilon));
  }
}

// As torch.optim.SGD: v = momentum v + g, w = w - learning_rate v, or with Nesterov's momentum
// w = w - learning_rate (g + momentum v). An sgd of its own rate clips the elements of v. By signs: Op::sign.
void sgd(const Call& call) {
  const UpdateOperands u = update_operands(call);
  const Buffer gradient(u.gradient), weight(u.weight), moment(u.moment), to(u.parameter), master(u.master),
      new_moment(u.new_moment);
  const SgdRates rates = sgd_rates(call);
  const double factor = factor_of(call), beta1 = call.context.beta1, beta2 = call.context.beta2;
  for (std::int64_t i = 0; i < gradient.elements(); ++i) {
    const double w = weight.data[i], g = factor * gradient.data[i] + (rates.sign ? 0 : rates.decay * w);
    double step = g;
    if (rates.sign) {
      const double m = moment.data[i], mean = beta1 * m + (1 - beta1) * g;
      new_moment.data[i] = static_cast<float>(beta2 * m + (1 - beta2) * g);
      // The sign; a mean below epsilon takes a part of the step, so that rounding cannot turn it round.
      step = std::clamp(mean / call.context.epsilon, -1.0, 1.0) + rates.decay * w;
    } else if (moment.data != nullptr) {
      double m = rates.momentum * moment.data[i] + g;
      if (rates.clip > 0) m = std::clamp(m, -rates.clip, rates.clip);
      new_moment.data[i] = static_cast<float>(m);
      step = rates.nesterov ? g + rates.momentum * m : m;
    }
    const double updated = w - rates.learning_rate * step;
    to.data[i] = static_cast<float>(updated);
    if (master.data != nullptr) master.data[i] = static_cast<float>(updated);
  }
}

}  // namespace orrery::cpu
