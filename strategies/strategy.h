// A strategy: how work is laid over ranks. Each lives in its own folder, declares its fields of the plan (an Options
// struct with visit_fields), and rewrites the pieces, the stages or the schedule of a Program. To add one: its folder,
// whose NAME/NAME.cpp defines `Strategy NAME::describe()`; its name in the list (strategies.cpp); and, if it has
// options, an include and a name in plan.h.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/program/program.h"
#include "sim/report/report.h"
#include "strategies/scenario.h"
#include "strategies/topic.h"
#include "strategies/training_controller.h"

namespace orrery {

class LayerPlans;
namespace data_parallel {
struct Sharding;
}

// ---- fields of the plan that do not go with others: strategies declare them (Strategy::excludes, Strategy::idle), and
// one place (rules.cpp) derives which plans are refused.

// What a rule is asked about: a scenario, and its plan or the plan of one of its ranges of layers. Only fields of
// Scope::layer may be read from the latter.
struct AskedOf {
  const Scenario& scenario;
  const Plan& layers;
  const Plan& plan = scenario.plan;
  const Model& model = scenario.model;
};

using FieldNames = std::array<std::string_view, 10>;  // empty ones are behind the others

// Fields that keep their default values: in Strategy::excludes where `holds` is true, in Strategy::idle where it is
// true for no layers. A plan that sets one is refused with a sentence: the value that was found, and as expected the
// default value with `because` behind it.
struct FieldRule {
  FieldNames fields;
  std::string_view because;  // "with mics_shard_size: both set the size of a shard group"
  bool (*holds)(const AskedOf& asked);
};
constexpr FieldRule keep(FieldNames fields, std::string_view because, bool (*holds)(const AskedOf&)) {
  return {fields, because, holds};
}

// Throws InputError if a strategy's rules or its check() refuse the plan. `only`: the one strategy that is asked.
void check_strategies(const Scenario& scenario, std::string_view only = {});
// Whether rules of Strategy::excludes refuse the plan.
bool is_refused(std::span<const FieldRule> excludes, const Scenario& scenario);

// Throws InputError for the value of a field of the plan. `at`: the plan's pointer, as in for_each_plan().
[[noreturn]] void refuse(const Plan& plan, std::string_view field, const std::string& expected,
                         const std::string& at = "/plan/");
// Throws InputError if tensor parallelism has more ranks than the model has key/value heads, so that ranks hold a head in
// common. `because` ends the sentence: "with X: why".
void refuse_heads_in_common(const Scenario& scenario, std::string_view because);
// Throws InputError, as for a rule, for the first of `fields` that is not at its default value.
void keep_defaults(const Plan& plan, const FieldNames& fields, std::string_view because);

// ---- fields of the plan that a search varies (study/search); each strategy declares its own

// What a field decides. A search chooses fields in this order, each given the values chosen before it.
enum class ChosenWith : std::uint8_t {
  mesh,         // the number of ranks
  micro_batch,  // how much runs at once
  kernels,      // which kernels and collectives the layers' forward and backward consist of
  schedule,     // which micro-batch runs when on which stage
  activations,  // which activations are kept
  replicas,     // what replicas divide among each other, and where they lie
  shards,       // how many of the ranks that divide states divide weights and gradients, or a second copy of weights
};

using AxisValues = std::vector<std::int64_t>;

struct SearchAxis {
  std::string_view field;  // name of a field of the plan
  std::string_view label;  // column heading
  ChosenWith chosen_with;
  bool usual = false;  // searched by default
  // Sets the field. `value` is the number of an integer field, 0 or 1 for a flag, and the index of a name.
  void (*set)(Plan& plan, std::int64_t value);
  // Returns the values worth trying, each once. Fields that come before this one have their chosen values in `chosen`;
  // later ones have the scenario's. check() may refuse some of the values. Returns none if only the scenario's own
  // value works. Null: the field is searched only over values that the user names.
  AxisValues (*values)(const Scenario& chosen) = nullptr;
  // Whether the field matters for the model; if not, it is not searched. Null: for all models.
  bool (*turns_of)(const Model& model) = nullptr;
  // Whether another value of the field gives another plan, given the fields chosen before it. Null: always. If false,
  // the field is not searched, even over named values: it keeps the scenario's value, or the only one of `values`.
  bool (*acts)(const Scenario& chosen) = nullptr;
};

// Ascending.
inline AxisValues divisors_of(std::int64_t number) {
  AxisValues values;
  for (std::int64_t d = 1; d * d <= number; ++d) {
    if (number % d != 0) continue;
    values.push_back(d);
    if (d != number / d) values.push_back(number / d);
  }
  std::ranges::sort(values);
  return values;
}
// The values of a flag worth trying: false, and also true.
inline AxisValues flags(bool also_true) { return also_true ? AxisValues{0, 1} : AxisValues{0}; }

// ---- strategies

// A common name of a feature ("tensor", "zero-1"), and a function that tells whether a scenario's plan uses it.
struct PlanWord {
  std::string_view word;
  bool (*used)(const Scenario& scenario);
};

// For Strategy::disable and Strategy::relax: gives a member of the plan its default values.
template <auto kMember>
void reset(Plan& plan) {
  plan.*kMember = {};
}

struct Strategy {
  std::string_view name;     // "tensor_parallel": the folder's name
  std::string_view summary;  // one line
  std::string_view paper;    // its source

