// A strategy: how work is laid over ranks. Each lives in a folder of its own, declares the plan's fields it answers to
// (an Options struct with visit_fields), and lowers by rewriting the pieces, the stages or the schedule of a Program.
// Adding one: its folder, one member of Plan (plan.h), one line in the list (strategies.cpp).
#pragma once

#include <span>
#include <string_view>

#include "sim/program/program.h"
#include "strategies/scenario.h"

namespace orrery {

class LayerPlans;

struct Strategy {
  std::string_view name;     // "tensor_parallel": the folder's name
  std::string_view summary;  // one line
  std::string_view paper;

  // Throws InputError (pointer "/plan/...") when the plan cannot be laid over this model and cluster.
  void (*check)(const Scenario& scenario);
  // Rewrites `program`. Called in the order of the list, on a program that holds the result of those before it.
  // A strategy that the plan does not use must return at once.
  void (*rewrite)(const Scenario& scenario, Program& program);

  // Rewrites a piece under the plan of its layers, from which fields of Scope::layer are read; called for every piece
  // of `program` behind `rewrite`. nullptr: no such fields.
  void (*rewrite_piece)(const Scenario& scenario, const Plan& plan, const Program& program, Piece& piece) = nullptr;
  // Says by layers what the plan's own fields say otherwise, e.g. by stages. nullptr: nothing.
  void (*plan_layers)(const Scenario& scenario, LayerPlans& plans) = nullptr;
};

// In the order in which they rewrite.
std::span<const Strategy> all_strategies();

}  // namespace orrery
