// Quantisers, and kernels that send the largest of many numbers. A code takes a byte of memory, also one of four bits,
// and links carry it so.
#include "realrun/cuda/kernels/call.cuh"
#include "realrun/cuda/kernels/cut.cuh"

namespace orrery::cuda {
namespace {

struct Codes {
  CodesShape shape;
  Any codes;
  float* scales;

  // The number that a code stands for: the sum over all contributions, in their order.
  __device__ float sum_at(std::int64_t i) const {
    const std::int64_t scale = shape.scale_of(i);
    float sum = 0;
    for (std::int64_t p = 0; p < shape.parts; ++p)
      sum += scales[p * shape.rows * shape.groups + scale] * load(codes, p * shape.codes() + i);
    return sum;
  }
};

// The loss of earlier codes, and where that of the new ones goes (op_traits.h). data is nullptr where there is none.
struct Feedback {
  Any error, new_error;
  std::int64_t numbers;
  float factor;  // Op::scale

  // The number that is to be sent.
  __device__ float fed_back(std::int64_t i, float number) const {
    return factor * number + (error.data != nullptr && i < numbers ? load(error, i) : 0.0f);
  }
  __device__ void keep(std::int64_t i, float lost) const {
    if (new_error.data != nullptr && i < numbers) store(new_error, i, lost);
  }
};

// A warp computes the codes of one group; it reads the numbers twice. `plain(i)`: the number of the i-th code, without
// the error.
template <class Plain>
__device__ void write_group(const Codes& to, float largest, const Feedback& feedback, Plain plain) {
  const auto number = [&](std::int64_t i) { return feedback.fed_back(i, plain(i)); };
  const bool signs = to.codes.dtype == Dtype::sign;
  const CodesShape& s = to.shape;
  const std::int64_t group = thread_number() / kWarp;
  if (group >= s.rows * s.groups) return;
  const std::int64_t row = group / s.groups, first = group % s.groups * s.group();
  const std::int64_t begin = row * s.columns + (first < s.columns ? first : s.columns);
  const std::int64_t last = first + s.group(), end = row * s.columns + (last < s.columns ? last : s.columns);
  const std::int64_t lane = threadIdx.x % kWarp;
  float most = 0, squares = 0, strange = 0;  // numbers that are NaN: their group's scale is, too
  for (std::int64_t i = begin + lane; i < end; i += kWarp) {
    const float x = number(i);
    most = larger(most, fabsf(x));
    squares += x * x;
    if (x != x) strange = x;
  }
  const float members = static_cast<float>(end > begin ? end - begin : 1);
  const float scale = (signs ? sqrtf(warp_sum(squares) / members) : warp_max(most) / largest) + warp_sum(strange);
  if (lane == 0) to.scales[group] = scale;
  for (std::int64_t i = begin + lane; i < end; i += kWarp) {
    const float x = number(i);
    const float nearest = to.codes.dtype == Dtype::fp8 ? x / scale : rintf(x / scale);  // fp8 is rounded when stored
    const float code = signs ? (x < 0 ? -1.0f : 1.0f) : scale > 0 ? fminf(fmaxf(nearest, -largest), largest) : 0;
    store(to.codes, i, code);
    feedback.keep(i, x - scale * load(to.codes, i));
  }
}

__global__ void quantise_kernel(Any x, Feedback feedback, Codes to, float largest) {
  write_group(to, largest, feedback, [&](std::int64_t i) { return i < feedback.numbers ? load(x, i) : 0.0f; });
}

__global__ void requantise_kernel(Codes from, Feedback feedback, Codes to, float largest) {
  write_group(to, largest, feedback, [&](std::int64_t i) { return from.sum_at(i); });
}

__global__ void dequantise_kernel(Codes from, std::int64_t numbers, float factor, Any y, bool accumulate) {
  const std::int64_t i = thread_number();
  if (i >= numbers) return;
  const float number = factor * from.sum_at(i);
  store(y, i, accumulate ? load(y, i) + number : number);
}

// A block finds the largest of a group.
__global__ void sparsify_kernel(SparseShape s, Any x, Feedback feedback, float* values, Any indices) {
  const std::int64_t begin = s.begin(blockIdx.x), first = blockIdx.x * s.kept;
  const auto count = static_cast<int>(s.begin(blockIdx.x + 1) - begin);
  const int kept = count < s.kept ? count : static_cast<int>(s.kept);
  const auto number = [&](int i) { return feedback.fed_back(begin + i, load(x, begin + i)); };
  const auto key_of = [&](int i) { return key_of_number(fabsf(number(i))); };
  auto* const room = reinterpret_cast<int*>(dynamic_shared());
  for (int k = kept + static_cast<int>(threadIdx.x); k < s.kept; k += kThreads) {
    values[first + k] = 0;
    store(indices, first + k, 0);
  }
  if (kept == 0) return;
  for_each(count, cut_of(count, kept, key_of, room), key_of, room, [&](int i, std::uint32_t, int place) {
    const float x_i = number(i);
    if (place >= 0) {
      values[first + place] = x_i;
      store(indices, first + place, static_cast<float>(i));
    }
    feedback.keep(begin + i, place >= 0 ? 0 : x_i);
  });
}

// A block adds up a group, one contribution after the other: their indices may be equal.
__global__ void densify_kernel(SparseShape s, const float* values, Any indices, float factor, Any y) {
  const std::int64_t begin = s.begin(blockIdx.x), end = s.begin(blockIdx.x + 1);
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) store(y, i, 0);
  for (std::int64_t p = 0; p < s.parts; ++p) {
    __syncthreads();
    const std::int64_t first = (p * s.groups + blockIdx.x) * s.kept;
    for (std::int64_t k = threadIdx.x; k < s.kept; k += kThreads) {
      if (values[first + k] == 0) continue;  // it may stand for no number
      const std::int64_t i = begin + load_index(indices, first + k);
      store(y, i, load(y, i) + factor * values[first + k]);
    }
  }
}

template <class Shapes>
Feedback feedback_of(const Call& call, const Shapes& s) {
  const auto numbers_of = [&](const Operand& o) { return o.data == nullptr ? Any{} : call.numbers(o); };
  return {numbers_of(s.error), numbers_of(s.new_error), s.numbers, static_cast<float>(call.op.scale)};
}

Codes codes_of(const Call& call, const CodesShape& shape, const Operand& codes, const Operand& scales) {
  return {shape, {codes.data, codes.tensor->dtype}, call.singles(scales)};
}

}  // namespace

