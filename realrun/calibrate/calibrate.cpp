#include "realrun/calibrate/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <map>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "realrun/calibrate/collective_fit.h"
#include "realrun/calibrate/journal.h"
#include "realrun/calibrate/measure.h"
#include "realrun/calibrate/overlap.h"
#include "realrun/calibrate/rank_collectives.h"
#include "sim/hardware/presets.h"
#include "sim/program/work.h"

namespace orrery {
namespace {

constexpr double kLeastPointSeconds = 0.02, kMostPointSeconds = 2;
constexpr std::int64_t kMostCollectiveRanks = 4;

// Other ranks on the same host, each at work on a point of its own, for as long as this exists.
class Companions {
 public:
  Companions(const MakeBackend& make_backend, const SweepPoint& point, double footprint_bytes, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i)
      threads_.emplace_back([this, &make_backend, &point, footprint_bytes] {
        try {
          const std::unique_ptr<Backend> backend = make_backend();
          Meter meter(*backend, footprint_bytes);
          while (!stop_) meter.measure(point, kLeastPointSeconds);
        } catch (const DeviceError&) {  // short of memory: one fewer
        }
      });
  }
  ~Companions() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  Companions(const Companions&) = delete;
  Companions& operator=(const Companions&) = delete;

 private:
  std::atomic<bool> stop_ = false;
  std::vector<std::thread> threads_;
};

// Points that are also measured with all hardware threads busy: of products and attention, as most of a step is.
std::vector<const SweepPoint*> busy_points(const std::vector<SweepPoint>& points) {
  constexpr std::size_t kEach = 4;
  constexpr double kMostFlops = 5e8;
  std::vector<const SweepPoint*> chosen;
  std::map<OpKind, std::size_t> of_kind;
  for (const SweepPoint& p : points) {
    const bool wanted = is_matmul(p.op.kind) || is_attention(p.op.kind);
    if (!wanted || flops(p.op, p.tensors) > kMostFlops || of_kind[p.op.kind] == kEach) continue;
    ++of_kind[p.op.kind];
    chosen.push_back(&p);
  }
  return chosen;
}

// A host of so many ranks that exchange in its memory.
Cluster host_of(const Device& device, std::int64_t ranks) {
  Cluster cluster;
  cluster.device = device;
  cluster.node = find_node("cpu-host");
  cluster.node.devices = ranks;
  cluster.node.device = device.name;
  cluster.node.intra_bytes_per_second = cluster.node.pcie_bytes_per_second = device.pcie_bytes_per_second;
  cluster.fabric = find_fabric(cluster.node.fabric);
  return cluster;
}

std::vector<CollectiveCurve> curves_of(const std::vector<RankCollective>& collectives, const Journal& journal) {
  std::vector<CollectiveCurve> curves;
  for (const RankCollective& c : collectives) {
    const auto found = journal.points().find(c.id);
    if (found == journal.points().end()) continue;
    auto curve =
        std::find_if(curves.begin(), curves.end(), [&](const auto& x) { return x.collective == c.collective; });
    if (curve == curves.end())
      curve = curves.insert(curves.end(), {.id = c.collective,
                                           .source = "threads of one process",
                                           .collective = c.collective,
                                           .kind = c.kind,
                                           .ranks = c.ranks,
                                           .nodes = 1,
                                           .device = {},
                                           .dtype = name_of(Dtype::fp32),
                                           .points = {}});
    curve->points.push_back({c.bytes, found->second.seconds, 0});
  }
  return curves;
}

std::string describe_method(const BackendFacts& facts, const CalibrateOptions& o, std::size_t measured,
                            std::size_t planned) {
  const std::string time = facts.kind == "cpu"
                               ? "10th percentile of repetitions by the thread's processor time, the fastest "
                                 "pass of each point"
                               : "median of repetitions by the device's clock";
  return fmt::format(
      "orrery calibrate: {} of {} points, {}; operands go round over {:.0f} MB; Huber fit in log space (width 0.1), "
      "Levenberg-Marquardt, points slower than fitted let go of",
      measured, planned, time, 1e-6 * o.footprint_bytes);
}

}  // namespace

CalibrateOptions options_for(const BackendFacts& facts) {
  CalibrateOptions o;
  if (facts.kind == "cpu") {
    o.sweep = cpu_sweep();
    return o;
  }
  o.sweep = gpu_sweep({Dtype::bf16, Dtype::fp16, Dtype::fp32});
  o.passes = 1;
  o.footprint_bytes = 256e6;  // beyond the second-level cache of any device
  return o;
}

