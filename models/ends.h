// The pieces of a model that are not layers: the embeddings of its inputs, and its head with the loss.
#pragma once

#include "models/builder.h"

namespace orrery {

// Embedding of tokens, with positions and token types where the model has them: the input of the first layer.
void build_embedding(Piece& piece, const Model& model, const KernelChoices& kernels, const LayerSizes& sizes);
// The piece between the two stacks of an encoder-decoder. The encoder's output is normed and becomes the memory of all
// decoder layers; the decoder starts from the embedding of its own tokens.
void build_decoder_embedding(Piece& piece, const Model& model, const KernelChoices& kernels, const LayerSizes& sizes);
// Embedding of multi-token prediction (DeepSeek-V3, arXiv 2412.19437, eq. 21). The last layer's output is normed and
// goes on to the head. The piece also combines it with the embedding of the next tokens, as input of one more layer.
void build_prediction_embedding(Piece& piece, const Model& model, const KernelChoices& kernels,
                                const LayerSizes& sizes);
// Projected patches (ViT, Swin), in ViT after the class token (Dosovitskiy et al. 2020, arXiv 2010.11929, eq. 1).
void build_patch_embedding(Piece& piece, const Model& model, const KernelChoices& kernels, const LayerSizes& sizes);
void build_head(Piece& piece, const Model& model, const KernelChoices& kernels, const LayerSizes& sizes);

}  // namespace orrery
