#pragma once

#include "sim/base/fields.h"

namespace orrery::batch {

struct Options {
  std::int64_t micro_batch_size = 1;

  void visit_fields(FieldVisitor& v) {
    v.field("micro_batch_size", micro_batch_size, degree(),
            "sequences per rank in one forward; the rest of its share of the global batch is accumulated");
  }
};

}  // namespace orrery::batch
