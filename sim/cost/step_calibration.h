// What training steps show and kernels measured one by one do not. Of a device: how much slower it multiplies matrices
// under a lasting load (clocks, cold caches). Of a training stack: its host's time per op, and the time of its
// memory-bound kernels, which are more and less fused than a Program lists them. A stack does not change how fast a
// device multiplies. Fitted on published steps by `orrery validate --fit`; how: results/calibration/README.md.
#pragma once

#include <array>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/error.h"
#include "sim/cost/collective_cost.h"
#include "sim/cost/kernel_cost.h"
#include "sim/program/program.h"

namespace orrery {

// Of a training stack's generation.
struct StackCalibration {
  double host_seconds_per_op = 0;    // kernels of forward and backward
  double memory_bound_slowdown = 1;  // time of memory-bound kernels but the optimizer's, relative to their curves
};

// How many times as much as `other` the device may be slowed in a step and yet multiply and attend no more slowly: by
// how much it is faster by kernels alone, at the least. REQUIRES: is_no_slower(device, other)
// (sim/hardware/device_order.h).
double allowed_slowdown(const Device& device, const Device& other);

struct StepCalibration {
  std::map<std::string, double> device_slowdown;  // of products and attention, relative to their curves
  double other_devices_slowdown = 1;              // of a device that no step was measured on
  double collective_slowdown = 1;                 // of all collectives, relative to their curves
  // Host's time to issue a collective, an op of the update, and the product of one more expert where each is a kernel
  // of its own (no less than that kernel's launch, Calibration::group_issue_seconds), in times of the stack's
  // host_seconds_per_op.
  double collective_host_ops = 1, update_host_ops = 1, expert_host_ops = 1;
  std::map<std::string, StackCalibration> stacks;  // stacks without an entry are taken as they are

  // How many times longer than on its curves a device takes for matrix products and attention. A device on which no
  // step was measured gets other_devices_slowdown, but at most the slowdown of any measured device that is no faster
  // than it (sim/hardware/device_order.h), and at least that of any that is no slower.
  double slowdown_of(const std::string& device) const;

  // Changes nothing for a stack without an entry.
  void apply(const std::string& stack, const Device& device, Calibration& kernels) const;
  void apply(const std::string& stack, CollectiveCalibration& collectives) const;
  void apply(const std::string& stack, Runtime& runtime) const;
};

// Strict, as read_calibration.
StepCalibration read_step_calibration(const nlohmann::json& json, const InputError::Where& where);
nlohmann::ordered_json to_json(const StepCalibration& calibration);

// results/calibration/steps.json: fitted on all published steps; steps_left_out.json beside it: on all but those of one
// source (its file's name in results/published/steps), which has then not been seen. A source that is not named there
// never has been.
const StepCalibration& step_calibration();
const StepCalibration& step_calibration_without(const std::string& source);

// Whose kernels a device's curves were measured on. Products of less than 16 bits on the curve of another type count as
// borrowed, too, and attention on that of another architecture.
enum class CurveOrigin : std::uint8_t { own, same_vendor, other_vendor };
inline constexpr std::size_t kCurveOrigins = 3;
CurveOrigin curve_origin(const Device& device, const Calibration& kernels, Dtype products);
std::string_view name_of(CurveOrigin origin);  // "own", ...: in steps.json

// How far measured steps lie from their predictions when each source was predicted by a calibration that had not seen
// it: |log(measured / predicted)| of four steps in five. study/validation/intervals.h finds it.
struct StepIntervals {
  struct Stack {
    double half_width = 0;  // of devices with curves of their own
    std::int64_t points = 0, sources = 0, most_devices = 0;
  };
  std::map<std::string, Stack> stacks;  // those that enough steps have been published of
  std::array<double, kCurveOrigins> origin_factor{1, 1, 1};
  double unseen_device_factor = 1;  // for devices whose kernels were measured, but no step
};

// In times of the prediction.
struct StepInterval {
  double low = 1, high = 1;
  std::string comparable;  // whose errors these are, in words
  std::int64_t points = 0, sources = 0;
  // Its half width in logarithms is stack_half_width * origin_factor * unseen_device_factor + beyond_half_width. The
  // last is 0 up to most_devices, the largest number of devices in a published step of the stack.
  double stack_half_width = 0, origin_factor = 1, unseen_device_factor = 1, beyond_half_width = 0;
  std::int64_t most_devices = 0;
};
// Returns the interval that steps.json gives for a stack. It widens with each doubling beyond the most devices in the
// stack's published steps (results/calibration/scale.json). A stack with too few published steps gets the widest
// interval of all stacks; one with none gets {}. `device_seen`: steps of the device were published. An interval is
// never narrower where less is known.
std::optional<StepInterval> step_interval(const std::string& stack, CurveOrigin origin, std::int64_t devices,
                                          bool device_seen = true);
// The same from other intervals than those of steps.json.
std::optional<StepInterval> step_interval(const StepIntervals& intervals, const std::string& stack, CurveOrigin origin,
                                          std::int64_t devices, bool device_seen = true);

}  // namespace orrery
