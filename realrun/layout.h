// Where the elements of a rank's tensors are: in which storage, and which element of the whole model each one is.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sim/program/program.h"
#include "strategies/scenario.h"

namespace orrery::realrun {

// A rank's coordinates and values derived from them.
struct Position {
  std::size_t rank = 0;
  const Mesh* mesh = nullptr;
  std::int64_t tp_degree = 1, cp_degree = 1, pp = 0;
  std::int64_t replica = 0;                      // data-parallel index: which part of the global batch
  std::int64_t sequence = 0;                     // sequence length of the whole model
  MeshGroup experts;                             // the digits that divide the experts of a layer
  std::span<const std::int64_t> expert_of_slot;  // Program's, for experts with copies

  // Returns the ranks of this rank's group, including itself, ascending.
  std::vector<std::size_t> group(MeshGroup group) const;
  std::vector<std::size_t> group(MeshAxis axis) const { return group(mesh->group(axis)); }
  // part(): the index of this rank's part of a division. begin(): its first index in a contiguously divided dimension.
  std::int64_t part(Division over) const { return part_of(over, *mesh, static_cast<std::int64_t>(rank)); }
  std::int64_t begin(const Tensor& t, int dim) const { return part(t.over[dim]) * t.sizes[dim]; }
  // The indices in a whole dimension of `whole` elements that this rank's part of a tensor has.
  std::vector<std::int64_t> dealt(const Tensor& t, int dim, std::int64_t whole) const {
    return dealt_indices(t.deal(dim), t.over[dim], whole, t.sizes[dim], *mesh, static_cast<std::int64_t>(rank));
  }
  // The index of this rank in a group.
  std::int64_t coordinate(MeshGroup group) const { return mesh->coordinate(static_cast<std::int64_t>(rank), group); }
  // Whether this rank is the first of those that differ only in these digits.
  bool is_first(MeshGroup digits) const { return coordinate(digits) == 0; }
};
Position position_of(std::size_t rank, const Program& program, std::int64_t sequence);

// Returns the positions, in the whole sequence, of a tensor's tokens; for a view of some tokens, of those tokens. Empty
// if the tensor does not run along that sequence.
std::vector<std::int64_t> positions_of_tokens(const Piece& piece, TensorId id, const Position& position);

// Positions in the whole sequence of an attention's queries and keys, when the sequence is divided over ranks.
struct AttentionPositions {
  std::vector<std::int64_t> queries, keys;
};
AttentionPositions attention_positions(const Op& op, const Piece& piece, const Position& position);

// Element e of a tensor is element offset + e of the storage of `root`, or index[e] where it is not dense.
struct ElementMap {
  TensorId root = kNoTensor;
  std::int64_t offset = 0;
  std::vector<std::int64_t> index;
  bool dense() const { return index.empty(); }
  std::int64_t at(std::int64_t e) const { return dense() ? offset + e : index[static_cast<std::size_t>(e)]; }
};
// Returns the view of every tensor of a piece on a rank. Throws std::logic_error for a view that does not fit its base.
std::vector<ElementMap> views_of(const Piece& piece, const Position& position);

// One parameter of the whole model.
enum class InitialValue : std::uint8_t { scale, shift, matrix, table };
struct WholeParameter {
  std::string name;
  Tensor tensor;
  InitialValue initial = InitialValue::matrix;
  double deviation = 0;
  // The parameter whose values it has: itself, or the table that it is tied to.
  std::int64_t values_of = 0;
  bool frozen = false;  // has no gradient
};
std::vector<WholeParameter> whole_parameters(const Program& one_rank, bool tied);

// Whether the parts of a collective's group are contiguous in the whole tensor. Only the first digit of a division can
// deal otherwise, so they are unless the group has that digit.
bool is_contiguous_part(const Tensor& whole, const Tensor& part, int dim);

// Whether a rank holds all of a parameter, in the same order.
bool is_whole(const Tensor& local, const Tensor& whole, const Position& position);
// copied_dimension: the dimension of a parameter's experts if experts have copies, else -1. slot_of: the slot, counted
// over the layer, of the expert that a local element belongs to.
int copied_dimension(const Tensor& t, const Position& position);
std::int64_t slot_of(const Tensor& t, int dim, std::int64_t element, const Position& position);
// Returns, for each local element of a parameter, its index in the whole parameter. Throws InputError if the layouts do
// not match (a vocabulary padded to another size).
std::vector<std::int64_t> whole_elements(const Tensor& local, const Tensor& whole, const Position& position);

// Returns the bucket of a key that lies `distance` positions after its query (negative: before it). Causal: all keys
// after the query share the first bucket.
std::int64_t position_bucket(std::int64_t distance, bool causal, std::int64_t buckets);

// Returns a number in [-1, 1) that depends only on the arguments.
double counter_uniform(std::uint64_t seed, std::uint64_t stream, std::uint64_t index);

}  // namespace orrery::realrun
