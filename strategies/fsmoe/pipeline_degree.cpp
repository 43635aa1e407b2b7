#include "strategies/fsmoe/pipeline_degree.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "sim/base/error.h"
#include "sim/report/format.h"

namespace orrery::fsmoe {
namespace {

// Section 6.2: elements of collectives, and of what products read.
constexpr std::int64_t kCollectiveStep = 1 << 18, kCollectiveSizes = 24, kProductStep = 1 << 19, kProductSizes = 12;

bool is_expert_product(const Op& op) { return is_matmul(op.kind) && op.group_dims > 0; }

bool has_slots(const Piece& piece, TensorId id) { return id != kNoTensor && piece.tensors[id].find(Axis::slots) >= 0; }

// Ops of one kind on rows, of a layer with experts on one rank: all of them are `operations` of the cases.
class Profiler {
 public:
  Profiler(const Evaluated& evaluated, const Piece& piece) : evaluated_(evaluated), piece_(piece) {
    for (const Tensor& t : piece.tensors)
      if (const int d = t.find(Axis::slots); d >= 0) slots_ = slots_ == 0 ? t.sizes[d] : std::min(slots_, t.sizes[d]);
  }

  template <typename Wanted>
  ProfiledTime of(const Wanted& wanted, bool products, double operations) const {
    ProfiledTime result;
    double whole = 0;  // seconds but for starting up
    for (const Op& op : piece_.forward.ops) {
      if (!wanted(op) || !has_slots(piece_, op.reads[0])) continue;
      const ProfiledTime one = of_op(op, products);
      // Each hop of an exchange starts up by itself; n stays what a rank hands over.
      result.time.start_up += one.time.start_up / operations;
      result.units = products ? result.units + one.units : std::max(result.units, one.units);
      whole += one.units * one.time.per_unit / operations;
      result.determination = std::min(result.determination, one.determination);
    }
    result.time.per_unit = result.units > 0 ? whole / result.units : 0;
    return result;
  }

  // A collective of which pieces are issued: its operands' elements are the units.
  ProfiledTime of_pieces(Op op) const {
    const double whole = elements(op, piece_.tensors);
    op.is_part = true;
    op.every = op.count = 1;
    std::vector<Measured> measured;
    for (std::int64_t i = 1; i <= kCollectiveSizes; ++i) {
      op.share = static_cast<double>(i * kCollectiveStep) / whole;
      measured.push_back({static_cast<double>(i * kCollectiveStep), evaluated_.time(op, piece_.tensors).seconds});
    }
    ProfiledTime result = fitted(measured);
    result.units = whole;
    return result;
  }

  // The backward's ops without rows of experts, except the all-reduce of gradients.
  double dense_seconds() const {
    double seconds = 0;
    for (const Op& op : piece_.backward.ops) {
      const auto of_rows = [&](TensorId id) { return has_slots(piece_, id); };
      if (op.stream == Stream::data_communication || std::ranges::any_of(op.reads, of_rows) ||
          std::ranges::any_of(op.writes, of_rows))
        continue;
      seconds += evaluated_.time(op, piece_.tensors).seconds;
    }
    return seconds;
  }

 private:
  struct Measured {
    double units, seconds;
  };

  Measured at(const Op& op, std::int64_t slots, bool products) const {
    std::vector<Tensor> tensors = piece_.tensors;
    for (Tensor& t : tensors)
      if (const int d = t.find(Axis::slots); d >= 0) t.sizes[d] = t.sizes[d] / slots_ * slots;
    const Evaluated::Time time = evaluated_.time(op, tensors);
    return {products ? time.flops / 2 : elements(op, tensors), time.seconds};
  }

  // The larger side: elements that a rank sends or gathers.
  static double elements(const Op& op, std::span<const Tensor> tensors) {
    return static_cast<double>(std::max(tensors[op.reads[0]].elements(), tensors[op.writes[0]].elements()));
  }

  ProfiledTime of_op(const Op& op, bool products) const {
    const double of_slot =
        products ? static_cast<double>(piece_.tensors[op.reads[0]].elements()) / static_cast<double>(slots_)
                 : elements(op, piece_.tensors) / static_cast<double>(slots_);
    std::vector<Measured> measured;
    const std::int64_t step = products ? kProductStep : kCollectiveStep;
    for (std::int64_t i = 1; i <= (products ? kProductSizes : kCollectiveSizes); ++i)
      measured.push_back(at(
          op, std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(i * step) / of_slot)), products));
    ProfiledTime result = fitted(measured);
    result.units = at(op, slots_, products).units;
    return result;
  }

