#include "study/validation/predicted_points.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "sim/base/json_reader.h"
#include "sim/base/words.h"
#include "sim/hardware/presets.h"
#include "sim/memory/memory.h"
#include "sim/program/liveness.h"
#include "sim/program/rewrite.h"
#include "strategies/framework/framework.h"
#include "strategies/precision/precision.h"
#include "strategies/strategy.h"
#include "study/simulation/allocator.h"
#include "study/validation/attention_call.h"

namespace orrery {
namespace {

// The piece of the model's layers: of the first of them.
std::size_t first_layer(const Program& program) {
  for (std::size_t p = 0; p < program.pieces.size(); ++p)
    if (is_layer(program.pieces[p])) return p;
  throw InputError({"", "/model"}, "a model without equal layers", "a transformer");
}

// The ops of a block of one layer, one after the other but for what runs beside the compute stream and is not waited
// for.
double layer_seconds(const Simulation& simulation, std::size_t block) {
  const std::size_t layer = first_layer(*simulation.program);
  double seconds = 0;
  for (const OpReport& op : simulation.report.ops)
    if (op.piece == layer && op.block == block &&
        (op.stream == Stream::compute || op.stream == Stream::tensor_communication))
      seconds += op.seconds;
  return seconds;
}

double allocated_bytes(const MemoryBreakdown& memory) { return memory.peak_bytes - memory.framework_bytes; }

double model_state_bytes(const MemoryBreakdown& memory) {
  double bytes = 0;
  for (const Category c : {Category::parameter, Category::gradient, Category::optimizer_state})
    bytes += memory.bytes.of(Place::device, c);
  return bytes;
}

double layer_activation_bytes(const Program& program) {
  return device_bytes(piece_memory(program.pieces[first_layer(program)], 1).saved);
}

void predict(PredictedPoint& result, Simulator& simulator) {
  const PublishedPoint& point = *result.point;
  const bool ops =
      point.quantity == Quantity::layer_forward_seconds || point.quantity == Quantity::layer_backward_seconds;
  try {
    const Simulation simulation = simulator.evaluate(*point.scenario, {point.id, {}}, {.ops = ops});
    const Scenario& scenario = simulation.scenario;
    result.predicted = predicted_value(point.quantity, simulation);
    for (std::int64_t step = 1; step < point.steps; ++step) {
      nlohmann::json later = *point.scenario;
      later["workload"]["step"] = scenario.workload.step + step;
      result.predicted += predicted_value(point.quantity, simulator.evaluate(later, {point.id, {}}, {.ops = ops}));
    }
    result.predicted /= static_cast<double>(point.steps);
    result.peak_bytes = simulation.report.memory_peak_bytes;
    result.allocated_bytes = allocated_bytes(simulation.report.fullest().memory);
    result.capacity_bytes = simulation.report.memory_capacity_bytes;
    const IntervalClass of = interval_class(scenario, *simulation.kernels, *simulation.collectives);
    result.curves = of.origin;
    result.mixture = of.mixture;
    result.four_bits = of.four_bits;
    result.network = of.network;
    result.device = scenario.cluster.device.name;
    result.framework = of.stack;
    result.devices = simulation.report.devices;
    result.nodes = scenario.cluster.nodes;
    result.strategies = plan_words(scenario);
    result.bound_by = simulation.report.bound_by;
    result.time = simulation.report.bounding().time;
  } catch (const InputError& error) {
    result.not_predicted = error.what();
  }
}

// Says which part of the filter leaves nothing.
[[noreturn]] void refuse(const ValidationFilter& filter, Simulator& simulator) {
  const std::vector<std::string_view> words = all_plan_words();
  if (!filter.strategy.empty() && std::find(words.begin(), words.end(), filter.strategy) == words.end())
    throw InputError({"--strategy", ""}, describe(filter.strategy), fmt::format("one of {}", fmt::join(words, ", ")),
                     nearest_name(filter.strategy, words));
  if (predict_published({.source = filter.source, .gpu = "", .strategy = ""}, simulator).empty()) {
    std::vector<std::string> names;
    for (const PublishedSource& source : published_sources()) names.push_back(source.name);
    throw InputError({"--source", ""}, describe(filter.source), "part of a source's name, title or citation",
                     nearest_name(filter.source, names));
  }
  if (!filter.gpu.empty() && predict_published({.source = "", .gpu = filter.gpu, .strategy = ""}, simulator).empty()) {
    std::vector<std::string> measured;
    for (const PredictedPoint& p : predict_published({}, simulator))
      if (!p.device.empty()) measured.push_back(p.device);
    std::sort(measured.begin(), measured.end());
    measured.erase(std::unique(measured.begin(), measured.end()), measured.end());
    const std::string expected =
        fmt::format("part of the name of a device with published measurements: {}", fmt::join(measured, ", "));
    for (const std::string& device : device_names())
      if (is_part_of(device, filter.gpu))
        throw InputError({"--gpu", ""}, fmt::format("\"{}\": {} has no published measurement", filter.gpu, device),
                         expected);
    throw InputError({"--gpu", ""}, describe(filter.gpu), expected, nearest_name(filter.gpu, measured));
  }
  throw InputError({}, "no predicted point with that source, GPU and strategy", "fewer filters");
}

}  // namespace

bool is_part_of(const std::string& text, const std::string& part) {
  return lower_case(text).find(lower_case(part)) != std::string::npos;
}

IntervalClass PredictedPoint::interval_class() const {
  return {.stack = framework,
          .origin = curves,
          .devices = devices,
          .device_seen = step_calibration().device_slowdown.contains(device),
          .mixture = mixture,
          .four_bits = four_bits,
          .network = network};
}

double predicted_value(Quantity quantity, const Simulation& simulation) {
  const Report& report = simulation.report;
  switch (quantity) {
    case Quantity::step_seconds:
      return report.step_seconds;
    case Quantity::peak_allocated_bytes:
      return allocated_bytes(simulation.report.fullest().memory);
    case Quantity::peak_reserved_bytes:
      return static_cast<double>(
          replay(allocations(simulation), allocator_options(simulation, /*expandable_segments=*/true), kAllocatorSteps)
              .statistics.peak_reserved);
    case Quantity::peak_device_bytes:
      return report.memory_peak_bytes;
    case Quantity::fits:
      return report.memory_fits ? 1 : 0;
    case Quantity::layer_forward_seconds:
      return layer_seconds(simulation, kForwardBlock);
    case Quantity::layer_backward_seconds:
      return layer_seconds(simulation, kBackwardBlock);
    case Quantity::attention_forward_seconds:
      return attention_seconds(simulation, first_layer(*simulation.program), AttentionPasses::forward);
    case Quantity::attention_backward_seconds:
      return attention_seconds(simulation, first_layer(*simulation.program), AttentionPasses::backward);
    case Quantity::attention_seconds:
      return attention_seconds(simulation, first_layer(*simulation.program), AttentionPasses::both);
    case Quantity::forward_backward_seconds:
      return report.pipeline_seconds;
    case Quantity::activation_bytes_per_layer:
      return layer_activation_bytes(*simulation.program);
    case Quantity::model_state_bytes:
      return model_state_bytes(simulation.report.fullest().memory);
  }
  return 0;
}

std::vector<PredictedPoint> predict_published(const ValidationFilter& filter, Simulator& simulator, Seen seen) {
  const StepCalibration none;
  return predict_published(filter, simulator, [&](const PublishedSource& source) -> const StepCalibration& {
    return seen == Seen::none ? none : seen == Seen::all ? step_calibration() : step_calibration_without(source.name);
  });
}

std::vector<PredictedPoint> predict_published(const ValidationFilter& filter, Simulator& simulator,
                                              const CalibrationOfSource& calibration_of) {
  std::vector<PredictedPoint> points;
  for (const PublishedSource& source : published_sources()) {
    if (!is_part_of(source.name, filter.source) && !is_part_of(source.title, filter.source) &&
        !is_part_of(source.source, filter.source))
      continue;
    for (const PublishedPoint& point : source.points) {
      PredictedPoint& result = points.emplace_back();
      result.source = &source;
      result.point = &point;
      result.not_predicted = point.not_predicted;
    }
  }
  const StepCalibration none;
  for (PredictedPoint& p : points) {
    simulator.use(is_of_layer(p.point->quantity) ? none : calibration_of(*p.source));
    if (p.is_predicted()) predict(p, simulator);
  }
  simulator.use(step_calibration());
  std::erase_if(points, [&](const PredictedPoint& p) {
    const bool other_gpu = !filter.gpu.empty() && !is_part_of(p.device, filter.gpu);
    const bool other_strategy = !filter.strategy.empty() && std::find(p.strategies.begin(), p.strategies.end(),
                                                                      filter.strategy) == p.strategies.end();
    return other_gpu || other_strategy;
  });
  return points;
}

std::vector<PredictedPoint> points_asked_for(const ValidationFilter& filter, Simulator& simulator, Seen seen) {
  std::vector<PredictedPoint> points = predict_published(filter, simulator, seen);
  if (points.empty()) refuse(filter, simulator);
  return points;
}

}  // namespace orrery
