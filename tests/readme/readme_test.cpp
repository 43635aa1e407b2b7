// Do all README examples run and print what the README shows? In ```console blocks, lines that begin with "$ " are
// commands; what follows is their output, where a line "..." stands for any number of lines.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

namespace {

struct Example {
  std::string command;
  std::vector<std::string> output;
};

std::vector<Example> examples(const std::string& path) {
  std::ifstream in(path);
  std::vector<Example> found;
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("```")) {
      inside = line == "```console";
    } else if (inside && line.starts_with("$ ")) {
      found.push_back({line.substr(2), {}});
    } else if (inside && !found.empty()) {
      found.back().output.push_back(line);
    }
  }
  return found;
}

std::vector<std::string> run(std::string command) {
  if (command.starts_with("orrery ")) command = std::string(ORRERY_COMMAND) + command.substr(6);
  command = "cd " ORRERY_SOURCE_DIR " && " + command + " 2>&1";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string text;
  std::array<char, 4096> buffer{};
  while (const std::size_t n = fread(buffer.data(), 1, buffer.size(), pipe.get())) text.append(buffer.data(), n);
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    line.erase(line.find_last_not_of(' ') + 1);
    lines.push_back(std::move(line));
    begin = end + 1;
  }
  return lines;
}

bool matches(const std::vector<std::string>& shown, std::size_t i, const std::vector<std::string>& printed, std::size_t j) {
  if (i == shown.size()) return j == printed.size();
  if (shown[i] == "...") {
    for (std::size_t k = j; k <= printed.size(); ++k)
      if (matches(shown, i + 1, printed, k)) return true;
    return false;
  }
  return j < printed.size() && shown[i] == printed[j] && matches(shown, i + 1, printed, j + 1);
}

TEST(Readme, ExamplesPrintWhatIsShown) {
  const std::vector<Example> all = examples(ORRERY_SOURCE_DIR "/README.md");
  ASSERT_GE(all.size(), 5u);
  for (const Example& example : all) {
    const std::vector<std::string> printed = run(example.command);
    std::string text;
    for (const std::string& line : printed) text += line + "\n";
    EXPECT_TRUE(matches(example.output, 0, printed, 0)) << "$ " << example.command << "\nprints\n" << text;
  }
}

TEST(Readme, PicturesAreAsDrawn) {
  std::ifstream in(ORRERY_SOURCE_DIR "/results/figures/interleaved.svg");
  std::vector<std::string> drawn;
  for (std::string line; std::getline(in, line);) {
    line.erase(line.find_last_not_of(' ') + 1);
    drawn.push_back(line);
  }
  EXPECT_TRUE(run("orrery simulate results/figures/interleaved.json --svg -") == drawn)
      << "tests/readme/refresh.py draws results/figures/interleaved.svg anew";
}

}  // namespace
