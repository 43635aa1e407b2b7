// Is each point of a sweep what its scenario is alone, on any number of threads and after a resumption?
#include "study/sweep/run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "sim/base/error.h"
#include "sim/report/columns.h"
#include "strategies/framework/options.h"
#include "study/sweep/results.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

class SweepRun : public testing::Test {
 protected:
  SweepRun() { std::filesystem::create_directories(folder_); }
  ~SweepRun() override { std::filesystem::remove_all(folder_); }

  std::string file(const std::string& name) const { return folder_ / name; }
  std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(file(name)) << text;
    return file(name);
  }
  SweepOutcome run(const Json& document, const std::string& database, int threads, std::int64_t shard = 0,
                   std::int64_t shards = 1) const {
    SweepResults results(file(database), Database::Mode::write);
    return run_sweep(read_sweep(document, file("sweep.json")), results,
                     {.threads = threads, .shard = shard, .shards = shards, .version = "9.0.0", .calibrations = ""});
  }
  // The figures' cells of each point, by its fields.
  std::map<std::string, std::string> rows(const std::string& database) const {
    std::map<std::string, std::string> rows;
    const SweepResults results(file(database), Database::Mode::read);
    const std::vector<std::string> names = results.names(0);
    std::vector<std::pair<std::string, std::string>> of_points(static_cast<std::size_t>(results.count(0)));
    for (const std::string& name : names) {
      if (name == "sweep" || name == "number" || name == "key") continue;
      auto point = of_points.begin();
      results.for_each(0, {name}, /*as_json=*/false, [&](const std::string& text) {
        auto& [fields, figures] = *point++;
        (name.find('.') != std::string::npos ? fields : figures) += name + "=" + text + ";";
      });
    }
    rows.insert(of_points.begin(), of_points.end());
    return rows;
  }

 private:
  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("orrery_sweep_run_" + std::to_string(::getpid()));
};

Json small_scenario() {
  return {{"model", "llama-3.2-1b"},
          {"cluster", {{"node", "dgx-h100"}, {"nodes", 2}}},
          {"workload", {{"sequence_length", 2048}, {"global_batch_size", 32}}},
          {"plan", {{"zero_stage", 1}}}};
}

TEST_F(SweepRun, PointsOfEveryStackAreWhatTheyAreAlone) {
  Json stacks = Json::array();
  for (const std::string_view stack : framework::kStackNames) stacks.push_back(stack);
  const Json document{
      {"scenario", small_scenario()},
      {"axes", {{"plan.framework", stacks}, {"plan.tensor_parallel", {1, 2, 3}}, {"plan.zero_stage", {0, 2}}}}};
  std::map<std::string, std::string> alone;
  for (const Json& stack : stacks)
    for (const int degree : {1, 2, 3})
      for (const int stage : {0, 2}) {
        Json scenario = small_scenario();
        scenario["plan"]["framework"] = stack;
        scenario["plan"]["tensor_parallel"] = degree;
        scenario["plan"]["zero_stage"] = stage;
        std::string figures, error;
        Report report;
        try {
          report = Simulator().evaluate(scenario, {file("sweep.json"), {}}, {}).report;
        } catch (const InputError& wrong) {
          error = wrong.what();
        }
        for (const ReportColumn* column : sweep_columns()) {
          figures += column->name + "=";
          if (error.empty()) append_csv(column->value(report), figures);
          figures += ";";
        }
        std::string quoted;
        append_csv(std::string_view(error), quoted);
        alone["plan.framework=" + stack.get<std::string>() + ";plan.tensor_parallel=" + std::to_string(degree) +
              ";plan.zero_stage=" + std::to_string(stage) + ";"] = figures + "error=" + quoted + ";";
      }
  EXPECT_EQ(run(document, "one.db", 1).computed, 54);
  EXPECT_EQ(rows("one.db"), alone);
  run(document, "two.db", 2);
  EXPECT_EQ(rows("two.db"), alone);
  // In parts, of which each has been left by others' points.
  for (const std::int64_t shard : {1, 0, 2}) run(document, "parts.db", 1, shard, 3);
  EXPECT_EQ(run(document, "parts.db", 2).computed, 0);
  EXPECT_EQ(rows("parts.db"), alone);
}

