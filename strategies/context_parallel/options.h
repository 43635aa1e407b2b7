#pragma once

#include <array>
#include <vector>

#include "sim/base/fields.h"

namespace orrery::context_parallel {

// How attention works on divided sequences: an index into type_names(). 0 is the ring.
enum class Type : std::uint8_t { ring };
// Returns the names of the types that all strategies implement (Strategy::context_types).
std::span<const std::string_view> type_names();

enum class Balance : std::uint8_t { contiguous, zigzag, striped, table };
inline constexpr std::array<std::string_view, 4> kBalanceNames{"contiguous", "zigzag", "striped", "table"};

struct Options {
  std::int64_t degree = 1;
  Type type = Type::ring;
  Balance balance = Balance::zigzag;
  std::vector<std::int64_t> blocks;
  bool fp32_gradients = false;

  void visit_fields(FieldVisitor& v) {
    v.field("context_parallel", degree, orrery::degree(), "ranks that share each sequence", Scope::mesh);
    v.field("context_parallel_type", type, type_names(),
            "how attention reaches the other ranks' parts of a sequence; Megatron-Core's names are accepted. Unused "
            "with context_parallel 1",
            Scope::layer);
    v.field("context_parallel_balance", balance, kBalanceNames,
            "which positions each rank has: contiguous; zigzag (equal causal work, as in Megatron-LM); striped (equal "
            "causal work, position i on rank i mod context_parallel, as in Striped Attention); table "
            "(context_parallel_blocks)",
            Scope::layer);
    v.field("context_parallel_blocks", blocks, orrery::degree(0),
            "context_parallel_balance table: the rank of each block, for equal blocks of the sequence in order; every "
            "rank has equally many (usp: the rank within its ring)",
            Scope::layer);
    v.field("context_parallel_fp32_gradients", fp32_gradients,
            "ring, fpdt: sum gradients of queries, keys and values in fp32, and send those of keys and values in fp32 "
            "in a ring (ring-flash-attention, USP; DeepSpeed); else in the activations' dtype (Transformer Engine)",
            Scope::layer);
  }
};

}  // namespace orrery::context_parallel
