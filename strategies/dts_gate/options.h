// Options of the plan for the dense-to-sparse gate (DTS-Gate; Nie et al. 2021, arXiv 2112.14397, called EvoMoE in its
// second version). Training begins with one expert. Then every token goes to nearly all experts, and a falling
// temperature makes the choice sharper until the gate switches to one expert a token. It is a schedule of routing
// without parallelism of its own.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/base/fields.h"

namespace orrery::dts_gate {

enum class Decay : std::uint8_t { exponential, linear };
enum class Phase : std::uint8_t { single_expert, soft, hard };

// A token's logits l get Gumbel noise g and a temperature tau: p = softmax((l + g) / tau). In the soft phase experts
// with p > threshold are active; in the hard phase only the most likely one. Defaults are those of the authors' code
// (github.com/codecaution/EvoMoE, fairseq/dataclass/configs.py).
struct Gate {
  std::int64_t experts = 1;
  std::int64_t seed_steps = 0;  // steps in which all tokens go to a single expert
  std::int64_t hard_step = 0;   // first step of the hard phase, counted from the first step of training
  Decay decay = Decay::exponential;
  double first_temperature = 1, last_temperature = 0.5;
  std::int64_t decay_steps = 1;  // steps in which the temperature falls from first to last
  double threshold = 0.001;
  // Standard deviation of logits over a token's experts: at the first soft step, and from the end of the decay on;
  // linear in between. An untrained gate has 0.
  double first_logit_deviation = 0, last_logit_deviation = 0;
  // false: experts compute active tokens only. true, as in the authors' code: all tokens until the hard phase.
  bool padded = false;

  bool operator==(const Gate&) const = default;
};

Phase phase(const Gate& gate, std::int64_t step);
// Returns the temperature of the soft phase. Steps of the seed phase have the first temperature.
double temperature(const Gate& gate, std::int64_t step);
double logit_deviation(const Gate& gate, std::int64_t step);

// Computes the expected number of active experts of a token by sampling tokens. All temperatures use the same tokens,
// so that results rise with the temperature. REQUIRES: experts and tokens of at least 1.
class SampledGate {
 public:
  SampledGate(std::int64_t experts, std::int64_t tokens, std::uint64_t seed);
  double active_experts(double temperature, double threshold, double logit_deviation) const;

 private:
  std::size_t experts_;
  std::vector<double> gumbel_, normal_;  // [token * experts + expert]
};

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
