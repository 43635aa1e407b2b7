// Quantisers. A code takes a byte of memory, also one of four bits, and links carry it so.
#include "realrun/cuda/kernels/call.cuh"

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

// A warp computes the codes of one group; it reads the numbers twice.
template <class Number>
__device__ void write_group(const Codes& to, float largest, Number number) {
  const CodesShape& s = to.shape;
  const std::int64_t group = thread_number() / kWarp;
  if (group >= s.rows * s.groups) return;
  const std::int64_t row = group / s.groups, first = group % s.groups * s.group();
  const std::int64_t begin = row * s.columns + (first < s.columns ? first : s.columns);
  const std::int64_t last = first + s.group(), end = row * s.columns + (last < s.columns ? last : s.columns);
  const std::int64_t lane = threadIdx.x % kWarp;
  float most = 0, strange = 0;  // numbers that are NaN: their group's scale is, too
  for (std::int64_t i = begin + lane; i < end; i += kWarp) {
    const float x = number(i);
    most = larger(most, fabsf(x));
    if (x != x) strange = x;
  }
  const float scale = warp_max(most) / largest + warp_sum(strange);
  if (lane == 0) to.scales[group] = scale;
  for (std::int64_t i = begin + lane; i < end; i += kWarp)
    store(to.codes, i, scale > 0 ? fminf(fmaxf(rintf(number(i) / scale), -largest), largest) : 0);
}

__global__ void quantise_kernel(Any x, std::int64_t numbers, Codes to, float largest) {
  write_group(to, largest, [&](std::int64_t i) { return i < numbers ? load(x, i) : 0.0f; });
}

__global__ void requantise_kernel(Codes from, Codes to, float largest) {
  write_group(to, largest, [&](std::int64_t i) { return from.sum_at(i); });
}

__global__ void dequantise_kernel(Codes from, std::int64_t numbers, Any y, bool accumulate) {
  const std::int64_t i = thread_number();
  if (i >= numbers) return;
  const float number = from.sum_at(i);
  store(y, i, accumulate ? load(y, i) + number : number);
}

Codes codes_of(const Call& call, const CodesShape& shape, const Operand& codes, const Operand& scales) {
  return {shape, {codes.data, codes.tensor->dtype}, call.singles(scales)};
}

}  // namespace

void quantise(const Call& call) {
  const QuantiserShapes s = quantiser_shapes(call);
  const Codes to = codes_of(call, s.written, call.write(0), call.write(1));
  ORRERY_LAUNCH(call, quantise_kernel, Elements{s.written.rows * s.written.groups * kWarp}, 0, call.in(0), s.numbers,
                to, largest_code(call, call.write(0)));
}

void requantise(const Call& call) {
  const QuantiserShapes s = quantiser_shapes(call);
  const Codes from = codes_of(call, s.read, call.read(0), call.read(1)),
              to = codes_of(call, s.written, call.write(0), call.write(1));
  ORRERY_LAUNCH(call, requantise_kernel, Elements{s.written.rows * s.written.groups * kWarp}, 0, from, to,
                largest_code(call, call.write(0)));
}

void dequantise(const Call& call) {
  const QuantiserShapes s = quantiser_shapes(call);
  const Codes from = codes_of(call, s.read, call.read(0), call.read(1));
  ORRERY_LAUNCH(call, dequantise_kernel, Elements{s.numbers}, 0, from, s.numbers, call.out(0), call.op.accumulate);
}

}  // namespace orrery::cuda
