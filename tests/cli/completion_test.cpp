// Do the manual page and the shells' completion have all that --help has, and do programs that read them take them?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cli/command.h"

namespace orrery {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

std::vector<std::string> printed_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

bool has_program(const char* name) { return Workplace().shell(std::string("command -v ") + name).code == 0; }

// A command as its --help shows it.
struct Help {
  std::string command;                       // "bench compare"
  std::string first;                         // line
  std::set<std::string> options, arguments;  // "-h", "--help"; "SCENARIO"
  std::vector<std::string> subcommands;
  bool has_examples = false;
};

Help read_help(const std::string& command, const std::string& text) {
  static const std::regex option(R"(^  ((?:-\w,)?--[\w-]+)\b.*)"), name(R"(^  (\w+)\b.*)");
  Help help{command, printed_lines(text).front(), {}, {}, {}, false};
  std::string section;
  for (const std::string& line : printed_lines(text)) {
    std::smatch found;
    if (!line.empty() && line.back() == ':' && std::isupper(static_cast<unsigned char>(line.front())) != 0) {
      section = line;
    } else if (section == "Options:" && std::regex_match(line, found, option)) {
      std::istringstream names(found[1]);
      for (std::string each; std::getline(names, each, ',');) help.options.insert(each);
    } else if (section == "Subcommands:" && std::regex_match(line, found, name)) {
      help.subcommands.push_back(found[1]);
    } else if (section == "Positionals:" && std::regex_match(line, found, name)) {
      help.arguments.insert(found[1]);
    } else if (section == "Examples:" && line.starts_with("  ")) {
      help.has_examples = true;
    }
  }
  return help;
}

// Of `orrery` and all its commands.
const std::vector<Help>& all_help() {
  static const std::vector<Help> all = [] {
    const Workplace place;
    std::vector<Help> commands;
    for (std::vector<std::string> open{""}; !open.empty();) {
      const std::string command = open.back();
      open.pop_back();
      commands.push_back(read_help(command, place.orrery(command + " --help").out));
      for (const std::string& subcommand : commands.back().subcommands)
        open.push_back(command + (command.empty() ? "" : " ") + subcommand);
    }
    return commands;
  }();
  return all;
}

TEST(Help, BeginsWithWhatTheCommandAnswers) {
  ASSERT_GE(all_help().size(), 18u);
  static const std::regex answer("(How|What|Which|In which) .*[^.?]");
  for (const Help& help : all_help()) {
    EXPECT_TRUE(std::regex_match(help.first, answer)) << help.command << ": " << help.first;
    EXPECT_TRUE(help.has_examples) << help.command;
  }
}

// ---- The manual page

std::string manual_of_all() { return Workplace().orrery("man").out; }

// Of the page's section (.SH) the part (.SS) of one command.
std::string part_of(const std::string& page, const std::string& section, const std::string& command) {
  const std::size_t begin = page.find("\n.SH " + section + "\n");
  const std::string text = page.substr(begin + 1, page.find("\n.SH ", begin + 1) - begin);
  const std::string head = "\n.SS orrery" + (command.empty() ? "" : " " + command) + "\n";
  const std::size_t part = text.find(head);
  return part == std::string::npos ? "" : text.substr(part, text.find("\n.SS ", part + 1) - part);
}

std::string in_roff(const std::string& text) { return std::regex_replace(text, std::regex("-"), "\\-"); }

TEST(Manual, HasEveryOptionOfEveryCommand) {
  const std::string page = manual_of_all();
  for (const Help& help : all_help()) {
    const std::string part = part_of(page, "OPTIONS", help.command);
    EXPECT_THAT(part, HasSubstr(".SS orrery")) << help.command;
    for (const std::string& option : help.options)
      EXPECT_THAT(part, HasSubstr("\\fB" + in_roff(option) + "\\fR")) << help.command;
    for (const std::string& argument : help.arguments)
      EXPECT_THAT(part, HasSubstr(".TP\n\\fI" + argument + "\\fR")) << help.command;
    EXPECT_THAT(part_of(page, "EXAMPLES", help.command), HasSubstr("\\fBorrery ")) << help.command;
  }
}

TEST(Manual, SaysWhatAValueCanBe) {
  const std::string page = manual_of_all();
  EXPECT_THAT(
      part_of(page, "OPTIONS", "simulate"),
      AllOf(HasSubstr("one of \\fBanalytical\\fR, \\fBdes\\fR, \\fBboth\\fR"), HasSubstr("orrery list scenarios")));
  EXPECT_THAT(part_of(page, "OPTIONS", "run"), HasSubstr("(a whole number from 0 to 1000000; default: 10)"));
  EXPECT_THAT(part_of(page, "EXIT STATUS", "bench compare"), HasSubstr(".TP\n\\fB3\\fR\nnothing could be told"));
  const std::size_t exits = page.find(".SH EXIT STATUS\n");
  for (const char* code : {"0", "1", "2", "3"})
    EXPECT_NE(page.find(std::string(".TP\n\\fB") + code + "\\fR\n", exits), std::string::npos) << code;
}

TEST(Manual, IsTheSameEachTimeAndInOrder) {
  const std::string page = manual_of_all();
  EXPECT_EQ(page, manual_of_all());
  std::size_t at = 0;
  for (const char* section : {"NAME\norrery \\- how long a training step", "SYNOPSIS", "DESCRIPTION", "OPTIONS",
                              "EXAMPLES", "EXIT STATUS", "FILES", "SEE ALSO"}) {
    const std::size_t found = page.find(std::string("\n.SH ") + section);
    ASSERT_NE(found, std::string::npos) << section;
    EXPECT_GT(found, at) << section;
    at = found;
  }
  EXPECT_TRUE(std::all_of(page.begin(), page.end(), [](char c) { return (c & 0x80) == 0; }));
}

TEST(Manual, FormatsWithoutAWarning) {
  if (!has_program("groff")) GTEST_SKIP() << "groff is not installed";
  const auto formatted = Workplace().shell("$ORRERY man | groff -man -Tutf8 -ww -P-cbou");
  EXPECT_EQ(formatted.code, 0);
  EXPECT_THAT(formatted.err, IsEmpty());
  EXPECT_THAT(formatted.out, AllOf(HasSubstr("--explain OP|TERM"), HasSubstr("`orrery calibrate`"),
                                   HasSubstr("show links straggler 'node0.nic*'")));
}

// ---- Shells

TEST(Completion, RefusesAShellThatItDoesNotKnow) {
  const auto result = Workplace().orrery("completion tcsh");
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.out, IsEmpty());
  EXPECT_THAT(result.err, AllOf(StartsWith("orrery: error: "), HasSubstr("tcsh"), HasSubstr("fish")));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1);
}

