// Runs kept over time, in an SQLite file.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "realrun/bench/run_file.h"

namespace orrery {
class Database;
}

namespace orrery::bench {

// What a run says of its machine: kMachineFacts (run_file.h) in their order, empty where it says nothing.
using MachineFacts = std::array<std::string, kMachineFacts.size()>;

// What one run says of one benchmark.
struct HistoryPoint {
  std::string date, commit, version, device;  // empty: the run does not say; "..., cold caches": a device of its own
  std::size_t repetitions = 0;
  double median_seconds = 0, low_seconds = 0, high_seconds = 0;  // quartiles
  double fastest_seconds = 0;
  double ratio = 0;  // of the median to that of the run before on the same device; 0: there is none
  MachineFacts machine;
};

// A benchmark on a device over runs, by date.
struct HistorySeries {
  std::string name, device;
  std::vector<HistoryPoint> points;
};

// A file of runs. A run is added in one transaction: after a crash or a kill it is there whole or not at all. Several
// processes may use one file.
class History {
 public:
  enum class Mode { read, write };  // write: creates the file if it is not there
  // Throws InputError for what is not a history, and where it cannot be opened (or written, for Mode::write).
  History(const std::string& path, Mode mode);
  ~History();
  History(const History&) = delete;
  History& operator=(const History&) = delete;

  // False: the run (BenchmarkRun::digest) is there already; nothing changes.
  bool add(const BenchmarkRun& run);

  std::int64_t runs() const;
  std::vector<std::string> benchmarks() const;  // by name
  // By date. Throws InputError, with the nearest name, for a benchmark that no run has. `name` may leave out the suffix
  // /real_time or /manual_time.
  std::vector<HistoryPoint> points(const std::string& name) const;
  // All benchmarks over the last so many runs of each device, by device and name. ratio is not set.
  std::vector<HistorySeries> last_runs(std::size_t runs) const;

 private:
  std::unique_ptr<Database> database_;
};

// The forms of a history.
std::string history_text(const std::string& benchmark, const std::vector<HistoryPoint>& points);
std::string history_csv(const std::string& benchmark, const std::vector<HistoryPoint>& points);
std::string history_json(const std::string& benchmark, const std::vector<HistoryPoint>& points);
// Medians over runs with their quartiles, a line a device. A standalone document.
std::string history_svg(const std::string& benchmark, const std::vector<HistoryPoint>& points);

}  // namespace orrery::bench
