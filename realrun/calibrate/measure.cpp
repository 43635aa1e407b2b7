#include "realrun/calibrate/measure.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

namespace orrery {
namespace {

constexpr std::int64_t kMostSets = 16;
constexpr int kLeastRepetitions = 5, kMostRepetitions = 200;
constexpr int kMostOverlapRepetitions = 20;  // each consists of many ops
// A batch of ops takes this long, so that reading the clocks around it costs nothing in comparison.
constexpr double kCpuBatchSeconds = 100e-6, kCudaBatchSeconds = 500e-6;
constexpr std::int64_t kMostInBatch = 4096;
// Length of work that runs beside other work: long against the difference of their starts and the clock's resolution.
constexpr double kOverlapSeconds = 20e-3;
// Streams that take turns do together what one does alone, to the clock's accuracy, or hardly overlap.
constexpr double kLeastSpeeds = 1.02, kLeastOverlap = 0.5;  // kLeastOverlap: fraction of the shorter of the two

double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

double percentile(const std::vector<double>& sorted, double share) {
  return sorted[static_cast<std::size_t>(share * static_cast<double>(sorted.size() - 1) + 0.5)];
}

using OperandSets = std::vector<std::unique_ptr<Operands>>;

OperandSets operand_sets(Backend& backend, const KernelPoint& point, double footprint_bytes) {
  double bytes = 0;
  for (const Tensor& t : point.tensors) bytes += static_cast<double>(t.elements() * backend.stored_bytes(t.dtype));
  const auto wanted = static_cast<std::int64_t>(std::ceil(footprint_bytes / std::max(bytes, 1.0)));
  OperandSets sets;
  for (std::int64_t i = 0; i < std::clamp<std::int64_t>(wanted, 1, kMostSets); ++i)
    sets.push_back(std::make_unique<Operands>(backend, point));
  return sets;
}

// Speed while the other work runs, relative to the speed alone: for work that takes `work` alone and took `duration`,
// of which `overlap` beside the other.
double speed_beside(double work, double duration, double overlap) { return (work - (duration - overlap)) / overlap; }

// A point whose ops run again and again, alone or beside another's.
class Runner {
 public:
  Runner(Backend& backend, const KernelPoint& point, double footprint_bytes)
      : backend_(backend),
        on_cpu_(backend.facts().kind == "cpu"),
        stream_(point.op.stream),
        sets_(operand_sets(backend, point, footprint_bytes)) {}

  Stream stream() const { return stream_; }
  void issue() { sets_[next_++ % sets_.size()]->run(); }
  // Runs `ops` ops, and returns the seconds of one by the clock that counts (Meter). Sets issue_seconds.
  double alone(std::int64_t ops) {
    const double wall = wall_seconds(), thread = thread_seconds();
    const Backend::Mark from = on_cpu_ ? 0 : backend_.mark(stream_);
    for (std::int64_t i = 0; i < ops; ++i) issue();
    issue_seconds = (on_cpu_ ? thread_seconds() - thread : wall_seconds() - wall) / static_cast<double>(ops);
    if (on_cpu_) return issue_seconds;
    const Backend::Mark to = backend_.mark(stream_);
    backend_.synchronize();
    const double spent = backend_.seconds(from, to) / static_cast<double>(ops);
    backend_.forget_marks();
    return spent;
  }
  // Returns how many ops take `duration`, but no more than kMostInBatch.
  std::int64_t ops_in(double duration) {
    alone(1);  // loads what is loaded once
    const double estimate = std::max(alone(1), 1e-9);
    return std::clamp<std::int64_t>(static_cast<std::int64_t>(std::ceil(duration / estimate)), 1, kMostInBatch);
  }

  std::int64_t count = 1;         // ops in kOverlapSeconds
  double issue_seconds = 0;       // of one op, when it last ran alone
  std::vector<double> seconds;    // of one op, alone
  std::vector<double> slowdowns;  // time beside the other over time alone

