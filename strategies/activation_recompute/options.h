#pragma once

#include <array>

#include "sim/base/fields.h"

namespace orrery::activation_recompute {

enum class Mode : std::uint8_t { none, selective, full };
inline constexpr std::array<std::string_view, 3> kModeNames{"none", "selective", "full"};

struct Options {
  Mode mode = Mode::none;
  std::int64_t every = 1;
  std::int64_t layers = -1;

  void visit_fields(FieldVisitor& v) {
    v.field(
        "recompute", mode, kModeNames,
        "what the backward recomputes: nothing, the attention core (selective), or each layer from its input (full); "
        "flash_attention repeats the core inside its kernel, selective then adds nothing",
        Scope::layer);
    v.field("recompute_every", every, degree(),
            "full: keep the input of every n-th layer only (Megatron's uniform method)", Scope::layer);
    v.field("recompute_layers", layers, degree(-1),
            "full: recompute only this many layers of each stage's chunk (Megatron's block method); -1: all");
  }
};

}  // namespace orrery::activation_recompute
