#include "cli/output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
#include <system_error>

#include "sim/base/error.h"
#include "sim/base/input_file.h"

namespace orrery {
namespace {

[[noreturn]] void fail_to_write(const std::string& path) {
  throw InputError({path, ""}, std::string("a path that cannot be written (") + std::strerror(errno) + ")",
                   "the path of a file to write");
}

void write_all(std::FILE* file, const std::string& text, const std::string& path) {
  if (std::fwrite(text.data(), 1, text.size(), file) != text.size()) fail_to_write(path);
}

// Paths of all outputs that are being written. Commands write from one thread.
std::set<std::string>& taken_places() {
  static std::set<std::string> places;
  return places;
}

// Follows links, also to a file that does not exist yet.
std::filesystem::path led_to(std::filesystem::path path) {
  constexpr int kMostLinks = 40;  // the limit of Linux
  std::error_code none;
  for (int i = 0; i < kMostLinks && std::filesystem::is_symlink(path, none); ++i)
    path = path.parent_path() / std::filesystem::read_symlink(path, none);
  return path;
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

void OutputFile::refuse_inputs() const {
  if (is_input(path_))
    throw InputError({path_, ""}, "a file that this command reads", "a file of its own for each output");
}

OutputFile::OutputFile(const std::string& path) : path_(path) {
  struct stat status {};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode)) {
    errno = EISDIR;
    fail_to_write(path);
  }
  if (exists && ::access(path.c_str(), W_OK) != 0) fail_to_write(path);
  special_ = exists && !S_ISREG(status.st_mode);
  if (special_) {
    file_ = std::fopen(path.c_str(), "wb");
    if (file_ == nullptr) fail_to_write(path);
    return;
  }
  refuse_inputs();
  std::error_code error;
  place_ = std::filesystem::weakly_canonical(led_to(std::filesystem::absolute(path, error)), error).string();
  if (error) {
    errno = error.value();
    fail_to_write(path);
  }
  // The mode that the target has, or would be created with.
  const mode_t mask = ::umask(0);
  ::umask(mask);
  const mode_t mode = exists ? (status.st_mode & 07777u) : (0666u & ~mask);
  const std::string folder = folder_of(place_);
  int descriptor = ::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, mode);
  if (descriptor < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
    temporary_ = folder + "/.orrery-XXXXXX";
    descriptor = ::mkostemp(temporary_.data(), O_CLOEXEC);
    if (descriptor < 0) temporary_.clear();
  }
  if (descriptor < 0) fail_to_write(path);
  ::fchmod(descriptor, mode);
  file_ = ::fdopen(descriptor, "wb");
  if (!taken_places().insert(place_).second) {
    place_.clear();  // the path belongs to the other output
    std::fclose(file_);
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
    throw InputError({path, ""}, "one file for several purposes", "a file of its own for each output");
  }
}

OutputFile::~OutputFile() {
  if (file_ != nullptr) std::fclose(file_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  taken_places().erase(place_);
}

void OutputFile::write(const std::string& text) { write_all(file_, text, path_); }

void OutputFile::commit() {
  if (std::fflush(file_) != 0) fail_to_write(path_);
  if (!special_) {
    refuse_inputs();  // an input may have been added since
    if (temporary_.empty()) {
      // An unnamed file can be given a new name, but cannot replace an existing file: it gets a temporary name first.
      const std::string unnamed = "/proc/self/fd/" + std::to_string(::fileno(file_));
      std::string name;
      for (int i = 0; temporary_.empty(); ++i) {
        name = folder_of(place_) + "/.orrery-" + std::to_string(::getpid()) + "-" + std::to_string(i);
        if (::linkat(AT_FDCWD, unnamed.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0) {
          temporary_ = name;
        } else if (errno != EEXIST) {
          fail_to_write(path_);
        }
      }
    }
    if (std::rename(temporary_.c_str(), place_.c_str()) != 0) fail_to_write(path_);
    temporary_.clear();
  }
  const int failed = std::fclose(file_);
  file_ = nullptr;
  if (failed != 0) fail_to_write(path_);
}

void Outputs::add(const std::string& path, const std::string& text) {
  if (path != "-") return files_.emplace_back(path).write(text);
  if (standard_output_) throw InputError({"standard output", ""}, "several outputs", "one place per output");
  standard_output_ = text;
}

void Outputs::commit() {
  for (OutputFile& file : files_) file.commit();
  files_.clear();
  if (standard_output_) print(*standard_output_);  // last: its reader may stop early (| head)
}

OutputStream::OutputStream(const std::string& path) {
  if (path != "-") file_.emplace(path);
}

void OutputStream::write(const std::string& text) {
  if (file_) return file_->write(text);
  write_all(stdout, text, "standard output");
}

void OutputStream::commit() {
  if (file_) return file_->commit();
  if (std::fflush(stdout) != 0) fail_to_write("standard output");
}

void check_outputs(std::initializer_list<std::string_view> paths) {
  Outputs outputs;
  for (const std::string_view path : paths)
    if (!path.empty()) outputs.add(std::string(path), "");
}

void print(const std::string& text) {
  write_all(stdout, text, "standard output");
  if (std::fflush(stdout) != 0) fail_to_write("standard output");
}

ProgressLine::ProgressLine() : on_terminal_(::isatty(STDERR_FILENO) != 0) {}
ProgressLine::~ProgressLine() { clear(); }
bool ProgressLine::is_due() {
  if (!on_terminal_ || Clock::now() < next_) return false;
  next_ = Clock::now() + std::chrono::milliseconds(200);
  return true;
}
double ProgressLine::seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
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
