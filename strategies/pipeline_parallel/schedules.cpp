#include "strategies/pipeline_parallel/schedules.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "strategies/strategy.h"

namespace orrery::pipeline_parallel {

namespace {

// A slot of a pattern under construction; counts are 64 bit until they are stored.
struct Step {
  SlotKind kind;
  std::int64_t chunk;
  std::int64_t micro_batch;
};
constexpr SlotKind F = SlotKind::forward, B = SlotKind::backward, W = SlotKind::weight_gradient;

// Writes the stages' orders one after the other.
class OrderWriter {
 public:
  explicit OrderWriter(Schedule& out) : out_(out) {}

  void begin_stage() {
    const std::uint32_t here = size();
    out_.stages.push_back({.begin = here, .body = here, .epilogue = here, .end = here, .repeats = 0, .advance = 0});
  }
  void begin_body(std::int64_t repeats, std::int64_t advance) {
    out_.stages.back().body = size();
    out_.stages.back().repeats = static_cast<std::uint32_t>(repeats);
    out_.stages.back().advance = static_cast<std::uint32_t>(advance);
  }
  void begin_epilogue() { out_.stages.back().epilogue = size(); }
  void end_stage() {
    Schedule::StageSegments& stage = out_.stages.back();
    stage.end = size();
    if (stage.repeats == 0) stage.body = stage.epilogue = stage.end;
  }

  template <std::size_t kSteps>
  void add(const Step (&steps)[kSteps], std::int64_t repeats) {
    static_assert(kSteps <= Segment::kMaxSlots);
    if (repeats <= 0) return;
    Segment& segment = out_.segments.emplace_back();
    segment.repeats = static_cast<std::uint32_t>(repeats);
    segment.size = kSteps;
    for (std::size_t i = 0; i < kSteps; ++i)
      segment.slots[i] = {steps[i].kind, static_cast<std::uint16_t>(steps[i].chunk),
                          static_cast<std::uint32_t>(steps[i].micro_batch)};
  }

  // The same, but skips slots of micro-batches that do not exist.
  void add_existing(std::initializer_list<Step> steps, std::int64_t repeats) {
    const std::int64_t m = out_.micro_batches;
    for (std::int64_t done = 0; done < repeats;) {
      Segment segment;
      std::int64_t n = repeats - done;
      for (const Step& step : steps) {
        const std::int64_t micro_batch = step.micro_batch + done;
        if (micro_batch >= m) continue;
        n = std::min(n, m - micro_batch);
        segment.slots[segment.size++] = {step.kind, static_cast<std::uint16_t>(step.chunk),
                                         static_cast<std::uint32_t>(micro_batch)};
      }
      if (segment.size == 0) return;
      segment.repeats = static_cast<std::uint32_t>(n);
      out_.segments.push_back(segment);
      done += n;
    }
  }

