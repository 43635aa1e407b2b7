// Do the writers say what the report says, in formats that other programs accept?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "sim/report/csv.h"
#include "sim/report/format.h"
#include "sim/report/json.h"
#include "sim/report/svg.h"
#include "sim/report/table.h"
#include "sim/report/terms.h"
#include "sim/report/trace.h"
#include "tests/report/trace_format.h"

namespace orrery {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

Interval slot(std::int32_t stage, SlotKind kind, std::uint32_t micro_batch, double begin, double end) {
  return {stage, Stream::compute, static_cast<std::uint8_t>(kind), 0, micro_batch, begin, end, name_of(kind)};
}

// Two stages, two micro-batches, 1F1B; times that do not fall on whole nanoseconds.
Report example_report() {
  Report report;
  report.engine = "analytical";
  report.devices = 16;
  report.step_seconds = 6.2 / 3;
  report.tokens_per_second = 1.5e6;
  report.tokens_per_second_per_device = 1.5e6 / 16;
  report.mfu = 0.42;
  report.mfu_full_attention = 0.44;
  report.hfu = 0.5;
  report.bound_by = "matrix products";
  report.memory_capacity_bytes = 80e9;
  report.memory_peak_bytes = 60e9;
  report.memory_fits = true;
  report.memory_stage = 1;
  StageReport first, second;
  first.time.matmul = 1.5;
  first.time.bubble = report.step_seconds - 1.5 - 0.125;
  first.time.exposed[static_cast<std::size_t>(Stream::tensor_communication)] = 0.125;
  second.stage = 1;
  second.memory.bytes[static_cast<std::size_t>(Category::parameter)] = 50e9;
  second.memory.bytes[static_cast<std::size_t>(Category::host_copy)] = 7e9;
  second.memory.framework_bytes = 10e9;
  second.memory.peak_bytes = 60e9;
  report.stages = {first, second};
  report.notes = {"a note with \"quotes\""};
  const double t = 1.0 / 3;
  report.timeline.intervals = {
      slot(0, SlotKind::forward, 0, 0, t),
      slot(0, SlotKind::forward, 1, t, 2 * t),
      slot(0, SlotKind::backward, 0, 3 * t, 4 * t),
      slot(0, SlotKind::backward, 1, 5 * t, 6 * t),
      slot(1, SlotKind::forward, 0, t, 2 * t),
      slot(1, SlotKind::backward, 0, 2 * t, 3 * t),
      slot(1, SlotKind::forward, 1, 3 * t, 4 * t),
      slot(1, SlotKind::backward, 1, 4 * t, 5 * t),
      {0, Stream::data_communication, 3, 0, 0, 6 * t, 6.1 * t, "gradients.reduce_scatter"},
      {0, Stream::compute, 3, 0, 0, 6.1 * t, 6.2 * t, "adam"},
      {1, Stream::compute, 3, 0, 0, 6.1 * t, 6.1 * t, "nothing"},
  };
  report.timeline.arrows = {{0, 1, t, t}, {0, 1, 2 * t, 3 * t}, {1, 0, 3 * t, 3 * t}, {1, 0, 5 * t, 5 * t}};
  report.timeline.memory = {{0, 0, {}}, {0, t, {1e9}}, {1, 0.5 * t, {2e9}}};
  return report;
}

std::set<std::string> names(const json& events, const char* phase) {
  std::set<std::string> result;
  for (const json& event : events)
    if (event["ph"] == phase) result.insert(event["name"]);
  return result;
}

TEST(Trace, FollowsTheTraceEventFormat) {
  const json trace = json::parse(report_trace(example_report()));
  expect_trace_format(trace);
  const auto& events = trace["traceEvents"];
  EXPECT_EQ(std::count_if(events.begin(), events.end(), [](const json& e) { return e["ph"] == "s"; }), 4);
}

TEST(Trace, NamesSlotsByKindAndMicroBatch) {
  const json events = json::parse(report_trace(example_report())).at("traceEvents");
  EXPECT_EQ(names(events, "X"),
            (std::set<std::string>{"F 0", "F 1", "B 0", "B 1", "adam", "gradients.reduce_scatter"}));
  EXPECT_THAT(names(events, "M"), testing::IsSupersetOf({"process_name", "thread_name"}));
}

TEST(Trace, OfAnEmptyTimelineIsValid) { EXPECT_NO_THROW(json::parse(report_trace(Report{}))); }

TEST(Svg, ShowsEverySlotOnItsStageWithinThePicture) {
  const std::string svg = report_svg(example_report(), "a < b & c");
  EXPECT_THAT(
      svg, AllOf(HasSubstr("stage 0"), HasSubstr("stage 1"), Not(HasSubstr("stage 2")), HasSubstr("a &lt; b &amp; c"),
                 HasSubstr(">forward<"), HasSubstr(">backward<"), Not(HasSubstr("weight gradient"))));
  // Background, 8 slots, one update of non-zero length, three keys of the legend.
  std::size_t boxes = 0;
  for (std::size_t at = 0; (at = svg.find("<rect", at)) != std::string::npos; ++at) ++boxes;
  EXPECT_EQ(boxes, 1 + 8 + 1 + 3u);
}

TEST(ReportJson, HoldsTermsThatAddUp) {
  const Report report = example_report();
  const auto parsed = json::parse(report_json(report).dump());
  double total = 0;
  for (const auto& [name, seconds] : parsed.at("time").items()) {
    EXPECT_THAT(name, testing::EndsWith("_seconds"));
    total += seconds.get<double>();
  }
  EXPECT_DOUBLE_EQ(total, report.step_seconds);
  EXPECT_EQ(parsed["memory"]["margin_bytes"], 20e9);
  EXPECT_EQ(parsed["memory"]["stage"], 1);
  EXPECT_EQ(parsed["memory"]["parts"]["parameter_bytes"], 50e9);
  EXPECT_EQ(parsed["stages"].size(), 2u);
  EXPECT_FALSE(parsed.contains("ops"));
}

TEST(ReportCsv, HasAColumnPerHeadingAndQuotes) {
  const std::string header = csv_header();
  std::string row = csv_row("a, \"b\".json", example_report());
  EXPECT_THAT(row, testing::StartsWith("\"a, \"\"b\"\".json\",analytical,16,"));
  row = csv_row("plain", example_report());
  EXPECT_EQ(std::count(row.begin(), row.end(), ','), std::count(header.begin(), header.end(), ','));
  EXPECT_EQ(header.back(), '\n');
  EXPECT_EQ(row.back(), '\n');
}

TEST(Table, SaysHeadlineVerdictAndNotes) {
  Report report = example_report();
  const std::string fits = report_table(report, {"title"}, {});
  EXPECT_THAT(fits, AllOf(HasSubstr("title\n"), HasSubstr("2.067 s"), HasSubstr("42.0 %"),
                          HasSubstr("fits, 18.63 GiB to spare"), HasSubstr("a note with"), HasSubstr("Stages"),
                          Not(HasSubstr("\x1b"))));
  report.memory_peak_bytes = 90e9;
  report.memory_fits = false;
  EXPECT_THAT(report_table(report, {}, {}), HasSubstr("DOES NOT FIT, 9.31 GiB too much"));
  EXPECT_THAT(report_table(report, {}, {.colour = true}), HasSubstr("\x1b[1;31mDOES NOT FIT\x1b[0m"));
}

TEST(Table, OfOneStageHasNoTableOfStages) {
  Report report = example_report();
  report.stages.resize(1);
  report.memory_stage = 0;
  EXPECT_THAT(report_table(report, {}, {}), AllOf(Not(HasSubstr("Stages")), HasSubstr("every device")));
}

TEST(Comparison, PutsTheLargestDifferenceFirst) {
  const Report a = example_report();
  Report b = example_report();
  b.stages[0].time.matmul = 1.0;
  b.stages[0].time.bubble += 0.1;
  b.step_seconds -= 0.4;
  const std::string table = comparison_table(a, b, {}, {});
  EXPECT_LT(table.find("matrix products"), table.find("pipeline bubble  "));
  EXPECT_THAT(table, AllOf(HasSubstr("-500.0 ms"), HasSubstr("+100.0 ms"), HasSubstr("-19.4 %")));
  const auto difference = comparison_json(a, b);
  EXPECT_NEAR(difference["change"]["step_seconds"].get<double>(), -0.4, 1e-12);
  EXPECT_NEAR(difference["change"]["time"]["matmul_seconds"].get<double>(), -0.5, 1e-12);
}

TEST(Terms, AddUpToTheTotal) {
  TimeBreakdown time{
      .matmul = 1, .attention = 2, .memory_bound = 4, .recompute = 8, .host_issue = 16, .bubble = 32, .optimizer = 64};
  for (std::size_t s = 1; s < kStreams; ++s) time.exposed[s] = 128;
  double sum = 0;
  for (const Term& term : terms_of(time)) sum += term.seconds;
  EXPECT_EQ(sum, 127 + 128 * (kStreams - 1));
  EXPECT_EQ(time.total(), sum);
}

TEST(Quantities, AreReadable) {
  EXPECT_EQ(seconds_text(9.8721), "9.872 s");
  EXPECT_EQ(seconds_text(0.012341), "12.34 ms");
  EXPECT_EQ(seconds_text(5.6e-6), "5.600 us");
  EXPECT_EQ(seconds_text(-0.5), "-500.0 ms");
  EXPECT_EQ(seconds_text(0), "0 s");
  EXPECT_EQ(seconds_text(12345), "12345 s");
  EXPECT_EQ(bytes_text(1536), "1.50 KiB");
  EXPECT_EQ(bytes_text(80.0 * (1 << 30)), "80.00 GiB");
  EXPECT_EQ(bytes_text(7), "7 B");
  EXPECT_EQ(percent_text(0.4167), "41.7 %");
  EXPECT_EQ(rate_text(412.34), "412");
  EXPECT_EQ(rate_text(1.5e6), "1.500 M");
  EXPECT_EQ(bar(0.5, 4), "\u2588\u2588");
  EXPECT_EQ(bar(1.0 / 8, 1), "\u258f");
  EXPECT_EQ(bar(0, 8), "");
  EXPECT_EQ(left("\u00b5", 3), "\u00b5  ");
}

}  // namespace
}  // namespace orrery
