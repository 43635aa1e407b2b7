// Element-wise kernels: a thread takes kVector neighbours, loads all operands, then computes.
#include <cmath>

#include "realrun/cuda/kernels/call.cuh"

namespace orrery::cuda {
namespace {

struct ValueAndSlope {
  float value, slope;
};

// x sigmoid(steepness x).
__device__ ValueAndSlope sigmoid_linear(float x, float steepness) {
  const float s = 1 / (1 + expf(-steepness * x));
  return {x * s, s + steepness * x * s * (1 - s)};
}

// As in realrun/cpu/elementwise.cpp, which names the papers.
__device__ ValueAndSlope evaluate(ActivationFunction function, float x) {
  constexpr float kQuickGelu = 1.702f, kInverseRoot2 = 0.70710678f, kInverseRoot2Pi = 0.39894228f;
  switch (function) {
    case ActivationFunction::gelu:
    case ActivationFunction::geglu: {
      const float cdf = 0.5f * (1 + erff(x * kInverseRoot2));
      return {x * cdf, cdf + x * kInverseRoot2Pi * expf(-0.5f * x * x)};
    }
    case ActivationFunction::swiglu:
      return sigmoid_linear(x, 1);
    case ActivationFunction::quick_gelu:
      return sigmoid_linear(x, kQuickGelu);
    case ActivationFunction::relu:
      return {x > 0 ? x : 0, x > 0 ? 1.0f : 0.0f};
    case ActivationFunction::relu2:
      return {x > 0 ? x * x : 0, x > 0 ? 2 * x : 0};
  }
  return {0, 0};
}

// Index in x of element `first` of y.
__device__ std::int64_t input_index(const ActivationShape& s, std::int64_t first) {
  return s.gated ? first / s.width * 2 * s.width + first % s.width : first;
}

template <int kVector>
__device__ void add_repeated(const Any& bias, std::int64_t period, std::int64_t at, float (&values)[kVector]) {
  if (bias.data != nullptr) add_vector<kVector>(bias, at % period, values);
}

template <int kVector>
__global__ void activation_kernel(ActivationShape s, ActivationFunction function, Any x, Any bias, Any weights, Any y) {
  const std::int64_t first = thread_number() * kVector;
  if (first >= s.elements) return;
  const std::int64_t at = input_index(s, first);
  float gate[kVector], up[kVector];
  load_vector<kVector>(x, at, gate, x, s.gated ? at + s.width : at, up);
  add_repeated<kVector>(bias, s.period, at, gate);
  if (s.gated) add_repeated<kVector>(bias, s.period, at + s.width, up);
  const float weight = weights.data != nullptr ? load(weights, first / s.width) : 1.0f;
#pragma unroll
  for (int i = 0; i < kVector; ++i) gate[i] = weight * evaluate(function, gate[i]).value * (s.gated ? up[i] : 1.0f);
  store_vector<kVector>(y, first, gate);
}

// Writes dx for kVector elements of y. Returns the sum of dy times what the row's weight multiplied.
template <int kVector>
__device__ float activation_gradient(const ActivationShape& s, ActivationFunction function, std::int64_t first,
                                     float weight, const Any& dy, const Any& x, const Any& bias, const Any& dx) {
  const std::int64_t at = input_index(s, first);
  float d[kVector], gate[kVector], up[kVector];
  load_vector<kVector>(dy, first, d, x, at, gate, x, s.gated ? at + s.width : at, up);
  add_repeated<kVector>(bias, s.period, at, gate);
  if (s.gated) add_repeated<kVector>(bias, s.period, at + s.width, up);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const ValueAndSlope f = evaluate(function, gate[i]);
    const float other = s.gated ? up[i] : 1.0f;
    sum += d[i] * f.value * other;
    d[i] *= weight;
    gate[i] = d[i] * f.slope * other;
    up[i] = d[i] * f.value;
  }
  store_vector<kVector>(dx, at, gate);
  if (s.gated) store_vector<kVector>(dx, at + s.width, up);
  return sum;
}

template <int kVector>
__global__ void activation_backward_kernel(ActivationShape s, ActivationFunction function, Any dy, Any x, Any bias,
                                           Any dx) {
  const std::int64_t first = thread_number() * kVector;
  if (first < s.elements) activation_gradient<kVector>(s, function, first, 1.0f, dy, x, bias, dx);
}

// One block per row. dweights may overwrite weights: all threads have read them before the first one writes.
template <int kVector>
__global__ void weighted_activation_backward_kernel(ActivationShape s, ActivationFunction function, Any dy, Any x,
                                                    Any bias, Any weights, Any dx, Any dweights) {
  auto* const room = reinterpret_cast<float*>(dynamic_shared());  // [kThreads / kWarp]
  const std::int64_t row = blockIdx.x;
  const float weight = load(weights, row);
  float sum = 0;
  for (std::int64_t column = static_cast<std::int64_t>(threadIdx.x) * kVector; column < s.width;
       column += kThreads * kVector)
    sum += activation_gradient<kVector>(s, function, row * s.width + column, weight, dy, x, bias, dx);
  sum = block_sum(sum, room);
  if (threadIdx.x == 0 && dweights.data != nullptr) store(dweights, row, sum);
}

// Tells which elements are kept (realrun/cpu/elementwise.cpp).
struct Dropout : WholeElements {
  std::int64_t elements;
  std::uint64_t seed, stream;
  std::uint64_t threshold;  // an element is kept if its word is at least this
  float scale;

