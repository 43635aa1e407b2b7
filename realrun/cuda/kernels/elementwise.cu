// Element-wise kernels: a thread takes kVector neighbours, loads all operands, then computes.
#include <cmath>

#include "realrun/cuda/kernels/call.cuh"
#include "realrun/cuda/kernels/random.cuh"

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

// [rows, halves, width]; a bias of `period` elements is repeated over all of x; weights: [rows].
struct ActivationShape {
  std::int64_t elements, width, period;
  bool gated;
};

// Index in x of element `first` of y.
__device__ std::int64_t input_index(const ActivationShape& s, std::int64_t first) {
  return s.gated ? first / s.width * 2 * s.width + first % s.width : first;
}

template <int kVector>
__device__ void add_repeated(const Any& bias, std::int64_t period, std::int64_t at, float (&values)[kVector]) {
  if (bias.data == nullptr) return;
  float b[kVector];
  load_vector<kVector>(bias, at % period, b);
#pragma unroll
  for (int i = 0; i < kVector; ++i) values[i] += b[i];
}

__device__ std::int64_t thread_number() { return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }

template <int kVector>
__global__ void activation_kernel(ActivationShape s, ActivationFunction function, Any x, Any bias, Any weights, Any y) {
  const std::int64_t first = thread_number() * kVector;
  if (first >= s.elements) return;
  const std::int64_t at = input_index(s, first);
  const Raw<kVector> raw = load_raw<kVector>(x, at), raw_up = load_raw<kVector>(x, s.gated ? at + s.width : at);
  float gate[kVector], up[kVector];
  unpack<kVector>(raw, x.dtype, gate);
  unpack<kVector>(raw_up, x.dtype, up);
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
  const Raw<kVector> raw_d = load_raw<kVector>(dy, first), raw = load_raw<kVector>(x, at),
                     raw_up = load_raw<kVector>(x, s.gated ? at + s.width : at);
  float d[kVector], gate[kVector], up[kVector];
  unpack<kVector>(raw_d, dy.dtype, d);
  unpack<kVector>(raw, x.dtype, gate);
  unpack<kVector>(raw_up, x.dtype, up);
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
  std::uint64_t seed, stream;
  std::uint64_t threshold;  // an element is kept if its word is at least this
  float scale;

  __device__ bool kept(std::uint64_t whole_index) const { return philox(seed, stream, whole_index).x >= threshold; }
};

