// Sequences packed from documents, which attention does not leave: what the workload says of them, as loads of the
// Program (sim/program/document_load.h).
#pragma once

#include <cstddef>

namespace orrery::packed_documents {

// Micro-batches of unlike work are classes of the Program, of which each layer has a copy: at most so many. Of more,
// those that are next to each other in the order of their work are one, which has the mean of their costs.
inline constexpr std::size_t kMostMicroBatchClasses = 8;

}  // namespace orrery::packed_documents
