// How check() (sim/program/check.h) follows one piece through a step. Internal to check().
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sim/program/check.h"

namespace orrery::proof {

// The digits of the group by name: "dp_shard x cp"; "nothing" if it is empty.
std::string words(const Mesh& mesh, MeshGroup group);
// The digits that divide dimension `dim`, major to minor: "cp x tp", "cp zigzag"; "nothing" if none.
std::string words(const Mesh& mesh, const Tensor& t, int dim);
// The same for each dimension: "[- | cp x tp | -]".
std::string words(const Mesh& mesh, const Tensor& t);

// The digits that divide the tensor so that no two ranks hold the same element (all but those of query heads).
MeshGroup divided_without_rest(const Tensor& t);

// The stages that hold one tied parameter, and the operands that they sum over these stages.
class Holders {
 public:
  explicit Holders(const Program& program);
  // The stages that hold the parameter; null if it is not tied.
  const std::vector<std::uint16_t>* of(const Piece& piece, std::size_t parameter) const;
  // Whether several stages hold the parameter, and this piece keeps it (not Tensor::shared).
  bool several(const Piece& piece, std::size_t parameter) const;
  // What another piece sums with it; null: this is the first.
  const Tensor* meet(TableIndex<StageGroup> stages, const Tensor& operand) {
    return std::exchange(operands_[stages.value()], &operand);
  }

 private:
  std::map<std::uint8_t, std::vector<std::uint16_t>> stages_;  // by ParameterGradient::tied, ascending
  std::vector<const Tensor*> operands_;                        // by Op::stages
};

// Follows one piece through a step: forward, backward, weight gradients, update, and the next step's forward.
class PieceCheck {
 public:
  PieceCheck(const Program& program, const Piece& piece, MeshGroup norm_group, Holders& holders,
             std::vector<Violation>& found);
  void run();

  // By parameter: the sum that its gradient owes after the ops that compute it.
  const std::vector<MeshGroup>& contributed() const { return contributed_; }

 private:
  struct State {
    bool written = false;         // whether all of it has been written
    std::uint32_t block = 0;      // the block that last wrote it, or a view of it
    std::uint32_t own_block = 0;  // the block that last wrote it itself
    std::int64_t elements = 0;    // elements that this block has written through views
    // In a ring. For keys, values and their gradients: how many places they have moved from their own rank. For
    // contexts and gradients: by distance, whether the keys from that far away have been taken into account; empty: no
    // keys travel.
    std::int64_t travelled = 0;
    std::vector<bool> seen;
    const Op* mask = nullptr;  // an attention op that has seen these keys
  };
  // How the operands of an op are divided along one axis of the model.
  struct Divided {
    Axis axis;
    Division over;
    Deal deal;
    bool read, read_in_parts;  // `read_in_parts`: without the elements behind query heads, which all ranks have
    TensorId first;            // the first operand that is divided this way
    int dim;                   // the dimension of `first`
  };

  // ---- words ----
  std::string quoted(TensorId id) const { return std::string("\"") + piece_.tensors[id].name + "\""; }
  std::string layout(TensorId id) const { return quoted(id) + " " + words(mesh_, piece_.tensors[id]); }
  std::string layout_with(TensorId id, int dim, Division over) const;  // if `dim` were divided over `over`
  template <class... Values>
  void report(Rule rule, fmt::format_string<Values...> text, Values&&... values) {
    add(rule, fmt::format(text, std::forward<Values>(values)...));
  }
  void add(Rule rule, const std::string& text);

  // ---- state ----
  const Tensor& tensor(TensorId id) const { return piece_.tensors[id]; }
  void given(TensorId id);
  bool is_gradient_of_parameter(TensorId id, std::size_t& parameter) const;
  bool is_flat(TensorId id) const { return id != kNoTensor && flats_.contains(id); }
  TensorId written_as(TensorId id) const;
  TensorId storage_or_self(TensorId id) const;
  MeshGroup owed(TensorId id) const;
  MeshGroup owed_beside(TensorId id) const;
  void write(TensorId id, MeshGroup owes);
  void expect_settled(TensorId id, const char* what);
  void expect_there(TensorId id);

  void run(const Block& block, const char* name);
  void expect_pieces();
  void step(const Op& op);
  void follow_common(const Op& op);

  // ---- kernels (piece_check_kernels.cpp) ----
  void compute(const Op& op);
  bool expect_whole(const Op& op);
  bool expect_divided_alike(const Op& op, std::vector<Divided>& axes);
  bool meet(TensorId id, bool takes_part, bool read, std::vector<Divided>& axes);
  MeshGroup owed_in_update(TensorId id) const;
  MeshGroup owed_by_reads(const Op& op);
  MeshGroup owed_by_result(const Op& op, std::size_t result, const std::vector<Divided>& axes, MeshGroup passed);

