// Matrix products by cuBLASLt. For every new product the first candidates of its heuristic are timed on the device. All
// ranks of the process use the fastest one: the same product gives the same bits on every rank. Internal to
// realrun/cuda.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <map>

#include "realrun/cuda/matmul_plan.h"

namespace orrery::cuda {

class Matmul {
 public:
  // tf32: fp32 products run on the matrix units, with ten bits of mantissa.
  explicit Matmul(bool tf32);
  ~Matmul();
  Matmul(const Matmul&) = delete;

  struct Operands {
    const void *a = nullptr, *b = nullptr;
    void* c = nullptr;
    const void* bias = nullptr;                          // in c's dtype
    std::int64_t bias_stride = 0;                        // MatmulPlan::bias_stride
    float scale = 1;                                     // of the product, before c is added
    const float *a_scale = nullptr, *b_scale = nullptr;  // fp8: device memory; nullptr: 1
  };
  struct LaunchContext {
    cudaStream_t stream = nullptr;
    void* workspace = nullptr;
    std::size_t workspace_bytes = 0;
    bool may_wait = true;  // for timing
  };
  // Returns false if cuBLASLt has no kernel for it. fast_accumulation: fp8 as in a forward (fewer bits in long sums).
  bool run(const BlasProduct& product, bool accumulate, bool fast_accumulation, const Operands& operands,
           const LaunchContext& context);

  // The workspace recommended for Hopper (cuBLAS manual, cublasSetWorkspace: 32 MiB).
  static constexpr std::size_t kWorkspaceBytes = 32 << 20;

 private:
  static constexpr std::size_t kKeyLength = 32;
  using Key = std::array<std::int64_t, kKeyLength>;
  struct Choice {
    cublasLtMatmulAlgo_t algorithm{};
    bool exists = false, timed = false;
  };
  struct Prepared {
    cublasLtMatmulDescOpaque_t operation{};
    cublasLtMatrixLayoutOpaque_t a{}, b{}, c{};
    Choice choice;
  };
  struct Shared;  // per process: the choices
  static Shared& shared();

  Key key_of(const BlasProduct& product, bool accumulate, bool fast_accumulation, const Operands& operands) const;
  Prepared describe(const BlasProduct& product, bool fast_accumulation, const Operands& operands) const;
  void choose(const Key& key, const BlasProduct& product, bool accumulate, const Operands& operands,
              const LaunchContext& context, Prepared& prepared);
  cublasStatus_t launch(Prepared& prepared, const cublasLtMatmulAlgo_t& algorithm, bool accumulate,
                        const Operands& operands, void* to, const LaunchContext& context);

  bool tf32_;
  int device_ = 0;
  cublasLtHandle_t handle_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  std::map<Key, Prepared> prepared_;
};

}  // namespace orrery::cuda
