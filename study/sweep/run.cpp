#include "study/sweep/run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <iterator>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "sim/base/digest.h"
#include "sim/base/input_file.h"
#include "sim/base/json_reader.h"
#include "sim/base/threads.h"
#include "sim/report/memory_verdict.h"
#include "study/search/plan_field.h"
#include "study/search/search.h"

namespace orrery {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kGiveUpAfter{300};

// What the threads that evaluate share.
class Shared final : public SweepWork {
 public:
  // `takers`: threads that will ask for points. `computing`: those that end with finish().
  Shared(const SweepDocument& sweep, SweepResults& results, std::int64_t number, std::int64_t all,
         const SweepRunOptions& options, std::int64_t takers, int computing)
      : in_file_(results.points_of(number)),
        cursor_(sweep.axes),
        left_(all),
        options_(options),
        takers_(takers),
        computing_(computing) {
    results.add_new_keys(known_);
    // Each process begins elsewhere, so that several at one file seldom compute the same.
    constexpr std::int64_t kFarthest = 1 << 20;
    constexpr std::int64_t kPrime = 2654435761;  // processes of one shell have numbers in a row
    for (std::int64_t skip = ::getpid() * kPrime % std::min(all, kFarthest); skip > 0; --skip) cursor_.advance();
  }

  // Fewer towards the end, so that all end together.
  std::vector<SweepPoint> take(std::size_t most) override {
    const std::lock_guard lock(mutex_);
    constexpr std::int64_t kPerTaker = 4;
    const std::int64_t fair = left_ / (options_.shards * takers_ * kPerTaker);
    most = std::min(most, static_cast<std::size_t>(std::max<std::int64_t>(fair, 1)));
    std::vector<SweepPoint> points;
    for (; !stopping_ && left_ > 0 && points.size() < most; --left_) {
      if (cursor_.number() % options_.shards == options_.shard) points.push_back({cursor_.number(), cursor_.choices()});
      cursor_.advance();
    }
    return points;
  }
  std::vector<Kept> kept(std::span<const SweepRow> asked) override {
    const std::lock_guard lock(mutex_);
    std::vector<Kept> all;
    for (const SweepRow& row : asked) {
      const auto point = in_file_.find(row.number);
      const bool is_point = point != in_file_.end() && point->second == row.key;
      all.push_back(!known_.contains(row.key) ? Kept::nothing : is_point ? Kept::point : Kept::result);
      if (all.back() == Kept::point) ++present_;
    }
    return all;
  }
  void add(std::vector<SweepRow> rows) override {
    std::unique_lock lock(mutex_);
    room_.wait(lock, [&] { return rows_.size() < kMost || abandoned_; });
    std::move(rows.begin(), rows.end(), std::back_inserter(rows_));
    if (rows_.size() >= kMany) ready_.notify_one();
  }
  void fail(const std::string& message) override {
    const std::lock_guard lock(mutex_);
    if (failed_++ == 0) first_failure_ = message;
  }

  // The rows to write, after a tenth of a second or when there are many. False: those were the last.
  bool take_rows(std::vector<SweepRow>& rows) {
    rows.clear();
    std::unique_lock lock(mutex_);
    ready_.wait_for(lock, std::chrono::milliseconds(100), [&] { return rows_.size() >= kMany || computing_ == 0; });
    rows.swap(rows_);
    room_.notify_all();
    return computing_ > 0;
  }
  void finish() {
    const std::lock_guard lock(mutex_);
    --computing_;
    ready_.notify_one();
  }
  void abandon() {  // nobody writes any more
    const std::lock_guard lock(mutex_);
    stopping_ = abandoned_ = true;
    room_.notify_all();
  }
  // Learns of keys with results, from whatever process. Returns how many points are there already.
  std::int64_t refresh(SweepResults& results) {
    const std::lock_guard lock(mutex_);
    results.add_new_keys(known_);
    return present_;
  }
  void stop(const std::exception_ptr& why = nullptr) {  // `why`: a thread cannot go on
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    if (why) broken_ = why;
  }
  // Behind the last thread. Throws what broke one.
  void tell(SweepOutcome& outcome) const {
    if (broken_) std::rethrow_exception(broken_);
    outcome.failed = failed_;
    outcome.first_failure = first_failure_;
  }

