#include "strategies/data_parallel/gather_order.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "sim/program/rewrite.h"

namespace orrery::data_parallel {
namespace {

using framework::GatherLimits;

// Ops between which no other set is used.
struct Use {
  std::size_t set = 0;
  std::size_t first = 0, end = 0;
  bool recompute = false;
};

std::vector<Use> uses_of_sets(const Piece& piece, const Block& block, std::span<const TensorId> whole) {
  std::vector<Use> uses;
  for (std::size_t i = 0; i < block.ops.size(); ++i) {
    const Op& op = block.ops[i];
    for (const TensorId id : op.reads) {
      if (id == kNoTensor) continue;
      const auto at = std::ranges::find(whole, storage_of(piece, id));
      if (at == whole.end()) continue;
      const auto set = static_cast<std::size_t>(at - whole.begin());
      const bool recompute = op.phase == Phase::recompute;
      if (uses.empty() || uses.back().set != set || uses.back().recompute != recompute)
        uses.push_back({set, i, i, recompute});
      uses.back().end = i + 1;
    }
  }
  return uses;
}

}  // namespace

bool exceeds(const GatherLimits& limits, const Piece& piece) {
  if (limits.live == 0 || !is_layer(piece)) return false;
  std::int64_t elements = 0;
  for (const ParameterGradient& p : piece.parameters)
    if (!piece.tensors[p.parameter].shared) elements += piece.tensors[p.parameter].elements();
  return 2 * elements > limits.live;
}

void divide_into_sets(const GatherLimits& limits, Piece& piece) {
  struct Used {
    ParameterGradient* parameter = nullptr;
    bool first_of_module = false;
  };
  std::vector<Used> order;
  std::int64_t left = 0;  // elements left in the set
  const auto add = [&](TensorId id, bool first_of_module) {
    for (ParameterGradient& p : piece.parameters) {
      if (p.parameter != id || piece.tensors[id].shared) continue;
      if (std::ranges::find(order, &p, &Used::parameter) != order.end()) return false;
      order.push_back({&p, first_of_module});
      left += piece.tensors[id].elements();
      return true;
    }
    return false;
  };
  for (const Op& op : piece.forward.ops) {
    bool first = is_matmul(op.kind) || op.kind == OpKind::norm;
    for (const TensorId id : op.reads)
      if (id != kNoTensor && add(storage_of(piece, id), first)) first = false;
  }
  for (const ParameterGradient& p : piece.parameters) add(p.parameter, false);  // parameters that no forward op reads

  const std::int64_t least = std::max<std::int64_t>(limits.prefetch, 1);
  std::int64_t in_set = 0;
  std::uint8_t set = 0;
  for (const Used& used : order) {
    if (used.first_of_module && in_set >= least && left >= least && set < std::numeric_limits<std::uint8_t>::max()) {
      ++set;
      in_set = 0;
    }
    used.parameter->set = set;
    in_set += piece.tensors[used.parameter->parameter].elements();
    left -= piece.tensors[used.parameter->parameter].elements();
  }
  split_sets(piece, [&](const ParameterGradient& p) {
    return std::pair(is_frozen(p), piece.tensors[p.parameter].dtype);  // a flat buffer has one dtype
  });
}

GatherOrder order_in_turn(const GatherLimits& limits, bool prefetch, const Piece& piece, const Block& block,
                          std::span<const TensorId> whole) {
  const std::vector<Use> uses = uses_of_sets(piece, block, whole);
  const auto elements = [&](std::size_t set) { return piece.tensors[whole[set]].elements(); };

  struct Copy {
    std::size_t first_use = 0, last_use = 0;
  };
  std::vector<Copy> copies;
  std::vector<bool> has_copy(uses.size());
  for (std::size_t u = 0; u < uses.size(); ++u) {
    if (has_copy[u]) continue;
    Copy copy{u, u};
    std::int64_t between = 0;
    for (std::size_t later = u + 1; later < uses.size() && between < limits.reuse; ++later) {
      if (uses[later].set != uses[u].set) {
        between += elements(uses[later].set);
        continue;
      }
      between = 0;
      has_copy[later] = true;
      copy.last_use = later;
    }
    copies.push_back(copy);
  }

  const auto live_at = [&](std::size_t use) {
    std::int64_t live = 0;
    for (const Copy& copy : copies)
      if (copy.first_use <= use && use <= copy.last_use) live += elements(uses[copy.first_use].set);
    return live;
  };
  const auto has_room_at = [&](std::size_t use) { return prefetch && live_at(use) < limits.live; };
  GatherOrder order;
  if (!uses.empty()) order.last_use = uses.back().first;
  for (const Copy& copy : copies) {
    const std::size_t u = copy.first_use;
    GatheredCopy g{uses[u].set, uses[u].first, uses[copy.last_use].end, uses[u].first, false};
    if (u == 0) {
      g.ahead = has_room_at(uses.size() - 1);
      if (g.ahead) g.issued = 0;
    } else if (has_room_at(u - 1)) {
      g.issued = uses[u - 1].first;
    }
    order.copies.push_back(g);
  }
  return order;
}

}  // namespace orrery::data_parallel