TEST_F(SweepRun, TheErrorThatIsShownIsOfTheFirstPoint) {
  for (const int threads : {1, 2})
    EXPECT_THAT(run({{"scenario", small_scenario()},
                     {"axes", {{"plan.tensor_parallel", {1, 3}}, {"workload.global_batch_size", {17, 32}}}}},
                    "errors" + std::to_string(threads) + ".db", threads)
                    .first_error,
                testing::HasSubstr("/workload/global_batch_size"));
}

TEST_F(SweepRun, ACalibrationOfAnotherContentIsAnother) {
  const auto digests = [&](const std::string& text) {
    const std::string path = file("calibration.json", text);
    return digests_of_calibrations({&path, 1});
  };
  const std::string first = digests("{}");
  EXPECT_NE(digests("{ }"), first);
  EXPECT_EQ(digests("{}"), first);
}

TEST_F(SweepRun, FilesOnAnAxisLieBesideTheDocument) {
  std::ifstream topology(ORRERY_SOURCE_DIR "/tests/hardware/data/dgx_h100.txt");
  file("topology.txt", std::string(std::istreambuf_iterator<char>(topology), {}));
  file("documents.jsonl", R"({"documents": [{"tokens": 1024}, {"tokens": 1024}]})"
                          "\n");
  Json scenario = small_scenario();
  scenario["cluster"] = {{"device", "H100-SXM5-80GB"}, {"nodes", 2}};
  const SweepOutcome done =
      run({{"scenario", scenario},
           {"axes", {{"cluster.topology_file", {"topology.txt"}}, {"workload.documents_file", {"documents.jsonl"}}}}},
          "files.db", 1);
  EXPECT_EQ(done.computed, 1);
  EXPECT_EQ(done.errors, 0) << done.first_error;
}

TEST_F(SweepRun, MoreThreadsThanPointsDoThemAll) {
  EXPECT_EQ(run({{"scenario", small_scenario()}, {"axes", {{"plan.zero_stage", {0, 1, 2}}}}}, "many.db", 64).computed,
            3);
}

TEST_F(SweepRun, ASearchedPointSaysItsReplicas) {
  run({{"scenario", small_scenario()},
       {"axes", {{"cluster.nodes", {1, 2}}}},
       {"search", {{"fix", {"tensor_parallel", "pipeline_parallel", "context_parallel"}}}}},
      "searched.db", 2);
  std::vector<std::string> replicas;
  SweepResults(file("searched.db"), Database::Mode::read)
      .for_each(0, {"plan.data_parallel"}, /*as_json=*/false, [&](const std::string& row) { replicas.push_back(row); });
  EXPECT_THAT(replicas, testing::ElementsAre("8", "16"));
}

// A file of an earlier version, with an interval in it or none.
class DoubtfulResults : public SweepRun {
 protected:
  std::vector<std::string> doubts(const std::string& version, bool with_interval) const {
    const std::string name = version + (with_interval ? "+" : "-");
    SweepResults results(file(name), Database::Mode::write);
    Report report;
    if (with_interval) report.expected.emplace().low_seconds = 1;
    SweepRow row;
    row.key = row.scenario = 1;
    row.fields = "{}";
    row.values = sweep_values(report);
    results.add(results.add({"digest", "{}", {}, 1, version, ""}), {&row, 1});
    return SweepResults(file(name), Database::Mode::read).doubts();
  }
};

TEST_F(DoubtfulResults, AreThoseOfVersionsThatMixedIntervalsUp) {
  EXPECT_THAT(doubts("0.1.0 187faaf82940", true),
              testing::ElementsAre(testing::AllOf(testing::HasSubstr("0.1.0 187faaf82940"),
                                                  testing::HasSubstr("expected_step_seconds_low"))));
  for (const char* later : {"0.1.1", "0.1.1 187faaf82940+", "0.2", "0.10.0", "1", "none", ""})
    EXPECT_THAT(doubts(later, true), testing::IsEmpty()) << later;
  EXPECT_THAT(doubts("0.1.0", false), testing::IsEmpty());
}

}  // namespace
}  // namespace orrery
