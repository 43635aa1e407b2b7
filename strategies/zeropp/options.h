#pragma once

#include "sim/base/fields.h"

namespace orrery::zeropp {

struct Options {
  std::int64_t secondary = 0;

  void visit_fields(FieldVisitor& v) {
    v.field("zero_hpz_partition_size", secondary, orrery::degree(0),
            "ZeRO++ (zero_stage 3): ranks of a shard group that divide a second copy of the weights, from which the "
            "backward gathers; 0 and 1: none");
  }
};

}  // namespace orrery::zeropp
