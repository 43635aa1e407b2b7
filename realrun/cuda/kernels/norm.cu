// LayerNorm and RMSNorm (realrun/cpu/norm.cpp has the papers), and sums over rows. Gradients of weights
// and biases are summed without atomics: first by workers over their rows, then over the workers' sums by column.
#include <cmath>

#include "realrun/cuda/kernels/call.cuh"

namespace orrery::cuda {
namespace {

constexpr int kPerThread = 16;   // elements of a vector that a thread keeps in registers
constexpr int kMaxGroup = 1024;  // threads that share a vector
constexpr int kThreadsPerProcessor = 512;
static_assert(kMaxNormWidth == kPerThread * kMaxGroup);

// The threads that share a vector: a warp, or a block.
struct Group {
  int size, lane;
  bool block;
  std::int64_t number;  // index of the group in the grid

  __device__ explicit Group(int threads)
      : size(threads),
        lane(static_cast<int>(threadIdx.x) % threads),
        block(threads > kWarp),
        number(block ? blockIdx.x
                     : static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / kWarp) + threadIdx.x / kWarp) {}
  __device__ float sum(float value) const {
    return block ? block_sum(value, reinterpret_cast<float*>(dynamic_shared())) : warp_sum(value);
  }
};

__device__ void store_statistics(const NormShape& s, std::int64_t v, std::int64_t row, float mean, float reciprocal,
                                 float* statistics) {
  float* const stored = statistics + v * (s.centred ? 2 : 1);
  if (s.centred) stored[0] = row < 0 ? 0 : mean;
  stored[s.centred ? 1 : 0] = row < 0 ? 0 : reciprocal;
}

template <int kVector>
__global__ void __launch_bounds__(kMaxGroup)
    norm_kernel(NormShape s, int group_threads, float epsilon, Any x, Any weight, Any bias, Any y, float* statistics) {
  constexpr int kVectors = kPerThread / kVector;
  const Group group(group_threads);
  const std::int64_t v = group.number;
  if (v >= s.vectors) return;  // a whole warp; blocks have exactly as many vectors as needed
  const std::int64_t base = v * s.length, row = s.weight_row(v);
  const std::int64_t width = row < 0 ? 0 : s.width;
  Raw<kVector> raw[kVectors];
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const std::int64_t i = static_cast<std::int64_t>(k * group.size + group.lane) * kVector;
    if (i < width) raw[k] = load_raw<kVector>(x, base + i);
  }
  float values[kVectors][kVector];
  float sum = 0, squares = 0;
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const std::int64_t i = static_cast<std::int64_t>(k * group.size + group.lane) * kVector;
    if (i >= width) continue;
    unpack<kVector>(raw[k], x.dtype, values[k]);
#pragma unroll
    for (int j = 0; j < kVector; ++j) sum += values[k][j];
  }
  const auto n = static_cast<float>(s.width);
  const float mean = s.centred ? group.sum(sum) / n : 0;
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const std::int64_t i = static_cast<std::int64_t>(k * group.size + group.lane) * kVector;
    if (i >= width) continue;
#pragma unroll
    for (int j = 0; j < kVector; ++j) squares += (values[k][j] - mean) * (values[k][j] - mean);
  }
  const float reciprocal = 1 / sqrtf(group.sum(squares) / n + epsilon);
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const std::int64_t i = static_cast<std::int64_t>(k * group.size + group.lane) * kVector;
    if (i >= width) continue;
    float w[kVector], b[kVector];
    load_vector<kVector>(weight, row * s.width + i, w);
    if (bias.data != nullptr) load_vector<kVector>(bias, row * s.width + i, b);
#pragma unroll
    for (int j = 0; j < kVector; ++j)
      values[k][j] = (values[k][j] - mean) * reciprocal * w[j] + (bias.data != nullptr ? b[j] : 0);
    store_vector<kVector>(y, base + i, values[k]);
  }
  for (std::int64_t i = width + group.lane; i < s.length; i += group.size) store(y, base + i, load(x, base + i));
  if (group.lane == 0) store_statistics(s, v, row, mean, reciprocal, statistics);
}