  __device__ bool kept(std::uint64_t whole_index) const {
    return words_of_draw(seed, stream, whole_index).at[0] >= threshold;
  }
};

// kVector > 1: rows are whole vectors along the last dimension, and neighbours are also neighbours in the whole tensor.
template <int kVector>
__global__ void dropout_kernel(Dropout drop, Any x, Any residual, Any bias, std::int64_t period, Any y, Any mask) {
  const std::int64_t first = thread_number() * kVector;
  if (first >= drop.elements) return;
  const Raw<kVector> raw = load_raw<kVector>(x, first),
                     raw_residual = residual.data == nullptr ? raw : load_raw<kVector>(residual, first);
  float values[kVector], out[kVector] = {}, keep[kVector];
  unpack<kVector>(raw, x.dtype, values);
  if (residual.data != nullptr) unpack<kVector>(raw_residual, residual.dtype, out);
  add_repeated<kVector>(bias, period, first, values);
  const std::uint64_t index = drop.index(first);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const bool kept = drop.kept(index + static_cast<std::uint64_t>(i));
    keep[i] = kept ? 1 : 0;
    out[i] = kept ? out[i] + drop.scale * values[i] : out[i];
  }
  store_vector<kVector>(y, first, out);
  store_vector<kVector>(mask, first, keep);
}

// Standard normal, drawn as in realrun/random_draws.h.
__device__ float drawn_normal(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  const PhiloxWords words = words_of_draw(seed, stream, index);
  const float radius = sqrtf(-2 * logf((static_cast<float>(words.at[0]) + 1) * 0x1p-32f));
  constexpr float kTurn = 6.283185307f;
  return radius * cosf(kTurn * (static_cast<float>(words.at[1]) * 0x1p-32f));
}

__global__ void add_noise_kernel(Dropout draw, Any logits, Any deviations, Any noisy, Any slopes) {
  const std::int64_t i = thread_number();
  if (i >= draw.elements) return;
  const float drawn = drawn_normal(draw.seed, draw.stream, draw.index(i)), d = load(deviations, i);
  store(noisy, i, load(logits, i) + drawn * (fmaxf(d, 0) + log1pf(expf(-fabsf(d)))));
  store(slopes, i, drawn / (1 + expf(-d)));
}

template <int kVector>
__global__ void dropout_backward_kernel(std::int64_t elements, float scale, Any dy, Any mask, Any dx) {
  const std::int64_t first = thread_number() * kVector;
  if (first >= elements) return;
  float d[kVector], keep[kVector];
  load_vector<kVector>(dy, first, d, mask, first, keep);
#pragma unroll
  for (int i = 0; i < kVector; ++i) d[i] = keep[i] != 0 ? scale * d[i] : 0;
  store_vector<kVector>(dx, first, d);
}

