#pragma once

#include <array>

#include "sim/base/fields.h"
#include "strategies/dts_gate/gate.h"

namespace orrery::dts_gate {

enum class MoeGate : std::uint8_t { top_k, dense_to_sparse };
inline constexpr std::array<std::string_view, 2> kMoeGateNames{"top_k", "dense_to_sparse"};
inline constexpr std::array<std::string_view, 2> kDecayNames{"exponential", "linear"};

struct Options {
  MoeGate kind = MoeGate::top_k;
  Gate gate{};  // gate.experts is set from the model

  void visit_fields(FieldVisitor& v) {
    constexpr IntegerRange kSteps{.least = 0, .most = std::int64_t{1} << 24};
    constexpr NumberRange kTemperature{.least = 1e-3, .most = 1e3}, kDeviation{.least = 0, .most = 1e3};
    v.field("moe_gate", kind, kMoeGateNames,
            "experts per token: the model's experts_per_token (top_k), or by step from nearly all to one "
            "(dense_to_sparse: DTS-Gate)");
    v.field("moe_gate_seed_steps", gate.seed_steps, kSteps,
            "dense_to_sparse: first steps, in which all tokens go to a single expert");
    v.field("moe_gate_hard_step", gate.hard_step, kSteps, "dense_to_sparse: first step with one expert per token");
    v.field("moe_gate_decay", gate.decay, kDecayNames, "dense_to_sparse: how the temperature falls");
    v.field("moe_gate_decay_steps", gate.decay_steps, IntegerRange{.least = 1, .most = kSteps.most},
            "dense_to_sparse: steps from the first temperature to the last");
    v.field("moe_gate_first_temperature", gate.first_temperature, kTemperature,
            "dense_to_sparse: first temperature of the softmax over logits with Gumbel noise");
    v.field("moe_gate_last_temperature", gate.last_temperature, kTemperature,
            "dense_to_sparse: last temperature, at most the first");
    v.field("moe_gate_threshold", gate.threshold, NumberRange{.least = 1e-12, .most = 0.999999},
            "dense_to_sparse: experts are active above this probability");
    v.field("moe_gate_first_logit_deviation", gate.first_logit_deviation, kDeviation,
            "dense_to_sparse: standard deviation of a token's logits before the decay");
    v.field("moe_gate_last_logit_deviation", gate.last_logit_deviation, kDeviation,
            "dense_to_sparse: standard deviation of a token's logits after the decay");
    v.field("moe_gate_padded", gate.padded,
            "dense_to_sparse: until the hard step every expert computes all tokens, active or not, as the authors' "
            "code does");
  }
};

}  // namespace orrery::dts_gate
