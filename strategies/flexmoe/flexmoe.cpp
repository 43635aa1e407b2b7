// Placements of experts that follow their load, as an option of the plan (FlexMoE, Nie et al. 2023, arXiv 2304.03946;
// EPLB; SYMI), and two methods they are compared with: FasterMoE's shadowing and SWIPE. Each rank has
// `moe_slots_per_rank` experts. In a training, the controller decides how many rows go from which rank to which, and
// which ranks sum the gradients of an expert's copies (Situation). A single step, and the first step of a training, has
// every expert once, in blocks, or the placement that the plan gives for it.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/layers.h"
#include "sim/base/digest.h"
#include "sim/base/error.h"
#include "sim/program/rewrite.h"
#include "strategies/dts_gate/options.h"
#include "strategies/expert_parallel/expert_parallel.h"
#include "strategies/expert_parallel/routing_loads.h"
#include "strategies/flexmoe/balancers.h"
#include "strategies/flexmoe/placement.h"
#include "strategies/framework/framework.h"
#include "strategies/optimizer/optimizer.h"
#include "strategies/strategy.h"

namespace orrery::flexmoe {
namespace {

using Matrix = std::vector<double>;  // [from * ranks + to]
using Rows = std::vector<Matrix>;    // by layer of the routing's source

double width_of(Dtype dtype) { return static_cast<double>(bits_of(dtype)) / 8; }

bool used(const Scenario& scenario) { return scenario.plan.flexmoe.balancer != Balancer::none; }

std::int64_t slots_per_rank(const Scenario& scenario) {
  const std::int64_t given = scenario.plan.flexmoe.slots_per_rank;
  return given > 0 ? given : scenario.model.experts / scenario.plan.expert.degree;
}

ExpertPlacement in_blocks(const Scenario& scenario) {
  return ExpertPlacement::in_blocks(scenario.model.experts, scenario.plan.expert.degree, slots_per_rank(scenario));
}

// For `given`: the number of placements, and the one that holds at a step.
std::int64_t given_placements(const Scenario& scenario) {
  return static_cast<std::int64_t>(scenario.plan.flexmoe.placement.size()) /
         (slots_per_rank(scenario) * scenario.plan.expert.degree);
}
std::int64_t given_at(const Scenario& scenario, std::int64_t step) {
  return std::min(step / scenario.plan.flexmoe.interval, given_placements(scenario) - 1);
}
std::span<const std::int64_t> given_slots(const Scenario& scenario, std::int64_t placement) {
  const auto slots = static_cast<std::size_t>(slots_per_rank(scenario) * scenario.plan.expert.degree);
  return std::span(scenario.plan.flexmoe.placement).subspan(static_cast<std::size_t>(placement) * slots, slots);
}

// ExpertPlacement at a step that begins with it, whatever the routing was.
ExpertPlacement placement_at(const Scenario& scenario, std::int64_t step) {
  if (scenario.plan.flexmoe.balancer != Balancer::given) return in_blocks(scenario);
  return {scenario.model.experts, scenario.plan.expert.degree, slots_per_rank(scenario),
          given_slots(scenario, given_at(scenario, step))};
}

// Whether a balancer acts within a step, by that step's routing, and leaves no expert elsewhere afterwards.
bool within_steps(Balancer balancer) { return balancer == Balancer::fastermoe || balancer == Balancer::swipe; }

// Rows from each rank to each other, [from * ranks + to]; an expert's tokens are divided evenly over its vExperts.
std::vector<double> rows_between(const ExpertPlacement& placement, const RoutingMatrix& tokens) {
  const auto ranks = static_cast<std::size_t>(placement.ranks());
  std::vector<double> rows(ranks * ranks);
  for (std::int64_t e = 0; e < placement.experts(); ++e)
    for (const std::int64_t to : placement.ranks_of(e)) {
      const double share = static_cast<double>(placement.vexperts(e, to)) / static_cast<double>(placement.vexperts(e));
      for (std::size_t from = 0; from < ranks; ++from)
        rows[from * ranks + static_cast<std::size_t>(to)] +=
            share * static_cast<double>(tokens.at(static_cast<std::int64_t>(from), e));
    }
  return rows;
}

// Load::rows of the sum over copies if the ranks that hold an expert form a ring for it. An element is the bytes from
// rank to rank, over the bytes of a rank's expert gradients divided by the number of ranks. Empty: nothing is sent.
Matrix gradients_between(const ExpertPlacement& placement) {
  const auto ranks = static_cast<std::size_t>(placement.ranks());
  Matrix sent;
  for (std::int64_t e = 0; e < placement.experts(); ++e) {
    const std::vector<std::int64_t> holders = placement.ranks_of(e);
    if (holders.size() < 2) continue;
    sent.resize(ranks * ranks);
    const auto n = static_cast<double>(holders.size());
    for (std::size_t i = 0; i < holders.size(); ++i)
      sent[static_cast<std::size_t>(holders[i]) * ranks +
           static_cast<std::size_t>(holders[(i + 1) % holders.size()])] +=
          2 * (n - 1) / n * static_cast<double>(ranks) / static_cast<double>(placement.slots_per_rank());
  }
  return sent;
}

// Rows of an expert group, per layer and step.
double rows_of_group(const Scenario& scenario) {
  const double groups = static_cast<double>(scenario.cluster.devices()) /
                        static_cast<double>(scenario.plan.pipeline.degree * scenario.plan.expert.degree);
  return expert_rows(scenario.model, scenario.workload, scenario.workload.global_batch_size) / groups;
}

// Rows of a group's step, by layer and source rank; all ranks send the same where nothing else is known.
std::vector<RoutingMatrix> rows_by_source(const Scenario& scenario) {
  const std::int64_t ranks = scenario.plan.expert.degree;
  std::vector<RoutingMatrix> all;
  for (const RoutingMatrix& seen : expert_parallel::routing_of(scenario)) {
    const double scale = rows_of_group(scenario) / static_cast<double>(std::max<std::int64_t>(seen.total(), 1));
    RoutingMatrix rows{ranks, seen.experts, {}};
    for (std::int64_t from = 0; from < ranks; ++from)
      for (std::int64_t e = 0; e < seen.experts; ++e)
        rows.tokens.push_back(std::llround(
            scale * (seen.source_ranks == 1 ? static_cast<double>(seen.at(0, e)) / static_cast<double>(ranks)
                                            : static_cast<double>(seen.at(from, e)))));
    all.push_back(std::move(rows));
  }
  return all;
}

double balance_of(std::span<const double> rows, std::int64_t ranks) {
  std::vector<double> of_ranks(static_cast<std::size_t>(ranks));
  for (std::size_t i = 0; i < rows.size(); ++i) of_ranks[i % of_ranks.size()] += rows[i];
  return max_over_mean(of_ranks);
}

class BalanceController final : public TrainingController {
 public:
  explicit BalanceController(const Scenario& scenario)
      : options_(scenario.plan.flexmoe),
        ranks_(scenario.plan.expert.degree),
        placements_(expert_parallel::routing_of(scenario).size(), placement_at(scenario, scenario.workload.step)) {
    const Model& model = scenario.model;
    const auto stages = static_cast<double>(scenario.plan.pipeline.degree);
    const auto parameters = static_cast<double>(routed_expert_parameters(model));
    layers_of_each_ = static_cast<double>(model.expert_layers()) /
                      (stages * static_cast<double>(std::max<std::size_t>(placements_.size(), 1)));
    gradient_bytes_ = parameters * width_of(framework::gradient_dtype(scenario.plan));
    // SYMI's states are separate from the weights, divided evenly over all ranks, and stay there.
    copy_bytes_ =
        parameters * (options_.balancer == Balancer::symi ? width_of(scenario.plan.precision.storage())
                                                          : optimizer::bytes_kept_per_parameter(scenario.plan));
    token_bytes_ = static_cast<double>(model.hidden) * width_of(scenario.plan.precision.storage());
    group_rows_ = rows_of_group(scenario);
    micro_batches_ = orrery::micro_batches(scenario);
    choices_ = model.experts_per_token;
    weight_bytes_ = parameters * width_of(scenario.plan.precision.storage());
    hidden_ = static_cast<double>(model.hidden);
    hidden_ratio_ = parameters / (2 * hidden_ * hidden_);  // as if an expert had two matrices
    set(placements_);
  }

