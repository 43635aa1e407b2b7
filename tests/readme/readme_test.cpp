// Is what README.md and docs/ tell a reader so? Every command runs and prints what is shown (refresh.py, beside this
// file, has the rules), those that cannot run here parse, links lead somewhere, and the design documents call things
// what the code calls them.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "strategies/strategy.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;
const fs::path kRoot = ORRERY_SOURCE_DIR;

std::string read(const fs::path& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// What a shell command prints. `code`: its exit code.
std::string printed_by(const std::string& command, int& code) {
  FILE* pipe = popen(("cd '" ORRERY_SOURCE_DIR "' && " + command + " 2>&1").c_str(), "r");
  std::string text;
  std::array<char, 4096> buffer{};
  while (const std::size_t n = fread(buffer.data(), 1, buffer.size(), pipe)) text.append(buffer.data(), n);
  const int status = pclose(pipe);
  code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return text;
}

std::string refresh(const std::string& arguments, int& code) {
  return printed_by("PYTHONDONTWRITEBYTECODE=1 python3 tests/readme/refresh.py " + arguments, code);
}

// All Markdown files of the repository under `folder`, relative to its root.
std::vector<std::string> markdown(const fs::path& folder) {
  std::vector<std::string> pages;
  for (auto at = fs::recursive_directory_iterator(folder); at != fs::recursive_directory_iterator(); ++at) {
    const std::string name = at->path().filename().string();
    if (at->is_directory() && (name.starts_with(".") || name == "build"))
      at.disable_recursion_pending();
    else if (name.ends_with(".md"))
      pages.push_back(fs::relative(at->path(), kRoot).string());
  }
  std::sort(pages.begin(), pages.end());
  return pages;
}

// The pages that a user reads from top to bottom.
std::vector<std::string> guide() {
  std::vector<std::string> pages = markdown(kRoot / "docs");
  pages.insert(pages.begin(), "README.md");
  return pages;
}

std::string test_name(const testing::TestParamInfo<std::string>& page) {
  std::string name = page.param;
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

// The page without its blocks of code.
std::string prose(const std::string& page) {
  std::istringstream in(page);
  std::string text;
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("```"))
      inside = !inside;
    else if (!inside)
      text += line + "\n";
  }
  return text;
}

// What stands between backticks, lines joined.
std::vector<std::string> inline_code(const std::string& page) {
  static const std::regex code("`([^`]+)`");
  const std::string text = std::regex_replace(prose(page), std::regex("\n"), " ");
  std::vector<std::string> found;
  for (std::sregex_iterator at(text.begin(), text.end(), code), end; at != end; ++at) found.push_back((*at)[1]);
  return found;
}

// ---- Commands

// The words of a shell command, up to where its output is redirected, piped or commented on.
std::vector<std::string> words(const std::string& line) {
  std::vector<std::string> found;
  std::string word;
  bool begun = false;
  char quote = 0;
  for (const char c : line) {
    if (quote != 0) {
      if (c == quote)
        quote = 0;
      else
        word += c;
    } else if (c == '\'' || c == '"') {
      quote = c;
      begun = true;
    } else if (c == ' ') {
      if (begun) found.push_back(word);
      word.clear();
      begun = false;
    } else if (c == '|' || c == '>' || c == ';' || c == '&' || (c == '#' && !begun)) {
      break;
    } else {
      word += c;
      begun = true;
    }
  }
  if (begun) found.push_back(word);
  return found;
}

// Why `orrery` would refuse these words; empty if it would not.
std::string refusal(const std::vector<std::string>& arguments) {
  const CommandLine line("", "", "orrery");
  const Command app = line.command();
  add_simulate(app);
  add_compare(app);
  add_search(app);
  add_sweep(app);
  add_collective(app);
  add_plan(app);
  add_pack(app);
  add_galvatron(app);
  add_validate(app);
  add_run(app);
  add_calibrate(app);
  add_bench(app);
  add_list(app);
  add_show(app);
  add_schema(app);
  add_completion(app);
  add_manual(app);
  try {
    line.check(arguments);
  } catch (const Exit&) {  // --help
  } catch (const UsageError& error) {
    return error.what();
  }
  return {};
}

class Guide : public testing::TestWithParam<std::string> {};

TEST_P(Guide, PrintsWhatIsShown) {
  int code = 0;
  const std::string problems = refresh(ORRERY_COMMAND " --check " + GetParam(), code);
  EXPECT_EQ(code, 0) << problems;
}

