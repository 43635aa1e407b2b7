// The list of strategies.
#include "strategies/strategy.h"

// In the order in which they rewrite a Program. packed_documents is behind all others: it copies what they have made of
// the layers.
#define ORRERY_STRATEGIES(X) \
  X(batch)                   \
  X(framework)               \
  X(freeze)                  \
  X(lora)                    \
  X(precision)               \
  X(tensor_parallel)         \
  X(context_parallel)        \
  X(usp)                     \
  X(loongtrain)              \
  X(fpdt)                    \
  X(zeppelin)                \
  X(all_gather_context)      \
  X(expert_parallel)         \
  X(fsmoe)                   \
  X(dts_gate)                \
  X(pipeline_parallel)       \
  X(activation_recompute)    \
  X(activation_offload)      \
  X(memo)                    \
  X(qlora)                   \
  X(gradient_accumulation)   \
  X(optimizer)               \
  X(local_updates)           \
  X(zero_topo)               \
  X(zeropp)                  \
  X(mics)                    \
  X(data_parallel)           \
  X(muon)                    \
  X(adafactor)               \
  X(flexmoe)                 \
  X(compressed_gradients)    \
  X(offload)                 \
  X(packed_documents)

namespace orrery {

// Each is described in its folder, strategies/NAME/NAME.cpp.
#define ORRERY_DECLARE(name) \
  namespace name {           \
  Strategy describe();       \
  }
ORRERY_STRATEGIES(ORRERY_DECLARE)
#undef ORRERY_DECLARE

std::span<const Strategy> all_strategies() {
#define ORRERY_DESCRIBE(name) name::describe(),
  static const Strategy all[] = {ORRERY_STRATEGIES(ORRERY_DESCRIBE)};
#undef ORRERY_DESCRIBE
  return all;
}

std::span<const std::string_view> context_parallel::type_names() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all;
    for (const Strategy& strategy : all_strategies())
      all.insert(all.end(), strategy.context_types.begin(), strategy.context_types.end());
    return all;
  }();
  return names;
}

Scenario on_one_rank(const Scenario& scenario) {
  Scenario one = scenario;
  for (const Strategy& strategy : all_strategies())
    if (strategy.disable != nullptr) {
      strategy.disable(one.plan);
      for (LayerRange& range : one.plan.layers) strategy.disable(range.plan);
    }
  // The loss compares loads over the tokens of all replicas together.
  if (one.model.aux_loss > 0 && one.model.load_balancing == LoadBalancing::global_aux_loss)
    one.plan.batch.micro_batch_size *= data_parallel_degree(scenario);
  return one;
}

Scenario runnable(const Scenario& scenario) {
  Scenario run = scenario;
  for (const Strategy& strategy : all_strategies())
    if (strategy.make_runnable != nullptr) strategy.make_runnable(run);
  return run;
}

bool begins_anew(const Scenario& scenario) {
  return std::ranges::any_of(all_strategies(), [&](const Strategy& strategy) {
    return strategy.begins_anew != nullptr && strategy.begins_anew(scenario);
  });
}

std::vector<std::string_view> all_plan_words() {
  std::vector<std::string_view> words;
  for (const Strategy& strategy : all_strategies())
    for (const PlanWord& word : strategy.words) words.push_back(word.word);
  return words;
}

std::vector<std::string> plan_words(const Scenario& scenario) {
  std::vector<std::string> words;
  for (const Strategy& strategy : all_strategies())
    for (const PlanWord& word : strategy.words)
      if (word.used(scenario)) words.emplace_back(word.word);
  return words;
}

std::span<const FigureKind* const> all_figure_kinds() {
  static const std::vector<const FigureKind*> kinds = [] {
    std::vector<const FigureKind*> all;
    for (const Strategy& strategy : all_strategies())
      for (const FigureKind& kind : strategy.figure_kinds) all.push_back(&kind);
    return all;
  }();
  return kinds;
}

std::vector<Figure> figures_of(const Scenario& scenario, const Program& program) {
  std::vector<Figure> figures;
  for (const Strategy& strategy : all_strategies())
    if (strategy.figures != nullptr) strategy.figures(scenario, program, figures);
  return figures;
}

}  // namespace orrery
