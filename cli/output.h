// Where results go. Files appear whole or not at all.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

namespace orrery {

// Several outputs that are written together: add() writes temporary files beside their targets, commit() puts them in
// place. Without commit() nothing is left behind. "-" is standard output, for one of them at most.
class Outputs {
 public:
  Outputs() = default;
  ~Outputs();
  Outputs(const Outputs&) = delete;
  Outputs& operator=(const Outputs&) = delete;

  void add(const std::string& path, const std::string& text);
  void commit();

 private:
  struct Pending {
    std::string path, temporary;
  };
  std::vector<Pending> pending_;
  std::string standard_output_;
};

// One output that is written bit by bit. The same promises.
class OutputStream {
 public:
  explicit OutputStream(const std::string& path);
  ~OutputStream();
  OutputStream(const OutputStream&) = delete;
  OutputStream& operator=(const OutputStream&) = delete;

  void write(const std::string& text);
  void commit();

 private:
  std::string path_, temporary_;
  std::FILE* file_ = nullptr;
};

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
