// orrery completion: scripts for shells, and what they ask for.
#include <algorithm>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.h"
#include "cli/output.h"
#include "study/answers/listing.h"

namespace orrery {
namespace {

constexpr const char* kBash = R"sh(# Completion of orrery's command line, for bash 4.3 and later; to be sourced.
_orrery() {
  local IFS=$' \t\n' rest=$COMP_LINE program=${COMP_WORDS[0]/#\~/$HOME} word head before current
  local -a line=() found=()
  for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do  # bash has split words at "=" and ":", too
    if ((${#line[@]})) && [[ -n $word && $rest == "$word"* ]]; then line[-1]+=$word; else line+=("$word"); fi
    rest=${rest#*"$word"}
  done
  current=${line[-1]}
  before=${current%"${COMP_WORDS[COMP_CWORD]}"}  # bash completes the rest alone
  if [[ ${COMP_WORDS[COMP_CWORD]} == [=:] ]]; then before=$current; fi
  COMPREPLY=()
  line=("${line[@]//[\"\'\\]/}")  # the program reads words without quotes
  while IFS=$'\t' read -r word head; do
    case $word in
      :nospace) compopt -o nospace 2>/dev/null ;;
      :files | :folders)
        compopt -o filenames 2>/dev/null
        if [[ $word == :files ]]; then word=-f; else word=-d; fi
        mapfile -t found < <(compgen "$word" -- "${current#"$head"}")
        COMPREPLY+=("${found[@]}")
        ;;
      *) COMPREPLY+=("${word#"$before"}") ;;
    esac
  done < <("$program" completion bash -- "${line[@]:1}" 2>/dev/null)
}
complete -F _orrery orrery
)sh";

constexpr const char* kZsh = R"sh(#compdef orrery
# Completion of orrery's command line, for zsh; a file _orrery in $fpath.
_orrery() {
  local -a offers space
  local word text kind head ret=1
  while IFS=$'\t' read -r word text; do
    case $word in
      (:nospace) space=(-S '') ;;
      (:files | :folders) kind=$word head=$text ;;
      (*) offers+=("${word//:/\\:}:$text") ;;
    esac
  done < <(${words[1]/#\~/$HOME} completion zsh -- "${(@Q)words[2,CURRENT]}" 2>/dev/null)
  (( $#offers )) && _describe value offers "${(@)space}" && ret=0
  [[ -n $head ]] && compset -P "$head"
  case $kind in
    (:files) _files && ret=0 ;;
    (:folders) _files -/ && ret=0 ;;
  esac
  return ret
}
if [[ $funcstack[1] == _orrery ]]; then _orrery "$@"; else compdef _orrery orrery; fi
)sh";

constexpr const char* kFish = R"sh(# Completion of orrery's command line, for fish.
function __orrery_lines
    set -l words (commandline -opc) (commandline -ct)
    set -l program (string replace -r '^~' $HOME $words[1])
    if test "$words" != "$__orrery_words"  # the three lines below ask once for a Tab
        set -g __orrery_words $words
        set -g __orrery_answer (type -q $program; and $program completion fish -- (string replace -ra '["\'\\\\]' '' -- $words[2..-1]) 2>/dev/null)
    end
    string join \n -- $__orrery_answer
end
function __orrery_offers
    for line in (__orrery_lines)
        set -l parts (string split -m 1 \t -- $line)
        switch "$parts[1]:$parts[2]"
            case ':nospace:*' ':files:' ':folders:'  # fish adds no space behind "="; it completes files itself
            case ':files:*'
                __fish_complete_path (string replace -- $parts[2] '' (commandline -ct)) | string replace -r -- '^' $parts[2]
            case ':folders:*'
                __fish_complete_directories (string replace -- $parts[2] '' (commandline -ct)) |
                    string replace -r -- '^' $parts[2]
            case '*'
                echo $line
        end
    end
end
complete -c orrery -f -a '(__orrery_offers)'
complete -c orrery -n 'string match -q -- ":files"\t (__orrery_lines)' -F
complete -c orrery -n 'string match -q -- ":folders"\t (__orrery_lines)' -f -a '(__fish_complete_directories)'
)sh";

struct Shell {
  const char* name;
  const char* script;
};
constexpr Shell kShells[] = {{"bash", kBash}, {"zsh", kZsh}, {"fish", kFish}};

std::string own_name(const CommandDescription& command) { return command.name.substr(command.name.rfind(' ') + 1); }

const OptionDescription* find_option(const CommandDescription& command, std::string_view name) {
  for (const OptionDescription& option : command.options)
    if (std::ranges::find(option.names, name) != option.names.end()) return &option;
  return nullptr;
}

// One line's lines of completions(), of those that begin as `current` does.
class Offers {
 public:
  explicit Offers(std::string current) : current_(std::move(current)) {}

  void word(const std::string& word, const std::string& text = {}) {
    if (word.starts_with(current_)) lines_ += word + "\t" + text + "\n";
  }
  // The values of an option or an argument. `head`: what stands before one in the same word ("--engine=").
  void values(const ValueDescription& value, const std::string& head = {}) {
    for (const std::string& each : value.words) word(head + each);
    for (const std::string& kind : value.name_kinds) {
      const auto listing =
          std::ranges::find(listings(), kind, [](const Listing& l) { return std::string_view(l.name); });
      if (listing == listings().end()) throw std::logic_error("an option offers names of an unknown kind: " + kind);
      for (const std::string& name : listing->names()) word(head + name + value.after_name);
    }
    if (!value.after_name.empty()) lines_ += ":nospace\n";
    if (value.is_file) lines_ += ":files\t" + head + "\n";
    if (value.is_folder) lines_ += ":folders\t" + head + "\n";
  }
  const std::string& lines() const { return lines_; }

 private:
  std::string current_, lines_;
};

// Returns the completions of the last of `words`, one per line. `words` are the words of a command line after the
// program's name; the user is typing the last one, which may still be empty. The lines are:
//   WORD TAB TEXT     a word that begins with the last one; TEXT says what it is for
//   :files TAB HEAD   names of files may follow HEAD, the part of the last word before the file's name ("--json=")
//   :folders TAB HEAD the same for folders
//   :nospace          the shell must not add a space, since the user goes on in the same word (KEY=VALUE)
std::string completions(const CommandDescription& program, std::span<const std::string> words) {
  const std::string current = words.empty() ? "" : words.back();
  const CommandDescription* command = &program;
  const OptionDescription* open = nullptr;  // the option whose value comes next
  std::size_t arguments = 0;
  for (const std::string& word : words.first(words.empty() ? 0 : words.size() - 1)) {
    if (open != nullptr && !(open->value_is_optional && word.starts_with('-'))) {
      open = nullptr;
    } else if (word.size() > 1 && word.starts_with('-')) {
      open = find_option(*command, word);
      if (open != nullptr && open->value.type.empty()) open = nullptr;
    } else if (const auto next = std::ranges::find(command->subcommands, word, own_name);
               arguments == 0 && next != command->subcommands.end()) {
      command = &*next;
    } else {
      ++arguments;
    }
  }
  Offers offers(current);
  const std::size_t equals = current.find('=');
  if (open == nullptr && current.starts_with("--") && equals != std::string::npos) {
    const OptionDescription* const option = find_option(*command, current.substr(0, equals));
    if (option != nullptr) offers.values(option->value, current.substr(0, equals + 1));
  } else if (current.starts_with('-') && (open == nullptr || open->value_is_optional)) {
    for (const OptionDescription& option : command->options)
      for (const std::string& name : option.names) offers.word(name, option.text);
  } else if (open != nullptr) {
    offers.values(open->value);
  } else {
    if (arguments == 0)
      for (const CommandDescription& each : command->subcommands) offers.word(own_name(each), each.text);
    const std::vector<OptionDescription>& all = command->arguments;
    if (arguments < all.size() || (!all.empty() && all.back().is_repeated))
      offers.values(all[std::min(arguments, all.size() - 1)].value);
  }
  return offers.lines();
}

}  // namespace

void add_completion(Command app) {
  struct Arguments {
    std::string shell;
    std::vector<std::string> words;
  };
  auto arguments = std::make_shared<Arguments>();
  const Command command = app.add_subcommand(
      "completion", "What a shell completes: a script for bash, zsh or fish, which asks this program for its options");
  command.footer(
      "Examples:\n  source <(orrery completion bash)                  in ~/.bashrc\n"
      "  orrery completion zsh > ~/.zfunc/_orrery          with fpath+=~/.zfunc before compinit in ~/.zshrc\n"
      "  orrery completion fish > ~/.config/fish/completions/orrery.fish\n"
      "  orrery completion bash -- simulate --eng          what the script asks for\n\n"
      "cmake --install puts all three scripts where the shells look for them.");
  std::vector<std::string> names;
  for (const Shell& shell : kShells) names.emplace_back(shell.name);
  command.add_option("SHELL", arguments->shell, "Which shell the script is for").required().one_of(names);
  const Option words = command.add_option("WORD", arguments->words,
                                          "Instead of the script: what the last of a command line's words may become");
  command.callback([app, arguments, words] {
    for (const Shell& shell : kShells)
      if (arguments->shell == shell.name)
        print(words.is_given() ? completions(app.description(), arguments->words) : shell.script);
  });
}

}  // namespace orrery
