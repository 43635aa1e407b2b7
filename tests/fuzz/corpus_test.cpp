// Do the readers take, or refuse in a sentence, what is known to be hard on them? The corpus of each fuzz target, run
// by the compiler of all other tests. What a fuzzer has found becomes a file of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <ostream>
#include <vector>

#include "sim/base/error.h"
#include "sim/base/input_file.h"
#include "tests/fuzz/targets.h"

namespace orrery::fuzz {

void PrintTo(const Target& target, std::ostream* out) { *out << target.name; }

namespace {

class FuzzCorpus : public testing::TestWithParam<Target> {};

TEST_P(FuzzCorpus, IsReadOrRefused) {
  const std::filesystem::path corpus =
      std::filesystem::path(ORRERY_SOURCE_DIR) / "tests/fuzz/corpus" / std::string(GetParam().name);
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(corpus)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  ASSERT_FALSE(files.empty());
  std::size_t read = 0;
  for (const auto& file : files) {
    SCOPED_TRACE(file);
    try {
      GetParam().run(read_file(file.string(), "a file of the corpus"));
      ++read;
    } catch (const InputError& error) {
      EXPECT_FALSE(error.expected().empty());
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
  EXPECT_GT(read, 0u) << "a corpus of which all is refused leads a fuzzer nowhere";
}

std::string name_of(const testing::TestParamInfo<Target>& target) { return std::string(target.param.name); }
INSTANTIATE_TEST_SUITE_P(Targets, FuzzCorpus, testing::ValuesIn(kTargets), name_of);

}  // namespace
}  // namespace orrery::fuzz
