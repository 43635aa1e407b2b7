#pragma once

#include "sim/base/fields.h"

namespace orrery::freeze {

struct Options {
  bool layers = false;
  bool embedding = false;
  bool head = false;

  void visit_fields(FieldVisitor& v) {
    v.field("freeze", layers,
            "fine-tuning: layers are not trained (requires_grad False): no weight gradients, no optimizer states, no "
            "master copy, and no backward where nothing before them is trained",
            Scope::layer);
    v.field("freeze_embedding", embedding,
            "freeze: what stands before a stack's layers is not trained, tables of tokens and positions; nor is a head "
            "that is tied to them");
    v.field("freeze_head", head,
            "freeze: what stands behind the last layer is not trained, final norm and output layer");
  }
};

}  // namespace orrery::freeze
