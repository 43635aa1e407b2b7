#include "sim/base/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

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

constexpr std::size_t kMostBytes = std::size_t{256} << 20;  // a device or a pipe may be endless

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

// Returns the reason why there is no text, or "".
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

std::string read_file(const std::string& path, std::string_view expected,
                      const std::optional<InputError::Where>& where) {
  std::string text;
  const std::string reason = read_all(path, text);
  if (reason.empty()) return text;
  if (where)
    throw InputError(*where, fmt::format("\"{}\" ({})", clipped(path, kMostMessageBytes / 2), reason),
                     std::string(expected));
  throw InputError({path == "-" ? "<stdin>" : path, ""}, fmt::format("nothing ({})", reason), std::string(expected));
}

LineReader::LineReader(const std::string& path, std::string_view expected)
    : name_(path == "-" ? "<stdin>" : path), expected_(expected), is_own_(path != "-") {
  descriptor_ = is_own_ ? ::open(path.c_str(), O_RDONLY | O_CLOEXEC) : STDIN_FILENO;
  if (descriptor_ < 0) throw InputError({name_, ""}, fmt::format("nothing ({})", std::strerror(errno)), expected_);
  struct stat status {};
  if (::fstat(descriptor_, &status) == 0) remember(status);
}

LineReader::LineReader(int descriptor, std::string name, std::string_view expected)
    : name_(std::move(name)), expected_(expected), descriptor_(descriptor) {}

LineReader::~LineReader() {
  if (is_own_) ::close(descriptor_);
}

// Reads more of the file into buffer_. Returns false at the end of the file.
bool LineReader::fill() {
  constexpr std::size_t kBytesAtOnce = std::size_t{1} << 16;
  buffer_.resize(kBytesAtOnce);
  ssize_t got = 0;
  do {
    got = ::read(descriptor_, buffer_.data(), buffer_.size());
  } while (got < 0 && errno == EINTR);
  const int reason = errno;
  buffer_.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  at_ = 0;
  if (got >= 0) return got > 0;
  // After an error the rest is missing: half a line or half a file must not pass for a whole one.
  const std::string found =
      number_ == 0 ? fmt::format("nothing ({})", std::strerror(reason))
                   : fmt::format("{} lines, and then an error of reading ({})", number_, std::strerror(reason));
  throw InputError({name_, ""}, found, expected_);
}

bool LineReader::next(std::string& line) {
  line.clear();
  if (at_ == buffer_.size() && !fill()) return false;
  for (;;) {
    const std::size_t end = buffer_.find('\n', at_);
    line.append(buffer_, at_, end == std::string::npos ? end : end - at_);
    at_ = end == std::string::npos ? buffer_.size() : end + 1;
    if (line.size() > kMostLineBytes)
      throw InputError({fmt::format("{}:{}", name_, number_ + 1), ""},
                       fmt::format("a line of more than {} MiB", kMostLineBytes >> 20), expected_);
    if (end != std::string::npos || !fill()) break;
  }
  ++number_;
  if (line.ends_with('\r')) line.pop_back();
  return true;
}

bool LineReader::rewind() {
  if (::lseek(descriptor_, 0, SEEK_SET) != 0) return false;
  buffer_.clear();
  at_ = 0;
  number_ = 0;
  return true;
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
