#include "realrun/calibrate/measure.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "realrun/layout.h"

namespace orrery {
namespace {

constexpr std::int64_t kMostSets = 16;
constexpr int kLeastRepetitions = 5, kMostRepetitions = 200;
// Clocks are read around as many ops as take this long, so that reading them costs nothing against it.
constexpr double kCpuBatchSeconds = 100e-6, kCudaBatchSeconds = 500e-6;
constexpr std::int64_t kMostInBatch = 4096;

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

double percentile(const std::vector<double>& sorted, double share) {
  return sorted[static_cast<std::size_t>(share * static_cast<double>(sorted.size() - 1) + 0.5)];
}

// One set of operands in the backend's memory.
class OperandSet {
 public:
  OperandSet(Backend& backend, const SweepPoint& point) : backend_(backend), point_(point) {
    memory_.assign(point.tensors.size(), nullptr);
    try {
      for (std::size_t i = 0; i < memory_.size(); ++i) {
        const Tensor& t = point.tensors[i];
        memory_[i] = backend.allocate(t.elements(), t.dtype, place(i), point.op.stream);
        fill(i);
      }
    } catch (...) {
      free();
      throw;
    }
    for (const Op& op : point.before) run(op);
  }
  ~OperandSet() { free(); }
  OperandSet(const OperandSet&) = delete;
  OperandSet& operator=(const OperandSet&) = delete;

  void run(const Op& op) {
    if (is_copy(op.kind)) {
      const Tensor& t = point_.tensors[op.reads[0]];
      backend_.copy(op.stream, memory_[op.writes[0]], memory_[op.reads[0]],
                    t.elements() * backend_.stored_bytes(t.dtype));
      return;
    }
    std::array<Operand, 6> reads;
    std::array<Operand, 4> writes;
    for (std::size_t i = 0; i < reads.size(); ++i) reads[i] = operand(op.reads[i]);
    for (std::size_t i = 0; i < writes.size(); ++i) writes[i] = operand(op.writes[i]);
    KernelContext context;
    context.attention_scale = 1 / std::sqrt(kHeadDim);
    backend_.run(op, reads, writes, context);
  }

 private:
  static constexpr double kHeadDim = 64;

  Operand operand(TensorId id) const { return id == kNoTensor ? Operand{} : Operand{memory_[id], &point_.tensors[id]}; }
  MemoryPlace place(std::size_t i) const {
    const Op& op = point_.op;
    const bool host = (op.kind == OpKind::copy_to_host && op.writes[0] == i) ||
                      (op.kind == OpKind::copy_to_device && op.reads[0] == i);
    return host ? MemoryPlace::host : MemoryPlace::device;
  }
  void fill(std::size_t i) {
    const Tensor& t = point_.tensors[i];
    const OperandFill& how = point_.fills[i];
    const Slice slice{.base = memory_[i], .dtype = t.dtype, .offset = 0, .elements = t.elements()};
    if (how.kind == OperandFill::Kind::constant) {
      backend_.fill(point_.op.stream, slice, static_cast<float>(how.value));
      backend_.synchronize(point_.op.stream);
      return;
    }
    std::vector<float> values(static_cast<std::size_t>(t.elements()));
    // At random, as data is: a kernel whose branches or exponents a regular pattern foretells runs up to twice as fast.
    for (std::size_t e = 0; e < values.size(); ++e) {
      const auto uniform = [&](std::uint64_t draw) { return realrun::counter_uniform(draw, i, e); };  // [-1, 1)
      const double at = (uniform(0) + 1) / 2;
      values[e] = static_cast<float>(how.kind == OperandFill::Kind::ids        ? std::floor(at * how.value)
                                     : how.kind == OperandFill::Kind::positive ? at
                                                                               : uniform(0) + uniform(1) + uniform(2));
    }
    backend_.write(slice, values);
  }
  void free() {
    backend_.synchronize();
    for (void* memory : memory_)
      if (memory != nullptr) backend_.release(memory);
  }

  Backend& backend_;
  const SweepPoint& point_;
  std::vector<void*> memory_;
};

}  // namespace

Measurement Meter::measure(const SweepPoint& point, double seconds) {
  double bytes = 0;
  for (const Tensor& t : point.tensors) bytes += static_cast<double>(t.elements() * backend_.stored_bytes(t.dtype));
  const auto wanted = static_cast<std::int64_t>(std::ceil(footprint_bytes_ / std::max(bytes, 1.0)));
  std::vector<std::unique_ptr<OperandSet>> sets;
  for (std::int64_t i = 0; i < std::clamp<std::int64_t>(wanted, 1, kMostSets); ++i)
    sets.push_back(std::make_unique<OperandSet>(backend_, point));

  const bool cpu = backend_.facts().kind == "cpu";
  const Stream stream = point.op.stream;
  std::size_t next = 0;
  double issue = 0;
  const auto once = [&](std::int64_t batch) {  // seconds for each op of a batch
    const double wall = wall_seconds(), thread = thread_seconds();
    const Backend::Mark from = cpu ? 0 : backend_.mark(stream);
    for (std::int64_t i = 0; i < batch; ++i) sets[next++ % sets.size()]->run(point.op);
    issue = (cpu ? thread_seconds() - thread : wall_seconds() - wall) / static_cast<double>(batch);
    if (cpu) return issue;
    const Backend::Mark to = backend_.mark(stream);
    backend_.synchronize();
    const double spent = backend_.seconds(from, to) / static_cast<double>(batch);
    backend_.forget_marks();
    return spent;
  };

  once(1);  // loads what is loaded once
  const double batch_seconds = cpu ? kCpuBatchSeconds : kCudaBatchSeconds;
  const double estimate = std::max(once(1), 1e-9);
  const std::int64_t batch =
      std::clamp<std::int64_t>(static_cast<std::int64_t>(std::ceil(batch_seconds / estimate)), 1, kMostInBatch);
  std::vector<double> all, issued;
  const double until = wall_seconds() + seconds;
  while (static_cast<int>(all.size()) < kMostRepetitions &&
         (static_cast<int>(all.size()) < kLeastRepetitions || wall_seconds() < until)) {
    all.push_back(once(batch));
    issued.push_back(issue);
  }
  std::sort(all.begin(), all.end());
  std::sort(issued.begin(), issued.end());
  constexpr double kCpuPercentile = 0.1, kMedian = 0.5;
  Measurement m;
  m.seconds = percentile(all, cpu ? kCpuPercentile : kMedian);
  m.spread = (percentile(all, 0.75) - percentile(all, 0.25)) / m.seconds;
  m.issue_seconds = percentile(issued, cpu ? kCpuPercentile : kMedian);
  m.repetitions = static_cast<std::int64_t>(all.size());
  return m;
}

}  // namespace orrery
