// Context parallelism: every rank holds 1/cp of each sequence through the whole layer. The plan's context_parallel_type
// chooses how attention reaches the other parts. This folder implements the ring (Liu et al. 2023, arXiv 2310.01889):
// keys and values travel round the ranks, each step computes attention with one part and merges the results by their
// log-sum-exp. Under a causal mask the zigzag deal gives every rank equal work.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "sim/program/program.h"
#include "strategies/strategy.h"

namespace orrery::context_parallel {

// The ring's names; p2p is Megatron-Core's.
inline constexpr std::array<std::string_view, 2> kTypes{"ring", "p2p"};

// ---- for all strategies that lay out attention over divided sequences ----

// Returns the type of a name in type_names(). Throws std::logic_error for any other name.
Type type_named(std::string_view name);
// Whether sequences are divided and attention has one of these types: in layers of `plan`; in the scenario's plan or
// one of its ranges; in all layers.
bool is_of_type(const Scenario& scenario, const Plan& plan, std::span<const std::string_view> names);
bool has_layers_of_type(const Scenario& scenario, std::span<const std::string_view> names);
bool is_all_of_type(const Scenario& scenario, std::span<const std::string_view> names);

// Returns how positions are dealt to `ranks` ranks that form a ring, or gather all keys, in layers of this plan.
// `tables`: those of the Program.
Deal deal_over(const Scenario& scenario, const Plan& plan, std::int64_t ranks, const DealTables& tables);
// Throws InputError unless the sequence can be dealt to `ranks` ranks in all layers of these types.
void check_deal(const Scenario& scenario, std::span<const std::string_view> names, std::int64_t ranks);

// Divides the sequences of a piece over the digits in `over`, the major one first. The first digit deals positions as
// `deal` says; the others divide them in order.
void divide_sequence(Piece& piece, const Mesh& mesh, Division over, Deal deal);

// Views of a fused QKV tensor: its queries, and its keys with values. If they are separate tensors already, these are
// returned as they are.
struct QueriesAndKeys {
  TensorId queries = kNoTensor, keys = kNoTensor;
};
QueriesAndKeys queries_and_keys(Piece& piece, TensorId first, TensorId second);

// Returns the attention op on `parts` of the parts of a sequence, with these queries and keys.
Op attention_of_parts(const Op& whole, TensorId queries, TensorId keys, std::int64_t parts);

// Replaces every attention op of a piece: by.forward(op) and by.backward(op) append the replacement to `out`.
template <class Replacement>
void replace_attention(Piece& piece, std::vector<Op>& out, Replacement&& by) {
  for (Block* block : {&piece.forward, &piece.backward}) {
    out.clear();
    for (const Op& op : block->ops) {
      if (op.kind == OpKind::attention) {
        by.forward(op);
      } else if (op.kind == OpKind::attention_backward) {
        by.backward(op);
      } else {
        out.push_back(op);
      }
    }
    block->ops = out;
  }
}

// Adds the digits of a ring of `ranks` ranks to the mesh, all with the axis cp and this name. If a strategy makes inner
// rings (Strategy::inner_ring), the inner digit counts the ranks of an inner ring and the outer one counts inner rings.
// Throws InputError if the ring cannot be divided into such inner rings.
void add_ring(const Scenario& scenario, Mesh& mesh, std::int64_t ranks, const char* name);
// The digits of a ring: those of its inner rings, and the rest. Without inner rings all digits are `inner`.
struct RingGroups {
  MeshGroup inner, outer;
  Stream stream = Stream::context_communication;  // of the inner ring
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::automatic;
};
RingGroups ring_groups(const Scenario& scenario, const Mesh& mesh, MeshGroup ring);
// Replaces every attention op of a piece, forward and backward, by a ring. REQUIRES: sequences are divided over both
// groups of `ring`. `fp32_gradients`: Options.
void ring_attention(Piece& piece, const Mesh& mesh, const RingGroups& ring, bool fp32_gradients);
// Appends to `out` the ring that replaces the attention op `whole`, forward or backward.
void append_ring(Piece& piece, const Mesh& mesh, const RingGroups& ring, bool fp32_gradients, const Op& whole,
                 std::vector<Op>& out);

}  // namespace orrery::context_parallel
