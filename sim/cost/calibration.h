// Calibrations from JSON: the files of results/calibration, compiled in, or a user's own.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/error.h"
#include "sim/cost/kernel_cost.h"

namespace orrery {

// The calibration of a device: its own file; else the device that results/calibration/borrowed.json names for the
// device, its architecture, its vendor, or any device, in this order. A borrowed calibration says so (measured,
// borrowed_from, note). It is scaled to the measured figures of the device itself that borrowed.json holds. Never
// fails.
Calibration find_calibration(const Device& device);

// The names of the devices with a calibration of their own, sorted.
std::vector<std::string> calibrated_devices();

// Strict: unknown keys, wrong types and out-of-range numbers are InputErrors at their pointer. Sections may be
// {"borrowed_from": "<device>"}, which names a calibrated device.
Calibration read_calibration(const nlohmann::json& json, const InputError::Where& where);

// Switches to another measured generation of attention kernels ("flash_attention_2" where the stack has no newer).
// Returns false and changes nothing if this calibration has no such curve.
bool use_attention_kernel(Calibration& calibration, std::string_view kernel);

}  // namespace orrery
