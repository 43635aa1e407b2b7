#include "study/galvatron/planner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "study/search/layer_programme.h"

namespace orrery::galvatron {
namespace {

std::int64_t whole_mib(double mib) { return static_cast<std::int64_t>(std::ceil(mib)); }

// The programme's input for one batch and one pipeline degree.
struct Tables {
  std::vector<LayerKind> kinds;
  std::vector<std::int32_t> layers;  // kinds
  std::vector<double> least_mib;     // by layer
};
Tables tables_of(const Profile& profile, const std::vector<Hybrid>& space, std::int64_t batch) {
  Tables tables;
  std::vector<double> changes;
  for (const Hybrid& from : space)
    for (const Hybrid& to : space) changes.push_back(change_seconds(profile, from, to, batch));
  for (const Layers& of : profile.layers) {
    LayerKind kind{.options = {}, .entering = changes};
    double least = std::numeric_limits<double>::infinity();
    for (const Hybrid& h : space) {
      const double mib = layer_memory(profile, of, h, batch).total_mib();
      kind.options.push_back({.cost = layer_seconds(profile, of, h, batch), .memory = whole_mib(mib)});
      least = std::min(least, mib);
    }
    tables.layers.insert(tables.layers.end(), static_cast<std::size_t>(of.count),
                         static_cast<std::int32_t>(tables.kinds.size()));
    tables.least_mib.insert(tables.least_mib.end(), static_cast<std::size_t>(of.count), least);
    tables.kinds.push_back(std::move(kind));
  }
  return tables;
}

// The memory outside layers by which stages are divided.
std::vector<double> counted_outside(const Profile& profile, const std::vector<double>& outside, std::int64_t batch) {
  if (!profile.cluster.estimator.stages_by_whole) return outside;
  std::vector<double> counted(outside.size(), 0);
  counted.front() = outside_mib(profile, Hybrid{.data = profile.cluster.devices}, batch).front();
  return counted;
}

// Stages of one batch and pipeline degree.
struct Division {
  bool alike = false;  // layers are of one kind: all stages take the plan of the one with the least room
  Tables tables;
  std::vector<std::int64_t> counts, outside_mib;  // by stage
};
std::optional<Division> divide(const Profile& profile, const std::vector<Hybrid>& space, std::int64_t batch) {
  const Hybrid& first = space.front();
  const std::int64_t layers = profile.layer_count(), pipeline = first.pipeline;
  const bool alike = profile.layers.size() == 1;
  if (batch % first.ranks() != 0 || layers < pipeline || (alike && layers % pipeline != 0)) return std::nullopt;
  Division its{.alike = alike,
               .tables = tables_of(profile, space, batch),
               .counts = std::vector<std::int64_t>(static_cast<std::size_t>(pipeline), layers / pipeline),
               .outside_mib = {}};
  std::vector<double> outside = outside_mib(profile, first, batch);
  if (alike)
    std::ranges::fill(outside, *std::ranges::max_element(outside));
  else if (pipeline > 1)
    its.counts = even_stages(its.tables.least_mib, counted_outside(profile, outside, batch), profile.most_over_mean);
  for (const double mib : outside) its.outside_mib.push_back(whole_mib(mib));
  return its;
}

// Hybrids by pipeline degree. REQUIRES: the order of hybrids().
std::vector<std::vector<Hybrid>> by_pipeline(const std::vector<Hybrid>& space) {
  std::vector<std::vector<Hybrid>> spaces;
  for (const Hybrid& h : space) {
    if (spaces.empty() || spaces.back().front().pipeline != h.pipeline) spaces.emplace_back();
    spaces.back().push_back(h);
  }
  return spaces;
}

}  // namespace

std::vector<std::int64_t> even_stages(const std::vector<double>& layers, const std::vector<double>& outside,
                                      double most_over_mean) {
  const std::size_t stages = outside.size();
  const double all = std::accumulate(layers.begin(), layers.end(), 0.0);
  const double mean = (all + std::accumulate(outside.begin(), outside.end(), 0.0)) / static_cast<double>(stages);
  std::vector<std::int64_t> counts(stages, 0);
  std::size_t left = layers.size();
  for (std::size_t stage = stages; stage-- > 0;) {
    constexpr double kHalf = 0.5;  // a layer goes where more than half of it fits
    for (double held = outside[stage]; left > 0; --left, ++counts[stage]) {
      if (stage > 0 && mean - held < kHalf * layers[left - 1]) break;
      held += layers[left - 1];
    }
  }
  if (most_over_mean > 0) {
    std::size_t begin = 0;
    for (std::size_t stage = 0; stage + 1 < stages; ++stage) {
      std::size_t end = begin + static_cast<std::size_t>(counts[stage]);
      double held = outside[stage];
      for (std::size_t l = begin; l < end; ++l) held += layers[l];
      for (; held > mean * most_over_mean && end > begin; --counts[stage], ++counts[stage + 1]) held -= layers[--end];
      begin = end;
    }
  }
  // No stage stays empty: layers come from the next stage, for the last ones from the one before.
  for (std::size_t stage = 0; stage + 1 < stages; ++stage)
    for (; counts[stage] <= 0; ++counts[stage]) --counts[stage + 1];
  for (std::size_t stage = stages - 1; stage > 0; --stage)
    for (; counts[stage] <= 0; ++counts[stage]) --counts[stage - 1];
  return counts;
}

std::optional<FoundHybrids> plan_batch(const Profile& profile, const std::vector<Hybrid>& space, std::int64_t batch,
                                       std::int64_t memory_mib) {
  std::optional<Division> division = divide(profile, space, batch);
  if (!division) return std::nullopt;
  const auto& [alike, tables, counts, outside] = *division;
  const auto pipeline = static_cast<std::int64_t>(counts.size());
  FoundHybrids found{.batch = batch, .pipeline = pipeline, .micro_batches = 1, .step_seconds = 0, .stages = {}};
  auto begin = tables.layers.begin();
  for (std::size_t stage = 0; stage < counts.size(); ++stage) {
    if (alike && stage > 0) {
      found.stages.push_back(found.stages.front());
      continue;
    }
    const auto end = begin + counts[stage];
    const std::int64_t held = outside[stage];
    if (memory_mib <= held) return std::nullopt;
    const std::optional<LayerPlan> plan = LayerProgramme(tables.kinds, {begin, end}, memory_mib - held).cheapest();
    if (!plan) return std::nullopt;
    StagePlan& its = found.stages.emplace_back();
    its.memory_mib = held + plan->memory;
    for (const std::int32_t choice : plan->choices) its.layers.push_back(space[static_cast<std::size_t>(choice)]);
    found.step_seconds += plan->cost;
    begin = end;
  }
  if (alike) found.step_seconds *= static_cast<double>(pipeline);
  if (pipeline > 1)
    for (const StagePlan& stage : found.stages)
      for (const Hybrid& h : stage.layers)
        found.micro_batches =
            std::max(found.micro_batches,
                     static_cast<std::int64_t>(micro_batches(profile, static_cast<double>(batch / h.data), h)));
  return found;
}

PlannerResult search(const Profile& profile, const std::vector<Hybrid>& space, const PlannerOptions& options) {
  PlannerResult result;
  const std::vector<std::vector<Hybrid>> spaces = by_pipeline(space);
  for (const std::vector<Hybrid>& of : spaces) result.by_pipeline.push_back({of.front().pipeline, {}});
  double most = 0;
  // Returns whether some pipeline degree takes the batch, and whether all that divide it are out of memory.
  const auto try_batch = [&](std::int64_t batch) {
    if (options.progress) options.progress(batch);
    bool tried = false, fits = false;
    for (std::size_t i = 0; i < spaces.size(); ++i) {
      tried |= batch % spaces[i].front().ranks() == 0;
      std::optional<FoundHybrids> found = plan_batch(profile, spaces[i], batch, options.memory_mib);
      if (!found) continue;
      fits = true;
      const double rate = found->samples_per_second();
      if (rate > most) most = rate, result.best = i;
      std::optional<FoundHybrids>& best = result.by_pipeline[i].best;
      if (!best || rate > best->samples_per_second()) best = std::move(found);
    }
    if (tried && result.first_batch == 0) result.first_batch = batch;
    return fits || !tried;
  };
  if (!options.batches.empty()) {
    for (const std::int64_t batch : options.batches) try_batch(batch);
    return result;
  }
  for (std::int64_t batch = profile.batch_step; try_batch(batch); batch += profile.batch_step) {
  }
  return result;
}

std::optional<Shortage> shortage(const Profile& profile, const std::vector<Hybrid>& space, std::int64_t batch) {
  std::optional<Shortage> least;
  for (const std::vector<Hybrid>& of : by_pipeline(space)) {
    const std::optional<Division> its = divide(profile, of, batch);
    if (!its) continue;
    Shortage fullest;
    fullest.batch = batch;
    fullest.pipeline = of.front().pipeline;
    std::size_t layer = 0;
    for (std::size_t stage = 0; stage < its->counts.size(); ++stage) {
      Shortage here = fullest;
      here.stage = static_cast<std::int64_t>(stage);
      here.layers = its->counts[stage];
      here.least_mib = here.outside_mib = its->outside_mib[stage];
      here.largest_mib = 0;
      for (std::int64_t i = 0; i < here.layers; ++i, ++layer) {
        const std::int64_t mib = whole_mib(its->tables.least_mib[layer]);
        here.least_mib += mib;
        if (mib <= here.largest_mib) continue;
        here.largest_mib = mib;
        here.largest = profile.layers[static_cast<std::size_t>(its->tables.layers[layer])].name;
      }
      if (here.least_mib > fullest.least_mib) fullest = here;
    }
    if (!least || fullest.least_mib < least->least_mib) least = fullest;
  }
  return least;
}

}  // namespace orrery::galvatron
