#include <fmt/format.h>

#include <string_view>

#include "cli/completion.h"

namespace orrery {
namespace {

constexpr const char* kZshTail = R"sh(
# Words, names of kinds, what follows a name, -f for files or -d for folders.
_@NAME@_values() {
  local -a values names expl
  local kind ret=1
  values=(${=1})
  for kind in ${=2}; do names+=(${(f)"$($_@NAME@_program list $kind --names 2>/dev/null)"}); done
  (( $#values )) && _wanted values expl value compadd -a values && ret=0
  (( $#names )) && _wanted names expl name compadd ${3:+-S} $3 -a names && ret=0
  case $4 in
    (-f) _files && ret=0 ;;
    (-d) _files -/ && ret=0 ;;
  esac
  return ret
}

_@NAME@() {
  local _@NAME@_program=${words[1]/#\~/$HOME}
  _@NAME@_command_
}

if [[ $funcstack[1] == _@NAME@ ]]; then _@NAME@ "$@"; else compdef _@NAME@ )sh";

// Escapes text for a specification of _arguments, in which `marks` have a meaning.
std::string zsh_escaped(const std::string& text, const char* marks) {
  std::string word;
  for (const char c : text) {
    if (c == '\\' || std::string_view(marks).find(c) != std::string_view::npos) word += '\\';
    word += c;
  }
  return word;
}

// Returns ":message:action".
std::string zsh_value(const OptionDescription& option) {
  const ValueDescription& value = option.value;
  std::string action = " ";  // nothing to offer
  if (!value.words.empty() || !value.name_kinds.empty() || value.is_file || value.is_folder)
    action = fmt::format(" _@NAME@_values \"{}\" \"{}\" \"{}\" \"{}\"", joined(value.words), joined(value.name_kinds),
                         value.after_name,
                         value.is_file     ? "-f"
                         : value.is_folder ? "-d"
                                           : "");
  return ":" + zsh_escaped(value.type, ":") + ":" + action;
}

std::string zsh_option(const OptionDescription& option) {
  std::string lines;
  for (const std::string& name : option.names) {
    std::string spec = option.is_repeated || option.names.size() == 1 ? "" : "(" + joined(option.names) + ")";
    if (option.is_repeated) spec += "*";
    spec += name;
    if (!option.value.type.empty()) spec += name.starts_with("--") ? "=" : "+";
    spec += "[" + zsh_escaped(option.text, "[]") + "]";
    if (!option.value.type.empty()) spec += (option.value_is_optional ? ":" : "") + zsh_value(option);
    lines += " \\\n    " + shell_quoted(spec);
  }
  return lines;
}

}  // namespace

std::string zsh_completion(const std::string& program, const CommandDescription& command) {
  std::string text =
      "#compdef " + program + "\n# Completion of the command line, for zsh; a file _" + program + " in $fpath.\n";
  for (const CommandDescription* each : with_subcommands(command)) {
    text += "\n_@NAME@_command_" + as_identifier(each->name) +
            "() {\n  local context state state_descr line ret=1\n  local -A opt_args\n  _arguments -S -C";
    for (const OptionDescription& option : each->options) text += zsh_option(option);
    for (std::size_t i = 0; i < each->arguments.size(); ++i) {
      const OptionDescription& argument = each->arguments[i];
      const std::string place = argument.is_repeated ? "*" : std::to_string(i + 1);
      const bool may_lack = !argument.is_required && !argument.is_repeated;
      OptionDescription called = argument;
      called.value.type = argument.names.front();
      text += " \\\n    " + shell_quoted(place + (may_lack ? ":" : "") + zsh_value(called));
    }
    if (!each->subcommands.empty()) text += " \\\n    ': :->subcommand' \\\n    '*::: :->rest'";
    text += " && ret=0\n";
    if (!each->subcommands.empty()) {
      std::string described, cases;
      for (const CommandDescription& subcommand : each->subcommands) {
        const std::string word = subcommand.name.substr(subcommand.name.rfind(' ') + 1);
        described += "\n        " + shell_quoted(zsh_escaped(word, ":") + ":" + subcommand.text);
        cases += fmt::format("\n        ({}) _@NAME@_command_{} && ret=0 ;;", word, as_identifier(subcommand.name));
      }
      text += "  case $state in\n    (subcommand)\n      local -a subcommands=(" + described +
              ")\n      _describe -t commands command subcommands && ret=0\n      ;;\n    (rest)\n" +
              "      words=($line[1] \"${words[@]}\")\n      (( CURRENT += 1 ))\n      case $line[1] in" + cases +
              "\n      esac\n      ;;\n  esac\n";
    }
    text += "  return ret\n}\n";
  }
  text += kZshTail + program + "; fi\n";
  return with_program(text, program);
}

}  // namespace orrery
