// Where the tensors of one rank live and its kernels run: a CPU, or a GPU. The executor, the calibration and the
// benchmarks speak to this interface alone.
//
// Work is issued to streams (sim/program/op.h) and runs in their order; between streams only events order. A CPU does
// everything at once, in the caller's thread, so its events are past when they are recorded. One backend a rank, used
// by one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "realrun/kernel.h"
#include "sim/program/op.h"
#include "sim/program/tensor.h"

namespace orrery {

// The device failed, or has too little memory: one sentence with what to do.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct BackendFacts {
  std::string kind;             // "cpu", "cuda"
  std::string device;           // "NVIDIA H200", "Intel(R) Xeon(R) Platinum 8259CL CPU @ 2.50GHz"
  std::string software;         // versions of what its kernels are made of: "CUDA 13.0, driver 580.65, cuBLAS 13.0.2"
  std::int64_t processors = 0;  // multiprocessors, or hardware threads
  double memory_bytes = 0;      // in all
  // Streams run beside each other and the caller; false: at once and one after another, in the caller's thread.
  bool asynchronous_streams = false;
};

// Part of an allocation: elements [offset, offset + elements) of it; or, with `index`, elements index[0], index[1], ...
// (`index` must stay where it is for as long as the backend lives: backends keep copies by its address).
struct Slice {
  void* base = nullptr;
  Dtype dtype = Dtype::fp32;
  std::int64_t offset = 0, elements = 0;
  const std::vector<std::int64_t>* index = nullptr;
};

class Backend {
 public:
  using Event = std::uint64_t;  // all work issued to a stream so far
  using Mark = std::uint64_t;   // a point in time on a stream

  virtual ~Backend() = default;
  virtual BackendFacts facts() const = 0;
  // As this backend stores an element: a GPU in bytes_of(dtype, 1), a CPU as fp32, whatever the dtype.
  virtual std::int64_t stored_bytes(Dtype dtype) const = 0;

  // Uninitialised, aligned to 256 bytes; to be used by `stream` first. On the device, or on the host (pinned where that
  // matters). Throws DeviceError when memory is short.
  virtual void* allocate(std::int64_t elements, Dtype dtype, Place place, Stream stream) = 0;
  // Ordered behind the work issued to the compute stream so far; other streams must be done() with it.
  virtual void release(void* memory) noexcept = 0;

  virtual void fill(Stream stream, const Slice& to, float value) = 0;  // integers: NaN becomes the largest value
  virtual void copy(Stream stream, void* to, const void* from, std::int64_t bytes) = 0;  // between any two places
  virtual void gather(Stream stream, const Slice& from, void* to) = 0;                   // `to` is dense
  virtual void scatter(Stream stream, const void* from, const Slice& to, bool add) = 0;  // `from` is dense
  // to[i] = the sum of parts[..][i] in fp32, in the order of the parts. `to` may be one of them.
  virtual void sum(Stream stream, std::span<const void* const> parts, void* to, std::int64_t elements, Dtype dtype) = 0;
  // Cross-entropy statistics of a divided vocabulary (maximum, sum of exponentials relative to it, target's logit:
  // [3, tokens] each, fp32) into those of the whole.
  virtual void merge_statistics(Stream stream, std::span<const void* const> parts, void* to, std::int64_t tokens) = 0;

  // From and to the caller's memory, converting; returns when done.
  virtual void write(const Slice& to, std::span<const float> values) = 0;
  virtual void read(const Slice& from, std::span<float> values) = 0;
  // Whether any element is NaN; returns when known.
  virtual bool has_nan(const Slice& slice) = 0;

  // One op, any but communication and copies, on op.stream (Stream::host: on the CPU, operands in host memory).
  // Contract of operands and context: run_kernel (realrun/cpu/kernels.h). op.accumulate adds to the writes
  // that OpTraits::accumulates names; an error for kinds that have none.
  virtual void run(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes,
                   const KernelContext& context) = 0;

  virtual Event record(Stream stream) = 0;
  virtual void wait(Stream stream, Event event) = 0;
  virtual bool done(Event event) = 0;
  virtual void synchronize(Stream stream) = 0;
  virtual void synchronize() = 0;  // all streams; throws DeviceError for what failed since

  // Time on a stream; with asynchronous streams also between two of them, negative where `to` was first. Seconds only
  // after synchronize(); forget_marks() makes all marks so far invalid.
  virtual Mark mark(Stream stream) = 0;
  virtual double seconds(Mark from, Mark to) = 0;
  virtual void forget_marks() = 0;
};

std::unique_ptr<Backend> make_cpu_backend();
// Throws DeviceError: built without CUDA, no such GPU, a driver older than the build. tf32: fp32 products on the matrix
// units with ten bits of mantissa, as device presets with "tf32" time them; off to compare numbers.
std::unique_ptr<Backend> make_cuda_backend(int device = 0, bool tf32 = true);
bool built_with_cuda();
// The GPUs that this process sees, by an address that is theirs in every process of the machine. Throws DeviceError
// where make_cuda_backend() does for the first. Leaves them untouched: a GPU that one process may have alone stays
// free.
std::vector<std::string> cuda_devices();

}  // namespace orrery
