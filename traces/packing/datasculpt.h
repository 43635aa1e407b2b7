// DataSculpt packs documents on the same topic into one sequence (Lu et al. 2024, arXiv 2409.00997). It clusters
// documents coarsely. It then distributes the documents of a cluster over its sequences, longest first, each to the
// sequence with the largest product of cosine to the sequence's mean and room left. Reconstructed from the published
// code; docs/pack.md lists the differences.
#pragma once

#include <cstdint>
#include <vector>

#include "traces/packing/packing.h"

namespace orrery {

// Returns the cluster of each document, numbered from 0 without gaps. With kMostClusters clusters, further documents
// join the nearest one whatever the distance. Centres are computed on a sample of kMostSampled documents (all, if
// fewer); then each document joins its nearest centre, or founds a cluster. REQUIRES: an embedding of each document.
inline constexpr std::size_t kMostClusters = 1024, kMostSampled = 16384;
std::vector<std::uint32_t> cluster(const Documents& documents, const DataSculptOptions& options,
                                   const std::function<void(std::string_view, double)>& progress = {});

// REQUIRES: as pack().
void pack_datasculpt(const Documents& documents, const PackingOptions& options, Packing& packing);

}  // namespace orrery
