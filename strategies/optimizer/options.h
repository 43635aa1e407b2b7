#pragma once

#include <array>

#include "sim/base/fields.h"

namespace orrery::optimizer {

enum class Rule : std::uint8_t { adamw, adam, sgd, sgd_momentum, muon, lion, adafactor };
inline constexpr std::array<std::string_view, 7> kRuleNames{"adamw", "adam", "sgd",      "sgd_momentum",
                                                            "muon",  "lion", "adafactor"};
enum class MomentDtype : std::uint8_t { fp32, bf16, fp16, fp8, int4 };
inline constexpr std::array<std::string_view, 5> kMomentDtypeNames{"fp32", "bf16", "fp16", "fp8", "int4"};

struct Options {
  Rule rule = Rule::adamw;
  MomentDtype moments = MomentDtype::fp32;
  bool master_parameters = true, parameter_remainders = false;
  double clip_grad = 1;

  void visit_fields(FieldVisitor& v) {
    v.field("optimizer", rule, kRuleNames, "update rule, with its states");
    v.field("optimizer_dtype", moments, kMomentDtypeNames, "dtype of the optimizer's moments");
    v.field("master_parameters", master_parameters, "keep an fp32 copy of 16-bit parameters for the optimizer");
    v.field(
        "store_param_remainders", parameter_remainders,
        "keep only the lower 16 bits of fp32 copies; the bf16 parameter is the upper half (Apex, Transformer Engine)");
    v.field("clip_grad", clip_grad, NumberRange{},
            "global norm that gradients are clipped to, which all ranks agree on before the update; 0: not clipped");
  }
};

}  // namespace orrery::optimizer
