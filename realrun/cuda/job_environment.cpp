#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "realrun/cuda/nccl_communicator.h"
#include "sim/base/error.h"

namespace orrery {
namespace {

struct Names {
  const char *rank, *ranks, *local_rank;
};
// Open MPI, MPICH and its like, Slurm, torchrun.
constexpr std::array kNames{Names{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
                            Names{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"}, Names{"RANK", "WORLD_SIZE", "LOCAL_RANK"},
                            Names{"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"}};

std::optional<std::size_t> number(const char* name) {
  const char* const text = std::getenv(name);
  if (text == nullptr) return std::nullopt;
  std::size_t value = 0;
  const char* const end = text + std::strlen(text);
  const auto [stopped, error] = std::from_chars(text, end, value);
  if (error != std::errc{} || stopped != end)
    throw InputError({std::string("the environment's ") + name, ""}, "\"" + std::string(text) + "\"", "a whole number");
  return value;
}

}  // namespace

std::optional<RankOfJob> rank_of_environment() {
  for (const Names& names : kNames) {
    const auto rank = number(names.rank), ranks = number(names.ranks);
    if (!rank || !ranks) continue;
    if (*rank >= *ranks)
      throw InputError({std::string("the environment's ") + names.rank, ""}, std::to_string(*rank),
                       "less than the " + std::to_string(*ranks) + " of " + names.ranks);
    return RankOfJob{*rank, *ranks, number(names.local_rank).value_or(*rank)};
  }
  return std::nullopt;
}

}  // namespace orrery
