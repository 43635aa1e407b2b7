// Runs a sweep: of its points those that the file of results lacks.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "sim/cost/user_calibration.h"
#include "study/sweep/document.h"
#include "study/sweep/results.h"
#include "study/sweep/work.h"

namespace orrery {

struct SweepProgress {
  std::int64_t points = 0, computed = 0, known = 0;
  std::int64_t in_file = 0;  // once it is to stop: of the points, whoever has computed them
};

// Other processes that evaluate, too (study/sweep/mpi). They make of `document` what this process makes of it.
struct SweepTask {
  const SweepDocument* document = nullptr;
  std::vector<std::string> calibration_files;
  std::string version, calibrations;  // SweepRunOptions'
  int threads = 0;                    // of each process; 0: its share of its machine's
};
class SweepHelpers {
 public:
  virtual ~SweepHelpers() = default;
  virtual int processes() const = 0;  // beside this one
  // This process's share of its machine's hardware threads.
  virtual int threads_here() const = 0;
  // Before share(). Throws InputError where one of them cannot do the task.
  virtual void prepare(const SweepTask& task) = 0;
  virtual std::int64_t threads() const = 0;  // all of theirs that evaluate
  // Hands out work, which is that of `points` points in all, until all of them are done with it.
  // `here`: threads of this process that evaluate beside them.
  virtual void share(SweepWork& work, std::int64_t points, int here) = 0;
  // Ends them and this process, whatever they do.
  [[noreturn]] virtual void abort(int code) = 0;
};

struct SweepRunOptions {
  int threads = 1;                     // that evaluate; 0 where there are helpers
  std::int64_t shard = 0, shards = 1;  // of each `shards` points in a row the one at this place
  std::string version;                 // of the program
  std::string calibrations;            // what points were calibrated by
  UserCalibration user{};
  SweepHelpers* helpers = nullptr;
  std::function<bool()> stop{};  // asked a few times a second, as progress() is called; then points under way are ended
  std::function<void(const SweepProgress&)> progress{};
  // Where points under way may be given up: called when stop() has been true for so long, and does not return. The
  // argument: what is in the file.
  std::function<void(const SweepProgress&)> give_up{};
  std::chrono::milliseconds give_up_after{300};
};

struct SweepOutcome : SweepProgress {
  std::int64_t sweep = 0;   // its number in the file
  std::int64_t errors = 0;  // of the computed: cannot be laid out, or no plan fits
  std::string first_error;
  std::int64_t failed = 0;  // not computed, by no fault of theirs: to be tried again
  std::string first_failure;
  bool stopped = false;
};

// SweepRunOptions::calibrations: of those that come with Orrery, and the user's files.
std::string digests_of_calibrations(std::span<const std::string> files);
// SweepEvaluation::program.
std::string program_of(const std::string& version, const std::string& calibrations);
// How many of `threads` threads evaluate `points` points, where `all` do in all: few points leave the others for their
// searches.
int evaluating_threads(std::int64_t points, std::int64_t threads, std::int64_t all);

// Throws InputError where results cannot be written.
SweepOutcome run_sweep(const SweepDocument& sweep, SweepResults& results, const SweepRunOptions& options);

}  // namespace orrery
