#include "realrun/mpi/training_command.h"

#include <exception>

#include "realrun/mpi/mpi_communicator.h"

namespace orrery {

void run_training(const RankTraining& run) {
  const PreparedRun prepared = prepare(run);
  MpiOptions options;
  options.watchdog_seconds = run.watchdog_seconds;
  MpiCommunicator communicator(options);
  require_ranks(prepared, communicator.ranks());
  try {
    const std::unique_ptr<Backend> backend = make_cpu_backend();
    const std::vector<RankResult> results = execute_with_peers(prepared, *backend, communicator);
    if (communicator.rank() == 0) report_results(prepared, backend->facts(), results);
  } catch (...) {
    communicator.fail(std::current_exception());
  }
}

}  // namespace orrery
