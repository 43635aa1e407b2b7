#include <optional>

#include "cli/command.h"
#include "tests/fuzz/targets.h"

namespace orrery {

// One option of each kind that a command can have.
void fuzz::command_line(std::string_view input) {
  std::string text, word = "a", either, bytes;
  std::vector<std::string> several, one_each;
  std::int64_t count = 1;
  std::optional<std::int64_t> maybe;
  std::uint64_t seed = 0, size = 0;
  double share = 0.5;
  bool flag = false;
  const CommandLine line("A program.", "Examples: none", "0");
  const Command command = line.command().add_subcommand("simulate", "a subcommand");
  command.add_option("SCENARIO", text, "a word").required();
  command.add_option("-s,--set", one_each, "a value each").one_value_each().type_name("KEY=VALUE");
  command.add_option("--calibration", several, "values");
  command.add_option("--engine", word, "one of").one_of({"a", "b"}).capture_default();
  command.add_option("--kind", either, "one of, in any case").one_of({"all_reduce", "all_gather"}, true);
  command.add_option("-b,--minbytes", size, "a size").bytes();
  command.add_option("-n,--count", count, "a count").between(1, 1000);
  command.add_option("--limit", maybe, "a count, or none").positive();
  command.add_option("--seed", seed, "a number");
  command.add_option("--share", share, "a share").within(0, 1);
  command
      .add_option(
          "--json", [](const std::string&) {}, "with a value or without", "FILE")
      .value_optional();
  command.add_flag("--verify", flag, "a flag");
  bool ran = false;
  command.callback([&] { ran = true; });
  line.command().add_subcommand("show", "another").add_option("NAME", bytes, "a name");

  std::vector<std::string> words{"program"};
  for (std::size_t begin = 0; begin < input.size();) {
    const std::size_t end = std::min(input.find('\n', begin), input.size());
    words.emplace_back(input.substr(begin, end - begin));
    begin = end + 1;
  }
  std::vector<const char*> arguments;
  for (const std::string& of : words) arguments.push_back(of.c_str());
  try {
    line.parse(static_cast<int>(arguments.size()), arguments.data());
    if (ran) require(1 <= count && count <= 1000 && 0 <= share && share <= 1, "a value is within its range");
  } catch (const UsageError& error) {
    require(*error.what() != '\0', "what was wrong is said");
  } catch (const Exit& end) {
    require(end.code == 0 && !end.text.empty(), "help and version are shown");
  }
}

}  // namespace orrery
