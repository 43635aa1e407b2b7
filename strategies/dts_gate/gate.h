// The dense-to-sparse gate (DTS-Gate; Nie et al. 2021, arXiv 2112.14397, called EvoMoE in its second version). Training
// begins with one expert. Then every token goes to nearly all experts, and a falling temperature makes the choice
// sharper until the gate switches to one expert a token. It is a schedule of routing without parallelism of its own.
#pragma once

#include <cstdint>
#include <vector>

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

  // Throws InputError, with the field's name as pointer.
  void check() const;

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

struct GateState {
  Phase phase = Phase::single_expert;
  double temperature = 0, logit_deviation = 0;
  double active_experts = 1;    // expected active experts of a token
  double computed_experts = 1;  // experts that compute a token: FLOPs, activations and all-to-alls scale with it
};
// Returns the state of the gate at a step. REQUIRES: `tokens` were sampled for gate.experts.
GateState state(const Gate& gate, const SampledGate& tokens, std::int64_t step);

}  // namespace orrery::dts_gate
