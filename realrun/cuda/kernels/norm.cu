// LayerNorm and RMSNorm (realrun/cpu/norm.cpp has the papers and the shapes), and sums over rows. Gradients of weights
// and biases are summed without atomics: first by workers over their rows, then over the workers' sums by column.
#include <cmath>

#include "realrun/cuda/kernels/call.cuh"

namespace orrery::cuda {
namespace {

constexpr int kPerThread = 16;  // elements of a vector that a thread keeps in registers
constexpr int kVectors = kPerThread / kWide;
constexpr int kMaxGroup = 1024;  // threads that share a vector
constexpr int kThreadsPerProcessor = 512;
static_assert(kMaxNormWidth == kPerThread * kMaxGroup);

// Which weights normalise which vector: see realrun/cpu/norm.cpp.
struct NormShape {
  std::int64_t vectors, length, width;
  std::int64_t groups, parts, weight_rows;
  bool centred;

  // Vectors of one class have the same weights.
  __host__ __device__ std::int64_t classes() const { return parts == 1 ? 1 : groups * parts; }
  __host__ __device__ std::int64_t weight_row(std::int64_t vector) const {
    if (parts == 1) return 0;
    const std::int64_t part = vector % parts, group = vector / parts % groups;
    if (part == parts - 1) return -1;
    if (weight_rows == 2) return part == parts - 2 ? 1 : 0;
    return group * (parts - 1) + part;
  }
};

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

// For rows and addresses that vector loads do not fit. Each sum reads the vector again.
__global__ void norm_narrow_kernel(NormShape s, int group_threads, float epsilon, Any x, Any weight, Any bias, Any y,
                                   float* statistics) {
  const Group group(group_threads);
  const std::int64_t v = group.number;
  if (v >= s.vectors) return;
  const std::int64_t base = v * s.length, row = s.weight_row(v), width = row < 0 ? 0 : s.width;
  const auto n = static_cast<float>(s.width);
  float sum = 0, squares = 0;
  for (std::int64_t i = group.lane; i < width; i += group.size) sum += load(x, base + i);
  const float mean = s.centred ? group.sum(sum) / n : 0;
  for (std::int64_t i = group.lane; i < width; i += group.size) {
    const float distance = load(x, base + i) - mean;
    squares += distance * distance;
  }
  const float reciprocal = 1 / sqrtf(group.sum(squares) / n + epsilon);
  for (std::int64_t i = group.lane; i < s.length; i += group.size) {
    float value = load(x, base + i);
    if (i < width) {
      value = (value - mean) * reciprocal * load(weight, row * s.width + i);
      if (bias.data != nullptr) value += load(bias, row * s.width + i);
    }
    store(y, base + i, value);
  }
  if (group.lane == 0) store_statistics(s, v, row, mean, reciprocal, statistics);
}

// `partial` holds the worker's sums.
__global__ void norm_backward_narrow_kernel(NormShape s, int group_threads, std::int64_t chunks, Any dy, Any x,
                                            Any weight, const float* statistics, Any dx, float* partial) {
  const Group group(group_threads);
  const std::int64_t classes = s.classes(), tokens = s.vectors / classes;
  if (group.number >= chunks * classes) return;
  const std::int64_t kind = group.number % classes, row = s.weight_row(kind), width = row < 0 ? 0 : s.width;
  const auto n = static_cast<float>(s.width);
  float* const own = partial + group.number * 2 * s.width;
  for (std::int64_t i = group.lane; i < width; i += group.size) own[i] = own[s.width + i] = 0;
  for (std::int64_t t = group.number / classes; t < tokens; t += chunks) {
    const std::int64_t v = t * classes + kind, base = v * s.length;
    const float* const stored = statistics + v * (s.centred ? 2 : 1);
    const float mean = s.centred ? stored[0] : 0, reciprocal = stored[s.centred ? 1 : 0];
    float sum_g = 0, sum_gz = 0;
    for (std::int64_t i = group.lane; i < width; i += group.size) {
      const float d = load(dy, base + i), z = (load(x, base + i) - mean) * reciprocal,
                  g = d * load(weight, row * s.width + i);
      own[i] += d * z;
      own[s.width + i] += d;
      sum_g += g;
      sum_gz += g * z;
    }
    const float mean_g = s.centred ? group.sum(sum_g) / n : 0, mean_gz = group.sum(sum_gz) / n;
    for (std::int64_t i = group.lane; i < s.length; i += group.size) {
      float d = load(dy, base + i);
      if (i < width) {
        const float z = (load(x, base + i) - mean) * reciprocal;
        d = reciprocal * (d * load(weight, row * s.width + i) - mean_g - z * mean_gz);
      }
      store(dx, base + i, d);
    }
  }
}

__global__ void __launch_bounds__(kMaxGroup)
    norm_kernel(NormShape s, int group_threads, float epsilon, Any x, Any weight, Any bias, Any y, float* statistics) {
  const Group group(group_threads);
  const std::int64_t v = group.number;
  if (v >= s.vectors) return;  // a whole warp; blocks have exactly as many vectors as needed
  const std::int64_t base = v * s.length, row = s.weight_row(v);
  const std::int64_t width = row < 0 ? 0 : s.width;
  Raw<kWide> raw[kVectors];
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const std::int64_t i = static_cast<std::int64_t>(k * group.size + group.lane) * kWide;
    if (i < width) raw[k] = load_raw<kWide>(x, base + i);
  }
  float values[kVectors][kWide];
  float sum = 0, squares = 0;
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const std::int64_t i = static_cast<std::int64_t>(k * group.size + group.lane) * kWide;
    if (i >= width) continue;
    unpack<kWide>(raw[k], x.dtype, values[k]);
#pragma unroll
    for (int j = 0; j < kWide; ++j) sum += values[k][j];
  }
  const auto n = static_cast<float>(s.width);
  const float mean = s.centred ? group.sum(sum) / n : 0;
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const std::int64_t i = static_cast<std::int64_t>(k * group.size + group.lane) * kWide;
    if (i >= width) continue;
#pragma unroll
    for (int j = 0; j < kWide; ++j) squares += (values[k][j] - mean) * (values[k][j] - mean);
  }
  const float reciprocal = 1 / sqrtf(group.sum(squares) / n + epsilon);
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const std::int64_t i = static_cast<std::int64_t>(k * group.size + group.lane) * kWide;
    if (i >= width) continue;
    float w[kWide], b[kWide];
    load_vector<kWide>(weight, row * s.width + i, w);
    if (bias.data != nullptr) load_vector<kWide>(bias, row * s.width + i, b);
