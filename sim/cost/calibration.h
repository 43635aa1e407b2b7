// Calibrations from JSON: the files of results/calibration, compiled in, or a user's own.
#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/error.h"
#include "sim/base/fields.h"
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

// How much kernels and copies between host and device slow each other down while both run: the "overlap" of a
// calibration. Slowdowns are shares: 0.1 means 1.1 times as long while the other runs.
struct CopyOverlap {
  double product_slowdown = 0, copy_slowdown = 0;
  Residual product_residual, copy_residual;  // of the measured pairs, around the fitted share
};

// An attention kernel next to a copy in the direction that a step hides behind it: each alone, and by what share longer
// when together.
struct AttentionOverlap {
  std::string attention, copy;  // kinds and sizes
  double attention_seconds = 0, attention_slowdown = 0;
  double copy_bytes_per_second = 0, copy_slowdown = 0;
};

struct CopyOverlaps {
  CopyOverlap to_device, to_host;
  std::vector<AttentionOverlap> attention;
  std::string source;
};

// Reads the object below, or {"not_measured": why}, which gives nothing. Throws InputError.
//   "overlap": {"source": ..., "copy_to_device": {"product_slowdown": 0.03, "copy_slowdown": 0.01,
//   "product_residual": {...}, "copy_residual": {...}}, "copy_to_host": {...}, "attention": [{"attention":
//   "attention bf16 1 x 32768 x 2 x 128 causal", "copy": "copy_to_host 65536 KiB", "attention_seconds": ...,
//   "attention_slowdown": ..., "copy_bytes_per_second": ..., "copy_slowdown": ...}]}
std::optional<CopyOverlaps> read_copy_overlaps(const nlohmann::json& json, const InputError::Where& where);

// The numbers of a calibration's curves by the names that its file gives them: one table for reading, writing and
// fitting.

inline constexpr NumberRange kAtMostOne{.least = 0, .most = 1};
inline constexpr NumberRange kEfficiency{.least = 0, .most = 1, .exclude_least = true};

template <class Curve>
struct CurveNumber {
  const char* name;
  double Curve::*value;
  NumberRange range = {};
  bool needed = false;  // in a file
};

inline constexpr std::array<CurveNumber<MatmulCurve>, 11> kMatmulNumbers{
    {{"efficiency", &MatmulCurve::efficiency, kEfficiency, true},
     {"half_k", &MatmulCurve::half_k},
     {"operand_cost", &MatmulCurve::operand_cost},
     {"split_k", &MatmulCurve::split_k},
     {"memory_efficiency", &MatmulCurve::memory_efficiency, kEfficiency, true},
     {"overlap_loss", &MatmulCurve::overlap_loss, kAtMostOne},
     {"fixed_seconds", &MatmulCurve::fixed_seconds},
     {"sustained_efficiency", &MatmulCurve::sustained_efficiency, kAtMostOne},
     {"sustained_seconds", &MatmulCurve::sustained_seconds},
     {"point_quantise_seconds", &MatmulCurve::point_quantise_seconds},
     {"point_quantise_bytes", &MatmulCurve::point_quantise_bytes}}};
inline constexpr std::array<CurveNumber<AttentionCurve>, 13> kAttentionNumbers{
    {{"forward_efficiency", &AttentionCurve::forward_efficiency, kEfficiency, true},
     {"backward_efficiency", &AttentionCurve::backward_efficiency, kEfficiency, true},
     {"half_sequence", &AttentionCurve::half_sequence},
     {"half_head_dim", &AttentionCurve::half_head_dim},
     {"backward_half_head_dim", &AttentionCurve::backward_half_head_dim},
     {"forward_least_head_dim", &AttentionCurve::forward_least_head_dim},
     {"masked_share", &AttentionCurve::masked_share, kAtMostOne},
     {"backward_masked_share", &AttentionCurve::backward_masked_share, {.least = -1, .most = 1}},
     {"forward_window_edge", &AttentionCurve::forward_window_edge},
     {"backward_window_edge", &AttentionCurve::backward_window_edge},
     {"forward_last_wave", &AttentionCurve::forward_last_wave},
     {"backward_last_wave", &AttentionCurve::backward_last_wave},
     {"fixed_seconds", &AttentionCurve::fixed_seconds}}};
inline constexpr std::array<CurveNumber<GroupedCurve>, 2> kGroupedNumbers{
    {{"relative", &GroupedCurve::relative, kEfficiency, true}, {"group_seconds", &GroupedCurve::group_seconds}}};
inline constexpr std::array<CurveNumber<MemoryCurve>, 2> kMemoryNumbers{
    {{"efficiency", &MemoryCurve::efficiency, kEfficiency, true}, {"fixed_seconds", &MemoryCurve::fixed_seconds}}};

inline std::span<const CurveNumber<MatmulCurve>> numbers_of(const MatmulCurve&) { return kMatmulNumbers; }
inline std::span<const CurveNumber<AttentionCurve>> numbers_of(const AttentionCurve&) { return kAttentionNumbers; }
inline std::span<const CurveNumber<GroupedCurve>> numbers_of(const GroupedCurve&) { return kGroupedNumbers; }
inline std::span<const CurveNumber<MemoryCurve>> numbers_of(const MemoryCurve&) { return kMemoryNumbers; }

// REQUIRES: the curve has a number of this name.
template <class Curve>
double& number_in(Curve& curve, std::string_view name) {
  for (const auto& number : numbers_of(curve))
    if (name == number.name) return curve.*number.value;
  throw std::out_of_range(std::string(name));
}

}  // namespace orrery
