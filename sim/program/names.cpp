#include "sim/program/mesh.h"
#include "sim/program/op.h"
#include "sim/program/schedule.h"
#include "sim/program/tensor.h"

namespace orrery {
namespace {

template <std::size_t Count, std::size_t N, class Enum>
const char* pick(const char* const (&names)[N], Enum value) {
  static_assert(N == Count);
  return names[static_cast<std::size_t>(value)];
}

}  // namespace

const char* name_of(Dtype dtype) {
  return pick<kDtypes>({"fp32", "fp16", "bf16", "fp8", "nvfp4", "int64", "int32", "uint8", "int4", "fp8_blocks", "int8",
                        "sign", "nf4", "mxfp8"},
                       dtype);
}

const char* name_of(Category category) {
  return pick<kCategories>(
      {"parameter", "gradient", "optimizer_state", "activation", "communication_buffer", "workspace"}, category);
}

const char* name_of(Place place) { return pick<kPlaces>({"device", "host", "storage"}, place); }

const char* name_of(Axis axis) {
  return pick<kAxes>({"none", "batch", "sequence", "key_sequence", "hidden", "groups", "group_heads", "group_qkv",
                      "head_dim", "ffn", "vocab", "experts", "slots", "expert_ffn", "chunks", "contributions"},
                     axis);
}

const char* name_of(Deal deal) {
  return pick<kDeals>({"contiguous", "zigzag", "query_heads", "striped", "table"}, deal.kind);
}

const char* name_of(MeshAxis axis) {
  return pick<kMeshAxes>({"tp", "cp", "ep", "dp_shard", "dp_replicate", "worker", "pp", "etp"}, axis);
}

const char* name_of(ActivationFunction function) {
  return pick<kActivationFunctions>({"gelu", "relu", "swiglu", "geglu", "quick_gelu", "relu2"}, function);
}

const char* name_of(RouterType type) { return pick<kRouterTypes>({"top_k", "expert_choice", "base", "hash"}, type); }

const char* name_of(RouterScore score) {
  return pick<kRouterScores>({"softmax", "softmax_of_top", "sigmoid", "sigmoid_of_top"}, score);
}

const char* name_of(Phase phase) {
  return pick<kPhases>({"forward", "recompute", "input_gradient", "weight_gradient", "update"}, phase);
}

const char* nccl_name_of(CollectiveProtocol p) {
  return pick<kCollectiveProtocolNames.size()>({"automatic", "Simple", "LL128", "LL"}, p);
}

const char* name_of(SlotKind kind) { return pick<kSlotKinds>({"forward", "backward", "weight_gradient"}, kind); }

}  // namespace orrery
