#pragma once

#include "sim/base/fields.h"

namespace orrery::loongtrain {

struct Options {
  std::int64_t inner_ring_degree = 1;

  void visit_fields(FieldVisitor& v) {
    v.field("inner_ring_degree", inner_ring_degree, degree(),
            "of a ring the neighbours that make a ring within it (LoongTrain's window size): keys go round these while "
            "those of the next such ring are on their way; 1: one ring",
            Scope::mesh);
  }
};

}  // namespace orrery::loongtrain
