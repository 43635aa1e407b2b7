// Kernels that select by index or work by row: embeddings, the loss, softmax, pooling.
#include <cmath>

#include "realrun/cuda/kernels/call.cuh"
#include "realrun/cuda/kernels/mask.cuh"

namespace orrery::cuda {
namespace {

// ---- Embeddings

template <int kVector>
__global__ void embedding_kernel(std::int64_t ids_count, std::int64_t width, std::int64_t rows, std::int64_t first_row,
                                 Any ids, Any table, Any y) {
  const std::int64_t per_row = width / kVector, i = thread_number();
  if (i >= ids_count * per_row) return;
  const std::int64_t id = i / per_row, column = i % per_row * kVector, row = load_index(ids, id) - first_row;
  float values[kVector] = {};
  if (row >= 0 && row < rows) load_vector<kVector>(table, row * width + column, values);
  store_vector<kVector>(y, id * width + column, values);
}

// Builds the list of tokens of each row, in token order, without sorting and without atomics: a block owns kOwned rows,
// reads all ids tile by tile and links the tokens of its rows. head[row] and next[token]: -1 ends a list.
constexpr int kOwned = 128;

__global__ void link_tokens_kernel(std::int64_t tokens, std::int64_t rows, std::int64_t first_row, Any ids,
                                   std::int32_t* head, std::int32_t* next) {
  auto* const tail = reinterpret_cast<std::int32_t*>(dynamic_shared());  // [kOwned]
  std::int32_t* const begin = tail + kOwned;                             // [kOwned]
  std::int32_t* const found = begin + kOwned;                            // [kThreads], rows
  std::int32_t* const found_token = found + kThreads;                    // [kThreads]
  std::int32_t* const per_warp = found_token + kThreads;                 // [kThreads / kWarp]
  const std::int64_t owned = static_cast<std::int64_t>(blockIdx.x) * kOwned;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  if (thread < kOwned) tail[thread] = begin[thread] = -1;
  for (std::int64_t tile = 0; tile < tokens; tile += kThreads) {
    const std::int64_t token = tile + thread;
    std::int64_t row = -1;
    if (token < tokens) {
      const std::int64_t whole = load_index(ids, token) - first_row;
      if (whole >= 0 && whole < rows) row = whole - owned;
    }
    const bool mine = row >= 0 && row < kOwned;
    const unsigned votes = __ballot_sync(kAllLanes, mine);
    if (lane == 0) per_warp[warp] = __popc(votes);
    __syncthreads();
    int before = 0, all = 0;
    for (int w = 0; w < kThreads / kWarp; ++w) {
      before += w < warp ? per_warp[w] : 0;
      all += per_warp[w];
    }
    if (mine) {
      const int at = before + __popc(votes & ((1u << lane) - 1));
      found[at] = static_cast<std::int32_t>(row);
      found_token[at] = static_cast<std::int32_t>(token);
    }
    __syncthreads();
    if (thread == 0) {
      for (int i = 0; i < all; ++i) {
        const std::int32_t r = found[i], t = found_token[i];
        if (tail[r] < 0) {
          begin[r] = t;
        } else {
          next[tail[r]] = t;
        }
        tail[r] = t;
      }
    }
    __syncthreads();
  }
  if (thread < kOwned && owned + thread < rows) {
    head[owned + thread] = begin[thread];
    if (tail[thread] >= 0) next[tail[thread]] = -1;
  }
}

template <int kVector>
__global__ void embedding_backward_kernel(std::int64_t rows, std::int64_t width, const std::int32_t* head,
                                          const std::int32_t* next, Any dy, Any dtable, bool accumulate) {
  const std::int64_t per_row = width / kVector, i = thread_number();
  if (i >= rows * per_row) return;
  const std::int64_t row = i / per_row, column = i % per_row * kVector;
  std::int64_t token = head[row];
  if (token < 0 && accumulate) return;
  float sum[kVector] = {};
  while (token >= 0) {
    const std::int64_t following = next[token];
    add_vector<kVector>(dy, token * width + column, sum);
    token = following;
  }
  if (accumulate) add_vector<kVector>(dtable, row * width + column, sum);
  store_vector<kVector>(dtable, row * width + column, sum);
}

// ---- Rows of scores and logits

// Maximum and sum of exponentials relative to it, in one pass (Milakov & Gimelshein 2018, arXiv 1805.02867).
struct Online {
  float maximum, sum;

