#include <fmt/format.h>

#include <utility>
#include <vector>

#include "cli/completion.h"

namespace orrery {
namespace {

constexpr const char* kBashHead = R"sh(# Completion of the command line, for bash 4.3 and later; to be sourced.

)sh";

constexpr const char* kBashMain = R"sh(
_@NAME@() {
  local IFS=$' \t\n' command='' option='' current word kind before rest=$COMP_LINE
  local subcommands options words kinds after files optional
  local -a line=() found=()
  local -i i arguments=0
  # Bash has split words at "=" and ":", too.
  for ((i = 0; i <= COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    if ((i > 0)) && [[ -n $word && $rest == "$word"* ]]; then line[-1]+=$word; else line+=("$word"); fi
    rest=${rest#*"$word"}
  done
  current=${line[-1]}
  unset 'line[-1]'
  _@NAME@_command ''
  for word in "${line[@]:1}"; do
    if [[ -n $option && ! ($optional && $word == -?*) ]]; then
      option=''
    elif [[ $word == -?* ]]; then
      option=''
      if [[ $word != *=* ]] && _@NAME@_values "$command" "$word"; then option=$word; fi
    elif ((arguments == 0)) && [[ " $subcommands " == *" $word "* ]]; then
      command+=${command:+ }$word
      _@NAME@_command "$command"
    else
      arguments+=1
    fi
  done
  before=${current%"${COMP_WORDS[COMP_CWORD]}"}  # bash completes the rest alone
  if [[ ${COMP_WORDS[COMP_CWORD]} == [=:] ]]; then before=$current; fi
  COMPREPLY=()
  if [[ -z $option && $current == --*=* ]]; then
    option=${current%%=*}
    current=${current#*=}
    before=${before#"$option"}
    before=${before#=}
    _@NAME@_values "$command" "$option" || return 0
  elif [[ $current == -* && (-z $option || $optional) ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
    return 0
  elif [[ -n $option ]]; then
    _@NAME@_values "$command" "$option"
  else
    if ((arguments == 0)); then mapfile -t COMPREPLY < <(compgen -W "$subcommands" -- "$current"); fi
    _@NAME@_values "$command" $((arguments + 1)) || return 0
  fi
  for kind in $kinds; do words+=" $("${COMP_WORDS[0]/#\~/$HOME}" list "$kind" --names 2>/dev/null)"; done
  mapfile -t found < <(compgen -W "$words" -S "$after" -- "$current")
  COMPREPLY+=("${found[@]}")
  if [[ $after ]]; then compopt -o nospace 2>/dev/null; fi
  if [[ $files ]]; then
    compopt -o filenames 2>/dev/null
    mapfile -t found < <(compgen "$files" -- "$current")
    COMPREPLY+=("${found[@]}")
  fi
  COMPREPLY=("${COMPREPLY[@]#"$before"}")
}
)sh";

std::string bash_names(const std::vector<OptionDescription>& options) {
  std::vector<std::string> names;
  for (const OptionDescription& option : options) names.insert(names.end(), option.names.begin(), option.names.end());
  return joined(names);
}

// Returns shell assignments that describe an option's values.
std::string bash_value(const OptionDescription& option) {
  const ValueDescription& value = option.value;
  std::vector<std::string> assignments;
  const auto assign = [&](const char* name, const std::string& text) {
    if (!text.empty()) assignments.push_back(std::string(name) + "=" + shell_quoted(text));
  };
  assign("words", joined(value.words));
  assign("kinds", joined(value.name_kinds));
  assign("after", value.after_name);
  assign("files", value.is_file ? "-f" : value.is_folder ? "-d" : "");
  assign("optional", option.value_is_optional ? "yes" : "");
  return assignments.empty() ? ":" : joined(assignments);
}

}  // namespace

std::string bash_completion(const std::string& program, const CommandDescription& command) {
  std::string commands, values;
  std::vector<std::pair<std::string, std::string>> cases;  // entries of _values: patterns, assignments
  const auto add_case = [&](const std::string& pattern, const std::string& assignments) {
    for (auto& [patterns, same] : cases)
      if (same == assignments) {
        patterns += " |\\\n      " + pattern;
        return;
      }
    cases.emplace_back(pattern, assignments);
  };
  for (const CommandDescription* each : with_subcommands(command)) {
    std::vector<std::string> subcommands;
    for (const CommandDescription& subcommand : each->subcommands)
      subcommands.push_back(subcommand.name.substr(subcommand.name.rfind(' ') + 1));
    commands += fmt::format("    {})\n      subcommands={}\n      options={}\n      ;;\n", shell_quoted(each->name),
                            shell_quoted(joined(subcommands)), shell_quoted(bash_names(each->options)));
    for (const OptionDescription& option : each->options)
      if (!option.value.type.empty())
        for (const std::string& name : option.names)
          add_case(shell_quoted(each->name + " " + name), bash_value(option));
    for (std::size_t i = 0; i < each->arguments.size(); ++i) {
      const OptionDescription& argument = each->arguments[i];
      // An argument that takes all further words matches any number from here on.
      add_case(shell_quoted(each->name + (argument.is_repeated ? " " : " " + std::to_string(i + 1))) +
                   (argument.is_repeated ? "[0-9]*" : ""),
               bash_value(argument));
    }
  }
  for (const auto& [patterns, assignments] : cases)
    values += fmt::format("    {})\n      {}\n      ;;\n", patterns, assignments);
  std::string text = kBashHead;
  text += "# What the command \"$1\" has.\n_@NAME@_command() {\n  case $1 in\n" + commands + "  esac\n}\n\n";
  text +=
      "# What the command \"$1\" takes behind its option \"$2\", or as its argument of the number \"$2\"; fails where "
      "it "
      "takes nothing.\n_@NAME@_values() {\n  words='' kinds='' after='' files='' optional=''\n  case \"$1 $2\" in\n" +
      values + "    *) return 1 ;;\n  esac\n}\n";
  text += kBashMain;
  return with_program(text, program) + "\ncomplete -F _" + as_identifier(program) + " " + program + "\n";
}

}  // namespace orrery
