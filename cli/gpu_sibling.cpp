#include "cli/gpu_sibling.h"

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

void become_gpu_sibling(char** argv) {
  if (built_with_cuda() || !asks_for_cuda(argv)) return;
  if (const auto sibling = sibling_program("orrery-gpu")) become(*sibling);
}

}  // namespace orrery
