// Points that moved between two databases of sweeps, and only those.
#include "study/sweep/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>

#include "sim/base/error.h"
#include "study/sweep/results.h"

namespace orrery {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::size_t kPoints = 3;

struct KeptFigures {
  double step_seconds = 0;
  bool fits = true;
  std::string error{}, plan{};
};

std::vector<nlohmann::json> figures_of(const KeptFigures& kept) {
  Report report;
  report.step_seconds = kept.step_seconds;
  report.memory_peak_bytes = 64;
  report.memory_fits = kept.fits;
  return sweep_values(report);
}

class ComparedSweepsTest : public testing::Test {
 protected:
  ~ComparedSweepsTest() override { std::filesystem::remove_all(folder_); }

  // `scenarios`: digests, where they are not 1, 2, 3.
  std::string database(const std::string& name, const std::vector<KeptFigures>& points,
                       std::vector<std::uint64_t> scenarios = {}, const std::string& document = "{}") {
    std::filesystem::create_directories(folder_);
    const std::string path = folder_ / name;
    SweepResults results(path, Database::Mode::write);
    const std::int64_t sweep = results.add({name + document, document, {"cluster.nodes"}, kPoints, "1 " + name, ""});
    std::vector<SweepRow> rows;
    for (std::size_t i = 0; i < points.size(); ++i) {
      const std::uint64_t scenario = scenarios.empty() ? i + 1 : scenarios[i];
      SweepRow row;
      row.number = static_cast<std::int64_t>(i);
      row.key = std::hash<std::string>()(name + document + std::to_string(scenario));
      row.scenario = scenario;
      row.fields = "{\"cluster.nodes\":" + std::to_string(i + 1) + "}";
      row.error = points[i].error;
      row.plan = points[i].plan;
      if (row.error.empty()) row.values = figures_of(points[i]);
      rows.push_back(std::move(row));
    }
    results.add(sweep, rows);
    return path;
  }

