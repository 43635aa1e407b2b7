#pragma once

#include "sim/base/fields.h"

namespace orrery::usp {

struct Options {
  std::int64_t ulysses_degree = 0;
  bool ulysses_inner = true;

  void visit_fields(FieldVisitor& v) {
    v.field("ulysses_degree", ulysses_degree, degree(0),
            "usp: of context_parallel the ranks that exchange heads for positions, rings having the rest; 0: as many "
            "as divide a rank's key/value heads",
            Scope::mesh);
    v.field("ulysses_inner", ulysses_inner,
            "usp: ranks that exchange are neighbours (use_ulysses_low); false: those of a ring are", Scope::mesh);
  }
};

}  // namespace orrery::usp
