// Calibrations that users have measured themselves (`orrery calibrate`); they replace the bundled ones.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>

#include "sim/cost/calibration.h"
#include "sim/cost/collective_calibration.h"
#include "sim/hardware/cluster.h"

namespace orrery {

struct UserCalibration {
  std::optional<Calibration> kernels;
  std::optional<Device> device;               // the device that `kernels` was measured on, if no preset describes it
  CollectiveClasses collectives;              // may be empty
  std::optional<CopyOverlaps> copy_overlaps;  // for information: no engine slows kernels or copies by them

  bool empty() const { return !kernels && collectives.node_classes.empty() && collectives.network_classes.empty(); }
  // Applies the calibration to a simulated cluster: its device becomes the measured one if the file describes a device.
  void apply(Cluster& cluster) const;
  // The kernel calibration for a device: that of the file. It counts as borrowed if it was measured on another device.
  // REQUIRES: kernels.
  Calibration kernels_of(const Device& device) const;
};

// Reads files of kernels (the format of results/calibration/<device>.json, with optional "device" as in
// sim/hardware/presets and optional "collectives") and files of collectives (the format of
// results/calibration/collectives.json). Throws InputError for files that cannot be used, and for two files that
// calibrate the same.
UserCalibration read_user_calibration(std::span<const std::string> paths);
UserCalibration read_user_calibration(const nlohmann::json& json, const InputError::Where& where);

// The share of its speed that each of `ranks` busy ranks on one host keeps; 1 if the calibration is not of a CPU. It
// falls linearly to the measured share at as many ranks as hardware threads; with more ranks, they take turns.
double rank_share(const Calibration& calibration, std::int64_t ranks);
// Gives a rank this share of a device: everything takes 1 / share times as long. REQUIRES: 0 < share <= 1.
void take_share(double share, Device& device, Calibration& calibration);

}  // namespace orrery
