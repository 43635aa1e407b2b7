// Operations of a Backend other than ops: fills, copies by index, conversions, sums.
#include <numeric>

#include "realrun/cuda/host_numbers.h"
#include "realrun/cuda/kernels/call.cuh"

namespace orrery::cuda {
namespace {

// Part of an allocation in words of `per_word` elements: as wide as its offsets and runs allow.
struct Words {
  void* base;
  std::int64_t offset, count, run, per_word;
  const std::int64_t* starts;

  __device__ std::int64_t at(std::int64_t i) const {
    if (starts == nullptr) return offset + i;
    return run == 1 ? starts[i] / per_word : starts[i / run] / per_word + i % run;
  }
};

template <class Word>
__global__ void move_kernel(Words s, Word* dense, bool to_slice) {
  const std::int64_t i = thread_number();
  if (i >= s.count) return;
  Word* const at = static_cast<Word*>(s.base) + s.at(i);
  if (to_slice) {
    *at = dense[i];
  } else {
    dense[i] = *at;
  }
}

__global__ void scatter_add_kernel(Words s, Dtype dtype, Any dense) {
  const std::int64_t i = thread_number();
  if (i >= s.count) return;
  const Any to{s.base, dtype};
  const std::int64_t at = s.at(i);
  store(to, at, load(to, at) + load(dense, i));
}

template <class Word>
__global__ void fill_kernel(Words s, Word word) {
  const std::int64_t i = thread_number();
  if (i < s.count) static_cast<Word*>(s.base)[s.at(i)] = word;
}

__global__ void find_nan_kernel(Words s, Dtype dtype, std::int32_t* flag) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  bool found = false;
  for (std::int64_t i = thread_number(); i < s.count; i += step) {
    const float value = load({s.base, dtype}, s.at(i));
    found = found || value != value;
  }
  if (found) *flag = 1;
}

template <int kVector>
__global__ void convert_kernel(std::int64_t elements, Any from, Any to) {
  const std::int64_t i = thread_number() * kVector;
  if (i >= elements) return;
  float values[kVector];
  load_vector<kVector>(from, i, values);
  store_vector<kVector>(to, i, values);
}

constexpr std::size_t kMaxParts = 256;  // their addresses are kernel parameters, which have 4 KiB
struct Parts {
  int count;
  const void* data[kMaxParts];
};
Parts parts_of(std::span<const void* const> parts) {
  if (parts.empty() || parts.size() > kMaxParts)
    throw std::logic_error("CUDA kernels: a sum of " + std::to_string(parts.size()) + " parts; expected 1 to " +
                           std::to_string(kMaxParts));
  Parts p{};
  p.count = static_cast<int>(parts.size());
  std::copy(parts.begin(), parts.end(), p.data);
  return p;
}

template <int kVector>
__global__ void sum_kernel(std::int64_t elements, Parts parts, Any to) {
  const std::int64_t i = thread_number() * kVector;
  if (i >= elements) return;
  float sum[kVector];
  load_vector<kVector>({const_cast<void*>(parts.data[0]), to.dtype}, i, sum);
#pragma unroll 4
  for (int p = 1; p < parts.count; ++p) {
    add_vector<kVector>({const_cast<void*>(parts.data[p]), to.dtype}, i, sum);
  }
  store_vector<kVector>(to, i, sum);
}

// Each part's sum of exponentials is relative to its own maximum.
__global__ void merge_statistics_kernel(std::int64_t tokens, Parts parts, float* to) {
  const std::int64_t t = thread_number();
  if (t >= tokens) return;
  const auto part = [&](int p, std::int64_t row) { return static_cast<const float*>(parts.data[p])[row * tokens + t]; };
  float maximum = minus_infinity(), sum = 0, target = 0;
  for (int p = 0; p < parts.count; ++p) maximum = larger(maximum, part(p, 0));
  for (int p = 0; p < parts.count; ++p) {
    if (part(p, 0) != minus_infinity()) sum += part(p, 1) * expf(part(p, 0) - maximum);
    target += part(p, 2);
  }
  to[t] = maximum;
  to[tokens + t] = sum;
  to[2 * tokens + t] = target;
}

Words words_of(const DeviceSlice& s, std::int64_t per_word) {
  return {s.base, s.offset / per_word, s.elements / per_word, s.run / per_word, per_word, s.starts};
}

template <class... T>
bool aligned(std::int64_t bytes, T... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % static_cast<std::uintptr_t>(bytes) == 0) && ...);
}

