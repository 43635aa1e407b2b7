#include <fmt/format.h>

#include "cli/completion.h"

namespace orrery {
namespace {

constexpr const char* kFishHead = R"sh(# Completion of the command line, for fish.

# Is the word at the cursor one of the command "$argv[1]", and, where a number is given, its argument of that number?
# A number with "+": or one behind it.
function __@NAME@_at
    set -l command
    set -l arguments 1
    set -l skip no
    for word in (commandline -opc)[2..-1]
        if test $skip = yes
            set skip no
        else if string match -q -- '-?*' $word
            contains -- "$command $word" $__@NAME@_with_value; and set skip yes
        else if contains -- (string trim "$command $word") $__@NAME@_commands; and test $arguments = 1
            set command (string trim "$command $word")
        else
            set arguments (math $arguments + 1)
        end
    end
    test "$command" = "$argv[1]"; or return 1
    set -q argv[2]; or return 0
    test $skip = no; or return 1
    string match -q -- '*+' $argv[2]; and test $arguments -ge (string trim -r -c + -- $argv[2]); and return 0
    test $arguments = $argv[2]
end

# Names of kinds; "=": what follows one.
function __@NAME@_names
    set -l program (commandline -opc)[1]
    string match -q '~*' $program; and set program (string replace '~' $HOME $program)
    for kind in (string split ' ' $argv[1])
        $program list $kind --names 2>/dev/null | string replace -r '$' "$argv[2]"
    end
end

)sh";

std::string fish_quoted(const std::string& text) {
  std::string word = "'";
  for (const char c : text) word += c == '\'' || c == '\\' ? std::string{'\\', c} : std::string(1, c);
  return word + "'";
}

// Returns the options of `complete` for a value: whether files are offered, and what else is.
std::string fish_value(const ValueDescription& value) {
  std::vector<std::string> offers = value.words;
  if (!value.name_kinds.empty())
    offers.push_back(fmt::format("(__@NAME@_names {}{})", fish_quoted(joined(value.name_kinds)),
                                 value.after_name.empty() ? "" : " " + fish_quoted(value.after_name)));
  if (value.is_folder) offers.emplace_back("(__fish_complete_directories (commandline -ct))");
  return (value.is_file ? " -F" : " -f") + (offers.empty() ? "" : " -a " + fish_quoted(joined(offers)));
}

std::string fish_condition(const CommandDescription& command, const std::string& number = {}) {
  return " -n " + fish_quoted("__@NAME@_at " + fish_quoted(command.name) + (number.empty() ? "" : " " + number));
}

}  // namespace

std::string fish_completion(const std::string& program, const CommandDescription& command) {
  std::vector<std::string> commands, with_value;
  std::string lines;
  const std::string complete = "complete -c " + program;
  for (const CommandDescription* each : with_subcommands(command)) {
    if (!each->name.empty()) commands.push_back(fish_quoted(each->name));
    lines += "\n";
    for (const CommandDescription& subcommand : each->subcommands)
      lines += complete + fish_condition(*each, "1") + " -a " +
               fish_quoted(subcommand.name.substr(subcommand.name.rfind(' ') + 1)) + " -d " +
               fish_quoted(subcommand.text) + "\n";
    for (std::size_t i = 0; i < each->arguments.size(); ++i) {
      const OptionDescription& argument = each->arguments[i];
      lines += complete + fish_condition(*each, std::to_string(i + 1) + (argument.is_repeated ? "+" : "")) +
               fish_value(argument.value) + " -d " + fish_quoted(argument.names.front()) + "\n";
    }
    for (const OptionDescription& option : each->options) {
      lines += complete + fish_condition(*each);
      for (const std::string& name : option.names) {
        lines += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
        // An option with an optional value takes the next word only after "=".
        if (!option.value.type.empty() && !option.value_is_optional)
          with_value.push_back(fish_quoted(each->name + " " + name));
      }
      if (!option.value.type.empty()) lines += (option.value_is_optional ? "" : " -r") + fish_value(option.value);
      lines += " -d " + fish_quoted(option.text) + "\n";
    }
  }
  std::string text = kFishHead;
  text += "set -g __@NAME@_commands " + joined(commands, " \\\n    ") + "\n";
  text += "# Options that take the next word.\nset -g __@NAME@_with_value " + joined(with_value, " \\\n    ") + "\n\n";
  text += complete + " -f\n" + lines;
  return with_program(text, program);
}

}  // namespace orrery
