// The plan: the user's choice. It has one member per strategy, each with its own table of fields. In JSON the fields of
// all members form one flat object, e.g. {"tensor_parallel": 8, "sequence_parallel": true, "zero_stage": 1}. Fields of
// Scope::layer may have other values for ranges of layers: "layers": [{"from": 0, "to": 20, "recompute": "full"}].
// Layers in no range use the plan's own values, and so do the embedding and the head.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/base/fields.h"
#include "strategies/activation_offload/options.h"
#include "strategies/activation_recompute/options.h"
#include "strategies/batch/options.h"
#include "strategies/compressed_gradients/options.h"
#include "strategies/context_parallel/options.h"
#include "strategies/data_parallel/options.h"
#include "strategies/dts_gate/options.h"
#include "strategies/expert_parallel/options.h"
#include "strategies/flexmoe/options.h"
#include "strategies/fpdt/options.h"
#include "strategies/framework/options.h"
#include "strategies/freeze/options.h"
#include "strategies/fsmoe/options.h"
#include "strategies/gradient_accumulation/options.h"
#include "strategies/local_updates/options.h"
#include "strategies/loongtrain/options.h"
#include "strategies/lora/options.h"
#include "strategies/memo/options.h"
#include "strategies/mics/options.h"
#include "strategies/offload/options.h"
#include "strategies/optimizer/options.h"
#include "strategies/pipeline_parallel/options.h"
#include "strategies/precision/options.h"
#include "strategies/qlora/options.h"
#include "strategies/tensor_parallel/options.h"
#include "strategies/usp/options.h"
#include "strategies/zeppelin/options.h"
#include "strategies/zero_topo/options.h"
#include "strategies/zeropp/options.h"

// Strategies with options and the members of Plan that these are, in the order in which help and schema show the
// fields.
#define ORRERY_PLAN(X)                            \
  X(batch, batch)                                 \
  X(tensor_parallel, tensor)                      \
  X(context_parallel, context)                    \
  X(usp, usp)                                     \
  X(loongtrain, loongtrain)                       \
  X(fpdt, fpdt)                                   \
  X(zeppelin, zeppelin)                           \
  X(expert_parallel, expert)                      \
  X(fsmoe, fsmoe)                                 \
  X(dts_gate, dts_gate)                           \
  X(flexmoe, flexmoe)                             \
  X(pipeline_parallel, pipeline)                  \
  X(data_parallel, data)                          \
  X(local_updates, local)                         \
  X(compressed_gradients, compressed)             \
  X(zeropp, zeropp)                               \
  X(mics, mics)                                   \
  X(zero_topo, zero_topo)                         \
  X(activation_recompute, recompute)              \
  X(activation_offload, activation_offload)       \
  X(memo, memo)                                   \
  X(precision, precision)                         \
  X(freeze, freeze)                               \
  X(lora, lora)                                   \
  X(qlora, qlora)                                 \
  X(gradient_accumulation, gradient_accumulation) \
  X(optimizer, optimizer)                         \
  X(offload, offload)                             \
  X(framework, framework)

namespace orrery {

struct LayerRange;

struct Plan {
#define ORRERY_MEMBER(strategy, member) strategy::Options member;
  ORRERY_PLAN(ORRERY_MEMBER)
#undef ORRERY_MEMBER

  std::vector<LayerRange> layers;  // strategies/layer_plans.h

  void visit_fields(FieldVisitor& v) {
#define ORRERY_VISIT(strategy, member) member.visit_fields(v);
    ORRERY_PLAN(ORRERY_VISIT)
#undef ORRERY_VISIT
  }
};

// The layers from, from + step, ... below `to`. Layers are counted from 0 in model order: in an encoder-decoder model
// the encoder's layers come before the decoder's; in Swin they follow stage by stage.
struct LayerRange {
  std::int64_t from = 0;
  std::int64_t to = 0;  // 0: to the model's last layer
  std::int64_t step = 1;
  Plan plan;  // only its fields of Scope::layer count

  // Visits the range's own fields, without those of `plan`.
  void visit_fields(FieldVisitor& v) {
    v.field("from", from, degree(0),
            "the range's first layer; layers are counted from 0 in model order, an encoder's before its decoder's");
    v.field("to", to, degree(),
            "the first layer after the range, as in Python slices; absent: through the model's last");
    v.field("step", step, degree(), "2: every second layer of the range, beginning with the first");
  }
};

}  // namespace orrery