#pragma unroll
    for (int j = 0; j < kWide; ++j)
      values[k][j] = (values[k][j] - mean) * reciprocal * w[j] + (bias.data != nullptr ? b[j] : 0);
    store_vector<kWide>(y, base + i, values[k]);
  }
  for (std::int64_t i = width + group.lane; i < s.length; i += group.size) store(y, base + i, load(x, base + i));
  if (group.lane == 0) store_statistics(s, v, row, mean, reciprocal, statistics);
}

// A worker takes every `chunks`-th vector of its class. `partial`: [workers, 2, width], gradients of weight and bias.
template <int kMaxThreads>
__global__ void __launch_bounds__(kMaxThreads)
    norm_backward_kernel(NormShape s, int group_threads, std::int64_t chunks, Any dy, Any x, Any weight,
                         const float* statistics, Any dx, float* partial) {
  const Group group(group_threads);
  const std::int64_t classes = s.classes(), tokens = s.vectors / classes;
  if (group.number >= chunks * classes) return;
  const std::int64_t kind = group.number % classes, row = s.weight_row(kind);
  const std::int64_t width = row < 0 ? 0 : s.width;
  const auto n = static_cast<float>(s.width);
  float dweight[kVectors][kWide], dbias[kVectors][kWide];
#pragma unroll
  for (int k = 0; k < kVectors; ++k)
#pragma unroll
    for (int j = 0; j < kWide; ++j) dweight[k][j] = dbias[k][j] = 0;
  for (std::int64_t t = group.number / classes; t < tokens; t += chunks) {
    const std::int64_t v = t * classes + kind, base = v * s.length;
    const float* const stored = statistics + v * (s.centred ? 2 : 1);
    const float mean = s.centred ? stored[0] : 0, reciprocal = stored[s.centred ? 1 : 0];
    float sum_g = 0, sum_gz = 0;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const std::int64_t i = static_cast<std::int64_t>(k * group.size + group.lane) * kWide;
      if (i >= width) continue;
      const Raw<kWide> raw_d = load_raw<kWide>(dy, base + i), raw = load_raw<kWide>(x, base + i);
      float d[kWide], in[kWide], w[kWide];
      load_vector<kWide>(weight, row * s.width + i, w);
      unpack<kWide>(raw_d, dy.dtype, d);
      unpack<kWide>(raw, x.dtype, in);
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
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
      const std::int64_t i = static_cast<std::int64_t>(k * group.size + group.lane) * kWide;
      if (i >= width) continue;
      const Raw<kWide> raw_d = load_raw<kWide>(dy, base + i), raw = load_raw<kWide>(x, base + i);
      float d[kWide], in[kWide], w[kWide];
      load_vector<kWide>(weight, row * s.width + i, w);
      unpack<kWide>(raw_d, dy.dtype, d);
      unpack<kWide>(raw, x.dtype, in);
#pragma unroll
      for (int j = 0; j < kWide; ++j)
        d[j] = reciprocal * (d[j] * w[j] - mean_g - (in[j] - mean) * reciprocal * mean_gz);
      store_vector<kWide>(dx, base + i, d);
    }
    for (std::int64_t i = width + group.lane; i < s.length; i += group.size) store(dx, base + i, load(dy, base + i));
  }
  float* const own = partial + group.number * 2 * s.width;
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const std::int64_t i = static_cast<std::int64_t>(k * group.size + group.lane) * kWide;
    if (i >= width) continue;
