// The workload: the input of the model in each step.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "sim/base/fields.h"
#include "traces/packing/packing.h"

namespace orrery {

class RoutingCounts;
struct RecordedDocuments;

// What routers of experts choose: patterns of traces/routing_generator.h, whose words these are.
enum class ExpertRouting : std::uint8_t {
  balanced,    // every expert has the same number of tokens, to within one: routers that are forced to balance
  zipf,        // popularities by rank, with noise
  hot_expert,  // one expert has hot_share of the popularity
  hot_rank,    // the experts of one of expert_ranks equal blocks have hot_share together
  trained_with_auxiliary_loss,  // this and the next two: zipf with the skew and noise of measured routing
  young_router,
  worst,
  rotating,  // the order of popularity shifts by one expert every `period` steps
  burst,     // every `period` steps a newly drawn expert is hot for burst_steps
  ragged,    // source ranks have different numbers of tokens
};
inline constexpr std::array<std::string_view, 10> kExpertRoutingNames{
    "balanced",     "zipf",  "hot_expert", "hot_rank", "trained_with_auxiliary_loss",
    "young_router", "worst", "rotating",   "burst",    "ragged"};

struct Workload {
  std::int64_t sequence_length = 0;          // tokens; 0: the model's own (max_positions, image patches)
  std::int64_t decoder_sequence_length = 0;  // encoder-decoder models; 0: as sequence_length
  std::int64_t global_batch_size = 1;        // sequences (or images) per optimizer step
  ExpertRouting routing = ExpertRouting::balanced;
  double routing_skew = 0;
  std::int64_t routing_seed = 1;
  double routing_noise = 0, routing_autocorrelation = 0, routing_micro_batch_noise = 0;
  std::int64_t routing_period = 1, routing_burst_steps = 1, routing_interval = 1;
  std::string routing_file = {};                               // path, resolved from the working directory
  std::shared_ptr<const RoutingCounts> recorded_routing = {};  // content of routing_file
  std::string documents = {}, documents_file = {};             // documents_file is resolved from the working directory
  std::shared_ptr<const RecordedDocuments> recorded_documents = {};  // content of documents_file
  PackingPolicy packing = PackingPolicy::concat;
  std::int64_t documents_seed = 1;
  std::int64_t step = 0;
  bool gives_batch = true;  // false: the scenario does not say how large the batch is

  static constexpr std::int64_t kMostSteps = std::int64_t{1} << 24;

  bool routes_unequally() const { return routing != ExpertRouting::balanced || recorded_routing != nullptr; }
  bool has_documents() const { return !documents.empty() || recorded_documents != nullptr; }

  void visit_fields(FieldVisitor& v) {
    constexpr std::int64_t kMost = std::int64_t{1} << 32;
    v.field("sequence_length", sequence_length, IntegerRange{0, kMost},
            "tokens per sequence; 0 takes the model's own length");
    v.field("decoder_sequence_length", decoder_sequence_length, IntegerRange{0, kMost},
            "encoder-decoder models: tokens of the target sequence");
    v.field("global_batch_size", global_batch_size, IntegerRange{1, kMost},
            "sequences per optimizer step, over all data-parallel ranks");
    v.field(
        "routing", routing, kExpertRoutingNames,
        "how a mixture of experts spreads tokens: to all experts alike (balanced), to some more than to others "
        "(zipf, and the presets trained_with_auxiliary_loss, young_router and worst), or one expert or rank has a "
        "share of its own (hot_expert, hot_rank; burst: now and then), or popularity moves on from expert to expert "
        "(rotating), or ranks have unlike numbers of tokens (ragged)");
    v.field("routing_skew", routing_skew, NumberRange{.least = 0, .most = 10},
            "zipf, rotating: the exponent of popularity by rank; hot_expert, hot_rank, burst: the share of popularity, "
            "below 1; ragged: by which part of the mean ranks have more or fewer tokens, at most");
    v.field("routing_seed", routing_seed, IntegerRange{0, kMost}, "seed that decides which experts are popular");
    v.field(
        "routing_noise", routing_noise, NumberRange{.least = 0, .most = 5},
        "standard deviation of the noise on log-popularity, which drifts from step to step; presets have their own");
    v.field("routing_autocorrelation", routing_autocorrelation, NumberRange{.least = 0, .most = 0.999999},
            "AR(1) coefficient of that noise from step to step");
    v.field(
        "routing_micro_batch_noise", routing_micro_batch_noise, NumberRange{.least = 0, .most = 5},
        "standard deviation of more noise on log-popularity, drawn anew for each micro-batch: they differ then, and "
        "stages of a pipeline wait for those that are slow");
    v.field("routing_period", routing_period, IntegerRange{1, kMostSteps},
            "rotating: steps until popularity moves to the next expert; burst: steps between bursts");
    v.field("routing_burst_steps", routing_burst_steps, IntegerRange{1, kMostSteps},
            "burst: length of a burst in steps");
    v.field("routing_interval", routing_interval, IntegerRange{1, kMostSteps},
            "steps of a training between changes of routing");
    v.field("routing_file", routing_file,
            "a recorded routing instead: the path, from the scenario's folder, of a file of counts (docs/traces.md); "
            "layers that it lacks route as the one before, steps that it lacks as the step before");
    v.field("documents", documents,
            "sequences packed from documents, which attention does not leave: of what lengths they are drawn, "
            "distributions of docs/pack.md (\"wikipedia\", \"log-normal:6:1.2\") mixed by shares of tokens "
            "(\"web-en=3,code=1\"); or sequences one by one, by the lengths of their documents (\"2048,4096;8192\"); "
            "empty: a "
            "sequence is one document");
    v.field("documents_file", documents_file,
            "documents or packed sequences from a file instead: its path, from the scenario's folder (docs/pack.md)");
    v.field("packing", packing, kPackingPolicyNames, "how sequences are filled with documents (docs/pack.md)");
    v.field("documents_seed", documents_seed, IntegerRange{0, kMost}, "seed of the drawn documents and of their order");
    v.field(
        "step", step, IntegerRange{0, kMostSteps},
        "the training's step that is simulated, or the first one of --steps: routing, gates and documents follow it");
  }
};

}  // namespace orrery
