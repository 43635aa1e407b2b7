// The command line of a program: options, flags and subcommands. All that sources need of CLI11, whose header takes a
// compiler seconds: command.cpp alone includes it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/command_description.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace orrery {

// What is known of options' values beyond what CLI11 keeps.
using ValueDescriptions = std::map<const CLI::Option*, ValueDescription>;

// Names an option of a Command, for as long as this exists; each function returns the same one, to go on with.
class Option {
 public:
  Option(CLI::Option* option, ValueDescriptions& values) : option_(option), values_(&values) {}

  const Option& required() const;
  // "FILE" and "FOLDER" are said of what is one: shells complete it so.
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
  // Shells offer these; which values there are is said elsewhere. Names are those that `orrery list KIND` prints;
  // `after`: what follows one in a value, "=".
  const Option& offers_names(const std::vector<std::string>& kinds, const char* after = "") const;
  const Option& offers_words(const std::vector<std::string>& words) const;
  const Option& offers_files() const;

  bool is_given() const;
  std::string name() const;

 private:
  ValueDescription& value() const { return (*values_)[option_]; }

  CLI::Option* option_;
  ValueDescriptions* values_;
};

// Names a program's command or subcommand, for as long as the CommandLine exists. Variables outlive it.
class Command {
 public:
  Command(CLI::App* app, ValueDescriptions& values) : app_(app), values_(&values) {}

  Command add_subcommand(const char* name, const char* description) const;
  // Paragraphs: "Examples:" with a command a line, two blanks or more before what it is for; "Exit codes: 0 done; 2
  // ..."; any others.
  void footer(const std::string& text) const;
  void require_subcommand(std::size_t least, std::size_t most) const;
  // What it does once all words are understood.
  void callback(const std::function<void()>& run) const;
  bool has_subcommand_given() const;
  // Of it and its subcommands, as they are now.
  CommandDescription description() const;

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
  ValueDescriptions* values_;
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

  Command command() const { return Command(app_.get(), *values_); }
  // Runs what the words say. Throws UsageError, Exit, and what the subcommand throws.
  void parse(int argc, const char* const* argv) const;
  // The words that follow the program's name. The same, but nothing is run any more.
  void check(std::vector<std::string> words) const;

 private:
  std::unique_ptr<CLI::App> app_;
  std::unique_ptr<ValueDescriptions> values_ = std::make_unique<ValueDescriptions>();
};

}  // namespace orrery