void quantise(const Call& call) {
  const QuantiserShapes s = quantiser_shapes(call);
  const Codes to = codes_of(call, s.written, call.write(0), call.write(1));
  ORRERY_LAUNCH(call, quantise_kernel, Elements{s.written.rows * s.written.groups * kWarp}, 0, call.in(0),
                feedback_of(call, s), to, largest_code(call, call.write(0)));
}

void requantise(const Call& call) {
  const QuantiserShapes s = quantiser_shapes(call);
  const Codes from = codes_of(call, s.read, call.read(0), call.read(1)),
              to = codes_of(call, s.written, call.write(0), call.write(1));
  ORRERY_LAUNCH(call, requantise_kernel, Elements{s.written.rows * s.written.groups * kWarp}, 0, from,
                feedback_of(call, s), to, largest_code(call, call.write(0)));
}

void dequantise(const Call& call) {
  const QuantiserShapes s = quantiser_shapes(call);
  const Codes from = codes_of(call, s.read, call.read(0), call.read(1));
  ORRERY_LAUNCH(call, dequantise_kernel, Elements{s.numbers}, 0, from, s.numbers, static_cast<float>(call.op.scale),
                call.out(0), call.op.accumulate);
}

void sparsify(const Call& call) {
  const SparseShape s = sparse_shape(call);
  ORRERY_LAUNCH(call, sparsify_kernel, blocks(s.groups), bytes_for<int>(kWarps), s, call.in(0), feedback_of(call, s),
                call.singles(call.write(0)), call.indices(call.write(1)));
}

void densify(const Call& call) {
  const SparseShape s = sparse_shape(call);
  ORRERY_LAUNCH(call, densify_kernel, blocks(s.groups), 0, s, call.singles(call.read(0)), call.indices(call.read(1)),
                static_cast<float>(call.op.scale), call.out(0));
}

}  // namespace orrery::cuda
