#include "sim/cost/step_calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "sim/base/json_reader.h"
#include "sim/cost/calibration.h"
#include "sim/hardware/cluster.h"
#include "sim/hardware/presets.h"

namespace orrery {
namespace {

constexpr double kTenth = 1.2815515655446004;  // standard deviations that a normal number exceeds one time in ten

}  // namespace

const ScaleFigures& scale_figures() {
  static const ScaleFigures read = [] {
    const nlohmann::json json = parse_embedded("results/calibration/scale.json");
    return ScaleFigures{.device_spread = json.at("device_spread").at("value"),
                        .interval_per_doubling = json.at("interval_per_doubling").at("value"),
                        .calibrated_devices = json.at("calibrated_devices").at("value"),
                        .production = {.median = json.at("production").at("median"),
                                       .sigma_of_logarithm = json.at("production").at("sigma_of_logarithm")}};
  }();
  return read;
}

double expected_largest(std::int64_t n) {
  if (n <= 1) return 0;
  // The integral over x > 0 of P(largest > x) - P(largest < -x), by Simpson's rule.
  constexpr int kSteps = 400;
  constexpr double kEnd = 10;
  const auto ranks = static_cast<double>(n);
  const auto at = [&](double x) {
    const double beyond = std::erfc(x / std::sqrt(2.0)) / 2;
    return -std::expm1(ranks * std::log1p(-beyond)) - std::pow(beyond, ranks);
  };
  double sum = at(0) + at(kEnd);
  for (int i = 1; i < kSteps; ++i) sum += (i % 2 == 1 ? 4 : 2) * at(kEnd * i / kSteps);
  return sum * kEnd / kSteps / 3;
}

double slowest_device_loss(std::int64_t devices, double spread) {
  const std::int64_t seen = scale_figures().calibrated_devices;
  if (devices <= seen || spread <= 0) return 0;
  static const double of_seen = expected_largest(seen);
  return spread * (expected_largest(devices) - of_seen);
}

double ProductionSlowdown::better_tenth() const { return median * std::exp(-kTenth * sigma_of_logarithm); }
double ProductionSlowdown::worse_tenth() const { return median * std::exp(kTenth * sigma_of_logarithm); }

namespace {

using Json = nlohmann::json;

constexpr const char* kStepsFile = "results/calibration/steps.json";
constexpr const char* kLeftOutFile = "results/calibration/steps_left_out.json";  // read only on request

const Json& file() {
  static const Json json = parse_embedded(kStepsFile);
  return json;
}

const Json& object_of(JsonReader& reader, const char* key) {
  const Json& found = reader.need(key, "an object");
  if (!found.is_object()) reader.fail(key, "an object");
  return found;
}

const std::map<std::string, Device>& preset_devices() {
  static const std::map<std::string, Device> all = [] {
    std::map<std::string, Device> read;
    for (const std::string& name : device_names()) read.emplace(name, find_device(name));
    return read;
  }();
  return all;
}

}  // namespace

double allowed_slowdown(const Device& device, const Device& other) {
  const Calibration own = find_calibration(device), others = find_calibration(other);
  double least = std::numeric_limits<double>::infinity();
  // Compares rates per multiprocessor, because the last wave of tiles has the multiprocessors to itself.
  const auto compare = [&](Dtype dtype, double share, double others_share) {
    const double rate = device.peak(dtype) / static_cast<double>(device.multiprocessors);
    const double others_rate = other.peak(dtype) / static_cast<double>(other.multiprocessors);
    least = std::min(least, rate * share / (others_rate * others_share));
  };
  const auto sustained = [](const MatmulCurve& curve) {
    return curve.sustained_efficiency > 0 ? curve.sustained_efficiency : curve.efficiency;
  };
  for (const Dtype dtype : {Dtype::fp32, Dtype::fp16, Dtype::bf16, Dtype::fp8, Dtype::nvfp4}) {
    const MatmulCurve &curve = own.matmul[static_cast<std::size_t>(dtype)],
                      &others_curve = others.matmul[static_cast<std::size_t>(dtype)];
    compare(dtype, curve.efficiency, others_curve.efficiency);
    compare(dtype, sustained(curve), sustained(others_curve));
  }
  for (const auto curves : {&Calibration::attention_kernels, &Calibration::narrow_attention})
    for (const AttentionCurve& curve : own.*curves)
      for (const AttentionCurve& others_curve : others.*curves) {
        if (curve.name != others_curve.name) continue;
        const Dtype units = curve.dtype == Dtype::mxfp8 ? Dtype::fp8 : curve.dtype;
        compare(units, curve.forward_efficiency, others_curve.forward_efficiency);
        compare(units, curve.backward_efficiency, others_curve.backward_efficiency);
      }
  return std::max(1.0, least);
}

double StepCalibration::slowdown_of(const std::string& device) const {
  if (const auto own = device_slowdown.find(device); own != device_slowdown.end()) return own->second;
  double slowdown = other_devices_slowdown;
  const auto preset = preset_devices().find(device);
  if (preset == preset_devices().end()) return slowdown;
  double least = 1, most = slowdown;
  for (const auto& [name, measured] : device_slowdown) {
    const auto other = preset_devices().find(name);
    if (other == preset_devices().end()) continue;
    if (is_no_slower(preset->second, other->second))
      most = std::min(most, measured * allowed_slowdown(preset->second, other->second));
    if (is_no_slower(other->second, preset->second))
      least = std::max(least, measured / allowed_slowdown(other->second, preset->second));
  }
  return std::max(least, most);
}

void StepCalibration::apply(const std::string& stack, const Device& device, Calibration& kernels) const {
  const auto found = stacks.find(stack);
  if (found == stacks.end()) return;
  kernels.step_slowdown = slowdown_of(device.name);
  kernels.memory_bound_slowdown = found->second.memory_bound_slowdown;
  kernels.group_issue_seconds =
      std::max(kernels.group_issue_seconds, expert_host_ops * found->second.host_seconds_per_op);
  kernels.device_spread = scale_figures().device_spread;
}

void StepCalibration::apply(const std::string& stack, CollectiveCalibration& collectives) const {
  if (stacks.contains(stack)) collectives.step_slowdown = collective_slowdown;
}

void StepCalibration::apply(const std::string& stack, Runtime& runtime) const {
  const auto found = stacks.find(stack);
  if (found == stacks.end()) return;
  runtime.host_seconds_per_op = found->second.host_seconds_per_op;
  runtime.host_seconds_per_collective = collective_host_ops * runtime.host_seconds_per_op;
  runtime.host_seconds_per_update_op = update_host_ops * runtime.host_seconds_per_op;
}

StepCalibration read_step_calibration(const nlohmann::json& json, const InputError::Where& where) {
  StepCalibration c;
  JsonReader reader(json, where);
  reader.field("other_devices_slowdown", c.other_devices_slowdown, positive(), "");
  reader.field("collective_slowdown", c.collective_slowdown, positive(), "");
  reader.field("collective_host_ops", c.collective_host_ops, positive(), "");
  reader.field("update_host_ops", c.update_host_ops, positive(), "");
  reader.field("expert_host_ops", c.expert_host_ops, positive(), "");
  for (const auto& [name, value] : object_of(reader, "device_slowdown").items()) {
    if (!value.is_number() || value.get<double>() <= 0) reader.fail("device_slowdown", "a positive number a device");
    c.device_slowdown[name] = value;
  }
  const Json& stacks = object_of(reader, "stacks");
  for (const auto& [name, value] : stacks.items()) {
    StackCalibration& s = c.stacks[name];
    JsonReader stack(value, {where.file, pointer_to(pointer_to(where.pointer, "stacks"), name)});
    stack.field("host_seconds_per_op", s.host_seconds_per_op, NumberRange{}, "");
    stack.field("memory_bound_slowdown", s.memory_bound_slowdown, positive(), "");
    stack.finish();
  }
  reader.finish();
  return c;
}

nlohmann::ordered_json to_json(const StepCalibration& calibration) {
  nlohmann::ordered_json json{{"other_devices_slowdown", calibration.other_devices_slowdown},
                              {"collective_slowdown", calibration.collective_slowdown},
                              {"collective_host_ops", calibration.collective_host_ops},
                              {"update_host_ops", calibration.update_host_ops},
                              {"expert_host_ops", calibration.expert_host_ops}};
  json["device_slowdown"] = calibration.device_slowdown;
  for (const auto& [name, s] : calibration.stacks)
    json["stacks"][name] = {{"host_seconds_per_op", s.host_seconds_per_op},
                            {"memory_bound_slowdown", s.memory_bound_slowdown}};
  return json;
}

const StepCalibration& step_calibration() {
  static const StepCalibration c = read_step_calibration(file().at("fitted"), {kStepsFile, "/fitted"});
  return c;
}

const StepCalibration& step_calibration_without(const std::string& source) {
  static const std::map<std::string, StepCalibration> left_out = [] {
    std::map<std::string, StepCalibration> all;
    const Json file = parse_embedded(kLeftOutFile);
    for (const auto& [name, value] : file.items())
      all[name] = read_step_calibration(value, {kLeftOutFile, pointer_to("", name)});
    return all;
  }();
  const auto found = left_out.find(source);
  return found == left_out.end() ? step_calibration() : found->second;
}

CurveOrigin curve_origin(const Device& device, const Calibration& kernels, Dtype products) {
  if (kernels.measured) {
    const auto attention = preset_devices().find(kernels.attention_borrowed_from);
    const bool foreign = attention != preset_devices().end() && attention->second.architecture != device.architecture;
    return kernels.lends_to(products) || foreign ? CurveOrigin::same_vendor : CurveOrigin::own;
  }
  return kernels.borrowed_from_vendor == device.vendor ? CurveOrigin::same_vendor : CurveOrigin::other_vendor;
}

std::string_view name_of(CurveOrigin origin) {
  constexpr std::array<std::string_view, kCurveOrigins> kNames{"own", "same_vendor", "other_vendor"};
  return kNames[static_cast<std::size_t>(origin)];
}

bool StepIntervals::is_rare_mixture(const IntervalClass& of) const {
  const auto stack = stacks.find(of.stack);
  return of.mixture && (stack == stacks.end() || !stack->second.mixture_networks.contains(of.network));
}

std::optional<StepInterval> step_interval(const StepIntervals& intervals, const IntervalClass& of) {
  if (intervals.stacks.empty()) return std::nullopt;
  constexpr std::array<std::array<const char*, 2>, kCurveOrigins> kWhere{
      {{" on measured devices", " on a device without measured steps"},
       {" on devices with borrowed curves", " on a device with borrowed curves and without measured steps"},
       {" on devices with another vendor's curves",
        " on a device with another vendor's curves and without measured steps"}}};
  auto found = intervals.stacks.find(of.stack);
  StepInterval interval;
  interval.comparable = of.stack;
  if (found == intervals.stacks.end()) {
    found = std::max_element(intervals.stacks.begin(), intervals.stacks.end(),
                             [](const auto& a, const auto& b) { return a.second.half_width < b.second.half_width; });
    interval.comparable = "the widest of all stacks, " + found->first + ", for lack of published steps";
  }
  if (of.mixture) interval.comparable += ", mixtures";
  if (of.four_bits) interval.comparable += ", NVFP4";
  interval.comparable += kWhere[static_cast<std::size_t>(of.origin)][of.device_seen ? 0 : 1];
  const StepIntervals::Stack& of_stack = found->second;
  const double times = static_cast<double>(of.devices) / static_cast<double>(of_stack.most_devices);
  if (times > 1) interval.comparable += fmt::format(", {:.3g} times the largest", times);
  interval.stack_half_width = of_stack.half_width;
  interval.origin_factor = intervals.origin_factor[static_cast<std::size_t>(of.origin)];
  interval.mixture_factor = of.mixture ? intervals.mixture_factor : 1;
  interval.four_bit_factor = of.four_bits ? intervals.four_bit_factor : 1;
  interval.unseen_device_factor = of.device_seen ? 1 : intervals.unseen_device_factor;
  interval.beyond_half_width = scale_figures().interval_per_doubling * std::max(0.0, std::log2(times));
  interval.most_devices = of_stack.most_devices;
  interval.points = of_stack.points;
  interval.sources = of_stack.sources;
  double of_class =
      interval.stack_half_width * interval.origin_factor * interval.mixture_factor * interval.four_bit_factor;
  if (const StepIntervals::RareMixtures& rare = intervals.rare_mixtures;
      intervals.is_rare_mixture(of) && rare.points > 0) {
    interval.comparable += ", few published there";
    if (rare.half_width > of_class) {
      of_class = interval.rare_mixture_half_width = rare.half_width;
      interval.points = rare.points;
      interval.sources = rare.sources;
    }
  }
  const double half_width = of_class * interval.unseen_device_factor + interval.beyond_half_width;
  interval.low = std::exp(-half_width);
  interval.high = std::exp(half_width);
  return interval;
}

std::optional<StepInterval> step_interval(const IntervalClass& of) {
  static const StepIntervals intervals = [] {
    StepIntervals read;
    const Json& json = file().at("intervals");
    for (const auto& [name, value] : json.at("stacks").items())
      read.stacks[name] = {.half_width = value.at("half_width"),
                           .points = value.at("points"),
                           .sources = value.at("sources"),
                           .most_devices = value.at("most_devices"),
                           .mixture_networks = value.at("mixture_networks")};
    for (std::size_t i = 0; i < kCurveOrigins; ++i)
      read.origin_factor[i] = json.at("origin_factor").at(name_of(static_cast<CurveOrigin>(i)));
    read.mixture_factor = json.at("mixture_factor");
    read.four_bit_factor = json.at("four_bit_factor");
    read.unseen_device_factor = json.at("unseen_device_factor");
    const Json& rare = json.at("rare_mixtures");
    read.rare_mixtures = {
        .half_width = rare.at("half_width"), .points = rare.at("points"), .sources = rare.at("sources")};
    return read;
  }();
  if (!step_calibration().stacks.contains(of.stack)) return std::nullopt;
  return step_interval(intervals, of);
}

}  // namespace orrery
