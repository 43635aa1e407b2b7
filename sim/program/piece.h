// A piece of the model on one rank: its tensors and the blocks of ops that run it forward, backward, and update it.
// Both blocks share one tensor table, so "saved for backward" is not declared: it is a tensor that the forward
// defines and the backward uses.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/program/op.h"
#include "sim/program/tensor.h"

namespace orrery {

inline constexpr std::uint16_t kNoPiece = 0xffff;

struct Block {
  std::vector<Op> ops;
};

struct ParameterGradient {
  TensorId parameter = kNoTensor, gradient = kNoTensor;  // none of a frozen parameter, which is not trained
  std::uint8_t set = 0;   // of Piece::sets
  // Equal numbers: one parameter of the model, which several pieces hold; 0: of this piece alone.
  std::uint8_t tied = 0;
};

// The digits over which each of what a parameter set consists of is divided; none: whole on every rank.
struct ShardGroups {
  MeshGroup weights, gradients, states;
  MeshGroup secondary;  // of a second copy of the weights; none: there is no such copy
};

// Parameters that share flat buffers, in which all of them lie in the order of Piece::parameters, and the groups over
// which these are divided. The parameters themselves are views of the buffers, or of what a collective gathers from
// them and scatters into them. A set is trained as a whole or frozen: then it has weights alone, no gradients and no
// states.
struct ParameterSet {
  TensorId parameters = kNoTensor, gradients = kNoTensor;  // what this rank has of them all step long
  // What its optimizer works on: the same, or parts of them. Where a part begins is said by what it is divided over and
  // what it is a view of is not (Tensor::over).
  TensorId own_parameters = kNoTensor, own_gradients = kNoTensor;
  TensorId secondary = kNoTensor;
  ShardGroups over;

  bool frozen() const { return gradients == kNoTensor; }
};

// A buffer that a collective of the update sums, and the gradients that lie in it side by side. No op fills it: packing
// costs nothing, as in a flat buffer that is cut at the right places.
struct PackedGradients {
  TensorId buffer = kNoTensor;
  bool shared_heads = false;  // of each gradient only the keys and values that several ranks hold
  std::vector<TensorId> gradients;
};

// A stream beside the residual one, for all pieces behind the one that begins it. They read it and hand it on
// unchanged; on the way back each adds its own part to the gradient that it is handed. The last one is handed zeros,
// which no op writes: whoever runs the Program has them there.
struct SideStream {
  TensorId input = kNoTensor, output = kNoTensor;  // output: where the stream begins
  TensorId input_gradient = kNoTensor, output_gradient = kNoTensor;
};
// Piece::sides: an encoder's output, for cross attention; a stack's table of relative position biases; what the head
// predicts the next token by, past what predicts another one.
inline constexpr std::size_t kEncoderOutput = 0, kPositionTable = 1, kLastState = 2, kSideStreams = 3;

struct Piece {
  const char* name = "";  // "layer", "embedding", "head"
  std::int64_t layers = 0;  // of the model that an instance computes; 0: embedding, head, what stands between stacks
  // Where layers have several plans: which one this piece is laid out by (a number of the strategies'), and the piece
  // that it is a variant of, which may be itself. Variants have the same parameters.
  std::uint16_t plan = 0, variant_of = kNoPiece;
  std::vector<Tensor> tensors;

  Block forward;          // from `input` to `output`
  Block backward;         // from `output_gradient` to `input_gradient`; includes recomputation and, unless split,
                          // the weight gradients
  Block weight_gradient;  // what zero-bubble schedules run apart; empty unless split
  Block update;           // once a step, in parts (sim/program/step_end.h): reductions, gradient norm, optimizer

  TensorId input = kNoTensor, output = kNoTensor;  // the residual stream; kNoTensor at the ends of the model
  TensorId input_gradient = kNoTensor, output_gradient = kNoTensor;
  std::array<SideStream, kSideStreams> sides;

  // Which gradient belongs to which parameter, in the order of the parameters; filled by differentiate().
  std::vector<ParameterGradient> parameters;

  // The flat buffers that data-parallel collectives and optimizers work on; empty: parameters lie nowhere.
  std::vector<ParameterSet> sets;

  std::vector<PackedGradients> packed;

  TensorId add(const Tensor& tensor) {
    tensors.push_back(tensor);
    return static_cast<TensorId>(tensors.size() - 1);
  }
  void clear();
};

// Whether buckets (Op::every) go on from instances of `a` to those of `b` behind them: equal layers, or the same layers
// under different plans.
inline bool share_buckets(const Piece& a, const Piece& b) {
  return &a == &b || (a.variant_of != kNoPiece && a.variant_of == b.variant_of);
}

// Appends to piece.backward the reverse-mode derivative of piece.forward, creating gradient tensors: one input- and
// one weight-gradient op per linear, fan-out summed by `add`. Requires: forward is in SSA form.
void differentiate(Piece& piece, Dtype gradient_dtype);

}  // namespace orrery
