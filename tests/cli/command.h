// Runs the real `orrery` in a folder of its own.
#pragma once

#include <filesystem>
#include <set>
#include <string>

namespace orrery {

struct CommandResult {
  int code = -1;
  std::string out, err;
};

// A temporary folder that goes away with the object.
class Workplace {
 public:
  Workplace();
  ~Workplace();
  Workplace(const Workplace&) = delete;
  Workplace& operator=(const Workplace&) = delete;

  // `arguments` as in a shell, run in the folder. `input` is its standard input.
  CommandResult orrery(const std::string& arguments, const std::string& input = {}) const;

  // The same with another program than the built `orrery`.
  CommandResult program(const std::string& path, const std::string& arguments, const std::string& input = {}) const;

  // A script for bash, run in the folder; $ORRERY is the built `orrery`.
  CommandResult shell(const std::string& script) const;

  // The exit code of python3 with these arguments; what it printed is in ".stdout" and ".stderr".
  int python(const std::string& arguments) const;

  void write(const std::string& name, const std::string& text) const;
  std::string read(const std::string& name) const;
  const std::filesystem::path& path() const { return folder_; }
  std::set<std::string> files() const;  // without what this class itself keeps there

 private:
  int run(const std::string& command) const;

  std::filesystem::path folder_;
};

// The bundled scenario of the README as text, to be changed.
std::string example_scenario();

}  // namespace orrery
