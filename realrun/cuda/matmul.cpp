#include "realrun/cuda/matmul.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <optional>

#include "realrun/cuda/memory.h"
#include "realrun/cuda/runtime.h"

namespace orrery::cuda {
namespace {

constexpr int kCandidates = 8;
constexpr int kTimedRuns = 3;
// A candidate replaces the heuristic's first only if it is clearly faster: between equal ones chance would decide.
constexpr float kClearlyFaster = 0.98f;
constexpr std::uintptr_t kBestAlignment = 256;  // in bytes; cuBLASLt assumes this by default
constexpr std::uintptr_t kBiasAlignment = 16;

void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const char* const advice = status == CUBLAS_STATUS_ALLOC_FAILED || status == CUBLAS_STATUS_NOT_INITIALIZED
                                 ? "the GPU has too little memory for it, or the driver does not fit the library"
                             : status == CUBLAS_STATUS_ARCH_MISMATCH ? "this GPU has no matrix units for the dtype"
                                                                     : "see CUBLASLT_LOG_LEVEL=5 for its reason";
  throw DeviceError(fmt::format("cuBLASLt: {} failed ({}): {}", what, cublasLtGetStatusName(status), advice));
}

cudaDataType_t type_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::fp32:
      return CUDA_R_32F;
    case Dtype::fp16:
      return CUDA_R_16F;
    case Dtype::bf16:
      return CUDA_R_16BF;
    case Dtype::fp8:
      return CUDA_R_8F_E4M3;
    default:
      throw std::logic_error(fmt::format("matrix units do not multiply {}", name_of(dtype)));
  }
}

std::uintptr_t alignment_of(const void* p) {
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  return address == 0 ? kBestAlignment : std::min(kBestAlignment, address & (~address + 1));
}

template <class Value>
void set(cublasLtMatmulDescOpaque_t& operation, cublasLtMatmulDescAttributes_t attribute, const Value& value) {
  check(cublasLtMatmulDescSetAttribute(&operation, attribute, &value, sizeof value), "describing a matrix product");
}

template <class Value>
void set(cublasLtMatrixLayoutOpaque_t& layout, cublasLtMatrixLayoutAttribute_t attribute, const Value& value) {
  check(cublasLtMatrixLayoutSetAttribute(&layout, attribute, &value, sizeof value), "describing a matrix");
}

template <class Value>
void set(cublasLtMatmulPreferenceOpaque_t& preference, cublasLtMatmulPreferenceAttributes_t attribute,
         const Value& value) {
  check(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof value),
        "describing the memory of a matrix product");
}

void set_layout(cublasLtMatrixLayoutOpaque_t& layout, const BlasMatrix& m) {
  check(cublasLtMatrixLayoutInit(&layout, type_of(m.dtype), static_cast<std::uint64_t>(m.rows),
                                 static_cast<std::uint64_t>(m.columns), m.leading),
        "describing a matrix");
  set(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, m.batch);
  set(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, m.batch_stride);
}

std::string text_of(const BlasProduct& p, bool accumulate) {
  return fmt::format("{} {} {} x {} x {}{} {} {} -> {}{}", p.transpose_a ? "T" : "N", p.transpose_b ? "T" : "N", p.m,
                     p.n, p.k, p.c.batch > 1 ? fmt::format(" x {} times", p.c.batch) : "", name_of(p.a.dtype),
                     name_of(p.b.dtype), name_of(p.c.dtype), accumulate ? ", added" : "");
}

}  // namespace

struct Matmul::Shared {
  std::mutex mutex;
  std::map<Key, Choice> chosen;
};

Matmul::Shared& Matmul::shared() {
  static Shared all;
  return all;
}

Matmul::Matmul(bool tf32) : tf32_(tf32) {
  check(cublasLtCreate(&handle_), "opening the library");
  cuda::check(cudaGetDevice(&device_), "asking for the GPU in use");
  cuda::check(cudaEventCreate(&begin_), "creating an event");
  cuda::check(cudaEventCreate(&end_), "creating an event");
}

Matmul::~Matmul() {
  cudaEventDestroy(begin_);
  cudaEventDestroy(end_);
  cublasLtDestroy(handle_);
}

Matmul::Key Matmul::key_of(const BlasProduct& p, bool accumulate, bool fast_accumulation,
                           const Operands& operands) const {
  Key key{};
  std::size_t i = 0;
  const auto add = [&](auto value) { key.at(i++) = static_cast<std::int64_t>(value); };
  add(device_), add(tf32_), add(accumulate), add(fast_accumulation), add(operands.bias != nullptr);
  add(operands.bias_stride);
  add(operands.a_scale != nullptr), add(operands.b_scale != nullptr);
  add(p.m), add(p.n), add(p.k), add(p.transpose_a), add(p.transpose_b), add(p.c.batch);
  for (const BlasMatrix* m : {&p.a, &p.b, &p.c}) add(m->dtype), add(m->leading), add(m->batch_stride);
  for (const void* pointer : {operands.a, operands.b, static_cast<const void*>(operands.c), operands.bias})
    add(alignment_of(pointer));
  return key;
}

