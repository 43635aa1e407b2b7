// DataSculpt: documents about the same thing in one sequence (Lu et al. 2024, arXiv 2409.00997): documents are
// clustered, coarsely, then those of a cluster are dealt to its sequences, the longest first, each to where cosine to
// the sequence's mean times room left is largest. Reconstructed from the published code; docs/pack.md says what
// differs.
#pragma once

#include <cstdint>
#include <vector>

#include "traces/packing/packing.h"

namespace orrery {

// Which cluster each document belongs to, numbered from 0 without gaps. At most kMostClusters: once there are so many,
// documents join the nearest one whatever the distance. Centres are found on a sample of kMostSampled documents (all,
// where there are no more); then each document joins its nearest centre, or founds a cluster.
// REQUIRES: an embedding of each document.
inline constexpr std::size_t kMostClusters = 1024, kMostSampled = 16384;
std::vector<std::uint32_t> cluster(const Documents& documents, const DataSculptOptions& options,
                                   const std::function<void(std::string_view, double)>& progress = {});

// REQUIRES: as pack().
void pack_datasculpt(const Documents& documents, const PackingOptions& options, Packing& packing);

}  // namespace orrery
