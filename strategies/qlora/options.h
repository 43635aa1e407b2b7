#pragma once

#include "sim/base/fields.h"

namespace orrery::qlora {

struct Options {
  bool quantise_base = false;

  void visit_fields(FieldVisitor& v) {
    v.field("lora_quantize_base", quantise_base,
            "QLoRA: keep the layers' frozen matrices in NF4 alone, with double quantisation");
  }
};

}  // namespace orrery::qlora