 private:
  std::uint32_t size() const { return static_cast<std::uint32_t>(out_.segments.size()); }
  Schedule& out_;
};

// Huang et al. 2019, figure 2c. Backwards in the order of the forwards, as Megatron-LM and PyTorch run them.
void gpipe(OrderWriter& order, std::int64_t m) {
  order.add({{F, 0, 0}}, m);
  order.add({{B, 0, 0}}, m);
}

// Narayanan et al. 2021, figure 4 (top): PipeDream-Flush.
void one_f_one_b(OrderWriter& order, std::int64_t p, std::int64_t m, std::int64_t stage, bool pairs) {
  const std::int64_t warm_up = std::min(p - 1 - stage + (pairs ? 1 : 0), m);
  order.add({{F, 0, 0}}, warm_up);
  order.add({{F, 0, warm_up}, {B, 0, 0}}, m - warm_up);
  order.add({{B, 0, m - warm_up}}, warm_up);
}

// Qi et al. 2024 (Zero Bubble), section 2.1: 1F1B's order of F and B; stage s runs the weight gradient of a
// micro-batch s backwards late, so that every stage holds at most p micro-batches.
void zb_h1(OrderWriter& order, std::int64_t p, std::int64_t m, std::int64_t stage) {
  const std::int64_t warm_up = std::min(p - 1 - stage, m);
  const std::int64_t delay = std::min(stage, m);
  const std::int64_t pairs = m - warm_up, late_pairs = std::min(delay, pairs), late_drain = delay - late_pairs;
  order.add({{F, 0, 0}}, warm_up);
  order.add({{F, 0, warm_up}, {B, 0, 0}}, late_pairs);
  order.add({{F, 0, warm_up + late_pairs}, {B, 0, late_pairs}, {W, 0, 0}}, pairs - late_pairs);
  order.add({{B, 0, pairs}}, late_drain);
  order.add({{B, 0, pairs + late_drain}, {W, 0, pairs + late_drain - delay}}, warm_up - late_drain);
  order.add({{W, 0, m - delay}}, delay);
}

// Qi et al. 2024 (Zero Bubble), section 6, for F = B = W: 2 chunks per stage, the second running back up
// the stages. A stage always runs B of a chunk with its W and alternates between the chunks; in the drain W waits.
void zb_v(OrderWriter& order, std::int64_t p, std::int64_t m, std::int64_t stage) {
  const std::int64_t s = stage, up = p - stage;      // `up`: this stage and those after it
  const std::int64_t full = std::max(m, 2 * p - 1);  // fewer micro-batches: the order of 2p-1 with the rest left out
  const std::int64_t steady = full - 2 * p + s + 1;
  order.add_existing({{F, 0, 0}}, 2 * up - 1);
  order.add_existing({{F, 1, 0}, {F, 0, 2 * up - 1}}, s);
  order.add_existing({{F, 1, s}, {B, 1, 0}, {W, 1, 0}}, up);
  order.add_existing({{F, 0, 2 * p - 1 - s}, {B, 0, 0}, {W, 0, 0}, {F, 1, p}, {B, 1, up}, {W, 1, up}}, steady);
  order.add_existing({{B, 0, steady}, {W, 0, steady}, {F, 1, p + steady}, {B, 1, up + steady}, {W, 1, up + steady}},
                     up - 1);
  order.add_existing({{B, 0, full - p}, {B, 1, full - s}}, s);
  order.add_existing({{B, 0, full - up}, {W, 0, full - p}}, up);
  order.add_existing({{W, 1, full - s}}, s);
  order.add_existing({{W, 0, full - s}}, s);
}

// DualPipeV (github deepseek-ai/DualPipe, dualpipev.py): the V of zb-v; in its steady state a forward of one chunk runs
// beside a backward of the other. DualPipe (DeepSeek-V3, arXiv 2412.19437, section 3.2.1) on 2p stages, which is fed
// from both ends, equals two of these on p stages each, with half of the micro-batches each.
void dualpipe_v(OrderWriter& order, std::int64_t p, std::int64_t m, std::int64_t stage) {
  const std::int64_t s = stage, down = p - s - 1, steady = m - 2 * p + s + 1;
  std::int64_t f0 = 0, f1 = 0, b0 = 0, b1 = 0, w0 = 0, w1 = 0;
  order.add({{F, 0, 0}}, 2 * down);
  f0 = 2 * down;
  order.add({{F, 0, f0}, {F, 1, 0}}, s + 1);
  f0 += s + 1, f1 = s + 1;
  order.add({{B, 1, 0}, {W, 1, 0}, {F, 1, f1}}, down);
  b1 = w1 = down, f1 += down;
  order.add({{F, 0, f0}, {B, 1, b1}, {W, 1, w1}, {F, 1, f1}, {B, 0, 0}, {W, 0, 0}}, steady);
  b1 += steady, w1 += steady, f1 += steady, b0 = w0 = steady;
  order.add({{B, 1, b1}, {W, 1, w1}, {F, 1, f1}, {B, 0, b0}, {W, 0, w0}}, down);
  b1 += down, w1 += down, b0 += down, w0 += down;
  // The last backwards: from the middle on without their weight gradients, which fill the remaining slots.
  std::vector<Step> late;
  const auto backward = [&](std::int64_t chunk, bool with_weights) {
    std::int64_t &b = chunk == 0 ? b0 : b1, &w = chunk == 0 ? w0 : w1;
    if (with_weights)
      order.add({{B, chunk, b}, {W, chunk, w}}, 1);
    else {
      order.add({{B, chunk, b}}, 1);
      late.push_back({W, chunk, w});
    }
    ++b, ++w;
  };
  bool with_weights = true;
  for (std::int64_t i = 0; i <= s; ++i) {
    if (i == (s + 1) / 2 && s % 2 == 1) with_weights = false;
    backward(1, with_weights);
    if (i == (s + 1) / 2 && s % 2 == 0) with_weights = false;
    backward(0, with_weights);
  }
  std::size_t next = 0;
  for (std::int64_t i = 0; i < down; ++i) {
    order.add({late[next++]}, 1);
    backward(0, false);
  }
  while (next < late.size()) order.add({late[next++]}, 1);
}

// Narayanan et al. 2021, section 2.2, in the order of Megatron-LM's schedules.py: micro-batches go in groups of p; the
// k-th forward of a stage is of chunk (k mod pv) / p, micro-batch p (k / pv) + k mod p; backwards likewise with the
// chunks from last to first.
class Interleaved {
 public:
  Interleaved(OrderWriter& order, std::int64_t p, std::int64_t v, std::int64_t m, bool pairs)
      : order_(order), p_(p), v_(v), total_(m * v), earlier_(pairs ? 1 : 0) {}

