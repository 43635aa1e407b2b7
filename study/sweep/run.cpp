#include "study/sweep/run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <iterator>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "sim/base/digest.h"
#include "sim/base/input_file.h"
#include "sim/base/preset.h"
#include "sim/base/threads.h"
#include "study/sweep/evaluate.h"

namespace orrery {
namespace {

using Clock = std::chrono::steady_clock;

// Hands out points. Each process begins elsewhere, so that several at one file seldom compute the same.
class Points {
 public:
  // `takers`: threads that will ask.
  Points(const SweepDocument& sweep, std::int64_t all, const SweepRunOptions& options, std::int64_t takers)
      : cursor_(sweep.axes), left_(all), options_(options), takers_(takers) {
    constexpr std::int64_t kFarthest = 1 << 20;
    constexpr std::int64_t kPrime = 2654435761;  // processes of one shell have numbers in a row
    for (std::int64_t skip = ::getpid() * kPrime % std::min(all, kFarthest); skip > 0; --skip) cursor_.advance();
  }

  // Fewer towards the end, so that all end together. Empty: there are no more.
  std::vector<SweepPoint> take(std::size_t most) {
    const std::lock_guard lock(mutex_);
    constexpr std::int64_t kPerTaker = 4;
    const std::int64_t fair = left_ / (options_.shards * takers_ * kPerTaker);
    most = std::min(most, static_cast<std::size_t>(std::max<std::int64_t>(fair, 1)));
    std::vector<SweepPoint> points;
    for (; left_ > 0 && points.size() < most; --left_) {
      if (cursor_.number() % options_.shards == options_.shard) points.push_back({cursor_.number(), cursor_.choices()});
      cursor_.advance();
    }
    return points;
  }

 private:
  std::mutex mutex_;
  SweepCursor cursor_;
  std::int64_t left_;
  const SweepRunOptions& options_;
  std::int64_t takers_;
};

// Keys with results, from whatever process.
class KnownKeys {
 public:
  std::vector<bool> have(std::span<const SweepRow> rows) const {
    const std::shared_lock lock(mutex_);
    std::vector<bool> all;
    all.reserve(rows.size());
    for (const SweepRow& row : rows) all.push_back(keys_.contains(row.key));
    return all;
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

  void add(std::vector<SweepRow> rows) {
    std::unique_lock lock(mutex_);
    room_.wait(lock, [&] { return rows_.size() < kMost || abandoned_; });
    std::move(rows.begin(), rows.end(), std::back_inserter(rows_));
    if (rows_.size() >= kMany) ready_.notify_one();
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

struct Shared final : SweepWork {
  Shared(std::unordered_map<std::int64_t, std::uint64_t> there, const SweepDocument& sweep, std::int64_t all,
         const SweepRunOptions& options, std::int64_t takers, int computing)
      : in_file(std::move(there)), points(sweep, all, options, takers), rows(computing) {}

  std::vector<SweepPoint> take(std::size_t most) override {
    return stop ? std::vector<SweepPoint>{} : points.take(most);
  }
  std::vector<Kept> kept(std::span<const SweepRow> asked) override {
    const std::vector<bool> have = known.have(asked);
    std::vector<Kept> all(asked.size(), Kept::nothing);
    for (std::size_t i = 0; i < asked.size(); ++i) {
      if (!have[i]) continue;
      const auto point = in_file.find(asked[i].number);
      all[i] = point != in_file.end() && point->second == asked[i].key ? Kept::point : Kept::result;
      if (all[i] == Kept::point) ++present;
    }
    return all;
  }
  void add(std::vector<SweepRow> more) override { rows.add(std::move(more)); }
  void fail(const std::string& message) override {
    const std::lock_guard lock(mutex);
    if (failed++ == 0) first_failure = message;
  }
  void end(const std::exception_ptr& why) {  // a thread cannot go on
    const std::lock_guard lock(mutex);
    broken = why;
    stop = true;
  }

  const std::unordered_map<std::int64_t, std::uint64_t> in_file;  // keys of the sweep's points
  Points points;
  KnownKeys known;
  Rows rows;
  std::atomic<bool> stop = false;
  std::atomic<std::int64_t> present = 0;  // points that are there already
  std::mutex mutex;                       // of what follows
  std::int64_t failed = 0;
  std::string first_failure;
  std::exception_ptr broken;
};

}  // namespace

std::string digests_of_calibrations(std::span<const std::string> files) {
  std::uint64_t digest = digest_of("");
  for (const EmbeddedFile& file : embedded_files("results/calibration/")) digest = digest_of(file.text, digest);
  std::string text = fmt::format("{:016x}", digest);
  for (const std::string& file : files)
    text += fmt::format(" {:016x}", digest_of(read_file(file, "a readable JSON file")));
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
  record.digest = fmt::format("{:016x}", digest_of(record.document, digest_of(program + " ")));
  SweepOutcome outcome;
  outcome.sweep = results.add(record);
  outcome.points = mine;
  SweepHelpers* const helpers = options.helpers;
  const std::int64_t helping = helpers != nullptr ? helpers->threads() : 0;
  const int wanted = evaluating_threads(mine, options.threads, options.threads + helping);
  const int workers = wanted <= 1 ? wanted : std::max(1, startable_threads(wanted));
  const SweepEvaluation evaluation{program, options.user, std::max(1, options.threads / std::max(workers, 1))};
  Shared shared(results.points_of(outcome.sweep), sweep, all, options, workers + helping,
                workers + (helpers != nullptr ? 1 : 0));
  shared.known.refresh(results);
  {
    std::vector<std::jthread> threads;
    const auto start = [&](auto work) {
      threads.emplace_back([&shared, work] {
        try {
          work();
        } catch (...) {
          shared.end(std::current_exception());
        }
        shared.rows.finish();
      });
    };
    try {
      if (helpers != nullptr) start([&] { helpers->share(shared, mine, workers); });
      for (int i = 0; i < workers; ++i) {
        try {
          start([&] { evaluate_points(sweep, evaluation, shared); });
        } catch (const std::system_error& why) {  // the threads that have started do its part
          if (threads.empty()) throw no_thread("--threads", why);
          shared.rows.finish();
        }
      }
      std::vector<SweepRow> rows;
      std::int64_t known = 0;          // by other points' results
      std::int64_t first_error = all;  // its point
      std::optional<Clock::time_point> stopped;
      for (bool more = true; more;) {
        more = shared.rows.take(rows);
        results.add(outcome.sweep, rows);
        for (const SweepRow& row : rows) {
          ++(row.known ? known : outcome.computed);
          if (row.error.empty()) continue;
          ++outcome.errors;
          if (row.number > first_error) continue;
          first_error = row.number;
          outcome.first_error = row.error;
        }
        shared.known.refresh(results);
        outcome.known = known + shared.present;
        if (options.progress) options.progress(outcome);
        if (!options.stop || !options.stop()) continue;
        shared.stop = outcome.stopped = true;
        outcome.in_file = results.count(outcome.sweep, options.shard, options.shards);
        if (!stopped) stopped = Clock::now();
        if (more && options.give_up && Clock::now() - *stopped > options.give_up_after) options.give_up(outcome);
      }
    } catch (...) {
      shared.stop = true;
      shared.rows.abandon();
      throw;
    }
  }
  if (shared.broken) std::rethrow_exception(shared.broken);
  outcome.failed = shared.failed;
  outcome.first_failure = shared.first_failure;
  outcome.stopped = outcome.stopped && outcome.computed + outcome.known + outcome.failed < mine;
  return outcome;
}

}  // namespace orrery
