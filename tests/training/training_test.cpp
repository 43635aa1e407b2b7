// Is a training what its steps are one by one, and does what moves between them take the time that is there?
#include "study/training/training.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <regex>
#include <sstream>

#include "sim/base/error.h"
#include "study/training/training_results.h"

namespace orrery {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

nlohmann::json drift(std::int64_t interval) {
  return {{"routing", "zipf"},
          {"routing_skew", 0.8},
          {"routing_noise", 0.3},
          {"routing_autocorrelation", 0.9},
          {"routing_interval", interval}};
}

Scenario scenario_of(const nlohmann::json& routing) {
  nlohmann::json workload{{"sequence_length", 2048}, {"global_batch_size", 64}};
  if (!routing.empty()) workload.update(routing);
  const nlohmann::json document{{"model", "mixtral-8x7b"},
                                {"cluster", "dgx-h100"},
                                {"workload", workload},
                                {"plan", {{"expert_parallel", 8}, {"zero_stage", 1}}}};
  return ScenarioReader().read(document, {"training_test", {}});
}

double sum(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

TEST(Training, BalancedStepsAreAllAlike) {
  Simulator simulator;
  const Scenario scenario = scenario_of({});
  const Training training = train(simulator, scenario, {.steps = 100});
  EXPECT_EQ(training.different, 1);
  const double step = simulator.evaluate(scenario, {}).report.step_seconds;
  EXPECT_THAT(training.column("step_seconds"), Each(step));
  EXPECT_NEAR(training.seconds, 100 * step, 1e-9 * training.seconds);
  EXPECT_EQ(training.unfinished_seconds, 0);
}

TEST(Training, EachStepIsWhatItIsAlone) {
  Simulator simulator;
  Scenario scenario = scenario_of(drift(5));
  scenario.workload.step = 3;
  const Training training = train(simulator, scenario, {.steps = 40});
  EXPECT_EQ(training.different, 9);  // from 0, 5, ... 40
  for (std::size_t i = 0; i < 40; ++i) {
    scenario.workload.step = 3 + static_cast<std::int64_t>(i);
    const Report alone = simulator.evaluate(scenario, {}).report;
    EXPECT_EQ(training.column("step")[i], static_cast<double>(3 + i));
    EXPECT_EQ(training.column("step_seconds")[i], alone.step_seconds) << i;
    EXPECT_EQ(training.column("memory_peak_bytes")[i], alone.memory_peak_bytes) << i;
    EXPECT_EQ(training.column("busiest_rank")[i], alone.figure("routing", "busiest_rank_over_mean")->value) << i;
  }
}

TEST(Training, EachStepHasItsOwnDocuments) {
  Simulator simulator;
  const nlohmann::json document{
      {"model", "llama-2-7b"},
      {"cluster", "dgx-h100"},
      {"workload", {{"sequence_length", 4096}, {"global_batch_size", 8}, {"documents", "code"}}},
      {"plan", {{"zero_stage", 1}}}};
  Scenario scenario = ScenarioReader().read(document, {"training_test", {}});
  const Training training = train(simulator, scenario, {.steps = 4});
  EXPECT_EQ(training.different, 4);
  for (std::size_t i = 0; i < 4; ++i) {
    scenario.workload.step = static_cast<std::int64_t>(i);
    const Report alone = simulator.evaluate(scenario, {}).report;
    EXPECT_EQ(training.column("step_seconds")[i], alone.step_seconds) << i;
    EXPECT_EQ(training.column("mfu")[i], alone.mfu) << i;
  }
  EXPECT_NE(training.column("mfu")[0], training.column("mfu")[1]);  // of the same time: a replica has one document
}

TEST(Training, RotationComesBackToWhereItBegan) {
  Simulator simulator;
  nlohmann::json routing{{"routing", "rotating"}, {"routing_skew", 1.2}, {"routing_period", 4}};
  const Training training = train(simulator, scenario_of(routing), {.steps = 64});
  EXPECT_EQ(training.different, 8);  // experts
  const std::vector<double>& steps = training.column("step_seconds");
  for (std::size_t i = 0; i < 32; ++i) EXPECT_EQ(steps[i], steps[i + 32]) << i;
}

TEST(Training, ABurstIsSlowAndGoesBy) {
  Simulator simulator;
  nlohmann::json routing{
      {"routing", "burst"}, {"routing_skew", 0.6}, {"routing_period", 10}, {"routing_burst_steps", 2}};
  const Training training = train(simulator, scenario_of(routing), {.steps = 20});
  const std::vector<double>& steps = training.column("step_seconds");
  for (std::size_t i = 0; i < 20; ++i) {
    const bool in_burst = i % 10 >= 8;
    EXPECT_EQ(steps[i] > 1.05 * steps[0], in_burst) << i;
  }
}

TEST(Training, WhatIsKnownIsNotPredictedAgain) {
  Simulator simulator;
  const Scenario scenario = scenario_of(drift(5));
  KnownOutcomes known;
  std::int64_t found = 0, predicted = -1;
  TrainingOptions options{.steps = 50, .digest = 7, .known = &known};
  options.found = [&](std::uint64_t, const StepOutcome&) { ++found; };
  options.progress = [&](std::int64_t, std::int64_t so_far) { predicted = so_far; };
  const Training first = train(simulator, scenario, options);
  EXPECT_EQ(found, 10);
  EXPECT_EQ(predicted, 10);
  const Training again = train(simulator, scenario, options);
  EXPECT_EQ(found, 10);
  EXPECT_EQ(predicted, 0);
  EXPECT_EQ(again.different, 10);
  for (std::size_t i = 0; i < first.columns.size(); ++i)
    EXPECT_EQ(again.columns[i].values, first.columns[i].values) << first.columns[i].name;
  options.digest = 8;  // of another scenario
  train(simulator, scenario, options);
  EXPECT_EQ(found, 20);
}

// Leaves work behind one step.
class LeavesWork final : public TrainingController {
 public:
  LeavesWork(std::int64_t step, std::vector<StepMove> work, std::vector<std::int64_t>& arrivals)
      : step_(step), work_(std::move(work)), arrivals_(arrivals) {}
  void begin(const Scenario& scenario, Situation&) override { now_ = scenario.workload.step; }
  std::uint64_t state(const Scenario&) const override { return 0; }
  std::vector<StepMove> end(const Scenario& scenario) override {
    return scenario.workload.step == step_ ? work_ : std::vector<StepMove>{};
  }
  void arrived() override { arrivals_.push_back(now_); }
  std::span<const std::string_view> figures() const override { return kFigures; }
  void figures(const Scenario&, std::vector<double>& values) const override {
    values.push_back(static_cast<double>(now_ * now_));
  }

 private:
  static constexpr std::array<std::string_view, 1> kFigures{"square"};
  std::int64_t step_, now_ = -1;
  std::vector<StepMove> work_;
  std::vector<std::int64_t>& arrivals_;
};

Training trained(std::vector<StepMove> work, std::vector<std::int64_t>& arrivals, std::int64_t steps = 12) {
  Simulator simulator;
  std::vector<std::unique_ptr<TrainingController>> controllers;
  controllers.push_back(std::make_unique<LeavesWork>(2, std::move(work), arrivals));
  return train(simulator, scenario_of({}), std::move(controllers), {.steps = steps});
}

TEST(Training, BlockingWorkHoldsUpTheNextStep) {
  std::vector<std::int64_t> arrivals;
  const Training training = trained({{1.5, true}, {0.25, true}}, arrivals);
  EXPECT_THAT(arrivals, testing::ElementsAre(2));
  const double step = training.column("step_seconds")[0];
  EXPECT_EQ(training.column("waiting_seconds")[3], 1.75);
  EXPECT_EQ(sum(training.column("waiting_seconds")), 1.75);
  EXPECT_THAT(training.column("moving_seconds"), Each(0));
  EXPECT_NEAR(training.column("begin_seconds")[3], 3 * step, 1e-9);  // waits first
  EXPECT_NEAR(training.column("begin_seconds")[4], 4 * step + 1.75, 1e-9);
  EXPECT_NEAR(training.seconds, 12 * step + 1.75, 1e-9);
  EXPECT_EQ(training.column("square")[5], 25);
}

TEST(Training, WorkBesideStepsTakesTheTimeInWhichLinksIdle) {
  std::vector<std::int64_t> arrivals;
  const double step = trained({}, arrivals).column("step_seconds")[0];
  EXPECT_TRUE(arrivals.empty());
  const Training training = trained({{2.5 * step, false}}, arrivals);
  const std::vector<double>& moving = training.column("moving_seconds");
  EXPECT_EQ(moving[1], 0);
  EXPECT_NEAR(moving[2], 2.5 * step, 1e-9);
  const double idle = moving[2] - moving[3];  // a step's
  Simulator simulator;
  double busy = 0;  // with what the bounding stage sends, each time that it does
  for (const OpReport& op : simulator.evaluate(scenario_of({}), {.ops = true}).report.ops)
    if (op.stream != Stream::compute && op.bytes > 0) busy += op.seconds * op.times_per_step;
  EXPECT_GT(busy, 0.01 * step);
  EXPECT_NEAR(idle, step - busy, 1e-9);
  const auto takes = static_cast<std::int64_t>(std::ceil(2.5 * step / idle));
  ASSERT_EQ(arrivals.size(), 1U);
  EXPECT_EQ(arrivals[0], 2 + takes);
  for (std::int64_t i = 2; i < 12; ++i)
    EXPECT_NEAR(moving[static_cast<std::size_t>(i)], std::max(0.0, 2.5 * step - static_cast<double>(i - 2) * idle),
                1e-9)
        << i;
  EXPECT_NEAR(training.seconds, 12 * step, 1e-9);
  EXPECT_EQ(training.unfinished_seconds, 0);
  EXPECT_NEAR(trained({{2.5 * step, false}}, arrivals, 4).unfinished_seconds, 2.5 * step - idle, 1e-9);
}

TEST(Training, StepsOfARecordedRoutingBeginWithItsFirst) {
  const auto path = std::filesystem::temp_directory_path() / "orrery-training-test.txt";
  std::ofstream(path) << "# routing steps=500,502 layers=0 source_ranks=1 top_k=2\n"
                         "step,layer,tokens,expert_0,expert_1,expert_2,expert_3,expert_4,expert_5,expert_6,expert_7\n"
                         "500,0,64,16,16,16,16,16,16,16,16\n"
                         "502,0,64,57,10,10,10,11,10,10,10\n";
  Simulator simulator;
  const Training training = train(simulator, scenario_of({{"routing_file", path.string()}}), {.steps = 4});
  std::filesystem::remove(path);
  EXPECT_THAT(training.column("step"), testing::ElementsAre(500, 501, 502, 503));
  EXPECT_EQ(training.different, 2);
  EXPECT_NEAR(training.column("busiest_rank")[1], 1, 1e-12);
  EXPECT_NEAR(training.column("busiest_rank")[2], 57.0 * 8 / 128, 1e-12);
}

TEST(Training, StepsHaveAnEnd) {
  Simulator simulator;
  Scenario scenario = scenario_of({});
  scenario.workload.step = Workload::kMostSteps - 1;
  EXPECT_NO_THROW(train(simulator, scenario, {.steps = 2}));
  EXPECT_THROW(train(simulator, scenario, {.steps = 3}), InputError);
}

// Steps of which controllers say that they are like others, beside a controller that says that no step is.
class EachStepAnew final : public TrainingController {
 public:
  std::uint64_t state(const Scenario& scenario) const override {
    return static_cast<std::uint64_t>(scenario.workload.step);
  }
};

TEST(Training, StepsThatAreKnownAreWhatTheyWouldBeAnew) {
  const nlohmann::json experts{{"expert_parallel", 8}, {"zero_stage", 1}};
  std::vector<std::pair<nlohmann::json, nlohmann::json>> cases{
      {drift(5), {}},
      {drift(7),
       {{"moe_gate", "dense_to_sparse"},
        {"moe_gate_seed_steps", 6},
        {"moe_gate_hard_step", 30},
        {"moe_gate_decay_steps", 24}}},
      {{{"routing", "rotating"}, {"routing_skew", 1.2}, {"routing_period", 2}}, {{"moe_expert_capacity_factor", 1.25}}},
      {{{"routing", "burst"}, {"routing_skew", 0.6}, {"routing_period", 9}, {"routing_burst_steps", 2}}, {}}};
  for (const char* balancer : {"flexmoe", "eplb", "symi"})
    cases.push_back({drift(5), {{"moe_balancer", balancer}, {"moe_slots_per_rank", 10}}});
  for (const char* balancer : {"fastermoe", "swipe"}) cases.push_back({drift(5), {{"moe_balancer", balancer}}});
  Simulator simulator;
  for (const auto& [routing, plan] : cases) {
    nlohmann::json document{{"model", "megablocks-moe-small"},
                            {"cluster", "dgx-h100"},
                            {"workload", {{"sequence_length", 1024}, {"global_batch_size", 64}}},
                            {"plan", experts}};
    document["workload"].update(routing);
    if (!plan.is_null()) document["plan"].update(plan);
    const Scenario scenario = ScenarioReader().read(document, {"training_test", {}});
    std::vector<std::unique_ptr<TrainingController>> anew = controllers_of(scenario);
    anew.push_back(std::make_unique<EachStepAnew>());
    const Training known = train(simulator, scenario, {.steps = 40});
    const Training each = train(simulator, scenario, std::move(anew), {.steps = 40});
    EXPECT_LT(known.different, 40) << document["workload"] << document["plan"];
    EXPECT_EQ(each.different, 40);
    // FlexMoE's own rows are whole ones, and the first step, which is that of blocks, has fractions.
    const double rounding = plan.contains("moe_slots_per_rank") ? 1e-3 : 0;
    for (std::size_t i = 0; i < known.columns.size(); ++i)
      for (std::size_t step = 0; step < 40; ++step) {
        const double anew_value = each.columns[i].values[step];
        ASSERT_NEAR(known.columns[i].values[step], anew_value, rounding * std::abs(anew_value))
            << known.columns[i].name << " of step " << step << document["workload"] << document["plan"];
      }
  }
}

TEST(TrainingReport, HasARowForEachStepAndAPanelForWhatChanges) {
  Simulator simulator;
  const Training training = train(simulator, scenario_of(drift(5)), {.steps = 50});
  const std::string inputs[]{"d1"};
  const std::string_view more[]{"digest"};
  const std::string csv = training_csv(training, "run, one", more, inputs);
  EXPECT_THAT(csv, StartsWith("scenario,step,begin_seconds,step_seconds,"));
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 51);
  EXPECT_THAT(csv, HasSubstr("\n\"run, one\",49,"));
  EXPECT_THAT(csv, HasSubstr(",d1\n"));
  const nlohmann::ordered_json json = training_json(training);
  EXPECT_EQ(json["columns"]["step_seconds"].size(), 50U);
  EXPECT_EQ(json["columns"]["step"][49], 49);
  EXPECT_EQ(json["different_steps"], 10);
  const std::string svg = training_svg(training, {"a <title>"});
  EXPECT_THAT(svg, HasSubstr("a &lt;title&gt;"));
  EXPECT_THAT(svg, HasSubstr("busiest rank"));
  EXPECT_THAT(svg, Not(HasSubstr("dropped share")));  // nothing is
  const std::string table = training_table(training, {"title"});
  EXPECT_THAT(table, HasSubstr("  47-49 "));  // the last of 20 rows
  EXPECT_THAT(table, HasSubstr("10 different steps for all 50"));
}

// A training made by hand: 45 steps in 20 rows, in which figures and a controller's column change.
Training made_training() {
  Training training;
  training.first_step = 5;
  training.steps = 45;
  training.different = 3;
  training.memory_capacity_bytes = 80e9;
  for (const std::string_view name : kTrainingColumns) training.columns.push_back({std::string(name), {}});
  for (const FigureKind* kind : figure_columns()) training.columns.push_back({kind->column, {}});
  training.columns.push_back({"copies", {}});
  double begin = 0;
  for (int i = 0; i < 45; ++i) {
    const double seconds = i == 20 ? 400 : 200 - i, waiting = i % 10 == 9 ? 0.5 : 0;
    std::vector<double> row{5.0 + i, begin, seconds, waiting, 0, 1000.0 + i, 0.4 + 0.001 * i, 0.25 * i, 60e9 + 1e9 * i};
    for (const FigureKind* kind : figure_columns()) row.push_back(kind->otherwise);
    row[std::size(kTrainingColumns)] = 1 + 0.125 * (i % 4);
    row.push_back(i * i);
    for (std::size_t c = 0; c < row.size(); ++c) training.columns[c].values.push_back(row[c]);
    begin += waiting + seconds;
  }
  training.seconds = begin;
  training.unfinished_seconds = 0.125;
  training.memory_fits = false;
  return training;
}

TEST(TrainingReport, ReadsLikeThis) {
  EXPECT_EQ(training_table(made_training(), {"a title", "more"}), R"(a title
more

  steps     step                 waiting     MFU   exposed  peak memory  busiest rank  copies
    5-6  199.5 s  ████████             -  40.1 %  125.0 ms    56.81 GiB         1.062     0.5
    7-8  197.5 s  ███████▉             -  40.2 %  625.0 ms    58.67 GiB         1.312     6.5
   9-10  195.5 s  ███████▉             -  40.5 %   1.125 s    60.54 GiB         1.062    20.5
  11-13  193.0 s  ███████▊             -  40.7 %   1.750 s    63.33 GiB         1.208   49.67
  14-15  190.5 s  ███████▋      250.0 ms  41.0 %   2.375 s    65.19 GiB         1.188    90.5
  16-17  188.5 s  ███████▌             -  41.2 %   2.875 s    67.06 GiB         1.188   132.5
  18-19  186.5 s  ███████▌             -  41.4 %   3.375 s    68.92 GiB         1.188   182.5
  20-22  184.0 s  ███████▍             -  41.6 %   4.000 s    71.71 GiB         1.167   256.7
  23-24  181.5 s  ███████▎      250.0 ms  41.9 %   4.625 s    73.57 GiB         1.312   342.5
  25-26  289.5 s  ███████████▋         -  42.1 %   5.125 s    75.44 GiB         1.062   420.5
  27-28  177.5 s  ███████▏             -  42.3 %   5.625 s    77.30 GiB         1.312   506.5
  29-31  175.0 s  ███████              -  42.5 %   6.250 s    80.09 GiB         1.125   625.7
  32-33  172.5 s  ██████▉              -  42.8 %   6.875 s    81.96 GiB         1.188   756.5
  34-35  170.5 s  ██████▉       250.0 ms  43.0 %   7.375 s    83.82 GiB         1.188   870.5
  36-37  168.5 s  ██████▊              -  43.2 %   7.875 s    85.68 GiB         1.188   992.5
  38-40  166.0 s  ██████▋              -  43.4 %   8.500 s    88.48 GiB         1.250    1157
  41-42  163.5 s  ██████▌              -  43.6 %   9.125 s    90.34 GiB         1.062    1332
  43-44  161.5 s  ██████▌       250.0 ms  43.9 %   9.625 s    92.20 GiB         1.312    1482
  45-46  159.5 s  ██████▍              -  44.0 %   10.12 s    94.06 GiB         1.062    1640
  47-49  157.0 s  ██████▎              -  44.3 %   10.75 s    96.86 GiB         1.208    1850

  all steps                2.29 h
  per step                 182.9 s on average, 156.0 s to 400.0 s
  waiting                  2.000 s before 4 steps
  still moving             125.0 ms of sending after the last step
  memory                   at most 96.86 GiB of 74.51 GiB: does not fit in every step
  predicted                3 different steps for all 45
)");
}

// Every line of the CSV has the columns of the JSON at its step.
TEST(TrainingReport, CsvAndJsonHaveEveryColumn) {
  const Training training = made_training();
  const std::string_view more[]{"digest", "version"};
  const std::string inputs[]{"d1", "0.1"};
  const nlohmann::ordered_json json = training_json(training);
  EXPECT_EQ(json["first_step"], 5);
  EXPECT_EQ(json["steps"], 45);
  EXPECT_EQ(json["different_steps"], 3);
  EXPECT_EQ(json["seconds"], training.seconds);
  EXPECT_EQ(json["unfinished_seconds"], 0.125);
  EXPECT_EQ(json["memory_capacity_bytes"], 80e9);
  EXPECT_EQ(json["memory_fits"], false);
  EXPECT_TRUE(json["columns"]["step"][0].is_number_integer());
  std::istringstream lines(training_csv(training, "run", more, inputs));
  std::string line, heading = "scenario";
  std::vector<std::string> names;
  for (const auto& [name, values] : json["columns"].items()) {
    heading += "," + name;
    names.push_back(name);
    EXPECT_EQ(values.size(), 45u) << name;
  }
  std::getline(lines, line);
  EXPECT_EQ(line, heading + ",digest,version");
  for (std::size_t i = 0; i < 45; ++i) {
    ASSERT_TRUE(std::getline(lines, line));
    std::istringstream cells(line);
    std::string cell;
    std::getline(cells, cell, ',');
    EXPECT_EQ(cell, "run");
    for (const std::string& name : names) {
      std::getline(cells, cell, ',');
      EXPECT_EQ(std::stod(cell), json["columns"][name][i].get<double>()) << name << i;
    }
    std::getline(cells, cell);
    EXPECT_EQ(cell, "d1,0.1");
  }
  EXPECT_FALSE(std::getline(lines, line));
}

// Panels of the step time and of what changes, each to its own scale: the ticks say it, and the path goes by it.
TEST(TrainingReport, PictureIsToScale) {
  const Training training = made_training();
  const std::string svg = training_svg(training, {"one", "two"});
  struct Panel {
    std::string heading;
    std::vector<std::pair<double, double>> ticks;  // y and value
    std::vector<std::pair<double, double>> path;
  };
  std::vector<Panel> panels(1);
  const std::regex tick("<text x=\"90.0\" y=\"([0-9.]+)\" text-anchor=\"end\" fill=\"#666\">([^<]*)</text>"),
      heading("<text x=\"96.0\" y=\"[0-9.]+\" text-anchor=\"start\" fill=\"#222\">([^<]*)</text>"),
      path("<path d=\"([^\"]*)\""), place("[ML]([0-9.]+) ([0-9.]+)");
  std::istringstream lines(svg);
  for (std::string line; std::getline(lines, line);) {
    std::smatch m;
    if (std::regex_search(line, m, tick)) panels.back().ticks.emplace_back(std::stod(m[1]) - 4, std::stod(m[2]));
    if (std::regex_search(line, m, heading)) panels.back().heading = m[1];
    if (!std::regex_search(line, m, path)) continue;
    const std::string all = m[1];
    for (std::sregex_iterator at(all.begin(), all.end(), place), end; at != end; ++at)
      panels.back().path.emplace_back(std::stod((*at)[1]), std::stod((*at)[2]));
    panels.emplace_back();
  }
  panels.pop_back();
  std::vector<std::string> headings;
  for (const Panel& panel : panels) headings.push_back(panel.heading);
  EXPECT_THAT(headings, testing::IsSupersetOf({"step (s)", "waiting (s)", "MFU (%)", "exposed communication (s)",
                                               "memory peak (GiB)", "copies"}));
  EXPECT_THAT(headings, Not(testing::Contains("begin (s)")));
  EXPECT_EQ(panels.size(), 7u) << testing::PrintToString(headings);
  const std::map<std::string, std::pair<const char*, double>> of{
      {"step (s)", {"step_seconds", 1}},
      {"waiting (s)", {"waiting_seconds", 1}},
      {"MFU (%)", {"mfu", 100}},
      {"exposed communication (s)", {"exposed_communication_seconds", 1}},
      {"memory peak (GiB)", {"memory_peak_bytes", 1 / 0x1p30}},
      {"copies", {"copies", 1}}};
  for (const Panel& panel : panels) {
    const auto found = of.find(panel.heading);
    if (found == of.end()) continue;
    const auto& [name, scale] = found->second;
    const std::vector<double>& values = training.column(name);
    ASSERT_GE(panel.ticks.size(), 2u) << name;
    EXPECT_LE(panel.ticks.size(), 5u) << name;
    const auto [y0, v0] = panel.ticks.front();
    const auto [y1, v1] = panel.ticks.back();
    const double per = (y1 - y0) / (v1 - v0);
    ASSERT_EQ(panel.path.size(), 2 * values.size()) << name;
    const auto [least, most] = std::ranges::minmax(values);
    const double off = 0.12 + 0.15 * std::abs((most - least) * scale / (v1 - v0));  // ticks are rounded to 0.1 pixels
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double y = y0 + per * (values[i] * scale - v0);
      EXPECT_NEAR(panel.path[2 * i].second, y, off) << name << i;
      EXPECT_NEAR(panel.path[2 * i + 1].second, y, off) << name << i;
      EXPECT_NEAR(panel.path[2 * i].first, 96 + 840.0 * static_cast<double>(i) / 45, 0.06);
      EXPECT_NEAR(panel.path[2 * i + 1].first, 96 + 840.0 * static_cast<double>(i + 1) / 45, 0.06);
    }
    // Above and below 8 % of the panel's 92 pixels are left, or one per cent of the highest value.
    const double span = (most - least) * scale, slack = std::max(0.08 * span, 0.01 * most * scale);
    double top = 1e9, bottom = 0;
    for (const auto& [x, y] : panel.path) top = std::min(top, y), bottom = std::max(bottom, y);
    EXPECT_NEAR(bottom - top, 92 * span / (span + 2 * slack), 0.2) << name;
  }
  EXPECT_THAT(svg, HasSubstr(">45 steps in "));
  EXPECT_THAT(svg, HasSubstr("text-anchor=\"middle\" fill=\"#666\">5</text>")) << "the first step";
  // What hardly changes lies in the middle of a panel of two per cent.
  Training flat = training;
  for (double& seconds : flat.columns[2].values) seconds = 200;
  const std::string level = training_svg(flat, {});
  EXPECT_THAT(level, HasSubstr(">198</text>"));
  EXPECT_THAT(level, HasSubstr(">202</text>"));
}