  static ProfiledTime fitted(std::span<const Measured> measured) {
    double mean_units = 0, mean_seconds = 0;
    for (const Measured& m : measured) {
      mean_units += m.units / static_cast<double>(measured.size());
      mean_seconds += m.seconds / static_cast<double>(measured.size());
    }
    double units = 0, seconds = 0, both = 0;
    for (const Measured& m : measured) {
      units += (m.units - mean_units) * (m.units - mean_units);
      seconds += (m.seconds - mean_seconds) * (m.seconds - mean_seconds);
      both += (m.units - mean_units) * (m.seconds - mean_seconds);
    }
    ProfiledTime result;
    if (!(units > 0)) return result;
    result.time.per_unit = both / units;
    // Sizes that are bound by something else than at first may bend the line below 0.
    result.time.start_up = std::max(0.0, mean_seconds - result.time.per_unit * mean_units);
    if (seconds > 0) result.determination = both * both / (units * seconds);
    return result;
  }

  const Evaluated& evaluated_;
  const Piece& piece_;
  std::int64_t slots_ = 0;  // of an expert, for one rank's tokens
};

[[noreturn]] void refuse(const std::string& found) {
  throw InputError({"--explain", ""}, found,
                   "a plan that divides layers with experts into chunks: moe_schedule \"tutel\", \"fsmoe_no_iio\" or "
                   "\"fsmoe\", with expert_parallel");
}

void profile(const Evaluated& sequential, PipelineDegrees& degrees) {
  const Program& program = sequential.program();
  const auto piece = std::ranges::find_if(
      program.pieces, [](const Piece& p) { return std::ranges::any_of(p.forward.ops, is_expert_product); });
  if (piece == program.pieces.end()) refuse("no experts");
  degrees.layer = piece->name;
  const Profiler profiler(sequential, *piece);
  const auto of_kind = [](OpKind kind) { return [kind](const Op& op) { return op.kind == kind; }; };
  degrees.all_to_all = profiler.of(of_kind(OpKind::redistribute), false, 2);
  degrees.all_gather = profiler.of(of_kind(OpKind::all_gather), false, 1);
  degrees.reduce_scatter = profiler.of(of_kind(OpKind::reduce_scatter), false, 1);
  degrees.experts = profiler.of(is_expert_product, true, 1);

  GradientPieces& gradients = degrees.gradients;
  for (const Block* block : {&piece->backward, &piece->update})
    for (const Op& op : block->ops)
      if (op.kind == OpKind::all_reduce && op.stream == Stream::data_communication && gradients.all_reduce.units == 0)
        gradients.all_reduce = profiler.of_pieces(op);
  gradients.dense_seconds = profiler.dense_seconds();
  const auto number = static_cast<std::uint16_t>(piece - program.pieces.begin());
  for (const std::vector<Chunk>& stage : program.stages) {
    std::int64_t here = 0;
    for (const Chunk& chunk : stage)
      for (const PieceRun& run : chunk.runs)
        if (run.piece == number || program.pieces[run.piece].variant_of == number) here += run.count;
    gradients.layers = std::max(gradients.layers, here);
  }
}

// The mean over layers after the first, which has no layer before it.
StepByShares shares_of(const char* name, const GradientPartition& partition, double elements) {
  StepByShares shares{name};
  const auto layers = static_cast<double>(partition.in_moe.size() - 1);
  for (std::size_t i = 1; i < partition.in_moe.size(); ++i) {
    shares.experts += partition.in_moe[i] / elements / layers;
    shares.dense += partition.in_dense[i] / elements / layers;
  }
  shares.dense = std::min(shares.dense, 1 - shares.experts);  // but for rounding
  return shares;
}

