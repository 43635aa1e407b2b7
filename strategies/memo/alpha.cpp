#include "strategies/memo/alpha.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "sim/base/error.h"
#include "sim/program/work.h"
#include "sim/report/format.h"
#include "strategies/layer_plans.h"

namespace orrery::memo {
namespace {

constexpr int kEighths = 8;

// What a plan can say of alpha, in thousandths, and no more than there is.
double in_thousandths(double alpha) {
  constexpr int kThousand = 1000;
  return std::floor(alpha * kThousand) / kThousand;
}

[[noreturn]] void refuse_alpha(const std::string& found) {
  throw InputError({"--explain", ""}, found, "a plan with memo, and a stage of more than two layers");
}

bool is_swapping(const Piece& piece) {
  return std::ranges::any_of(piece.forward.ops, [](const Op& op) { return op.buffers > 0; });
}

// A layer that swaps in some stage; null: there is none.
const Piece* swapping_layer(const Program& program) {
  for (const std::vector<Chunk>& stage : program.stages)
    for (const Chunk& chunk : stage)
      for (const PieceRun& run : chunk.runs)
        if (is_swapping(program.pieces[run.piece])) return &program.pieces[run.piece];
  return nullptr;
}

class Layer {
 public:
  explicit Layer(const Evaluated& evaluated) : evaluated_(evaluated), piece_(*swapping_layer(evaluated.program())) {}

  double copied_bytes() const {
    return over_copies([&](const Op& op) { return bytes(op, piece_.tensors); });
  }
  double bytes_per_second() const {
    return copied_bytes() / over_copies([&](const Op& op) { return evaluated_.time(op, piece_.tensors).seconds; });
  }

  double forward_seconds() const {
    Piece without = piece_;
    std::erase_if(without.forward.ops, [](const Op& op) { return op.buffers > 0; });
    return evaluated_.forward_seconds(without);
  }

 private:
  template <class Value>
  double over_copies(Value value) const {
    double sum = 0;
    for (const Op& op : piece_.forward.ops)
      if (op.buffers > 0) sum += value(op);
    return sum;
  }

