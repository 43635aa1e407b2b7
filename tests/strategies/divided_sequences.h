// Sequences that ranks share, and what a layer's attention moves between them.
#pragma once

#include <string_view>

#include "strategies/context_parallel/context_parallel.h"
#include "tests/strategies/support.h"

namespace orrery {

// `elements`: each rank's, of all ops of a kind in a layer's forward and backward.
struct LayerTraffic {
  int calls = 0;
  double elements = 0;
};
inline LayerTraffic traffic(const Program& program, OpKind kind, const char* name = "") {
  LayerTraffic t;
  const Piece& layer = piece_named(program, "layer");
  for (const Block* block : {&layer.forward, &layer.backward})
    for (const Op& op : block->ops) {
      if (op.kind != kind || op.stream != Stream::context_communication) continue;
      if (!std::string_view(op.name).starts_with(name)) continue;
      t.calls += op.count;
      t.elements += bytes(op, layer.tensors) / 2;
    }
  return t;
}

inline Scenario divided(const char* model, std::int64_t ranks, const char* type, std::int64_t ulysses_degree = 0) {
  Scenario s = scenario_of(model, "dgx-a100", 4);
  s.workload = {65536, 0, 64};
  s.plan.context.degree = ranks;
  s.plan.context.type = context_parallel::type_named(type);
  s.plan.usp.ulysses_degree = ulysses_degree;
  return s;
}
inline Program lowered_of(const Scenario& s) {
  Program p;
  lower(s, p);
  return p;
}

// Of Llama 2 7B: 32 heads of 128.
inline constexpr double kBsh = 65536.0 * 4096;

inline double layer_attention_flops(const Program& p) {
  const Piece& layer = piece_named(p, "layer");
  double total = 0;
  for (const Op& op : layer.forward.ops)
    if (op.kind == OpKind::attention) total += flops(op, layer.tensors);
  return total;
}

}  // namespace orrery
