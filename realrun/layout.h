// Where the elements of a rank's tensors are: in which storage, and which element of the whole model each one is.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sim/program/program.h"
#include "strategies/scenario.h"

namespace orrery::realrun {

// Of one rank: its coordinates, and what follows from them.
struct Position {
  std::size_t rank = 0;
  const Mesh* mesh = nullptr;
  std::int64_t tp_degree = 1, cp_degree = 1, pp = 0;
  std::int64_t replica = 0;                      // data-parallel: which part of the global batch
  std::int64_t shard = 0;                        // place among the ranks that may share a replica's state
  std::int64_t sequence = 0;                     // of the whole model
  std::span<const std::int64_t> expert_of_slot;  // Program's, of experts with copies

  // The other ranks of this rank's group, and this one; ascending.
  std::vector<std::size_t> group(MeshGroup group) const;
  std::vector<std::size_t> group(MeshAxis axis) const { return group(mesh->group(axis)); }
  // Which part this rank has of what is divided so; the first index of a part that is dealt contiguously.
  std::int64_t part(Division over) const { return part_of(over, *mesh, static_cast<std::int64_t>(rank)); }
  std::int64_t begin(const Tensor& t, int dim) const { return part(t.over[dim]) * t.sizes[dim]; }
  // Of those that differ in these digits, is this the rank that speaks for all?
  bool is_first(MeshGroup digits) const { return mesh->coordinate(static_cast<std::int64_t>(rank), digits) == 0; }
};
Position position_of(std::size_t rank, const Program& program, std::int64_t sequence);

// Positions in the whole sequence of a tensor's tokens, of a view of some tokens those of its own; none where it does
// not run along that sequence.
std::vector<std::int64_t> positions_of_tokens(const Piece& piece, TensorId id, const Position& position);

// Positions in the whole sequence of the queries and the keys of an attention over one that is dealt to ranks.
struct AttentionPositions {
  std::vector<std::int64_t> queries, keys;
};
AttentionPositions attention_positions(const Op& op, const Piece& piece, const Position& position);

// Element e of a tensor is element offset + e of the storage of `root`, or index[e] where it is not dense.
struct View {
  TensorId root = kNoTensor;
  std::int64_t offset = 0;
  std::vector<std::int64_t> index;
  bool dense() const { return index.empty(); }
  std::int64_t at(std::int64_t e) const { return dense() ? offset + e : index[static_cast<std::size_t>(e)]; }
};
// Of every tensor of a piece on a rank. Throws std::logic_error for a view that does not fit its base.
std::vector<View> views_of(const Piece& piece, const Position& position);

// One parameter of the whole model.
enum class InitialValue : std::uint8_t { scale, shift, matrix, table };
struct WholeParameter {
  std::string name;
  Tensor tensor;
  InitialValue initial = InitialValue::matrix;
  double deviation = 0;
  std::int64_t values_of = 0;  // the parameter whose values it has: itself, or the table it is tied to
  bool frozen = false;         // has no gradient
};
std::vector<WholeParameter> whole_parameters(const Program& one_rank, bool tied);

// Whether parts of a collective's group lie side by side in what they are parts of: a deal is of the first digit only.
bool is_contiguous_part(const Tensor& whole, const Tensor& part, int dim);

// Whether a rank holds all of a parameter, in the same order.
bool is_whole(const Tensor& local, const Tensor& whole, const Position& position);
// The number of a parameter's slot of experts in the layer, of its local element; which of a parameter has copies, if
// any has: the dimension of its experts, or -1.
int copied_dimension(const Tensor& t, const Position& position);
std::int64_t slot_of(const Tensor& t, int dim, std::int64_t element, const Position& position);
// Of each local element of a parameter, the element of the whole one. Throws InputError where the layouts do not match
// (a vocabulary padded to another size).
std::vector<std::int64_t> whole_elements(const Tensor& local, const Tensor& whole, const Position& position);

// The bucket of a key that lies `distance` behind its query (negative: before it). Causal: keys behind share the first.
std::int64_t position_bucket(std::int64_t distance, bool causal, std::int64_t buckets);

// A number in [-1, 1) from a counter.
double counter_uniform(std::uint64_t seed, std::uint64_t stream, std::uint64_t index);

}  // namespace orrery::realrun