  void quantiser(const Op& op);  // quantise, dequantise, requantise
  void sparse(const Op& op);     // sparsify, densify
  MeshGroup contributors_of(TensorId id) const;
  bool takes_mean(const Op& op) const;
  void expect_own_rows(const Op& op);
  void expect_keys(const Op& op);
  void follow_ring(const Op& op);
  void attend_in_ring(const Op& op);
  const std::vector<bool>& seen_of(TensorId id) const;
  std::vector<bool> united(TensorId a, TensorId b);
  void expect_complete(TensorId id);
  bool visible(std::int64_t away, const Op* mask) const;
  MeshGroup meeting(const Tensor& t, int dim) const;

  // ---- collectives (piece_check_collectives.cpp) ----
  void communicate(const Op& op);
  void gather(const Op& op, TensorId from, TensorId to);
  void expect_part_of(const Op& op, TensorId from, TensorId to);
  void reduce(const Op& op, TensorId from, TensorId to);
  void exchange(const Op& op, TensorId from, TensorId to);
  void exchange_contributions(const Op& op, TensorId from, TensorId to);  // all_to_all
  void shift(const Op& op, TensorId from, TensorId to);
  void sum_over_stages(const Op& op, TensorId from, TensorId to);
  void sum_packed(const Op& op, const PackedGradients& packing);
  void take_sum(const Op& op, TensorId from, TensorId to, Rule rule);
  void expect_owes(TensorId id, MeshGroup group, Rule rule, const char* how);  // how: in the words of the report
  void expect_mean_of_workers(const Op& op, TensorId from);
  void pass_padding(TensorId from, TensorId to);
  bool differs_by(const Tensor& divided, const Tensor& whole, MeshGroup group, int& dim) const;
  std::string gathered(TensorId part, MeshGroup group) const;
  std::string scattered(TensorId whole, const Tensor& part, MeshGroup group) const;
  void expect_parts(const Tensor& part, const Tensor& whole, int dim, MeshGroup group);
  void expect_last(const Op& op, TensorId id);
  std::vector<std::size_t> gradients_in(TensorId id) const;
  void sum_over_copies(const Op& op, TensorId from, TensorId to);
  void expect_summed_over_holders(std::size_t parameter);

  // ---- the update ----
  void cut(TensorId id);
  void elementwise_on_flat(const Op& op);
  bool clips_by(const Op& op, TensorId id);
  void expect_owes_nothing(TensorId id);
  void norm(const Op& op);
  void optimize(const Op& op);
  void expect_same_part(TensorId from, TensorId to);
  void updated(TensorId id);
  void expect_divided(const ParameterSet& set);

  const Mesh& mesh_;
  const Program& program_;
  const Piece& piece_;
  const MeshGroup norm_group_;
  const MeshGroup workers_;  // the digits over which ranks train copies that differ
  Holders& holders_;
  std::vector<Violation>& found_;
  std::vector<MeshGroup> owed_;
  std::vector<State> state_;
  std::map<TensorId, std::size_t> parameter_of_;                // by gradient
  std::map<TensorId, std::map<std::size_t, MeshGroup>> flats_;  // owed by each parameter in a buffer of gradients
  std::set<TensorId> cuts_;                                     // of flats_: the parts that no collective has produced
  // By storage that an op has filled with zeros: the ranks that have written to it by turns (Op::turns).
  std::map<TensorId, MeshGroup> by_turns_;
  std::map<TensorId, const PackedGradients*> packings_;
  std::set<TensorId> norms_;
  std::map<TensorId, MeshGroup> stale_;
  std::set<TensorId> common_;  // tensors that all workers have alike at present, beside those that are declared so
  std::set<TensorId> codes_;   // codes and scales, as quantisers write them or collectives pass them on
  // By tensor of codes, some of which stand for no number: the digits over which the numbers were divided. What ranks
  // of these digits have cannot be put side by side.
  std::map<TensorId, MeshGroup> padded_;
  // By tensor with Axis::contributions: the group whose ranks contribute.
  std::map<TensorId, MeshGroup> contributors_;
  std::vector<MeshGroup> contributed_;  // by parameter
  std::vector<bool> owes_stages_;       // by parameter: the sum over the stages that hold it
  std::vector<bool> owes_copies_;       // by parameter: the sum over copies of experts
  bool laid_out_ = false;               // whether parameters lie in buffers; false without an optimizer
  MeshGroup ring_group_;                // the digits around which ring shifts go
  std::int64_t inner_ranks_ = 1;        // in a ring of rings: ranks of an inner ring
  // The number of ranks over the ring's digits below those of `group`.
  std::int64_t ranks_within(MeshGroup group) const;
  const Op* op_ = nullptr;
  const Block* block_ = nullptr;
  const char* block_name_ = "";
  std::uint32_t serial_ = 0;
  bool second_step_ = false;
};

}  // namespace orrery::proof