template <int kVector>
__global__ void add_kernel(std::int64_t elements, Any a, Any b, Any bias, std::int64_t period, Any y) {
  const std::int64_t first = thread_number() * kVector;
  if (first >= elements) return;
  const Raw<kVector> raw = load_raw<kVector>(a, first), raw_b = b.data == nullptr ? raw : load_raw<kVector>(b, first);
  float sum[kVector], other[kVector];
  unpack<kVector>(raw, a.dtype, sum);
  if (b.data != nullptr) {
    unpack<kVector>(raw_b, b.dtype, other);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum[i] += other[i];
  }
  add_repeated<kVector>(bias, period, first, sum);
  store_vector<kVector>(y, first, sum);
}

template <int kVector>
__global__ void multiply_kernel(std::int64_t elements, bool divides, Any a, Any b, Any y) {
  const std::int64_t first = thread_number() * kVector;
  if (first >= elements) return;
  float product[kVector], other[kVector];
  load_vector<kVector>(a, first, product, b, first, other);
#pragma unroll
  for (int i = 0; i < kVector; ++i) product[i] = divides ? product[i] / other[i] : product[i] * other[i];
  store_vector<kVector>(y, first, product);
}

// Multiplies each row by its own number, or divides it by that.
template <int kVector>
__global__ void multiply_rows_kernel(std::int64_t elements, std::int64_t width, bool divides, Any a, Any b, Any y) {
  const std::int64_t first = thread_number() * kVector;
  if (first >= elements) return;
  const float factor = load(b, first / width);
  float product[kVector];
  load_vector<kVector>(a, first, product);
#pragma unroll
  for (int i = 0; i < kVector; ++i) product[i] = divides ? product[i] / factor : product[i] * factor;
  store_vector<kVector>(y, first, product);
}

// Inner products of pairs of rows: one block each.
template <int kVector>
__global__ void multiply_sum_kernel(std::int64_t width, Any a, Any b, Any y) {
  auto* const room = reinterpret_cast<float*>(dynamic_shared());  // [kThreads / kWarp]
  const std::int64_t row = blockIdx.x;
  float sum = 0;
  for (std::int64_t column = static_cast<std::int64_t>(threadIdx.x) * kVector; column < width;
       column += kThreads * kVector) {
    float one[kVector], other[kVector];
    load_vector<kVector>(a, row * width + column, one);
    load_vector<kVector>(b, row * width + column, other);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum += one[i] * other[i];
  }
  sum = block_sum(sum, room);
  if (threadIdx.x == 0) store(y, row, sum);
}

// Length of the rows that the bias and the halves consist of, which vectors must divide.
std::int64_t common_row(const Call& call, std::int64_t row, std::size_t bias) {
  if (!call.has_read(bias)) return row;
  const std::int64_t period = elements(call.read(bias));
  return period % kWide == 0 ? row : 1;
}

Dropout dropout_of(const Call& call) {
  constexpr double kWords = 4294967296.0;  // number of 32-bit words
  Dropout d{};
  static_cast<WholeElements&>(d) = call.whole_elements_of(*call.write(0).tensor);
  d.elements = elements(call.write(0));
  d.seed = call.context.seed;
  d.stream = call.context.dropout_stream;
  d.scale = static_cast<float>(kept_scale(call));
  d.threshold = static_cast<std::uint64_t>(std::ceil(static_cast<double>(call.op.probability) * kWords));
  return d;
}

// If the last dimension is indexed by position, neighbours are not contiguous.
std::int64_t dropout_row(const Dropout& d) {
  if (d.whole) return d.elements;
  return d.rank == 0 || d.by_position == d.rank - 1 ? 1 : d.sizes[d.rank - 1];
}

}  // namespace

void activation(const Call& call) {
  const ActivationShape s = activation_shape(call);
  const Any in = call.in(0), bias = call.in_if(1), weights = call.in_if(2), out = call.out(0);
  const bool by_row = s.gated || weights.data != nullptr;
  const bool is_wide = wide(common_row(call, by_row ? s.width : s.elements, 1), {in, bias, out});
  ORRERY_LAUNCH_WIDE(call, is_wide, activation_kernel, Elements{s.elements}, 0, s, call.op.function, in, bias, weights,
                     out);
}