 private:
  static constexpr std::size_t kMany = 2000, kMost = 4 * kMany;    // rows
  std::mutex mutex_;                                               // of what follows
  std::condition_variable room_, ready_;                           // for rows, and rows to write
  const std::unordered_map<std::int64_t, std::uint64_t> in_file_;  // keys of the sweep's points
  std::unordered_set<std::uint64_t> known_;                        // keys with results
  SweepCursor cursor_;
  std::int64_t left_;
  const SweepRunOptions& options_;
  const std::int64_t takers_;
  std::vector<SweepRow> rows_;  // on their way from those who compute to the one who writes
  int computing_;
  bool stopping_ = false, abandoned_ = false;
  std::int64_t present_ = 0;  // points that are there already
  std::int64_t failed_ = 0;
  std::string first_failure_;
  std::exception_ptr broken_;
};

using OrderedJson = nlohmann::ordered_json;

// How points were evaluated, beside their scenarios.
std::string method_text(const SweepDocument& sweep) {
  std::string text = orrery::method_text(sweep.simulation);
  if (sweep.search) {
    text += " search " + sweep.whole.at("search").dump();
    for (const std::string& fixed : sweep.search->space.fixed) text += " " + fixed;
  }
  return text;
}

class Evaluator {
 public:
  Evaluator(const SweepDocument& sweep, const SweepEvaluation& evaluation)
      : sweep_(sweep),
        evaluation_(evaluation),
        method_(method_text(sweep)),
        lines_(sweep),
        simulator_(evaluation.user) {}

  // The point's fields and key, and its scenario, or none where the row says in its error why there is none.
  std::pair<SweepRow, std::optional<Variant>> begin(const SweepPoint& point) {
    SweepRow row;
    row.number = point.number;
    row.fields = lines_.fields(point.choices);
    std::optional<Variant> scenario;
    try {
      scenario = simulator_.variant(lines_.line(point.choices), sweep_.source);
    } catch (const InputError& error) {
      row.error = error.what();
    }
    const std::optional<std::uint64_t> digest =
        scenario ? scenario->digest() : joined(row.fields, digest_of(sweep_.base.dump()));
    row.scenario = joined(method_, digest ? *digest : digest_of(scenario->line));
    row.key = joined(evaluation_.program, row.scenario);
    return {std::move(row), std::move(scenario)};
  }

  // False: the machine's fault, of which `work` is told.
  bool finish(SweepRow& row, const std::optional<Variant>& scenario, SweepWork& work) {
    if (!scenario) return true;
    try {
      evaluate(*scenario, row);
    } catch (const InputError& error) {
      row.error = error.what();
    } catch (const StalledError& error) {
      row.error = error.what();
    } catch (const std::exception& error) {
      work.fail(error.what());
      return false;
    }
    return true;
  }

 private:
  void evaluate(const Variant& point, SweepRow& row) {
    if (sweep_.search) return search_best(point, row);
    if (sweep_.simulation.engine == Engine::analytical) {
      row.values = sweep_values(simulator_.evaluate(point, /*ops=*/false));
    } else {
      row.values = sweep_values(simulator_.evaluate(point.document(), sweep_.source, sweep_.simulation).report);
    }
  }

  void search_best(const Variant& point, SweepRow& row) {
    const Scenario scenario = read_scenario(point.document(), sweep_.source);
    try {
      const Space space(scenario, sweep_.search->space);
      const SearchResult found = search(space,
                                        {.top = 1,
                                         .front = 1,
                                         .leanest = false,
                                         .most_memory_bytes = sweep_.search->most_memory_bytes,
                                         .memory_margin = sweep_.search->safe ? kPeakHigh : 1,
                                         .threads = evaluation_.search_threads},
                                        evaluation_.user);
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
      if (plan.contains("plan.data_parallel")) plan["plan.data_parallel"] = data_parallel_degree(best.scenario);
      row.plan = plan.dump();
      row.values = sweep_values(best.report);
    } catch (const InputError& error) {
      throw sweep_.source.blame(error);
    }
  }

  // The digest of a number and of what was read.
  static std::uint64_t joined(std::string_view text, std::uint64_t number) {
    return digest_of(text, digest_of(fmt::format("{:016x} ", number)));
  }

  const SweepDocument& sweep_;
  const SweepEvaluation& evaluation_;
  std::string method_;
  SweepLines lines_;
  Simulator simulator_;
};

}  // namespace

std::string digests_of_calibrations(std::span<const std::string> files) {
  std::uint64_t digest = digest_of("");
  for (const EmbeddedFile& file : embedded_files("results/calibration/")) digest = digest_of(file.text, digest);
  std::string text = digest_text(digest);
  for (const std::string& file : files) text += " " + digest_text(digest_of(read_file(file, "a readable JSON file")));
  return text;
}

std::string program_of(const std::string& version, const std::string& calibrations) {
  return version + " " + calibrations;
}

