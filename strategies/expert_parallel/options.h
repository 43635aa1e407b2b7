#pragma once

#include <array>

#include "sim/base/fields.h"

namespace orrery::expert_parallel {

// How tokens reach their experts. alltoall: NCCL's all-to-all of rows. hierarchical: the same in two hops, within nodes
// and between them (Tutel, DeepSpeed-MoE). flex: each token goes once to a node and there once to a rank (DeepEP,
// HybridEP). allgather: all tokens go to all ranks. All names but hierarchical are Megatron-Core's.
enum class Dispatcher : std::uint8_t { alltoall, hierarchical, flex, allgather };
inline constexpr std::array<std::string_view, 4> kDispatcherNames{"alltoall", "hierarchical", "flex", "allgather"};

// How tokens are put into rows and back. index: kernels that use row numbers. einsum: products with masks (GShard).
enum class Permute : std::uint8_t { index, einsum };
inline constexpr std::array<std::string_view, 2> kPermuteNames{"index", "einsum"};

struct Options {
  std::int64_t degree = 1;
  std::int64_t tensor_degree = 0;
  Dispatcher dispatcher = Dispatcher::alltoall;
  Permute permute = Permute::index;
  double capacity_factor = 0;
  bool overlap_shared = false, overlap_pairs = false, fp8_dispatch = false;
  bool pad_to_busiest = false;
  // Not a field of the plan; set for dropless runs. There are slots for all tokens, the data decide the routing, and
  // only the rows that are filled are sent and computed (realrun/rank/expert_rows.h).
  bool counted = false;
  bool counts_rows() const { return counted && capacity_factor == 0; }

  void visit_fields(FieldVisitor& v) {
    v.field("expert_parallel", degree, orrery::degree(),
            "ranks that share the experts of a layer, taken from tensor, context and data ranks as in Megatron-Core",
            Scope::mesh);
    v.field("expert_tensor_parallel", tensor_degree, orrery::degree(0),
            "ranks that share each expert's matrices; 0: as tensor_parallel", Scope::mesh);
    v.field(
        "moe_token_dispatcher", dispatcher, kDispatcherNames,
        "how tokens reach their experts: one all-to-all of rows (alltoall), two hops, within and between nodes "
        "(hierarchical), once per node and then once per rank (flex: DeepEP), or all tokens to all ranks (allgather)");
    v.field("moe_permute", permute, kPermuteNames,
            "how tokens get into rows and back: kernels with row indices (index), or products with masks of tokens, "
            "experts and slots (einsum: GShard, DeepSpeed-MoE without Tutel)");
    v.field("moe_fp8_dispatch", fp8_dispatch,
            "send tokens to experts, and gradients of experts' outputs, in fp8 with one scale per 128 elements; both "
            "return in the activations' dtype (DeepSeek-V3)");
    v.field("moe_expert_capacity_factor", capacity_factor, NumberRange{.least = 0, .most = 1024},
            "slots per expert for one rank's tokens, relative to balanced routing; tokens beyond are dropped, empty "
            "slots are computed. 0: dropless");
    v.field("moe_pad_to_busiest_expert", pad_to_busiest,
            "dropless: every expert has as many slots as the busiest one needs, all computed and sent (DeepSpeed-MoE "
            "without dropping, Tutel's capacity factor of 0)");
    v.field("moe_shared_expert_overlap", overlap_shared,
            "compute shared experts while tokens travel to the routed ones and back");
    v.field("overlap_moe_expert_parallel_comm", overlap_pairs,
            "run the forward of one micro-batch concurrently with the backward of another, so that one's exchanges "
            "overlap the other's computation");
  }
};

}  // namespace orrery::expert_parallel