TEST_P(Guide, CommandsThatAreNotRunParse) {
  int code = 0;
  std::istringstream lines(refresh("--not-run " + GetParam(), code));
  ASSERT_EQ(code, 0);
  std::vector<std::string> commands = inline_code(read(kRoot / GetParam()));
  for (std::string line; std::getline(lines, line);) commands.push_back(line);
  for (const std::string& command : commands) {
    std::vector<std::string> all = words(command);
    if (all.size() < 2 || all.front() != "orrery") continue;
    all.erase(all.begin());
    EXPECT_EQ(refusal(all), "") << command;
  }
}

INSTANTIATE_TEST_SUITE_P(Page, Guide, testing::ValuesIn(guide()), test_name);

// Does the check refuse what a program would?
TEST(GuideRules, ACommandWithAMistakeIsRefused) {
  EXPECT_EQ(refusal(words("simulate S --json - | jq .mfu")), "");
  EXPECT_EQ(refusal(words("simulate S --set 'cluster={\"device\": \"H20\"}' # a comment")), "");
  EXPECT_NE(refusal(words("simulate S --jsn -")), "");
  EXPECT_NE(refusal(words("simulate S --engine quantum")), "");
  EXPECT_NE(refusal(words("simulat S")), "");
  EXPECT_NE(refusal(words("calibrate import")), "");
}

// ... and what is shown that is not printed, a script that fails, a block that needs one before it, a table's cell?
TEST(GuideRules, APageWithAMistakeIsRefused) {
  std::string name = (fs::path(testing::TempDir()) / "orrery_guide_XXXXXX").string();
  ASSERT_NE(mkdtemp(name.data()), nullptr);
  const fs::path folder = name;
  const auto problems = [&](const std::string& page) {
    std::ofstream(folder / "page.md") << page;
    int code = 0;
    std::string text = refresh(ORRERY_COMMAND " --check '" + (folder / "page.md").string() + "'", code);
    return code == 0 ? "" : text;
  };
  EXPECT_EQ(problems("```console\n$ echo a; \\\n>   echo b\na\nb\n$ printf 'a\\nb\\nc\\nd\\n'\n...\nb\n...\nd\n```\n"),
            "");
  EXPECT_NE(problems("```console\n$ echo a\nb\n```\n"), "");
  EXPECT_NE(problems("```console\n$ printf 'a\\nb\\n'\na\n```\n"), "");
  EXPECT_NE(problems("```console\n$ printf 'a\\nb\\nc\\n'\n...\nc\n...\nb\n...\n```\n"), "");
  EXPECT_EQ(problems("```jsonc\n// mine.json\n{}\n```\n```sh\ngrep -q '{}' mine.json\n```\n"), "");
  EXPECT_NE(problems("```sh\nfalse\ntrue\n```\n"), "");
  EXPECT_EQ(problems("```sh needs=gpu\nfalse\n```\n"), "");
  const std::string table =
      "<!-- orrery simulate zeropp: zero, des zero\n\n-->\n| p | step | des |\n|---|---|---|\n| 8 | 0 s | 0 ms |\n";
  EXPECT_NE(problems(table), "") << "no such field";
  const auto of_devices = [](const std::string& cell) {
    return "<!-- orrery simulate zeropp: devices / 2\n\n-->\n| p | half |\n|---|---|\n| 8 | " + cell + " |\n";
  };
  EXPECT_EQ(problems(of_devices("32")), "");
  EXPECT_NE(problems(of_devices("31")), "");
  EXPECT_NE(problems(of_devices("many")), "");
  fs::remove_all(folder);
}

TEST(Readme, TablesOfStrategiesAreAsPredicted) {
  int code = 0;
  const std::string problems = refresh(ORRERY_COMMAND " --check-tables", code);
  EXPECT_EQ(code, 0) << problems;
}

TEST(Readme, PicturesAreAsDrawn) {
  int code = 0;
  const std::string drawn = printed_by(ORRERY_COMMAND " simulate results/figures/interleaved.json --svg -", code);
  EXPECT_TRUE(drawn == read(kRoot / "results/figures/interleaved.svg"))
      << "tests/readme/refresh.py draws results/figures/interleaved.svg anew";
}

TEST(Readme, TheScenarioShownIsTheBundledOne) {
  const std::string page = read(kRoot / "README.md");
  const std::size_t begin = page.find("```json\n") + 8;
  const auto parsed = [](const std::string& text) {
    return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/true, /*ignore_comments=*/true);
  };
  EXPECT_EQ(parsed(page.substr(begin, page.find("```", begin) - begin)),
            parsed(read(kRoot / "strategies/pipeline_parallel/example-llama-3-70b-512-h100.json")));
}