TEST(TrainingReport, PictureOfManyStepsStaysSmallAndKeepsItsPeaks) {
  Simulator simulator;
  Training training = train(simulator, scenario_of({}), {.steps = 100'000});
  std::vector<double>& steps = training.columns[2].values;
  ASSERT_EQ(training.columns[2].name, "step_seconds");
  steps[54'321] *= 3;  // one of a hundred thousand
  const std::string svg = training_svg(training, {"long"});
  EXPECT_LT(svg.size(), 200'000U);
  // The lowest y of the path is that of the peak, near the panel's top.
  const std::string::size_type path = svg.find("<path d=\"M");
  ASSERT_NE(path, svg.npos);
  double lowest = 1e9, highest = 0;
  std::size_t at = path + 9;
  while (svg[at] == 'M' || svg[at] == 'L') {
    const std::size_t space = svg.find(' ', at);
    const double y = std::stod(svg.substr(space));
    lowest = std::min(lowest, y);
    highest = std::max(highest, y);
    at = svg.find_first_of("ML\"", space);
  }
  EXPECT_GT(highest - lowest, 70);
}

TEST(TrainingResults, ADatabaseGivesBackWhatItGot) {
  const auto path = std::filesystem::temp_directory_path() / "orrery-training-test.db";
  std::filesystem::remove(path);
  Simulator simulator;
  const Scenario scenario = scenario_of(drift(5));
  KnownOutcomes known;
  TrainingOptions options{.steps = 30, .digest = 5, .known = &known};
  {
    TrainingResults results(path.string());
    EXPECT_TRUE(results.outcomes().empty());
    options.found = [&](std::uint64_t key, const StepOutcome& outcome) { results.add(key, outcome); };
    const Training training = train(simulator, scenario, options);
    EXPECT_EQ(results.waiting(), 6U);
    results.add({"run", "{}", "0", "bundled", 5}, training);
    results.add({"run", "{}", "0", "bundled", 5}, training);  // in place of the first
    EXPECT_EQ(results.waiting(), 0U);
  }
  TrainingResults results(path.string());
  const KnownOutcomes kept = results.outcomes();
  ASSERT_EQ(kept.size(), known.size());
  for (const auto& [key, outcome] : known) {
    const auto found = kept.find(key);
    ASSERT_NE(found, kept.end());
    EXPECT_EQ(found->second.seconds, outcome.seconds);
    EXPECT_EQ(found->second.idle_link_seconds, outcome.idle_link_seconds);
    EXPECT_EQ(found->second.memory_fits, outcome.memory_fits);
    EXPECT_EQ(found->second.figures, outcome.figures);
  }
  const Database& database = results.database();
  EXPECT_EQ(database.number("SELECT count(*) FROM trainings"), 1);
  EXPECT_EQ(database.number("SELECT count(*) FROM steps"), 30);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace orrery
