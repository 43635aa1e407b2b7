// The backend on an NVIDIA GPU. This header includes no CUDA headers: callers are compiled without them.
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

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "realrun/backend.h"

struct CUstream_st;  // *: cudaStream_t

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
  int device() const;
  CUstream_st* stream(Stream stream);

  // Bytes allocated by this rank; peaks since the last reset.
  struct MemoryUse {
    std::int64_t device = 0, device_peak = 0, host = 0, host_peak = 0;
  };
  MemoryUse memory_use() const;
  void reset_peaks();

  // CUDA graphs, for blocks whose kernels are shorter than their launches. Between begin_capture and end_capture, work
  // issued to `stream`, and to streams that wait for it, is recorded instead of run. Before the end `stream` must wait
  // for all of them. A graph also records addresses and every value of KernelContext (step, learning rate, dropout
  // stream): a replay repeats them. Run the captured work once before the capture: this places index lists, positions
  // and scratch memory and times the products, which is impossible inside (DeviceError). allocate(), release() and
  // everything that returns a value must wait until after the capture.
  using Graph = std::uint64_t;
  void begin_capture(Stream stream);
  Graph end_capture();
  void replay(Stream stream, Graph graph);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace orrery