std::string in_quotes(const std::string& word) {
  return "'" + std::regex_replace(word, std::regex("'"), R"('\'')") + "'";
}

// As bash splits a line behind its first word, at blanks and at "=" and ":".
std::vector<std::string> bash_words(const std::string& line) {
  std::vector<std::string> words{""};
  for (const char c : line) {
    const bool breaks = c == '=' || c == ':';
    const bool follows = !words.back().empty() && words.back() != "=" && words.back() != ":";
    if (c == ' ' ? !words.back().empty() : breaks || !follows) {
      if (!words.back().empty()) words.emplace_back();
    }
    if (c != ' ') words.back() += c;
  }
  return words;
}

// What bash offers for each line, of which "orrery" is left out.
std::vector<std::set<std::string>> offered(const Workplace& place, const std::vector<std::string>& lines) {
  std::string script = "source <(\"$ORRERY\" completion bash) || exit 1\n";
  for (const std::string& line : lines) {
    std::string words;
    for (const std::string& word : bash_words(line)) words += " " + in_quotes(word);
    script += "COMP_LINE=" + in_quotes("orrery " + line) + "; COMP_POINT=${#COMP_LINE}; COMP_WORDS=(\"$ORRERY\"" +
              words + "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _orrery; printf '%s\\n' \"${COMPREPLY[@]}\" --end--\n";
  }
  const CommandResult result = place.shell(script);
  EXPECT_EQ(result.err, "");
  std::vector<std::set<std::string>> all(1);
  for (const std::string& word : printed_lines(result.out)) {
    if (word == "--end--") {
      all.emplace_back();
    } else if (!word.empty()) {
      all.back().insert(word);
    }
  }
  all.pop_back();
  EXPECT_EQ(all.size(), lines.size());
  all.resize(lines.size());
  return all;
}

