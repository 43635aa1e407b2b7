// The pipeline schedules of the literature: orders of forward and backward passes, and how layers are distributed.
// Figures, bubble and memory formulas: README.md beside this file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/program/schedule.h"
#include "strategies/pipeline_parallel/options.h"
#include "strategies/scenario.h"

namespace orrery::pipeline_parallel {

// Why a schedule cannot be built: the plan's field at fault, its value, and what was expected.
struct Limit {
  const char* field = "";
  std::string found, expected;
};

// Returns the schedule that is used: virtual_pipeline above 1 turns 1f1b into interleaved, as in Megatron-LM.
ScheduleKind effective_schedule(const Options& options);
// Whether each stage has two chunks, the second of which runs from the last stage back to the first.
bool is_v(ScheduleKind kind);
// Returns the model chunks per stage of the effective schedule: 2 for zb-v and dualpipev, `virtual_pipeline` for
// interleaved, and 1 for the others.
std::int64_t chunks_per_stage(const Options& options);
// Returns the stage that holds the chunk at `position`, counted over chunks in model order.
std::size_t stage_of_position(const Options& options, std::size_t position);

// Returns nothing if build_schedule accepts these numbers.
std::optional<Limit> schedule_limit(ScheduleKind kind, std::int64_t stages, std::int64_t chunks,
                                    std::int64_t micro_batches);
// Returns nothing if the options fit together and split_layers accepts them.
std::optional<Limit> options_limit(const Options& options, std::int64_t layers);

// Returns how many layers the split counts: the model's, plus each end (embedding, head) that counts as one.
std::int64_t counted_layers(std::int64_t layers, const Options& options);
// Whether all chunks get the same number of layers, or the user gives the number of each.
bool is_even(std::int64_t layers, const Options& options);

// Writes the schedule into `out` and reuses its storage, so that a search does not allocate. Size and time grow with
// the stages (for interleaved also with the chunks), not with the micro-batches. Leaves out.blocking_transfers false;
// the plan sets it. `pairs`, for 1f1b and interleaved: a stage runs one more forward before its first backward, so that
// no two consecutive slots belong to one micro-batch (Megatron-Core's overlap_moe_expert_parallel_comm). REQUIRES:
// schedule_limit() returns nothing.
void build_schedule(ScheduleKind kind, std::int64_t stages, std::int64_t chunks, std::int64_t micro_batches,
                    Schedule& out, bool pairs = false);

// Returns the layers of each chunk in model order (stages * chunks numbers): the user's split if given, otherwise as
// even as possible. If the embedding (head) counts as a layer, it takes one layer's place in the first (last) chunk.
// Extra layers go to the middle of the model, since the ends also hold embedding and head: 126 layers on 16 stages are
// 7, 8 x 14, 7, as Llama 3 405B was laid out (arXiv 2407.21783, section 3.3.2). With zb-v the first stage holds both
// ends, and extra layers go to the stages from the last to the first. REQUIRES: options_limit() returns nothing.
std::vector<std::int64_t> split_layers(std::int64_t layers, const Options& options);

// Calls visit(begin, end) with the layers of each chunk in model order.
template <class Visit>
void for_each_chunk(const Scenario& scenario, Visit&& visit) {
  std::int64_t begin = 0;
  for (const std::int64_t n : split_layers(scenario.model.total_layers(), scenario.plan.pipeline)) {
    visit(begin, begin + n);
    begin += n;
  }
}
// Returns the layers of the longest chunk.
std::int64_t most_layers_of_chunks(const Scenario& scenario);
// Throws InputError if a field of the plan counts more layers of each chunk than any chunk has.
void check_layers_of_chunks(const Scenario& scenario, const char* field, std::int64_t layers);

}  // namespace orrery::pipeline_parallel
