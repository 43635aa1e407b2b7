// The sequences of a training step, packed from the documents of a workload.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sim/program/document_load.h"
#include "traces/packing/documents.h"
#include "traces/workload.h"

namespace orrery {

// What Workload::documents_file holds: documents, or sequences that are packed already.
struct RecordedDocuments {
  std::string file;
  Documents documents;                               // a line each; none where there are sequences
  std::vector<std::vector<std::int64_t>> sequences;  // tokens of each of a sequence's documents
  std::int64_t longest = 0, longest_line = 0;        // tokens of the longest sequence, and its line

  bool packed() const { return !sequences.empty(); }
};
// Lines of documents (parse_documents), or as `orrery pack --out` writes them. Throws InputError with file and line.
RecordedDocuments read_recorded_documents(const std::string& path);

// The global batch of the workload's step, of sequences of `length` tokens; null: its sequences are no packed
// documents.
//
// Listed sequences ("2048,4096;8192": Workload::documents) and those of a file are taken step by step, one after the
// other, from the start again at the end. What no document fills is one by itself. Drawn documents are other ones in
// each step. All policies but concat and pad lay the documents of at least kPackedTogether sequences together, whose
// order is drawn; of these a step takes the first. The same for the same workload and length. Throws InputError
// (pointer "/workload/..").
std::shared_ptr<const PackedSequences> packed_sequences(const Workload& workload, std::int64_t length);

// Whether such a text lists sequences: lengths of documents behind each other, semicolons between sequences.
bool lists_sequences(const std::string& documents);

// Whether a policy lays documents into sequences in the order in which they come.
bool keeps_order(PackingPolicy policy);
void shuffle_sequences(std::uint64_t seed, std::int64_t step, std::vector<std::vector<std::int64_t>>& sequences);

inline constexpr std::int64_t kPackedTogether = 256;
// Of one step: documents that are drawn, and sequences.
inline constexpr std::int64_t kMostDrawnDocuments = std::int64_t{1} << 22;

}  // namespace orrery
