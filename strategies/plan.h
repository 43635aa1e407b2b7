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
#include "strategies/loongtrain/options.h"
#include "strategies/memo/options.h"
#include "strategies/mics/options.h"
#include "strategies/offload/options.h"
#include "strategies/optimizer/options.h"
#include "strategies/pipeline_parallel/options.h"
#include "strategies/precision/options.h"
#include "strategies/tensor_parallel/options.h"
#include "strategies/usp/options.h"
#include "strategies/zeppelin/options.h"
#include "strategies/zeropp/options.h"

namespace orrery {

struct LayerRange;

struct Plan {
  batch::Options batch;
  precision::Options precision;
  framework::Options framework;
  tensor_parallel::Options tensor;
  context_parallel::Options context;
  usp::Options usp;
  loongtrain::Options loongtrain;
  fpdt::Options fpdt;
  zeppelin::Options zeppelin;
  expert_parallel::Options expert;
  fsmoe::Options fsmoe;
  dts_gate::Options dts_gate;
  flexmoe::Options flexmoe;
  activation_recompute::Options recompute;
  activation_offload::Options activation_offload;
  memo::Options memo;
  pipeline_parallel::Options pipeline;
  data_parallel::Options data;
  zeropp::Options zeropp;
  mics::Options mics;
  freeze::Options freeze;
  gradient_accumulation::Options gradient_accumulation;
  optimizer::Options optimizer;
  offload::Options offload;

  std::vector<LayerRange> layers;  // strategies/layer_plans.h

  void visit_fields(FieldVisitor& v) {
    batch.visit_fields(v);
    tensor.visit_fields(v);
    context.visit_fields(v);
    usp.visit_fields(v);
    loongtrain.visit_fields(v);
    fpdt.visit_fields(v);
    zeppelin.visit_fields(v);
    expert.visit_fields(v);
    fsmoe.visit_fields(v);
    dts_gate.visit_fields(v);
    flexmoe.visit_fields(v);
    pipeline.visit_fields(v);
    data.visit_fields(v);
    zeropp.visit_fields(v);
    mics.visit_fields(v);
    recompute.visit_fields(v);
    activation_offload.visit_fields(v);
    memo.visit_fields(v);
    precision.visit_fields(v);
    freeze.visit_fields(v);
    gradient_accumulation.visit_fields(v);
    optimizer.visit_fields(v);
    offload.visit_fields(v);
    framework.visit_fields(v);
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