#pragma unroll
    for (int j = 0; j < kWide; ++j) {
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
  float sum[kVector];
#pragma unroll
  for (int j = 0; j < kVector; ++j) sum[j] = 0;
  if (column < columns) {
#pragma unroll 4
    for (std::int64_t r = chunk * kSlices + slice; r < rows; r += chunks * kSlices) {
      float values[kVector];
      load_vector<kVector>(x, (blockIdx.y * rows + r) * columns + column, values);
#pragma unroll
      for (int j = 0; j < kVector; ++j) sum[j] += values[j];
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

NormShape norm_shape(const Call& call, const Operand& x, const Operand& weight, const Operand& statistics) {
  NormShape s{};
  s.groups = s.parts = s.weight_rows = 1;
  s.length = last_size(x);
  s.vectors = elements(x) / s.length;
  s.width = last_size(weight);
  s.weight_rows = elements(weight) / s.width;
  call.require(s.width <= s.length, "the weight is wider than what it normalises");
  call.require(s.width <= kMaxNormWidth, "more elements are normalised together than a block has registers for");
  const std::int64_t per_vector = last_size(statistics);
  call.require((per_vector == 1 || per_vector == 2) && elements(statistics) == s.vectors * per_vector,
               "statistics do not fit");
  s.centred = per_vector == 2;
  if (const int d = x.tensor->find(Axis::group_qkv); d >= 1 && weight.tensor->rank > 1) {
    call.require(d == x.tensor->rank - 2, "a fused QKV is [.., groups, group_qkv, head_dim]");
    s.parts = x.tensor->sizes[d];
    s.groups = x.tensor->sizes[d - 1];
    call.require(weight.tensor->rank == 2 ? s.weight_rows == 2 : s.weight_rows == s.groups * (s.parts - 1),
                 "the weight has neither a row for queries and keys nor one for every head");
  } else {
    call.require(s.weight_rows == 1, "the weight is not a vector");
  }
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

struct SumShape {
  std::int64_t groups, rows, columns, tiles, chunks;  // groups: experts, each with its own rows and columns
  bool wide;
};
SumShape sum_shape(const Call& call) {
  const Operand &dy = call.read(0), &db = call.write(0);
  SumShape s{};
  s.groups = 1;
  for (int d = 0; d < call.op.group_dims; ++d) {
    s.groups *= db.tensor->sizes[d];
    call.require(dy.tensor->sizes[d] == db.tensor->sizes[d], "operands differ in experts");
  }
  call.require_repeats(db, dy);
  s.columns = elements(db) / s.groups;
  s.rows = elements(dy) / elements(db);
  s.wide = wide(s.columns, {call.numbers(dy)});
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
  const Operand &x = call.read(0), &weight = call.read(1), &y = call.write(0), &statistics = call.write(1);
  const NormShape s = norm_shape(call, x, weight, statistics);
  call.require_same_elements(x, y);
  if (call.has_read(2)) call.require_same_elements(weight, call.read(2));
  const Any in = call.numbers(x), w = call.numbers(weight), b = call.numbers_if_read(2), out = call.numbers(y);
  float* const stored = call.singles(statistics);
  const int group = group_threads(s.width);
  const bool is_wide = s.width % kWide == 0 && wide(s.length, {in, w, b, out});
  const auto issue = [&](auto kernel) {
    launch("norm_kernel", kernel, blocks(group_blocks(group, s.vectors)), block_threads(group), kRoomBytes,
           call.launch.stream, s, group, call.op.epsilon, in, w, b, out, stored);
  };
  is_wide ? issue(norm_kernel) : issue(norm_narrow_kernel);
}

std::int64_t norm_backward_scratch(const Call& call) {
  const NormShape s = norm_shape(call, call.read(1), call.read(2), call.read(3));
  return chunks_of(s, call.launch.processors) * s.classes() * 2 * s.width * static_cast<std::int64_t>(sizeof(float));
}

void norm_backward(const Call& call) {
  const Operand &dy = call.read(0), &x = call.read(1), &weight = call.read(2), &statistics = call.read(3),
                &dx = call.write(0);
  const NormShape s = norm_shape(call, x, weight, statistics);
  call.require_same_elements(x, dy);
  call.require_same_elements(x, dx);
  for (const std::size_t i : {1, 2})
    if (call.has_write(i)) call.require_same_elements(weight, call.write(i));
  const Any d = call.numbers(dy), in = call.numbers(x), w = call.numbers(weight), out = call.numbers(dx);
  const std::int64_t chunks = chunks_of(s, call.launch.processors), workers = chunks * s.classes();
  auto* const partial = call.scratch<float>(workers * 2 * s.width);
  const float* const stored = call.singles(statistics);
  const int group = group_threads(s.width);
  const bool is_wide = s.width % kWide == 0 && wide(s.length, {d, in, w, out});
  const auto issue = [&](auto kernel) {
    launch("norm_backward_kernel", kernel, blocks(group_blocks(group, workers)), block_threads(group), kRoomBytes,
           call.launch.stream, s, group, chunks, d, in, w, stored, out, partial);
  };
  // With at most 512 threads, each may use twice as many registers.
  constexpr int kUsual = kMaxGroup / 2;
  !is_wide          ? issue(norm_backward_narrow_kernel)
  : group <= kUsual ? issue(norm_backward_kernel<kUsual>)
                    : issue(norm_backward_kernel<kMaxGroup>);
  for (const std::size_t i : {1, 2})
    if (call.has_write(i))
      ORRERY_LAUNCH(add_workers_kernel, blocks(s.weight_rows * divide_up(s.width, kWarp)), kThreads,
                    kThreads * static_cast<std::int64_t>(sizeof(float)), call.launch.stream, s, workers,
                    partial + (i == 1 ? 0 : s.width), 2 * s.width, call.numbers(call.write(i)), call.op.accumulate);
}

std::int64_t bias_gradient_scratch(const Call& call) {
  const SumShape s = sum_shape(call);
  return s.groups * s.chunks * s.columns * static_cast<std::int64_t>(sizeof(float));
}

void bias_gradient(const Call& call) {
  const SumShape s = sum_shape(call);
  const Any x = call.numbers(call.read(0)), out = call.numbers(call.write(0));
  auto* const partial = call.scratch<float>(s.groups * s.chunks * s.columns);
  const auto issue = [&](auto kernel, int vector) {
    launch("column_sums_kernel", kernel, blocks_of_groups(s.tiles * s.chunks, s.groups), kThreads,
           kThreads * vector * static_cast<std::int64_t>(sizeof(float)), call.launch.stream, s.rows, s.columns,
           s.chunks, x, partial);
  };
  s.wide ? issue(column_sums_kernel<kWide>, kWide) : issue(column_sums_kernel<1>, 1);
  NormShape columns{};
  columns.width = s.columns;
  columns.groups = columns.parts = columns.weight_rows = 1;
  ORRERY_LAUNCH(add_workers_kernel, blocks_of_groups(divide_up(s.columns, kWarp), s.groups), kThreads,
                kThreads * static_cast<std::int64_t>(sizeof(float)), call.launch.stream, columns, s.chunks, partial,
                s.columns, out, call.op.accumulate);
}

}  // namespace orrery::cuda
