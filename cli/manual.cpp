// The commands `orrery man` and `orrery schema`. The first prints the manual page (section 1) in roff's man macros; all
// its text about commands and options comes from the command line's description. The second prints the JSON schema of
// scenarios, for editors and programs.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <vector>

#include "cli/commands.h"
#include "cli/output.h"
#include "sim/base/one_line.h"
#include "strategies/schema.h"
#include "study/answers/inputs.h"

namespace orrery {
namespace {

constexpr const char* kPredicts =
    "Orrery predicts one training step of a dense transformer on a cluster of GPUs under any mix of data, tensor, "
    "sequence, context and pipeline parallelism, ZeRO, recomputation and offload. A scenario, a short JSON file or a "
    "bundled one, says what is trained, where and how; it is lowered to one program, which two engines put a clock on, "
    "in closed form or event by event, and which the command run executes with real kernels and collectives.";
constexpr const char* kPrints =
    "Results are tables on standard output, and JSON, CSV, traces and pictures where options ask for them. Errors are "
    "one line on standard error.";
struct FileEntry {
  const char *name, *what;
};
constexpr FileEntry kFiles[] = {
    {"scenario.json", "A scenario: model, cluster, workload and plan; orrery schema prints what it may contain."},
    {"DEVICE.json, DEVICE.points.jsonl",
     "What orrery calibrate writes for a device, and the journal of its measurements."},
    {"collectives.json", "What orrery calibrate import writes."},
    {"orrery-des, orrery-mpi, orrery-rank, orrery-gpu",
     "Programs next to orrery that it runs: for --engine des, for sweep --mpi, for ranks over MPI, for --device "
     "cuda."}};
constexpr const char* kSeeAlso =
    "\\fBmpirun\\fR(1), \\fBnvidia\\-smi\\fR(1), \\fBjq\\fR(1); https://ui.perfetto.dev for traces";

// Escapes text for roff: "-" and quotes are printed as typed, and no line begins with a request.
std::string roff(std::string_view text) {
  const bool request = text.starts_with('.') || text.starts_with('\'');
  return (request ? "\\&" : "") + escaped(text, {{'\\', "\\e"},
                                                 {'-', "\\-"},
                                                 {'\'', "\\(aq"},
                                                 {'`', "\\(ga"},
                                                 {'^', "\\(ha"},
                                                 {'~', "\\(ti"},
                                                 {'"', "\\(dq"}});
}

std::string bold(std::string_view text) { return "\\fB" + roff(text) + "\\fR"; }
std::string italic(std::string_view text) { return "\\fI" + roff(text) + "\\fR"; }

// The parts of a command's footer (Command::footer).
struct Footer {
  struct Example {
    std::string command, what_for;
  };
  std::vector<Example> examples;
  std::vector<std::string> paragraphs;
  std::string exit_codes;  // "0 done; 2 ..."
};

std::string without_blanks(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(' ');
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

Footer read_footer(const std::string& text) {
  constexpr std::string_view kExitCodes = "Exit codes:";
  Footer footer;
  std::string paragraph;
  bool in_examples = false;
  const auto end_paragraph = [&] {
    if (paragraph.starts_with(kExitCodes)) {
      footer.exit_codes = without_blanks(paragraph.substr(kExitCodes.size()));
      if (footer.exit_codes.ends_with('.')) footer.exit_codes.pop_back();
    } else if (!paragraph.empty()) {
      footer.paragraphs.push_back(paragraph);
    }
    paragraph.clear();
  };
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line == "Examples:") {
      in_examples = true;
    } else if (in_examples && line.starts_with("  ")) {
      const std::string example = without_blanks(line);
      const std::size_t gap = std::min(example.find("  "), example.size());
      footer.examples.push_back({example.substr(0, gap), without_blanks(example.substr(gap))});
    } else {
      in_examples = false;
      if (line.empty()) end_paragraph();
      if (!line.empty()) paragraph += (paragraph.empty() ? "" : " ") + line;
    }
  }
  end_paragraph();
  return footer;
}

// Returns the command and all commands under it, each before its subcommands.
std::vector<const CommandDescription*> with_subcommands(const CommandDescription& command) {
  std::vector<const CommandDescription*> all{&command};
  for (const CommandDescription& subcommand : command.subcommands)
    for (const CommandDescription* each : with_subcommands(subcommand)) all.push_back(each);
  return all;
}

std::string call_of(const CommandDescription& command) {
  return "orrery" + (command.name.empty() ? "" : " " + command.name);
}

std::string synopsis_of(const CommandDescription& command) {
  std::string line = bold(call_of(command)) + " [" + italic("OPTIONS") + "]";
  for (const OptionDescription& argument : command.arguments) {
    const std::string name = italic(argument.names.front()) + (argument.is_repeated ? " ..." : "");
    line += argument.is_required ? " " + name : " [" + name + "]";
  }
  if (!command.subcommands.empty())
    line += command.needs_subcommand ? " " + italic("COMMAND") : " [" + italic("COMMAND") + "]";
  return line + "\n";
}

// Lists a value's possible words and its default.
std::string manual_values(const ValueDescription& value, bool is_required) {
  std::vector<std::string> facts;
  if (!value.range.empty()) facts.push_back(roff(value.range));
  if (!value.words.empty() && value.only_words) {
    std::vector<std::string> words;
    for (const std::string& word : value.words) words.push_back(bold(word));
    facts.push_back(fmt::format("one of {}", fmt::join(words, ", ")));
  }
  if (!value.name_kinds.empty()) {
    std::vector<std::string> kinds;
    for (const std::string& kind : value.name_kinds) kinds.push_back(bold("orrery list " + kind));
    facts.push_back(fmt::format("names: {}", fmt::join(kinds, ", ")));
  }
  if (!value.usual.empty()) facts.push_back("default: " + roff(value.usual));
  if (is_required) facts.push_back("required");
  return facts.empty() ? "" : fmt::format("\n({})", fmt::join(facts, "; "));
}

std::string option_entry(const OptionDescription& option, bool is_argument) {
  std::vector<std::string> names;
  for (const std::string& name : option.names) names.push_back(is_argument ? italic(name) : bold(name));
  std::string head = fmt::format("{}", fmt::join(names, ", "));
  if (!is_argument && !option.value.type.empty()) {
    const std::string value = italic(option.value.type);
    head += option.value_is_optional ? " [" + value + "]" : " " + value;
  }
  if (option.is_repeated) head += " ...";
  return ".TP\n" + head + "\n" + roff(option.text) + manual_values(option.value, option.is_required && !is_argument) +
         "\n";
}

std::string options_of(const CommandDescription& command, const Footer& footer) {
  std::string text = ".SS " + roff(call_of(command)) + "\n" + roff(command.text) + ".\n";
  for (const OptionDescription& argument : command.arguments) text += option_entry(argument, true);
  for (const OptionDescription& option : command.options) text += option_entry(option, false);
  for (const std::string& paragraph : footer.paragraphs) text += ".PP\n" + roff(paragraph) + "\n";
  return text;
}

std::string examples_of(const CommandDescription& command, const Footer& footer) {
  if (footer.examples.empty()) return {};
  std::string text = ".SS " + roff(call_of(command)) + "\n";
  for (const Footer::Example& example : footer.examples) {
    if (&example != &footer.examples.front()) text += ".PP\n";
    text += ".nf\n" + bold(example.command) + "\n.fi\n";
    if (!example.what_for.empty()) text += ".RS 4\n" + roff(example.what_for) + "\n.RE\n";
  }
  return text;
}

// "0 done; 2 the input cannot be used": one entry per code.
std::string exit_entries(const std::string& codes) {
  std::string text;
  for (std::size_t begin = 0; begin < codes.size();) {
    std::size_t end = begin;
    do end = std::min(codes.find("; ", end + 1), codes.size());
    while (end < codes.size() && !(codes[end + 2] >= '0' && codes[end + 2] <= '9'));
    const std::string entry = codes.substr(begin, end - begin);
    const std::size_t blank = std::min(entry.find(' '), entry.size());
    text += ".TP\n" + bold(entry.substr(0, blank)) + "\n" + roff(without_blanks(entry.substr(blank))) + "\n";
    begin = end + 2;
  }
  return text;
}

std::string manual_page(const CommandDescription& command) {
  std::string lead = command.text;
  lead.front() += 'a' - 'A';
  std::string synopses, options, examples, exits;
  for (const CommandDescription* each : with_subcommands(command)) {
    const Footer footer = read_footer(each->footer);
    synopses += (synopses.empty() ? "" : ".br\n") + synopsis_of(*each);
    options += options_of(*each, footer);
    examples += examples_of(*each, footer);
    if (footer.exit_codes.empty()) continue;
    if (each != &command) exits += ".SS " + roff(call_of(*each)) + "\n";
    exits += exit_entries(footer.exit_codes);
  }
  std::string text = fmt::format(
      ".\\\" Made by `orrery man`.\n.TH ORRERY 1 \"{}\" \"orrery {}\" \"User Commands\"\n.nh\n.ad l\n"
      ".SH NAME\norrery \\- {}\n.SH SYNOPSIS\n{}.SH DESCRIPTION\n{}\n.PP\n{}\n.SH OPTIONS\n{}.SH EXAMPLES\n{}"
      ".SH EXIT STATUS\n{}.SH FILES\n",
      build_date(), ORRERY_VERSION, roff(lead), synopses, roff(kPredicts), roff(kPrints), options, examples, exits);
  for (const FileEntry& file : kFiles) text += ".TP\n" + italic(file.name) + "\n" + roff(file.what) + "\n";
  return text + ".SH SEE ALSO\n" + kSeeAlso + "\n";
}

}  // namespace

void add_manual(Command app) {
  const Command command = app.add_subcommand("man", "What all commands and options are, as a manual page");
  command.footer(
      "Examples:\n  orrery man | man -l -                             to read it\n"
      "  orrery man > /usr/local/share/man/man1/orrery.1   what cmake --install does");
  command.callback([app] { print(manual_page(app.description())); });
}

void add_schema(Command app) {
  const Command command = app.add_subcommand("schema", "What a scenario may contain, as a JSON Schema");
  command.footer(
      "Examples:\n  orrery schema > scenario.schema.json     then \"$schema\": \"./scenario.schema.json\" in a "
      "scenario");
  command.callback([] { print(scenario_schema().dump(2) + "\n"); });
}

}  // namespace orrery
