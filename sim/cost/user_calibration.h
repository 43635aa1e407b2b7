// What users have measured themselves (`orrery calibrate`), in place of the bundled calibrations.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>

#include "sim/cost/calibration.h"
#include "sim/cost/collective_calibration.h"
#include "sim/cost/copy_overlap.h"
#include "sim/hardware/cluster.h"

namespace orrery {

struct UserCalibration {
  std::optional<Calibration> kernels;
  std::optional<Device> device;               // the device that `kernels` was measured on, where no preset describes it
  CollectiveClasses collectives;              // may be empty
  std::optional<CopyOverlaps> copy_overlaps;  // for the reader: no engine slows kernels or copies by them

  bool empty() const { return !kernels && collectives.node_classes.empty() && collectives.network_classes.empty(); }
  // For what is simulated on `cluster`: its device becomes the measured one where the file describes one.
  void apply(Cluster& cluster) const;
  // Kernels of a device: those of the file. Measured on another device than `device` they count as borrowed.
  // REQUIRES: kernels.
  Calibration kernels_of(const Device& device) const;
};

// Files of kernels (the format of results/calibration/<device>.json, with an optional "device" as in
// sim/hardware/presets and optional "collectives") and of collectives (that of results/calibration/collectives.json).
// Throws InputError for files that cannot be used, and for two that calibrate the same.
UserCalibration read_user_calibration(std::span<const std::string> paths);
UserCalibration read_user_calibration(const nlohmann::json& json, const InputError::Where& where);

// The share of its speed alone that each of `ranks` busy ranks of one host keeps: 1 where the calibration is not of a
// CPU. Falls in a straight line to the measured share at as many ranks as hardware threads; beyond, ranks take turns.
double rank_share(const Calibration& calibration, std::int64_t ranks);
// A rank that gets this share of a device: everything takes 1 / share as long. 0 < share <= 1.
void take_share(double share, Device& device, Calibration& calibration);

}  // namespace orrery
