#pragma once

#include "sim/base/fields.h"

namespace orrery::loongtrain {

struct Options {
  std::int64_t inner_ring_degree = 1;

  void visit_fields(FieldVisitor& v) {
    v.field("inner_ring_degree", inner_ring_degree, degree(),
            "neighbouring ranks of a ring that form an inner ring (LoongTrain's window size): keys go round it while "
            "those of the next inner ring are sent; 1: one ring",
            Scope::mesh);
  }
};

}  // namespace orrery::loongtrain
