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
void build_patch_embedding(Piece& piece, const Model& model, const KernelChoices& kernels, const LayerSizes& sizes);
void build_head(Piece& piece, const Model& model, const KernelChoices& kernels, const LayerSizes& sizes);

}  // namespace orrery
