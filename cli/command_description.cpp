#include "cli/command_description.h"

namespace orrery {

std::vector<const CommandDescription*> with_subcommands(const CommandDescription& command) {
  std::vector<const CommandDescription*> all{&command};
  for (const CommandDescription& subcommand : command.subcommands)
    for (const CommandDescription* each : with_subcommands(subcommand)) all.push_back(each);
  return all;
}

std::string joined(const std::vector<std::string>& words, const char* between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

}  // namespace orrery
