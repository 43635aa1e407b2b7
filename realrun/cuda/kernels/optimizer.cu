// Optimizers on flat buffers.
#include <cmath>

#include "realrun/cuda/kernels/call.cuh"

namespace orrery::cuda {
namespace {

__device__ std::int64_t thread_number() { return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }

// ---- Sums of squares, by blocks and then over the blocks' sums. In double: its units are faster than the reads.

constexpr std::int64_t kBlocksPerProcessor = 8;

template <int kVector>
__global__ void squares_kernel(std::int64_t elements, Any x, double* partial) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x * kVector;
  double sum = 0;
#pragma unroll 2
  for (std::int64_t i = thread_number() * kVector; i < elements; i += step) {
    float values[kVector];
    load_vector<kVector>(x, i, values);
    float squares = 0;
#pragma unroll
    for (int j = 0; j < kVector; ++j) squares += values[j] * values[j];
    sum += squares;
  }
  sum = block_sum(sum, reinterpret_cast<double*>(dynamic_shared()));
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void add_squares_kernel(std::int64_t count, const double* partial, float* out) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x) sum += partial[i];
  sum = block_sum(sum, reinterpret_cast<double*>(dynamic_shared()));
  if (threadIdx.x == 0) *out = static_cast<float>(sum);
}

constexpr std::int64_t kRoomBytes = kThreads / kWarp * sizeof(double);
std::int64_t square_blocks(const Call& call) {
  return std::clamp<std::int64_t>(divide_up(elements(call.read(0)), kThreads * kWide), 1,
                                  call.launch.processors * kBlocksPerProcessor);
}

// ---- Scaling and clipping

// clipped_factor() (realrun/kernel.h) if there is a norm, else the factor.
struct Scaling {
  float factor, limit;
  const float* square;
  __device__ float operator()() const {
    if (square == nullptr) return factor;
    const float norm = fabsf(factor) * sqrtf(*square);
    return factor * fminf(1, limit / (norm + static_cast<float>(kClippingEpsilon)));
  }
};

std::size_t norm_at(const Call& call) { return static_cast<std::size_t>(norm_operand(call.op.kind)); }

// The operands that are read, without the norm.
std::span<const Operand> states(const Call& call) {
  return call.reads.first(std::min(norm_at(call), call.reads.size()));
}

Scaling scaling_of(const Call& call) {
  Scaling s{static_cast<float>(call.op.scale), call.op.clip_limit, nullptr};
  if (!call.has_read(norm_at(call))) return s;
  const Operand& square = call.read(norm_at(call));
  call.require(elements(square) == 1, "the norm is one number");
  call.require(s.limit > 0, "gradients are clipped to a positive norm");
  s.square = call.singles(square);
  return s;
}

template <int kVector>
__global__ void scale_kernel(std::int64_t elements, Scaling scaling, Any x, Any y) {
  const std::int64_t i = thread_number() * kVector;
  if (i >= elements) return;
  const float factor = scaling();
  float values[kVector];
  load_vector<kVector>(x, i, values);
#pragma unroll
  for (int j = 0; j < kVector; ++j) values[j] *= factor;
  store_vector<kVector>(y, i, values);
}

// ---- Updates

struct Adam {
  std::int64_t elements;
  Scaling scaling;
  float beta1, beta2, learning_rate, epsilon, decay;
  float correction1, root_correction2;  // 1 / (1 - beta1^t), 1 / sqrt(1 - beta2^t)
  float one_minus_beta1, one_minus_beta2;
  bool decoupled;
};