// ---- Links

// As GitHub makes a heading's anchor.
std::string anchor(const std::string& heading) {
  std::string text;
  for (const char c : heading) {
    if (c == ' ')
      text += '-';
    else if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || (c & 0x80) != 0)
      text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return text;
}

std::set<std::string> anchors(const fs::path& page) {
  std::istringstream in(prose(read(page)));
  std::set<std::string> found;
  for (std::string line; std::getline(in, line);)
    if (const std::size_t level = line.find_first_not_of('#'); level > 0 && level != std::string::npos)
      found.insert(anchor(line.substr(line.find_first_not_of(' ', level))));
  return found;
}

TEST(Readme, LinksAndPicturesExist) {
  static const std::regex link(R"re(\]\(([^)\s]+)\)|(?:src|href)="([^"]+)")re");
  std::size_t links = 0;
  for (const std::string& page : markdown(kRoot)) {
    const std::string text = prose(read(kRoot / page));
    for (std::sregex_iterator at(text.begin(), text.end(), link), end; at != end; ++at) {
      const std::string target = (*at)[1].matched ? (*at)[1] : (*at)[2];
      if (target.find("://") != std::string::npos) continue;
      ++links;
      const std::size_t hash = std::min(target.find('#'), target.size());
      const fs::path file = hash == 0 ? kRoot / page : (kRoot / page).parent_path() / target.substr(0, hash);
      EXPECT_TRUE(fs::exists(file)) << page << " links to " << target;
      if (hash < target.size() && fs::exists(file)) {
        EXPECT_TRUE(anchors(file).contains(target.substr(hash + 1))) << page << " links to " << target;
      }
    }
  }
  EXPECT_GE(links, 100u);
}

// ---- Names

// Every word that any source file of these folders holds, comments included.
std::set<std::string> words_of_the_code() {
  std::set<std::string> found;
  for (const char* folder : {"sim", "strategies", "study", "models", "realrun", "tests"})
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / folder)) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".h" && extension != ".cpp") continue;
      std::string word;
      for (const char c : read(entry.path()) + " ") {
        if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_') {
          word += c;
        } else if (!word.empty()) {
          found.insert(std::move(word));
          word.clear();
        }
      }
    }
  return found;
}

TEST(Readme, DesignDocumentsUseTheCodesNames) {
  const std::set<std::string> known = words_of_the_code();
  static const std::regex path(R"([a-z_]+(/[A-Za-z0-9_.]+)+)");
  static const std::regex name(R"([A-Za-z_]\w*((::|\.|->)[A-Za-z_]\w*)*(\(\))?)");
  static const std::regex part(R"([A-Za-z_]\w*)");
  std::size_t names = 0;
  for (const std::string& page : markdown(kRoot / "docs" / "design"))
    for (const std::string& code : inline_code(read(kRoot / page))) {
      if (std::regex_match(code, path)) {
        EXPECT_TRUE(fs::exists(kRoot / code)) << page << " speaks of " << code;
      } else if (std::regex_match(code, name)) {
        for (std::sregex_iterator at(code.begin(), code.end(), part), end; at != end; ++at, ++names)
          EXPECT_TRUE(known.contains(at->str())) << page << " speaks of " << code;
      }
    }
  EXPECT_GE(names, 100u);
}

// Two types of one name in one namespace are one to the linker, which then keeps the wrong destructor of one of them.
TEST(Headers, DefineEachTypeOnce) {
  static const std::regex opens(R"((namespace [\w:]*|(?:struct|class) \w+[^;()]*) \{)");
  std::map<std::string, fs::path> seen;
  for (const char* room : {"sim", "models", "strategies", "study", "realrun", "traces", "cli", "python"})
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / room)) {
      if (entry.path().extension() != ".h") continue;
      std::ifstream file(entry.path());
      std::string space;
      for (std::string line; std::getline(file, line);) {
        if (line.empty() || std::isspace(static_cast<unsigned char>(line.front()))) continue;
        std::smatch found;
        if (!std::regex_search(line, found, opens, std::regex_constants::match_continuous)) continue;
        std::istringstream words(found.str(1));
        std::string kind, name;
        words >> kind >> name;
        if (kind == "namespace") {
          space = name;
        } else {
          const auto [at, fresh] = seen.emplace(space + "::" + name, entry.path());
          EXPECT_TRUE(fresh) << at->first << " is in " << at->second << " and in " << entry.path();
        }
      }
    }
  EXPECT_GE(seen.size(), 300u);
}

