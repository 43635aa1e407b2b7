#pragma once

#include "sim/base/fields.h"

namespace orrery::memo {

struct Options {
  bool swap = false;
  double alpha = 1;

  void visit_fields(FieldVisitor& v) {
    v.field("memo", swap,
            "swap a layer's input, attention's output and the first tokens of other activations to the host and "
            "recompute the rest; the last two layers of a stage's chunk stay (MEMO)",
            Scope::layer);
    v.field("memo_alpha", alpha, NumberRange{.least = 0, .most = 1},
            "memo: the part of the other activations' tokens that is swapped; orrery simulate S --explain memo_alpha "
            "prints the largest that is hidden and fits",
            Scope::layer);
  }
};

}  // namespace orrery::memo
