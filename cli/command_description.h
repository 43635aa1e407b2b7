// A command as its users see it, for what documents and completes it: made of the very options that parse
// (Command::description()), so it cannot say anything else.
#pragma once

#include <string>
#include <vector>

namespace orrery {

// What an option or an argument takes.
struct ValueDescription {
  std::string type;                     // "FILE", "KEY=VALUE", "INT"; empty: nothing, it is a flag
  std::string range;                    // "a whole number from 1 to 10"; empty: not said
  std::vector<std::string> words;       // values
  bool only_words = false;              // there are no others
  std::vector<std::string> name_kinds;  // as `orrery list` calls them: their names are values, too
  std::string after_name;               // "=" where a name begins a value (KEY=VALUE)
  bool is_file = false, is_folder = false;
  std::string usual;  // where it is not given; empty: not said
};

struct OptionDescription {
  std::vector<std::string> names;  // "-b", "--minbytes"; of an argument "SCENARIO"
  std::string text;
  ValueDescription value;
  bool is_required = false;
  bool is_repeated = false;  // it may be given several times; an argument: several words
  bool value_is_optional = false;
};

struct CommandDescription {
  std::string name;  // of a subcommand its words: "bench compare"; of the program, empty
  std::string text;  // what it answers
  std::string footer;
  std::vector<OptionDescription> arguments, options;
  std::vector<CommandDescription> subcommands;
  bool needs_subcommand = false;
};

// The command, and all under it, each before its subcommands. They live as long as the command.
std::vector<const CommandDescription*> with_subcommands(const CommandDescription& command);

std::string joined(const std::vector<std::string>& words, const char* between = " ");

}  // namespace orrery