 private:
  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("orrery_comparison_" + std::to_string(::getpid()));
};

TEST_F(ComparedSweepsTest, TheSameIsAlike) {
  const std::vector<KeptFigures> points{{1}, {2}, {0, false, "does not divide"}};
  const SweepComparison same = compare_sweeps(database("a.db", points), database("b.db", points), {});
  EXPECT_TRUE(same.alike());
  EXPECT_EQ(same.in_both, 3);
  EXPECT_THAT(same.a.versions, ElementsAre("1 a.db"));
  EXPECT_THAT(same.b.versions, ElementsAre("1 b.db"));
}

TEST_F(ComparedSweepsTest, NumbersMoveBeyondTheThreshold) {
  const std::string a = database("a.db", {{1}, {2}, {4}}), b = database("b.db", {{1.005}, {1.9}, {4.8}});
  const SweepComparison moved = compare_sweeps(a, b, {});
  EXPECT_FALSE(moved.alike());
  ASSERT_EQ(moved.moved.size(), 2U);
  EXPECT_EQ(moved.moved[0].fields, R"({"cluster.nodes":3})");
  EXPECT_EQ(moved.moved[0].figure, "step_seconds");
  EXPECT_NEAR(moved.moved[0].change, 0.2, 1e-12);
  EXPECT_NEAR(moved.moved[1].change, -0.05, 1e-12);
  EXPECT_EQ(moved.figures[0].moved, 2);
  EXPECT_NEAR(moved.figures[0].lowest, -0.05, 1e-12);
  EXPECT_NEAR(moved.figures[0].median, 0.005, 1e-12);
  EXPECT_NEAR(moved.figures[0].highest, 0.2, 1e-12);
  SweepComparisonOptions loose;
  loose.threshold = 0.1;
  EXPECT_EQ(compare_sweeps(a, b, loose).moved.size(), 1U);
  loose.figures = {"memory_peak_bytes"};
  EXPECT_TRUE(compare_sweeps(a, b, loose).alike());
}

TEST_F(ComparedSweepsTest, FlagsAndResultsThatComeAndGoAreMoves) {
  const SweepComparison moved = compare_sweeps(database("a.db", {{1}, {2}, {0, true, "none fits"}}),
                                               database("b.db", {{1, false}, {0, true, "does not divide"}, {4}}), {});
  ASSERT_EQ(moved.moved.size(), 3U);
  EXPECT_EQ(moved.moved[0].figure, "memory_fits");
  EXPECT_EQ(moved.moved[0].a, true);
  EXPECT_EQ(moved.moved[0].b, false);
  EXPECT_EQ(moved.moved[1].figure, "error");
  EXPECT_EQ(moved.moved[1].b, "does not divide");
  EXPECT_EQ(moved.moved[2].a, "none fits");
  EXPECT_THAT(sweep_comparison_text(moved, 2), HasSubstr("and 1 more"));
  EXPECT_THAT(sweep_comparison_csv(moved), HasSubstr("memory_fits,true,false,\n"));
}

TEST_F(ComparedSweepsTest, GonePointsAreSaidAndNewOnesAreNoMove) {
  const std::string all = database("a.db", {{1}, {2}, {3}}), some = database("b.db", {{1}});
  const SweepComparison gone = compare_sweeps(all, some, {});
  EXPECT_THAT(gone.moved, IsEmpty());
  EXPECT_THAT(gone.only_in_a, ElementsAre(R"({"cluster.nodes":2})", R"({"cluster.nodes":3})"));
  EXPECT_FALSE(gone.alike());
  const SweepComparison grown = compare_sweeps(some, all, {});
  EXPECT_EQ(grown.only_in_b.size(), 2U);
  EXPECT_TRUE(grown.alike());
}

// A preset changed: other scenarios at the same places of the same document.
TEST_F(ComparedSweepsTest, PlacesOfADocumentPairWhatScenariosDoNot) {
  const std::string a = database("a.db", {{1}, {2}, {3}}), b = database("b.db", {{1}, {2}, {6}}, {11, 2, 13});
  const SweepComparison moved = compare_sweeps(a, b, {});
  EXPECT_EQ(moved.in_both, 3);
  ASSERT_EQ(moved.moved.size(), 1U);
  EXPECT_NEAR(moved.moved[0].change, 1, 1e-12);
}

// The scenario changed: of all three neither scenario nor document is the same.
TEST_F(ComparedSweepsTest, FieldsPairWhatNothingElseDoes) {
  const std::string a = database("a.db", {{1}, {2}, {3}});
  const std::string b = database("b.db", {{1}, {2}, {6}}, {11, 12, 13}, R"({"another": 1})");
  EXPECT_EQ(compare_sweeps(a, b, {}).moved.size(), 1U);
  // Two have the same fields: which is meant nobody knows.
  database("b.db", {{1}, {2}}, {21, 22}, R"({"another": 2})");
  const SweepComparison third = compare_sweeps(a, b, {});
  EXPECT_EQ(third.in_both, 1);
  EXPECT_EQ(third.only_in_a.size(), 2U);
  EXPECT_THROW(compare_sweeps(a, database("c.db", {}), {}), InputError);
}

TEST_F(ComparedSweepsTest, OfAScenarioTheLastResultCounts) {
  const std::string a = database("a.db", {{1}});
  database("b.db", {{9}});
  const std::string b = database("b.db", {{1}}, {}, R"({"later": 1})");
  EXPECT_TRUE(compare_sweeps(a, b, {}).alike());
  EXPECT_FALSE(compare_sweeps(b, database("c.db", {{9}}), {}).alike());
}

TEST_F(ComparedSweepsTest, OtherPlansAreCounted) {
  const SweepComparison found = compare_sweeps(database("a.db", {{1, true, "", R"({"tensor_parallel":2})"}, {2}}),
                                               database("b.db", {{1, true, "", R"({"tensor_parallel":4})"}, {2}}), {});
  EXPECT_EQ(found.other_plans, 1);
  EXPECT_TRUE(found.alike());
}

TEST_F(ComparedSweepsTest, UnknownFiguresGetTheNearest) {
  const std::string a = database("a.db", {{1}});
  SweepComparisonOptions options;
  options.figures = {"step_second"};
  try {
    compare_sweeps(a, a, options);
    FAIL() << "taken";
  } catch (const InputError& error) {
    EXPECT_EQ(error.nearest(), "step_seconds");
  }
}

}  // namespace
}  // namespace orrery