  const Evaluated& evaluated_;
  const Piece& piece_;
};

StepByAlpha step_of(double alpha, const Report& report) {
  const TimeBreakdown& time = report.bounding().time;
  const auto exposed = [&](Stream stream) { return time.exposed[static_cast<std::size_t>(stream)]; };
  return {.alpha = alpha,
          .seconds = report.step_seconds,
          .to_host_seconds = exposed(Stream::device_to_host),
          .to_device_seconds = exposed(Stream::host_to_device),
          .peak_bytes = report.memory_peak_bytes,
          .node_host_bytes = report.host_memory.node_bytes,
          .verdict = memory_verdict(report)};
}

bool fits(const StepByAlpha& step) {
  return step.verdict == MemoryVerdict::fits || step.verdict == MemoryVerdict::tight;
}

std::string bound_text(double alpha, const char* none) {
  if (alpha < 0) return none;
  return fmt::format("alpha <= {:.3f}{}", in_thousandths(std::min(alpha, 1.0)),
                     alpha > 1 ? fmt::format(" ({:.2f})", alpha) : "");
}

std::string_view verdict_text(MemoryVerdict verdict) {
  switch (verdict) {
    case MemoryVerdict::does_not_fit:
      return "OOM";
    case MemoryVerdict::does_not_fit_node:
      return "OOHM";
    default:
      return name_of(verdict);
  }
}

}  // namespace

double Alpha::hidden() const { return (bytes_per_second * layer_seconds - whole_bytes) / other_bytes; }

double Alpha::room() const {
  if (host_capacity_bytes <= 0) return 1;
  return (host_capacity_bytes - least_host_bytes) / (most_host_bytes - least_host_bytes);
}

double Alpha::chosen() const { return in_thousandths(std::clamp(std::min(hidden(), room()), 0.0, 1.0)); }

const StepByAlpha& Alpha::fastest() const {
  return *std::ranges::min_element(steps, {},
                                   [](const StepByAlpha& step) { return std::pair(!fits(step), step.seconds); });
}

Alpha find_alpha(const Scenario& scenario, const Evaluate& evaluate) {
  if (!any_plan(scenario, [](const Plan& plan) { return plan.memo.swap; })) refuse_alpha("memo false");
  const auto with = [&](double alpha) {
    Scenario changed = scenario;
    changed.plan.memo.alpha = changed.plan.memo.swap ? alpha : 1;
    for (LayerRange& range : changed.plan.layers)
      if (range.plan.memo.swap) range.plan.memo.alpha = alpha;
    return evaluate(changed);
  };
  // Looked at one after the other: an evaluation may leave its Program to the next.
  Alpha result;
  const Report least = [&] {
    const auto evaluated = with(0);
    if (swapping_layer(evaluated->program()) == nullptr) refuse_alpha("stages of two layers, which stay on the device");
    const Layer layer(*evaluated);
    result.whole_bytes = layer.copied_bytes();
    result.layer_seconds = layer.forward_seconds();
    return evaluated->report();
  }();
  const Report most = [&] {
    const auto evaluated = with(1);
    const Layer layer(*evaluated);
    result.other_bytes = layer.copied_bytes() - result.whole_bytes;
    result.bytes_per_second = layer.bytes_per_second();
    return evaluated->report();
  }();
  result.least_host_bytes = least.host_memory.node_bytes;
  result.most_host_bytes = most.host_memory.node_bytes;
  result.host_capacity_bytes = scenario.cluster.node.host_memory_bytes;
  for (int part = 0; part <= kEighths; ++part) {
    const double alpha = static_cast<double>(part) / kEighths;
    result.steps.push_back(step_of(alpha, part == 0 ? least : part == kEighths ? most : with(alpha)->report()));
  }
  const double chosen = result.chosen();
  const auto at = std::ranges::lower_bound(result.steps, chosen, {}, &StepByAlpha::alpha);
  if (at == result.steps.end() || at->alpha != chosen) result.steps.insert(at, step_of(chosen, with(chosen)->report()));
  return result;
}

std::string text_of(const Alpha& a) {
  std::string text = "MEMO's alpha (arXiv 2407.12117, section 4.1), for one layer on one rank\n\n";
  const auto line = [&](std::string_view label, const std::string& value, const std::string& remark) {
    text += fmt::format("  {:<36}{:>14}  {}\n", label, value, remark);
  };
  line("input, attention's output", bytes_text(a.whole_bytes), "swapped whole");
  line("other activations", bytes_text(a.other_bytes), "the share alpha is swapped");
  line("forward", seconds_text(a.layer_seconds), "without copies");
  line("to the host", fmt::format("{:.1f} GB/s", a.bytes_per_second * 1e-9),
       "per device, while all devices of a node copy");
  line("host memory of a node", bytes_text(a.least_host_bytes), "at alpha 0");
  line("", bytes_text(a.most_host_bytes), "at alpha 1");
  line("", a.host_capacity_bytes > 0 ? bytes_text(a.host_capacity_bytes) : "unknown", "capacity");
  text += fmt::format("\nBounds\n  {:<36}{}\n  {:<36}{}\n  {:<36}{}\n\n", "copies hide under the next forward",
                      bound_text(a.hidden(), "none: copies take longer even at alpha 0"), "host memory has room",
                      a.host_capacity_bytes > 0 ? bound_text(a.room(), "none: OOHM at alpha 0")
                                                : "not known: the host memory of a node is not known",
                      "memo_alpha", a.room() < 0 ? "none fits" : fmt::format("{:.3f}", a.chosen()));
  constexpr std::string_view kColumns = "alpha|step|waits to host|to device|device peak|node's host|<memory|<";
  std::vector<std::vector<std::string>> rows;
  const StepByAlpha& fastest = a.fastest();
  for (const StepByAlpha& step : a.steps) {
    std::string mark = step.alpha == a.chosen() && a.room() >= 0 ? "by the bounds" : "";
    if (&step == &fastest && fits(step)) mark += mark.empty() ? "fastest that fits" : ", fastest that fits";
    rows.push_back({fmt::format("{:.3f}", step.alpha), seconds_text(step.seconds), seconds_text(step.to_host_seconds),
                    seconds_text(step.to_device_seconds), bytes_text(step.peak_bytes), bytes_text(step.node_host_bytes),
                    std::string(verdict_text(step.verdict)), mark});
  }
  return text + "Predicted by the engine\n" + grid(kColumns, rows) +
         "  OOM: out of device memory; OOHM: out of host memory\n";
}

std::span<const Topic> topics() {
  static constexpr std::string_view kNames[]{"memo_alpha"};
  static constexpr Topic kTopics[]{{.names = kNames,
                                    .summary = "MEMO's alpha by its two bounds, and the step at each eighth",
                                    .text = [](const Evaluated& here, const Evaluate& evaluate) {
                                      return text_of(find_alpha(here.scenario(), evaluate));
                                    }}};
  return kTopics;
}

}  // namespace orrery::memo
