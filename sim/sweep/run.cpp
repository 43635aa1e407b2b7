#include "sim/sweep/run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <utility>

#include "sim/base/digest.h"
#include "sim/base/json_reader.h"
#include "sim/base/preset.h"
#include "sim/report/memory_verdict.h"
#include "sim/search/plan_field.h"
#include "sim/search/search.h"

namespace orrery {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// How points were evaluated, beside their scenarios.
std::string method_text(const SweepDocument& sweep) {
  const SimulationOptions& simulation = sweep.simulation;
  std::string text(kEngineNames[static_cast<std::size_t>(simulation.engine)]);
  if (simulation.engine == Engine::des)
    text += fmt::format(" {} {}", kFidelityNames[static_cast<std::size_t>(simulation.fidelity)],
                        kRoutingNames[static_cast<std::size_t>(simulation.routing)]);
  if (sweep.search) {
    text += " search " + sweep.whole.at("search").dump();
    for (const std::string& fixed : sweep.search->space.fixed) text += " " + fixed;
  }
  return text;
}

struct Point {
  std::int64_t number = 0;
  std::vector<int> choices;
};

// Hands out points. Each process begins elsewhere, so that several at one file seldom compute the same.
class Points {
 public:
  Points(const SweepDocument& sweep, std::int64_t all, const SweepRunOptions& options)
      : cursor_(sweep.axes), left_(all), options_(options) {
    constexpr std::int64_t kFarthest = 1 << 20;
    constexpr std::int64_t kPrime = 2654435761;  // processes of one shell have numbers in a row
    for (std::int64_t skip = ::getpid() * kPrime % std::min(all, kFarthest); skip > 0; --skip) cursor_.advance();
  }

  // False: there are no more.
  bool take(std::size_t most, std::vector<Point>& points) {
    const std::lock_guard lock(mutex_);
    points.clear();
    for (; left_ > 0 && points.size() < most; --left_) {
      if (cursor_.number() % options_.shards == options_.shard) points.push_back({cursor_.number(), cursor_.choices()});
      cursor_.advance();
    }
    return !points.empty();
  }

 private:
  std::mutex mutex_;
  SweepCursor cursor_;
  std::int64_t left_;
  const SweepRunOptions& options_;
};

// Keys with results, from whatever process.
class KnownKeys {
 public:
  bool has(std::uint64_t key) const {
    const std::shared_lock lock(mutex_);
    return keys_.contains(key);
  }
  void refresh(SweepResults& results) {
    const std::unique_lock lock(mutex_);
    results.add_new_keys(keys_);
  }

 private:
  mutable std::shared_mutex mutex_;
  std::unordered_set<std::uint64_t> keys_;
};

// Rows on their way from those who compute to the one who writes.
class Rows {
 public:
  explicit Rows(int computing) : computing_(computing) {}

  void add(SweepRow row) {
    std::unique_lock lock(mutex_);
    room_.wait(lock, [&] { return rows_.size() < kMost || abandoned_; });
    rows_.push_back(std::move(row));
    if (rows_.size() == kMany) ready_.notify_one();
  }
  void finish() {
    const std::lock_guard lock(mutex_);
    --computing_;
    ready_.notify_one();
  }
  void abandon() {  // nobody writes any more
    const std::lock_guard lock(mutex_);
    abandoned_ = true;
    room_.notify_all();
  }
  // Those there are, after a tenth of a second or when there are many. False: those were the last.
  bool take(std::vector<SweepRow>& rows) {
    rows.clear();
    std::unique_lock lock(mutex_);
    ready_.wait_for(lock, std::chrono::milliseconds(100), [&] { return rows_.size() >= kMany || computing_ == 0; });
    rows.swap(rows_);
    room_.notify_all();
    return computing_ > 0;
  }