Matmul::Prepared Matmul::describe(const BlasProduct& p, bool fast_accumulation, const Operands& operands) const {
  Prepared made;
  const bool fp32 = p.a.dtype == Dtype::fp32;
  check(cublasLtMatmulDescInit(&made.operation, fp32 && tf32_ ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                               CUDA_R_32F),
        "describing a matrix product");
  const cublasOperation_t a = p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, b = p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  set(made.operation, CUBLASLT_MATMUL_DESC_TRANSA, a);
  set(made.operation, CUBLASLT_MATMUL_DESC_TRANSB, b);
  if (operands.bias != nullptr) {
    set(made.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(made.operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(p.c.dtype));
    set(made.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
    set(made.operation, CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, operands.bias_stride);
  }
  if (p.a.dtype == Dtype::fp8) {
    set(made.operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<std::int8_t>(fast_accumulation));
    set(made.operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, operands.a_scale);
    set(made.operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, operands.b_scale);
  }
  set_layout(made.a, p.a);
  set_layout(made.b, p.b);
  set_layout(made.c, p.c);
  return made;
}

cublasStatus_t Matmul::launch(Prepared& prepared, const cublasLtMatmulAlgo_t& algorithm, bool accumulate,
                              const Operands& operands, void* to, const LaunchContext& context) {
  const float beta = accumulate ? 1 : 0;
  return cublasLtMatmul(handle_, &prepared.operation, &operands.scale, operands.a, &prepared.a, operands.b, &prepared.b,
                        &beta, operands.c, &prepared.c, to, &prepared.c, &algorithm, context.workspace,
                        context.workspace_bytes, context.stream);
}

void Matmul::choose(const Key& key, const BlasProduct& p, bool accumulate, const Operands& operands,
                    const LaunchContext& context, Prepared& prepared) {
  Shared& all = shared();
  const std::lock_guard lock(all.mutex);  // ranks that time at once would disturb each other
  const auto known = all.chosen.find(key);
  if (known != all.chosen.end() && (known->second.timed || !context.may_wait)) {
    prepared.choice = known->second;
    return;
  }

  cublasLtMatmulPreferenceOpaque_t preference{};
  check(cublasLtMatmulPreferenceInit(&preference), "describing the memory of a matrix product");
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(context.workspace_bytes));
  const auto aligned = [&](cublasLtMatmulPreferenceAttributes_t attribute, const void* pointer) {
    set(preference, attribute, static_cast<std::uint32_t>(alignment_of(pointer)));
  };
  aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, operands.a);
  aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, operands.b);
  aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, operands.c);
  aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, operands.c);
  std::array<cublasLtMatmulHeuristicResult_t, kCandidates> candidates{};
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, &prepared.operation, &prepared.a, &prepared.b, &prepared.c, &prepared.c,
                                     &preference, kCandidates, candidates.data(), &found);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) check(status, "choosing a kernel for a matrix product");
  const auto usable = std::remove_if(candidates.begin(), candidates.begin() + found,
                                     [](const auto& c) { return c.state != CUBLAS_STATUS_SUCCESS; });
  found = static_cast<int>(usable - candidates.begin());

  prepared.choice = {.exists = found > 0, .timed = context.may_wait};
  std::size_t best = 0;
  if (found > 1 && context.may_wait) {
    // A product that adds is timed on separate memory; any other on its result, which it overwrites next anyway.
    std::optional<Temporary> scratch;
    void* to = operands.c;
    if (accumulate) {
      const std::int64_t last = p.c.batch_stride * (p.c.batch - 1) + p.c.leading * p.c.columns;
      scratch.emplace(last * bytes_of(p.c.dtype, 1), context.stream, true);
      to = scratch->data();
    }
    std::array<float, kCandidates> milliseconds{};
    milliseconds.fill(std::numeric_limits<float>::infinity());
    for (std::size_t i = 0; to != nullptr && i < static_cast<std::size_t>(found); ++i) {
      const cublasLtMatmulAlgo_t& algorithm = candidates[i].algo;
      if (launch(prepared, algorithm, accumulate, operands, to, context) != CUBLAS_STATUS_SUCCESS) continue;
      for (int run = 0; run < kTimedRuns; ++run) {
        cuda::check(cudaEventRecord(begin_, context.stream), "timing a matrix product");
        check(launch(prepared, algorithm, accumulate, operands, to, context), "timing a matrix product");
        cuda::check(cudaEventRecord(end_, context.stream), "timing a matrix product");
        cuda::check(cudaEventSynchronize(end_), "timing a matrix product");
        float took = 0;
        cuda::check(cudaEventElapsedTime(&took, begin_, end_), "timing a matrix product");
        milliseconds[i] = std::min(milliseconds[i], took);
      }
    }
    for (std::size_t i = 1; i < static_cast<std::size_t>(found); ++i)
      if (milliseconds[i] < milliseconds[best] * (best == 0 ? kClearlyFaster : 1.0f)) best = i;
  }
  if (found > 0) prepared.choice.algorithm = candidates[best].algo;
  all.chosen[key] = prepared.choice;
}

bool Matmul::run(const BlasProduct& product, bool accumulate, bool fast_accumulation, const Operands& operands,
                 const LaunchContext& context) {
  if (operands.bias != nullptr && alignment_of(operands.bias) < kBiasAlignment) return false;
  const Key key = key_of(product, accumulate, fast_accumulation, operands);
  const auto [found, is_new] = prepared_.try_emplace(key);
  Prepared& prepared = found->second;
  if (is_new) {
    prepared = describe(product, fast_accumulation, operands);
  } else {
    if (operands.bias != nullptr) set(prepared.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
    if (product.a.dtype == Dtype::fp8) {
      set(prepared.operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, operands.a_scale);
      set(prepared.operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, operands.b_scale);
    }
  }
  if (is_new || (!prepared.choice.timed && context.may_wait))
    choose(key, product, accumulate, operands, context, prepared);
  if (!prepared.choice.exists) return false;
  const cublasStatus_t status = launch(prepared, prepared.choice.algorithm, accumulate, operands, operands.c, context);
  if (status != CUBLAS_STATUS_SUCCESS) check(status, ("multiplying " + text_of(product, accumulate)).c_str());
  return true;
}

}  // namespace orrery::cuda
