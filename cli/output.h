// Where results go. Files appear whole or not at all.
#pragma once

#include <cstdio>
#include <initializer_list>
#include <list>
#include <optional>
#include <string>
#include <string_view>

namespace orrery {

// A file on its way. Its text is kept out of sight until commit() puts it in place of what was there; without commit()
// nothing is left behind, however the process ends, and what was there stays. Links are followed; devices and pipes are
// written as they are. InputError: it cannot be written, is an input of this command (sim/base/input_file.h), or
// belongs to another output that is under way.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const std::string& text);
  void commit();

 private:
  void refuse_inputs() const;

  std::string path_, place_;  // as given; where links lead
  bool special_ = false;      // a device or pipe
  std::string temporary_;     // where the file system knows no files without a name
  std::FILE* file_ = nullptr;
};

// Several outputs that are put in place together. "-" is standard output, for one of them.
class Outputs {
 public:
  void add(const std::string& path, const std::string& text);
  // Of an output that is wanted where `path` is not empty.
  template <class Make>
  void add_wanted(const std::string& path, Make text) {
    if (!path.empty()) add(path, text());
  }
  bool on_standard_output() const { return standard_output_.has_value(); }
  void commit();

 private:
  std::list<OutputFile> files_;
  std::optional<std::string> standard_output_;
};

// One output that is written bit by bit, to a file or standard output ("-").
class OutputStream {
 public:
  explicit OutputStream(const std::string& path);

  void write(const std::string& text);
  void commit();

 private:
  std::optional<OutputFile> file_;  // none: standard output
};

// Throws what writing these would, and leaves them as they are: for long work, before it starts.
void check_outputs(std::initializer_list<std::string_view> paths);

// What is under way, on a line of standard error that each show() writes over and the end clears. Nothing where that
// is no terminal.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  bool on_terminal() const { return on_terminal_; }
  void show(const std::string& text);
  void clear();

 private:
  bool on_terminal_, shown_ = false;
};

// Throws when it cannot be written.
void print(const std::string& text);

// Colour is for terminals, and only where NO_COLOR (no-color.org) is unset.
bool colour_wanted();

}  // namespace orrery
