// Files that a command reads. Each is remembered, so that no output takes the place of an input (cli/output.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "sim/base/error.h"

namespace orrery {

// All of a file, at most 256 MiB; "-" is standard input. `expected` completes the InputError when it cannot be read:
// "a readable JSON file".
std::string read_file(const std::string& path, std::string_view expected);
// Of a file that a document names at `where`.
std::string read_file(const std::string& path, std::string_view expected, const InputError::Where& where);

// The lines of a file that may be larger than memory, one after the other, without their ends ("\n" or "\r\n"). Waits
// for no more than the next line of a pipe.
class LineReader {
 public:
  // A scenario written out with all its nodes takes megabytes; a device or a binary file may have no line's end at all.
  static constexpr std::size_t kMostLineBytes = std::size_t{16} << 20;

  // "-" is standard input. Throws InputError where the file cannot be opened; `expected` as in read_file().
  LineReader(const std::string& path, std::string_view expected);
  // Of an open file, which stays the caller's. `name` is its own in messages.
  LineReader(int descriptor, std::string name, std::string_view expected);
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  // False: the file has ended. Throws InputError where it cannot be read on, and for a line of more than
  // kMostLineBytes.
  bool next(std::string& line);
  // Of the line that was read last: from 1.
  std::int64_t number() const { return number_; }
  const std::string& name() const { return name_; }
  // To the file's begin, where it has one.
  bool rewind();

 private:
  bool fill();

  std::string name_, expected_;
  int descriptor_ = -1;
  bool is_own_ = false;
  std::int64_t number_ = 0;
  std::string buffer_;
  std::size_t at_ = 0;  // in buffer_
};

// For files that are read bit by bit, or by a library. One that is missing is none.
void remember_input(const std::string& path);
// Whether this process has read the file that `path` leads to, by whatever name.
bool is_input(const std::string& path);

}  // namespace orrery
