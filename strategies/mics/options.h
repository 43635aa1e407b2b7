#pragma once

#include "sim/base/fields.h"

namespace orrery::mics {

struct Options {
  std::int64_t shard_size = 0;
  bool hierarchical = false;

  void visit_fields(FieldVisitor& v) {
    v.field(
        "mics_shard_size", shard_size, orrery::degree(0),
        "MiCS (zero_stage 3): ranks of a partition group, over which gradients are reduced in every micro-batch, and "
        "between groups once a step; 0: no MiCS");
    v.field("mics_hierarchical_params_gather", hierarchical,
            "MiCS: a partition group of several nodes gathers weights between the nodes first, then within them");
  }
};

}  // namespace orrery::mics
