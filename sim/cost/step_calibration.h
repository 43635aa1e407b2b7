// Corrections that measured training steps need beyond kernels measured one by one. For a device: how much slower it
// multiplies matrices under lasting load (clocks, cold caches). For a training stack: its host time per op, and the
// time of its memory-bound kernels, some of which are fused more or less than a Program lists them. A stack does not
// change how fast a device multiplies. `orrery validate --fit` fits them on published steps;
// results/calibration/README.md says how.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "sim/base/error.h"
#include "sim/cost/collective_cost.h"
#include "sim/cost/kernel_cost.h"
#include "sim/program/program.h"

namespace orrery {

// Corrections for one generation of a training stack.
struct StackCalibration {
  double host_seconds_per_op = 0;    // host seconds to issue a kernel of the forward or backward
  double memory_bound_slowdown = 1;  // time of memory-bound kernels but the optimizer's, relative to their curves
};

// The largest factor by which the slowdown of `device` may exceed that of `other`, such that `device` still multiplies
// and attends at least as fast: the smallest ratio of their kernels' rates per multiprocessor, or 1 if that is less.
// REQUIRES: is_no_slower(device, other) (sim/hardware/cluster.h).
double allowed_slowdown(const Device& device, const Device& other);

struct StepCalibration {
  std::map<std::string, double> device_slowdown;  // by device: products and attention, relative to their curves
  double other_devices_slowdown = 1;              // the same for devices without measured steps
  double collective_slowdown = 1;                 // time of all collectives relative to their curves
  // Host time in multiples of the stack's host_seconds_per_op: to issue a collective, to issue an op of the update, and
  // to launch the product of one more expert where each expert has a kernel of its own (no less than that kernel's
  // launch, Calibration::group_issue_seconds).
  double collective_host_ops = 1, update_host_ops = 1, expert_host_ops = 1;
  std::map<std::string, StackCalibration> stacks;  // a stack without an entry gets no correction

  // Returns the time of matrix products and attention on the device in a step over the time by its curves; at least 1.
  // A device without measured steps gets other_devices_slowdown. For each measured device of the presets that it is no
  // slower than (sim/hardware/cluster.h), it gets at most that device's slowdown times allowed_slowdown(); for each
  // that is no slower, at least that device's slowdown over allowed_slowdown(). A name that is no preset's gets
  // other_devices_slowdown.
  double slowdown_of(const std::string& device) const;

  // Changes nothing for a stack without an entry.
  void apply(const std::string& stack, const Device& device, Calibration& kernels) const;
  void apply(const std::string& stack, CollectiveCalibration& collectives) const;
  void apply(const std::string& stack, Runtime& runtime) const;
};

// Strict, like read_calibration().
StepCalibration read_step_calibration(const nlohmann::json& json, const InputError::Where& where);
nlohmann::ordered_json to_json(const StepCalibration& calibration);

// The calibration of results/calibration/steps.json, fitted on all published steps; and the one of steps_left_out.json,
// fitted on all steps except those of one source (the name of its file in results/published/steps). No fit has used a
// source that the file does not name: for it the second returns step_calibration().
const StepCalibration& step_calibration();
const StepCalibration& step_calibration_without(const std::string& source);

// Says on whose kernels a device's curves were measured. `same_vendor` are also curves of which products of less than
// 16 bits use the curve of another type, or attention uses the curve of another architecture.
enum class CurveOrigin : std::uint8_t { own, same_vendor, other_vendor };
inline constexpr std::size_t kCurveOrigins = 3;
CurveOrigin curve_origin(const Device& device, const Calibration& kernels, Dtype products);
std::string_view name_of(CurveOrigin origin);  // "own", ...: the names in steps.json

// The properties of a step that its interval depends on.
struct IntervalClass {
  std::string stack{};
  CurveOrigin origin = CurveOrigin::own;
  std::int64_t devices = 1;
  bool device_seen = true;  // steps of the device were published
  bool mixture = false;     // the model has experts
  bool four_bits = false;   // layers multiply in NVFP4
  // CollectiveCalibration::inter_class, or the fabric's name if another class stands in; "": one node has all devices.
  std::string network{};
};

// Prediction errors |log(measured / predicted)| that four of five measured steps do not exceed, when a calibration
// predicts each source without having been fitted on it. study/validation/intervals.h computes them.
struct StepIntervals {
  struct Stack {
    double half_width = 0;  // for devices with curves of their own
    std::int64_t points = 0, sources = 0, most_devices = 0;
    // Networks (IntervalClass::network) over which enough steps of mixtures were published.
    std::set<std::string> mixture_networks;
  };
  // Mixtures of experts on a stack or over a network where too few of them were published.
  struct RareMixtures {
    double half_width = 0;
    std::int64_t points = 0, sources = 0;
  };
  std::map<std::string, Stack> stacks;  // stacks with enough published steps
  std::array<double, kCurveOrigins> origin_factor{1, 1, 1};
  double mixture_factor = 1;        // for models with experts
  double four_bit_factor = 1;       // for layers that multiply in NVFP4
  double unseen_device_factor = 1;  // for devices without a published step
  RareMixtures rare_mixtures;

