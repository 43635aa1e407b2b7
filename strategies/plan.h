// The plan: the user's choice. One member per strategy, each with its own table of fields; on paper (JSON) they are
// one flat object, e.g. {"tensor_parallel": 8, "sequence_parallel": true, "zero_stage": 1}.
#pragma once

#include "sim/base/fields.h"
#include "strategies/activation_recompute/options.h"
#include "strategies/batch/options.h"
#include "strategies/context_parallel/options.h"
#include "strategies/data_parallel/options.h"
#include "strategies/framework/options.h"
#include "strategies/offload/options.h"
#include "strategies/optimizer/options.h"
#include "strategies/pipeline_parallel/options.h"
#include "strategies/precision/options.h"
#include "strategies/tensor_parallel/options.h"

namespace orrery {

struct Plan {
  batch::Options batch;
  precision::Options precision;
  framework::Options framework;
  tensor_parallel::Options tensor;
  context_parallel::Options context;
  activation_recompute::Options recompute;
  pipeline_parallel::Options pipeline;
  data_parallel::Options data;
  optimizer::Options optimizer;
  offload::Options offload;

  void visit_fields(FieldVisitor& v) {
    batch.visit_fields(v);
    tensor.visit_fields(v);
    context.visit_fields(v);
    pipeline.visit_fields(v);
    data.visit_fields(v);
    recompute.visit_fields(v);
    precision.visit_fields(v);
    optimizer.visit_fields(v);
    offload.visit_fields(v);
    framework.visit_fields(v);
  }
};

}  // namespace orrery