  __device__ void add(float x) {
    if (x <= maximum) {
      sum += maximum == minus_infinity() ? 0 : expf(x - maximum);
    } else {
      sum = (maximum == minus_infinity() ? 0 : sum * expf(maximum - x)) + 1;
      maximum = x;
    }
  }
  __device__ void merge(float other_maximum, float other_sum) {
    const float m = larger(maximum, other_maximum);
    if (m == minus_infinity()) return;
    sum = sum * expf(maximum - m) + other_sum * expf(other_maximum - m);
    maximum = m;
  }
};

__device__ Online warp_merge(Online o) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const float maximum = __shfl_xor_sync(kAllLanes, o.maximum, distance),
                sum = __shfl_xor_sync(kAllLanes, o.sum, distance);
    // Both lanes add in the same order, so that all end with the same bits.
    const bool upper = (threadIdx.x & static_cast<unsigned>(distance)) != 0;
    Online first{upper ? maximum : o.maximum, upper ? sum : o.sum};
    first.merge(upper ? o.maximum : maximum, upper ? o.sum : sum);
    o = first;
  }
  return o;
}

// Merges over all threads of a block. `room` holds two numbers per warp.
__device__ Online block_merge(Online o, float* room) {
  o = warp_merge(o);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) {
    room[threadIdx.x / kWarp * 2] = o.maximum;
    room[threadIdx.x / kWarp * 2 + 1] = o.sum;
  }
  __syncthreads();
  Online all{room[0], room[1]};
  for (unsigned w = 1; w < blockDim.x / kWarp; ++w) all.merge(room[2 * w], room[2 * w + 1]);
  return all;
}

constexpr std::int64_t kOnlineBytes = 2 * kSumBytes;

template <int kVector>
__global__ void cross_entropy_kernel(std::int64_t tokens, std::int64_t columns, std::int64_t first_column, Any logits,
                                     Any targets, float* statistics) {
  const std::int64_t t = blockIdx.x;
  Online o{minus_infinity(), 0};
#pragma unroll 2
  for (std::int64_t c = static_cast<std::int64_t>(threadIdx.x) * kVector; c < columns; c += kThreads * kVector) {
    float values[kVector];
    load_vector<kVector>(logits, t * columns + c, values);
    float most = values[0];
#pragma unroll
    for (int j = 1; j < kVector; ++j) most = larger(most, values[j]);
    // One rescaling per vector; a NaN stays in the sum.
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kVector; ++j) sum += most == minus_infinity() && values[j] == most ? 0 : expf(values[j] - most);
    o.merge(most, sum);
  }
  o = block_merge(o, reinterpret_cast<float*>(dynamic_shared()));
  if (threadIdx.x != 0) return;
  const std::int64_t target = load_index(targets, t) - first_column;
  statistics[t] = o.maximum;
  statistics[tokens + t] = o.sum;
  statistics[2 * tokens + t] = target >= 0 && target < columns ? load(logits, t * columns + target) : 0;
}