  void use(const StepMoveCosts& costs) override {
    costs_ = &costs;
    LayerProfile profile;
    profile.tokens_per_second = costs.expert_tokens_per_second;
    profile.token_bytes = token_bytes_;
    profile.gradient_bytes = gradient_bytes_;
    const double message = token_bytes_ * std::max(1.0, group_rows_ / static_cast<double>(ranks_ * ranks_));
    profile.bytes_per_second = [&costs, message](std::int64_t from, std::int64_t to) {
      return message / costs.send_seconds(message, from, to);
    };
    profile.all_reduced_bytes_per_second = [&costs, bytes = gradient_bytes_](const std::vector<std::int64_t>& ranks) {
      return bytes / costs.all_reduce_seconds(bytes, ranks);
    };
    cost_ = cost_of(std::move(profile), ranks_);
    shadowing_ = {.hidden = hidden_,
                  .hidden_ratio = hidden_ratio_,
                  .element_bytes = token_bytes_ / hidden_,
                  .flops_per_second = 4 * hidden_ratio_ * hidden_ * hidden_ * costs.expert_tokens_per_second,
                  .bytes_per_second = weight_bytes_ / costs.send_seconds(weight_bytes_, 0, ranks_ - 1)};
  }

  void begin(const Scenario& scenario, Situation& situation) override {
    const bool first = !known_;  // the first step, predicted on its own
    if (within_steps(options_.balancer)) digest_ = digest_of(first ? "in blocks" : "within steps");
    arrived_ = std::exchange(arriving_, 0);
    const std::int64_t routing = expert_parallel::routing_state(scenario);
    if (first || routing != routing_ || weighed_ != digest_) {
      known_ = true;
      routing_ = routing;
      weighed_ = digest_;
      looked_ = false;
      weigh(scenario, first);
    }
    if (!first && !placements_.empty()) situation = {rows_, copied_};
    if (within_steps(options_.balancer)) arrived_ = replicas_;
  }