 private:
  static constexpr std::size_t kMany = 2000, kMost = 4 * kMany;
  std::mutex mutex_;
  std::condition_variable room_, ready_;
  std::vector<SweepRow> rows_;
  int computing_;
  bool abandoned_ = false;
};

struct Shared {
  const SweepDocument& sweep;
  const SweepRunOptions& options;
  std::string method, program;
  int search_threads = 1;
  std::unordered_map<std::int64_t, std::uint64_t> in_file;  // keys of the sweep's points
  Points points;
  KnownKeys known;
  Rows rows;
  std::atomic<bool> stop = false;
  std::atomic<std::int64_t> computed = 0, present = 0, errors = 0, failed = 0;
  std::mutex message_mutex;
  std::string first_error, first_failure;

  void keep_first(std::string& first, const std::string& text) {
    const std::lock_guard lock(message_mutex);
    if (first.empty()) first = text;
  }
};

// What one thread computes with.
class Worker {
 public:
  explicit Worker(Shared& shared)
      : shared_(shared), sweep_(shared.sweep), lines_(shared.sweep), simulator_(shared.options.user) {}

  void run() {
    const bool quick = !sweep_.search && sweep_.simulation.engine == Engine::analytical;
    const std::size_t at_once = quick ? 32 : 1;
    for (std::vector<Point> points; !shared_.stop && shared_.points.take(at_once, points);)
      for (const Point& point : points) {
        if (shared_.stop) break;
        compute(point);
      }
  }

 private:
  void compute(const Point& point) {
    SweepRow row;
    row.number = point.number;
    row.fields = lines_.fields(point.choices);
    std::string line;
    try {
      line = lines_.line(point.choices);
    } catch (const InputError& error) {
      row.error = error.what();
    }
    row.scenario =
        digest_of(shared_.method, line.empty() ? digest_of(row.fields, base_digest()) : digest_of_line(line));
    row.key = digest_of(shared_.program, row.scenario);
    if (shared_.known.has(row.key)) {
      ++shared_.present;
      const auto there = shared_.in_file.find(point.number);
      if (there != shared_.in_file.end() && there->second == row.key) return;
      row.known = true;
      row.error.clear();
      return shared_.rows.add(std::move(row));
    }
    if (!line.empty()) {
      try {
        evaluate(line, row);
      } catch (const InputError& error) {
        row.error = error.what();
      } catch (const StalledError& error) {
        row.error = error.what();
      } catch (const std::exception& error) {  // the machine's fault
        shared_.keep_first(shared_.first_failure, error.what());
        ++shared_.failed;
        return;
      }
    }
    ++shared_.computed;
    if (!row.error.empty()) {
      ++shared_.errors;
      shared_.keep_first(shared_.first_error, row.error);
    }
    shared_.rows.add(std::move(row));
  }

  void evaluate(const std::string& line, SweepRow& row) {
    if (sweep_.search) return search_best(line, row);
    if (sweep_.simulation.engine == Engine::analytical) {
      row.values = sweep_values(simulator_.evaluate_line(line, sweep_.source, /*ops=*/false));
    } else {
      row.values = sweep_values(
          simulator_.evaluate(parse_json(line, sweep_.source.file), sweep_.source, sweep_.simulation).report);
    }
  }

  void search_best(const std::string& line, SweepRow& row) {
    const Scenario scenario = reader_.read(parse_json(line, sweep_.source.file), sweep_.source);
    try {
      const Space space(scenario, sweep_.search->space);
      const SearchResult found = search(space,
                                        {.top = 1,
                                         .front = 1,
                                         .leanest = false,
                                         .most_memory_bytes = sweep_.search->most_memory_bytes,
                                         .memory_margin = sweep_.search->safe ? kPeakHigh : 1,
                                         .threads = shared_.search_threads},
                                        shared_.options.user);
      if (found.best.empty()) {
        row.error = fmt::format("no plan fits: {} evaluated, {} proven too large, {} cannot be laid out",
                                found.evaluated, found.too_large, found.refused);
        return;
      }
      const Simulation best = simulator_.evaluate(space.scenario(found.best.front().values), sweep_.simulation);
      OrderedJson plan;
      for (const Space::Axis& axis : space.axes()) {
        if (axis.field == "global_batch_size") {
          plan["workload." + axis.field] = best.scenario.workload.global_batch_size;
        } else {
          plan["plan." + axis.field] = field_of(best.scenario.plan, axis.field);
        }
      }
      row.plan = plan.dump();
      row.values = sweep_values(best.report);
    } catch (const InputError& error) {
      throw sweep_.source.blame(error);
    }
  }

