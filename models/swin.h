// Swin (Liu et al. 2021, arXiv 2103.14030): each stage of layers has its own width; attention stays within windows.
#pragma once

#include "models/builder.h"
#include "models/piece_line.h"

namespace orrery {

void build_swin(const Model& model, std::int64_t micro_batch, const KernelChoices& kernels, PieceLine& line);

}  // namespace orrery