  std::uint64_t state(const Scenario&) const override { return digest_; }

  std::vector<StepMove> end(const Scenario& scenario) override {
    std::vector<StepMove> work;
    if (within_step_ > 0) work.push_back({within_step_, true, false});
    if (moving_ || placements_.empty() || within_steps(options_.balancer)) return work;
    const bool at_intervals = options_.balancer == Balancer::eplb || options_.balancer == Balancer::given;
    const bool due = !at_intervals || (scenario.workload.step + 1) % options_.interval == 0;
    if (!due || (looked_ && options_.balancer != Balancer::given)) return work;
    looked_ = true;
    next_ = chosen(scenario);
    if (next_ == placements_) return work;
    moving_ = true;
    const bool beside = options_.balancer == Balancer::flexmoe;
    work.push_back({moving_seconds(), !beside, true});
    return work;
  }

  void arrived() override {
    moving_ = false;
    arriving_ = copies_;
    set(std::move(next_));
  }

  std::span<const std::string_view> figures() const override {
    return options_.balancer == Balancer::swipe ? std::span<const std::string_view>(kSwipeFigures) : kFigures;
  }
  void figures(const Scenario&, std::vector<double>& values) const override {
    values.push_back(balance_);
    if (options_.balancer == Balancer::swipe) return values.push_back(rerouted_);
    values.push_back(static_cast<double>(replicas_));
    values.push_back(static_cast<double>(arrived_));
  }

 private:
  static constexpr std::array<std::string_view, 3> kFigures{"balance", "replicas", "moved_copies"};
  static constexpr std::array<std::string_view, 2> kSwipeFigures{"balance", "rerouted_share"};

  // Applies the balancer to the step's routing.
  void weigh(const Scenario& scenario, bool first) {
    tokens_ = rows_by_source(scenario);
    auto rows = std::make_shared<Rows>();
    if (within_steps(options_.balancer)) within_step_ = rerouted_ = 0, replicas_ = 0;
    balance_ = 1;
    for (std::size_t i = 0; i < placements_.size(); ++i) {
      rows->push_back(rows_between(placements_[i], tokens_[i]));
      if (!first && options_.balancer == Balancer::fastermoe) shadow(tokens_[i], placements_[i], rows->back());
      if (!first && options_.balancer == Balancer::swipe) swipe(rows->back());
      balance_ += (balance_of(rows->back(), ranks_) - 1) / static_cast<double>(placements_.size());
    }
    rows_ = std::move(rows);
  }