CalibrateResult calibrate(const MakeBackend& make_backend, const CalibrateOptions& options) {
  const std::unique_ptr<Backend> backend = make_backend();
  const BackendFacts facts = backend->facts();
  const std::vector<SweepPoint> points = sweep(options.sweep);
  if (options.restart) std::remove(options.journal.c_str());
  Journal journal(options.journal, {facts.kind, facts.device, facts.software, options.date});
  Meter meter(*backend, options.footprint_bytes);
  std::set<std::string> impossible;  // too large for the memory
  CalibrateResult result;
  result.planned = points.size();

  const double begin = wall_seconds(), end = begin + options.budget_seconds;
  const bool cpu = facts.kind == "cpu";
  const std::vector<const SweepPoint*> busy =
      cpu && facts.processors > 1 ? busy_points(points) : std::vector<const SweepPoint*>{};
  const std::vector<RankCollective> collectives =
      busy.empty() ? std::vector<RankCollective>{} : rank_collectives(std::min(facts.processors, kMostCollectiveRanks));
  const std::vector<OverlapPair> pairs =
      facts.asynchronous_streams ? overlap_pairs(options.sweep) : std::vector<OverlapPair>{};
  const auto passes = static_cast<std::size_t>(options.passes);
  CalibrationProgress progress{.done = 0,
                               .total = passes * (points.size() + busy.size() + collectives.size() + pairs.size()),
                               .seconds = 0,
                               .budget_seconds = options.budget_seconds,
                               .point = {}};
  const auto stop = [&] {
    result.interrupted = result.interrupted || (options.interrupted && options.interrupted());
    return result.interrupted || wall_seconds() >= end;
  };
  const auto report = [&](const std::string& id) {
    ++progress.done;
    progress.seconds = wall_seconds() - begin;
    progress.point = id;
    if (options.progress) options.progress(progress);
  };
  const auto point_seconds = [&] {
    const double left = (end - wall_seconds()) / static_cast<double>(progress.total - progress.done);
    return std::clamp(left / 2, kLeastPointSeconds, kMostPointSeconds);
  };
  const auto measure = [&](const SweepPoint& point, const std::string& id) {
    try {
      journal.add(id, meter.measure(point, point_seconds()));
    } catch (const DeviceError&) {
      backend->synchronize();  // throws again where it was more than memory
      impossible.insert(id);
    }
    report(id);
  };
  bool streams_take_turns = false;
  const auto measure_overlap = [&](const OverlapPair& pair) {
    try {
      if (const auto m = meter.measure_overlap(pair.product, pair.copy, point_seconds())) {
        journal.add(pair.product_alone, m->product_alone);
        journal.add(pair.copy_alone, m->copy_alone);
        journal.add(pair.product_beside, m->product_beside);
        journal.add(pair.copy_beside, m->copy_beside);
      } else {
        streams_take_turns = true;
      }
    } catch (const DeviceError&) {
      backend->synchronize();
      impossible.insert(pair.copy_beside);
    }
    report(pair.copy_beside);
  };
  for (std::size_t pass = 0; pass < passes; ++pass) {
    for (const SweepPoint& point : points) {
      // An interrupted calibration goes on with its first pass, and then measures everything again.
      if (pass == 0 && journal.points().count(point.id) > 0) {
        ++progress.done;
        continue;
      }
      if (impossible.count(point.id) > 0) continue;
      if (stop()) break;
      measure(point, point.id);
    }
    for (const SweepPoint* point : busy) {
      if (stop()) break;
      const Companions companions(make_backend, *point, options.footprint_bytes, facts.processors - 1);
      measure(*point, busy_id(point->id));
    }
    for (const OverlapPair& pair : pairs) {
      if (pass == 0 && journal.points().count(pair.copy_beside) > 0) {  // the last of the four
        ++progress.done;
        continue;
      }
      if (impossible.count(pair.copy_beside) > 0) continue;
      if (stop()) break;
      measure_overlap(pair);
    }
    for (const RankCollective& collective : collectives) {
      if (stop()) break;
      const double seconds = time_rank_collective(collective, make_backend);
      journal.add(collective.id, {.seconds = seconds, .spread = 0, .issue_seconds = seconds, .repetitions = 1});
      report(collective.id);
    }
  }
  for (const SweepPoint& point : points) result.measured += journal.points().count(point.id);
  result.fit = fit_calibration(points, journal.points(), facts, options.preset);
  const std::string source =
      fmt::format("measured on {} by orrery calibrate --device {} ({})", facts.device, facts.kind, facts.software);
  result.fit.overlaps = fit_overlaps(pairs, journal.points());
  if (result.fit.overlaps) {
    result.fit.overlaps->source = source;
  } else {
    result.fit.no_overlaps = pairs.empty()        ? "the backend runs its streams one after another"
                             : streams_take_turns ? "copies and products took turns"
                                                  : "the time was up before both directions were measured";
  }
  if (const std::vector<CollectiveCurve> curves = curves_of(collectives, journal); !curves.empty())
    result.fit.collectives = fit_collectives(host_of(result.fit.device, curves.front().ranks), curves, source).classes;
  result.text = calibration_text(result.fit, source, journal.header().date,
                                 describe_method(facts, options, result.measured, result.planned));
  return result;
}

}  // namespace orrery
