// A strategy: how work is laid over ranks. Each lives in a folder of its own, declares the plan's fields it answers to
// (an Options struct with visit_fields), and lowers by rewriting the pieces, the stages or the schedule of a Program.
// Adding one: its folder, whose NAME/NAME.cpp has `Strategy NAME::describe()`, its name in the list (strategies.cpp),
// and for options an include and a name in plan.h.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/program/program.h"
#include "strategies/run_controller.h"
#include "strategies/scenario.h"
#include "strategies/search_axis.h"
#include "strategies/topic.h"

namespace orrery {

class LayerPlans;
namespace data_parallel {
struct Sharding;
}

// What people call a use of a strategy ("tensor", "zero-1"), and whether a plan is one.
struct PlanWord {
  std::string_view word;
  bool (*used)(const Scenario& scenario);
};

struct Strategy {
  std::string_view name;     // "tensor_parallel": the folder's name
  std::string_view summary;  // one line
  std::string_view paper;

  // Throws InputError (pointer "/plan/...") when the plan cannot be laid over this model and cluster. Null: it always
  // can.
  void (*check)(const Scenario& scenario) = nullptr;
  // Rewrites `program`. Called in the order of the list, on a program that holds the result of those before it.
  // A strategy that the plan does not use must return at once. Null: it rewrites pieces only, or nothing.
  void (*rewrite)(const Scenario& scenario, Program& program) = nullptr;

  // The scenario as it is at the workload's step, where that is not what it says: called in front of all lowering, on a
  // scenario that all have checked. Null, or none: as it says.
  std::optional<Scenario> (*settle)(const Scenario& scenario) = nullptr;
  // Of a training, what changes from step to step. Null, or a null pointer: nothing.
  std::unique_ptr<RunController> (*control)(const Scenario& scenario) = nullptr;

  // Rewrites a piece under the plan of its layers, from which fields of Scope::layer are read; called for every piece
  // of `program` behind `rewrite`. Null: no such fields.
  void (*rewrite_piece)(const Scenario& scenario, const Plan& plan, const Program& program, Piece& piece) = nullptr;
  // Says by layers what the plan's own fields say otherwise, e.g. by stages. Null: nothing.
  void (*plan_layers)(const Scenario& scenario, LayerPlans& plans) = nullptr;
  // Divides parameter sets otherwise than `sharding` says; asked for every piece when data_parallel lays it out.
  // Null: it does not.
  void (*shard)(const Scenario& scenario, const Plan& plan, const Mesh& mesh,
                data_parallel::Sharding& sharding) = nullptr;
  // The rest is null where there is nothing to say.
  // Adds the digits over which it lays ranks, of one axis from neighbours outwards; axes come in the plan's mesh_order.
  void (*add_digits)(const Scenario& scenario, Mesh& mesh) = nullptr;
  // Lays axes over digits that all have laid (Mesh::fold).
  void (*fold)(const Scenario& scenario, Mesh& mesh) = nullptr;
  // Takes it out of the plan: what is left when all have done so computes the same on one rank, step by step.
  void (*disable)(Plan& plan) = nullptr;
  // Takes out of the plan what can only make a step longer, such as what saves memory: the step of what is left bounds
  // the steps of all such plans from below (study/search). It need not fit.
  void (*relax)(Plan& plan) = nullptr;
  // Whether the backward repeats activations under the plan, or they wait for it elsewhere than on the device.
  bool (*spares_activations)(const Plan& plan) = nullptr;
  // Throws as check, for what no plan changes. A search asks once, before it looks at plans.
  void (*check_workload)(const Scenario& scenario) = nullptr;
  // How many neighbours are a ring within a ring of so many ranks, which hand keys and values on. Throws InputError
  // where the ring cannot be cut so. Null, or 1: none are.
  std::int64_t (*inner_ring)(const Scenario& scenario, std::int64_t ranks) = nullptr;
  // Ranks over which it divides a replica of the model.
  std::int64_t (*ranks)(const Plan& plan) = nullptr;
  std::span<const PlanWord> words = {};
  // Of context_parallel_type the names that it answers to: how attention works on divided sequences. It divides them
  // then, adds digits of the axis cp and lays attention out (strategies/context_parallel/context_parallel.h).
  std::span<const std::string_view> context_types = {};
  // Says what a prediction takes for granted of the data, and a run must have room for. May throw as check_runnable,
  // where it would otherwise be another field's fault.
  void (*make_runnable)(Scenario& scenario) = nullptr;
  // Whether the workload's step, which is not the first of a run, has another Program than the step before it, as a run
  // executes them. Null: it has not.
  bool (*begins_anew)(const Scenario& scenario) = nullptr;
  // Throws InputError where its Program can be timed but not yet executed (realrun/).
  void (*check_runnable)(const Scenario& scenario) = nullptr;
  // Returns what a report says about the layout of the plan, a sentence each. Null: nothing.
  std::vector<std::string> (*notes)(const Scenario& scenario) = nullptr;
  // Sets those fields of `plan`, a copy of the scenario's, that are left to the strategy but that the plan's stack must
  // be told. Null: there are none.
  void (*write_out)(const Scenario& scenario, Plan& plan) = nullptr;
  // What `orrery search` turns of its fields.
  std::span<const SearchAxis> search_axes = {};
  // What `--explain` says of it (strategies/topic.h).
  std::span<const Topic> topics = {};
};

// In the order in which they rewrite.
std::span<const Strategy> all_strategies();

// The scenario on one rank: no parallelism, no recomputation, the same micro-batches one after another.
Scenario on_one_rank(const Scenario& scenario);
// The scenario as realrun/ executes it, whatever the data. What is predicted beside a run is the scenario as given.
Scenario runnable(const Scenario& scenario);
// Whether a step of a run has another Program than the step before it.
bool begins_anew(const Scenario& scenario);
// Words of all strategies, in their order; and those that a scenario's plan answers to.
std::vector<std::string_view> all_plan_words();
std::vector<std::string> plan_words(const Scenario& scenario);

}  // namespace orrery