  // What does not go together, before `check`: the fields that keep their defaults in layers for which a rule holds,
  // and those that mean nothing unless a rule holds for some layers. A range of layers for which the latter does not
  // hold may have the plan's own value.
  std::span<const FieldRule> excludes = {};
  std::span<const FieldRule> idle = {};
  // Throws InputError (pointer "/plan/...") if the plan cannot be laid over this model and cluster for another reason.
  // Null: every plan can.
  void (*check)(const Scenario& scenario) = nullptr;
  // Rewrites `program`. Called in the order of the list, on the result of the strategies before it. Must return at once
  // if the plan does not use this strategy. Null: it rewrites pieces only, or nothing.
  void (*rewrite)(const Scenario& scenario, Program& program) = nullptr;

  // Adds tasks beside the step, and the blocks that they run (sim/program/task.h). Called when all strategies have
  // rewritten the step. Null: the step is all that a training repeats.
  void (*add_tasks)(const Scenario& scenario, Program& program) = nullptr;

  // Returns the scenario as it is at workload.step, if it differs from what the scenario says. Called before lowering,
  // on a scenario that all strategies have checked. Null, or no result: the scenario stays as it is.
  std::optional<Scenario> (*settle)(const Scenario& scenario) = nullptr;
  // Returns the controller of what changes from step to step of a training. Null, or a null result: nothing changes.
  std::unique_ptr<TrainingController> (*control)(const Scenario& scenario) = nullptr;