void partition_gradients(const LayerTimes& backward, Scenario changed, const Evaluate& evaluate,
                         PipelineDegrees& degrees) {
  GradientPieces& gradients = degrees.gradients;
  if (gradients.all_reduce.units == 0 || gradients.layers < 2) {
    gradients.refused =
        gradients.layers < 2 ? "a stage has only one layer with experts" : "no layer's gradients are all-reduced";
    return;
  }
  const std::vector<GeneralisedLayer> layers(static_cast<std::size_t>(gradients.layers),
                                             {backward, gradients.dense_seconds, gradients.all_reduce.units});
  gradients.greedy = greedy_partition(layers, gradients.all_reduce.time);
  gradients.global = best_partition(layers, gradients.all_reduce.time);

  changed.plan.fsmoe.forward_degree = degrees.fastest().forward;
  changed.plan.fsmoe.backward_degree = degrees.fastest().backward;
  const auto with = [&](StepByShares shares) {
    changed.plan.fsmoe.share_beside_experts = shares.experts;
    changed.plan.fsmoe.share_beside_dense = shares.dense;
    shares.seconds = evaluate(changed)->report().step_seconds;
    return shares;
  };
  std::vector<StepByShares> steps{with({"none"})};
  try {
    steps.push_back(with(shares_of("greedy", gradients.greedy, gradients.all_reduce.units)));
    steps.push_back(with(shares_of("global", gradients.global, gradients.all_reduce.units)));
    StepByShares best = steps.front();
    for (int experts = 0; experts <= 4; ++experts)
      for (int dense = 0; dense <= 4 - experts; ++dense)
        if (const StepByShares step = with({"", experts / 4.0, dense / 4.0}); step.seconds < best.seconds) best = step;
    best.partition = "best of quarters";
    steps.push_back(best);
  } catch (const InputError& error) {
    gradients.refused = error.what();
    return;
  }
  gradients.steps = std::move(steps);
}

}  // namespace

const StepByDegrees& PipelineDegrees::fastest() const {
  return *std::ranges::min_element(steps, {}, &StepByDegrees::seconds);
}

const StepByDegrees* PipelineDegrees::chosen() const {
  const auto found = std::ranges::find_if(steps, [&](const StepByDegrees& step) {
    return step.forward == chosen_forward.degree && step.backward == chosen_backward.degree;
  });
  return found == steps.end() ? nullptr : &*found;
}

PipelineDegrees pipeline_degrees(const Scenario& scenario, const Evaluate& evaluate) {
  const MoeSchedule schedule = scenario.plan.fsmoe.schedule;
  if (schedule == MoeSchedule::sequential) refuse("moe_schedule \"sequential\"");
  PipelineDegrees degrees;
  Scenario changed = scenario;
  changed.plan.fsmoe = {};
  profile(*evaluate(changed), degrees);
  const LayerTimes forward{degrees.all_to_all.of_layer(), degrees.all_gather.of_layer(),
                           degrees.reduce_scatter.of_layer(), degrees.experts.of_layer()};
  const LayerTimes backward = fsmoe::backward(forward);
  for (const std::int64_t degree : kDegrees) {
    degrees.forward.push_back(pipelined(forward, degree, 0));
    degrees.backward.push_back(pipelined(backward, degree, 0));
  }
  degrees.chosen_forward = best_degree(forward, 0);
  degrees.chosen_backward = best_degree(backward, 0);
  changed.plan.fsmoe = scenario.plan.fsmoe;
  for (const std::int64_t f : kDegrees)
    for (const std::int64_t b : kDegrees) {
      if (schedule == MoeSchedule::tutel && f != b) continue;
      changed.plan.fsmoe.forward_degree = f;
      changed.plan.fsmoe.backward_degree = b;
      degrees.steps.push_back({f, b, evaluate(changed)->report().step_seconds});
    }
  partition_gradients(backward, changed, evaluate, degrees);
  return degrees;
}

namespace {

std::string profile_text(const PipelineDegrees& degrees) {
  constexpr std::string_view kColumns = "<operation|alpha|beta|r^2|takes|<n of the layer";
  std::vector<std::vector<std::string>> rows;
  const auto row = [&](const char* name, const ProfiledTime& profiled, const char* unit) {
    if (profiled.units == 0) return;
    const ChunkedTime whole = profiled.of_layer();
    rows.push_back({name, seconds_text(profiled.time.start_up), fmt::format("{:.3g} ns", profiled.time.per_unit * 1e9),
                    fmt::format("{:.5f}", profiled.determination), seconds_text(whole.of_chunk(1)),
                    fmt::format("{:.4g} {}", profiled.units, unit)});
  };
  row("all-to-all", degrees.all_to_all, "elements");
  row("all-gather", degrees.all_gather, "elements");
  row("reduce-scatter", degrees.reduce_scatter, "elements");
  row("experts", degrees.experts, "multiply-adds");
  return grid(kColumns, rows);
}

std::string bottleneck_text(Bottleneck bottleneck) {
  constexpr std::array<const char*, 5> kNames{"", "link between nodes", "experts", "all-to-alls", "within nodes"};
  const auto number = static_cast<std::size_t>(bottleneck);
  return fmt::format("{}, {}", number, kNames[number]);
}

std::string cases_text(const PipelineDegrees& degrees) {
  constexpr std::string_view kColumns = "degree|forward|<case|backward|<case";
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < degrees.forward.size(); ++i) {
    const PipelinedLayer &f = degrees.forward[i], &b = degrees.backward[i];
    rows.push_back({std::to_string(f.degree), seconds_text(f.seconds), bottleneck_text(f.bottleneck),
                    seconds_text(b.seconds), bottleneck_text(b.bottleneck)});
  }
  return grid(kColumns, rows) + fmt::format("  chosen: {} forward, {} backward\n", degrees.chosen_forward.degree,
                                            degrees.chosen_backward.degree);
}

