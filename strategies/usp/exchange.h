// Ulysses' exchange: around attention the ranks of a group give each other positions for heads. For all strategies that
// exchange so.
#pragma once

#include <vector>

#include "sim/program/piece.h"
#include "strategies/scenario.h"

namespace orrery::usp {

// Of a rank, when tensor parallelism has taken its part.
struct Heads {
  std::int64_t key_value = 1, query = 1;
};
Heads heads_of(const Scenario& scenario);

// Digits of the axis cp for `ranks` that exchange: those that have different key/value heads, and those that share one.
void add_exchange_digits(const Scenario& scenario, std::int64_t ranks, Mesh& mesh);
// Of these digits those that the mesh has.
MeshGroup exchanging_ranks(const Mesh& mesh);

// Of their own positions all heads become, of all positions their own heads. Where there are more ranks than key/value
// heads, several share one and its query heads. Tensors are [batch, sequence, ..heads..], of the sequence or a chunk of
// it, whose positions are divided over `outer` and then over the ranks that exchange.
class Exchange {
 public:
  Exchange(const Mesh& mesh, Division outer, Piece& piece, std::vector<Op>& out);

  // A new tensor like `local`, of the own heads and all positions of the group.
  TensorId with_all_positions(TensorId local);
  // Of keys and values, or their gradients: of the heads that a rank shares with none; all that it attends to.
  struct Keys {
    TensorId own = kNoTensor, all = kNoTensor;
  };
  Keys with_all_positions_of_keys(TensorId local, TensorId queries);

  // Each appends communication to `out`, in the phase of `cause`.
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
