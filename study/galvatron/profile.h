// The documents that Galvatron's planner takes: a cluster's measured links with the estimator that was fitted to it,
// and a model's measured layers. README.md lists the fields.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "sim/base/fields.h"
#include "strategies/read_scenario.h"
#include "study/galvatron/hybrid.h"

namespace orrery::galvatron {

// Options in which the authors' two estimators differ, and the constants that both share.
struct Estimator {
  double backward_to_forward = 0;       // time of the backward pass over that of the forward pass
  double overlap_slowdown = 0;          // k: of computation and of communication, while they overlap
  double seconds_per_ms = 0;            // what a measured millisecond counts as
  double boundary_mib_per_sample = 0;   // what a change between layers moves, whatever the model
  double leaving_sharded_seconds = 0;   // a bias that keeps sharded layers together
  double state_copies = 0;              // of the parameters: parameters, gradients and two moments
  double sharded_extra = 0;             // sharded states are 1/data + this
  double sharded_overlapped = 0;        // of the all-reduce's bytes: what overlaps with the backward pass
  std::int64_t exposed_gathers = 0;     // sharded: all-gathers of parameters that overlap with nothing
  bool stages_reduce_together = false;  // in a pipeline without tensor parallelism only one stage's rest is exposed
  double context_mib = 0;               // of the framework, on each GPU
  bool context_on_every_stage = false;  // false: counted on the first stage only
  bool stages_by_whole = false;  // stages are divided by the memory outside layers that there is without a pipeline

  void visit_fields(FieldVisitor& v);
};

struct Cluster {
  std::int64_t devices = 0;
  Estimator estimator;
  // By pipeline degree, ranks of a group, and whether these are neighbours: milliseconds per MiB on the wire.
  std::map<std::tuple<std::int64_t, std::int64_t, bool>, double> all_reduce;
  std::map<std::int64_t, double> send;  // by pipeline degree; empty: not counted

  // 0 for one rank. A group of all of a stage's ranks has neighbours only.
  double all_reduce_ms_per_mib(std::int64_t pipeline, std::int64_t ranks, bool consecutive) const;
};

struct Layers {
  std::string name;
  std::int64_t count = 0;
  bool decoder = false;  // has cross attention, so tensor parallelism has six all-reduces instead of four
  double parameters_mib = 0, forward_ms_per_sample = 0;
  std::int64_t sequence = 0, hidden = 0;
  std::map<std::int64_t, double> activation_mib_per_sample;  // by tensor degree

  void visit_fields(FieldVisitor& v);
};

// Micro-batches of a step with `samples` samples in a replica. The first rule that applies counts.
struct MicroBatchRule {
  std::vector<std::int64_t> pipeline, data;  // degrees for which it holds; empty: all
  double from = 0, below = 0, at_most = 0;   // samples for which it holds; 0: no limit
  double count = 0;                          // micro-batches; 0: by samples
  double samples_each = 0, plus = 0;         // samples / samples_each + plus, not rounded
  bool whole = false;  // samples of a tensor rank, rounded down; micro-batches rounded up, 1 or more

  void visit_fields(FieldVisitor& v);
};

// Memory outside the layers, of embeddings and heads: on a GPU of one end of the pipeline.
struct EndMemory {
  double states_mib = 0;
  double activation_mib_per_sample = 0;  // samples of the batch over the ranks of a stage
  bool over_stages = false;              // activations are divided by the number of stages
  double spared_mib_per_sample = 0;      // x (1 - 1 / micro-batches): what micro-batches spare of the peak

  void visit_fields(FieldVisitor& v);
};

struct Profile {
  Cluster cluster;
  std::vector<Layers> layers;
  std::int64_t batch_step = 0;
  std::int64_t mean_over_layers = 0;  // a layer's time is that of so many, divided by their number; 0: of all layers
  double reduction_ms = 0;            // of so many layers with data parallelism, besides their all-reduce
  std::vector<MicroBatchRule> micro_batches;
  EndMemory whole, first, last;  // without a pipeline; its first and its last stage
  double most_over_mean = 0;     // a stage with more than this times the mean memory hands on layers; 0: none does

  std::int64_t layer_count() const;
};

// The profiles and clusters that come with Orrery: study/galvatron/profiles/ and clusters/.
std::vector<BundledDocument> bundled_profiles();
std::vector<BundledDocument> bundled_clusters();

// Reads a profile. A "base" is a bundled profile whose fields it takes over (RFC 7396); "cluster" is an object or a
// bundled cluster's name. Throws InputError, also where a value that some hybrid needs is missing.
Profile read_profile(const nlohmann::json& document, const std::string& file);
// Sets the number of layers of each kind. Throws InputError if these are not as many as kinds.
void set_layer_counts(Profile& profile, const std::vector<std::int64_t>& counts);

}  // namespace orrery::galvatron
