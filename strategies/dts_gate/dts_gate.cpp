// The dense-to-sparse gate as an option of the plan (Nie et al. 2021, arXiv 2112.14397). As steps go on, a token is
// given to one expert that all tokens share, then to nearly all experts, then to fewer and fewer, and finally to one.
// options.h has the schedule of the phases:
//
//   single_expert  the model without experts: each device has the one expert, whose gradients are all-reduced
//   soft           rows for the average number of experts that compute a token, rounded to 0.01; memory and exchanges
//                  scale with it
//   hard           top-1
//
// In a run the data decide how many experts a token has. A run therefore has a slot for every token in each expert
// (moe_expert_capacity_factor of at least the number of experts).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "sim/base/digest.h"
#include "sim/base/error.h"
#include "strategies/dts_gate/options.h"
#include "strategies/strategy.h"
#include "traces/routing_generator.h"

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

constexpr std::int64_t kSampledTokens = 1 << 12, kSampledSteps = 64;  // of the decay: intervals
constexpr std::uint64_t kSeed = 1;
constexpr double kHundredth = 100;
// Op::draw of a gate's noise: greater than the numbers that a model's pieces use.
constexpr std::uint8_t kDraw = 255;

// Experts per token by step, sampled once per gate and interpolated linearly between sampled steps of the decay.
class Curve {
 public:
  explicit Curve(const Gate& gate) : gate_(gate), tokens_(gate.experts, kSampledTokens, kSeed) {
    for (std::int64_t i = 0; i <= kSampledSteps; ++i)
      active_.push_back(
          tokens_.active_experts(temperature(gate_, step_at(i)), gate_.threshold, logit_deviation(gate_, step_at(i))));
  }

  double active(std::int64_t step) const {
    const std::int64_t offset = std::clamp<std::int64_t>(step - gate_.seed_steps, 0, gate_.decay_steps);
    std::int64_t i = std::min(offset * kSampledSteps / gate_.decay_steps, kSampledSteps - 1);
    while (i + 1 < kSampledSteps && step_at(i + 1) - gate_.seed_steps <= offset)
      ++i;  // short decays sample some steps twice
    const std::int64_t begin = step_at(i) - gate_.seed_steps, length = step_at(i + 1) - step_at(i);
    const double part = length > 0 ? static_cast<double>(offset - begin) / static_cast<double>(length) : 1;
    const auto at = static_cast<std::size_t>(i);
    return std::clamp(std::lerp(active_[at], active_[at + 1], part), 1.0, static_cast<double>(gate_.experts));
  }

 private:
  std::int64_t step_at(std::int64_t i) const { return gate_.seed_steps + gate_.decay_steps * i / kSampledSteps; }

  Gate gate_;
  SampledGate tokens_;
  std::vector<double> active_;
};

Gate gate_of(const Scenario& scenario) {
  Gate gate = scenario.plan.dts_gate.gate;
  gate.experts = scenario.model.experts;
  return gate;
}

// Cached, as a training asks for one gate step after step.
const Curve& curve_of(const Gate& g) {
  thread_local Gate met;
  thread_local std::unique_ptr<Curve> curve;
  if (curve == nullptr || g != met) {
    curve = std::make_unique<Curve>(g);
    met = g;
  }
  return *curve;
}

bool used(const Scenario& scenario) { return scenario.plan.dts_gate.kind == MoeGate::dense_to_sparse; }

double active_experts(const Gate& gate, std::int64_t step) {
  return phase(gate, step) == Phase::soft ? curve_of(gate).active(step) : 1;
}

// Rounded to 0.01, so that steps that hardly differ have the same Program.
double computed_experts(const Gate& gate, std::int64_t step) {
  if (phase(gate, step) != Phase::soft) return 1;
  if (gate.padded) return static_cast<double>(gate.experts);
  return std::round(active_experts(gate, step) * kHundredth) / kHundredth;
}

// Whether each expert has a slot for every token, so that the data decide the number of experts per token.
bool has_room_for_all(const Scenario& scenario) {
  return scenario.plan.expert.capacity_factor >= static_cast<double>(scenario.model.experts);
}