  void stage(std::int64_t s) {
    const std::int64_t period = p_ * v_;
    // Megatron-LM runs all forwards first when there is one group only.
    const std::int64_t warm_up = total_ == period ? total_ : std::min(2 * (p_ - s - 1) + (v_ - 1) * p_ + earlier_, total_);
    const std::int64_t pairs = total_ - warm_up, repeats = pairs / period;
    Count f, b;
    only(F, f, warm_up);
    order_.begin_body(repeats, p_);
    if (repeats > 0) {
      both(f, b, period);
      for (Count* count : {&f, &b}) count->first += (repeats - 1) * p_;
    }
    order_.begin_epilogue();
    both(f, b, pairs - repeats * period);
    only(B, b, warm_up);
  }

 private:
  // k = group * pv + run * p + place; `first` is the group's first micro-batch.
  struct Count {
    std::int64_t place = 0, run = 0, first = 0;
  };
  Step step(SlotKind kind, const Count& k) const {
    return {kind, kind == F ? k.run : v_ - 1 - k.run, k.first + k.place};
  }
  void advance(Count& k, std::int64_t n) const {
    k.place += n;
    if (k.place < p_) return;
    k.place = 0;
    if (++k.run == v_) k.run = 0, k.first += p_;
  }

  void only(SlotKind kind, Count& k, std::int64_t count) {
    for (std::int64_t n = 0; count > 0; count -= n) {
      n = std::min(count, p_ - k.place);
      order_.add({step(kind, k)}, n);
      advance(k, n);
    }
  }
  void both(Count& f, Count& b, std::int64_t count) {
    for (std::int64_t n = 0; count > 0; count -= n) {
      n = std::min({count, p_ - f.place, p_ - b.place});
      order_.add({step(F, f), step(B, b)}, n);
      advance(f, n);
      advance(b, n);
    }
  }

