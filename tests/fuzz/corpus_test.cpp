// Do the readers take input, or refuse it in a sentence? Each target runs over its corpus, which holds what fuzzers
// have found, and over changes of the corpus drawn at random. A failing input lies in the folder of temporary files,
// and its name is printed; once the fault is mended, the input becomes a file of the corpus.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <ostream>
#include <random>
#include <set>
#include <vector>

#include "sim/base/error.h"
#include "sim/base/input_file.h"
#include "tests/fuzz/changes.h"

namespace orrery::fuzz {

void PrintTo(const Target& target, std::ostream* out) { *out << target.name; }

namespace {

class FuzzTargets : public testing::TestWithParam<Target> {
 protected:
  static std::vector<std::filesystem::path> corpus() {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(
             std::filesystem::path(ORRERY_SOURCE_DIR) / "tests/fuzz/corpus" / std::string(GetParam().name)))
      files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    return files;
  }
};

TEST_P(FuzzTargets, ReadOrRefuseTheirCorpus) {
  const auto files = corpus();
  ASSERT_FALSE(files.empty());
  Changes changes(GetParam());
  std::size_t read = 0;
  for (const auto& file : files) {
    SCOPED_TRACE(file);
    try {
      if (!changes.run(read_file(file.string(), "a file of the corpus"))) ++read;
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
  EXPECT_GT(read, 0u) << "a corpus of which all is refused leads a fuzzer nowhere";
}

constexpr std::size_t kMostBytes = 16384, kMostInputs = 2000;

// The input that runs, for the handler of signals that would end the process.
std::string running;
std::string kept_at;
void keep_running_input() {
  const int file = ::open(kept_at.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0644);
  if (file < 0 || ::write(file, running.data(), running.size()) < 0) ::perror(kept_at.c_str());
  ::close(file);
}
void keep_and_end(int signal) {
  keep_running_input();
  constexpr std::string_view kSaid =
      "ended by a signal, which after 10 s of processor time is SIGPROF; the input was kept as ";
  for (const std::string_view text : {kSaid, std::string_view(kept_at), std::string_view("\n")})
    if (::write(STDERR_FILENO, text.data(), text.size()) < 0) break;
  ::_exit(128 + signal);
}

void allow_processor_seconds(int seconds) {
  const itimerval timer{{0, 0}, {seconds, 0}};
  ::setitimer(ITIMER_PROF, &timer, nullptr);
}

// One to four changes of bytes: a bit turned, some bytes left out, repeated, or taken from another input.
std::string with_other_bytes(std::string text, const std::vector<std::string>& inputs, std::minstd_rand& random) {
  const auto below = [&](std::size_t end) { return end == 0 ? 0 : random() % end; };
  for (std::size_t left = 1 + below(4); left > 0; --left) {
    const std::size_t at = below(text.size() + 1), length = 1 + below(16);
    const std::string& other = inputs[below(inputs.size())];
    switch (below(5)) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(at, text.substr(at, length));
        break;
      case 3:
        text.insert(at, 1, static_cast<char>(below(256)));
        break;
      default:
        text.insert(at, other, below(other.size()), length);
    }
  }
  text.resize(std::min(text.size(), kMostBytes));
  return text;
}

// The commit is the seed: what passes once passes again on every machine, and the next commit tries other inputs.
unsigned seed_of_commit() {
  unsigned seed = 1;
  const std::string command = "git -C '" ORRERY_SOURCE_DIR "' rev-parse --short=7 HEAD 2>/dev/null";
  if (std::FILE* const pipe = ::popen(command.c_str(), "r")) {
    if (std::fscanf(pipe, "%7x", &seed) != 1) seed = 1;
    ::pclose(pipe);
  }
  return seed;
}

TEST_P(FuzzTargets, ReadOrRefuseWhatNobodyWrote) {
  Changes changes(GetParam());
  std::vector<std::string> inputs;
  for (const auto& file : corpus()) {
    const std::string text = read_file(file.string(), "a file of the corpus");
    if (text.size() <= kMostBytes) inputs.push_back(text);
    changes.run(text);
  }
  ASSERT_FALSE(inputs.empty());
  kept_at = (std::filesystem::temp_directory_path() / ("orrery-fuzz-" + std::string(GetParam().name))).string();
  for (const int signal : {SIGSEGV, SIGFPE, SIGABRT, SIGBUS, SIGILL, SIGPROF}) std::signal(signal, keep_and_end);
  const unsigned seed = seed_of_commit();
  std::minstd_rand random(seed);
  std::set<std::string> refusals;
  for (int i = 0; i < GetParam().changes; ++i) {
    const std::string& from = inputs[random() % inputs.size()];
    const auto document = changes.change(from, kMostBytes, static_cast<unsigned>(random()));
    running = document ? *document : with_other_bytes(from, inputs, random);
    allow_processor_seconds(10);
    try {
      const std::optional<std::string> refusal = changes.run(running);
      // Inputs that come further, or are refused elsewhere, are changed in turn.
      if (inputs.size() < kMostInputs && (!refusal || refusals.insert(*refusal).second)) inputs.push_back(running);
    } catch (const std::exception& error) {
      keep_running_input();
      ADD_FAILURE() << error.what() << "\nseed " << seed << ", change " << i << "; the input was kept as " << kept_at;
      break;
    }
  }
  allow_processor_seconds(0);
}

std::string name_of(const testing::TestParamInfo<Target>& target) { return std::string(target.param.name); }
INSTANTIATE_TEST_SUITE_P(Fuzz, FuzzTargets, testing::ValuesIn(kTargets), name_of);

}  // namespace
}  // namespace orrery::fuzz