std::set<std::string> offered(const Workplace& place, const std::string& line) {
  return offered(place, std::vector<std::string>{line}).front();
}

TEST(BashCompletion, OffersEveryOptionAndSubcommand) {
  const Workplace place;
  EXPECT_EQ(place.shell("\"$ORRERY\" completion bash | bash -n").code, 0);
  std::vector<std::string> lines;
  for (const Help& help : all_help()) {
    const std::string before = help.command + (help.command.empty() ? "" : " ");
    lines.push_back(before + "-");
    lines.push_back(before);
  }
  const auto sets = offered(place, lines);
  for (std::size_t i = 0; i < all_help().size(); ++i) {
    EXPECT_EQ(sets[2 * i], all_help()[i].options) << lines[2 * i];
    for (const std::string& subcommand : all_help()[i].subcommands)
      EXPECT_THAT(sets[2 * i + 1], Contains(subcommand)) << lines[2 * i + 1];
  }
}

TEST(BashCompletion, OffersWordsNamesAndFiles) {
  const Workplace place;
  place.write("plan.json", "{}");
  place.write("with blank.json", "{}");
  place.write("folder/inside.json", "{}");
  const auto only = [&](const std::string& line) { return offered(place, line); };
  EXPECT_THAT(only("sim"), ElementsAre("simulate"));
  EXPECT_THAT(only("simulate --engine "), ElementsAre("analytical", "both", "des"));
  EXPECT_THAT(only("simulate --engine=d"), ElementsAre("des"));
  EXPECT_THAT(only("simulate --engine="), ElementsAre("analytical", "both", "des"));
  EXPECT_THAT(only("simulate x --ops --fid"), ElementsAre("--fidelity"));
  EXPECT_THAT(only("simulate llama-3-70b"), ElementsAre("llama-3-70b-512-h100"));
  EXPECT_THAT(only("simulate korth-t5-megatron-1T"), Contains("korth-t5-megatron-1T-full"));
  EXPECT_THAT(only("simulate pl"), ElementsAre("plan.json"));
  EXPECT_THAT(only("simulate with"), ElementsAre("with blank.json"));
  EXPECT_THAT(only("simulate small-gpt --json folder/"), ElementsAre("folder/inside.json"));
  EXPECT_THAT(only("simulate --json=pl"), ElementsAre("plan.json"));
  EXPECT_THAT(only("simulate small-gpt --set plan.sequence_par"), ElementsAre("plan.sequence_parallel="));
  EXPECT_THAT(only("simulate small-gpt --set=plan.sequence_par"), ElementsAre("plan.sequence_parallel="));
  EXPECT_THAT(only("simulate small-gpt --set \"plan.sequence_par"), ElementsAre("plan.sequence_parallel="));
  EXPECT_THAT(only("simulate small-gpt --set plan.tensor_parallel=4 --en"), ElementsAre("--engine"));
  EXPECT_THAT(only("simulate small-gpt --label "), IsEmpty()) << "any text";
  EXPECT_THAT(only("simulate small-gpt sma"), IsEmpty()) << "one scenario";
  EXPECT_THAT(only("compare --set plan.tensor_parallel=4 small-gpt stra"), ElementsAre("straggler"));
  EXPECT_THAT(only("collective all_r"), ElementsAre("all_reduce"));
  EXPECT_THAT(only("collective --node dgx-h10"), ElementsAre("dgx-h100"));
  EXPECT_THAT(only("collective --measured --csv pl"), ElementsAre("plan.json"));
  EXPECT_THAT(only("calibrate import --collective all_r"), ElementsAre("all_reduce"));
  EXPECT_THAT(only("calibrate import a.log pl"), ElementsAre("plan.json"));
  EXPECT_THAT(only("bench --filter compare --dev"), ElementsAre("--device"));
  EXPECT_THAT(only("bench compare pl"), ElementsAre("plan.json"));
  EXPECT_THAT(only("show lin"), ElementsAre("links"));
  EXPECT_THAT(only("show links eo"), ElementsAre("eos", "eos-dfw"));
  EXPECT_THAT(only("completion "), ElementsAre("bash", "fish", "zsh"));
  EXPECT_THAT(only("schema "), IsEmpty());
}

