// Reads documents from lines of JSON, and their embeddings from NumPy arrays (docs/pack.md has the formats).
#pragma once

#include <string>
#include <string_view>

#include "traces/packing/documents.h"

namespace orrery {

// Parses {"id": "a", "tokens": 812, "embedding": [0.1, -0.3]}; all lines or none have `id`, and likewise `embedding`.
// Throws InputError with file and line.
Documents parse_documents(std::string_view text, const std::string& file);
// "-" is standard input.
Documents read_documents(const std::string& path);

// Adds embeddings to documents without any, from a .npy file: little-endian 32-bit floats in C order, one row each.
// Throws InputError with the file for another type or shape, a size unlike the header's, or a row without direction.
void read_embeddings(const std::string& path, Documents& documents);

}  // namespace orrery
