#pragma once

#include <array>
#include <vector>

#include "sim/base/fields.h"

namespace orrery::pipeline_parallel {

enum class ScheduleKind : std::uint8_t { gpipe, one_f_one_b, interleaved, zb_h1, zb_v, dualpipe_v };
inline constexpr std::array<std::string_view, 6> kScheduleNames{"gpipe", "1f1b", "interleaved",
                                                                "zb-h1", "zb-v", "dualpipev"};

// How tensors that all tensor-parallel ranks hold are sent to the next stage. off: each rank sends the whole tensor.
// on: each rank sends a part, and the parts are gathered on the next stage. automatic: as the stack does.
enum class ScatterGather : std::uint8_t { automatic, on, off };
inline constexpr std::array<std::string_view, 3> kScatterGatherNames{"automatic", "on", "off"};

// What a stage does with an output after it was sent: it frees the output at once (Megatron-LM's
// deallocate_pipeline_outputs), or keeps it until the backward. automatic: as the stack does.
enum class SentOutputs : std::uint8_t { automatic, freed, kept };
inline constexpr std::array<std::string_view, 3> kSentOutputsNames{"automatic", "freed", "kept"};

struct Options {
  std::int64_t degree = 1;
  std::int64_t virtual_stages = 1;
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  std::vector<std::int64_t> stage_layers;
  bool embedding_counts_as_layer = false;
  bool head_counts_as_layer = false;
  bool overlap_transfers = true;
  ScatterGather scatter_gather = ScatterGather::automatic;
  SentOutputs sent_outputs = SentOutputs::automatic;

  void visit_fields(FieldVisitor& v) {
    v.field("pipeline_parallel", degree, orrery::degree(), "stages");
    v.field("virtual_pipeline", virtual_stages, orrery::degree(), "model chunks per stage (interleaved schedule)");
    v.field("pipeline_schedule", schedule, kScheduleNames, "order of forward and backward passes on each stage");
    v.field("pipeline_stage_layers", stage_layers, at_least(0),
            "layers of each chunk in model order, for uneven splits; empty: as even as the layers allow");
    v.field("account_for_embedding", embedding_counts_as_layer, "the embedding counts as one layer in the split");
    v.field("account_for_loss", head_counts_as_layer, "the output head counts as one layer in the split");
    v.field("overlap_p2p_communication", overlap_transfers,
            "stages compute while they send and receive; otherwise they wait for their transfers");
    v.field("scatter_gather_tensors_in_pipeline", scatter_gather, kScatterGatherNames,
            "without sequence parallelism: each tensor-parallel rank sends a part of a tensor that all hold, and the "
            "next stage gathers it (Megatron-LM until 2023, DeepSpeed); automatic: the framework's choice");
    v.field("pipeline_outputs", sent_outputs, kSentOutputsNames,
            "outputs that a stage has sent are freed at once (Megatron-LM's deallocate_pipeline_outputs; Llama 3) or "
            "kept until its backward; automatic: the framework's choice");
  }
};

}  // namespace orrery::pipeline_parallel