  std::uint64_t digest_of_line(const std::string& line) {
    if (const ScenarioReader::Line* read = reader_.read_line(line, sweep_.source)) return read->digest;
    try {
      return scenario_digest(written_out(parse_json(line, sweep_.source.file), sweep_.source));
    } catch (const InputError&) {  // which its row will say
      return digest_of(line);
    }
  }
  std::uint64_t base_digest() const { return orrery::digest_of(sweep_.base.dump()); }
  // The digest of a number and of what was read.
  static std::uint64_t digest_of(std::string_view text, std::uint64_t number) {
    return orrery::digest_of(text, orrery::digest_of(fmt::format("{:016x} ", number)));
  }
  static std::uint64_t digest_of(std::string_view text) { return orrery::digest_of(text); }

  Shared& shared_;
  const SweepDocument& sweep_;
  SweepLines lines_;
  ScenarioReader reader_;
  Simulator simulator_;
};

}  // namespace

std::string bundled_calibrations() {
  std::uint64_t digest = digest_of("");
  for (const EmbeddedFile& file : embedded_files("results/calibration/")) digest = digest_of(file.text, digest);
  return fmt::format("{:016x}", digest);
}

SweepOutcome run_sweep(const SweepDocument& sweep, SweepResults& results, const SweepRunOptions& options) {
  const std::int64_t all = count_points(sweep);
  const std::int64_t mine = all / options.shards + (all % options.shards > options.shard ? 1 : 0);
  const std::string program = options.version + " " + options.calibrations;
  SweepRecord record{"", sweep.whole.dump(), sweep.fields(), all, options.version, options.calibrations};
  record.digest = fmt::format("{:016x}", digest_of(record.document, digest_of(program + " ")));
  SweepOutcome outcome;
  outcome.sweep = results.add(record);
  outcome.points = mine;
  const int workers = static_cast<int>(std::clamp<std::int64_t>(mine, 1, options.threads));
  Shared shared{.sweep = sweep,
                .options = options,
                .method = method_text(sweep),
                .program = program,
                .search_threads = std::max(1, options.threads / workers),
                .in_file = results.points_of(outcome.sweep),
                .points = Points(sweep, all, options),
                .known = {},
                .rows = Rows(workers),
                .message_mutex = {},
                .first_error = {},
                .first_failure = {}};
  shared.known.refresh(results);
  std::exception_ptr broken;  // a thread that could not go on
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < workers; ++i)
      threads.emplace_back([&] {
        try {
          Worker(shared).run();
        } catch (...) {
          const std::lock_guard lock(shared.message_mutex);
          broken = std::current_exception();
          shared.stop = true;
        }
        shared.rows.finish();
      });
    try {
      std::vector<SweepRow> rows;
      for (bool more = true; more;) {
        more = shared.rows.take(rows);
        results.add(outcome.sweep, rows);
        shared.known.refresh(results);
        outcome.computed = shared.computed;
        outcome.known = shared.present;
        if (options.progress) options.progress(outcome);
        if (options.stop && options.stop()) shared.stop = outcome.stopped = true;
      }
    } catch (...) {
      shared.stop = true;
      shared.rows.abandon();
      throw;
    }
  }
  if (broken) std::rethrow_exception(broken);
  outcome.stopped = outcome.stopped && outcome.computed + outcome.known + shared.failed < mine;
  outcome.errors = shared.errors;
  outcome.failed = shared.failed;
  outcome.first_error = shared.first_error;
  outcome.first_failure = shared.first_failure;
  return outcome;
}

}  // namespace orrery
