// orrery completion: scripts for shells.
#include "cli/completion.h"

#include <algorithm>
#include <memory>

#include "cli/commands.h"
#include "cli/output.h"

namespace orrery {

std::string shell_quoted(const std::string& text) {
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

std::string as_identifier(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == ' ' || c == '-'; }, '_');
  return text;
}

std::string with_program(std::string text, const std::string& program) {
  const std::string place = "@NAME@", name = as_identifier(program);
  for (std::size_t at = text.find(place); at != std::string::npos; at = text.find(place, at + name.size()))
    text.replace(at, place.size(), name);
  return text;
}

namespace {

struct Shell {
  const char* name;
  std::string (*script)(const std::string&, const CommandDescription&);
};
constexpr Shell kShells[] = {{"bash", bash_completion}, {"zsh", zsh_completion}, {"fish", fish_completion}};

}  // namespace

void add_completion(Command app) {
  auto shell_name = std::make_shared<std::string>();
  const Command command =
      app.add_subcommand("completion", "What a shell completes: a script for bash, zsh or fish, of these very options");
  command.footer(
      "Examples:\n  source <(orrery completion bash)                  in ~/.bashrc\n"
      "  orrery completion zsh > ~/.zfunc/_orrery          with fpath+=~/.zfunc before compinit in ~/.zshrc\n"
      "  orrery completion fish > ~/.config/fish/completions/orrery.fish\n\n"
      "cmake --install puts all three where the shells look for them.");
  std::vector<std::string> names;
  for (const Shell& shell : kShells) names.emplace_back(shell.name);
  command.add_option("SHELL", *shell_name, "Which shell the script is for").required().one_of(names);
  command.callback([app, shell_name] {
    for (const Shell& shell : kShells)
      if (*shell_name == shell.name) print(shell.script("orrery", app.description()));
  });
}

}  // namespace orrery
