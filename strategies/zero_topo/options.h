#pragma once

#include "sim/base/fields.h"

namespace orrery::zero_topo {

struct Options {
  std::int64_t weights = 0, gradients = 0;

  void visit_fields(FieldVisitor& v) {
    v.field("zero_weights_degree", weights, orrery::degree(0),
            "three levels (zero_stage 3): ranks that divide the weights, a part of those that divide the gradients; 0: "
            "all of a shard group");
    v.field("zero_gradients_degree", gradients, orrery::degree(0),
            "three levels (zero_stage 3): ranks that divide the gradients and sum them in every micro-batch, a part of "
            "those that divide the optimizer states; 0: all of a shard group");
  }
};

}  // namespace orrery::zero_topo
