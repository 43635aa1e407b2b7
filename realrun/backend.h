// A backend owns the memory of one rank's tensors and runs its kernels: on a CPU or on a GPU. The executor, the
// calibration and the benchmarks use only this interface.
//
// Work is issued to streams (sim/program/op.h), and each stream runs it in order. Only events order work between
// streams. A CPU does everything immediately in the caller's thread, so its events have passed when they are recorded.
// There is one backend per rank, used by one thread at a time.
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

// The device failed, or has too little memory. The message is one sentence that says what to do.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct BackendFacts {
  std::string kind;             // "cpu", "cuda"
  std::string device;           // "NVIDIA H200", "Intel(R) Xeon(R) Platinum 8259CL CPU @ 2.50GHz"
  std::string software;         // versions of its libraries: "CUDA 13.0, driver 580.65, cuBLAS 13.0.2"
  std::int64_t processors = 0;  // multiprocessors, or hardware threads
  double memory_bytes = 0;      // in total
  // true: streams run concurrently with each other and the caller; false: work runs at once, in the caller's thread.
  bool asynchronous_streams = false;
};

// Part of an allocation: elements [offset, offset + elements), or, with `index`, elements index[0], index[1], ...
// `index` must keep its address as long as the backend lives: backends keep copies by address.
struct Slice {
  void* base = nullptr;
  Dtype dtype = Dtype::fp32;
  std::int64_t offset = 0, elements = 0;
  const std::vector<std::int64_t>* index = nullptr;
};

class Backend {
 public:
  using Event = std::uint64_t;  // marks all work issued to a stream so far
  using Mark = std::uint64_t;   // a point in time on a stream

  virtual ~Backend() = default;
  virtual BackendFacts facts() const = 0;
  // Bytes per stored element: a GPU stores bytes_of(dtype, 1), a CPU stores every dtype as fp32.
  virtual std::int64_t stored_bytes(Dtype dtype) const = 0;

  // Returns uninitialised memory, aligned to 256 bytes, on the device or on the host (pinned if that matters). `stream`
  // must be the first to use it. Throws DeviceError if memory is short.
  virtual void* allocate(std::int64_t elements, Dtype dtype, Place place, Stream stream) = 0;
  // Frees memory after the work issued to the compute stream so far. Work of other streams must be done().
  virtual void release(void* memory) noexcept = 0;

  virtual void fill(Stream stream, const Slice& to, float value) = 0;  // integers: NaN becomes the largest value
  virtual void copy(Stream stream, void* to, const void* from, std::int64_t bytes) = 0;  // between any two places
  virtual void gather(Stream stream, const Slice& from, void* to) = 0;                   // `to` is dense
  virtual void scatter(Stream stream, const void* from, const Slice& to, bool add) = 0;  // `from` is dense
  // to[i] = the sum of parts[..][i] in fp32, in the order of the parts. `to` may be one of them.
  virtual void sum(Stream stream, std::span<const void* const> parts, void* to, std::int64_t elements, Dtype dtype) = 0;
  // Merges cross-entropy statistics of the parts of a divided vocabulary into those of the whole. Statistics are [3,
  // tokens] in fp32: maximum, sum of exponentials relative to it, target's logit.
  virtual void merge_statistics(Stream stream, std::span<const void* const> parts, void* to, std::int64_t tokens) = 0;

  // Copies from and to the caller's memory, converting to the dtype; returns when done.
  virtual void write(const Slice& to, std::span<const float> values) = 0;
  virtual void read(const Slice& from, std::span<float> values) = 0;
  // Whether any element is NaN; returns when the answer is known.
  virtual bool has_nan(const Slice& slice) = 0;

  // Runs one op on op.stream (Stream::host: on the CPU, with operands in host memory): any op but communication and
  // copies. Operands and context are as run_kernel defines them (realrun/cpu/kernels.h). With op.accumulate, adds to
  // the writes that OpTraits::accumulates names, and fails for kinds that have none.
  virtual void run(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes,
                   const KernelContext& context) = 0;

  virtual Event record(Stream stream) = 0;
  virtual void wait(Stream stream, Event event) = 0;
  virtual bool done(Event event) = 0;
  virtual void synchronize(Stream stream) = 0;
  virtual void synchronize() = 0;  // all streams; throws DeviceError for failures since the last call

  // Time between two marks on a stream; with asynchronous streams also on two streams, negative if `to` came first.
  // Call seconds() only after synchronize(). forget_marks() invalidates all marks.
  virtual Mark mark(Stream stream) = 0;
  virtual double seconds(Mark from, Mark to) = 0;
  virtual void forget_marks() = 0;
};

std::unique_ptr<Backend> make_cpu_backend();
// Throws DeviceError if built without CUDA, if there is no such GPU, or if the driver is older than the build. tf32:
// fp32 products use matrix units with ten bits of mantissa, as device presets with "tf32" assume; off to compare
// numbers.
std::unique_ptr<Backend> make_cuda_backend(int device = 0, bool tf32 = true);
bool built_with_cuda();
// Returns the GPUs that this process sees, each by an address that is the same in every process of the machine. Throws
// DeviceError if make_cuda_backend() would for the first GPU. Leaves GPUs in exclusive-process mode free.
std::vector<std::string> cuda_devices();

}  // namespace orrery
