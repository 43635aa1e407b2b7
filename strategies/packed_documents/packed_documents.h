// Sequences packed from documents: attention does not cross a document's borders. Turns the workload's documents into
// loads of the Program (sim/program/load.h).
#pragma once

#include <cstddef>

namespace orrery::packed_documents {

// Micro-batches with different work become classes of the Program, with a copy of each layer per class: at most this
// many. If there are more, neighbours in the order of their work are joined, with the mean of their costs.
inline constexpr std::size_t kMostMicroBatchClasses = 8;

}  // namespace orrery::packed_documents
