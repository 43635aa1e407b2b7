// Context parallelism by ranks that trade sequence positions for heads around attention (DeepSpeed-Ulysses: Jacobs et
// al. 2023, arXiv 2309.14509), optionally with such groups arranged in rings (USP: Fang & Zhao 2024, arXiv 2405.07719):
// the exchange of Ulysses, for all strategies that use it. Before attention, a rank gives away most heads of its own
// positions and receives the other positions of its own heads; after attention the exchange goes back.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "sim/program/piece.h"
#include "strategies/scenario.h"

namespace orrery::usp {

// Values of context_parallel_type; a2a and a2a+p2p are Megatron-Core's names.
inline constexpr std::array<std::string_view, 4> kTypes{"ulysses", "a2a", "usp", "a2a+p2p"};

// Heads per rank after tensor parallelism.
struct Heads {
  std::int64_t key_value = 1, query = 1;
};
Heads heads_of(const Scenario& scenario);

// Adds up to two digits of the axis cp for `ranks` ranks that exchange. The inner digit counts ranks with different
// key/value heads; the outer one counts ranks that share the same key/value heads.
void add_exchange_digits(const Scenario& scenario, std::int64_t ranks, Mesh& mesh);
// Returns the digits of the mesh that add_exchange_digits() has added.
MeshGroup exchanging_ranks(const Mesh& mesh);

// Builds the ops of the exchange. Before it, a rank has all heads at its own positions; after it, its own heads at all
// positions of the group. If there are more ranks than key/value heads, several ranks share a key/value head, and its
// query heads are divided over them. Tensors are [batch, sequence, ..heads..]. Their positions, those of the sequence
// or of a chunk of it, are divided over `outer` (the ring, if any), and then over the ranks that exchange.
class Exchange {
 public:
  Exchange(const Mesh& mesh, Division outer, Piece& piece, std::vector<Op>& out);

  // Adds a tensor like `local` with this rank's heads and all positions of the group.
  TensorId with_all_positions(TensorId local);
  // Keys and values, or their gradients, after the exchange. `own`: the positions that the exchange brings to this
  // rank. `all`: the positions that it attends to, gathered from the ranks that share its key/value heads. Both are the
  // same tensor if no ranks share heads.
  struct Keys {
    TensorId own = kNoTensor, all = kNoTensor;
  };
  Keys with_all_positions_of_keys(TensorId local, TensorId queries);

  // Each of these appends communication to `out`, in the phase of `cause`. The first two move one tensor: to all
  // positions and back. give_keys() fills both of `keys`; take_key_gradients() sums the gradients of shared heads and
  // sends them back. Keys and values travel as two messages.
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
