// Does `orrery calibrate` say what is wrong, leave nothing half-written, and give simulate what it measured?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/cli/command.h"

namespace orrery {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

constexpr const char* kLog =
    R"(# nThread 1 nGpus 2 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#  Rank  0 Group  0 Pid 1 on host-a device  0 [0x07] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid 1 on host-a device  1 [0x0a] NVIDIA H100 80GB HBM3
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
        1024           256     float     sum      -1    90.00    0.01    0.01      0    90.00    0.01    0.01      0
     1048576        262144     float     sum      -1   100.00   10.49   10.49      0   100.00   10.49   10.49      0
   268435456      67108864     float     sum      -1  1500.00  178.96  178.96      0  1500.00  178.96  178.96      0
# Avg bus bandwidth    : 60
)";

// A calibration with a device of its own, as calibrate writes one for a CPU.
constexpr const char* kCalibration = R"({
  "name": "mine", "source": "a test", "date": "2026-01-01",
  "device": {"name": "mine", "vendor": "AMD", "architecture": "CPU", "fp32_flops_per_second": 1e11,
             "vector_flops_per_second": 1e11, "memory_bytes": 1e12, "memory_bytes_per_second": 1e10,
             "multiprocessors": 1, "pcie_bytes_per_second": 1e10, "source": "a test"},
  "matmul": {"fp32": {"efficiency": 0.5, "memory_efficiency": 0.5, "fixed_seconds": 1e-6, "tiles": [[1, 1]]}},
  "memory": {"efficiency": 0.5, "fixed_seconds": 1e-6, "kinds": {"norm": {"efficiency": 0.01}}},
  "attention": {"default": "mine", "kernels": {"mine": {"forward_efficiency": 0.5, "backward_efficiency": 0.4}}}
})";

void expect_one_sentence(const CommandResult& result, int code, const char* says) {
  EXPECT_EQ(result.code, code) << result.err;
  EXPECT_THAT(result.err, HasSubstr("orrery: error: "));
  EXPECT_THAT(result.err, HasSubstr(says));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_THAT(result.out, IsEmpty());
}

TEST(CalibrateCommand, BadInputIsOneSentenceAndLeavesNothing) {
  const Workplace place;
  expect_one_sentence(place.orrery("calibrate --budget soon"), 2, "90s");
  expect_one_sentence(place.orrery("calibrate --device tpu"), 2, "tpu");
  expect_one_sentence(place.orrery("calibrate --output nowhere/mine.json"), 2, "nowhere/mine.json");
  expect_one_sentence(place.orrery("calibrate --output a.json --journal a.json"), 2, "several purposes");
  expect_one_sentence(place.orrery("calibrate --preset H100-XXL"), 2, "H100-XXL");
  EXPECT_THAT(place.files(), IsEmpty());
}

TEST(CalibrateCommand, TooLittleTimeIsSaidAndThePointsAreKept) {
  const Workplace place;
  const CommandResult result = place.orrery("calibrate --budget 1ms --output mine.json");
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("a longer --budget"));
  EXPECT_THAT(place.files(), Contains("mine.points.jsonl"));
  EXPECT_THAT(place.files(), Not(Contains("mine.json")));
}

TEST(CalibrateCommand, AJournalOfAnotherMachineIsRefused) {
  const Workplace place;
  place.write(
      "mine.points.jsonl",
      R"({"format":"orrery calibration journal 1","kind":"cpu","device":"a Cray-1","software":"CFT","date":"1976-01-01"})"
      "\n");
  expect_one_sentence(place.orrery("calibrate --budget 1ms --output mine.json"), 2, "a Cray-1");
  EXPECT_THAT(place.files(), Not(Contains("mine.json")));
}

TEST(CalibrateImport, FitsLogsForSimulate) {
  const Workplace place;
  place.write("all_reduce.log", kLog);
  const CommandResult fitted =
      place.orrery("calibrate import all_reduce.log --cluster dgx-h100 --output nccl.json --curves curves.json");
  ASSERT_EQ(fitted.code, 0) << fitted.err;
  EXPECT_THAT(fitted.out, HasSubstr("all_reduce-all_reduce-2"));
  EXPECT_THAT(place.read("curves.json"), HasSubstr("\"ranks\": 2"));
  const CommandResult explained = place.orrery("simulate llama-3-70b-512-h100 --json - --calibration nccl.json");
  EXPECT_EQ(explained.code, 0) << explained.err;
  EXPECT_NE(explained.out, place.orrery("simulate llama-3-70b-512-h100 --json -").out);
}

