// The backend on an NVIDIA GPU.
//
// Each orrery::Stream has a CUDA stream, made when it is first used. Streams for communication and copies have priority
// over compute, whose kernels fill the remaining multiprocessors. Stream::host is a CUDA stream too: its ops are
// functions that CUDA calls on the host in their turn, so that events order them like any other op.
//
// Host memory is pinned and in the GPU's address space: fill, gather, scatter and sum reach it over PCIe.
//
// An fp8 tensor has a scale, which the cast that writes it measures. The scale is kept by the tensor's address and is
// copied with a copy of the whole tensor. A tensor that no cast of this backend wrote has scale 1.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "realrun/backend.h"
#include "realrun/cuda/fp8.h"
#include "realrun/cuda/kernels.h"
#include "realrun/cuda/matmul.h"
#include "realrun/cuda/memory.h"
#include "realrun/cuda/runtime.h"

namespace orrery {

class CudaBackend : public Backend {
 public:
  // tf32: fp32 products run on the matrix units with ten bits of mantissa, as a device preset with "tf32" assumes.
  explicit CudaBackend(int device = 0, bool tf32 = true);
  ~CudaBackend() override;

  BackendFacts facts() const override;
  std::int64_t stored_bytes(Dtype dtype) const override { return bytes_of(dtype, 1); }
  void* allocate(std::int64_t elements, Dtype dtype, Place place, Stream stream) override;
  void release(void* memory) noexcept override;
  void fill(Stream stream, const Slice& to, float value) override;
  void copy(Stream stream, void* to, const void* from, std::int64_t bytes) override;
  void gather(Stream stream, const Slice& from, void* to) override;
  void scatter(Stream stream, const void* from, const Slice& to, bool add) override;
  void sum(Stream stream, std::span<const void* const> parts, void* to, std::int64_t elements, Dtype dtype) override;
  void merge_statistics(Stream stream, std::span<const void* const> parts, void* to, std::int64_t tokens) override;
  void write(const Slice& to, std::span<const float> values) override;
  void read(const Slice& from, std::span<float> values) override;
  bool has_nan(const Slice& slice) override;
  void run(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes,
           const KernelContext& context) override;
  Event record(Stream stream) override;
  void wait(Stream stream, Event event) override;
  bool done(Event event) override;
  void synchronize(Stream stream) override;
  void synchronize() override;
  Mark mark(Stream stream) override;
  double seconds(Mark from, Mark to) override;
  void forget_marks() override;

  // For communicators.
  int device() const { return device_; }
  cudaStream_t stream(Stream stream);

  std::int64_t bytes_allocated() const { return memory_.device_bytes(); }  // by this rank, on the device

 private:
  using Operands = std::span<const Operand>;
  // Memory for the kernels of a stream; each op may use it in turn.
  struct Scratch {
    void* data = nullptr;
    std::int64_t bytes = 0;
  };
  struct Scaled {
    cuda::Fp8Scale* scale = nullptr;
    std::int64_t bytes = 0;
  };

  void use() const;  // selects the GPU in this thread
  void synchronize_streams();
  void throw_host_failure();
  void* room(std::array<Scratch, kStreams>& of, Stream s, std::int64_t bytes);  // at least so many
  // Puts constants into device memory, once.
  const std::int64_t* place(std::span<const std::int64_t> values);
  const std::int64_t* positions(std::span<const std::int64_t> values);
  cuda::DeviceSlice slice(const Slice& from);
  // Copies a slice chunk by chunk through pinned memory: `convert(chunk's first element, elements, staging)` fills what
  // is copied to the device, or takes what has come.
  template <class Convert>
  void transfer(const cuda::DeviceSlice& slice, std::size_t values, bool to_device, Convert convert);

  void run_matmul(const Op& op, Operands reads, Operands writes, Stream s);
  bool run_product(const cuda::BlasProduct& product, std::span<const cuda::BlasLaunch> launches, bool fast_accumulation,
                   const cuda::Matmul::Operands& operands, Stream s);
  bool run_fp8(const Op& op, const cuda::MatmulPlan& plan, Operands reads, const cuda::Matmul::Operands& operands,
               Stream s);
  void run_cast(const Op& op, Operands reads, Operands writes, const KernelContext& context, Stream s);
  void run_kernel(const Op& op, Operands reads, Operands writes, const KernelContext& context, Stream s);
  void run_host(const Op& op, Operands reads, Operands writes, const KernelContext& context);

  cuda::Fp8Scale* scale_of(const void* tensor) const;
  cuda::Fp8Scale* make_scale(const void* tensor, std::int64_t bytes);
  void copy_scale(const void* from, const void* to, std::int64_t bytes, Stream s);
  void forget_scales(const void* begin, std::int64_t bytes);

  int device_;  // first: nothing uses a GPU that is not usable
  std::int64_t processors_ = 1;
  cuda::Memory memory_;
  cuda::Matmul matmul_;
  std::array<cudaStream_t, kStreams> streams_{};
  cuda::Events events_;
  cuda::Marks marks_;
  std::array<Scratch, kStreams> scratches_, workspaces_;
  std::unordered_map<const std::vector<std::int64_t>*, cuda::DeviceSlice> indices_;  // without an allocation
  // Lists and their copies on the device; few: those of the ranks' parts of a sequence.
  std::vector<std::pair<std::vector<std::int64_t>, const std::int64_t*>> known_positions_;
  std::map<const void*, Scaled> scales_;  // by the first address of the tensor that has the scale
  std::vector<cuda::Fp8Scale*> free_scales_;
  // The product's sizes depend on the data. They differ each time, so timing candidates does not pay.
  bool sizes_follow_data_ = false;

  std::mutex host_mutex_;
  std::exception_ptr host_failure_;
};

}  // namespace orrery