template <int kVector>
__global__ void adam_kernel(Adam c, Any gradient, Any weight, Any first, Any second, Any to, Any master, Any first_to,
                            Any second_to) {
  const std::int64_t i = thread_number() * kVector;
  if (i >= c.elements) return;
  const Raw<kVector> raw_g = load_raw<kVector>(gradient, i), raw_w = load_raw<kVector>(weight, i),
                     raw_m = load_raw<kVector>(first, i), raw_v = load_raw<kVector>(second, i);
  const float factor = c.scaling();
  float g[kVector], w[kVector], m[kVector], v[kVector];
  unpack<kVector>(raw_g, gradient.dtype, g);
  unpack<kVector>(raw_w, weight.dtype, w);
  unpack<kVector>(raw_m, first.dtype, m);
  unpack<kVector>(raw_v, second.dtype, v);
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    float d = factor * g[j];
    if (!c.decoupled) d += c.decay * w[j];
    m[j] = c.beta1 * m[j] + c.one_minus_beta1 * d;
    v[j] = c.beta2 * v[j] + c.one_minus_beta2 * d * d;
    const float step = c.learning_rate * (m[j] * c.correction1) / (sqrtf(v[j]) * c.root_correction2 + c.epsilon);
    w[j] = (c.decoupled ? w[j] - c.learning_rate * c.decay * w[j] : w[j]) - step;
  }
  store_vector<kVector>(to, i, w);
  if (master.data != nullptr) store_vector<kVector>(master, i, w);
  store_vector<kVector>(first_to, i, m);
  store_vector<kVector>(second_to, i, v);
}

struct Sgd {
  std::int64_t elements;
  Scaling scaling;
  float learning_rate, decay, momentum;
};

template <int kVector>
__global__ void sgd_kernel(Sgd c, Any gradient, Any weight, Any moment, Any to, Any master, Any moment_to) {
  const std::int64_t i = thread_number() * kVector;
  if (i >= c.elements) return;
  const Raw<kVector> raw_g = load_raw<kVector>(gradient, i), raw_w = load_raw<kVector>(weight, i),
                     raw_m = moment.data == nullptr ? raw_g : load_raw<kVector>(moment, i);
  const float factor = c.scaling();
  float g[kVector], w[kVector], m[kVector];
  unpack<kVector>(raw_g, gradient.dtype, g);
  unpack<kVector>(raw_w, weight.dtype, w);
  if (moment.data != nullptr) unpack<kVector>(raw_m, moment.dtype, m);
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    g[j] = factor * g[j] + c.decay * w[j];
    if (moment.data != nullptr) g[j] += c.momentum * m[j];
    w[j] -= c.learning_rate * g[j];
  }
  if (moment_to.data != nullptr) store_vector<kVector>(moment_to, i, g);
  store_vector<kVector>(to, i, w);
  if (master.data != nullptr) store_vector<kVector>(master, i, w);
}

void check_sizes(const Call& call) {
  const Operand& gradient = call.read(0);
  for (const Operand& o : states(call))
    if (o.data != nullptr) call.require_same_elements(gradient, o);
  for (const Operand& o : call.writes)
    if (o.data != nullptr) call.require_same_elements(gradient, o);
}

std::size_t count(std::span<const Operand> operands) {
  std::size_t n = 0;
  while (n < operands.size() && operands[n].data != nullptr) ++n;
  return n;
}

dim3 grid_for(std::int64_t elements, bool is_wide) {
  return blocks(divide_up(elements, kThreads * (is_wide ? kWide : 1)));
}

}  // namespace

std::int64_t gradient_norm_scratch(const Call& call) {
  return square_blocks(call) * static_cast<std::int64_t>(sizeof(double));
}

void gradient_norm(const Call& call) {
  const Operand& x = call.read(0);
  call.require(elements(call.write(0)) == 1, "the norm is one number");
  const Any in = call.numbers(x);
  float* const out = call.singles(call.write(0));
  const std::int64_t count = square_blocks(call);
  auto* const partial = call.scratch<double>(count);
  const auto issue = [&](auto kernel) {
    launch("squares_kernel", kernel, blocks(count), kThreads, kRoomBytes, call.launch.stream, elements(x), in, partial);
  };
  wide(elements(x), {in}) ? issue(squares_kernel<kWide>) : issue(squares_kernel<1>);
  ORRERY_LAUNCH(add_squares_kernel, dim3(1), kThreads, kRoomBytes, call.launch.stream, count, partial, out);
}

