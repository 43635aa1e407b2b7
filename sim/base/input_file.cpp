#include "sim/base/input_file.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "sim/base/one_line.h"

namespace orrery {
namespace {

constexpr std::size_t kMostBytes = std::size_t{256} << 20;  // of a device or pipe there may be no end

struct Inputs {
  std::mutex mutex;
  std::set<std::pair<dev_t, ino_t>> files;
};
Inputs& inputs() {
  static Inputs all;
  return all;
}

void remember(const struct stat& status) {
  if (!S_ISREG(status.st_mode)) return;
  const std::lock_guard lock(inputs().mutex);
  inputs().files.emplace(status.st_dev, status.st_ino);
}

// Returns why there is no text, or "".
std::string read_all(const std::string& path, std::string& text) {
  const bool standard_input = path == "-";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(
      standard_input ? stdin : std::fopen(path.c_str(), "rb"),
      standard_input ? [](std::FILE*) { return 0; } : [](std::FILE* f) { return std::fclose(f); });
  if (!file) return std::strerror(errno);
  struct stat status {};
  if (::fstat(::fileno(file.get()), &status) == 0) remember(status);
  std::array<char, 1 << 16> buffer;
  while (const std::size_t got = std::fread(buffer.data(), 1, buffer.size(), file.get())) {
    text.append(buffer.data(), got);
    if (text.size() > kMostBytes) return fmt::format("more than {} MiB", kMostBytes >> 20);
  }
  return std::ferror(file.get()) != 0 ? std::strerror(errno) : "";
}

}  // namespace

std::string read_file(const std::string& path, std::string_view expected) {
  std::string text;
  const std::string reason = read_all(path, text);
  if (!reason.empty())
    throw InputError({path == "-" ? "<stdin>" : path, ""}, fmt::format("nothing ({})", reason), std::string(expected));
  return text;
}

std::string read_file(const std::string& path, std::string_view expected, const InputError::Where& where) {
  std::string text;
  const std::string reason = read_all(path, text);
  if (!reason.empty())
    throw InputError(where, fmt::format("\"{}\" ({})", clipped(path, kMostMessageBytes / 2), reason),
                     std::string(expected));
  return text;
}

void remember_input(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) remember(status);
}

bool is_input(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return false;
  const std::lock_guard lock(inputs().mutex);
  return inputs().files.contains({status.st_dev, status.st_ino});
}

}  // namespace orrery