// The widest word, in bytes, in which both sides can be moved; at most 16.
std::int64_t word_bytes(const DeviceSlice& s, const void* dense) {
  const std::int64_t element = bytes_of(s.dtype, 1);
  for (std::int64_t bytes = 16; bytes > element; bytes /= 2) {
    const std::int64_t n = bytes / element;
    const bool fits = s.starts == nullptr ? s.offset % n == 0 : s.run % n == 0 && s.alignment % n == 0;
    if (fits && s.elements % n == 0 && aligned(bytes, s.base, dense)) return bytes;
  }
  return element;
}

template <class Use>
void with_word(std::int64_t bytes, Use use) {
  switch (bytes) {
    case 1:
      return use(std::uint8_t{});
    case 2:
      return use(std::uint16_t{});
    case 4:
      return use(std::uint32_t{});
    case 8:
      return use(uint2{});
    default:
      return use(uint4{});
  }
}

void move(CUstream_st* stream, const DeviceSlice& slice, void* dense, bool to_slice) {
  const std::int64_t bytes = word_bytes(slice, dense);
  const Words words = words_of(slice, bytes / bytes_of(slice.dtype, 1));
  with_word(bytes, [&](auto word) {
    using Word = decltype(word);
    ORRERY_LAUNCH(stream, move_kernel<Word>, Elements{words.count}, 0, words, static_cast<Word*>(dense), to_slice);
  });
}

}  // namespace

IndexPlan plan_index(std::span<const std::int64_t> index) {
  IndexPlan plan;
  if (index.empty()) return plan;
  // A run may end where the next one begins, so its length must divide the distance between any two breaks.
  const auto n = static_cast<std::int64_t>(index.size());
  std::int64_t run = n;
  for (std::size_t i = 1; i < index.size(); ++i)
    if (index[i] != index[i - 1] + 1) run = std::gcd(run, static_cast<std::int64_t>(i));
  plan.run = run;
  plan.alignment = run;
  for (std::int64_t i = 0; i < n; i += run) {
    plan.starts.push_back(index[static_cast<std::size_t>(i)]);
    plan.alignment = std::gcd(plan.alignment, plan.starts.back());
  }
  return plan;
}

void fill(CUstream_st* stream, const DeviceSlice& to, float value) {
  const std::int64_t bytes = word_bytes(to, nullptr), element = bytes_of(to.dtype, 1);
  const Words words = words_of(to, bytes / element);
  with_word(bytes, [&](auto word) {
    for (std::int64_t at = 0; at < bytes; at += element)
      from_floats(&value, reinterpret_cast<char*>(&word) + at, to.dtype, 1);
    ORRERY_LAUNCH(stream, fill_kernel<decltype(word)>, Elements{words.count}, 0, words, word);
  });
}

void gather(CUstream_st* stream, const DeviceSlice& from, void* to) { move(stream, from, to, false); }

void scatter(CUstream_st* stream, const void* from, const DeviceSlice& to, bool add) {
  void* const dense = const_cast<void*>(from);
  if (!add) return move(stream, to, dense, true);
  const Any numbers{dense, to.dtype};
  ORRERY_LAUNCH(stream, scatter_add_kernel, Elements{to.elements}, 0, words_of(to, 1), to.dtype, numbers);
}

void convert(CUstream_st* stream, const void* from, Dtype from_dtype, void* to, Dtype to_dtype, std::int64_t elements) {
  if (from_dtype == to_dtype) return gather(stream, {const_cast<void*>(from), from_dtype, 0, elements}, to);
  const Any in{const_cast<void*>(from), from_dtype}, out{to, to_dtype};
  ORRERY_LAUNCH_WIDE(stream, wide(elements, {in, out}), convert_kernel, Elements{elements}, 0, elements, in, out);
}

void sum(CUstream_st* stream, std::span<const void* const> parts, void* to, std::int64_t elements, Dtype dtype) {
  const Parts p = parts_of(parts);
  const Any out{to, dtype};
  bool is_wide = wide(elements, {out});
  for (const void* part : parts) is_wide = is_wide && wide(elements, {Any{const_cast<void*>(part), dtype}});
  ORRERY_LAUNCH_WIDE(stream, is_wide, sum_kernel, Elements{elements}, 0, elements, p, out);
}

void merge_statistics(CUstream_st* stream, std::span<const void* const> parts, void* to, std::int64_t tokens) {
  ORRERY_LAUNCH(stream, merge_statistics_kernel, Elements{tokens}, 0, tokens, parts_of(parts), static_cast<float*>(to));
}

void find_nan(CUstream_st* stream, const DeviceSlice& slice, std::int32_t* flag) {
  constexpr std::int64_t kPerThread = 16;
  ORRERY_LAUNCH(stream, find_nan_kernel, Elements{divide_up(slice.elements, kPerThread)}, 0, words_of(slice, 1),
                slice.dtype, flag);
}

}  // namespace orrery::cuda
