// Presets are JSON files in the repository, compiled into the binary: `orrery` needs no data files to run.
#pragma once

#include <span>
#include <string_view>

namespace orrery {

struct EmbeddedFile {
  std::string_view path;  // from the repository's root: "models/presets/llama.json"
  std::string_view text;
};
// All embedded files whose path starts with `folder` ("models/presets/"), sorted by path.
std::span<const EmbeddedFile> embedded_files(std::string_view folder);

}  // namespace orrery
