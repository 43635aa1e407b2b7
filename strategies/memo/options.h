#pragma once

#include "sim/base/fields.h"

namespace orrery::memo {

struct Options {
  bool swap = false;
  double alpha = 1;

  void visit_fields(FieldVisitor& v) {
    v.field(
        "memo", swap,
        "a layer's input and attention's output wait for the backward in host memory, of all else that it keeps the "
        "first tokens, the rest being recomputed; the last two layers of a stage's chunk stay (MEMO)",
        Scope::layer);
    v.field("memo_alpha", alpha, NumberRange{.least = 0, .most = 1},
            "memo: of the other activations, the part of the tokens that is swapped; orrery simulate S --explain "
            "memo_alpha prints the largest that hides and has room",
            Scope::layer);
  }
};

}  // namespace orrery::memo
