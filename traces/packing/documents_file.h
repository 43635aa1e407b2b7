// Documents as lines of JSON, and their embeddings as NumPy keeps arrays (docs/pack.md has the formats).
#pragma once

#include <string>
#include <string_view>

#include "traces/packing/documents.h"

namespace orrery {

// {"id": "a", "tokens": 812, "embedding": [0.1, -0.3]}: `id` and `embedding` of all or of none. Throws InputError with
// file and line.
Documents parse_documents(std::string_view text, const std::string& file);
// "-" is standard input.
Documents read_documents(const std::string& path);

// Embeddings of documents that have none, from a .npy file: little-endian floats of 32 bits in C order, a row each.
// Throws InputError with the file: another type or shape, fewer or more bytes than its header says, a row without a
// direction.
void read_embeddings(const std::string& path, Documents& documents);

}  // namespace orrery
