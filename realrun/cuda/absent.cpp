// Linked in place of the CUDA backend by programs that are built without it.
#include "realrun/backend.h"

namespace orrery {

std::unique_ptr<Backend> make_cuda_backend(int, bool) {
  throw DeviceError(
      "this program is built without CUDA: build where nvcc is (cmake -DORRERY_CUDA=ON) and use orrery-gpu, or use "
      "--device cpu");
}

bool built_with_cuda() { return false; }

}  // namespace orrery