// A worker takes every `chunks`-th vector of its class. `partial`: [workers, 2, width], gradients of weight and bias.
template <int kVector, int kMaxThreads>
__global__ void __launch_bounds__(kMaxThreads)
    norm_backward_kernel(NormShape s, int group_threads, std::int64_t chunks, Any dy, Any x, Any weight,
                         const float* statistics, Any dx, float* partial) {
  constexpr int kVectors = kPerThread / kVector;
  const Group group(group_threads);
  const std::int64_t classes = s.classes(), tokens = s.vectors / classes;
  if (group.number >= chunks * classes) return;
  const std::int64_t kind = group.number % classes, row = s.weight_row(kind);
  const std::int64_t width = row < 0 ? 0 : s.width;
  const auto n = static_cast<float>(s.width);
  float dweight[kVectors][kVector] = {}, dbias[kVectors][kVector] = {};
  for (std::int64_t t = group.number / classes; t < tokens; t += chunks) {
    const std::int64_t v = t * classes + kind, base = v * s.length;
    const float* const stored = statistics + v * (s.centred ? 2 : 1);
    const float mean = s.centred ? stored[0] : 0, reciprocal = stored[s.centred ? 1 : 0];
    float sum_g = 0, sum_gz = 0;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const std::int64_t i = static_cast<std::int64_t>(k * group.size + group.lane) * kVector;
      if (i >= width) continue;
      float d[kVector], in[kVector], w[kVector];
      load_vector<kVector>(dy, base + i, d, x, base + i, in, weight, row * s.width + i, w);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        const float z = (in[j] - mean) * reciprocal, g = d[j] * w[j];
        dweight[k][j] += d[j] * z;
        dbias[k][j] += d[j];
        sum_g += g;
        sum_gz += g * z;
      }
    }
    const float mean_g = s.centred ? group.sum(sum_g) / n : 0, mean_gz = group.sum(sum_gz) / n;
    // Reads the vector again; the first-level cache still has it.
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const std::int64_t i = static_cast<std::int64_t>(k * group.size + group.lane) * kVector;
      if (i >= width) continue;
      float d[kVector], in[kVector], w[kVector];
      load_vector<kVector>(dy, base + i, d, x, base + i, in, weight, row * s.width + i, w);
#pragma unroll
      for (int j = 0; j < kVector; ++j)
        d[j] = reciprocal * (d[j] * w[j] - mean_g - (in[j] - mean) * reciprocal * mean_gz);
      store_vector<kVector>(dx, base + i, d);
    }
    for (std::int64_t i = width + group.lane; i < s.length; i += group.size) store(dx, base + i, load(dy, base + i));
  }
  float* const own = partial + group.number * 2 * s.width;
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const std::int64_t i = static_cast<std::int64_t>(k * group.size + group.lane) * kVector;
    if (i >= width) continue;
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      own[i + j] = dweight[k][j];
      own[s.width + i + j] = dbias[k][j];
    }
  }
}

// kSlices threads per column add the workers' sums, each every kSlices-th one; then one thread adds theirs.
constexpr int kSlices = kThreads / kWarp;

