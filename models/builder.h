// Builds one piece: its tensors, and its ops in the order in which a framework issues them.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "models/layers.h"

namespace orrery {

// The sizes of one transformer layer: those of the model, or of one Swin stage. For Swin, `batch` counts windows of all
// images and `sequence` the positions of one window.
struct LayerSizes {
  std::int64_t batch, sequence;  // sequences of the micro-batch; positions of each
  std::int64_t key_sequence;     // positions that cross attention attends to; for Swin's head: windows per image
  std::int64_t hidden, groups, group_heads, head_dim, ffn;  // as the axes of these names (sim/program/tensor.h)
};

struct Builder {
  Builder(const Model& of, const KernelChoices& by, const LayerSizes& with, Piece& into)
      : model(of), kernels(by), sizes(with), piece(into) {}

  // These add a tensor to the piece. Names must have static storage. A view begins at `begin` of `base`
  // (Tensor::alias_begin).
  TensorId tensor(const char* name, Category category, Dtype dtype, std::initializer_list<Dim> dims);
  TensorId activation(const char* name, std::initializer_list<Dim> dims) {
    return tensor(name, Category::activation, kernels.activation, dims);
  }
  TensorId parameter(const char* name, std::initializer_list<Dim> dims) {
    return tensor(name, Category::parameter, kernels.parameter, dims);
  }
  TensorId input(const char* name, Input input, Dtype dtype, std::initializer_list<Dim> dims);
  TensorId view(const char* name, TensorId base, std::int64_t begin, std::initializer_list<Dim> dims);

  // Appends an op to the piece's forward. The reference is valid until the next op is appended.
  Op& emit(OpKind kind, const char* name, std::initializer_list<TensorId> reads,
           std::initializer_list<TensorId> writes);

  Dim batch() const { return {sizes.batch, Axis::batch}; }
  Dim sequence() const { return {sizes.sequence, Axis::sequence}; }
  Dim hidden() const { return {sizes.hidden, Axis::hidden}; }
  Dim groups() const { return {sizes.groups, Axis::groups}; }
  Dim heads() const { return {sizes.group_heads, Axis::group_heads}; }
  Dim head_dim() const { return {sizes.head_dim, Axis::head_dim}; }

  TensorId residual(const char* name) { return activation(name, {batch(), sequence(), hidden()}); }

  // Appends a norm over the last dimensions of x, those of `width`, and returns its output, which has x's shape. The
  // first form creates the weight, and the bias if the model has one. The second takes them; kNoTensor: no bias.
  TensorId norm(const char* name, TensorId x, std::initializer_list<Dim> width);
  TensorId norm(const char* name, TensorId x, std::initializer_list<Dim> width, TensorId weight, TensorId bias);

  // True without fused kernels: separate kernels then cast to fp32 and back around ops that compute in fp32.
  bool casts_around() const { return !kernels.fused_kernels && kernels.activation != Dtype::fp32; }
  TensorId cast(const char* name, TensorId x, Dtype dtype);

  // Appends y = x w (+ bias) and returns y: x is [.., in..], w [in.., out..], y [.., out..]. With fused kernels a
  // caller that gives bias_out receives the bias there, for the op that reads y, and it is not added here.
  TensorId linear(const char* name, TensorId x, std::initializer_list<Dim> in, std::initializer_list<Dim> out,
                  bool bias, TensorId* bias_out = nullptr);

  // The same for experts, each with its own w: x is [experts, slots, in..].
  TensorId expert_linear(const char* name, TensorId x, std::initializer_list<Dim> in, std::initializer_list<Dim> out,
                         bool bias);

  // Appends residual_stream + dropout(x + bias) and returns the sum.
  TensorId add_residual(const char* name, TensorId x, TensorId residual_stream, TensorId bias);

  // Returns x plus the first rows of a table of positions.
  TensorId add_positions(TensorId x, TensorId table);

  // Adds the derivative of the forward to the piece. To be called last.
  void finish() { differentiate(piece, kernels.gradient); }

  const Model& model;
  const KernelChoices& kernels;
  const LayerSizes sizes;
  Piece& piece;
  std::int64_t window = 0;         // positions that self attention attends to; 0: all
  bool in_core_attention = false;  // value of Op::core_attention for emitted ops

 private:
  TensorId product(const char* name, TensorId x, int inner_dims, std::initializer_list<Dim> out, TensorId weight,
                   TensorId bias);
  TensorId norm_kernel(const char* name, TensorId x, std::initializer_list<Dim> width, TensorId weight, TensorId bias);

  std::uint8_t draws_ = 0;
};

// Position biases by relative distance: all layers of a stack share one table (Raffel et al. 2019, arXiv 1910.10683,
// section 2.1). The piece before the stack owns the parameter and hands it on, and each layer takes it. Does nothing
// for models without such a table.
void begin_position_table(Builder& b);

// The pieces of a model that are not layers: the embeddings of its inputs, and its head with the loss. Each fills the
// empty piece of its builder.

// Embedding of tokens, with positions and token types where the model has them: the input of the first layer.
void build_embedding(Builder& b);
// The piece between the two stacks of an encoder-decoder. The encoder's output is normed and becomes the memory of all
// decoder layers; the decoder starts from the embedding of its own tokens.
void build_decoder_embedding(Builder& b);
// Embedding of multi-token prediction (DeepSeek-V3, arXiv 2412.19437, eq. 21). The last layer's output is normed and
// goes on to the head. The piece also combines it with the embedding of the next tokens, as input of one more layer.
void build_prediction_embedding(Builder& b);
// Projected patches (ViT, Swin), in ViT after the class token (Dosovitskiy et al. 2020, arXiv 2010.11929, eq. 1).
void build_patch_embedding(Builder& b);
void build_head(Builder& b);

// One transformer layer, for all architectures.

// encoder: attention that is not causal. decoder: causal attention. decoder_with_memory: a decoder layer that also
// attends to the encoder's output (cross attention).
enum class LayerRole : std::uint8_t { encoder, decoder, decoder_with_memory };

// Builds a layer of the model. `window`: the number of positions that a query attends to; 0: no limit.
// `experts`: whether the layer has a mixture of experts instead of an MLP.
void build_layer(Builder& b, LayerRole role, std::int64_t window, bool experts = false);

}  // namespace orrery