int evaluating_threads(std::int64_t points, std::int64_t threads, std::int64_t all) {
  if (threads == 0) return 0;
  const double share = static_cast<double>(points) * static_cast<double>(threads) / static_cast<double>(all);
  return static_cast<int>(std::clamp<std::int64_t>(static_cast<std::int64_t>(std::ceil(share)), 1, threads));
}

SweepOutcome run_sweep(const SweepDocument& sweep, SweepResults& results, const SweepRunOptions& options) {
  const std::int64_t all = count_points(sweep);
  const std::int64_t mine = all / options.shards + (all % options.shards > options.shard ? 1 : 0);
  const std::string program = program_of(options.version, options.calibrations);
  SweepRecord record{"", sweep.whole.dump(), sweep.fields(), all, options.version, options.calibrations};
  record.digest = digest_text(digest_of(record.document, digest_of(program + " ")));
  SweepOutcome outcome;
  outcome.sweep = results.add(record);
  outcome.points = mine;
  SweepHelpers* const helpers = options.helpers;
  const std::int64_t helping = helpers != nullptr ? helpers->threads() : 0;
  const int wanted = evaluating_threads(mine, options.threads, options.threads + helping);
  const int workers = wanted <= 1 ? wanted : std::max(1, startable_threads(wanted));
  const SweepEvaluation evaluation{program, options.user, std::max(1, options.threads / std::max(workers, 1))};
  Shared shared(sweep, results, outcome.sweep, all, options, workers + helping, workers + (helpers != nullptr ? 1 : 0));
  {
    std::vector<std::jthread> threads;
    const auto start = [&](auto work) {
      threads.emplace_back([&shared, work] {
        try {
          work();
        } catch (...) {
          shared.stop(std::current_exception());
        }
        shared.finish();
      });
    };
    try {
      if (helpers != nullptr) start([&] { helpers->share(shared, mine, workers); });
      for (int i = 0; i < workers; ++i) {
        try {
          start([&] { evaluate_points(sweep, evaluation, shared); });
        } catch (const std::system_error& why) {  // the threads that have started do its part
          if (threads.empty()) throw no_thread("--threads", why);
          shared.finish();
        }
      }
      std::vector<SweepRow> rows;
      std::int64_t known = 0;          // by other points' results
      std::int64_t first_error = all;  // its point
      std::optional<Clock::time_point> stopped;
      for (bool more = true; more;) {
        more = shared.take_rows(rows);
        results.add(outcome.sweep, rows);
        for (const SweepRow& row : rows) {
          ++(row.known ? known : outcome.computed);
          if (row.error.empty()) continue;
          ++outcome.errors;
          if (row.number > first_error) continue;
          first_error = row.number;
          outcome.first_error = row.error;
        }
        outcome.known = known + shared.refresh(results);
        if (options.progress) options.progress(outcome);
        if (!options.stop || !options.stop()) continue;
        outcome.stopped = true;
        shared.stop();
        outcome.in_file = results.count(outcome.sweep, options.shard, options.shards);
        if (!stopped) stopped = Clock::now();
        if (more && options.give_up && Clock::now() - *stopped > kGiveUpAfter) options.give_up(outcome);
      }
    } catch (...) {
      shared.abandon();
      throw;
    }
  }
  shared.tell(outcome);
  outcome.stopped = outcome.stopped && outcome.computed + outcome.known + outcome.failed < mine;
  return outcome;
}

void evaluate_points(const SweepDocument& sweep, const SweepEvaluation& evaluation, SweepWork& work) {
  Evaluator evaluator(sweep, evaluation);
  const bool quick = !sweep.search && sweep.simulation.engine == Engine::analytical;
  constexpr std::size_t kQuickAtOnce = 512;  // a twentieth of a second
  std::vector<SweepRow> rows, done;
  std::vector<std::optional<Variant>> scenarios;
  for (std::vector<SweepPoint> points; !(points = work.take(quick ? kQuickAtOnce : 1)).empty();) {
    rows.clear();
    scenarios.clear();
    for (const SweepPoint& point : points) {
      auto [row, scenario] = evaluator.begin(point);
      rows.push_back(std::move(row));
      scenarios.push_back(std::move(scenario));
    }
    const std::vector<Kept> kept = work.kept(rows);
    done.clear();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      SweepRow& row = rows[i];
      if (kept[i] == Kept::point) continue;
      row.known = kept[i] == Kept::result;
      if (row.known) row.error.clear();
      if (row.known || evaluator.finish(row, scenarios[i], work)) done.push_back(std::move(row));
    }
    work.add(std::move(done));
  }
}

}  // namespace orrery
