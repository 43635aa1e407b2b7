// The command line of a program: options, flags and subcommands. All that sources need of CLI11, whose header takes a
// compiler seconds: command.cpp alone includes it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace orrery {

// Names an option of a Command, for as long as this exists; each function returns the same one, to go on with.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  const Option& required() const;
  const Option& type_name(const char* name) const;
  // --help shows the variable's value.
  const Option& capture_default() const;
  const Option& one_of(const std::vector<std::string>& words) const;
  const Option& one_of_in_any_case(const std::vector<std::string>& words) const;
  const Option& between(std::int64_t least, std::int64_t most) const;
  const Option& within(double least, double most) const;
  const Option& positive() const;
  // 8, 64K, 1GB: a K is 1024.
  const Option& bytes() const;
  // May be given several times, with a value each, instead of once with several.
  const Option& one_value_each() const;
  // With a value or without.
  const Option& value_optional() const;
  const Option& on_value(const std::function<void(const std::string&)>& call) const;

  bool is_given() const;
  std::string name() const;

 private:
  CLI::Option* option_;
};

// Names a program's command or subcommand, for as long as the CommandLine exists. Variables outlive it.
class Command {
 public:
  explicit Command(CLI::App* app) : app_(app) {}

  Command add_subcommand(const char* name, const char* description) const;
  void footer(const std::string& text) const;
  void require_subcommand(std::size_t least, std::size_t most) const;
  // What it does once all words are understood.
  void callback(const std::function<void()>& run) const;
  bool has_subcommand_given() const;

  // `names`: "-b,--minbytes", or "KIND" for one without a dash.
  Option add_option(const char* names, std::string& value, const char* description) const;
  Option add_option(const char* names, std::vector<std::string>& values, const char* description) const;
  Option add_option(const char* names, std::int64_t& value, const char* description) const;
  Option add_option(const char* names, std::optional<std::int64_t>& value, const char* description) const;
  Option add_option(const char* names, std::uint64_t& value, const char* description) const;
  Option add_option(const char* names, double& value, const char* description) const;
  // `take` is called with the value, or with nothing.
  Option add_option(const char* names, const std::function<void(const std::string&)>& take,
                    const char* description) const;
  void add_flag(const char* names, bool& value, const char* description) const;

 private:
  CLI::App* app_;
};

// Words that are no use of the program, in a sentence that says what would be.
struct UsageError : std::runtime_error {
  using runtime_error::runtime_error;
};

// Thrown where nothing failed and the program ends: with an answer that is no (1), or what --help or --version prints.
struct Exit {
  int code = 0;
  std::string text = {};
};

// A program's: one of its subcommands is to be given.
class CommandLine {
 public:
  CommandLine(const char* description, const char* examples, const std::string& version = {});
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  Command command() const { return Command(app_.get()); }
  // Runs what the words say. Throws UsageError, Exit, and what the subcommand throws.
  void parse(int argc, const char* const* argv) const;
  // The words that follow the program's name. The same, but nothing is run any more.
  void check(std::vector<std::string> words) const;

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace orrery