  OrderWriter& order_;
  std::int64_t p_, v_, total_, earlier_;
};

}  // namespace

bool is_v(ScheduleKind kind) { return kind == ScheduleKind::zb_v || kind == ScheduleKind::dualpipe_v; }

ScheduleKind effective_schedule(const Options& options) {
  const bool interleaved = options.schedule == ScheduleKind::one_f_one_b && options.virtual_stages > 1;
  return interleaved ? ScheduleKind::interleaved : options.schedule;
}

std::int64_t chunks_per_stage(const Options& options) {
  const ScheduleKind kind = effective_schedule(options);
  return is_v(kind) ? 2 : kind == ScheduleKind::interleaved ? options.virtual_stages : 1;
}

std::size_t stage_of_position(const Options& options, std::size_t position) {
  const auto stages = static_cast<std::size_t>(options.degree);
  const bool up = is_v(effective_schedule(options)) && position >= stages;
  return up ? 2 * stages - 1 - position : position % stages;
}

// Returns the limit that a number of model chunks per stage breaks, or nothing if the schedule runs as many.
static std::optional<Limit> chunks_limit(ScheduleKind kind, std::int64_t chunks) {
  const bool interleaved = kind == ScheduleKind::interleaved;
  if (interleaved ? chunks >= 2 : chunks == (is_v(kind) ? 2 : 1)) return std::nullopt;
  return Limit{"virtual_pipeline", fmt::to_string(chunks),
               fmt::format("{} per stage for the {} schedule",
                           interleaved  ? "at least 2 model chunks"
                           : is_v(kind) ? "2 model chunks"
                                        : "1 model chunk",
                           kScheduleNames[static_cast<std::size_t>(kind)])};
}

std::optional<Limit> schedule_limit(ScheduleKind kind, std::int64_t stages, std::int64_t chunks,
                                    std::int64_t micro_batches) {
  constexpr std::int64_t kMost = 65535;  // largest value of Slot::chunk; the same limit holds for stages
  if (stages < 1 || stages > kMost)
    return Limit{"pipeline_parallel", fmt::to_string(stages), fmt::format("1 to {} stages", kMost)};
  if (chunks < 1 || chunks > kMost)
    return Limit{"virtual_pipeline", fmt::to_string(chunks), fmt::format("1 to {} model chunks per stage", kMost)};
  constexpr std::int64_t kMostMicroBatches = std::int64_t{1} << 20;  // far more than any real step has
  const std::int64_t most = std::min(kMostMicroBatches, std::numeric_limits<std::int32_t>::max() / chunks);
  if (micro_batches < 1 || micro_batches > most)
    return Limit{"global_batch_size", fmt::format("{} micro-batches", micro_batches),
                 fmt::format("1 to {} micro-batches per pipeline", most)};
  if (auto limit = chunks_limit(kind, chunks)) return limit;
  if (kind == ScheduleKind::interleaved && stages < 2)
    return Limit{"pipeline_parallel", fmt::to_string(stages), "at least 2 stages for the interleaved schedule"};
  if (kind == ScheduleKind::interleaved && micro_batches % stages != 0)
    return Limit{"global_batch_size", fmt::format("{} micro-batches", micro_batches),
                 fmt::format("a multiple of the {} pipeline stages for the interleaved schedule", stages)};
  if (kind == ScheduleKind::dualpipe_v && micro_batches < 2 * stages)
    return Limit{"global_batch_size", fmt::format("{} micro-batches", micro_batches),
                 fmt::format("at least {} micro-batches, two per stage, for the dualpipev schedule", 2 * stages)};
  return std::nullopt;
}

std::int64_t counted_layers(std::int64_t layers, const Options& options) {
  return layers + (options.embedding_counts_as_layer ? 1 : 0) + (options.head_counts_as_layer ? 1 : 0);
}

bool is_even(std::int64_t layers, const Options& options) {
  return !options.stage_layers.empty() ||
         counted_layers(layers, options) % (options.degree * chunks_per_stage(options)) == 0;
}

std::optional<Limit> options_limit(const Options& options, std::int64_t layers) {
  const ScheduleKind kind = effective_schedule(options);
  const std::int64_t v = options.virtual_stages;
  if (auto limit = chunks_limit(kind, is_v(kind) && v == 1 ? 2 : v)) return limit;
  const std::int64_t chunks = options.degree * chunks_per_stage(options);
  if (!options.stage_layers.empty()) {
    const std::vector<std::int64_t>& given = options.stage_layers;
    const std::int64_t sum = std::accumulate(given.begin(), given.end(), std::int64_t{0});
    if (static_cast<std::int64_t>(given.size()) != chunks)
      return Limit{"pipeline_stage_layers", fmt::format("{} numbers", given.size()),
                   fmt::format("{}, one for each model chunk", chunks)};
    if (sum != layers)
      return Limit{"pipeline_stage_layers", fmt::format("{} layers in all", sum),
                   fmt::format("the model's {} layers", layers)};
    return std::nullopt;
  }
  const std::int64_t counted = counted_layers(layers, options);
  if (counted < chunks)
    return Limit{kind == ScheduleKind::interleaved ? "virtual_pipeline" : "pipeline_parallel",
                 fmt::format("{} model chunks", chunks), fmt::format("at most one for each of the {} layers", counted)};
  return std::nullopt;
}

void build_schedule(ScheduleKind kind, std::int64_t stages, std::int64_t chunks, std::int64_t micro_batches,
                    Schedule& out, bool pairs) {
  if (const auto limit = schedule_limit(kind, stages, chunks, micro_batches))
    throw std::logic_error(
        fmt::format("build_schedule: {}: found {}, expected {}", limit->field, limit->found, limit->expected));
  out.clear();
  out.micro_batches = micro_batches;
  out.chunks = chunks;
  out.split_backward = kind == ScheduleKind::zb_h1 || is_v(kind);

  out.pairs = pairs || kind == ScheduleKind::dualpipe_v;
  if (pairs && kind != ScheduleKind::dualpipe_v && kind != ScheduleKind::one_f_one_b && kind != ScheduleKind::interleaved)
    throw std::logic_error("build_schedule: pairs of slots in a schedule that is neither 1f1b nor interleaved");

  OrderWriter order(out);
  Interleaved interleaved(order, stages, chunks, micro_batches, pairs);
  for (std::int64_t s = 0; s < stages; ++s) {
    order.begin_stage();
    switch (kind) {
      case ScheduleKind::gpipe:
        gpipe(order, micro_batches);
        break;
      case ScheduleKind::one_f_one_b:
        one_f_one_b(order, stages, micro_batches, s, pairs);
        break;
      case ScheduleKind::interleaved:
        interleaved.stage(s);
        break;
      case ScheduleKind::zb_h1:
        zb_h1(order, stages, micro_batches, s);
        break;
      case ScheduleKind::zb_v:
        zb_v(order, stages, micro_batches, s);
        break;
      case ScheduleKind::dualpipe_v:
        dualpipe_v(order, stages, micro_batches, s);
        break;
    }
    order.end_stage();
    for (std::int64_t c = 0; c < chunks; ++c)
      out.position.push_back(is_v(kind) && c == 1 ? 2 * stages - 1 - s : c * stages + s);
  }
}

std::vector<std::int64_t> split_layers(std::int64_t layers, const Options& options) {
  if (!options.stage_layers.empty()) return options.stage_layers;
  const std::int64_t p = options.degree, n = p * chunks_per_stage(options);
  const std::int64_t counted = counted_layers(layers, options);
  const std::int64_t rest = counted % n;
  std::vector<std::int64_t> split(static_cast<std::size_t>(n), counted / n);
  if (is_v(effective_schedule(options))) {
    // The chunk of the way down first, then that of the way up: no stage gets two before each has one.
    for (std::int64_t i = 0; i < rest; ++i) ++split[i < p ? p - 1 - i : i];
  } else {
    for (std::int64_t i = 0; i < rest; ++i) ++split[(n - rest) / 2 + i];
  }
  split.front() -= options.embedding_counts_as_layer;
  split.back() -= options.head_counts_as_layer;
  return split;
}

std::int64_t most_layers_of_chunks(const Scenario& scenario) {
  return std::ranges::max(split_layers(scenario.model.total_layers(), scenario.plan.pipeline));
}

void check_layers_of_chunks(const Scenario& scenario, const char* field, std::int64_t layers) {
  if (layers <= 0) return;
  if (const std::int64_t most = most_layers_of_chunks(scenario); layers > most)
    refuse(scenario.plan, field, fmt::format("at most the {} layers of a stage's chunk (-1: all of them)", most));
}

}  // namespace orrery::pipeline_parallel
