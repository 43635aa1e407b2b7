#pragma once

#include "sim/base/fields.h"

namespace orrery::expert_parallel {

struct Options {
  std::int64_t degree = 1;
  std::int64_t tensor_degree = 0;
  double capacity_factor = 0;

  void visit_fields(FieldVisitor& v) {
    v.field("expert_parallel", degree, orrery::degree(),
            "ranks that the experts of a layer are divided over: of tensor, context and data ranks, as Megatron-Core "
            "folds them",
            Scope::mesh);
    v.field("expert_tensor_parallel", tensor_degree, orrery::degree(0),
            "ranks that each expert's matrices are divided over; 0: as tensor_parallel", Scope::mesh);
    v.field("moe_expert_capacity_factor", capacity_factor, NumberRange{.least = 0, .most = 1024},
            "slots of an expert for one rank's tokens, over what balanced routing needs; tokens beyond them are "
            "dropped, slots that are left over are computed all the same. 0: dropless");
  }
};

}  // namespace orrery::expert_parallel
