#pragma once

#include <array>

#include "sim/base/fields.h"

namespace orrery::fsmoe {

// Which parts of a layer with experts overlap, chunk by chunk.
enum class MoeSchedule : std::uint8_t {
  sequential,    // none: the next kernels wait for each exchange (DeepSpeed-MoE)
  tutel,         // exchanges, all on one stream, overlap experts; forward and backward have one degree (PipeMoE, Tutel)
  fsmoe_no_iio,  // the same, with different degrees forward and backward
  fsmoe,         // all-gathers and reduce-scatters within a node have their own stream and overlap all-to-alls too
};
inline constexpr std::array<std::string_view, 4> kMoeScheduleNames{"sequential", "tutel", "fsmoe_no_iio", "fsmoe"};

struct Options {
  MoeSchedule schedule = MoeSchedule::sequential;
  std::int64_t forward_degree = 1, backward_degree = 1;
  double share_beside_experts = 0, share_beside_dense = 0;

  void visit_fields(FieldVisitor& v) {
    v.field("moe_schedule", schedule, kMoeScheduleNames,
            "layers with experts: exchanges and experts in sequence (sequential), exchanges on one stream overlapping "
            "experts (tutel; fsmoe_no_iio with separate degrees forward and backward), or all-to-alls, gathers within "
            "nodes and experts all overlapping (fsmoe)");
    v.field("moe_pipeline_degree_forward", forward_degree, IntegerRange{.least = 1, .most = 64},
            "chunks in the forward, into which an expert's slots are cut");
    v.field("moe_pipeline_degree_backward", backward_degree, IntegerRange{.least = 1, .most = 64},
            "chunks in the backward; with moe_schedule tutel equal to the forward's");
    v.field("moe_gradient_share_experts", share_beside_experts, NumberRange{.least = 0, .most = 1},
            "share of a layer's gradients all-reduced in the next layer's backward, between its last dispatch and "
            "first combine (fsmoe, fsmoe_no_iio)");
    v.field("moe_gradient_share_dense", share_beside_dense, NumberRange{.least = 0, .most = 1},
            "share all-reduced after its last combine, during attention; the rest is sent before the update");
  }
};

}  // namespace orrery::fsmoe
