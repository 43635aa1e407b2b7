// A piece of the model on one rank: its tensors, and the blocks of ops that run it forward, backward, and update it.
// All blocks share one tensor table. "Saved for backward" is therefore not declared: such a tensor is one that the
// forward defines and the backward uses.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/program/op.h"
#include "sim/program/tensor.h"

namespace orrery {

inline constexpr std::uint16_t kNoPiece = 0xffff;

struct Block {
  std::vector<Op> ops;
};

struct ParameterGradient {
  TensorId parameter = kNoTensor, gradient = kNoTensor;  // gradient is kNoTensor if the parameter is frozen
  std::uint8_t set = 0;                                  // index into Piece::sets
  // Parameters of several pieces with the same number are one parameter of the model; 0: of this piece alone.
  std::uint8_t tied = 0;
};

// The digits over which each tensor of a parameter set is divided; an empty group: it is whole on every rank.
struct ShardGroups {
  MeshGroup weights, gradients, states;
  MeshGroup secondary;  // of a second copy of the weights; empty: there is none
};

// Parameters that share flat buffers, and the groups over which these buffers are divided. In a buffer, parameters lie
// in the order of Piece::parameters. The parameters themselves are views of the buffers, or of tensors that collectives
// gather from them and scatter into them. A set is trained or frozen as a whole. A frozen set has weights only, no
// gradients and no states.
struct ParameterSet {
  TensorId parameters = kNoTensor, gradients = kNoTensor;  // the part that this rank holds for the whole step
  // The part that this rank's optimizer updates: the same buffers, or parts of them. A part begins where the digits say
  // that divide it but not the buffer that it is a view of (Tensor::over).
  TensorId own_parameters = kNoTensor, own_gradients = kNoTensor;
  TensorId secondary = kNoTensor;
  ShardGroups over;

  bool frozen() const { return gradients == kNoTensor; }
};

// A buffer that a collective of the update sums, and the gradients that lie in it one after the other. No op fills it:
// packing costs nothing, as in a flat buffer that is cut at the right places.
struct PackedGradients {
  TensorId buffer = kNoTensor;
  bool shared_heads = false;  // holds only the keys' and values' gradients that several ranks hold
  std::vector<TensorId> gradients;
};

// A stream beside the residual stream, for all pieces behind the one that begins it. These pieces read it and hand it
// on unchanged. In the backward each piece adds its own part to the gradient that it receives. The last piece receives
// zeros that no op writes: engine or executor provides them.
struct SideStream {
  TensorId input = kNoTensor, output = kNoTensor;  // output: where the stream begins
  TensorId input_gradient = kNoTensor, output_gradient = kNoTensor;
};
// Indices into Piece::sides: an encoder's output, for cross attention; a stack's table of relative position biases; and
// the state from which the head predicts the next token, past the layers that predict a later one.
inline constexpr std::size_t kEncoderOutput = 0, kPositionTable = 1, kLastState = 2, kSideStreams = 3;

struct Piece {
  const char* name = "";    // "layer", "embedding", "head"
  std::int64_t layers = 0;  // layers of the model per instance; 0: embedding, head, pieces between stacks
  // Where layers have several plans: the number of the plan that this piece follows (the strategies number them), and
  // the piece that it is a variant of, possibly itself. Variants have the same parameters.
  std::uint16_t plan = 0, variant_of = kNoPiece;
  std::vector<Tensor> tensors;

  Block forward;  // from `input` to `output`
  // From `output_gradient` to `input_gradient`; includes recomputation and, unless split, the weight gradients.
  Block backward;
  Block weight_gradient;     // run apart from the backward by zero-bubble schedules; empty unless split
  Block update;              // once a step, in parts (sim/program/step_end.h): reductions, gradient norm, optimizer
  std::vector<Block> tasks;  // of tasks beside the step (Task::block)

  TensorId input = kNoTensor, output = kNoTensor;  // the residual stream; kNoTensor at the ends of the model
  TensorId input_gradient = kNoTensor, output_gradient = kNoTensor;
  std::array<SideStream, kSideStreams> sides;

  // The gradient of each parameter, in the order of the parameters; filled by differentiate().
  std::vector<ParameterGradient> parameters;

  // The flat buffers that data-parallel collectives and optimizers work on; empty: there are none.
  std::vector<ParameterSet> sets;

  std::vector<PackedGradients> packed;

  TensorId add(const Tensor& tensor) {
    tensors.push_back(tensor);
    return static_cast<TensorId>(tensors.size() - 1);
  }
  void clear();
};

// Whether buckets (Op::every) continue from instances of `a` to the instances of `b` that follow: equal layers, or the
// same layers under different plans.
inline bool share_buckets(const Piece& a, const Piece& b) {
  return &a == &b || (a.variant_of != kNoPiece && a.variant_of == b.variant_of);
}

// Appends to piece.backward the reverse-mode derivative of piece.forward, and creates the gradient tensors: one
// input-gradient and one weight-gradient op per linear; `add` sums gradients of a tensor with several readers.
// REQUIRES: forward is in SSA form.
void differentiate(Piece& piece, Dtype gradient_dtype);

}  // namespace orrery
