// Linked in place of the CUDA backend by programs that are built without it.
#include "realrun/backend.h"

namespace orrery {

namespace {
[[noreturn]] void refuse() {
  throw DeviceError(
      "this program is built without CUDA: build where nvcc is (cmake -DORRERY_CUDA=ON) and use orrery-gpu, or use "
      "--device cpu");
}
}  // namespace

std::unique_ptr<Backend> make_cuda_backend(int, bool) { refuse(); }

std::vector<std::string> cuda_devices() { refuse(); }

bool built_with_cuda() { return false; }

}  // namespace orrery