template <int kVector>
__global__ void cross_entropy_backward_kernel(std::int64_t tokens, std::int64_t columns, std::int64_t first_column,
                                              float loss_gradient, Any logits, Any targets, const float* statistics,
                                              Any dlogits) {
  const std::int64_t t = blockIdx.x;
  const float maximum = statistics[t], factor = 1 / statistics[tokens + t];
  const std::int64_t target = load_index(targets, t) - first_column;
#pragma unroll 2
  for (std::int64_t c = static_cast<std::int64_t>(threadIdx.x) * kVector; c < columns; c += kThreads * kVector) {
    float values[kVector];
    load_vector<kVector>(logits, t * columns + c, values);
#pragma unroll
    for (int j = 0; j < kVector; ++j)
      values[j] = loss_gradient * (expf(values[j] - maximum) * factor - (c + j == target ? 1.0f : 0.0f));
    store_vector<kVector>(dlogits, t * columns + c, values);
  }
}

__global__ void softmax_kernel(std::int64_t queries, std::int64_t keys, Mask mask, float scale, Any scores, Any y) {
  const std::int64_t row = blockIdx.x, query = row % queries;
  Online o{minus_infinity(), 0};
  for (std::int64_t k = threadIdx.x; k < keys; k += kThreads)
    if (mask.all() || mask.sees(mask.query(query), mask.key(k))) o.add(scale * load(scores, row * keys + k));
  o = block_merge(o, reinterpret_cast<float*>(dynamic_shared()));
  const float factor = o.maximum == minus_infinity() ? 0 : 1 / o.sum;
  for (std::int64_t k = threadIdx.x; k < keys; k += kThreads) {
    const bool seen = factor != 0 && (mask.all() || mask.sees(mask.query(query), mask.key(k)));
    store(y, row * keys + k, seen ? expf(scale * load(scores, row * keys + k) - o.maximum) * factor : 0);
  }
}

template <int kVector>
__global__ void softmax_backward_kernel(std::int64_t keys, float scale, Any dp, Any p, Any ds) {
  const std::int64_t base = static_cast<std::int64_t>(blockIdx.x) * keys;
  float sum = 0;
  for (std::int64_t k = static_cast<std::int64_t>(threadIdx.x) * kVector; k < keys; k += kThreads * kVector) {
    float d[kVector], probability[kVector];
    load_vector<kVector>(dp, base + k, d, p, base + k, probability);
#pragma unroll
    for (int j = 0; j < kVector; ++j) sum += d[j] * probability[j];
  }
  sum = block_sum(sum, reinterpret_cast<float*>(dynamic_shared()));
  for (std::int64_t k = static_cast<std::int64_t>(threadIdx.x) * kVector; k < keys; k += kThreads * kVector) {
    float d[kVector], probability[kVector];
    load_vector<kVector>(dp, base + k, d, p, base + k, probability);
#pragma unroll
    for (int j = 0; j < kVector; ++j) d[j] = scale * probability[j] * (d[j] - sum);
    store_vector<kVector>(ds, base + k, d);
  }
}

// ---- Pooling

__global__ void prepend_kernel(PrependShape s, Any x, Any vector, Any y) {
  const std::int64_t i = thread_number(), whole = s.width + s.length;
  if (i >= s.batch * whole) return;
  const std::int64_t at = i % whole;
  store(y, i, at < s.width ? load(vector, at) : load(x, i / whole * s.length + at - s.width));
}

// One thread per element of dx, then one per element of dvector.
__global__ void prepend_backward_kernel(PrependShape s, Any dy, Any dx, Any dvector, bool accumulate) {
  const std::int64_t i = thread_number(), whole = s.width + s.length, rest = s.batch * s.length;
  if (i < rest) {
    store(dx, i, load(dy, i / s.length * whole + s.width + i % s.length));
  } else if (i < rest + s.width) {
    float sum = accumulate ? load(dvector, i - rest) : 0;
    for (std::int64_t b = 0; b < s.batch; ++b) sum += load(dy, b * whole + i - rest);
    store(dvector, i - rest, sum);
  }
}

