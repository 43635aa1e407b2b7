// What the stand-in of the CUDA runtime, cuBLASLt and the kernels lets a test see and choose.
//
// The stand-in runs realrun/cuda's host code where there is no GPU. "Device" memory is the host's, filled with NaN when
// it is allocated. A stream is a queue, and nothing in it runs before it must: not until someone synchronises with it,
// waits for an event of it, or asks often enough. So a copy whose source is written again too early, an operand freed
// too early or an order that no event asks for shows as a wrong number. cuBLASLt is emulated from its descriptors
// alone, and refuses what the manual says it refuses; kernels are realrun/cpu's behind the storage of each dtype.
#pragma once

#include <cstdint>
#include <functional>

struct CUstream_st;  // *: cudaStream_t

namespace orrery::cuda_stand_in {

struct Facts {
  std::int64_t tasks = 0;       // that streams have run
  std::int64_t products = 0;    // of them, cublasLtMatmul
  std::int64_t heuristics = 0;  // asked for candidates
  std::int64_t device_bytes = 0, device_peak = 0;
};
Facts facts();

// From now on cudaMallocAsync has so many bytes in all.
void set_memory(std::int64_t bytes);
// The driver's and the devices' numbers, as require_device() asks for them.
void set_driver(int version, int devices);

// A clock for products and copies in place of the machine's: each takes the given time, longer while the other kind
// runs on another stream; all else takes none. Streams begin together after both have run empty; what they wait for is
// not in it.
struct Clock {
  double product_seconds = 0, copy_bytes_per_second = 0;
  double product_slowdown = 0, copy_slowdown = 0;  // shares
  bool take_turns = false;                         // nothing runs beside anything: a stream, then the next
};
void set_clock(const Clock& clock);
void unset_clock();

// Every stream does the next of its tasks.
void go_on();
// Whether all of it is in one allocation that has not been released.
bool is_allocated(const void* memory, std::int64_t bytes);

// --- For a stand-in of NCCL, whose work depends on other processes

// The task is tried whenever the stream could go on, until it says that it is done.
void push(CUstream_st* stream, std::function<bool()> task);
// From now on streams also go on by themselves, slowly: other processes wait for what nobody here has to wait for yet.
void keep_streams_going();

}  // namespace orrery::cuda_stand_in