TEST(CalibrateImport, RefusesWhatItCannotUse) {
  const Workplace place;
  place.write("all_reduce.log", kLog);
  place.write("bad.log", std::string(kLog).replace(std::string(kLog).find("1500.00"), 7, "oh dear"));
  expect_one_sentence(place.orrery("calibrate import all_reduce.log --cluster dgx-h1000"), 2, "dgx-h100");
  expect_one_sentence(place.orrery("calibrate import bad.log --cluster dgx-h100 --collective all_reduce"), 2,
                      "bad.log:7");
  expect_one_sentence(place.orrery("calibrate import none.log --cluster dgx-h100"), 2, "none.log");
  expect_one_sentence(place.orrery("calibrate import all_reduce.log --cluster dgx-h100 --output a --curves a"), 2,
                      "several purposes");
  EXPECT_THAT(place.files(), Not(Contains("collectives.json")));
}

TEST(CalibrateImport, WritesNoFitThatMissesUnlessForced) {
  const Workplace place;
  place.write("all_reduce.log", std::string(kLog).replace(std::string(kLog).find("1500.00"), 7, "0.15   "));
  expect_one_sentence(place.orrery("calibrate import all_reduce.log --cluster dgx-h100"), 2,
                      "off by more than 2 times");
  EXPECT_THAT(place.files(), Not(Contains("collectives.json")));
  const CommandResult forced = place.orrery("calibrate import all_reduce.log --cluster dgx-h100 --force");
  EXPECT_EQ(forced.code, 0) << forced.err;
  EXPECT_THAT(forced.out, HasSubstr("off by more than 2 times"));
  EXPECT_THAT(place.files(), Contains("collectives.json"));
}

TEST(CalibratePublished, WritesWhatItFitsAndSaysHowWellItFits) {
  const Workplace place;
  const std::string published = ORRERY_SOURCE_DIR "/results/published/";
  const CommandResult fitted =
      place.orrery("calibrate published " + published + "collectives.json --only 'EFA v1' --output .");
  ASSERT_EQ(fitted.code, 0) << fitted.err;
  EXPECT_THAT(fitted.out, HasSubstr("across nodes: median error "));
  EXPECT_THAT(place.files(), ElementsAre("collectives.json"));
  EXPECT_EQ(place.orrery("collective all_reduce --cluster dgx-h100 --calibration collectives.json").code, 0);
}

TEST(CalibratePublished, RefusesWhatItCannotFit) {
  const Workplace place;
  const std::string published = ORRERY_SOURCE_DIR "/results/published/";
  place.write("points.json", R"({"points": []})");
  place.write("neither.json", "[]");
  expect_one_sentence(place.orrery("calibrate published points.json --output ."), 2, "results/published/kernels.json");
  expect_one_sentence(place.orrery("calibrate published neither.json --output ."), 2, "neither.json");
  expect_one_sentence(place.orrery("calibrate published points.json --output . --only EFA"), 2, "points of kernels");
  expect_one_sentence(place.orrery("calibrate published points.json --output nowhere"), 2, "nowhere");
  expect_one_sentence(place.orrery("calibrate published " + published + "collectives.json --only 'EFA v2' --output ."),
                      2, "EFA v1");
  EXPECT_THAT(place.files(), UnorderedElementsAre("points.json", "neither.json"));
}

TEST(Calibration, OfAUserIsWhatSimulateAndCompareGoBy) {
  const Workplace place;
  place.write("mine.json", kCalibration);
  const CommandResult before = place.orrery("simulate optimizer --set plan.precision=fp32 --json -");
  const CommandResult after =
      place.orrery("simulate optimizer --set plan.precision=fp32 --json - --calibration mine.json");
  ASSERT_EQ(after.code, 0) << after.err;
  const auto seconds = [](const CommandResult& r) {
    return nlohmann::json::parse(r.out)["step_seconds"].get<double>();
  };
  EXPECT_GT(seconds(after), 10 * seconds(before));
  EXPECT_EQ(
      place.orrery("compare optimizer --set plan.precision=fp32 --set-b plan.zero_stage=0 --calibration mine.json")
          .code,
      0);
  expect_one_sentence(place.orrery("simulate optimizer --calibration none.json"), 2, "none.json");
  expect_one_sentence(place.orrery("simulate optimizer --calibration mine.json --calibration mine.json"), 2, "second");
}

}  // namespace
}  // namespace orrery
