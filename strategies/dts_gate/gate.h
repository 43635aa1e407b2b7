// The dense-to-sparse gate (DTS-Gate; Nie et al. 2021, arXiv 2112.14397, as EvoMoE in its second version): training
// begins with one expert, goes on with every token at nearly all of them, and sharpens the choice by a falling
// temperature until it switches to one expert a token. A schedule of routing; no parallelism of its own.
#pragma once

#include <cstdint>
#include <vector>

namespace orrery::dts_gate {

enum class Decay : std::uint8_t { exponential, linear };
enum class Phase : std::uint8_t { single_expert, soft, hard };

// A token's logits l get Gumbel noise g and a temperature: p = softmax((l + g) / tau). In the soft phase experts with
// p > threshold are active, in the hard one the most likely alone. Defaults are those of the authors' code
// (github.com/codecaution/EvoMoE, fairseq/dataclass/configs.py).
struct Gate {
  std::int64_t experts = 1;
  std::int64_t seed_steps = 0;  // of a single expert that all tokens go to, before there are several
  std::int64_t hard_step = 0;   // the first of the hard phase, counted from the first step of training
  Decay decay = Decay::exponential;
  double first_temperature = 1, last_temperature = 0.5;
  std::int64_t decay_steps = 1;  // from the first temperature to the last
  double threshold = 0.001;
  // Standard deviation of logits over a token's experts, at the first soft step and from the end of the decay on,
  // linear in between: a gate that knows nothing yet has 0.
  double first_logit_deviation = 0, last_logit_deviation = 0;
  // Whether experts compute what is active alone. Padded, as in the authors' code, each computes all tokens until the
  // hard phase.
  bool padded = false;

  // Throws InputError, with the field's name as pointer.
  void check() const;

  bool operator==(const Gate&) const = default;
};

Phase phase(const Gate& gate, std::int64_t step);
// Of the soft phase's temperature; steps of the seed phase have its first.
double temperature(const Gate& gate, std::int64_t step);
double logit_deviation(const Gate& gate, std::int64_t step);

// Expected active experts of a token whose logits are equal: 1 + (E - 1)(a - 1) / (E + a - 1), a =
// threshold^-temperature. Activity is taken relative to the most likely expert instead of to all together, which counts
// too many: by a percent at 4 experts, by a third at 64.
double active_experts_in_closed_form(std::int64_t experts, double temperature, double threshold);

// The same without that simplification and for logits that differ, by sampling tokens. The same tokens at every
// temperature, so that results rise with it. REQUIRES: experts and tokens of at least 1.
class SampledGate {
 public:
  SampledGate(std::int64_t experts, std::int64_t tokens, std::uint64_t seed);
  double active_experts(double temperature, double threshold, double logit_deviation) const;

 private:
  std::size_t experts_;
  std::vector<double> gumbel_, normal_;  // [token * experts + expert]
};

struct GateState {
  Phase phase = Phase::single_expert;
  double temperature = 0, logit_deviation = 0;
  double active_experts = 1;      // of a token, expected
  double computed_experts = 1;    // that are given each token: FLOPs, bytes of all-to-alls and activations go with it
  bool exchanges_tokens = false;  // a single expert is on every rank: its gradients are all-reduced instead
};
// REQUIRES: tokens are sampled for gate.experts.
GateState state(const Gate& gate, const SampledGate& tokens, std::int64_t step);

// Computed experts of a token, mean over the first `steps` of training. Sampled at 65 steps of the decay, linear in
// between.
double mean_computed_experts(const Gate& gate, const SampledGate& tokens, std::int64_t steps);

}  // namespace orrery::dts_gate
