// Do sensitivities, break-even prices and simulated histories say what they should?
#include "study/capacity/answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "sim/planning/training_run.h"
#include "tests/capacity/plans.h"

namespace orrery {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

CapacityAnswer answered(const nlohmann::json& document, const AnswerOptions& options = {}) {
  Simulator simulator;
  return answer(read_plan(document), options, simulator);
}

const TornadoBar& bar_of(const CapacityAnswer& answer, std::string_view input) {
  for (const TornadoBar& bar : answer.tornado->bars)
    if (bar.input == input) return bar;
  throw std::runtime_error("no bar of " + std::string(input));
}

TEST(Answer, CostHangsOnPriceAndStepAsAHandWorksOut) {
  const CapacityAnswer result = answered(example_plan());
  ASSERT_TRUE(result.tornado);
  const double cost = result.tornado->value;
  EXPECT_EQ(cost, result.candidates[*result.choice.cheapest].forecast.cost.value);
  const TornadoBar& price = bar_of(result, "price.per_device_hour");
  EXPECT_NEAR(price.at_less, 0.8 * cost, 1e-9 * cost);
  EXPECT_NEAR(price.at_more, 1.2 * cost, 1e-9 * cost);
  const Forecast& forecast = result.candidates[*result.subject].forecast;
  const TornadoBar& step = bar_of(result, kPredictedStep);
  EXPECT_NEAR(step.at_less, forecast.cost.low, 1e-9 * cost);
  EXPECT_NEAR(step.at_more, forecast.cost.high, 1e-9 * cost);
  // Faster matrix units help by less than in proportion, and no hardware by being slower.
  const TornadoBar& flops = bar_of(result, "matrix FLOP/s");
  EXPECT_GT(flops.at_less, cost);
  EXPECT_LT(flops.at_less, cost / 0.8);
  EXPECT_LT(flops.at_more, cost);
  EXPECT_GT(flops.at_more, cost / 1.2);
  for (const char* rate : {"memory bandwidth", "bandwidth within nodes", "bandwidth between nodes"}) {
    EXPECT_GE(bar_of(result, rate).at_less, cost) << rate;
    EXPECT_LE(bar_of(result, rate).at_more, cost) << rate;
  }
  EXPECT_GT(bar_of(result, "bandwidth within nodes").at_less, cost);
  EXPECT_GT(bar_of(result, "failures.failures_per_node_day").at_more, cost);
  EXPECT_TRUE(std::is_sorted(result.tornado->bars.begin(), result.tornado->bars.end(),
                             [](const TornadoBar& a, const TornadoBar& b) { return a.width() > b.width(); }));
}

TEST(Answer, MemoryMattersWhereTheTrainingWouldFitNoMore) {
  nlohmann::json document = example_plan();
  Simulator simulator;
  const auto fits_less = [&](double swing) {
    const CapacityAnswer result = answer(read_plan(document), {.swing = swing}, simulator);
    return bar_of(result, "memory size").less_fits;
  };
  const CapacityAnswer usual = answered(document);
  const SizedCandidate& subject = usual.candidates[*usual.subject];
  const double to_spare = 1 - subject.memory_peak_bytes / subject.memory_capacity_bytes;
  EXPECT_TRUE(fits_less(to_spare - 0.02));
  EXPECT_FALSE(fits_less(to_spare + 0.02));
}

TEST(Answer, OtherOutputsHaveTheirOwnSensitivities) {
  const CapacityAnswer result = answered(example_plan(), {.output = PlanOutput::carbon_kg});
  const double carbon = result.tornado->value;
  EXPECT_NEAR(bar_of(result, "grid.grams_per_kwh").at_more, 1.2 * carbon, 1e-9 * carbon);
  EXPECT_EQ(bar_of(result, "price.per_device_hour").width(), 0);
}

TEST(Answer, PricesTieWhereCostsDo) {
  nlohmann::json document = example_plan();
  const CapacityAnswer result = answered(document);
  ASSERT_EQ(result.ties.size(), 1u);
  const PriceTie& tie = result.ties.front();
  const SizedCandidate &of = result.candidates[tie.of], &against = result.candidates[tie.against];
  EXPECT_EQ(tie.against, *result.choice.cheapest);
  // At that price the other costs the same.
  nlohmann::json& other = document["candidates"][of.cluster];
  other["price"] = {{"per_device_hour", tie.tie.price.value}, {"currency", "USD"}, {"date", "2026"}};
  const CapacityAnswer tied = answered(document);
  const double cost = against.forecast.cost.value;
  EXPECT_NEAR(tied.candidates[tie.of].forecast.cost.value, cost, 1e-9 * cost);
  EXPECT_NEAR(tie.tie.ratio.value, tie.tie.price.value / against.candidate.price.per_device_hour, 1e-12);
}

TEST(Answer, HistoriesAgreeWithTheClosedFormAndHangOnTheirSeed) {
  nlohmann::json document = example_plan();  // with failures each few hours
  document["all_candidates"]["failures"] = {{"failures_per_node_day", 0.5}};
  document["all_candidates"]["repair_seconds"] = 0;
  const AnswerOptions options{.histories = {.seed = 7}, .history_count = 200};
  const CapacityAnswer first = answered(document, options), again = answered(document, options),
                       other = answered(document, {.histories = {.seed = 1000}, .history_count = 200});
  ASSERT_EQ(first.failures.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    const FailureStudy& study = first.failures[i];
    EXPECT_NEAR(study.simulated_ettr.mean, study.closed.ettr(), 0.003);
    EXPECT_NEAR(study.simulated_failures.mean, study.closed.failures, 4 * std::sqrt(study.closed.failures / 200));
    EXPECT_LE(study.simulated_wall_seconds.tenth, study.simulated_wall_seconds.mean);
    EXPECT_GE(study.simulated_wall_seconds.ninetieth, study.simulated_wall_seconds.mean);
    EXPECT_LT(study.simulated_ettr.tenth, study.simulated_ettr.ninetieth);
    EXPECT_EQ(study.daly_seconds, daly_interval(study.stall_seconds, study.seconds_between));
    EXPECT_NEAR(study.closed.interval_seconds, study.daly_seconds, 1e-9 * study.daly_seconds);
    EXPECT_EQ(study.simulated_wall_seconds.mean, again.failures[i].simulated_wall_seconds.mean);
    EXPECT_NE(study.simulated_wall_seconds.mean, other.failures[i].simulated_wall_seconds.mean);
  }
  EXPECT_EQ(answer_text(first, true), answer_text(again, true));
  EXPECT_EQ(answer_json(first), answer_json(again));
}

TEST(Answer, TheTextSaysWhatWouldHaveToGiveWay) {
  nlohmann::json document = example_plan();
  EXPECT_THAT(answer_text(answered(document), false),
              AllOf(HasSubstr("\nCheapest: "), HasSubstr("\nFastest:  "), Not(HasSubstr("Nothing meets all"))));
  document["budget"]["amount"] = 1000;
  const CapacityAnswer result = answered(document);
  EXPECT_FALSE(result.choice.cheapest);
  const std::string text = answer_text(result, false);
  EXPECT_THAT(text, AllOf(HasSubstr("Nothing meets all constraints"), HasSubstr("a budget of "),
                          HasSubstr(" would allow "), Not(HasSubstr("Cheapest: "))));
  document["all_candidates"]["plan"] = {{"zero_stage", 0}, {"recompute", "none"}};
  const std::string lacking = answer_text(answered(document), false);
  EXPECT_THAT(lacking, HasSubstr("no candidate fits in memory; the nearest is "));
}

TEST(Answer, DataAndPictureHaveWhatTheTextHas) {
  const CapacityAnswer result = answered(example_plan());
  const auto json = answer_json(result);
  EXPECT_EQ(json["feasible"], true);
  EXPECT_EQ(json["candidates"].size(), result.candidates.size());
  EXPECT_EQ(json["cheapest"]["devices"], result.candidates[*result.choice.cheapest].devices);
  EXPECT_EQ(json["clusters"][0]["figures"]["price"]["source"],
            read_plan(example_plan()).clusters[0].whole.price.source);
  const std::string csv = answer_csv(result);
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 1 + static_cast<std::ptrdiff_t>(result.candidates.size()));
  const std::string header = csv.substr(0, csv.find('\n')), row = csv.substr(csv.find('\n') + 1);
  EXPECT_EQ(std::count(header.begin(), header.end(), ','),
            std::count(row.begin(), row.begin() + static_cast<std::ptrdiff_t>(row.find('\n')), ','));
  const std::string svg = answer_svg(result);
  EXPECT_THAT(svg, AllOf(HasSubstr("<svg xmlns="), HasSubstr(">matrix FLOP/s</text>"), HasSubstr("</svg>\n"),
                         Not(HasSubstr("nan"))));
}

}  // namespace
}  // namespace orrery
