// A program's command line. It wraps CLI11, whose header takes seconds to compile: only command.cpp includes it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace orrery {

// ---- a command as its users see it, for documentation and completion. It is built from the very options that parse
// (Command::description()), so the two always agree.

// The value of an option or an argument.
struct ValueDescription {
  std::string type;                     // "FILE", "KEY=VALUE", "INT"; empty: no value, a flag
  std::string range;                    // "a whole number from 1 to 10"; empty: unknown
  std::vector<std::string> words;       // possible values
  bool only_words = false;              // no other values are possible
  std::vector<std::string> name_kinds;  // kinds of `orrery list`: their names are values, too
  std::string after_name;               // "=" if a name is followed by a value (KEY=VALUE)
  bool is_file = false, is_folder = false;
  std::string usual;  // default; empty: unknown
};

struct OptionDescription {
  std::vector<std::string> names;  // "-b", "--minbytes"; for an argument "SCENARIO"
  std::string text;
  ValueDescription value;
  bool is_required = false;
  bool is_repeated = false;  // may be given several times; an argument: several words
  bool value_is_optional = false;
};

struct CommandDescription {
  std::string name;  // words of a subcommand: "bench compare"; empty for the program
  std::string text;  // what it answers
  std::string footer;
  std::vector<OptionDescription> arguments, options;
  std::vector<CommandDescription> subcommands;
  bool needs_subcommand = false;
};

// ---- declaring a command

// Descriptions of options' values that CLI11 does not store.
using ValueDescriptions = std::map<const CLI::Option*, ValueDescription>;

// A handle of a Command's option, valid as long as the Command. Each function returns *this, for chaining.
class Option {
 public:
  Option(CLI::Option* option, ValueDescriptions& values) : option_(option), values_(&values) {}

  const Option& required() const;
  // "FILE" and "FOLDER" make shells complete file and folder names.
  const Option& type_name(const char* name) const;
  // Shows a text's current value as the default in --help.
  const Option& capture_default() const;
  const Option& one_of(const std::vector<std::string>& words, bool in_any_case = false) const;
  const Option& between(std::int64_t least, std::int64_t most) const;
  const Option& within(double least, double most) const;
  const Option& positive() const;
  // Accepts 8, 64K, 1GB; a K is 1024.
  const Option& bytes() const;
  // Refuses an empty name of a file.
  const Option& names_a_file() const;
  // Takes one value each time the option is given, instead of several values after one option.
  const Option& one_value_each() const;
  // Makes the value optional.
  const Option& value_optional() const;
  // Values that shells offer; they do not restrict the values. Names are those that `orrery list KIND` prints; `after`
  // follows a name in a value, e.g. "=".
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

// A handle of a program's command or subcommand, valid as long as the CommandLine. The variables that options write to
// must outlive the CommandLine.
class Command {
 public:
  Command(CLI::App* app, ValueDescriptions& values) : app_(app), values_(&values) {}

  Command add_subcommand(const char* name, const char* description) const;
  // Text in paragraphs: "Examples:" has a command per line, followed by two or more blanks and its purpose; "Exit
  // codes: 0 done; 2 ..."; any other text.
  void footer(const std::string& text) const;
  void require_subcommand(std::size_t least, std::size_t most) const;
  // Sets what the command does after the whole command line is parsed.
  void callback(const std::function<void()>& run) const;
  bool has_subcommand_given() const;
  // Adds a subcommand and makes its Arguments, which live as long as the CommandLine: declare options on them. When the
  // subcommand is given without a subcommand of its own, `run` is called with them.
  template <class Arguments, class Run>
  std::pair<Command, Arguments&> declare(const char* name, const char* description, const std::string& footer,
                                         Run run) const {
    const Command command = add_subcommand(name, description);
    const auto arguments = std::make_shared<Arguments>();
    command.footer(footer);
    command.callback([command, arguments, run] {
      if (!command.has_subcommand_given()) run(*arguments);
    });
    return {command, *arguments};
  }
  // Describes the command and its subcommands, as they are now.
  CommandDescription description() const;

  // `names`: "-b,--minbytes", or "KIND" for a positional argument. `value`: a text, a number of 64 bits, an optional
  // number, or several texts. The current value of a number is shown as the default in --help. `type`: what --help and
  // the manual page call the value; empty: by its C++ type.
  template <class Value>
  Option add_option(const char* names, Value& value, const char* description, const char* type = "") const;
  // `take` is called with the value, or with an empty string.
  Option add_option(const char* names, const std::function<void(const std::string&)>& take, const char* description,
                    const char* type) const;
  // An option whose value is the name of a file.
  Option add_file(const char* names, std::string& path, const char* description) const;
  // An option that may be given several times, with one value each time.
  Option add_several(const char* names, std::vector<std::string>& values, const char* description,
                     const char* type) const;
  void add_flag(const char* names, bool& value, const char* description) const;

 private:
  CLI::App* app_;
  ValueDescriptions* values_;
};

// The command line is wrong. The message is a sentence that says what would be right.
struct UsageError : std::runtime_error {
  using runtime_error::runtime_error;
};

// Ends the program with this exit code and prints `text`: a negative answer (1), a run that a signal ended, or --help
// and --version (0). It is no error with a message.
struct Exit {
  int code = 0;
  std::string text = {};
};

// A program's command line. One of its subcommands must be given.
class CommandLine {
 public:
  CommandLine(const char* description, const char* examples, const std::string& version = {});
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  Command command() const { return Command(app_.get(), *values_); }
  // Parses and runs the subcommand. Throws UsageError, Exit, and what the subcommand throws.
  void parse(int argc, const char* const* argv) const;
  // Parses the words after the program's name as parse() does, but runs nothing.
  void check(std::vector<std::string> words) const;

 private:
  std::unique_ptr<CLI::App> app_;
  std::unique_ptr<ValueDescriptions> values_ = std::make_unique<ValueDescriptions>();
};

}  // namespace orrery