__global__ void pool_kernel(PoolShape s, Any x, Any y) {
  const std::int64_t i = thread_number();
  if (i >= s.pooled * s.width) return;
  const std::int64_t p = i / s.width, first = p * s.each * s.width + i % s.width;
  float sum = load(x, first);
  if (s.mean) {
#pragma unroll 4
    for (std::int64_t e = 1; e < s.each; ++e) sum += load(x, first + e * s.width);
    sum /= static_cast<float>(s.each);
  }
  store(y, i, sum);
}

__global__ void pool_backward_kernel(PoolShape s, Any dy, Any dx) {
  const std::int64_t i = thread_number();
  if (i >= s.pooled * s.each * s.width) return;
  const std::int64_t vector = i / s.width, p = vector / s.each, e = vector % s.each;
  const float d = load(dy, p * s.width + i % s.width);
  store(dx, i, s.mean ? d / static_cast<float>(s.each) : e == 0 ? d : 0);
}

// ---- Merging two ring steps

template <int kVector>
__global__ void merge_context_kernel(MergeShape s, Any a, const float* a_lse, Any b, const float* b_lse, Any y) {
  const std::int64_t per_vector = s.width / kVector, i = thread_number();
  if (i >= s.batch * s.sequence * s.heads * per_vector) return;
  const std::int64_t v = i / per_vector, head = v % s.heads, position = v / s.heads % s.sequence,
                     batch = v / (s.heads * s.sequence), at = (batch * s.heads + head) * s.sequence + position;
  const float first = a_lse[at], second = b_lse[at], most = larger(first, second);
  const bool nothing = most == minus_infinity();
  const float w1 = nothing ? 0 : expf(first - most), w2 = nothing ? 0 : expf(second - most),
              factor = nothing ? 0 : 1 / (w1 + w2);
  float x[kVector], z[kVector];
  load_vector<kVector>(a, i * kVector, x, b, i * kVector, z);
#pragma unroll
  for (int j = 0; j < kVector; ++j) x[j] = nothing ? 0 : (w1 * x[j] + w2 * z[j]) * factor;
  store_vector<kVector>(y, i * kVector, x);
}

// Runs after the contexts, since a log-sum-exp may be overwritten in place.
__global__ void merge_lse_kernel(std::int64_t count, const float* a, const float* b, float* y) {
  const std::int64_t i = thread_number();
  if (i >= count) return;
  const float first = a[i], second = b[i], most = larger(first, second);
  y[i] = most == minus_infinity() ? most : most + logf(expf(first - most) + expf(second - most));
}

TableShape table_of(const Call& call, const Operand& table) {
  call.require(table.tensor->rank == 2, "a table is [rows, width]: position biases by head run on CPUs alone");
  return table_shape(call);
}

}  // namespace

void embedding(const Call& call) {
  const TableShape s = table_of(call, call.read(1));
  const Any from = call.in(1), to = call.out(0);
  ORRERY_LAUNCH_WIDE(call, wide(s.width, {from, to}), embedding_kernel, Elements{elements(call.write(0))}, 0,
                     elements(call.read(0)), s.width, s.rows, s.first_row, call.indices(call.read(0)), from, to);
}

std::int64_t embedding_backward_scratch(const Call& call) {
  return bytes_for<std::int32_t>(elements(call.read(0)) + call.write(0).tensor->sizes[0]);
}

void embedding_backward(const Call& call) {
  const Operand& dtable = call.write(0);
  const TableShape s = table_of(call, dtable);
  const std::int64_t tokens = elements(call.read(0));
  call.require(tokens <= std::numeric_limits<std::int32_t>::max(), "there are too many tokens");
  auto* const head = call.scratch<std::int32_t>(s.rows + tokens);
  std::int32_t* const next = head + s.rows;
  constexpr std::int64_t kLinkBytes = bytes_for<std::int32_t>(2 * kOwned + 2 * kThreads + kThreads / kWarp);
  ORRERY_LAUNCH(call, link_tokens_kernel, blocks(divide_up(s.rows, kOwned)), kLinkBytes, tokens, s.rows, s.first_row,
                call.indices(call.read(0)), head, next);
  const Any from = call.in(1), to = call.numbers(dtable);
  ORRERY_LAUNCH_WIDE(call, wide(s.width, {from, to}), embedding_backward_kernel, Elements{elements(dtable)}, 0, s.rows,
                     s.width, head, next, from, to, call.op.accumulate);
}

