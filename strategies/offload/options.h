#pragma once

#include "sim/base/fields.h"

namespace orrery::offload {

struct Options {
  bool optimizer = false;

  void visit_fields(FieldVisitor& v) {
    v.field("optimizer_offload", optimizer,
            "keep optimizer states in host memory and update them on the CPU (ZeRO-Offload)", Scope::buckets);
  }
};

}  // namespace orrery::offload
