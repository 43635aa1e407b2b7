#pragma once

#include "sim/base/fields.h"

namespace orrery::usp {

struct Options {
  std::int64_t ulysses_degree = 0;
  bool ulysses_inner = true;

  void visit_fields(FieldVisitor& v) {
    v.field("ulysses_degree", ulysses_degree, degree(0),
            "usp: ranks of context_parallel that exchange heads for positions; the others form rings; 0: as many as "
            "divide a rank's key/value heads",
            Scope::mesh);
    v.field("ulysses_inner", ulysses_inner,
            "usp: exchanging ranks are neighbours (use_ulysses_low); false: ranks of a ring are", Scope::mesh);
  }
};

}  // namespace orrery::usp
