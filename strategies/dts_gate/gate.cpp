#include "strategies/dts_gate/gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "sim/base/error.h"

namespace orrery::dts_gate {
namespace {

constexpr double kPi = 3.14159265358979323846;

// Progress of the soft phase: from 0 to 1, where the last temperature is reached.
double progress(const Gate& gate, std::int64_t step) {
  const double steps = static_cast<double>(std::max<std::int64_t>(0, step - gate.seed_steps));
  return std::min(1.0, steps / static_cast<double>(gate.decay_steps));
}

// Uniform in (0, 1).
double uniform(std::mt19937_64& random) { return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53; }

}  // namespace

void Gate::check() const {
  const auto fail = [](const char* field, const auto& found, std::string expected) {
    throw InputError({"", fmt::format("/{}", field)}, fmt::format("{}", found), std::move(expected));
  };
  if (experts < 1) fail("experts", experts, "at least 1");
  if (seed_steps < 0) fail("seed_steps", seed_steps, "at least 0");
  if (hard_step < seed_steps) fail("hard_step", hard_step, fmt::format("at least {}, the seed steps", seed_steps));
  if (decay_steps < 1) fail("decay_steps", decay_steps, "at least 1");
  if (!(last_temperature > 0) || !std::isfinite(last_temperature))
    fail("last_temperature", last_temperature, "above 0");
  if (!(first_temperature >= last_temperature) || !std::isfinite(first_temperature))
    fail("first_temperature", first_temperature, fmt::format("at least {}, the last temperature", last_temperature));
  if (!(threshold > 0 && threshold < 1)) fail("threshold", threshold, "above 0 and below 1");
  if (!(first_logit_deviation >= 0) || !std::isfinite(first_logit_deviation))
    fail("first_logit_deviation", first_logit_deviation, "at least 0");
  if (!(last_logit_deviation >= 0) || !std::isfinite(last_logit_deviation))
    fail("last_logit_deviation", last_logit_deviation, "at least 0");
}

Phase phase(const Gate& gate, std::int64_t step) {
  if (step < gate.seed_steps) return Phase::single_expert;
  return step < gate.hard_step ? Phase::soft : Phase::hard;
}

double temperature(const Gate& gate, std::int64_t step) {
  const double at = progress(gate, step), first = gate.first_temperature, last = gate.last_temperature;
  return gate.decay == Decay::linear ? std::lerp(first, last, at) : first * std::pow(last / first, at);
}

double logit_deviation(const Gate& gate, std::int64_t step) {
  return std::lerp(gate.first_logit_deviation, gate.last_logit_deviation, progress(gate, step));
}

SampledGate::SampledGate(std::int64_t experts, std::int64_t tokens, std::uint64_t seed)
    : experts_(static_cast<std::size_t>(experts)),
      gumbel_(experts_ * static_cast<std::size_t>(tokens)),
      normal_(gumbel_.size()) {
  std::mt19937_64 random(seed);
  for (std::size_t i = 0; i < gumbel_.size(); ++i) {
    gumbel_[i] = -std::log(-std::log(uniform(random)));
    const double radius = std::sqrt(-2 * std::log(uniform(random)));  // Box & Muller 1958
    normal_[i] = radius * std::cos(2 * kPi * uniform(random));
  }
}

double SampledGate::active_experts(double temperature, double threshold, double logit_deviation) const {
  std::int64_t active = 0;
  std::vector<double> p(experts_);
  for (std::size_t first = 0; first < gumbel_.size(); first += experts_) {
    for (std::size_t e = 0; e < experts_; ++e)
      p[e] = (gumbel_[first + e] + logit_deviation * normal_[first + e]) / temperature;
    const double largest = *std::max_element(p.begin(), p.end());
    double sum = 0;
    for (double& z : p) sum += z = std::exp(z - largest);
    active += std::count_if(p.begin(), p.end(), [&](double weight) { return weight > threshold * sum; });
  }
  return static_cast<double>(active) * static_cast<double>(experts_) / static_cast<double>(gumbel_.size());
}

GateState state(const Gate& gate, const SampledGate& tokens, std::int64_t step) {
  GateState s{phase(gate, step), temperature(gate, step), logit_deviation(gate, step)};
  if (s.phase != Phase::soft) return s;
  s.active_experts = tokens.active_experts(s.temperature, gate.threshold, s.logit_deviation);
  s.computed_experts = gate.padded ? static_cast<double>(gate.experts) : s.active_experts;
  return s;
}

}  // namespace orrery::dts_gate