void scale(const Call& call) {
  const Operand &x = call.read(0), &y = call.write(0);
  call.require_same_elements(x, y);
  const Any in = call.numbers(x), out = call.numbers(y);
  const Scaling scaling = scaling_of(call);
  const bool is_wide = wide(elements(y), {in, out});
  const auto issue = [&](auto kernel) {
    launch("scale_kernel", kernel, grid_for(elements(y), is_wide), kThreads, 0, call.launch.stream, elements(y),
           scaling, in, out);
  };
  is_wide ? issue(scale_kernel<kWide>) : issue(scale_kernel<1>);
}

// Operands are those of realrun/cpu/optimizer.cpp. Factors are computed in double.
void adam(const Call& call) {
  check_sizes(call);
  const std::size_t written = count(call.writes);
  call.require(count(states(call)) == 4 && (written == 3 || written == 4),
               "expected gradient, weights and two moments");
  const bool has_master = written == 4;
  const std::size_t moments = has_master ? 2 : 1;
  const KernelContext& k = call.context;
  call.require(k.step >= 1, "steps count from 1");
  const auto power = [&](double beta) { return 1 - std::pow(beta, static_cast<double>(k.step)); };
  const auto single = [](double x) { return static_cast<float>(x); };
  const Adam c{elements(call.read(0)), scaling_of(call),           single(k.beta1),
               single(k.beta2),        single(k.learning_rate),    single(k.epsilon),
               single(k.weight_decay), single(1 / power(k.beta1)), single(1 / std::sqrt(power(k.beta2))),
               single(1 - k.beta1),    single(1 - k.beta2),        call.op.decoupled_weight_decay};
  const Any g = call.numbers(call.reads[0]), w = call.numbers(call.reads[1]), m = call.numbers(call.reads[2]),
            v = call.numbers(call.reads[3]), to = call.numbers(call.writes[0]),
            master = has_master ? call.numbers(call.writes[1]) : Any{}, m_to = call.numbers(call.writes[moments]),
            v_to = call.numbers(call.writes[moments + 1]);
  const bool is_wide = wide(c.elements, {g, w, m, v, to, master, m_to, v_to});
  const auto issue = [&](auto kernel) {
    launch("adam_kernel", kernel, grid_for(c.elements, is_wide), kThreads, 0, call.launch.stream, c, g, w, m, v, to,
           master, m_to, v_to);
  };
  is_wide ? issue(adam_kernel<kWide>) : issue(adam_kernel<1>);
}

void sgd(const Call& call) {
  check_sizes(call);
  const std::size_t read = count(states(call)), written = count(call.writes);
  // Without master weights the parameter is read too, so that the reads are the gradient and everything written.
  const bool has_master = read == written;
  const bool has_momentum = read == 3;
  call.require((read == 2 || read == 3) && (has_master || read == written + 1),
               "expected gradient, weights and at most one moment");
  const KernelContext& k = call.context;
  const Sgd c{elements(call.read(0)), scaling_of(call), static_cast<float>(k.learning_rate),
              static_cast<float>(k.weight_decay), static_cast<float>(k.momentum)};
  const Any g = call.numbers(call.reads[0]), w = call.numbers(call.reads[1]),
            moment = has_momentum ? call.numbers(call.reads[2]) : Any{}, to = call.numbers(call.writes[0]),
            master = has_master ? call.numbers(call.writes[1]) : Any{},
            moment_to = has_momentum ? call.numbers(call.writes[has_master ? 2 : 1]) : Any{};
  const bool is_wide = wide(c.elements, {g, w, moment, to, master, moment_to});
  const auto issue = [&](auto kernel) {
    launch("sgd_kernel", kernel, grid_for(c.elements, is_wide), kThreads, 0, call.launch.stream, c, g, w, moment, to,
           master, moment_to);
  };
  is_wide ? issue(sgd_kernel<kWide>) : issue(sgd_kernel<1>);
}

}  // namespace orrery::cuda