TEST(Completion, OffersNamesOfEachOptionThatTakesThem) {
  const Workplace place;
  for (const char* line : {"simulate", "simulate --set", "search --over", "sweep", "collective --cluster",
                           "collective --node", "collective --device", "plan", "show", "show links", "validate --gpu",
                           "calibrate --preset", "pack --scenario"}) {
    const CommandResult offers = place.orrery(std::string("completion zsh -- ") + line + " ''");
    EXPECT_EQ(offers.code, 0) << offers.err;
    EXPECT_THAT(offers.out, HasSubstr("\t\n")) << line;
  }
}

TEST(Completion, SaysWhatAnOfferIsFor) {
  const Workplace place;
  EXPECT_EQ(place.orrery("completion fish -- simulate --fid").out,
            "--fidelity\tdes: collectives as steady flows, or message by message\n");
  EXPECT_EQ(place.orrery("completion fish -- simulate --json=x").out, ":files\t--json=\n");
  EXPECT_EQ(place.orrery("completion fish -- completion b").out, "bash\t\n");
}

TEST(ZshCompletion, IsTakenByZsh) {
  EXPECT_THAT(Workplace().orrery("completion zsh").out, StartsWith("#compdef orrery\n"));
  if (!has_program("zsh")) GTEST_SKIP() << "zsh is not installed";
  const auto read = Workplace().shell("\"$ORRERY\" completion zsh > _orrery && zsh -n _orrery");
  EXPECT_EQ(read.code, 0) << read.err;
}

TEST(FishCompletion, CompletesInFish) {
  if (!has_program("fish")) GTEST_SKIP() << "fish is not installed";
  const Workplace place;
  place.write("plan.json", "{}");
  const auto offers = [&](const std::string& line) {
    const auto result = place.shell(
        "PATH=\"$(dirname \"$ORRERY\"):$PATH\" HOME=$PWD fish --no-config -c "
        "'orrery completion fish | source; complete -C \"orrery " +
        line + "\"'");
    EXPECT_EQ(result.err, "");
    std::set<std::string> words;
    for (const std::string& offer : printed_lines(result.out)) words.insert(offer.substr(0, offer.find('\t')));
    return words;
  };
  EXPECT_THAT(offers("sim"), ElementsAre("simulate"));
  EXPECT_THAT(offers("simulate --engine "), ElementsAre("analytical", "both", "des"));
  EXPECT_THAT(offers("simulate llama-3-70b"), ElementsAre("llama-3-70b-512-h100"));
  EXPECT_THAT(offers("simulate --engine=d"), ElementsAre("--engine=des"));
  EXPECT_THAT(offers("simulate small-gpt --json pl"), ElementsAre("plan.json"));
  EXPECT_THAT(offers("simulate small-gpt --json=pl"), ElementsAre("--json=plan.json"));
  EXPECT_THAT(offers("simulate ~/pl"), ElementsAre("~/plan.json"));
  EXPECT_THAT(offers("bench compare --thr"), ElementsAre("--threshold"));
  EXPECT_THAT(offers("bench --filter compare --rep"), ElementsAre("--repetitions"));
}

// ---- Installation

TEST(Install, PutsManualCompletionAndSchemaWhereTheyAreLookedFor) {
  const Workplace place;
  const auto installed =
      place.shell("cmake --install \"$(dirname \"$ORRERY\")\" --component pages --prefix \"$PWD/usr\"");
  ASSERT_EQ(installed.code, 0) << installed.err;
  EXPECT_THAT(place.files(),
              ElementsAre("usr/share/bash-completion/completions/orrery",
                          "usr/share/fish/vendor_completions.d/orrery.fish", "usr/share/man/man1/orrery.1",
                          "usr/share/orrery/scenario.schema.json", "usr/share/zsh/site-functions/_orrery"));
  EXPECT_EQ(place.read("usr/share/man/man1/orrery.1"), place.orrery("man").out);
  EXPECT_EQ(place.read("usr/share/orrery/scenario.schema.json"), place.orrery("schema").out);
  for (const auto& [file, shell] : {std::pair("bash-completion/completions/orrery", "bash"),
                                    {"fish/vendor_completions.d/orrery.fish", "fish"},
                                    {"zsh/site-functions/_orrery", "zsh"}})
    EXPECT_EQ(place.read(std::string("usr/share/") + file), place.orrery(std::string("completion ") + shell).out);
}

}  // namespace
}  // namespace orrery