  // Rewrites one piece under the plan of its layers; only fields of Scope::layer may be read from `plan`. Called for
  // every piece of `program` after `rewrite`. Null: the strategy has no such fields.
  void (*rewrite_piece)(const Scenario& scenario, const Plan& plan, const Program& program, Piece& piece) = nullptr;
  // Turns fields that are not written by layer (e.g. by stage) into changes of the layers' plans. Null: none.
  void (*plan_layers)(const Scenario& scenario, LayerPlans& plans) = nullptr;
  // Changes the sharding of parameter sets. Called for every piece when data_parallel lays it out. Null: no change.
  void (*shard)(const Scenario& scenario, const Plan& plan, const Mesh& mesh,
                data_parallel::Sharding& sharding) = nullptr;
  // In the members below null means that there is nothing to do or say.
  // Adds the digits of the mesh over which the strategy lays ranks. Digits of one axis come in order from neighbouring
  // ranks outwards; axes come in the plan's mesh_order.
  void (*add_digits)(const Scenario& scenario, Mesh& mesh) = nullptr;
  // Lays further axes over digits that the strategies have added (Mesh::fold).
  void (*fold)(const Scenario& scenario, Mesh& mesh) = nullptr;
  // Removes the strategy from the plan. After all have done so, it computes the same on one rank, step by step.
  void (*disable)(Plan& plan) = nullptr;
  // Removes from the plan whatever can only make a step longer, such as what saves memory. The step of the relaxed plan
  // is a lower bound on the steps of all such plans (study/search). It need not fit.
  void (*relax)(Plan& plan) = nullptr;
  // Whether the plan recomputes activations in the backward, or keeps them elsewhere than on the device.
  bool (*spares_activations)(const Plan& plan) = nullptr;
  // Throws as `check` does, for what no plan changes. A search calls it once, before it looks at plans.
  void (*check_workload)(const Scenario& scenario) = nullptr;
  // Returns how many neighbouring ranks form an inner ring of a ring of `ranks` ranks that hand keys and values on.
  // Throws InputError if the ring cannot be divided so. Null, or 1: there are no inner rings.
  std::int64_t (*inner_ring)(const Scenario& scenario, std::int64_t ranks) = nullptr;
  // Returns the number of ranks over which the strategy divides one replica of the model.
  std::int64_t (*ranks)(const Plan& plan) = nullptr;
  std::span<const PlanWord> words = {};
  // The names of context_parallel_type that this strategy implements: how attention works on divided sequences. For
  // these it divides sequences, adds digits of the axis cp and lays out attention
  // (strategies/context_parallel/context_parallel.h).
  std::span<const std::string_view> context_types = {};
  // Changes the scenario so that a run has room for any data, where a prediction assumes what the data will be (e.g.
  // slots for all tokens). May throw as check_runnable does, if otherwise an error would blame another field.
  void (*make_runnable)(Scenario& scenario) = nullptr;
  // Whether the Program that a run executes at workload.step, which is not the run's first step, differs from that of
  // the step before. Null: it does not.
  bool (*begins_anew)(const Scenario& scenario) = nullptr;
  // Throws InputError if the Program can be timed but not yet executed (realrun/).
  void (*check_runnable)(const Scenario& scenario) = nullptr;
  // Returns what a report says about the layout of the plan, one sentence each. Null: nothing.
  std::vector<std::string> (*notes)(const Scenario& scenario) = nullptr;
  // The figures that the strategy adds to a step's report (sim/report/report.h): their kinds, and their values for a
  // lowered Program.
  std::span<const FigureKind> figure_kinds = {};
  void (*figures)(const Scenario& scenario, const Program& program, std::vector<Figure>& figures) = nullptr;
  // Sets those fields of `plan`, a copy of the scenario's plan, that are left to the strategy but that the training
  // framework must be given. Null: there are none.
  void (*write_out)(const Scenario& scenario, Plan& plan) = nullptr;
  // The fields that `orrery search` varies.
  std::span<const SearchAxis> search_axes = {};
  // Its topics of `--explain` (strategies/topic.h).
  std::span<const Topic> topics = {};
};

// Returns the strategies in the order in which they rewrite.
std::span<const Strategy> all_strategies();

// Returns the scenario on one rank: no parallelism, no recomputation, the same micro-batches one after another.
Scenario on_one_rank(const Scenario& scenario);
// Returns the scenario as realrun/ executes it, for any data. The prediction beside a run is of the scenario as given.
Scenario runnable(const Scenario& scenario);
// Whether a run's step has another Program than the step before it.
bool begins_anew(const Scenario& scenario);
// Return the words of all strategies, in their order, and those that the scenario's plan uses.
std::vector<std::string_view> all_plan_words();
std::vector<std::string> plan_words(const Scenario& scenario);
// Return the kinds of figures of all strategies, and the figures of one Program.
std::span<const FigureKind* const> all_figure_kinds();
std::vector<Figure> figures_of(const Scenario& scenario, const Program& program);

}  // namespace orrery
