#include "sim/cost/step_calibration.h"

#include <nlohmann/json.hpp>

#include "sim/base/json_reader.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

constexpr const char* kStepsFile = "results/calibration/steps.json";
constexpr const char* kLeftOutFile = "results/calibration/steps_left_out.json";  // read by those alone who ask for it

const Json& file() {
  static const Json json = parse_embedded(kStepsFile);
  return json;
}

const Json& object_of(JsonReader& reader, const char* key) {
  const Json* found = reader.take(key);
  if (found == nullptr || !found->is_object()) reader.fail(key, "an object");
  return *found;
}

}  // namespace

void StepCalibration::apply(const std::string& stack, const Device& device, Calibration& kernels) const {
  const auto found = stacks.find(stack);
  if (found == stacks.end()) return;
  const auto own = device_slowdown.find(device.name);
  kernels.step_slowdown = own == device_slowdown.end() ? other_devices_slowdown : own->second;
  kernels.memory_bound_slowdown = found->second.memory_bound_slowdown;
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
                              {"update_host_ops", calibration.update_host_ops}};
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

std::vector<std::string> comparable_steps(const std::string& stack, bool measured_device) {
  return {stack + (measured_device ? " on measured devices" : " on devices with borrowed curves"), stack};
}

std::optional<NamedInterval> step_interval(const std::string& stack, bool measured_device) {
  static const std::map<std::string, StepInterval> intervals = [] {
    std::map<std::string, StepInterval> all;
    for (const auto& [name, value] : file().at("intervals").items())
      all[name] = {.low = value.at("low"),
                   .high = value.at("high"),
                   .points = value.at("points"),
                   .sources = value.at("sources")};
    return all;
  }();
  for (const std::string& name : comparable_steps(stack, measured_device))
    if (const auto found = intervals.find(name); found != intervals.end()) return NamedInterval{name, found->second};
  return std::nullopt;
}

}  // namespace orrery
