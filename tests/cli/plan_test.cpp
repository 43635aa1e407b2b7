// Does `orrery plan` answer with its exit codes, the same each time, and write what it is asked to?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/cli/command.h"

namespace orrery {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

constexpr const char* kBundled = "plan llama-3-70b-60-days";

TEST(Plan, TheBundledOneHasAnAnswer) {
  const Workplace place;
  const auto result = place.orrery(kBundled);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(StartsWith("llama-3-70b: 15.00 T tokens, within 60 days, for at most 20.00 M USD\n"),
                                HasSubstr("\nCheapest: "), HasSubstr("\nDevices needed: "),
                                HasSubstr("\nFailures and "), HasSubstr("\nWhat moves the cost of "),
                                HasSubstr("\nBreak-even against "), HasSubstr("\nFigures\n")));
  EXPECT_EQ(place.orrery(kBundled).out, result.out);
  EXPECT_THAT(place.files(), IsEmpty());
}

TEST(Plan, ThatNothingMeetsIsAnAnswerOfExitCodeOne) {
  const Workplace place;
  for (const char* budget : {"--set budget.amount=1e6", "--set deadline_days=1", "--set budget.amount=13.9e6"}) {
    const auto result = place.orrery(std::string(kBundled) + " " + budget);
    EXPECT_EQ(result.code, 1) << budget;
    EXPECT_THAT(result.err, IsEmpty());
    EXPECT_THAT(result.out, AllOf(HasSubstr("\nNothing meets all constraints\n"), HasSubstr(" would allow ")));
  }
  // Met by what is expected, but not by the slow end.
  const std::string near = std::string(kBundled) + " --set budget.amount=16e6";
  EXPECT_EQ(place.orrery(near).code, 0);
  const auto worst = place.orrery(near + " --worst --json -");
  EXPECT_EQ(worst.code, 1);
  EXPECT_EQ(json::parse(worst.out)["feasible"], false);
}

TEST(Plan, WhatCannotBeUsedIsOneSentenceOfExitCodeTwo) {
  const Workplace place;
  for (const auto& [words, sentence] :
       {std::pair("plan", "PLAN is required"),
        {"plan llama-3-70b-60-day", "did you mean \"llama-3-70b-60-days\"?"},
        {"plan none.json", "none.json"},
        {"plan llama-3-70b-60-days --set deadline_days=-1", "--set deadline_days=-1: /deadline_days: found -1"},
        {"plan llama-3-70b-60-days --set budget.currency=EUR", "found \"EUR\", expected USD"},
        {"plan llama-3-70b-60-days --set candidates.0.price='{\"per_device_hour\":2,\"currency\":\"USD\"}'",
         "/candidates/0/price/date: found nothing"},
        {"plan llama-3-70b-60-days --published", "--published: found a plan as well"},
        {"plan llama-3-70b-60-days --histories 0", "--histories"},
        {"plan llama-3-70b-60-days --against B20", "--against: found \"B20\", expected the name of a candidate"},
        {"plan llama-3-70b-60-days --json a.json --svg a.json", "a.json"}}) {
    const auto result = place.orrery(words);
    EXPECT_EQ(result.code, 2) << words;
    EXPECT_THAT(result.err, AllOf(StartsWith("orrery: error: "), HasSubstr(sentence)));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_THAT(place.files(), IsEmpty());
  }
}

TEST(Plan, WritesDataAndAPicture) {
  const Workplace place;
  const auto result = place.orrery(std::string(kBundled) + " --json a.json --csv a.csv --svg a.svg");
  ASSERT_EQ(result.code, 0) << result.err;
  const json data = json::parse(place.read("a.json"));
  EXPECT_EQ(data["currency"], "USD");
  EXPECT_EQ(data["plan"], "study/capacity/examples/llama-3-70b-60-days.json");
  EXPECT_EQ(data["inputs"]["plan"]["tokens"], 15e12);
  EXPECT_THAT(place.read("a.csv"), StartsWith("candidate,devices,spare_nodes,"));
  EXPECT_THAT(place.read("a.svg"), AllOf(StartsWith("<svg "), HasSubstr("</svg>")));
}

TEST(Plan, BreakEvenIsAgainstWhomOneAsks) {
  const Workplace place;
  const json data = json::parse(place.orrery(std::string(kBundled) + " --against A100 --json -").out);
  ASSERT_EQ(data["break_even"].size(), 3u);
  for (const json& tie : data["break_even"]) {
    EXPECT_EQ(tie["against"]["name"], "A100");
    EXPECT_NEAR(tie["price"]["value"], tie["ratio"]["value"].get<double>() * 2.79, 1e-9);
    EXPECT_GT(tie["ratio"]["value"], 1);
  }
}

TEST(Plan, TheSeedIsOfTheHistoriesAlone) {
  const Workplace place;
  const auto data = [&](const std::string& options) {
    return json::parse(place.orrery(std::string(kBundled) + " --json - " + options).out);
  };
  const json one = data("--seed 1"), two = data("--seed 2");
  EXPECT_EQ(one, data(""));
  EXPECT_EQ(one["candidates"], two["candidates"]);
  EXPECT_NE(one["failures"][0]["simulated"], two["failures"][0]["simulated"]);
  EXPECT_EQ(one["failures"][0]["closed_form"], two["failures"][0]["closed_form"]);
  // Failures that come in clusters find no spares left.
  const auto ettr = [](const json& of) { return of["failures"][0]["simulated"]["ettr"]["mean"].get<double>(); };
  EXPECT_LT(ettr(data("--shape 0.5")), ettr(one) - 0.005);
}

TEST(Plan, APlanComesFromStandardInputAndPathsInItStartFromItsFolder) {
  const Workplace place;
  json plan = json::parse(place.orrery("show llama-3-70b-60-days --json").out)["plan"];
  plan.erase("path");
  const auto usual = place.orrery(kBundled);
  EXPECT_EQ(place.orrery("plan -", plan.dump()).out, usual.out);
  plan["model"] = "parts/model.json";
  place.shell("mkdir -p there/parts; \"$ORRERY\" show llama-3-70b --json > there/parts/model.json");
  place.write("there/plan.json", plan.dump());
  EXPECT_EQ(place.orrery("plan there/plan.json").out, usual.out);
}

TEST(Plan, PublishedTrainingsHaveTheirTable) {
  const Workplace place;
  const auto table = place.orrery("plan --published");
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, AllOf(HasSubstr("bloom-176b "), HasSubstr("llama-3.1-405b "), HasSubstr("opt-175b ")));
  for (const json& row : json::parse(place.orrery("plan --published --json -").out))
    EXPECT_THAT(row["source"].get<std::string>(), Not(IsEmpty()));
}

}  // namespace
}  // namespace orrery