void activation_backward(const Call& call) {
  const ActivationShape s = activation_shape(call);
  const Any d = call.in(0), in = call.in(1), bias = call.in_if(2), weights = call.in_if(3), out = call.out(0);
  const bool by_row = s.gated || weights.data != nullptr;
  const bool is_wide = wide(common_row(call, by_row ? s.width : s.elements, 2), {d, in, bias, out});
  if (weights.data != nullptr) {
    ORRERY_LAUNCH_WIDE(call, is_wide, weighted_activation_backward_kernel, blocks(s.elements / s.width), kSumBytes, s,
                       call.op.function, d, in, bias, weights, out, call.out_if(1));
  } else {
    ORRERY_LAUNCH_WIDE(call, is_wide, activation_backward_kernel, Elements{s.elements}, 0, s, call.op.function, d, in,
                       bias, out);
  }
}

void dropout(const Call& call) {
  const Dropout d = dropout_of(call);
  const Any in = call.in(0), out = call.out(0), kept = call.mask(call.write(1));
  ORRERY_LAUNCH_WIDE(call, wide(dropout_row(d), {in, out, kept}), dropout_kernel, Elements{d.elements}, 0, d, in, Any{},
                     Any{}, 1, out, kept);
}

void dropout_add(const Call& call) {
  const Dropout d = dropout_of(call);
  const Any in = call.in(0), base = call.in(1), bias = call.in_if(2), out = call.out(0),
            kept = call.mask(call.write(1));
  const std::int64_t period = call.has_read(2) ? elements(call.read(2)) : 1;
  ORRERY_LAUNCH_WIDE(call, wide(common_row(call, dropout_row(d), 2), {in, base, bias, out, kept}), dropout_kernel,
                     Elements{d.elements}, 0, d, in, base, bias, period, out, kept);
}

void add_noise(const Call& call) {
  const Dropout d = dropout_of(call);
  ORRERY_LAUNCH(call, add_noise_kernel, Elements{d.elements}, 0, d, call.in(0), call.in(1), call.out(0), call.out(1));
}

void dropout_backward(const Call& call) {
  const std::int64_t n = elements(call.read(0));
  const Any d = call.in(0), kept = call.mask(call.read(1)), out = call.out(0);
  ORRERY_LAUNCH_WIDE(call, wide(n, {d, kept, out}), dropout_backward_kernel, Elements{n}, 0, n,
                     static_cast<float>(kept_scale(call)), d, kept, out);
}

void add(const Call& call) {
  const std::int64_t n = elements(call.write(0));
  const Any first = call.in(0), second = call.in_if(1), bias = call.in_if(2), out = call.out(0);
  const std::int64_t period = call.has_read(2) ? elements(call.read(2)) : 1;
  ORRERY_LAUNCH_WIDE(call, wide(common_row(call, n, 2), {first, second, bias, out}), add_kernel, Elements{n}, 0, n,
                     first, second, bias, period, out);
}

void multiply(const Call& call) {
  const std::int64_t width = last_size(call.read(0)), n = elements(call.read(0));
  const Any first = call.in(0), second = call.in(1), out = call.out(0);
  switch (multiply_form(call)) {
    case Multiply::rows:
      ORRERY_LAUNCH_WIDE(call, wide(width, {first, out}), multiply_rows_kernel, Elements{n}, 0, n, width,
                         call.op.divides, first, second, out);
      break;
    case Multiply::inner_products:
      ORRERY_LAUNCH_WIDE(call, wide(width, {first, second}), multiply_sum_kernel, blocks(elements(call.write(0))),
                         kSumBytes, width, first, second, out);
      break;
    case Multiply::elements:
      ORRERY_LAUNCH_WIDE(call, wide(n, {first, second, out}), multiply_kernel, Elements{n}, 0, n, call.op.divides,
                         first, second, out);
  }
}

void cast(const Call& call) {
  const Operand &x = call.read(0), &y = call.write(0);
  const std::int64_t n = elements(y);
  if (call.op.accumulate) {
    const Any in = call.numbers(x), out = call.numbers(y);
    ORRERY_LAUNCH_WIDE(call, wide(n, {in, out}), add_kernel, Elements{n}, 0, n, in, out, Any{}, 1, out);
  } else if (x.data != y.data || x.tensor->dtype != y.tensor->dtype) {
    convert(call.launch.stream, x.data, x.tensor->dtype, y.data, y.tensor->dtype, n);
  }
}

void zero_fill(const Call& call) {
  const Operand& y = call.write(0);
  fill(call.launch.stream, {y.data, y.tensor->dtype, 0, elements(y)}, 0);
}

}  // namespace orrery::cuda
