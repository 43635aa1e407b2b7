// The kernels of a Program on an NVIDIA GPU, but for matrix products (cuBLASLt, backend.cu): launchers, callable from
// host code that does not include CUDA headers. All pointers are device memory unless said otherwise; all calls issue
// to launch.stream and return at once, and what one call issues needs no host synchronisation.
//
// Storage: Operand::data holds elements of its tensor's dtype: fp32, bf16, fp16 (fp8: e4m3, cast only); ids and targets
// int64 or int32, dropout masks uint8, statistics and log-sum-exps fp32. Sums are in fp32 or better, in an order that
// depends on shapes and `processors` alone: the same input gives the same bits.
//
// Alignment: any multiple of the element's size is right; 16 bytes (and rows of a multiple of 16 bytes) are fast.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "realrun/kernel.h"
#include "sim/program/op.h"
#include "sim/program/tensor.h"

struct CUstream_st;  // *: cudaStream_t

namespace orrery::cuda {

struct Launch {
  CUstream_st* stream = nullptr;
  std::int64_t processors = 1;  // multiprocessors: how far reductions are divided
  // At least scratch_bytes() of the call, aligned to 256 bytes; free again for the next call on the same stream.
  void* scratch = nullptr;
  std::int64_t scratch_bytes = 0;
  // Copies of KernelContext::query_positions, key_positions and expert_of_slot, which are host memory; nullptr where
  // those are empty. Used by attention, softmax, rotary, dropout and routers; by what puts tokens into rows. The spans
  // must be given too.
  const std::int64_t* query_positions = nullptr;
  const std::int64_t* key_positions = nullptr;
  const std::int64_t* expert_of_slot = nullptr;
};

// True for what run_kernel runs: every kind but linear*, batched_matmul, communication and copies.
bool is_kernel(OpKind kind);

// 0 for most kinds. `processors` as in Launch.
std::int64_t scratch_bytes(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes,
                           std::int64_t processors);

// Contract of operands, statistics, masks, positions and dropout: realrun/cpu/kernels.h; absent operands have data
// nullptr or are left out at the end. KernelContext::round_to_bf16 is ignored: storage rounds by itself.
//
// Beyond that contract: ids outside any table contribute nothing. Attention: head_dim <= 256, a scale > 0, fewer than
// 2^31 positions; tensor cores are used for bf16 and fp16 with head_dim a multiple of 8 and 16-byte aligned operands,
// fp32 arithmetic otherwise. Norms: at most kMaxNormWidth elements are normalised. cast saturates where fp8 overflows.
//
// Throws std::logic_error as the CPU's run_kernel does, and for a dtype that a kernel does not take; DeviceError
// (realrun/backend.h) if a launch fails.
void run_kernel(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes,
                const KernelContext& context, const Launch& launch);
inline constexpr std::int64_t kMaxNormWidth = 16384;

// --- What a Backend needs beside ops. Dtypes: all.

// An index list as equal runs of contiguous elements: element i of the list is starts[i / run] + i % run. A list whose
// elements do not run on has run 1. Host memory: plan once, keep a device copy of `starts`.
struct IndexPlan {
  std::vector<std::int64_t> starts;
  std::int64_t run = 1;
  std::int64_t alignment = 1;  // greatest common divisor of the starts and the run, in elements
};
IndexPlan plan_index(std::span<const std::int64_t> index);

// Of one allocation: elements [offset, offset + elements); or, with device copy `starts` of a plan's, those of the
// plan.
struct DeviceSlice {
  void* base = nullptr;
  Dtype dtype = Dtype::fp32;
  std::int64_t offset = 0, elements = 0;
  const std::int64_t* starts = nullptr;
  std::int64_t run = 1, alignment = 1;
};

void fill(CUstream_st* stream, const DeviceSlice& to, float value);  // integers: NaN becomes the largest value
void gather(CUstream_st* stream, const DeviceSlice& from, void* to);
void scatter(CUstream_st* stream, const void* from, const DeviceSlice& to, bool add);

// to[i] = from[i] in another dtype (or the same). May not overlap unless equal and of one size of element.
void convert(CUstream_st* stream, const void* from, Dtype from_dtype, void* to, Dtype to_dtype, std::int64_t elements);

// Dense strided copy, for packing, unpacking and permuting: element (i0, i1, ..) of `sizes` goes from
// from[sum i_d from_strides[d]] to to[sum i_d to_strides[d]]; strides in elements. At most Tensor::kMaxRank dimensions.
void copy_strided(CUstream_st* stream, const void* from, std::span<const std::int64_t> from_strides, void* to,
                  std::span<const std::int64_t> to_strides, std::span<const std::int64_t> sizes, Dtype dtype);

// As Backend::sum and Backend::merge_statistics. `parts` is host memory, read before the call returns.
void sum(CUstream_st* stream, std::span<const void* const> parts, void* to, std::int64_t elements, Dtype dtype);
void merge_statistics(CUstream_st* stream, std::span<const void* const> parts, void* to, std::int64_t tokens);

// Sets *flag (int32 in device memory) to 1 if any element is NaN; leaves it otherwise. Integers never are.
void find_nan(CUstream_st* stream, const DeviceSlice& slice, std::int32_t* flag);

}  // namespace orrery::cuda