 private:
  Backend& backend_;
  const bool on_cpu_;
  const Stream stream_;
  OperandSets sets_;
  std::size_t next_ = 0;
};

constexpr double kMedian = 0.5;

Measurement measured(std::vector<double> seconds, double share = kMedian) {
  std::sort(seconds.begin(), seconds.end());
  Measurement m;
  m.seconds = percentile(seconds, share);
  m.spread = (percentile(seconds, 0.75) - percentile(seconds, 0.25)) / m.seconds;
  m.repetitions = static_cast<std::int64_t>(seconds.size());
  return m;
}

}  // namespace

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::optional<OverlapMeasurement> Meter::measure_overlap(const KernelPoint& compute, const KernelPoint& copy,
                                                         double seconds) {
  Runner products(backend_, compute, footprint_bytes_), copies(backend_, copy, footprint_bytes_);
  for (Runner* runner : {&products, &copies}) runner->count = runner->ops_in(kOverlapSeconds);
  const auto together = [&] {
    const double product_work = products.seconds.back() * static_cast<double>(products.count);
    const double copy_work = copies.seconds.back() * static_cast<double>(copies.count);
    const Backend::Mark copy_from = backend_.mark(copies.stream()), from = backend_.mark(products.stream());
    // Alternates evenly, so that neither stream runs empty while the other is filled.
    for (std::int64_t i = 0, j = 0; i < products.count || j < copies.count;) {
      const bool copy_next = j < copies.count && (i == products.count || j * products.count <= i * copies.count);
      (copy_next ? copies : products).issue();
      ++(copy_next ? j : i);
    }
    const Backend::Mark to = backend_.mark(products.stream()), copy_to = backend_.mark(copies.stream());
    backend_.synchronize();
    const double later = backend_.seconds(copy_from, from);
    const double duration = backend_.seconds(from, to), copy_duration = backend_.seconds(copy_from, copy_to);
    backend_.forget_marks();
    const double overlap = std::min(later + duration, copy_duration) - std::max(later, 0.0);
    if (overlap < kLeastOverlap * std::min(product_work, copy_work)) return;
    const double speed = speed_beside(product_work, duration, overlap);
    const double copy_speed = speed_beside(copy_work, copy_duration, overlap);
    if (speed <= 0 || copy_speed <= 0 || speed + copy_speed < kLeastSpeeds) return;
    products.slowdowns.push_back(1 / speed);
    copies.slowdowns.push_back(1 / copy_speed);
  };
  const double until = wall_seconds() + seconds;
  for (int done = 0; done < kMostOverlapRepetitions && (done < kLeastRepetitions || wall_seconds() < until); ++done) {
    products.seconds.push_back(products.alone(products.count));
    copies.seconds.push_back(copies.alone(copies.count));
    together();
  }
  if (2 * products.slowdowns.size() < products.seconds.size()) return std::nullopt;
  const auto beside = [](const Runner& runner, const Measurement& alone) {
    std::vector<double> all;
    for (const double times : runner.slowdowns) all.push_back(times * alone.seconds);
    return measured(std::move(all));
  };
  OverlapMeasurement m;
  m.compute_alone = measured(products.seconds);
  m.copy_alone = measured(copies.seconds);
  m.compute_beside = beside(products, m.compute_alone);
  m.copy_beside = beside(copies, m.copy_alone);
  return m;
}

Measurement Meter::measure(const KernelPoint& point, double seconds) {
  Runner runner(backend_, point, footprint_bytes_);
  const bool cpu = backend_.facts().kind == "cpu";
  const std::int64_t batch = runner.ops_in(cpu ? kCpuBatchSeconds : kCudaBatchSeconds);
  std::vector<double> all, issued;
  const double until = wall_seconds() + seconds;
  while (static_cast<int>(all.size()) < kMostRepetitions &&
         (static_cast<int>(all.size()) < kLeastRepetitions || wall_seconds() < until)) {
    all.push_back(runner.alone(batch));
    issued.push_back(runner.issue_seconds);
  }
  constexpr double kCpuPercentile = 0.1;
  const double share = cpu ? kCpuPercentile : kMedian;
  Measurement m = measured(all, share);
  m.issue_seconds = measured(issued, share).seconds;
  return m;
}

}  // namespace orrery