// ---- Strategies

bool is_code(const fs::path& file) {
  static const std::set<std::string> extensions{".h", ".cpp", ".cu", ".cuh", ".py"};
  return extensions.contains(file.extension().string());
}

std::set<std::string> words_of(const std::string& text) {
  std::set<std::string> words;
  for (auto at = text.begin(); at != text.end();) {
    const auto begins = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
    const auto end = std::find_if_not(at, text.end(), begins);
    if (end != at) words.emplace(at, end);
    at = std::find_if(end, text.end(), begins);
  }
  return words;
}

// Without comments and literals.
std::string bare(const std::string& code) {
  static const std::regex apart(R"(//[^\n]*|"(\\.|[^"\\\n])*")");
  return std::regex_replace(code, apart, " ");
}

// Folders of strategies whose headers the files of a folder include.
std::set<std::string> included_by(const std::string& folder) {
  static const std::regex include(R"(#include "strategies/(\w+)/)");
  std::set<std::string> others;
  for (const auto& entry : fs::directory_iterator(kRoot / "strategies" / folder)) {
    if (!is_code(entry.path())) continue;
    const std::string text = read(entry.path());
    for (std::sregex_iterator at(text.begin(), text.end(), include), end; at != end; ++at)
      if (at->str(1) != folder) others.insert(at->str(1));
  }
  return others;
}

// What every training has may be known to all. The others answer by members of Strategy alone.
TEST(Strategies, AreKnownByNameToThemselvesAlone) {
  std::set<std::string> names;
  for (const Strategy& strategy : all_strategies()) names.emplace(strategy.name);
  for (const char* usual : {"activation_offload", "activation_recompute", "batch", "context_parallel", "data_parallel",
                            "expert_parallel", "framework", "freeze", "gradient_accumulation", "offload", "optimizer",
                            "pipeline_parallel", "precision", "tensor_parallel"})
    ASSERT_EQ(names.erase(usual), 1u) << usual;
  std::size_t files = 0;
  for (const char* room : {"sim", "models", "strategies", "study", "realrun", "traces", "cli", "python"})
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / room)) {
      if (!is_code(entry.path())) continue;
      const fs::path path = fs::relative(entry.path(), kRoot);
      if (path == "strategies/plan.h" || path == "strategies/strategies.cpp") continue;
      ++files;
      const bool of_strategies = path.begin()->string() == "strategies";
      const std::string folder = path.parent_path().filename().string(), text = read(entry.path());
      const std::set<std::string> known =
          of_strategies && folder != "strategies" ? included_by(folder) : std::set<std::string>();
      for (const std::string& word : words_of(of_strategies ? bare(text) : text))
        if (names.contains(word) && word != folder && !known.contains(word)) {
          ADD_FAILURE() << path << " has the word \"" << word << "\", which is the name of a strategy";
        }
    }
  EXPECT_GE(files, 500u);
}

TEST(Strategies, BringTopicsOfTheirOwn) {
  std::map<std::string_view, std::string_view> seen;
  for (const Strategy& strategy : all_strategies())
    for (const Topic& topic : strategy.topics) {
      EXPECT_FALSE(topic.summary.empty()) << strategy.name;
      for (const std::string_view name : topic.names) {
        const auto [at, fresh] = seen.emplace(name, strategy.name);
        EXPECT_TRUE(fresh) << name << " is a topic of " << at->second << " and of " << strategy.name;
      }
    }
  EXPECT_GE(seen.size(), 5u);
}

TEST(Strategies, IncludeInNoCircle) {
  std::map<std::string, std::set<std::string>> left;
  for (const auto& entry : fs::directory_iterator(kRoot / "strategies"))
    if (entry.is_directory()) left[entry.path().filename()] = included_by(entry.path().filename());
  EXPECT_GE(left.size(), 25u);
  // Those go that include none of the others, or that none includes; a circle stays.
  const auto is_included = [&](const std::string& folder) {
    return std::ranges::any_of(left, [&](const auto& other) { return other.second.contains(folder); });
  };
  while (std::erase_if(left, [&](const auto& folder) {
           return !is_included(folder.first) ||
                  std::ranges::none_of(folder.second, [&](const std::string& other) { return left.contains(other); });
         }) > 0) {
  }
  for (const auto& [folder, others] : left)
    ADD_FAILURE() << folder << " is in a circle: it includes " << testing::PrintToString(others);
}

}  // namespace
}  // namespace orrery
