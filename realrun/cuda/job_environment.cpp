#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "realrun/cuda/nccl_communicator.h"
#include "sim/base/error.h"
#include "sim/base/words.h"

namespace orrery {
namespace {

struct Names {
  const char *rank, *ranks, *local_rank;
};
// Open MPI, MPICH and its derivatives, Slurm, torchrun.
constexpr std::array kNames{Names{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
                            Names{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"}, Names{"RANK", "WORLD_SIZE", "LOCAL_RANK"},
                            Names{"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"}};

std::optional<std::size_t> number(const char* name) {
  const char* const text = std::getenv(name);
  if (text == nullptr) return std::nullopt;
  const std::optional<std::int64_t> value = number_of(text);
  if (!value || *value < 0)
    throw InputError({std::string("the environment's ") + name, ""}, "\"" + std::string(text) + "\"", "a whole number");
  return static_cast<std::size_t>(*value);
}

// What NCCL also takes as the identity of a host.
std::string host() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  return name.data() + (" " + boot);
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

bool ranks_share_a_device(const NcclOptions& options, const std::string& device) {
  if (options.ranks == 1) return false;
  namespace fs = std::filesystem;
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kPollPeriod{5};
  const auto file_of = [&](std::size_t rank) {
    return fs::path(options.id_directory) / fmt::format("device_of_rank_{}", rank);
  };
  const fs::path unfinished = file_of(options.rank).string() + ".unfinished";
  {
    std::ofstream file(unfinished);
    file << host() << ' ' << device << '\n';
    file.close();
    if (!file)
      throw ExecutionError(fmt::format("the ranks meet in the folder \"{}\", where rank {} cannot write",
                                       options.id_directory, options.rank));
  }
  fs::rename(unfinished, file_of(options.rank));  // the file appears at once, complete
  const auto begun = Clock::now();
  std::vector<std::string> devices;
  for (std::size_t rank = 0; rank < options.ranks; ++rank) {
    std::string line;
    while (!std::getline(std::ifstream(file_of(rank)), line)) {
      const std::chrono::duration<double> waited = Clock::now() - begun;
      if (waited.count() > options.watchdog_seconds)
        throw ExecutionError(fmt::format("rank {} has waited {:.0f} s for rank {} to come to the folder \"{}\"",
                                         options.rank, waited.count(), rank, options.id_directory));
      std::this_thread::sleep_for(kPollPeriod);
    }
    devices.push_back(line);
  }
  std::ranges::sort(devices);
  return std::ranges::adjacent_find(devices) != devices.end();
}

}  // namespace orrery
