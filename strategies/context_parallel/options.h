#pragma once

#include <array>

#include "sim/base/fields.h"

namespace orrery::context_parallel {

// What attention does on divided sequences: a place among type_names(). The first is the ring's.
enum class Type : std::uint8_t { ring };
// The names of all strategies of the list that lay attention out so (Strategy::context_types).
std::span<const std::string_view> type_names();

enum class Balance : std::uint8_t { contiguous, zigzag, striped };
inline constexpr std::array<std::string_view, 3> kBalanceNames{"contiguous", "zigzag", "striped"};

struct Options {
  std::int64_t degree = 1;
  Type type = Type::ring;
  Balance balance = Balance::zigzag;

  void visit_fields(FieldVisitor& v) {
    v.field("context_parallel", degree, orrery::degree(), "ranks that share each sequence", Scope::layout);
    v.field("context_parallel_type", type, type_names(),
            "how attention meets what the other ranks have of a sequence; Megatron-Core's names say the same",
            Scope::layout);
    v.field("context_parallel_balance", balance, kBalanceNames,
            "how positions are dealt to ranks: contiguous; zigzag (equal causal work, as Megatron-LM); striped (the "
            "same, position i to rank i mod context_parallel, as Striped Attention)",
            Scope::layer);
  }
};

}  // namespace orrery::context_parallel
