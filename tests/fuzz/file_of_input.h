// The input as a file, for readers that take a path.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace orrery::fuzz {

class FileOfInput {
 public:
  explicit FileOfInput(std::string_view input)
      : path_(std::filesystem::temp_directory_path() / ("orrery-fuzz-" + std::to_string(::getpid()))) {
    std::ofstream(path_, std::ios::binary) << input;
  }
  ~FileOfInput() {
    std::error_code ignored;
    for (const char* of_sqlite : {"", "-wal", "-shm", "-journal"})
      std::filesystem::remove(path_.string() + of_sqlite, ignored);
  }
  FileOfInput(const FileOfInput&) = delete;
  FileOfInput& operator=(const FileOfInput&) = delete;

  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace orrery::fuzz
