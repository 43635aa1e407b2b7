// The script for a machine with a GPU, as far as it can be run without one: the same flow on the CPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

namespace orrery {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string contents_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The script's exit code.
int session(const std::string& arguments) {
  const std::string command = std::string(ORRERY_SOURCE_DIR) + "/realrun/device_session.sh " + arguments;
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(DeviceSession, RunsAllItsPartsOnTheStandIn) {
  const std::filesystem::path out = std::filesystem::path(testing::TempDir()) / "device_session";
  std::filesystem::remove_all(out);
  const std::string bin = std::filesystem::path(ORRERY_COMMAND).parent_path().string();
  EXPECT_EQ(session("--stand-in --short --bin " + bin + " --out " + out.string() + " >/dev/null"), 0)
      << contents_of(out / "summary.txt");
  const std::string summary = contents_of(out / "summary.txt");
  EXPECT_THAT(summary, Not(HasSubstr("failed (")));
  for (const char* part :
       {"check_one_rank", "check_tensor_parallel", "check_zero_3", "bench", "calibrate", "step_small"})
    EXPECT_THAT(summary, HasSubstr(part));
  const auto step = nlohmann::json::parse(contents_of(out / "step_small.json"));
  EXPECT_GT(step.at("measured").at("step_seconds").get<double>(), 0);
  EXPECT_GT(step.at("predicted").at("step_seconds").get<double>(), 0);
  EXPECT_TRUE(nlohmann::json::parse(contents_of(out / "check_zero_3.json")).at("agreement").at("agrees").get<bool>());
}

TEST(DeviceSession, SaysWhatIsMissing) {
  const std::filesystem::path out = std::filesystem::path(testing::TempDir()) / "device_session_without";
  EXPECT_EQ(session("--stand-in --bin /nowhere --out " + out.string() + " 2>/dev/null"), 2);
  EXPECT_EQ(session("--no-such-option 2>/dev/null"), 2);
}

}  // namespace
}  // namespace orrery
