// Galvatron's search: for growing batches and each pipeline degree, layers are divided into stages, and each stage's
// layers get their hybrids from the programme over layers and memory (study/search/layer_programme.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "study/galvatron/cost.h"

namespace orrery::galvatron {

struct PlannerOptions {
  std::int64_t memory_mib = 0;          // of a GPU
  std::vector<std::int64_t> batches{};  // empty: multiples of the profile's step, until no pipeline degree fits
  std::function<void(std::int64_t batch)> progress{};
};

struct StagePlan {
  std::vector<Hybrid> layers;
  std::int64_t memory_mib = 0;  // with what is outside the layers
};

struct FoundHybrids {
  std::int64_t batch = 0, pipeline = 1;
  std::int64_t micro_batches = 1;  // as the authors' training takes them: whole, the most of any layer
  double step_seconds = 0;
  std::vector<StagePlan> stages;

  double samples_per_second() const { return static_cast<double>(batch) / step_seconds; }
};

// The best plan of one batch and pipeline degree. `space` has hybrids of that degree only. Empty if none fits, if the
// ranks of a stage do not divide the batch, or if layers are fewer than stages.
std::optional<FoundHybrids> plan_batch(const Profile& profile, const std::vector<Hybrid>& space, std::int64_t batch,
                                       std::int64_t memory_mib);

struct PipelineResult {
  std::int64_t pipeline = 1;
  std::optional<FoundHybrids> best;  // empty: no batch fits
};
struct PlannerResult {
  std::vector<PipelineResult> by_pipeline;  // of the degrees in the space, ascending
  std::optional<std::size_t> best;          // the fastest of them; ties go to the smaller batch, then the lower degree
  std::int64_t first_batch = 0;             // the first that a pipeline degree divides
};
// REQUIRES: a hybrid.
PlannerResult search(const Profile& profile, const std::vector<Hybrid>& space, const PlannerOptions& options);

// Why nothing fits: what the fullest stage takes at least, with the batch and the pipeline degree that take least.
struct Shortage {
  std::int64_t batch = 0, pipeline = 1, stage = 0, layers = 0;
  std::int64_t least_mib = 0, outside_mib = 0;
  std::string largest;           // of its layers, the kind that takes most
  std::int64_t largest_mib = 0;  // of such a layer, with the hybrid that takes least
};
// REQUIRES: a hybrid. Empty if no pipeline degree can take the batch at all.
std::optional<Shortage> shortage(const Profile& profile, const std::vector<Hybrid>& space, std::int64_t batch);

// Divides layers, given by their least memory, into stages of even memory, from the last stage backwards. `outside`: by
// stage. The result has the layers of each stage.
std::vector<std::int64_t> even_stages(const std::vector<double>& layers_mib, const std::vector<double>& outside_mib,
                                      double most_over_mean);

}  // namespace orrery::galvatron
