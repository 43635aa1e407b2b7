// Ranks as processes, one a GPU, over NCCL. (Ranks as threads of one process, also on one GPU: realrun/in_process.h.)
//
// A communicator of NCCL is made when a group first meets, by its members alone: the first member writes NCCL's id into
// a file of `id_directory`, the others wait for it. (ncclCommSplit would need all ranks of the world at that moment.)
// Each stream of a group has one of its own, so only operations of one stream must come in the same order everywhere.
//
// Messages between stages have a communicator for each boundary and direction. send() copies `data` and returns to the
// stream at once, but for the first over a boundary, which meets its receiver; a receiver takes the messages of one
// boundary and direction in the order in which they were sent.
//
// A thread watches: an operation that has begun and does not end within the watchdog's time, or an error that NCCL
// reports, aborts all communicators of the rank, so that kernels waiting on the GPU end; the next call throws the
// ExecutionError. Results that were under way are then undefined.
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
  // Compares the names of every operation before it is issued: slow, and finds ranks that have diverged.
  bool check_names = false;
  // Several ranks have the same GPU: NCCL refuses that on one host, so each rank calls itself another one
  // (NCCL_HOSTID). Messages then go over sockets.
  bool one_device = false;
};

struct RankOfJob {
  std::size_t rank = 0, ranks = 1, local_rank = 0;
};
// What mpirun (Open MPI, MPICH), srun or torchrun say in the environment; nothing where none does.
std::optional<RankOfJob> rank_of_environment();

// NcclOptions::one_device of a job in which this rank uses the GPU of this address (cuda_devices()): ranks tell each
// other theirs through `options`' directory, so all must call it, before NCCL's first call. Needs no NCCL. Throws
// ExecutionError where a rank does not come within the watchdog's time.
bool ranks_share_a_device(const NcclOptions& options, const std::string& device);

bool built_with_nccl();
// `backend` is a CudaBackend that outlives the communicator. Throws DeviceError and ExecutionError.
std::unique_ptr<Communicator> make_nccl_communicator(Backend& backend, const NcclOptions& options);

}  // namespace orrery
