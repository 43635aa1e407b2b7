#include "cli/mpi_sibling.h"

#include <optional>
#include <string_view>

#include "cli/command.h"
#include "realrun/cuda/nccl_communicator.h"
#include "realrun/sibling.h"

namespace orrery {
namespace {

bool asks_for_mpi(char** argv) {
  if (argv[0] == nullptr || argv[1] == nullptr || std::string_view(argv[1]) != "sweep") return false;
  for (char** argument = argv + 2; *argument != nullptr; ++argument)
    if (std::string_view(*argument) == "--mpi") return true;
  return false;
}

}  // namespace

void become_mpi_sibling(char** argv) {
  if (!asks_for_mpi(argv)) return;
  if (const auto sibling = sibling_program("orrery-mpi")) become(*sibling);
  if (const std::optional<RankOfJob> place = rank_of_environment(); place && place->rank > 0) throw Exit{0};
}

}  // namespace orrery