// kVector > 1: rows are whole vectors along the last dimension, and neighbours are also neighbours in the whole tensor.
template <int kVector>
__global__ void dropout_kernel(Dropout drop, Any x, Any residual, Any bias, std::int64_t period, Any y, Any mask) {
  const std::int64_t first = thread_number() * kVector;
  if (first >= drop.elements) return;
  const Raw<kVector> raw = load_raw<kVector>(x, first),
                     raw_residual = residual.data == nullptr ? raw : load_raw<kVector>(residual, first);
  float values[kVector], out[kVector], keep[kVector];
  unpack<kVector>(raw, x.dtype, values);
#pragma unroll
  for (int i = 0; i < kVector; ++i) out[i] = 0;
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

// Standard normal, drawn as in realrun/cpu/philox.h.
__device__ float normal(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  const uint2 words = philox(seed, stream, index);
  const float radius = sqrtf(-2 * logf((static_cast<float>(words.x) + 1) * 0x1p-32f));
  constexpr float kTurn = 6.283185307f;
  return radius * cosf(kTurn * (static_cast<float>(words.y) * 0x1p-32f));
}

__global__ void add_noise_kernel(Dropout draw, Any logits, Any deviations, Any noisy, Any slopes) {
  const std::int64_t i = thread_number();
  if (i >= draw.elements) return;
  const float drawn = normal(draw.seed, draw.stream, draw.index(i)), d = load(deviations, i);
  store(noisy, i, load(logits, i) + drawn * (fmaxf(d, 0) + log1pf(expf(-fabsf(d)))));
  store(slopes, i, drawn / (1 + expf(-d)));
}

template <int kVector>
__global__ void dropout_backward_kernel(std::int64_t elements, float scale, Any dy, Any mask, Any dx) {
  const std::int64_t first = thread_number() * kVector;
  if (first >= elements) return;
  const Raw<kVector> raw = load_raw<kVector>(dy, first), raw_mask = load_raw<kVector>(mask, first);
  float d[kVector], keep[kVector];
  unpack<kVector>(raw, dy.dtype, d);
  unpack<kVector>(raw_mask, mask.dtype, keep);
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
__global__ void multiply_kernel(std::int64_t elements, Any a, Any b, Any y) {
  const std::int64_t first = thread_number() * kVector;
  if (first >= elements) return;
  const Raw<kVector> raw = load_raw<kVector>(a, first), raw_b = load_raw<kVector>(b, first);
  float product[kVector], other[kVector];
  unpack<kVector>(raw, a.dtype, product);
  unpack<kVector>(raw_b, b.dtype, other);
#pragma unroll
  for (int i = 0; i < kVector; ++i) product[i] *= other[i];
  store_vector<kVector>(y, first, product);
}

// Multiplies each row by its own number.
template <int kVector>
__global__ void multiply_rows_kernel(std::int64_t elements, std::int64_t width, Any a, Any b, Any y) {
  const std::int64_t first = thread_number() * kVector;
  if (first >= elements) return;
  const float factor = load(b, first / width);
  float product[kVector];
  load_vector<kVector>(a, first, product);
#pragma unroll
  for (int i = 0; i < kVector; ++i) product[i] *= factor;
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

ActivationShape activation_shape(const Call& call, const Operand& x, const Operand& y, std::size_t bias) {
  const std::int64_t width = last_size(x);
  const bool gated = elements(x) == 2 * elements(y);
  call.require(gated || elements(x) == elements(y), "input and output do not fit");
  if (gated) {
    const bool can_gate =
        call.op.function == ActivationFunction::swiglu || call.op.function == ActivationFunction::geglu;
    call.require(can_gate && x.tensor->rank >= 2 && x.tensor->sizes[x.tensor->rank - 2] == 2,
                 "input is not [.., 2, ffn]");
  }
  call.require(static_cast<int>(call.op.function) <= static_cast<int>(ActivationFunction::relu2), "unknown function");
  std::int64_t period = 1;
  if (call.has_read(bias)) {
    call.require_repeats(call.read(bias), x);
    period = elements(call.read(bias));
  }
  return {elements(y), width, period, gated};
}

// Returns the tensor with one number per row, if there is one.
Any weights_of_rows(const Call& call, const ActivationShape& s, std::size_t weights) {
  if (!call.has_read(weights)) return {};
  call.require(elements(call.read(weights)) * s.width == s.elements, "the weights are not one for each row");
  return call.numbers(call.read(weights));
}

// Length of the rows that the bias and the halves consist of, which vectors must divide.
std::int64_t common_row(const Call& call, std::int64_t row, std::size_t bias) {
  if (!call.has_read(bias)) return row;
  const std::int64_t period = elements(call.read(bias));
  return period % kWide == 0 ? row : 1;
}

Dropout dropout_of(const Call& call, const Tensor& t) {
  const double p = call.op.probability;
  call.require(p >= 0 && p < 1, "a dropout probability is in [0, 1)");
  Dropout d{};
  static_cast<WholeElements&>(d) = whole_elements_of(call, t);
  d.seed = call.context.seed;
  d.stream = call.context.dropout_stream;
  constexpr double kWords = 4294967296.0;  // number of 32-bit words
  d.threshold = static_cast<std::uint64_t>(std::ceil(p * kWords));
  d.scale = static_cast<float>(1 / (1 - p));
  return d;
}

// If the last dimension is indexed by position, neighbours are not contiguous.
std::int64_t dropout_row(const Dropout& d) {
  if (d.whole) return d.elements;
  return d.rank == 0 || d.by_position == d.rank - 1 ? 1 : d.sizes[d.rank - 1];
}

template <class Wide, class Narrow>
void launch_either(bool is_wide, std::int64_t elements, Wide wide_launch, Narrow narrow_launch) {
  if (is_wide) {
    wide_launch(blocks(divide_up(elements, kThreads * kWide)));
  } else {
    narrow_launch(blocks(divide_up(elements, kThreads)));
  }
}

}  // namespace

// Launches kernel<kWide> or kernel<1> over `count` elements.
#define ORRERY_LAUNCH_ELEMENTS(kernel, is_wide, count, ...)                                                   \
  launch_either(                                                                                              \
      is_wide, count,                                                                                         \
      [&](dim3 grid) { launch(#kernel, kernel<kWide>, grid, kThreads, 0, call.launch.stream, __VA_ARGS__); }, \
      [&](dim3 grid) { launch(#kernel, kernel<1>, grid, kThreads, 0, call.launch.stream, __VA_ARGS__); })

void activation(const Call& call) {
  const Operand &x = call.read(0), &y = call.write(0);
  const ActivationShape s = activation_shape(call, x, y, 1);
  const Any in = call.numbers(x), bias = call.numbers_if_read(1), weights = weights_of_rows(call, s, 2),
            out = call.numbers(y);
  const bool by_row = s.gated || weights.data != nullptr;
  const bool is_wide = wide(common_row(call, by_row ? s.width : s.elements, 1), {in, bias, out});
  ORRERY_LAUNCH_ELEMENTS(activation_kernel, is_wide, s.elements, s, call.op.function, in, bias, weights, out);
}

void activation_backward(const Call& call) {
  const Operand &dy = call.read(0), &x = call.read(1), &dx = call.write(0);
  const ActivationShape s = activation_shape(call, x, dy, 2);
  call.require_same_elements(x, dx);
  const Any d = call.numbers(dy), in = call.numbers(x), bias = call.numbers_if_read(2), out = call.numbers(dx);
  const Any weights = weights_of_rows(call, s, 3), dweights = call.numbers_if_written(1);
  if (weights.data != nullptr) {
    if (dweights.data != nullptr) call.require_same_elements(call.read(3), call.write(1));
    const auto issue = [&](auto kernel) {
      launch("weighted_activation_backward_kernel", kernel, blocks(s.elements / s.width), kThreads,
             kThreads / kWarp * static_cast<std::int64_t>(sizeof(float)), call.launch.stream, s, call.op.function, d,
             in, bias, weights, out, dweights);
    };
    return wide(common_row(call, s.width, 2), {d, in, bias, out}) ? issue(weighted_activation_backward_kernel<kWide>)
                                                                  : issue(weighted_activation_backward_kernel<1>);
  }
  const bool is_wide = wide(common_row(call, s.gated ? s.width : s.elements, 2), {d, in, bias, out});
  ORRERY_LAUNCH_ELEMENTS(activation_backward_kernel, is_wide, s.elements, s, call.op.function, d, in, bias, out);
}

void dropout(const Call& call) {
  const Operand &x = call.read(0), &y = call.write(0), &mask = call.write(1);
  call.require_same_elements(x, y);
  call.require_same_elements(y, mask);
  const Dropout d = dropout_of(call, *y.tensor);
  const Any in = call.numbers(x), out = call.numbers(y), kept{call.mask(mask), Dtype::uint8};
  ORRERY_LAUNCH_ELEMENTS(dropout_kernel, wide(dropout_row(d), {in, out, kept}), d.elements, d, in, Any{}, Any{}, 1, out,
                         kept);
}

void dropout_add(const Call& call) {
  const Operand &x = call.read(0), &residual = call.read(1), &y = call.write(0), &mask = call.write(1);
  for (const Operand* other : {&residual, &y, &mask}) call.require_same_elements(x, *other);
  if (call.has_read(2)) call.require_repeats(call.read(2), x);
  const Dropout d = dropout_of(call, *y.tensor);
  const Any in = call.numbers(x), base = call.numbers(residual), bias = call.numbers_if_read(2), out = call.numbers(y),
            kept{call.mask(mask), Dtype::uint8};
  const std::int64_t period = call.has_read(2) ? elements(call.read(2)) : 1;
  ORRERY_LAUNCH_ELEMENTS(dropout_kernel, wide(common_row(call, dropout_row(d), 2), {in, base, bias, out, kept}),
                         d.elements, d, in, base, bias, period, out, kept);
}

void add_noise(const Call& call) {
  const Operand &logits = call.read(0), &deviations = call.read(1), &noisy = call.write(0), &slopes = call.write(1);
  for (const Operand* other : {&deviations, &noisy, &slopes}) call.require_same_elements(logits, *other);
  const Dropout d = dropout_of(call, *noisy.tensor);
  ORRERY_LAUNCH(add_noise_kernel, blocks(divide_up(d.elements, kThreads)), kThreads, 0, call.launch.stream, d,
                call.numbers(logits), call.numbers(deviations), call.numbers(noisy), call.numbers(slopes));
}

void dropout_backward(const Call& call) {
  const Operand &dy = call.read(0), &mask = call.read(1), &dx = call.write(0);
  call.require_same_elements(dy, mask);
  call.require_same_elements(dy, dx);
  const double p = call.op.probability;
  call.require(p >= 0 && p < 1, "a dropout probability is in [0, 1)");
  const Any d = call.numbers(dy), kept{call.mask(mask), Dtype::uint8}, out = call.numbers(dx);
  ORRERY_LAUNCH_ELEMENTS(dropout_backward_kernel, wide(elements(dy), {d, kept, out}), elements(dy), elements(dy),
                         static_cast<float>(1 / (1 - p)), d, kept, out);
}

void add(const Call& call) {
  const Operand &a = call.read(0), &y = call.write(0);
  call.require_same_elements(a, y);
  if (call.has_read(1)) call.require_same_elements(call.read(1), y);
  if (call.has_read(2)) call.require_repeats(call.read(2), y);
  const Any first = call.numbers(a), second = call.numbers_if_read(1), bias = call.numbers_if_read(2),
            out = call.numbers(y);
  const std::int64_t period = call.has_read(2) ? elements(call.read(2)) : 1;
  ORRERY_LAUNCH_ELEMENTS(add_kernel, wide(common_row(call, elements(y), 2), {first, second, bias, out}), elements(y),
                         elements(y), first, second, bias, period, out);
}

void multiply(const Call& call) {
  const Operand &a = call.read(0), &b = call.read(1), &y = call.write(0);
  const std::int64_t width = last_size(a), n = elements(a);
  const Any first = call.numbers(a), second = call.numbers(b), out = call.numbers(y);
  const auto is_column = [&](const Operand& o) {
    return last_size(o) == 1 && elements(o) * width == n && elements(o) != n;
  };
  if (is_column(b)) {
    call.require_same_elements(a, y);
    ORRERY_LAUNCH_ELEMENTS(multiply_rows_kernel, wide(width, {first, out}), n, n, width, first, second, out);
    return;
  }
  call.require_same_elements(a, b);
  if (is_column(y)) {
    const auto issue = [&](auto kernel) {
      launch("multiply_sum_kernel", kernel, blocks(elements(y)), kThreads,
             kThreads / kWarp * static_cast<std::int64_t>(sizeof(float)), call.launch.stream, width, first, second,
             out);
    };
    return wide(width, {first, second}) ? issue(multiply_sum_kernel<kWide>) : issue(multiply_sum_kernel<1>);
  }
  call.require_same_elements(a, y);
  ORRERY_LAUNCH_ELEMENTS(multiply_kernel, wide(n, {first, second, out}), n, n, first, second, out);
}

void cast(const Call& call) {
  const Operand &x = call.read(0), &y = call.write(0);
  call.require_same_elements(x, y);
  if (call.op.accumulate) {
    const Any in = call.numbers(x), out = call.numbers(y);
    ORRERY_LAUNCH_ELEMENTS(add_kernel, wide(elements(y), {in, out}), elements(y), elements(y), in, out, Any{}, 1, out);
    return;
  }
  if (x.data == y.data && x.tensor->dtype == y.tensor->dtype) return;
  convert(call.launch.stream, x.data, x.tensor->dtype, y.data, y.tensor->dtype, elements(y));
}

void zero_fill(const Call& call) {
  const Operand& y = call.write(0);
  fill(call.launch.stream, {y.data, y.tensor->dtype, 0, elements(y)}, 0);
}

}  // namespace orrery::cuda
