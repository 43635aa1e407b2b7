#pragma once

#include "sim/base/fields.h"

namespace orrery::activation_offload {

struct Options {
  bool offload = false;
  std::int64_t layers = -1;

  void visit_fields(FieldVisitor& v) {
    v.field("activation_offload", offload,
            "activations that a layer keeps for its backward wait for it in host memory (Megatron-Core's CPU "
            "offloading)",
            Scope::layer);
    v.field("activation_offload_layers", layers, degree(-1),
            "activation_offload: only this many layers of each stage's chunk, its first; -1: all");
  }
};

}  // namespace orrery::activation_offload
