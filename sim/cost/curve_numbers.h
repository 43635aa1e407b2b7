// The numbers of a calibration's curves by the names that its file gives them: one table for reading, writing and
// fitting.
#pragma once

#include <array>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include "sim/base/fields.h"
#include "sim/cost/kernel_cost.h"

namespace orrery {

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
inline constexpr std::array<CurveNumber<AttentionCurve>, 9> kAttentionNumbers{
    {{"forward_efficiency", &AttentionCurve::forward_efficiency, kEfficiency, true},
     {"backward_efficiency", &AttentionCurve::backward_efficiency, kEfficiency, true},
     {"half_sequence", &AttentionCurve::half_sequence},
     {"half_head_dim", &AttentionCurve::half_head_dim},
     {"backward_half_head_dim", &AttentionCurve::backward_half_head_dim},
     {"masked_share", &AttentionCurve::masked_share, kAtMostOne},
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
