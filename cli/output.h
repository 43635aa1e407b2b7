// Output of results. Files appear whole or not at all.
#pragma once

#include <chrono>
#include <cstdio>
#include <initializer_list>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace orrery {

struct Scenario;

// An output that is written piece by piece, to a file or standard output ("-"). The text of a file is invisible until
// commit() replaces the old file. Without commit() nothing is left behind, however the process ends, and the old file
// stays. Links are followed; devices and pipes are written directly. Throws InputError if the file cannot be written,
// is an input of this command (sim/base/input_file.h), or is already open as another output.
class OutputStream {
 public:
  explicit OutputStream(const std::string& path);
  ~OutputStream();
  OutputStream(const OutputStream&) = delete;
  OutputStream& operator=(const OutputStream&) = delete;

  void write(const std::string& text);
  void commit();

 private:
  void refuse_inputs() const;

  std::string path_, place_;  // as given; after following links
  bool direct_ = false;       // a device, a pipe or standard output
  std::string temporary_;     // name used if the file system has no unnamed files
  std::FILE* file_ = nullptr;
};

// Several outputs that are committed together. One of them may be "-", standard output.
class Outputs {
 public:
  void add(const std::string& path, const std::string& text);
  // Adds an output unless `path` is empty.
  template <class Make>
  void add_wanted(const std::string& path, Make text) {
    if (!path.empty()) add(path, text());
  }
  bool on_standard_output() const { return standard_output_.has_value(); }
  void commit();
  // Adds the text on standard output unless another output is there, and commits.
  template <class Make>
  void commit_with(Make text) {
    if (!on_standard_output()) add("-", text());
    commit();
  }

 private:
  std::list<OutputStream> files_;
  std::optional<std::string> standard_output_;
};

// Throws what writing these outputs would throw, without changing them. Call it before long work.
void check_outputs(std::initializer_list<std::string_view> paths);

// Shows progress on a line of standard error, which each show() overwrites and the destructor clears. Does nothing if
// standard error is not a terminal.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  bool on_terminal() const { return on_terminal_; }
  // Returns true if the line is on a terminal and due: first after half a second, then five times a second.
  bool is_due();
  double seconds() const;  // since the line was made
  void show(const std::string& text);
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  bool on_terminal_, shown_ = false;
  Clock::time_point start_ = Clock::now(), next_ = start_ + std::chrono::milliseconds(500);
};

// Throws if the text cannot be written.
void print(const std::string& text);

// Whether to use colour: only on terminals, and only if NO_COLOR (no-color.org) is not set.
bool colour_wanted();

// Returns the heading of a table, what was simulated or run: the parts of the scenario, then the plan's fields that are
// not at their default.
std::vector<std::string> title_of(const Scenario& scenario);

}  // namespace orrery
