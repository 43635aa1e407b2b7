#pragma once

#include <array>

#include "sim/base/fields.h"

namespace orrery::context_parallel {

enum class Balance : std::uint8_t { contiguous, zigzag };
inline constexpr std::array<std::string_view, 2> kBalanceNames{"contiguous", "zigzag"};

struct Options {
  std::int64_t degree = 1;
  Balance balance = Balance::zigzag;

  void visit_fields(FieldVisitor& v) {
    v.field("context_parallel", degree, orrery::degree(), "ranks that share each sequence; attention runs as a ring",
            Scope::layout);
    v.field("context_parallel_balance", balance, kBalanceNames,
            "how positions are dealt to ranks: contiguous, or zigzag (equal causal work, as Megatron-LM)",
            Scope::layout);
  }
};

}  // namespace orrery::context_parallel