  bool is_rare_mixture(const IntervalClass& of) const;
};

// An interval around a prediction, as factors of the predicted time.
struct StepInterval {
  double low = 1, high = 1;
  std::string comparable;  // words that say whose errors these are
  std::int64_t points = 0, sources = 0;
  // Half width in logarithms: (stack_half_width * origin_factor * mixture_factor * four_bit_factor, or
  // rare_mixture_half_width if that is more than 0) * unseen_device_factor + beyond_half_width.
  // rare_mixture_half_width is that of StepIntervals::rare_mixtures where it is the larger one; points and sources are
  // then those that it rests on. beyond_half_width is 0 up to most_devices, the largest number of devices in a published
  // step of the stack.
  double stack_half_width = 0, origin_factor = 1, mixture_factor = 1, four_bit_factor = 1, rare_mixture_half_width = 0,
         unseen_device_factor = 1, beyond_half_width = 0;
  std::int64_t most_devices = 0;
};
// Returns the interval that steps.json gives for a class of steps. It widens with each doubling beyond the most devices
// in the stack's published steps (results/calibration/scale.json). A stack with too few published steps gets the widest
// interval of all stacks; one without an entry in step_calibration() gets {}. An interval is never narrower where less
// is known.
std::optional<StepInterval> step_interval(const IntervalClass& of);
// The same from other intervals than those of steps.json, for any stack; {} if `intervals` has none.
std::optional<StepInterval> step_interval(const StepIntervals& intervals, const IntervalClass& of);

// The time that a step loses because many devices take part, beyond its collectives. Numbers and sources:
// results/calibration/scale.json.

// Mean of the largest of n independent standard normal variables, in standard deviations: 0 for 1, 1.42 for 8, 3.97 for
// 16,384.
double expected_largest(std::int64_t n);

// A synchronous step runs at the pace of its slowest device. Returns the share by which products on `devices` devices
// take longer than on ScaleFigures::calibrated_devices devices; 0 if there are no more devices than that. `spread`:
// standard deviation of the devices' rates over their mean.
double slowest_device_loss(std::int64_t devices, double spread);

// Jobs on a shared production cluster: the share by which all steps of a job take longer than on a tuned cluster.
struct ProductionSlowdown {
  double median = 0, sigma_of_logarithm = 0;
  double better_tenth() const;  // nine of ten jobs lose more
  double worse_tenth() const;   // one of ten jobs loses more
};

struct ScaleFigures {
  // The first: standard deviation of the devices' rates over their mean. The second: by how much an interval's half
  // width (in logarithms) grows with each doubling of the devices beyond StepInterval::most_devices.
  double device_spread = 0, interval_per_doubling = 0;
  std::int64_t calibrated_devices = 1;  // devices whose slowest the step calibration has already seen
  ProductionSlowdown production;
};
const ScaleFigures& scale_figures();  // of scale.json

}  // namespace orrery