double computed_experts(const Scenario& scenario) {
  const Gate gate = gate_of(scenario);
  const std::int64_t step = scenario.workload.step;
  if (has_room_for_all(scenario) && phase(gate, step) == Phase::soft) return static_cast<double>(gate.experts);
  return computed_experts(gate, step);
}

class GateController final : public TrainingController {
 public:
  std::uint64_t state(const Scenario& scenario) const override {
    const Gate gate = gate_of(scenario);
    const std::int64_t step = scenario.workload.step;
    return static_cast<std::uint64_t>(phase(gate, step)) +
           4 * static_cast<std::uint64_t>(std::llround(computed_experts(scenario) * kHundredth));
  }
  std::span<const std::string_view> figures() const override { return kFigures; }
  void figures(const Scenario& scenario, std::vector<double>& values) const override {
    const Gate gate = gate_of(scenario);
    const std::int64_t step = scenario.workload.step;
    for (const double value : {temperature(gate, step), active_experts(gate, step), computed_experts(scenario)})
      values.push_back(value);
  }

 private:
  static constexpr std::array<std::string_view, 3> kFigures{"gate_temperature", "active_experts", "computed_experts"};
};

constexpr FieldRule kIdle[]{
    keep({"moe_gate_seed_steps", "moe_gate_hard_step", "moe_gate_decay", "moe_gate_decay_steps",
          "moe_gate_first_temperature", "moe_gate_last_temperature", "moe_gate_threshold",
          "moe_gate_first_logit_deviation", "moe_gate_last_logit_deviation", "moe_gate_padded"},
         "unless moe_gate is \"dense_to_sparse\"", [](const AskedOf& a) { return used(a.scenario); }),
    keep({"moe_gate"}, "for a model without experts", [](const AskedOf& a) { return a.model.has_experts(); })};
constexpr FieldRule kExcludes[]{
    keep({"moe_gate"}, "for a model with several experts per token: the gate ends at one",
         [](const AskedOf& a) { return a.model.experts_per_token > 1; }),
    keep({"moe_gate"}, "for a model with shared experts",
         [](const AskedOf& a) { return a.model.shared_expert_ffn > 0; }),
    keep({"moe_gate"}, "for a model whose experts are chosen by groups",
         [](const AskedOf& a) { return a.model.router_groups > 1; }),
    keep({"moe_gate"}, "for a model whose router has a bias", [](const AskedOf& a) { return a.model.router_bias; })};

void check(const Scenario& scenario) {
  const Model& model = scenario.model;
  const Gate& gate = scenario.plan.dts_gate.gate;
  if (!used(scenario)) return;
  if (model.router_type != RouterType::top_k)
    refuse(scenario.plan, "moe_gate",
           fmt::format("\"top_k\" with \"router_type\": \"{}\"", name_of(model.router_type)));
  if (scenario.plan.expert.capacity_factor > 0 && !has_room_for_all(scenario))
    refuse(scenario.plan, "moe_expert_capacity_factor",
           fmt::format(
               "0 with \"moe_gate\": \"dense_to_sparse\", which drops no token, or at least {}: a slot for every token",
               model.experts));
  if (scenario.workload.recorded_routing)
    throw InputError({"", "/workload/routing_file"}, scenario.workload.routing_file,
                     "none with \"moe_gate\": \"dense_to_sparse\", which sets the experts per token");
  if (scenario.workload.routes_unequally() && model.experts > RoutingGenerator::kMostTopK)
    throw InputError({"", "/workload/routing"}, "unequal routing",
                     fmt::format("\"balanced\" with \"moe_gate\": \"dense_to_sparse\" and more than {} experts",
                                 RoutingGenerator::kMostTopK));
  if (gate.seed_steps > 0 && model.expert_ffn != model.ffn)
    refuse(scenario.plan, "moe_gate_seed_steps",
           fmt::format("0 for a model whose experts and MLP have different inner widths ({} and {})", model.expert_ffn,
                       model.ffn));
  if (gate.hard_step < gate.seed_steps)
    refuse(scenario.plan, "moe_gate_hard_step", fmt::format("at least {}, the seed steps", gate.seed_steps));
  if (gate.first_temperature < gate.last_temperature)
    refuse(scenario.plan, "moe_gate_first_temperature",
           fmt::format("at least {}, the last temperature", gate.last_temperature));
}

