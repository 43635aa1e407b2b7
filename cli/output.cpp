#include "cli/output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "sim/base/error.h"

namespace orrery {
namespace {

[[noreturn]] void fail_to_write(const std::string& path) {
  throw InputError({path, ""}, std::string("that it cannot be written (") + std::strerror(errno) + ")",
                   "the path of a file to write");
}

void write_all(std::FILE* file, const std::string& text, const std::string& path) {
  if (std::fwrite(text.data(), 1, text.size(), file) != text.size()) fail_to_write(path);
}

// Devices and pipes (/dev/stdout, a named pipe) cannot be put in place by renaming: written directly.
bool is_special(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode);
}

std::FILE* open_beside(const std::string& path, std::string& temporary) {
  struct stat status {};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode)) {
    errno = EISDIR;
    fail_to_write(path);
  }
  if (exists && ::access(path.c_str(), W_OK) != 0) fail_to_write(path);
  if (is_special(path)) {
    temporary.clear();
    std::FILE* file = std::fopen(path.c_str(), "wb");
    if (file == nullptr) fail_to_write(path);
    return file;
  }
  temporary = path + ".XXXXXX";
  const int descriptor = ::mkstemp(temporary.data());
  if (descriptor < 0) {
    temporary.clear();
    fail_to_write(path);
  }
  // mkstemp makes the file private; give it the mode that the target has, or would be created with.
  const mode_t mask = ::umask(0);
  ::umask(mask);
  ::fchmod(descriptor, exists ? (status.st_mode & 07777u) : (0666u & ~mask));
  return ::fdopen(descriptor, "wb");
}

void put_in_place(const std::string& temporary, const std::string& path) {
  if (!temporary.empty() && std::rename(temporary.c_str(), path.c_str()) != 0) fail_to_write(path);
}

}  // namespace

Outputs::~Outputs() {
  for (const Pending& pending : pending_)
    if (!pending.temporary.empty()) std::remove(pending.temporary.c_str());
}

void Outputs::add(const std::string& path, const std::string& text) {
  if (path == "-") {
    standard_output_ += text;
    return;
  }
  Pending& pending = pending_.emplace_back();
  pending.path = path;
  std::FILE* file = open_beside(path, pending.temporary);
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (std::fclose(file) != 0 || !written) fail_to_write(path);
}

void Outputs::commit() {
  for (Pending& pending : pending_) {
    put_in_place(pending.temporary, pending.path);
    pending.temporary.clear();
  }
  if (!standard_output_.empty()) print(standard_output_);  // last: who reads it may leave (| head)
}

OutputStream::OutputStream(const std::string& path)
    : path_(path), file_(path == "-" ? stdout : open_beside(path, temporary_)) {}

OutputStream::~OutputStream() {
  if (file_ != nullptr && file_ != stdout) std::fclose(file_);
  if (!temporary_.empty()) std::remove(temporary_.c_str());
}

void OutputStream::write(const std::string& text) { write_all(file_, text, path_); }

void OutputStream::commit() {
  const int failed = file_ == stdout ? std::fflush(file_) : std::fclose(file_);
  file_ = nullptr;
  if (failed != 0) fail_to_write(path_);
  put_in_place(temporary_, path_);
  temporary_.clear();
}

void print(const std::string& text) {
  write_all(stdout, text, "standard output");
  if (std::fflush(stdout) != 0) fail_to_write("standard output");
}

ProgressLine::ProgressLine() : on_terminal_(::isatty(STDERR_FILENO) != 0) {}
ProgressLine::~ProgressLine() { clear(); }
void ProgressLine::clear() {
  if (shown_) std::fputs("\r\033[K", stderr);
  shown_ = false;
}
void ProgressLine::show(const std::string& text) {
  if (!on_terminal_) return;
  std::fprintf(stderr, "\r%s\033[K", text.c_str());
  shown_ = true;
}

bool colour_wanted() {
  const char* no_color = std::getenv("NO_COLOR");
  return ::isatty(STDOUT_FILENO) != 0 && (no_color == nullptr || *no_color == '\0');
}

}  // namespace orrery
