// The pieces of a model that are no layers: what makes vectors of its input, and its head with the loss.
#pragma once

#include "models/builder.h"

namespace orrery {

void build_embedding(Piece& piece, const Model& model, const KernelChoices& kernels, const LayerSizes& sizes);
// Between the stacks: the encoder's output, normed, becomes the memory of all decoder layers; the decoder begins with
// its own tokens.
void build_decoder_embedding(Piece& piece, const Model& model, const KernelChoices& kernels, const LayerSizes& sizes);
// Patches of an image, projected (ViT, Swin); ViT: behind the class token (Dosovitskiy et al. 2020, arXiv 2010.11929,
// eq. 1).
// Of multi-token prediction (DeepSeek-V3, arXiv 2412.19437, eq. 21): the last layer's output, normed, goes on to the
// head beside what is made of it and of the next tokens, which a layer of its own follows.
void build_prediction_embedding(Piece& piece, const Model& model, const KernelChoices& kernels,
                                const LayerSizes& sizes);
void build_patch_embedding(Piece& piece, const Model& model, const KernelChoices& kernels, const LayerSizes& sizes);
void build_head(Piece& piece, const Model& model, const KernelChoices& kernels, const LayerSizes& sizes);

}  // namespace orrery