std::optional<Scenario> settle(const Scenario& scenario) {
  if (!used(scenario)) return {};
  const Gate gate = gate_of(scenario);
  const std::int64_t step = scenario.workload.step;
  const Phase now = phase(gate, step);
  if (now == Phase::hard) return {};
  Scenario settled = scenario;
  Model& model = settled.model;
  if (now == Phase::single_expert) {
    model.experts = model.experts_per_token = 0;
    model.expert_period = 1;
    model.dense_layers = 0;
    settled.plan.expert = {};
    settled.workload.routing = ExpertRouting::balanced;
    return settled;
  }
  const double computed = computed_experts(scenario);
  model.experts_per_token = std::min(static_cast<std::int64_t>(std::ceil(computed)), model.experts);
  if (computed < static_cast<double>(model.experts_per_token)) model.mean_experts_per_token = computed;
  return settled;
}

// Returns a controller that adds the figures gate_temperature, active_experts, computed_experts.
std::unique_ptr<TrainingController> control(const Scenario& scenario) {
  return used(scenario) ? std::make_unique<GateController>() : nullptr;
}

// Routers' noise, temperature and threshold at the workload's step.
void rewrite_piece(const Scenario& scenario, const Plan&, const Program&, Piece& piece) {
  if (!used(scenario)) return;
  const Gate gate = scenario.plan.dts_gate.gate;
  const std::int64_t step = scenario.workload.step;
  const bool soft = phase(gate, step) == Phase::soft;
  for (Block* block : {&piece.forward, &piece.backward})
    for (Op& op : block->ops) {
      if (op.kind != OpKind::route && op.kind != OpKind::route_backward) continue;
      op.router.gumbel_temperature = static_cast<float>(temperature(gate, step));
      op.router.threshold = soft ? static_cast<float>(gate.threshold) : 0.0f;
      op.router.padded = soft && gate.padded;
      op.draw = kDraw;
    }
}

bool begins_anew(const Scenario& scenario) {
  if (!used(scenario)) return false;
  const Gate gate = scenario.plan.dts_gate.gate;
  const std::int64_t step = scenario.workload.step;
  if (phase(gate, step) != phase(gate, step - 1)) return true;
  return phase(gate, step) != Phase::single_expert && temperature(gate, step) != temperature(gate, step - 1);
}

// A token may have any number of experts: all slots are computed, and no rows are counted.
void make_runnable(Scenario& scenario) {
  if (!used(scenario) || !scenario.model.has_experts()) return;
  scenario.plan.expert.capacity_factor = static_cast<double>(scenario.model.experts);
  scenario.plan.expert.counted = false;
  for (LayerRange& range : scenario.plan.layers) range.plan.expert.counted = false;
}

void check_runnable(const Scenario& scenario) {
  const Model& model = scenario.model;
  if (used(scenario) && scenario.plan.dts_gate.gate.seed_steps > 0 && model.linear_bias != model.expert_bias)
    refuse(scenario.plan, "moe_gate_seed_steps",
           fmt::format(
               "0 in a real run of a model whose experts have {} and whose MLP has {}: the MLP becomes the experts",
               model.expert_bias ? "biases" : "no biases", model.linear_bias ? "some" : "none"));
}

}  // namespace

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

Strategy describe() {
  return {.name = "dts_gate",
          .summary = "a gate that sends tokens to nearly all experts at first, and to one in the end",
          .paper = "Nie et al. 2021, arXiv 2112.14397",
          .excludes = kExcludes,
          .idle = kIdle,
          .check = check,
          .settle = settle,
          .control = control,
          .rewrite_piece = rewrite_piece,
          .make_runnable = make_runnable,
          .begins_anew = begins_anew,
          .check_runnable = check_runnable};
}

}  // namespace orrery::dts_gate
