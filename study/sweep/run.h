// Runs a sweep: evaluates the points that the file of results lacks, by several threads.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "sim/cost/user_calibration.h"
#include "study/sweep/document.h"
#include "study/sweep/results.h"

namespace orrery {

// ---- the evaluation of points, by one of several threads

struct SweepPoint {
  std::int64_t number = 0;
  std::vector<int> choices;  // by axis (SweepCursor)
};

// The state of a point in the file. `result`: the file has a result of the same key, from another sweep or point.
enum class Kept : std::uint8_t { nothing, result, point };

// The interface of everything that evaluates a sweep's points, threads of this process or others: points to evaluate,
// results that the file already has, and rows to store. All functions may be called by several threads at the same
// time.
class SweepWork {
 public:
  virtual ~SweepWork() = default;
  // Returns the next points, at most `most`. Empty: there are none left, or the sweep is stopping.
  virtual std::vector<SweepPoint> take(std::size_t most) = 0;
  // The state of each of these points in the file, by its number and key.
  virtual std::vector<Kept> kept(std::span<const SweepRow> points) = 0;
  virtual void add(std::vector<SweepRow> rows) = 0;
  // Reports a point that could not be computed, for reasons outside it; it is to be tried again.
  virtual void fail(const std::string& message) = 0;
};

struct SweepEvaluation {
  std::string program;  // its version and calibrations, which are part of each key
  UserCalibration user{};
  int search_threads = 1;  // threads of each search for a point's best plan
};

// Evaluates points of `work` until there are none left.
void evaluate_points(const SweepDocument& sweep, const SweepEvaluation& evaluation, SweepWork& work);

// ---- the run

struct SweepProgress {
  std::int64_t points = 0, computed = 0, known = 0;
  std::int64_t in_file = 0;  // points in the file, whoever computed them; set only when the sweep is about to stop
};

struct SweepRunOptions;

// Other processes that take part in the evaluation (study/sweep/mpi). They read the document exactly as this process
// does.
class SweepHelpers {
 public:
  virtual ~SweepHelpers() = default;
  virtual int processes() const = 0;  // number of processes besides this one
  // This process's share of its machine's hardware threads.
  virtual int threads_here() const = 0;
  // Call before share(). `threads`: of each process; 0: its share of its machine's threads. Throws InputError if one of
  // the processes cannot take part.
  virtual void prepare(const SweepDocument& sweep, const std::vector<std::string>& calibration_files,
                       const SweepRunOptions& options, int threads) = 0;
  virtual std::int64_t threads() const = 0;  // number of their evaluating threads
  // Hands out `work`, which has `points` points, and returns when all processes have finished. `here`: threads of this
  // process that evaluate at the same time.
  virtual void share(SweepWork& work, std::int64_t points, int here) = 0;
  // Ends the other processes and this one, whatever they are doing.
  [[noreturn]] virtual void abort(int code) = 0;
};

struct SweepRunOptions {
  int threads = 1;                     // evaluating threads; may be 0 if there are helpers
  std::int64_t shard = 0, shards = 1;  // evaluates the point at place `shard` of each `shards` consecutive points
  std::string version;                 // of the program
  std::string calibrations;            // the calibrations that points are evaluated with
  UserCalibration user{};
  SweepHelpers* helpers = nullptr;
  // Called a few times a second, like progress(). If it returns true, points under way are finished, and the sweep
  // stops.
  std::function<bool()> stop{};
  std::function<void(const SweepProgress&)> progress{};
  // For programs that may abandon points under way: called when stop() has been true for 0.3 seconds, and does not
  // return. The argument describes what is in the file.
  std::function<void(const SweepProgress&)> give_up{};
};

struct SweepOutcome : SweepProgress {
  std::int64_t sweep = 0;   // its number in the file
  std::int64_t errors = 0;  // computed points that cannot be laid out, or for which no plan fits
  std::string first_error;
  std::int64_t failed = 0;  // points that were not computed, for reasons outside them; they are to be tried again
  std::string first_failure;
  bool stopped = false;
};

// Returns SweepRunOptions::calibrations for the bundled calibrations and the user's files.
std::string digests_of_calibrations(std::span<const std::string> files);
// Returns SweepEvaluation::program.
std::string program_of(const std::string& version, const std::string& calibrations);
// Returns how many of this process's `threads` threads evaluate `points` points, if `all` threads take part altogether.
// If there are few points, the other threads serve their searches.
int evaluating_threads(std::int64_t points, std::int64_t threads, std::int64_t all);

// Throws InputError if results cannot be written.
SweepOutcome run_sweep(const SweepDocument& sweep, SweepResults& results, const SweepRunOptions& options);

}  // namespace orrery
