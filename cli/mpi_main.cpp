// orrery-mpi: one rank of an MPI job that runs `orrery sweep --mpi`. Rank 0 is the command, with orrery's exit codes;
// the other ranks help it and print nothing.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <optional>

#include "cli/commands.h"
#include "realrun/cuda/nccl_communicator.h"
#include "sim/base/error.h"
#include "study/answers/inputs.h"
#include "study/sweep/mpi/ranks.h"

namespace orrery {
namespace {

constexpr const char* kExamples = R"(Examples:
  mpirun -n 4 orrery sweep sweep.json --db results.db --mpi

Exit codes: those of orrery sweep.)";

// If srun or mpirun belongs to another MPI, each rank is alone in its job.
void require_ranks(const SweepRanks& ranks) {
  const std::optional<RankOfJob> place = rank_of_environment();
  if (!place || ranks.ranks() > 1 || place->ranks == 1) return;
  if (place->rank > 0) throw Exit{0};
  throw InputError({"--mpi", ""}, fmt::format("{} ranks that do not know each other", place->ranks),
                   "mpirun of the MPI that orrery was built with, or srun --mpi=pmix");
}

int run(int argc, char** argv) {
  SweepRanks ranks(&argc, &argv);
  if (ranks.rank() > 0) {
    try {
      ranks.help(version_and_commit());
    } catch (const std::exception& error) {
      fmt::print(stderr, "orrery-mpi: rank {}: {}\n", ranks.rank(), error.what());
      ranks.abort(1);
    }
    return 0;
  }
  const int code = run_command_line("orrery", [&] {
    require_ranks(ranks);
    const CommandLine line("Sweeps by the ranks of an MPI job", kExamples, "orrery-mpi " ORRERY_VERSION);
    add_sweep(line.command(), &ranks);
    line.parse(argc, argv);
  });
  if (ranks.at_work()) ranks.abort(code);
  return code;
}

}  // namespace
}  // namespace orrery

int main(int argc, char** argv) {
  return orrery::run_command_line("orrery", [&] {
    if (const int code = orrery::run(argc, argv); code != 0) throw orrery::Exit{code};
  });
}
