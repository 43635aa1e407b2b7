// The orders of forward and backward passes of the pipeline literature, and how layers are dealt to stages.
// Figures, bubble and memory formulas: README.md beside this file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/program/schedule.h"
#include "strategies/pipeline_parallel/options.h"

namespace orrery::pipeline_parallel {

// Why a schedule cannot be built: the plan's field at fault, what it holds, what it must hold.
struct Limit {
  const char* field = "";
  std::string found, expected;
};

// The schedule that is meant: virtual_pipeline above 1 turns 1f1b into interleaved, as in Megatron-LM.
ScheduleKind effective_schedule(const Options& options);
// Two chunks a stage, the second running back up the stages.
bool is_v(ScheduleKind kind);
// Model chunks per stage of the effective schedule: zb-v and dualpipev have 2, interleaved `virtual_pipeline`, the others 1.
std::int64_t chunks_per_stage(const Options& options);
// Which stage holds the chunk at a position of the model.
std::size_t stage_of_position(const Options& options, std::size_t position);

// Nothing when build_schedule accepts these numbers.
std::optional<Limit> schedule_limit(ScheduleKind kind, std::int64_t stages, std::int64_t chunks,
                                    std::int64_t micro_batches);
// Nothing when the options fit together and split_layers accepts them.
std::optional<Limit> options_limit(const Options& options, std::int64_t layers);

// Returns how many layers the split counts: the model's, and one for each end (embedding, head) that counts as a layer.
std::int64_t counted_layers(std::int64_t layers, const Options& options);
// Returns whether all chunks get the same number of layers, or the user has said each one's number.
bool is_even(std::int64_t layers, const Options& options);

// Fills `out`, keeping its storage: a search that rebuilds does not allocate. Size and time grow with the stages (and
// the chunks of the interleaved schedule), not with the micro-batches.
// REQUIRES: no schedule_limit(). Leaves out.blocking_transfers false; the plan sets it.
// `pairs`: of 1f1b and interleaved; a stage runs one forward more before its first backward, so that no two slots in a
// row are of one micro-batch (Megatron-Core's overlap_moe_expert_parallel_comm).
void build_schedule(ScheduleKind kind, std::int64_t stages, std::int64_t chunks, std::int64_t micro_batches,
                    Schedule& out, bool pairs = false);

// Layers of each chunk in model order (stages * chunks numbers). The user's own split if given. Otherwise as even as
// the layers allow, where the embedding (head) takes a layer's place in the first (last) chunk if it counts as one.
// What does not divide goes to the middle of the model, since the ends also hold embedding and head: 126 layers on 16
// stages are 7, 8 x 14, 7, as Llama 3 405B was laid out (arXiv 2407.21783, section 3.3.2). zb-v, whose first stage
// holds both ends, deals the rest to the stages from the last to the first.
// REQUIRES: no options_limit().
std::vector<std::int64_t> split_layers(std::int64_t layers, const Options& options);

}  // namespace orrery::pipeline_parallel
