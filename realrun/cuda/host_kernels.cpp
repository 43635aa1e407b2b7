#include "realrun/cuda/host_kernels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "realrun/cpu/kernels.h"
#include "realrun/cuda/host_numbers.h"
#include "realrun/kernel_shapes.h"

namespace orrery::cuda {
namespace {

constexpr std::int64_t kBlock =
    2048;  // elements that are converted and updated while they are in the first-level cache

struct AdamFactors {
  float gradient_scale, beta1, beta2, l2, kept, step_size, correction2, epsilon;
};

// `squared_norm`: nullptr if gradients are not clipped.
AdamFactors factors_of(const Op& op, const float* squared_norm, const KernelContext& c) {
  const auto step = static_cast<double>(c.step);
  return {.gradient_scale = static_cast<float>(squared_norm == nullptr ? op.scale : clipped_factor(op, *squared_norm)),
          .beta1 = static_cast<float>(c.beta1),
          .beta2 = static_cast<float>(c.beta2),
          .l2 = op.decoupled_weight_decay ? 0.0f : static_cast<float>(c.weight_decay),
          .kept = op.decoupled_weight_decay ? static_cast<float>(1 - c.learning_rate * c.weight_decay) : 1.0f,
          .step_size = static_cast<float>(c.learning_rate / (1 - std::pow(c.beta1, step))),
          .correction2 = static_cast<float>(1 / std::sqrt(1 - std::pow(c.beta2, step))),
          .epsilon = static_cast<float>(c.epsilon)};
}

// Kingma & Ba 2015 (arXiv 1412.6980), algorithm 1; Loshchilov & Hutter 2019 (arXiv 1711.05101), algorithm 2. One loop
// without branches or calls, for the compiler to vectorise.
void adam_block(const AdamFactors& f, const float* gradient, float* weight, float* first, float* second,
                std::int64_t elements) {
  for (std::int64_t i = 0; i < elements; ++i) {
    const float g = f.gradient_scale * gradient[i] + f.l2 * weight[i];
    const float m = f.beta1 * first[i] + (1 - f.beta1) * g;
    const float v = f.beta2 * second[i] + (1 - f.beta2) * g * g;
    first[i] = m;
    second[i] = v;
    weight[i] = f.kept * weight[i] - f.step_size * m / (std::sqrt(v) * f.correction2 + f.epsilon);
  }
}

void* at(const Operand& operand, std::int64_t element) {
  return static_cast<char*>(operand.data) + element * bytes_of(operand.tensor->dtype, 1);
}

void adam(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes, const KernelContext& context,
          Workers& workers) {
  const KernelCall call{op, reads, writes, context};
  const UpdateOperands u = update_operands(call);
  const Operand* const square = squared_norm(call);
  if (square != nullptr) call.require(square->tensor->dtype == Dtype::fp32, "the norm is not fp32");
  const std::int64_t elements = u.gradient.tensor->elements();
  const AdamFactors factors =
      factors_of(op, square == nullptr ? nullptr : static_cast<const float*>(square->data), context);
  const std::array read{u.gradient, u.weight, u.moment, u.second_moment};
  // The operands that are written, each with the index in `read` of its old value.
  const std::array<std::pair<Operand, std::size_t>, 4> written{
      {{u.parameter, 1}, {u.master, 1}, {u.new_moment, 2}, {u.new_second_moment, 3}}};
  workers.divide(elements, kBlock, [&](std::int64_t begin, std::int64_t end) {
    std::array<std::array<float, kBlock>, 4> block;  // as in the reads: gradient, weight, two moments
    for (std::int64_t e = begin; e < end; e += kBlock) {
      const std::int64_t size = std::min(kBlock, end - e);
      for (std::size_t i = 0; i < 4; ++i) to_floats(at(read[i], e), read[i].tensor->dtype, block[i].data(), size);
      adam_block(factors, block[0].data(), block[1].data(), block[2].data(), block[3].data(), size);
      for (const auto& [to, from] : written)
        if (to.data != nullptr) from_floats(block[from].data(), at(to, e), to.tensor->dtype, size);
    }
  });
}

void through_floats(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes,
                    const KernelContext& context) {
  std::vector<std::vector<float>> values;
  std::vector<Operand> in, out;
  values.reserve(reads.size() + writes.size());
  const auto copy = [&](const Operand& operand, bool filled) -> Operand {
    if (operand.data == nullptr) return {};
    std::vector<float>& v = values.emplace_back(static_cast<std::size_t>(operand.tensor->elements()));
    if (filled) to_floats(operand.data, operand.tensor->dtype, v.data(), operand.tensor->elements());
    return {v.data(), operand.tensor};
  };
  for (const Operand& operand : reads) in.push_back(copy(operand, true));
  for (const Operand& operand : writes) out.push_back(copy(operand, op.accumulate));
  cpu::run_kernel(op, in, out, context);
  for (std::size_t i = 0; i < writes.size(); ++i)
    if (writes[i].data != nullptr)
      from_floats(static_cast<const float*>(out[i].data), writes[i].data, writes[i].tensor->dtype,
                  writes[i].tensor->elements());
}

}  // namespace

Workers::Workers(std::size_t threads)
    : begin_(static_cast<std::ptrdiff_t>(threads) + 1), end_(static_cast<std::ptrdiff_t>(threads) + 1) {
  for (std::size_t t = 0; t < threads; ++t)
    threads_.emplace_back([this, t] {
      for (begin_.arrive_and_wait(); part_ != nullptr; begin_.arrive_and_wait()) {
        part_(t);
        end_.arrive_and_wait();
      }
    });
}

Workers::~Workers() {
  part_ = nullptr;
  begin_.arrive_and_wait();
}

void Workers::divide(std::int64_t elements, std::int64_t granule,
                     const std::function<void(std::int64_t, std::int64_t)>& body) {
  const std::lock_guard one(one_call_);
  const auto parts = static_cast<std::int64_t>(threads_.size());
  const std::int64_t granules = (elements + granule - 1) / granule;
  if (parts <= 1 || granules <= 1) {
    if (elements > 0) body(0, elements);
    return;
  }
  part_ = [&](std::size_t thread) {
    const auto t = static_cast<std::int64_t>(thread);
    const std::int64_t begin = granules * t / parts * granule;
    const std::int64_t end = std::min(elements, granules * (t + 1) / parts * granule);
    if (begin < end) body(begin, end);
  };
  begin_.arrive_and_wait();
  end_.arrive_and_wait();
}

void run_on_host(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes,
                 const KernelContext& context, Workers& workers) {
  if (op.kind == OpKind::adam) return adam(op, reads, writes, context, workers);
  through_floats(op, reads, writes, context);
}

}  // namespace orrery::cuda
