// Files that a command reads, and files compiled in. Each that is read is remembered, so that no output overwrites an
// input (cli/output.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "sim/base/error.h"

namespace orrery {

// Returns the whole file; "-" is standard input. Throws InputError if it cannot be read or is larger than 256 MiB.
// `expected` describes the wanted file in the error: "a readable JSON file".
// `where`: the place in a document that names the file, at which the error then points.
std::string read_file(const std::string& path, std::string_view expected,
                      const std::optional<InputError::Where>& where = {});

// Reads a file line by line, so that it may be larger than memory. Lines come without their ends ("\n" or "\r\n"). A
// line from a pipe is returned as soon as it has arrived.
class LineReader {
 public:
  // The longest line that is read. A scenario that lists all its nodes takes megabytes; a device or a binary file may
  // have no end of a line at all, and would fill the memory.
  static constexpr std::size_t kMostLineBytes = std::size_t{16} << 20;

  // "-" is standard input. Throws InputError if the file cannot be opened. `expected`: as for read_file().
  LineReader(const std::string& path, std::string_view expected);
  // Reads a file that is open already. The caller closes `descriptor`. Errors call the file `name`.
  LineReader(int descriptor, std::string name, std::string_view expected);
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  // Returns false at the end of the file. Throws InputError if reading fails, and for a line of more than
  // kMostLineBytes.
  bool next(std::string& line);
  // The number of the line that was read last, counted from 1; 0 before the first.
  std::int64_t number() const { return number_; }
  const std::string& name() const { return name_; }
  // Returns to the first line. Returns false if the file cannot be read twice: a pipe.
  bool rewind();

 private:
  bool fill();

  std::string name_, expected_;
  int descriptor_ = -1;
  bool is_own_ = false;
  std::int64_t number_ = 0;
  std::string buffer_;
  std::size_t at_ = 0;  // where the next line begins in buffer_
};

// Remembers a file that is read piece by piece, or by a library. A file that does not exist is ignored.
void remember_input(const std::string& path);
// Returns whether this process has read the file to which `path` leads, by this name or another one.
bool is_input(const std::string& path);

// Presets are JSON files in the repository, compiled into the binary: `orrery` needs no data files to run.
struct EmbeddedFile {
  std::string_view path;  // from the repository's root: "models/presets/llama.json"
  std::string_view text;
};
// All embedded files whose path starts with `folder` ("models/presets/"), sorted by path.
std::span<const EmbeddedFile> embedded_files(std::string_view folder);

}  // namespace orrery
