// Ulysses' exchange, for all strategies that use it: around attention, ranks of a group trade positions for heads.
#pragma once

#include <vector>

#include "sim/program/piece.h"
#include "strategies/scenario.h"

namespace orrery::usp {

// Heads per rank after tensor parallelism.
struct Heads {
  std::int64_t key_value = 1, query = 1;
};
Heads heads_of(const Scenario& scenario);

// Adds digits of the axis cp for `ranks` ranks that exchange: ranks with different key/value heads, then those sharing
// one.
void add_exchange_digits(const Scenario& scenario, std::int64_t ranks, Mesh& mesh);
// The digits of the mesh that add_exchange_digits() has added.
MeshGroup exchanging_ranks(const Mesh& mesh);

// Before the exchange a rank has all heads at its own positions; after it, its own heads at all positions. With more
// ranks than key/value heads, several share one, and its query heads are divided over them. Tensors are [batch,
// sequence, ..heads..] of the sequence or a chunk of it, whose positions are divided over `outer`, then over the ranks.
class Exchange {
 public:
  Exchange(const Mesh& mesh, Division outer, Piece& piece, std::vector<Op>& out);

  // Adds a tensor like `local` with this rank's heads and all positions of the group.
  TensorId with_all_positions(TensorId local);
  // Tensors of keys and values, or their gradients. `own`: what no other rank shares. `all`: what the rank attends to.
  struct Keys {
    TensorId own = kNoTensor, all = kNoTensor;
  };
  Keys with_all_positions_of_keys(TensorId local, TensorId queries);

  // Each of these appends communication to `out`, in the phase of `cause`.
  void give_positions(const char* name, TensorId local, TensorId all, const Op& cause);
  void take_positions(const char* name, TensorId all, TensorId local, const Op& cause);
  void give_keys(TensorId local, Keys keys, const Op& cause);
  void take_key_gradients(Keys keys, TensorId local, const Op& cause);

 private:
  enum class Tensors : std::uint16_t { one = 1, keys_and_values = 2 };

  TensorId with_positions_of(TensorId id, MeshGroup group);
  void communicate(OpKind kind, const char* name, MeshGroup group, TensorId from, TensorId to, const Op& cause,
                   Tensors tensors);

  const Mesh& mesh_;
  const MeshGroup heads_, sharing_;
  const Division outer_;
  Piece& piece_;
  std::vector<Op>& out_;
};

}  // namespace orrery::usp