  // Each micro-batch broadcasts popular experts and reduces their gradients; their tokens stay where they are.
  void shadow(const RoutingMatrix& tokens, const ExpertPlacement& placement, std::vector<double>& rows) {
    std::vector<double> of_micro_batch;
    for (const std::int64_t t : tokens.by_expert())
      of_micro_batch.push_back(static_cast<double>(t) / static_cast<double>(micro_batches_));
    const std::vector<std::int64_t> shadowed = shadowed_experts(of_micro_batch, shadowing_);
    for (const std::int64_t e : shadowed) {
      const std::int64_t home = placement.ranks_of(e).front();
      for (std::int64_t from = 0; from < ranks_; ++from) {
        const auto here = static_cast<double>(tokens.at(from, e));
        rows[static_cast<std::size_t>(from * ranks_ + home)] -= here;
        rows[static_cast<std::size_t>(from * ranks_ + from)] += here;
      }
    }
    const auto times = static_cast<double>(shadowed.size()) * static_cast<double>(micro_batches_);
    within_step_ += layers_of_each_ * times *
                    (costs_->group_seconds(OpKind::broadcast, weight_bytes_) +
                     costs_->group_seconds(OpKind::reduce, gradient_bytes_));
    replicas_ += static_cast<std::int64_t>(shadowed.size()) * (ranks_ - 1);
  }

  // One pass per choice, as if all choices of a token were alike. Workers only exchange counts.
  void swipe(std::vector<double>& rows) {
    double all = 0;
    for (const double r : rows) all += r;
    RoutingMatrix pass{ranks_, ranks_, {}};
    for (const double r : rows) pass.tokens.push_back(std::llround(r / static_cast<double>(choices_)));
    std::vector<std::int64_t> room(static_cast<std::size_t>(ranks_), (pass.total() * choices_ + ranks_ - 1) / ranks_);
    std::vector<double> balanced(rows.size());
    std::int64_t moved = 0;
    for (std::int64_t choice = 0; choice < choices_; ++choice) {
      const SwipePass done = swipe_once(pass, room);
      for (std::size_t i = 0; i < balanced.size(); ++i) balanced[i] += static_cast<double>(done.tokens.tokens[i]);
      moved += done.moved;
    }
    rows = std::move(balanced);
    rerouted_ += all > 0 ? static_cast<double>(moved) / all / static_cast<double>(placements_.size()) : 0;
    constexpr double kCountBytes = 8;
    const double counts = kCountBytes * static_cast<double>(ranks_);
    const double seconds = 2 * costs_->group_seconds(OpKind::all_to_all, counts) +
                           costs_->group_seconds(OpKind::all_reduce, counts) +
                           costs_->group_seconds(OpKind::all_gather, counts * static_cast<double>(ranks_));
    within_step_ += layers_of_each_ * static_cast<double>(choices_ * micro_batches_) * seconds;
  }

  std::vector<ExpertPlacement> chosen(const Scenario& scenario) const {
    std::vector<ExpertPlacement> next = placements_;
    const std::int64_t slots = placements_.front().slots_per_rank();
    for (std::size_t i = 0; i < next.size(); ++i) {
      const std::vector<std::int64_t> loads = tokens_[i].by_expert();
      switch (options_.balancer) {
        case Balancer::none:
        case Balancer::fastermoe:
        case Balancer::swipe:
          break;
        case Balancer::flexmoe: {
          PlacementChange made = schedule(next[i], tokens_[i], cost_, options_.threshold, options_.also_busiest_rank);
          if (made.adjustments.empty()) break;
          next[i] = std::move(made.placement);
          gather_replicas(next[i], tokens_[i], cost_);
          break;
        }
        case Balancer::eplb:
          next[i] = ExpertPlacement(next[i].experts(), ranks_, slots, eplb(loads, slots * ranks_, 1, 1, ranks_));
          break;
        case Balancer::symi:
          next[i] = place_by_popularity(loads, ranks_, slots);
          break;
        case Balancer::given:
          next[i] = placement_at(scenario, scenario.workload.step + 1);
          break;
      }
    }
    return next;
  }