__global__ void add_workers_kernel(NormShape s, std::int64_t workers, const float* partial, std::int64_t worker_stride,
                                   Any out, bool accumulate) {
  auto* const sums = reinterpret_cast<float*>(dynamic_shared());  // [kSlices][kWarp]
  const std::int64_t tiles = (s.width + kWarp - 1) / kWarp, row = blockIdx.x / tiles;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, slice = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t column = blockIdx.x % tiles * kWarp + lane;
  const std::int64_t classes = s.classes();
  partial += static_cast<std::int64_t>(blockIdx.y) * workers * worker_stride;
  float sum = 0;
  if (column < s.width) {
    if (classes == 1) {
#pragma unroll 8
      for (std::int64_t w = slice; w < workers; w += kSlices) sum += partial[w * worker_stride + column];
    } else {
      for (std::int64_t w = slice; w < workers; w += kSlices)
        if (s.weight_row(w % classes) == row) sum += partial[w * worker_stride + column];
    }
  }
  sums[slice * kWarp + lane] = sum;
  __syncthreads();
  if (slice != 0 || column >= s.width) return;
  for (int i = 1; i < kSlices; ++i) sum += sums[i * kWarp + lane];
  const std::int64_t at = (blockIdx.y * s.weight_rows + row) * s.width + column;
  store(out, at, accumulate ? load(out, at) + sum : sum);
}

// Sums [rows, columns] tensors, one per blockIdx.y. A block takes kWarp * kVector columns of every (chunks * kSlices)th
// row.
template <int kVector>
__global__ void column_sums_kernel(std::int64_t rows, std::int64_t columns, std::int64_t chunks, Any x,
                                   float* partial) {
  auto* const sums = reinterpret_cast<float*>(dynamic_shared());  // [kSlices][kWarp * kVector]
  const std::int64_t tiles = (columns + kWarp * kVector - 1) / (kWarp * kVector);
  const std::int64_t tile = blockIdx.x % tiles, chunk = blockIdx.x / tiles;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, slice = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t column = (tile * kWarp + lane) * kVector;
  float sum[kVector] = {};
  if (column < columns) {
#pragma unroll 4
    for (std::int64_t r = chunk * kSlices + slice; r < rows; r += chunks * kSlices) {
      add_vector<kVector>(x, (blockIdx.y * rows + r) * columns + column, sum);
    }
  }
#pragma unroll
  for (int j = 0; j < kVector; ++j) sums[(slice * kWarp + lane) * kVector + j] = sum[j];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kWarp * kVector; i += kThreads) {
    const std::int64_t at = tile * kWarp * kVector + i;
    if (at >= columns) continue;
    float total = 0;
    for (int k = 0; k < kSlices; ++k) total += sums[k * kWarp * kVector + i];
    partial[(blockIdx.y * chunks + chunk) * columns + at] = total;
  }
}

NormShape checked_shape(const Call& call) {
  const NormShape s = norm_shape(call);
  call.require(s.width <= kMaxNormWidth, "more elements are normalised together than a block has registers for");
  return s;
}

// The fewest warps that keep a vector in registers.
int group_threads(std::int64_t width) {
  return static_cast<int>(divide_up(divide_up(width, kPerThread), kWarp) * kWarp);
}
int block_threads(int group) { return group > kWarp ? group : kThreads; }
std::int64_t group_blocks(int group, std::int64_t groups) {
  return group > kWarp ? groups : divide_up(groups, kThreads / kWarp);
}
std::int64_t chunks_of(const NormShape& s, std::int64_t processors) {
  const std::int64_t workers = divide_up(processors * kThreadsPerProcessor, group_threads(s.width));
  return std::clamp<std::int64_t>(divide_up(workers, s.classes()), 1, s.vectors / s.classes());
}
constexpr std::int64_t kRoomBytes = kMaxGroup / kWarp * sizeof(float);

struct SumShape : BiasShape {
  std::int64_t tiles, chunks;
  bool wide;
};
SumShape sum_shape(const Call& call) {
  SumShape s{bias_shape(call), 0, 0, false};
  s.wide = wide(s.columns, {call.in(0)});
  s.tiles = divide_up(s.columns, kWarp * (s.wide ? kWide : 1));
  constexpr std::int64_t kBlocksPerProcessor = 8;
  s.chunks = std::clamp<std::int64_t>(call.launch.processors * kBlocksPerProcessor / (s.tiles * s.groups), 1,
                                      divide_up(s.rows, kSlices));
  return s;
}

