#pragma once

#include "sim/base/fields.h"

namespace orrery::freeze {

struct Options {
  bool layers = false;
  bool embedding = false;
  bool head = false;

  void visit_fields(FieldVisitor& v) {
    v.field("freeze", layers,
            "fine-tuning: do not train these layers (requires_grad False): no weight gradients, optimizer states or "
            "master copy, and no backward if nothing before them is trained",
            Scope::layer);
    v.field("freeze_embedding", embedding,
            "freeze token and position tables before a stack's layers, and a head tied to them");
    v.field("freeze_head", head, "freeze the final norm and the output layer");
  }
};

}  // namespace orrery::freeze
