// A command as its users see it, for documentation and completion. It is built from the very options that parse
// (Command::description()), so the two always agree.
#pragma once

#include <string>
#include <vector>

namespace orrery {

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

}  // namespace orrery
