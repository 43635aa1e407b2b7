// The sequences of a training step, packed from the documents of a workload.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sim/program/load.h"
#include "traces/packing/documents.h"
#include "traces/workload.h"

namespace orrery {

// The content of Workload::documents_file: documents, or sequences that are already packed.
struct RecordedDocuments {
  std::string file;
  Documents documents;                               // one per line; empty if the file has sequences
  std::vector<std::vector<std::int64_t>> sequences;  // lengths of each sequence's documents, in tokens
  std::int64_t longest = 0, longest_line = 0;        // tokens of the longest sequence, and its line

  bool packed() const { return !sequences.empty(); }
};
// Reads lines of documents (parse_documents), or as `orrery pack --out` writes. Throws InputError with file and line.
RecordedDocuments read_recorded_documents(const std::string& path);

// Returns the global batch of the workload's step, in sequences of `length` tokens; null if its sequences are not
// packed from documents. The result depends only on the workload and the length.
//
// Listed sequences ("2048,4096;8192": Workload::documents) and those of a file are used step by step, starting over at
// the end. Space that no document fills counts as a document of its own. Drawn documents differ from step to step: a
// step draws the documents of at least kPackedTogether sequences and packs them together, with policies concat and pad
// only those of its batch. Except with these two policies, packed sequences are then shuffled, and a step uses the
// first ones. Throws InputError (pointer "/workload/..").
std::shared_ptr<const PackedSequences> packed_sequences(const Workload& workload, std::int64_t length);

// Whether the text lists sequences: lengths of documents separated by commas, sequences by semicolons.
bool lists_sequences(const std::string& documents);

// Whether a policy packs documents in the order in which they come.
bool keeps_order(PackingPolicy policy);
void shuffle_sequences(std::uint64_t seed, std::int64_t step, std::vector<std::vector<std::int64_t>>& sequences);

inline constexpr std::int64_t kPackedTogether = 256;
// Most drawn documents, and most sequences, of one step.
inline constexpr std::int64_t kMostDrawnDocuments = std::int64_t{1} << 22;

}  // namespace orrery
