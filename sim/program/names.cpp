#include "sim/program/mesh.h"
#include "sim/program/op.h"
#include "sim/program/tensor.h"

namespace orrery {
namespace {

template <std::size_t N, class Enum>
const char* pick(const std::array<const char*, N>& names, Enum value) {
  return names[static_cast<std::size_t>(value)];
}

}  // namespace

const char* name_of(Dtype dtype) {
  static constexpr std::array names{"fp32",  "fp16",  "bf16",  "fp8",  "nvfp4",
                                    "int64", "int32", "uint8", "int4", "fp8_blocks"};
  static_assert(names.size() == kDtypes);
  return pick(names, dtype);
}

const char* name_of(Category category) {
  static constexpr std::array names{"parameter",           "gradient",  "optimizer_state", "activation",
                                    "communication_buffer", "workspace"};
  static_assert(names.size() == kCategories);
  return pick(names, category);
}

const char* name_of(Place place) {
  static constexpr std::array names{"device", "host", "storage"};
  static_assert(names.size() == kPlaces);
  return pick(names, place);
}

const char* name_of(Axis axis) {
  static constexpr std::array names{"none",        "batch",     "sequence", "key_sequence", "hidden", "groups",
                                    "group_heads", "group_qkv", "head_dim", "ffn",          "vocab",  "experts",
                                    "slots",       "expert_ffn", "chunks"};
  static_assert(names.size() == kAxes);
  return pick(names, axis);
}

const char* name_of(Deal deal) {
  static constexpr std::array names{"contiguous", "zigzag", "query_heads", "striped", "table"};
  static_assert(names.size() == kDeals);
  return pick(names, deal.kind);
}

const char* name_of(MeshAxis axis) {
  static constexpr std::array names{"tp", "cp", "ep", "dp_shard", "dp_replicate", "pp", "etp"};
  static_assert(names.size() == kMeshAxes);
  return pick(names, axis);
}

const char* name_of(ActivationFunction function) {
  static constexpr std::array names{"gelu", "relu", "swiglu", "geglu", "quick_gelu", "relu2"};
  static_assert(names.size() == kActivationFunctions);
  return pick(names, function);
}

const char* name_of(RouterType type) {
  static constexpr std::array names{"top_k", "expert_choice", "base", "hash"};
  static_assert(names.size() == kRouterTypes);
  return pick(names, type);
}

const char* name_of(RouterScore score) {
  static constexpr std::array names{"softmax", "softmax_of_top", "sigmoid", "sigmoid_of_top"};
  static_assert(names.size() == kRouterScores);
  return pick(names, score);
}

const char* name_of(Phase phase) {
  static constexpr std::array names{"forward", "recompute", "input_gradient", "weight_gradient", "update"};
  return pick(names, phase);
}

}  // namespace orrery
