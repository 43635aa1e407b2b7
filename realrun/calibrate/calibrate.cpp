#include "realrun/calibrate/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <map>
#include <set>
#include <system_error>
#include <thread>
#include <vector>

#include "realrun/calibrate/collective_fit.h"
#include "realrun/calibrate/journal.h"
#include "realrun/calibrate/measure.h"
#include "realrun/calibrate/nccl_log.h"
#include "realrun/calibrate/overlap.h"
#include "realrun/in_process.h"
#include "sim/cost/published_collectives.h"
#include "sim/hardware/presets.h"
#include "sim/program/work.h"

namespace orrery {
namespace {

constexpr double kWatchdogSeconds = 60;
constexpr int kRepetitions = 41;

void run(const CollectiveCurve& c, std::int64_t elements, Communicator& communicator, void* from, void* to) {
  const Members members = communicator.everyone();
  const std::int64_t part = std::max<std::int64_t>(1, elements / c.ranks);
  const CollectiveCall of{members, c.id};
  switch (c.kind) {
    case OpKind::all_reduce:
      return communicator.all_reduce(of, to, elements);
    case OpKind::all_gather:
      return communicator.all_gather(of, from, to, part);
    case OpKind::reduce_scatter:
      return communicator.reduce_scatter(of, from, to, part);
    case OpKind::all_to_all:
      return communicator.all_to_all(of, from, to, part);
    default: {
      const std::size_t rank = communicator.rank(), n = members.size();
      return communicator.permute(of, from, to, elements, (rank + 1) % n, (rank + n - 1) % n);
    }
  }
}

// Returns what to measure, as curves of one point each, between ranks that are threads of this process
// (realrun/in_process.h), timed as nccl-tests does: all-reduce, all-gather, reduce-scatter, all-to-all and the exchange
// of neighbours (each rank sends to the next one), from 1 KiB to 16 MiB. Sizes alternate, so that any beginning of the
// list covers small and large ones.
std::vector<CollectiveCurve> rank_collectives(std::int64_t ranks) {
  constexpr std::array<std::int64_t, 8> kKibibytes{64, 1024, 4, 16384, 1, 256, 4096, 16};
  std::vector<CollectiveCurve> all;
  for (const std::int64_t size : kKibibytes)
    for (const auto& [name, kind] : kCollectiveKinds)
      if (kind != OpKind::broadcast && kind != OpKind::reduce)
        all.push_back({.id = fmt::format("collective {} {} ranks {} KiB", name, ranks, size),
                       .source = "threads of one process",
                       .collective = std::string(name),
                       .kind = kind,
                       .ranks = ranks,
                       .device = {},
                       .dtype = name_of(Dtype::fp32),
                       .points = {{static_cast<double>(size) * 1024, 0, 0}}});
  return all;
}

// Returns the wall time of one call in seconds, the 10th percentile of repetitions. The ranks begin together, and the
// call lasts until all of them are done.
double time_rank_collective(const CollectiveCurve& collective, const MakeBackend& make_backend) {
  std::vector<double> seconds;
  const auto work = [&](Backend& backend, Communicator& communicator) {
    const auto elements = static_cast<std::int64_t>(collective.points[0].bytes) / bytes_of(Dtype::fp32, 1);
    std::array<void*, 2> buffers{};
    for (void*& buffer : buffers) {
      buffer = backend.allocate(elements, Dtype::fp32, Place::device, Stream::compute);
      backend.fill(Stream::compute, {.base = buffer, .dtype = Dtype::fp32, .offset = 0, .elements = elements}, 0);
    }
    for (int i = 0; i < kRepetitions; ++i) {
      communicator.gather_values(communicator.everyone(), "start", {});
      const double begin = wall_seconds();
      run(collective, elements, communicator, buffers[0], buffers[1]);
      backend.synchronize();
      if (communicator.rank() == 0) seconds.push_back(wall_seconds() - begin);
    }
    communicator.finish();
    for (void* buffer : buffers) backend.release(buffer);
  };
  run_in_threads(
      static_cast<std::size_t>(collective.ranks), kWatchdogSeconds, [&](std::size_t) { return make_backend(); }, work);
  std::sort(seconds.begin(), seconds.end());
  constexpr double kPercentile = 0.1;
  return seconds[static_cast<std::size_t>(kPercentile * static_cast<double>(seconds.size()))];
}

constexpr double kLeastPointSeconds = 0.02, kMostPointSeconds = 2;
constexpr std::int64_t kMostCollectiveRanks = 4;

// Other ranks on the same host, each of which keeps measuring a point of its own as long as this object exists.
class Companions {
 public:
  Companions(const MakeBackend& make_backend, const KernelPoint& point, double footprint_bytes, std::int64_t count) {
    const auto work = [this, &make_backend, &point, footprint_bytes] {
      try {
        const std::unique_ptr<Backend> backend = make_backend();
        Meter meter(*backend, footprint_bytes);
        while (!stop_) meter.measure(point, kLeastPointSeconds);
      } catch (const DeviceError&) {  // memory is short: one thread fewer
      }
    };
    try {
      for (std::int64_t i = 0; i < count; ++i) threads_.emplace_back(work);
    } catch (const std::system_error&) {  // threads are short: fewer of them
    }
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

// Points that are also measured with all hardware threads busy: products and attention, most of a step.
std::vector<const KernelPoint*> busy_points(const std::vector<KernelPoint>& points) {
  constexpr std::size_t kEach = 4;
  constexpr double kMostFlops = 5e8;
  std::vector<const KernelPoint*> chosen;
  std::map<OpKind, std::size_t> of_kind;
  for (const KernelPoint& p : points) {
    const bool wanted = is_matmul(p.op.kind) || is_attention(p.op.kind);
    if (!wanted || flops(p.op, p.tensors) > kMostFlops || of_kind[p.op.kind] == kEach) continue;
    ++of_kind[p.op.kind];
    chosen.push_back(&p);
  }
  return chosen;
}

// A host with `ranks` ranks that exchange data in its memory.
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

// The measured points as one curve per collective.
std::vector<CollectiveCurve> curves_of(const std::vector<CollectiveCurve>& collectives, const Journal& journal) {
  std::vector<CollectiveCurve> curves;
  for (const CollectiveCurve& c : collectives) {
    const auto found = journal.points().find(c.id);
    if (found == journal.points().end()) continue;
    auto curve = std::ranges::find(curves, c.collective, &CollectiveCurve::collective);
    if (curve == curves.end()) {
      curve = curves.insert(curves.end(), c);
      curve->id = c.collective;
      curve->points.clear();
    }
    curve->points.push_back({c.points[0].bytes, found->second.seconds, 0});
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
      "orrery calibrate: {} of {} points, {}; operands rotate over {:.0f} MB; Huber fit in log space (width 0.1), "
      "Levenberg-Marquardt, slow outliers dropped",
      measured, planned, time, 1e-6 * o.footprint_bytes);
}

// One calibration: lists what to measure, measures in passes within a budget, and fits.
class CalibrationRun {
 public:
  CalibrationRun(const MakeBackend& make_backend, const CalibrateOptions& options)
      : make_backend_(make_backend),
        options_(options),
        backend_(make_backend()),
        facts_(backend_->facts()),
        points_(sweep(options.sweep)),
        journal_(opened(options, facts_)),
        meter_(*backend_, options.footprint_bytes),
        begin_(wall_seconds()) {
    if (facts_.kind == "cpu" && facts_.processors > 1) busy_ = busy_points(points_);
    if (!busy_.empty()) collectives_ = rank_collectives(std::min(facts_.processors, kMostCollectiveRanks));
    if (facts_.asynchronous_streams) pairs_ = overlap_pairs(options.sweep);
    progress_.total = static_cast<std::size_t>(options.passes) *
                      (points_.size() + busy_.size() + collectives_.size() + pairs_.size());
    progress_.budget_seconds = options.budget_seconds;
  }

  CalibrateResult run() {
    for (std::int64_t pass = 0; pass < options_.passes; ++pass) measure_all(/*first=*/pass == 0);
    return fitted();
  }

 private:
  static Journal opened(const CalibrateOptions& options, const BackendFacts& facts) {
    if (options.restart) std::remove(options.journal.c_str());
    return Journal(options.journal, {facts.kind, facts.device, facts.software, options.date});
  }

  // Runs one pass, as far as the budget allows.
  void measure_all(bool first) {
    for (const KernelPoint& point : points_) {
      if (to_be_skipped(point.id, first)) continue;
      if (stop()) break;
      measure(point, point.id);
    }
    for (const KernelPoint* point : busy_) {
      if (stop()) break;
      const Companions companions(make_backend_, *point, options_.footprint_bytes, facts_.processors - 1);
      measure(*point, busy_id(point->id));
    }
    for (const OverlapPair& pair : pairs_) {
      if (to_be_skipped(pair.copy_beside, first)) continue;  // the last of the four measurements
      if (stop()) break;
      measure(pair);
    }
    for (const CollectiveCurve& collective : collectives_) {
      if (stop()) break;
      const double seconds = time_rank_collective(collective, make_backend_);
      journal_.add(collective.id, {.seconds = seconds, .spread = 0, .issue_seconds = seconds, .repetitions = 1});
      report(collective.id);
    }
  }

  // An interrupted calibration first finishes its first pass, and then measures everything again.
  bool to_be_skipped(const std::string& id, bool first) {
    const bool known = first && journal_.points().count(id) > 0;
    if (known) ++progress_.done;
    return known || impossible_.count(id) > 0;
  }

  bool stop() {
    interrupted_ = interrupted_ || (options_.interrupted && options_.interrupted());
    return interrupted_ || wall_seconds() >= begin_ + options_.budget_seconds;
  }

  // Seconds for one point, out of the time that is left.
  double point_seconds() const {
    const double left =
        (begin_ + options_.budget_seconds - wall_seconds()) / static_cast<double>(progress_.total - progress_.done);
    return std::clamp(left / 2, kLeastPointSeconds, kMostPointSeconds);
  }

  void report(const std::string& id) {
    ++progress_.done;
    progress_.seconds = wall_seconds() - begin_;
    progress_.point = id;
    if (options_.progress) options_.progress(progress_);
  }

  template <class Measure>
  void try_to(const std::string& id, Measure measure) {
    try {
      measure();
    } catch (const DeviceError&) {
      backend_->synchronize();  // throws again if more than memory failed
      impossible_.insert(id);
    }
    report(id);
  }

  void measure(const KernelPoint& point, const std::string& id) {
    try_to(id, [&] { journal_.add(id, meter_.measure(point, point_seconds())); });
  }

  void measure(const OverlapPair& pair) {
    try_to(pair.copy_beside, [&] {
      const auto m = meter_.measure_overlap(pair.compute, pair.copy, point_seconds());
      streams_take_turns_ = streams_take_turns_ || !m;
      if (!m) return;
      journal_.add(pair.compute_alone, m->compute_alone);
      journal_.add(pair.copy_alone, m->copy_alone);
      journal_.add(pair.compute_beside, m->compute_beside);
      journal_.add(pair.copy_beside, m->copy_beside);
    });
  }

  CalibrateResult fitted() const {
    CalibrateResult result;
    result.interrupted = interrupted_;
    result.planned = points_.size();
    for (const KernelPoint& point : points_) result.measured += journal_.points().count(point.id);
    result.fit = fit_calibration(points_, journal_.points(), facts_, options_.preset);
    const std::string source =
        fmt::format("measured on {} by orrery calibrate --device {} ({})", facts_.device, facts_.kind, facts_.software);
    result.fit.overlaps = fit_overlaps(pairs_, journal_.points());
    if (result.fit.overlaps) {
      result.fit.overlaps->source = source;
    } else {
      result.fit.no_overlaps = pairs_.empty()        ? "the backend runs its streams one after another"
                               : streams_take_turns_ ? "copies and products did not overlap"
                                                     : "the time was up before both directions were measured";
    }
    if (const std::vector<CollectiveCurve> curves = curves_of(collectives_, journal_); !curves.empty())
      result.fit.collectives =
          fit_collectives(host_of(result.fit.device, curves.front().ranks), curves, source).classes;
    result.text = calibration_text(result.fit, source, journal_.header().date,
                                   describe_method(facts_, options_, result.measured, result.planned));
    return result;
  }

  const MakeBackend& make_backend_;
  const CalibrateOptions& options_;
  const std::unique_ptr<Backend> backend_;
  const BackendFacts facts_;
  const std::vector<KernelPoint> points_;
  // Measured again, with all other hardware threads busy too.
  std::vector<const KernelPoint*> busy_;
  std::vector<CollectiveCurve> collectives_;
  std::vector<OverlapPair> pairs_;
  Journal journal_;
  Meter meter_;
  std::set<std::string> impossible_;  // too large for the device's memory
  bool streams_take_turns_ = false, interrupted_ = false;
  CalibrationProgress progress_;
  const double begin_;
};

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
  return CalibrationRun(make_backend, options).run();
}

}  // namespace orrery