void cross_entropy(const Call& call) {
  const LogitShape s = logit_shape(call);
  const Any in = call.in(0);
  ORRERY_LAUNCH_WIDE(call, wide(s.columns, {in}), cross_entropy_kernel, blocks(s.tokens), kOnlineBytes, s.tokens,
                     s.columns, s.first_column, in, call.indices(call.read(1)), call.singles(call.write(0)));
}

void cross_entropy_backward(const Call& call) {
  const LogitShape s = logit_shape(call);
  const Any in = call.in(0), out = call.out(0);
  ORRERY_LAUNCH_WIDE(call, wide(s.columns, {in, out}), cross_entropy_backward_kernel, blocks(s.tokens), 0, s.tokens,
                     s.columns, s.first_column, static_cast<float>(call.op.scale), in, call.indices(call.read(1)),
                     call.singles(call.read(2)), out);
}

void softmax(const Call& call) {
  const Tensor& t = *call.read(0).tensor;
  const std::int64_t keys = t.sizes[t.rank - 1], queries = t.sizes[t.rank - 2];
  ORRERY_LAUNCH(call, softmax_kernel, blocks(t.elements() / keys), kOnlineBytes, queries, keys,
                mask_of(call, queries, keys, false), call.op.scale, call.in(0), call.out(0));
}

void softmax_backward(const Call& call) {
  const std::int64_t keys = last_size(call.read(1));
  const Any d = call.in(0), in = call.in(1), out = call.out(0);
  ORRERY_LAUNCH_WIDE(call, wide(keys, {d, in, out}), softmax_backward_kernel, blocks(elements(call.read(1)) / keys),
                     kSumBytes, keys, call.op.scale, d, in, out);
}

void pool(const Call& call) {
  const Operand& y = call.write(0);
  const Any in = call.in(0), out = call.numbers(y);
  if (call.has_read(1)) {
    ORRERY_LAUNCH(call, prepend_kernel, Elements{elements(y)}, 0, prepend_shape(call), in, call.in(1), out);
  } else {
    ORRERY_LAUNCH(call, pool_kernel, Elements{elements(y)}, 0, pool_shape(call), in, out);
  }
}

void pool_backward(const Call& call) {
  const Operand& dx = call.write(0);
  const Any d = call.in(0), out = call.numbers(dx);
  if (call.has_write(1)) {
    const Operand& dvector = call.write(1);
    ORRERY_LAUNCH(call, prepend_backward_kernel, Elements{elements(dx) + elements(dvector)}, 0, prepend_shape(call), d,
                  out, call.numbers(dvector), call.op.accumulate);
  } else {
    ORRERY_LAUNCH(call, pool_backward_kernel, Elements{elements(dx)}, 0, pool_shape(call), d, out);
  }
}

void merge_attention(const Call& call) {
  const MergeShape s = merge_shape(call);
  const Operand &context = call.write(0), &lse = call.write(1);
  const Any a = call.in(0), b = call.in(2), y = call.numbers(context);
  const float *const a_lse = call.singles(call.read(1)), *const b_lse = call.singles(call.read(3));
  ORRERY_LAUNCH_WIDE(call, wide(s.width, {a, b, y}), merge_context_kernel, Elements{elements(context)}, 0, s, a, a_lse,
                     b, b_lse, y);
  ORRERY_LAUNCH(call, merge_lse_kernel, Elements{elements(lse)}, 0, elements(lse), a_lse, b_lse, call.singles(lse));
}

}  // namespace orrery::cuda
