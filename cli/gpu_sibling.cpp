#include "cli/gpu_sibling.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>

#include "realrun/backend.h"
#include "realrun/sibling.h"

namespace orrery {
namespace {

bool asks_for_cuda(char** argv) {
  for (char** argument = argv; *argument != nullptr; ++argument) {
    const std::string_view text = *argument;
    if (text == "--device=cuda") return true;
    if (text == "--device" && argument[1] != nullptr && std::string_view(argument[1]) == "cuda") return true;
  }
  return false;
}

}  // namespace

std::optional<std::filesystem::path> gpu_sibling() { return sibling_program("orrery-gpu"); }

void become_gpu_sibling(char** argv) {
  if (built_with_cuda() || !asks_for_cuda(argv)) return;
  const auto sibling = gpu_sibling();
  if (!sibling) return;
  execv(sibling->c_str(), argv);
  throw DeviceError("cannot start " + sibling->string() + ": " + std::strerror(errno));
}

}  // namespace orrery