dim3 blocks_of_groups(std::int64_t count, std::int64_t groups) {
  dim3 grid = blocks(count);
  constexpr std::int64_t kMostInY = 65535;  // CUDA C++ Programming Guide, "Technical Specifications"
  if (groups > kMostInY) throw std::logic_error("CUDA kernels: there are too many experts");
  grid.y = static_cast<unsigned>(groups);
  return grid;
}

}  // namespace

void norm(const Call& call) {
  const NormShape s = checked_shape(call);
  const Any in = call.in(0), w = call.in(1), b = call.in_if(2), out = call.out(0);
  const int group = group_threads(s.width);
  const auto issue = [&](auto kernel) {
    launch("norm_kernel", kernel, blocks(group_blocks(group, s.vectors)), block_threads(group), kRoomBytes,
           call.launch.stream, s, group, call.op.epsilon, in, w, b, out, call.singles(call.write(1)));
  };
  s.width % kWide == 0 && wide(s.length, {in, w, b, out}) ? issue(norm_kernel<kWide>) : issue(norm_kernel<1>);
}

std::int64_t norm_backward_scratch(const Call& call) {
  const NormShape s = checked_shape(call);
  return bytes_for<float>(chunks_of(s, call.launch.processors) * s.classes() * 2 * s.width);
}

void norm_backward(const Call& call) {
  const NormShape s = checked_shape(call);
  const Any d = call.in(0), in = call.in(1), w = call.in(2), out = call.out(0);
  const std::int64_t chunks = chunks_of(s, call.launch.processors), workers = chunks * s.classes();
  auto* const partial = call.scratch<float>(workers * 2 * s.width);
  const int group = group_threads(s.width);
  const auto issue = [&](auto kernel) {
    launch("norm_backward_kernel", kernel, blocks(group_blocks(group, workers)), block_threads(group), kRoomBytes,
           call.launch.stream, s, group, chunks, d, in, w, call.singles(call.read(3)), out, partial);
  };
  // With at most 512 threads, each may use twice as many registers.
  constexpr int kUsual = kMaxGroup / 2;
  const bool is_wide = s.width % kWide == 0 && wide(s.length, {d, in, w, out});
  if (group <= kUsual) {
    is_wide ? issue(norm_backward_kernel<kWide, kUsual>) : issue(norm_backward_kernel<1, kUsual>);
  } else {
    is_wide ? issue(norm_backward_kernel<kWide, kMaxGroup>) : issue(norm_backward_kernel<1, kMaxGroup>);
  }
  for (const std::size_t i : {1, 2})
    if (call.has_write(i))
      ORRERY_LAUNCH(call, add_workers_kernel, blocks(s.weight_rows * divide_up(s.width, kWarp)),
                    bytes_for<float>(kThreads), s, workers, partial + (i == 1 ? 0 : s.width), 2 * s.width, call.out(i),
                    call.op.accumulate);
}

std::int64_t bias_gradient_scratch(const Call& call) {
  const SumShape s = sum_shape(call);
  return bytes_for<float>(s.groups * s.chunks * s.columns);
}

void bias_gradient(const Call& call) {
  const SumShape s = sum_shape(call);
  const Any x = call.in(0), out = call.out(0);
  auto* const partial = call.scratch<float>(s.groups * s.chunks * s.columns);
  ORRERY_LAUNCH_WIDE(call, s.wide, column_sums_kernel, blocks_of_groups(s.tiles * s.chunks, s.groups),
                     bytes_for<float>(kThreads * (s.wide ? kWide : 1)), s.rows, s.columns, s.chunks, x, partial);
  NormShape columns;
  columns.width = s.columns;
  ORRERY_LAUNCH(call, add_workers_kernel, blocks_of_groups(divide_up(s.columns, kWarp), s.groups),
                bytes_for<float>(kThreads), columns, s.chunks, partial, s.columns, out, call.op.accumulate);
}

}  // namespace orrery::cuda