  // Time of the rank that sends or receives the most; a copy comes from the rank that sends it fastest.
  double moving_seconds() {
    std::vector<double> sent(static_cast<std::size_t>(ranks_)), got(sent.size());
    copies_ = 0;
    for (std::size_t i = 0; i < placements_.size(); ++i)
      for (const auto& copy : new_copies(placements_[i], next_[i])) {
        double least = 0;
        std::int64_t by = -1;
        for (const std::int64_t from : placements_[i].ranks_of(copy.first)) {
          const double seconds = costs_->send_seconds(copy_bytes_, from, copy.second);
          if (by >= 0 && !(seconds < least)) continue;
          least = seconds;
          by = from;
        }
        sent[static_cast<std::size_t>(by)] += least;
        got[static_cast<std::size_t>(copy.second)] += least;
        ++copies_;
      }
    return layers_of_each_ * std::max(*std::ranges::max_element(sent), *std::ranges::max_element(got));
  }

  void set(std::vector<ExpertPlacement> placements) {
    placements_ = std::move(placements);
    digest_ = digest_of("placements");
    replicas_ = 0;
    auto copied = std::make_shared<Rows>();
    for (const ExpertPlacement& placement : placements_) {
      for (std::int64_t e = 0; e < placement.experts(); ++e) {
        for (std::int64_t rank = 0; rank < ranks_; ++rank) {
          const std::int64_t here = placement.vexperts(e, rank);
          digest_ = digest_of({reinterpret_cast<const char*>(&here), sizeof here}, digest_);
        }
        replicas_ += static_cast<std::int64_t>(placement.ranks_of(e).size()) - 1;
      }
      copied->push_back(gradients_between(placement));
    }
    copied_ = std::move(copied);
  }

  Options options_;
  std::int64_t ranks_;
  double gradient_bytes_ = 0, copy_bytes_ = 0, token_bytes_ = 0;
  double layers_of_each_ = 0;  // layers of a stage per layer of the routing's source
  double group_rows_ = 0;      // rows of an expert group, per layer and step
  std::int64_t micro_batches_ = 1, choices_ = 1;
  double weight_bytes_ = 0, hidden_ = 0, hidden_ratio_ = 0;
  ShadowingProfile shadowing_;
  const StepMoveCosts* costs_ = nullptr;
  PlacementCost cost_;

