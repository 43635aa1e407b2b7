// Ranks as processes, one per GPU, over NCCL. (Ranks as threads of one process, also on one GPU: realrun/in_process.h.)
//
// An NCCL communicator is made when a group first meets, by its members only: the first member writes NCCL's id into a
// file of `id_directory`, and the others wait for it. (ncclCommSplit would need all ranks of the world at that moment.)
// Each stream of a group has its own communicator, so only the operations of one stream must come in the same order on
// all ranks.
//
// Messages between stages have a communicator for each boundary and direction. send() copies `data` and returns to the
// stream at once, except for the first message over a boundary, which waits for its receiver. A receiver takes the
// messages of one boundary and direction in the order in which they were sent.
//
// A watchdog thread aborts all communicators of the rank if an operation has begun and does not end within the
// watchdog's time, or if NCCL reports an error. Kernels that wait on the GPU then end, and the next call throws the
// ExecutionError. Results of unfinished operations are undefined.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "realrun/communicator.h"

namespace orrery {

class Backend;

struct NcclOptions {
  std::size_t rank = 0, ranks = 1;
  // A directory that all ranks see, new for every run.
  std::string id_directory;
  double watchdog_seconds = 60;
  // Compares the names of every operation before it is issued: slow, but finds ranks that have diverged.
  bool check_names = false;
  // Several ranks use the same GPU. NCCL refuses this on one host, so each rank claims another host id (NCCL_HOSTID);
  // messages then go over sockets.
  bool one_device = false;
};

struct RankOfJob {
  std::size_t rank = 0, ranks = 1, local_rank = 0;
};
// Returns what mpirun (Open MPI, MPICH), srun or torchrun say in the environment; nothing if none of them does.
std::optional<RankOfJob> rank_of_environment();

// Returns NcclOptions::one_device for a job in which this rank uses the GPU with this address (cuda_devices()). Ranks
// exchange addresses through the directory in `options`, so all must call it, before NCCL's first call. Needs no NCCL.
// Throws ExecutionError if a rank does not answer within the watchdog's time.
bool ranks_share_a_device(const NcclOptions& options, const std::string& device);

bool built_with_nccl();
// `backend` is a CudaBackend that outlives the communicator. Throws DeviceError and ExecutionError.
std::unique_ptr<Communicator> make_nccl_communicator(Backend& backend, const NcclOptions& options);

}  // namespace orrery