std::string steps_text(const PipelineDegrees& degrees) {
  const StepByDegrees& fastest = degrees.fastest();
  std::string columns = "forward \\ backward";
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < kDegrees.size(); ++i) {
    columns += "|" + std::to_string(kDegrees[i]);
    rows.push_back({std::to_string(kDegrees[i])});
    for (const std::int64_t backward : kDegrees) {
      const auto step = std::ranges::find_if(
          degrees.steps, [&](const StepByDegrees& s) { return s.forward == kDegrees[i] && s.backward == backward; });
      rows.back().push_back(step == degrees.steps.end() ? "-" : seconds_text(step->seconds));
    }
    rows.back().push_back(fastest.forward == kDegrees[i] ? "<" : "");
  }
  std::string text =
      grid(columns + "|<", rows) + fmt::format("  fastest: {} forward, {} backward, {} per step", fastest.forward,
                                               fastest.backward, seconds_text(fastest.seconds));
  if (const StepByDegrees* chosen = degrees.chosen(); chosen != nullptr && chosen != &fastest)
    text += fmt::format("; with the degrees that the cases choose {}, {}", seconds_text(chosen->seconds),
                        signed_percent_text(chosen->seconds / fastest.seconds - 1));
  return text + "\n";
}

std::string gradients_text(const GradientPieces& gradients) {
  const std::string heading =
      "Gradients of a layer, all-reduced in parts during the backward of the next layer (section 5)\n";
  if (gradients.steps.empty()) return heading + "  none: " + gradients.refused + "\n";
  constexpr std::string_view kColumns = "<partition|experts|dense|formula|step";
  std::vector<std::vector<std::string>> rows;
  for (const StepByShares& step : gradients.steps) {
    const GradientPartition* const formula = step.partition == "greedy"   ? &gradients.greedy
                                             : step.partition == "global" ? &gradients.global
                                                                          : nullptr;
    rows.push_back({step.partition, fmt::format("{:.3f}", step.experts), fmt::format("{:.3f}", step.dense),
                    formula == nullptr ? "-" : seconds_text(formula->seconds), seconds_text(step.seconds)});
  }
  return heading +
         fmt::format("  all-reduce: alpha {}, beta {:.3g} ns, {:.4g} elements per layer; dense part {}; {} layers\n",
                     seconds_text(gradients.all_reduce.time.start_up), gradients.all_reduce.time.per_unit * 1e9,
                     gradients.all_reduce.units, seconds_text(gradients.dense_seconds), gradients.layers) +
         grid(kColumns, rows) +
         "  experts, dense: moe_gradient_share_experts, moe_gradient_share_dense; formula: the backward of all layers "
         "and the rest of the gradients\n";
}

}  // namespace

std::string pipeline_degree_text(const PipelineDegrees& degrees) {
  return fmt::format(
      "pipeline degrees of {}, for one rank's rows in one micro-batch\n\n"
      "Profile of the cost models, t = alpha + n beta, by least squares over {} and {} sizes\n{}\n"
      "By FSMoE's four cases (arXiv 2501.10714, section 4), without gradients reduced in the layer\n{}\n"
      "Predicted by the engine: the time of a step\n{}\n{}",
      degrees.layer, kCollectiveSizes, kProductSizes, profile_text(degrees), cases_text(degrees), steps_text(degrees),
      gradients_text(degrees.gradients));
}

std::span<const Topic> topics() {
  static constexpr std::string_view kNames[]{"moe_pipeline_degree"};
  static constexpr Topic kTopics[]{
      {.names = kNames,
       .summary = "FSMoE's degrees and partition of gradients by its formulas, and the step of each",
       .text = [](const Evaluated& here, const Evaluate& evaluate) {
         return pipeline_degree_text(pipeline_degrees(here.scenario(), evaluate));
       }}};
  return kTopics;
}

}  // namespace orrery::fsmoe
