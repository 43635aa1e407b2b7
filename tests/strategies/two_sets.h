// A list of strategies with one more: pieces of two parameter sets, matrices and the rest, each with a sharding of its
// own.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "strategies/data_parallel/data_parallel.h"
#include "strategies/layer_plans.h"
#include "strategies/strategy.h"

namespace orrery {

using Shardings = std::array<data_parallel::Sharding, 2>;
// Of matrices and of the rest; from what the plan itself says.
using ShardingRule = Shardings (*)(const Mesh& mesh, const data_parallel::Sharding& plan);

inline void divide_into_two_sets(const Scenario&, Program& program) {
  for (Piece& piece : program.pieces) {
    // What stages sum with others keeps a set of its own.
    const auto is_summed = [&](const ParameterGradient& p) {
      return std::ranges::any_of(piece.update.ops,
                                 [&](const Op& op) { return op.stages.has_value() && op.reads[0] == p.gradient; });
    };
    const bool any_summed = std::ranges::any_of(piece.parameters, is_summed);
    const auto is_of_first = [&](const ParameterGradient& p) {
      return any_summed ? is_summed(p) : piece.tensors[p.parameter].rank > 1;
    };
    const bool first = std::ranges::any_of(piece.parameters, [&](const ParameterGradient& p) {
      return is_of_first(p) && !piece.tensors[p.parameter].shared;
    });
    for (ParameterGradient& p : piece.parameters) p.set = first && !is_of_first(p) ? 1 : 0;
  }
}

template <ShardingRule rule>
std::vector<Strategy> with_two_sets() {
  std::vector<Strategy> strategies;
  for (Strategy strategy : all_strategies()) {
    if (strategy.name == std::string_view("optimizer"))
      strategies.push_back({.name = "two_sets",
                            .summary = "",
                            .paper = "",
                            .check = [](const Scenario&) {},
                            .rewrite = divide_into_two_sets});
    if (strategy.name == std::string_view("data_parallel"))
      strategy.rewrite_piece = [](const Scenario& scenario, const Plan& plan, const Program& program, Piece& piece) {
        const auto sharding = data_parallel::sharding_of(scenario, plan, program);
        if (sharding.ranks.empty()) return;
        const Shardings shardings = rule(program.mesh, sharding);
        data_parallel::lay_out(shardings, plan.data, 20000, program.mesh, piece);
      };
    strategies.push_back(strategy);
  }
  return strategies;
}

// ---- rules ----

inline Shardings alike(const Mesh&, const data_parallel::Sharding& plan) { return {plan, plan}; }
// DeepSpeed's stage3_param_persistence_threshold: small parameters are whole on every rank, their states are not.
inline Shardings rest_stays_whole(const Mesh&, const data_parallel::Sharding& plan) {
  Shardings s{plan, plan};
  s[1].over.weights = {};
  return s;
}
// The rest as replicas have it, under any plan.
inline Shardings rest_is_replicated(const Mesh&, const data_parallel::Sharding& plan) {
  Shardings s{plan, plan};
  s[1].over = {};
  s[1].reduced = {};
  return s;
}
// States over all ranks, gradients over a shard group, weights over a part of it (low-bandwidth partitioning, arXiv
// 2501.04266); the rest once a step over all ranks.
inline Shardings three_levels(const Mesh& mesh, const data_parallel::Sharding& plan) {
  Shardings s{plan, plan};
  const MeshGroup shards = mesh.group(MeshAxis::dp_shard), inner = MeshGroup::of_digit(0);
  s[0].over = {.weights = inner, .gradients = shards, .states = plan.ranks, .secondary = {}};
  s[0].reduced = shards;
  s[1].over = {.weights = {}, .gradients = {}, .states = plan.ranks, .secondary = {}};
  s[1].reduced = {};
  return s;
}

}  // namespace orrery
