// Context parallelism: every rank holds 1/cp of each sequence, through the whole layer. What attention does then is for
// the plan's context_parallel_type to say. Here it is a ring (Liu et al. 2023, arXiv 2310.01889): keys and values
// travel round the ranks, each step computes attention with one part and merges the results by their log-sum-exp. Under
// a causal mask the zigzag deal gives every rank equal work.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "sim/program/program.h"
#include "strategies/strategy.h"

namespace orrery::context_parallel {

void check(const Scenario& scenario);
void add_digits(const Scenario& scenario, Mesh& mesh);
void rewrite_piece(const Scenario& scenario, const Plan& plan, const Program& program, Piece& piece);
void disable(Plan& plan);
std::int64_t ranks(const Plan& plan);
std::span<const PlanWord> words();
void check_runnable(const Scenario& scenario);

// The ring's names; p2p is Megatron-Core's.
inline constexpr std::array<std::string_view, 2> kTypes{"ring", "p2p"};

// ---- for all strategies that lay out attention over divided sequences ----

// One of type_names(). Throws std::logic_error for no such name.
Type type_named(std::string_view name);
// Whether sequences are divided and layers of this plan have attention laid out in one of these ways; whether the plan
// or one of its ranges does; whether all do.
bool is_of_type(const Scenario& scenario, const Plan& plan, std::span<const std::string_view> names);
bool has_layers_of_type(const Scenario& scenario, std::span<const std::string_view> names);
bool is_all_of_type(const Scenario& scenario, std::span<const std::string_view> names);

// How positions are dealt to `ranks` of a ring, or to those that gather all keys, in layers of this plan. `tables`: of
// the Program.
Deal deal_over(const Scenario& scenario, const Plan& plan, std::int64_t ranks, const DealTables& tables);
// Throws InputError unless the sequence can be dealt so in all layers of these types.
void check_deal(const Scenario& scenario, std::span<const std::string_view> names, std::int64_t ranks);

// Divides the sequences of a piece over digits, the major one first, of which the first deals them.
void divide_sequence(Piece& piece, const Mesh& mesh, Division over, Deal deal);

// A fused QKV tensor as views of its queries and of its keys and values, in two tensors; what is apart stays so.
struct QueriesAndKeys {
  TensorId queries = kNoTensor, keys = kNoTensor;
};
QueriesAndKeys queries_and_keys(Piece& piece, TensorId first, TensorId second);

// The attention over `parts` parts of a sequence, of these queries and keys.
Op attention_of_parts(const Op& whole, TensorId queries, TensorId keys, std::int64_t parts);

// Replaces every attention of a piece by what forward(op) and backward(op) append to `out`.
template <class Forward, class Backward>
void replace_attention(Piece& piece, std::vector<Op>& out, Forward forward, Backward backward) {
  for (Block* block : {&piece.forward, &piece.backward}) {
    out.clear();
    for (const Op& op : block->ops) {
      if (op.kind == OpKind::attention) {
        forward(op);
      } else if (op.kind == OpKind::attention_backward) {
        backward(op);
      } else {
        out.push_back(op);
      }
    }
    block->ops = out;
  }
}

// A ring, or a ring of rings (strategies/loongtrain): of the digits that a ring is of those of its `inner_ranks`
// neighbours, and the rest. 1: no rings within it.
struct RingGroups {
  MeshGroup inner, outer;
  Stream stream = Stream::context_communication;  // of the inner one
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::automatic;
};
RingGroups ring_groups(const Mesh& mesh, MeshGroup ring, std::int64_t inner_ranks);
// Makes a ring of every attention over sequences that are divided over both groups, forward and backward.
// `fp32_gradients`: Options.
void ring_attention(Piece& piece, const Mesh& mesh, const RingGroups& ring, bool fp32_gradients);
// The same of one attention, forward or backward, whose ops it appends.
void append_ring(Piece& piece, const Mesh& mesh, const RingGroups& ring, bool fp32_gradients, const Op& whole,
                 std::vector<Op>& out);
std::span<const SearchAxis> search_axes();

}  // namespace orrery::context_parallel
