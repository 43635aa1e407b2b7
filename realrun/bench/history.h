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

// A run's facts about its machine: kMachineFacts (run_file.h) in their order; empty: unknown.
using MachineFacts = std::array<std::string, kMachineFacts.size()>;

// One benchmark in one run.
struct HistoryPoint {
  // Empty: unknown. A device with ", cold caches" is a separate device.
  std::string date, commit, version, device;
  std::size_t repetitions = 0;
  double median_seconds = 0, low_seconds = 0, high_seconds = 0;  // quartiles
  double fastest_seconds = 0;
  // Median over that of the previous run on the same device; 0: there is none.
  double ratio = 0;
  MachineFacts machine;
};

// A benchmark's runs on one device, by date.
struct HistorySeries {
  std::string name, device;
  std::vector<HistoryPoint> points;
};

// A file of runs. A run is added in one transaction: after a crash or a kill it is there whole or not at all. Several
// processes may use one file.
class History {
 public:
  enum class Mode { read, write };  // write: creates the file if it is not there
  // Throws InputError if the file is not a history, or cannot be opened (or written, for Mode::write).
  History(const std::string& path, Mode mode);
  ~History();
  History(const History&) = delete;
  History& operator=(const History&) = delete;

  // Returns false if the run (BenchmarkRun::digest) is already there; nothing changes then.
  bool add(const BenchmarkRun& run);

  std::int64_t runs() const;
  std::vector<std::string> benchmarks() const;  // by name
  // Returns points by date. `name` may omit the suffix /real_time or /manual_time. Throws InputError, with the nearest
  // name, for a benchmark that no run has.
  std::vector<HistoryPoint> points(const std::string& name) const;
  // Returns all benchmarks over the last `runs` runs of each device, by device and name. Does not set `ratio`.
  std::vector<HistorySeries> last_runs(std::size_t runs) const;

 private:
  std::unique_ptr<Database> database_;
};

// Output formats of a history.
std::string history_text(const std::string& benchmark, const std::vector<HistoryPoint>& points);
std::string history_csv(const std::string& benchmark, const std::vector<HistoryPoint>& points);
std::string history_json(const std::string& benchmark, const std::vector<HistoryPoint>& points);
// A standalone SVG: medians over runs with their quartiles, one line per device.
std::string history_svg(const std::string& benchmark, const std::vector<HistoryPoint>& points);

}  // namespace orrery::bench
