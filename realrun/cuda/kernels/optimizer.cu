// Optimizers on flat buffers.
#include <cmath>

#include "realrun/cuda/kernels/call.cuh"

namespace orrery::cuda {
namespace {

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

constexpr std::int64_t kRoomBytes = bytes_for<double>(kThreads / kWarp);
std::int64_t square_blocks(const Call& call) {
  return std::clamp<std::int64_t>(divide_up(elements(call.read(0)), kThreads * kWide), 1,
                                  call.launch.processors * kBlocksPerProcessor);
}

// ---- Scaling and clipping

// clipped_factor() (realrun/kernel.h) if there is a norm, else the factor.
struct Scaling {
  float factor, limit, penalty;  // penalty above 0: divide by 1 + penalty x norm, in place of clipping
  const float* squares;
  // `of`: which of several norms.
  __device__ float operator()(std::int64_t of = 0) const {
    if (squares == nullptr) return factor;
    const float square = squares[of];
    if (penalty > 0) return factor / (1 + penalty * (square > 0 ? sqrtf(square) : 0));
    const float norm = fabsf(factor) * sqrtf(square);
    return factor * fminf(1, limit / (norm + static_cast<float>(kClippingEpsilon)));
  }
};

Scaling scaling_of(const Call& call) {
  const Operand* const square = squared_norm(call);
  return {static_cast<float>(call.op.scale), call.op.clip_limit,
          call.op.divides ? static_cast<float>(call.op.learning_rate) : 0,
          square == nullptr ? nullptr : call.singles(*square)};
}

// A factor of scale: the root of a part's size, at least `least`.
struct Size {
  const float* sizes;
  float least;
  __device__ float operator()(std::int64_t of) const { return sizes == nullptr ? 1 : fmaxf(least, sqrtf(sizes[of])); }
};

template <int kVector>
__global__ void scale_kernel(std::int64_t elements, std::int64_t part, Scaling scaling, Size size, Any x, Any y) {
  const std::int64_t i = thread_number() * kVector;
  if (i >= elements) return;
  const float factor = scaling(i / part) * size(i / part);
  float values[kVector];
  load_vector<kVector>(x, i, values);
#pragma unroll
  for (int j = 0; j < kVector; ++j) values[j] *= factor;
  store_vector<kVector>(y, i, values);
}

template <int kVector>
__global__ void subtract_kernel(std::int64_t elements, Any a, Any b, Any y) {
  const std::int64_t i = thread_number() * kVector;
  if (i >= elements) return;
  float from[kVector], values[kVector];
  load_vector<kVector>(a, i, from, b, i, values);
#pragma unroll
  for (int j = 0; j < kVector; ++j) values[j] = from[j] - values[j];
  store_vector<kVector>(y, i, values);
}

// ---- Second moments that are factored

// The blocks that share a sum, so that few sums, too, keep all processors busy. Each takes a strip of what is summed.
std::int64_t strips_of(const Call& call, const SquaresShape& s) {
  // A block has the threads for one contiguous sum, or for as many columns.
  const std::int64_t sums = s.outer * (s.inner == 1 ? 1 : divide_up(s.inner, kThreads));
  const std::int64_t wanted = divide_up(call.launch.processors * kBlocksPerProcessor, sums);
  return std::clamp<std::int64_t>(wanted, 1, divide_up(s.summed, s.inner == 1 ? kThreads * kWide : kWarp));
}

// Block [outer, strip]: a strip of a contiguous sum.
template <int kVector>
__global__ void square_strips_kernel(std::int64_t summed, std::int64_t strips, Any x, double* partial) {
  const std::int64_t outer = blockIdx.x / strips, strip = blockIdx.x % strips;
  double sum = 0;
  for (std::int64_t k = (strip * blockDim.x + threadIdx.x) * kVector; k < summed; k += strips * blockDim.x * kVector) {
    float values[kVector];
    load_vector<kVector>(x, outer * summed + k, values);
#pragma unroll
    for (int j = 0; j < kVector; ++j) sum += static_cast<double>(values[j]) * values[j];
  }
  sum = block_sum(sum, reinterpret_cast<double*>(dynamic_shared()));
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// Block [outer, tile, strip]: a strip of the rows of as many columns as a block has threads.
__global__ void square_columns_kernel(SquaresShape s, std::int64_t strips, Any x, double* partial) {
  const std::int64_t tiles = (s.inner + blockDim.x - 1) / blockDim.x, strip = blockIdx.x % strips,
                     outer = blockIdx.x / strips / tiles,
                     column = blockIdx.x / strips % tiles * blockDim.x + threadIdx.x;
  if (column >= s.inner) return;
  double sum = 0;
  for (std::int64_t k = strip; k < s.summed; k += strips) {
    const float value = load(x, (outer * s.summed + k) * s.inner + column);
    sum += static_cast<double>(value) * value;
  }
  partial[(outer * s.inner + column) * strips + strip] = sum;
}

__global__ void add_strips_kernel(std::int64_t sums, std::int64_t strips, double factor, const double* partial, Any y) {
  const std::int64_t i = thread_number();
  if (i >= sums) return;
  double sum = 0;
  for (std::int64_t strip = 0; strip < strips; ++strip) sum += partial[i * strips + strip];
  store(y, i, static_cast<float>(factor * sum));
}

template <int kVector>
__global__ void moving_mean_kernel(std::int64_t elements, float weight, Any mean, Any x, Any y) {
  const std::int64_t i = thread_number() * kVector;
  if (i >= elements) return;
  float before[kVector], values[kVector];
  load_vector<kVector>(mean, i, before, x, i, values);
#pragma unroll
  for (int j = 0; j < kVector; ++j) values[j] = (1 - weight) * before[j] + weight * values[j];
  store_vector<kVector>(y, i, values);
}

// `columns`, `sums`: null without factors.
template <int kVector>
__global__ void factored_update_kernel(std::int64_t elements, FactorsShape s, float epsilon, Any gradient, Any rows,
                                       const float* columns, const float* sums, Any y) {
  const std::int64_t i = thread_number() * kVector;
  if (i >= elements) return;
  float g[kVector], square[kVector];
  load_vector<kVector>(gradient, i, g);
  if (columns == nullptr) {
    load_vector<kVector>(rows, i, square);
  } else {
    const std::int64_t row = i / s.columns, group = row / s.rows, at = group * s.columns + i % s.columns;
    // First divided: a product of two small sums would be zero.
    const float of_row = sums[group] > 0 ? load(rows, row) / sums[group] : 0;
#pragma unroll
    for (int j = 0; j < kVector; ++j) square[j] = of_row * columns[at + j];
  }
#pragma unroll
  for (int j = 0; j < kVector; ++j) g[j] /= fmaxf(sqrtf(square[j]), epsilon);
  store_vector<kVector>(y, i, g);
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
  float g[kVector], w[kVector], m[kVector], v[kVector];
  load_vector<kVector>(gradient, i, g, weight, i, w, first, i, m, second, i, v);
  const float factor = c.scaling();
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
  float learning_rate, decay, momentum, clip, beta1, beta2, per_epsilon;
  bool nesterov, sign;
};

template <int kVector>
__global__ void sgd_kernel(Sgd c, Any gradient, Any weight, Any moment, Any to, Any master, Any moment_to) {
  const std::int64_t i = thread_number() * kVector;
  if (i >= c.elements) return;
  const Raw<kVector> raw_g = load_raw<kVector>(gradient, i), raw_w = load_raw<kVector>(weight, i),
                     raw_m = moment.data == nullptr ? raw_g : load_raw<kVector>(moment, i);
  const float factor = c.scaling();
  float g[kVector], w[kVector], m[kVector] = {};
  unpack<kVector>(raw_g, gradient.dtype, g);
  unpack<kVector>(raw_w, weight.dtype, w);
  if (moment.data != nullptr) unpack<kVector>(raw_m, moment.dtype, m);
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    g[j] = factor * g[j] + (c.sign ? 0 : c.decay * w[j]);
    if (c.sign) {
      const float mean = c.beta1 * m[j] + (1 - c.beta1) * g[j];
      m[j] = c.beta2 * m[j] + (1 - c.beta2) * g[j];
      g[j] = fminf(fmaxf(mean * c.per_epsilon, -1), 1) + c.decay * w[j];
    } else if (moment.data != nullptr) {
      m[j] = c.momentum * m[j] + g[j];
      if (c.clip > 0) m[j] = fminf(fmaxf(m[j], -c.clip), c.clip);
      g[j] = c.nesterov ? g[j] + c.momentum * m[j] : m[j];
    }
    w[j] -= c.learning_rate * g[j];
  }
  if (moment_to.data != nullptr) store_vector<kVector>(moment_to, i, m);
  store_vector<kVector>(to, i, w);
  if (master.data != nullptr) store_vector<kVector>(master, i, w);
}

Any numbers_of(const Call& call, const Operand& o) { return o.data == nullptr ? Any{} : call.numbers(o); }

}  // namespace

std::int64_t gradient_norm_scratch(const Call& call) { return bytes_for<double>(square_blocks(call)); }

void gradient_norm(const Call& call) {
  const Any in = call.in(0);
  const std::int64_t count = square_blocks(call), n = elements(call.read(0));
  auto* const partial = call.scratch<double>(count);
  ORRERY_LAUNCH_WIDE(call, wide(n, {in}), squares_kernel, blocks(count), kRoomBytes, n, in, partial);
  ORRERY_LAUNCH(call, add_squares_kernel, dim3(1), kRoomBytes, count, partial, call.singles(call.write(0)));
}

void scale(const Call& call) {
  const std::int64_t n = elements(call.write(0));
  const Any in = call.in(0), out = call.out(0);
  const Operand* const sizes = sizes_of(call);
  const std::int64_t part = n / scale_parts(call);
  const Size size{sizes == nullptr ? nullptr : call.singles(*sizes), call.op.epsilon};
  ORRERY_LAUNCH_WIDE(call, wide(part, {in, out}), scale_kernel, Elements{n}, 0, n, part, scaling_of(call), size, in,
                     out);
}

void subtract(const Call& call) {
  const std::int64_t n = elements(call.write(0));
  const Any a = call.in(0), b = call.in(1), out = call.out(0);
  ORRERY_LAUNCH_WIDE(call, wide(n, {a, b, out}), subtract_kernel, Elements{n}, 0, n, a, b, out);
}

std::int64_t square_sums_scratch(const Call& call) {
  return bytes_for<double>(elements(call.write(0)) * strips_of(call, squares_shape(call)));
}

void square_sums(const Call& call) {
  const SquaresShape s = squares_shape(call);
  const std::int64_t strips = strips_of(call, s), sums = s.outer * s.inner;
  const Any in = call.in(0);
  auto* const partial = call.scratch<double>(sums * strips);
  if (s.inner == 1)
    ORRERY_LAUNCH_WIDE(call, wide(s.summed, {in}), square_strips_kernel, blocks(s.outer * strips), kRoomBytes, s.summed,
                       strips, in, partial);
  else
    ORRERY_LAUNCH(call, square_columns_kernel, blocks(s.outer * divide_up(s.inner, kThreads) * strips), 0, s, strips,
                  in, partial);
  ORRERY_LAUNCH(call, add_strips_kernel, Elements{sums}, 0, sums, strips, call.op.scale, partial, call.out(0));
}

void moving_mean(const Call& call) {
  const std::int64_t n = elements(call.write(0));
  const auto weight = static_cast<float>(second_moment_weight(call.context.step));
  const Any mean = call.in(0), x = call.in(1), out = call.out(0);
  ORRERY_LAUNCH_WIDE(call, wide(n, {mean, x, out}), moving_mean_kernel, Elements{n}, 0, n, weight, mean, x, out);
}

void factored_update(const Call& call) {
  const FactorsShape s = factors_shape(call);
  const std::int64_t n = elements(call.write(0));
  const auto epsilon = static_cast<float>(call.context.epsilon);
  const Any g = call.in(0), rows = call.in(1), out = call.out(0);
  const bool factored = s.columns > 0;
  const bool is_wide = factored ? wide(s.columns, {g, out}) : wide(n, {g, rows, out});
  ORRERY_LAUNCH_WIDE(call, is_wide, factored_update_kernel, Elements{n}, 0, n, s, epsilon, g, rows,
                     factored ? call.singles(call.read(2)) : nullptr, factored ? call.singles(call.read(3)) : nullptr,
                     out);
}

// Factors are computed in double.
void adam(const Call& call) {
  const UpdateOperands u = update_operands(call);
  const KernelContext& k = call.context;
  const auto power = [&](double beta) { return 1 - std::pow(beta, static_cast<double>(k.step)); };
  const auto single = [](double x) { return static_cast<float>(x); };
  const Adam c{elements(u.gradient),   scaling_of(call),           single(k.beta1),
               single(k.beta2),        single(k.learning_rate),    single(k.epsilon),
               single(k.weight_decay), single(1 / power(k.beta1)), single(1 / std::sqrt(power(k.beta2))),
               single(1 - k.beta1),    single(1 - k.beta2),        call.op.decoupled_weight_decay};
  const Any g = call.numbers(u.gradient), w = call.numbers(u.weight), m = call.numbers(u.moment),
            v = call.numbers(u.second_moment), to = call.numbers(u.parameter), master = numbers_of(call, u.master),
            m_to = call.numbers(u.new_moment), v_to = call.numbers(u.new_second_moment);
  ORRERY_LAUNCH_WIDE(call, wide(c.elements, {g, w, m, v, to, master, m_to, v_to}), adam_kernel, Elements{c.elements}, 0,
                     c, g, w, m, v, to, master, m_to, v_to);
}

void sgd(const Call& call) {
  const UpdateOperands u = update_operands(call);
  const SgdRates rates = sgd_rates(call);
  const auto single = [](double x) { return static_cast<float>(x); };
  const Sgd c{elements(u.gradient),
              scaling_of(call),
              single(rates.learning_rate),
              single(rates.decay),
              single(rates.momentum),
              single(rates.clip),
              single(call.context.beta1),
              single(call.context.beta2),
              single(1 / call.context.epsilon),
              rates.nesterov,
              rates.sign};
  const Any g = call.numbers(u.gradient), w = call.numbers(u.weight), moment = numbers_of(call, u.moment),
            to = call.numbers(u.parameter), master = numbers_of(call, u.master),
            moment_to = numbers_of(call, u.new_moment);
  ORRERY_LAUNCH_WIDE(call, wide(c.elements, {g, w, moment, to, master, moment_to}), sgd_kernel, Elements{c.elements}, 0,
                     c, g, w, moment, to, master, moment_to);
}

}  // namespace orrery::cuda
