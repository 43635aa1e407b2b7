// Linked in place of the NCCL communicator by programs that are built without it.
#include "realrun/backend.h"
#include "realrun/cuda/nccl_communicator.h"

namespace orrery {

std::unique_ptr<Communicator> make_nccl_communicator(Backend&, const NcclOptions&) {
  throw DeviceError(
      "this program is built without NCCL: build with CUDA where nccl.h is and use orrery-gpu, or run all ranks in one "
      "process");
}

bool built_with_nccl() { return false; }

}  // namespace orrery