  std::vector<ExpertPlacement> placements_, next_;  // by layer of the routing's source
  Situation::Matrices rows_, copied_;               // of this step
  std::vector<RoutingMatrix> tokens_;
  std::uint64_t digest_ = 0, weighed_ = 0;
  std::int64_t routing_ = 0, replicas_ = 0, copies_ = 0, arriving_ = 0, arrived_ = 0;
  double balance_ = 1, rerouted_ = 0;
  double within_step_ = 0;  // fastermoe, swipe: seconds by which the current step is longer
  bool known_ = false, looked_ = false, moving_ = false;
};

// Capacity factor with which each slot of a rank has room for all tokens of another rank.
double factor_without_drops(const Scenario& scenario) {
  return static_cast<double>(slots_per_rank(scenario) * scenario.plan.expert.degree) /
         static_cast<double>(scenario.model.experts_per_token);
}

constexpr const char* kPlacement = "/plan/moe_expert_placement";

void check_given(const Scenario& scenario) {
  const std::int64_t each = slots_per_rank(scenario), ranks = scenario.plan.expert.degree, slots = each * ranks;
  const auto found = static_cast<std::int64_t>(scenario.plan.flexmoe.placement.size());
  if (found == 0 || found % slots != 0)
    throw InputError({"", kPlacement}, fmt::format("{} slots", found),
                     fmt::format("{} for each placement, {} on each of {} ranks", slots, each, ranks));
  for (std::int64_t i = 0; i < found / slots; ++i) try {
      static_cast<void>(ExpertPlacement(scenario.model.experts, ranks, each, given_slots(scenario, i)));
    } catch (const InputError& error) {
      const std::string of = found > slots ? fmt::format(" in placement {}", i) : "";
      throw InputError({"", kPlacement}, error.found() + of, error.expected());
    }
}

constexpr bool (*kFlexmoe)(const AskedOf&) = [](const AskedOf& a) {
  return a.plan.flexmoe.balancer == Balancer::flexmoe;
};
constexpr FieldRule kIdle[]{
    keep({"moe_balance_threshold", "moe_balance_busiest_rank"}, "unless \"moe_balancer\" is \"flexmoe\"", kFlexmoe),
    keep({"moe_balance_interval"}, "unless \"moe_balancer\" is \"eplb\" or \"given\"",
         [](const AskedOf& a) {
           return a.plan.flexmoe.balancer == Balancer::eplb || a.plan.flexmoe.balancer == Balancer::given;
         }),
    keep({"moe_expert_placement"}, "unless \"moe_balancer\" is \"given\"",
         [](const AskedOf& a) { return a.plan.flexmoe.balancer == Balancer::given; }),
    keep({"moe_slots_per_rank"}, "unless \"moe_balancer\" keeps copies: \"flexmoe\", \"eplb\", \"symi\" or \"given\"",
         [](const AskedOf& a) { return used(a.scenario) && !within_steps(a.plan.flexmoe.balancer); }),
    keep({"moe_balancer"}, "for a model without experts", [](const AskedOf& a) { return a.model.has_experts(); }),
    keep({"moe_balancer"}, "with expert_parallel 1, where one rank has all experts",
         [](const AskedOf& a) { return a.plan.expert.degree > 1; })};
constexpr FieldRule kExcludes[]{keep({"moe_balancer"}, "with expert_tensor_parallel above 1: experts move as a whole",
                                     [](const AskedOf& a) { return expert_parallel::expert_tensor_ranks(a.plan) > 1; }),
                                keep({"moe_balancer"}, "with \"moe_gate\": \"dense_to_sparse\"",
                                     [](const AskedOf& a) { return a.plan.dts_gate.kind != dts_gate::MoeGate::top_k; }),
                                keep({"moe_pad_to_busiest_expert"}, "with \"moe_balancer\", whose rows are not padded",
                                     [](const AskedOf& a) { return used(a.scenario); })};

void check(const Scenario& scenario) {
  if (!used(scenario)) return;
  const Options& options = scenario.plan.flexmoe;
  const std::int64_t experts = scenario.model.experts, ranks = scenario.plan.expert.degree;
  if (options.slots_per_rank > 0 && options.slots_per_rank < experts / ranks)
    refuse(scenario.plan, "moe_slots_per_rank",
           fmt::format("at least {}, for {} experts on {} ranks", experts / ranks, experts, ranks));
  if (options.slots_per_rank > experts)
    refuse(scenario.plan, "moe_slots_per_rank", fmt::format("at most {}, one of each expert", experts));
  if (const double factor = scenario.plan.expert.capacity_factor, all = factor_without_drops(scenario);
      factor > 0 && factor < all)
    refuse(scenario.plan, "moe_expert_capacity_factor",
           fmt::format("0 with \"moe_balancer\", which drops no token, or at least {:g}: a slot for every token", all));
  if (options.balancer == Balancer::given) check_given(scenario);
}

std::optional<Scenario> settle(const Scenario& scenario) {
  if (!used(scenario)) return {};
  Scenario settled = scenario;
  settled.model.expert_slots = slots_per_rank(scenario) * scenario.plan.expert.degree;
  if (scenario.plan.flexmoe.balancer == Balancer::given && settled.situation.expert_rows == nullptr) {
    const ExpertPlacement placement = placement_at(scenario, scenario.workload.step);
    Rows rows;
    for (const RoutingMatrix& tokens : rows_by_source(scenario)) rows.push_back(rows_between(placement, tokens));
    settled.situation = {std::make_shared<const Rows>(std::move(rows)),
                         std::make_shared<const Rows>(Rows{gradients_between(placement)})};
  }
  return settled;
}

// Figures: balance (rows of the busiest rank over the mean, mean of layers), replicas (ranks beyond one an expert, of
// all layers of the routing's source), moved_copies (that arrived in front of the step; fastermoe: in each of its
// micro-batches). Of swipe: balance, rerouted_share (of all rows, those that go elsewhere than their router said).
std::unique_ptr<TrainingController> control(const Scenario& scenario) {
  return used(scenario) && scenario.model.has_experts() ? std::make_unique<BalanceController>(scenario) : nullptr;
}

double most_sent(const Matrix& sent, std::int64_t ranks) {
  double most = 0;
  for (auto row = sent.begin(); row != sent.end(); row += ranks)
    most = std::max(most, std::accumulate(row, row + ranks, 0.0));
  return most;
}

// One load for all layers: that of the layer whose busiest rank sends most, scaled to the mean of the layers' busiest
// ranks. Empty if no layer has copies on several ranks.
Matrix mean_sent(const Rows& layers, std::int64_t ranks) {
  if (layers.empty()) return {};
  const auto busiest = [ranks](const Matrix& layer) { return most_sent(layer, ranks); };
  Matrix sent = *std::ranges::max_element(layers, {}, busiest);
  double mean = 0;
  for (const Matrix& layer : layers) mean += busiest(layer) / static_cast<double>(layers.size());
  const double most = busiest(sent);
  for (double& of_pair : sent) of_pair *= mean / most;
  return sent;
}

// Puts the sums over copies behind the update's reductions.
void sum_copies(TableIndex<Load> load, MeshGroup experts, Piece& piece) {
  const auto is_experts = [&](const ParameterGradient& p, std::size_t set) {
    return p.set == set && p.gradient != kNoTensor && piece.tensors[p.parameter].find(Axis::experts) >= 0;
  };
  for (std::size_t set = 0; set < piece.sets.size(); ++set) {
    if (std::ranges::none_of(piece.parameters, [&](const ParameterGradient& p) { return is_experts(p, set); }))
      continue;
    const TensorId gradients = piece.sets[set].own_gradients;
    Op sum = communication(OpKind::all_reduce, "copies.all_reduce", Phase::weight_gradient, Stream::compute, experts,
                           gradients, gradients);
    sum.account = Stream::data_communication;
    sum.reduction = Reduction::copies;
    sum.load = load;
    std::vector<Op>& update = piece.update.ops;
    update.insert(std::ranges::find_if(update, [](const Op& op) { return !is_communication(op.kind); }), sum);
  }
}

void rewrite(const Scenario& scenario, Program& program) {
  if (!used(scenario) || scenario.situation.copied_gradients == nullptr) return;
  Load load;
  load.of = RowsOf::gradients;
  load.group = program.mesh.group(MeshAxis::ep);
  load.ranks = scenario.plan.expert.degree;
  load.rows = mean_sent(*scenario.situation.copied_gradients, load.ranks);
  if (scenario.plan.flexmoe.balancer == Balancer::given) {
    const std::span<const std::int64_t> slots = given_slots(scenario, given_at(scenario, scenario.workload.step));
    program.expert_of_slot.assign(slots.begin(), slots.end());
    // Copies on one rank are summed as well, and nothing is sent.
    if (load.rows.empty() && program.has_copies()) load.rows.resize(static_cast<std::size_t>(load.ranks * load.ranks));
  }
  if (load.rows.empty()) return;
  const TableIndex<Load> index(program.loads.size());
  program.loads.push_back(std::move(load));
  for (Piece& piece : program.pieces) sum_copies(index, program.mesh.group(MeshAxis::ep), piece);
}

bool begins_anew(const Scenario& scenario) {
  if (scenario.plan.flexmoe.balancer != Balancer::given) return false;
  return given_at(scenario, scenario.workload.step) != given_at(scenario, scenario.workload.step - 1);
}

void check_runnable(const Scenario& scenario) {
  if (used(scenario) && scenario.plan.flexmoe.balancer != Balancer::given)
    refuse(scenario.plan, "moe_balancer",
           "\"given\" or \"none\" in a real run, which does not choose placements from its routing");
  if (used(scenario))
    keep_defaults(scenario.plan, {"optimizer_offload"},
                  "in a real run with \"moe_balancer\": \"given\": the two were never run together");
}

// Each copy may get all tokens of a rank.
void make_runnable(Scenario& scenario) {
  check_runnable(scenario);
  if (used(scenario)) scenario.plan.expert.capacity_factor = factor_without_drops(scenario);
}

}  // namespace

Strategy describe() {
  return {.name = "flexmoe",
          .summary = "copies of busy experts, moved between steps",
          .paper = "Nie et al. 2023, arXiv 2304.03946; Skiadopoulos et al. 2025, arXiv 2504.19925 (SYMI)",
          .excludes = kExcludes,
          .idle = kIdle,
          .check = check,
          .rewrite = rewrite,
          .settle = settle,
          .control = control,
          .disable = reset<&Plan::flexmoe>,  // one rank has every expert
          .make_runnable = make_runnable,
          .begins_anew = begins_anew,
          .check_runnable = check_runnable};
}

}  // namespace orrery::flexmoe
