// Do the writers say what the report says, in formats that other programs accept?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "sim/report/columns.h"
#include "sim/report/format.h"
#include "sim/report/json.h"
#include "sim/report/memory_verdict.h"
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

TimelineSpan slot(std::int32_t stage, SlotKind kind, std::uint32_t micro_batch, double begin, double end) {
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
  second.memory.bytes.of(Place::device, Category::parameter) = 50e9;
  second.memory.bytes.of(Place::host, Category::optimizer_state) = 7e9;
  report.host_memory = {7e9, 56e9, 100e9};
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

Report discrete_event_report() {
  Report report = example_report();
  report.engine = "des";
  DiscreteEventReport& d = report.discrete_event.emplace();
  d.fidelity = "steady-flow";
  d.network_model = "max-min";
  d.ranks = 16;
  d.rank_classes = 3;
  d.flows = 1024;
  d.flow_classes = 12;
  d.links = 99;
  d.link_classes = 7;
  d.events = 4321;
  d.uncontended_step_seconds = report.step_seconds / 1.25;
  d.link_kinds = {{"nic", 16, 50e9, 1e9, 2e9, 0.25, 0.5, {0.25, 1, 0.75, 0}}, {"scale_up", 16, 450e9, 0, 0, 0, 0, {}}};
  for (int i = 0; i < 10; ++i)
    d.busiest_links.push_back({"node" + std::to_string(i) + ".nic0.out", 8, 50e9, 1e9, 2e9, 0.25, 0.5, {}});
  for (int i = 0; i < 9; ++i)
    d.contention.push_back({"stage 0", "op" + std::to_string(i), "leaf0.spine1.up", 4, 0.5, 0.75});
  d.critical_path = {{"stage 1 with device 9", "layer.forward.fc1", 32, report.step_seconds * 0.75},
                     {"stage 0", "waits for the pipeline", 1, report.step_seconds * 0.25}};
  d.waits = {{"stage 0", "stage 1 with device 9", "gradients.reduce_scatter", 2, 0.125}};
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

TEST(Trace, HasAProcessOfEachKindOfRanks) {
  Report report = example_report();
  report.timeline.stages = {"stage 0", "stage 1, rank 13"};
  report.timeline.ranks = {{"stage 1, 7 ranks like 8", {slot(1, SlotKind::forward, 5, 0.25, 0.5)}}};
  const json trace = json::parse(report_trace(report));
  expect_trace_format(trace);
  std::map<std::string, int> process;
  for (const json& event : trace["traceEvents"])
    if (event["name"] == "process_name") process[event["args"]["name"]] = event["pid"];
  ASSERT_EQ(process.size(), 3u);
  EXPECT_EQ(process.at("stage 1, rank 13"), 1);
  const int others = process.at("stage 1, 7 ranks like 8");
  std::size_t slices = 0;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] != "X" || event["pid"] != others) continue;
    ++slices;
    EXPECT_EQ(event["name"], "F 5");
    EXPECT_EQ(event["ts"], 250000);
  }
  EXPECT_EQ(slices, 1u);
}

TEST(Trace, NamesSlotsByKindAndMicroBatch) {
  const json events = json::parse(report_trace(example_report())).at("traceEvents");
  EXPECT_EQ(names(events, "X"),
            (std::set<std::string>{"F 0", "F 1", "B 0", "B 1", "adam", "gradients.reduce_scatter"}));
  EXPECT_THAT(names(events, "M"), testing::IsSupersetOf({"process_name", "thread_name"}));
}

TEST(Trace, OfAnEmptyTimelineIsValid) { EXPECT_NO_THROW(json::parse(report_trace(Report{}))); }

TEST(Trace, CountsUtilisationOfEachKindOfLinkInEqualParts) {
  const Report report = discrete_event_report();
  const json trace = json::parse(report_trace(report));
  expect_trace_format(trace);
  std::vector<double> at, percent;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] != "C" || event["name"] != "nic utilisation %") continue;
    EXPECT_EQ(event["pid"], 2) << "a process after the stages";
    at.push_back(event["ts"].get<double>() * 1e-6);
    percent.push_back(event["args"]["busiest"]);
  }
  EXPECT_THAT(percent, testing::ElementsAre(25, 100, 75, 0, 0)) << "and nothing after the step";
  ASSERT_EQ(at.size(), 5u);
  for (std::size_t i = 0; i < at.size(); ++i)
    EXPECT_NEAR(at[i], report.step_seconds * static_cast<double>(i) / 4, 1e-8);
  EXPECT_FALSE(names(trace["traceEvents"], "C").contains("scale_up utilisation %")) << "nothing is known of it";
}

TEST(Trace, OfJobsHoldsTheProcessesOfEach) {
  const Report a = discrete_event_report(), b = example_report();
  const TracedJob jobs[] = {{"a", &a}, {"job \"b\"", &b}};
  const json trace = json::parse(jobs_trace(jobs));
  expect_trace_format(trace);
  std::set<std::string> processes;
  std::set<int> slices, named;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] == "X") slices.insert(event["pid"].get<int>());
    if (event["name"] != "process_name") continue;
    EXPECT_TRUE(named.insert(event["pid"].get<int>()).second) << "one process a name";
    processes.insert(event["args"]["name"].get<std::string>());
  }
  EXPECT_EQ(processes, (std::set<std::string>{"a: stage 0", "a: stage 1", "a: links", "job \"b\": stage 0",
                                              "job \"b\": stage 1"}));
  EXPECT_EQ(slices.size(), 4u);
  const auto& events = trace["traceEvents"];
  EXPECT_EQ(std::count_if(events.begin(), events.end(), [](const json& e) { return e["ph"] == "s"; }), 8);
}

// As the discrete-event engine emits them: slots on the compute stream, each with collectives beside it.
Report long_report(std::uint32_t micro_batches) {
  Report report = example_report();
  report.timeline = {};
  constexpr double kSlot = 1e-3;
  for (std::int32_t stage = 0; stage < 4; ++stage)
    for (std::uint32_t m = 0; m < micro_batches; ++m) {
      const double begin = m * kSlot;
      report.timeline.intervals.push_back(slot(stage, SlotKind::forward, m, begin, begin + kSlot));
      report.timeline.intervals.push_back({stage, Stream::tensor_communication,
                                           static_cast<std::uint8_t>(SlotKind::forward), 0, m, begin + kSlot / 4,
                                           begin + kSlot / 2, "fc2.all_reduce"});
      report.timeline.intervals.push_back(
          {stage, Stream::data_communication, 3, 0, 0, begin, begin + kSlot, "gradients.reduce_scatter"});
    }
  report.step_seconds = micro_batches * kSlot;
  return report;
}

TEST(Trace, HoldsThousandsOfIntervalsOnAllStreams) {
  constexpr std::uint32_t kMicroBatches = 1000;
  const json trace = json::parse(report_trace(long_report(kMicroBatches)));
  expect_trace_format(trace);
  const auto& events = trace["traceEvents"];
  EXPECT_EQ(std::count_if(events.begin(), events.end(), [](const json& e) { return e["ph"] == "X"; }),
            4 * 3 * kMicroBatches);
  EXPECT_THAT(names(events, "X"),
              testing::IsSupersetOf({"F 0", "F 999", "fc2.all_reduce", "gradients.reduce_scatter"}));
}

// Begin and width of each box, row by row: the horizontal strokes of the paths.
struct Box {
  std::string colour;
  double y = 0, begin = 0, width = 0;
};
std::vector<Box> boxes_of(const std::string& svg) {
  static const std::regex path("<path stroke=\"(#[0-9a-f]{6})\" d=\"M([0-9.]+) ([0-9.]+)([^\"]*)\"/>");
  static const std::regex move("([hm])(-?[0-9.]+)");
  std::vector<Box> boxes;
  for (std::sregex_iterator row(svg.begin(), svg.end(), path), end; row != end; ++row) {
    double x = std::stod((*row)[2]);
    const std::string moves = (*row)[4];
    for (std::sregex_iterator at(moves.begin(), moves.end(), move); at != end; ++at) {
      const double by = std::stod((*at)[2]);
      if ((*at)[1] == "h") boxes.push_back({(*row)[1], std::stod((*row)[3]), x, by});
      x += by;
    }
  }
  return boxes;
}

TEST(Svg, DrawsSlotsOfTheComputeStreamOnly) {
  const std::string svg = report_svg(long_report(500), "title");
  const std::vector<Box> boxes = boxes_of(svg);
  ASSERT_EQ(boxes.size(), 4 * 500u);
  // 1120 pixels of a row, less the borders; nothing drifts.
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    EXPECT_NEAR(boxes[i].begin, 64 + 1120.0 / 500 * static_cast<double>(i % 500) + 0.3, 0.011) << i;
    EXPECT_NEAR(boxes[i].width, 1120.0 / 500 - 0.6, 0.011) << i;
  }
}

// As long as a slot can be told from the next, one costs some bytes and not a line of attributes.
TEST(Svg, TakesFewBytesForEachSlot) {
  constexpr std::size_t kSlots = 4 * 2000;
  const std::string svg = report_svg(long_report(2000), "title");
  EXPECT_EQ(boxes_of(svg).size(), kSlots);
  EXPECT_LT(svg.size(), 14 * kSlots);
}

// However many there are, the picture has no more than its pixels can show, and says what it shows instead.
TEST(Svg, ShowsSharesOfTheTimeWhereSlotsAreTooManyToDraw) {
  EXPECT_THAT(report_svg(long_report(2000), "title"), Not(HasSubstr("heights are shares")));
  Report report = long_report(560 * 36);  // as many in each column
  for (TimelineSpan& interval : report.timeline.intervals) {
    if (interval.stream != Stream::compute) continue;
    if (interval.micro_batch % 2 == 1) interval.kind = static_cast<std::uint8_t>(SlotKind::backward);
    // The second half of the step is idle 40 % of the time.
    if (interval.micro_batch >= 280 * 36) interval.end_seconds -= 0.4 * (interval.end_seconds - interval.begin_seconds);
  }
  const std::string svg = report_svg(report, "title");
  EXPECT_THAT(svg, HasSubstr("too many slots to draw each: heights are shares of the time, white is idle"));
  EXPECT_TRUE(boxes_of(svg).empty());
  EXPECT_LT(svg.size(), 8000u);
  // Rows are 25 high: forward is 50 % of it, then 30 %; with backward 100 %, then 60 %.
  EXPECT_THAT(svg, HasSubstr("d=\"M64 83V70.5H624V75.5H1184V83z\"")) << "forward";
  EXPECT_THAT(svg, HasSubstr("d=\"M64 83V58H624V68H1184V83z\"")) << "backward";
}

TEST(Svg, ShowsEverySlotOnItsStageWithinThePicture) {
  const std::string svg = report_svg(example_report(), "a < b & c");
  EXPECT_THAT(
      svg, AllOf(HasSubstr("stage 0"), HasSubstr("stage 1"), Not(HasSubstr("stage 2")), HasSubstr("a &lt; b &amp; c"),
                 HasSubstr(">forward<"), HasSubstr(">backward<"), Not(HasSubstr("weight gradient"))));
  const std::vector<Box> boxes = boxes_of(svg);
  EXPECT_EQ(boxes.size(), 8 + 1u) << "slots, and one update of non-zero length";
  for (const Box& box : boxes) {
    EXPECT_GE(box.begin, 64) << box.y;
    EXPECT_LE(box.begin + box.width, 1184) << box.y;
  }
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
  EXPECT_TRUE(csv_row("=1+1", example_report()).starts_with("'=1+1,")) << "no formula";
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

TEST(Table, SaysThatMemoryIsTight) {
  Report report = example_report();
  const auto verdict = [&](double share) {
    report.memory_peak_bytes = share * report.memory_capacity_bytes;
    report.memory_fits = share <= 1;
    return memory_verdict(report);
  };
  EXPECT_EQ(verdict(0.5), MemoryVerdict::fits);
  EXPECT_EQ(verdict(0.999 / kPeakHigh), MemoryVerdict::fits);
  EXPECT_EQ(verdict(1.01), MemoryVerdict::does_not_fit);
  EXPECT_THAT(report_table(report, {}, {}), AllOf(HasSubstr("DOES NOT FIT"), Not(HasSubstr("tight"))));
  EXPECT_EQ(verdict(1.001 / kPeakHigh), MemoryVerdict::tight);
  EXPECT_EQ(verdict(1), MemoryVerdict::tight);
  const std::string table = report_table(report, {}, {});
  EXPECT_THAT(table, AllOf(HasSubstr("tight, 0 B to spare"), Not(HasSubstr("DOES NOT FIT"))));
  const json written = json::parse(report_json(report).dump());
  EXPECT_EQ(written["memory"]["fits"], true);
  EXPECT_EQ(written["memory"]["verdict"], "tight");
  EXPECT_EQ(memory_verdict(read_report(written, {})), MemoryVerdict::tight);
  EXPECT_EQ(written["memory"]["interval"]["low_bytes"], kPeakLow * report.memory_peak_bytes);
  EXPECT_EQ(written["memory"]["interval"]["high_bytes"], kPeakHigh * report.memory_peak_bytes);
  EXPECT_THAT(table, HasSubstr("to " + bytes_text(kPeakHigh * report.memory_peak_bytes) + " (published peaks)"));
  EXPECT_THAT(comparison_table(report, example_report(), {}, {}), HasSubstr("tight"));
  EXPECT_EQ(report_columns().back().name, "memory_verdict");
  EXPECT_EQ(std::get<std::string_view>(report_columns().back().value(report)), "tight");
  report.engine = "measured";  // it ran
  EXPECT_EQ(memory_verdict(report), MemoryVerdict::fits);
  EXPECT_FALSE(json::parse(report_json(report).dump())["memory"].contains("interval"));
  EXPECT_THAT(report_table(report, {}, {}), Not(HasSubstr("published peaks")));
}

// What a node's devices share: by what it is for, how much of the node, and whether there is room.
TEST(Table, SaysWhatLiesOnTheHost) {
  Report report = example_report();
  EXPECT_THAT(
      report_table(report, {}, {}),
      AllOf(HasSubstr("in host memory"), HasSubstr("optimizer states 6.52 GiB"),
            HasSubstr("52.15 GiB of a node, of 93.13 GiB: fits, 40.98 GiB to spare"), Not(HasSubstr("in storage"))));
  report.host_memory.capacity_bytes = 0;
  EXPECT_THAT(report_table(report, {}, {}), HasSubstr("52.15 GiB of a node, whose capacity is not known"));
  report.host_memory.capacity_bytes = 50e9;
  report.memory_fits = false;
  EXPECT_THAT(report_table(report, {}, {}),
              AllOf(HasSubstr("DOES NOT FIT"), HasSubstr("5.59 GiB too much on the fullest node"),
                    HasSubstr("fits, 18.63 GiB to spare"), Not(HasSubstr("on the fullest device"))));
  report.stages[1].memory.bytes.at(Place::host).fill(0);
  report.host_memory = {};
  EXPECT_THAT(report_table(report, {}, {}), Not(HasSubstr("in host memory")));
}

TEST(Table, SaysThatHostMemoryIsTight) {
  Report report = example_report();
  const double kept = report.host_memory.node_bytes;
  report.host_memory.capacity_bytes = 1.001 * kHostHigh * kept;
  EXPECT_EQ(memory_verdict(report), MemoryVerdict::fits);
  report.host_memory.capacity_bytes = 0.999 * kHostHigh * kept;
  report.host_memory.process_bytes = 1 << 30;
  EXPECT_EQ(memory_verdict(report), MemoryVerdict::tight);
  EXPECT_THAT(report_table(report, {}, {}),
              AllOf(HasSubstr("tight, 26.00 GiB to spare"), HasSubstr("1.00 GiB of it for processes"),
                    HasSubstr("fits, 18.63 GiB to spare"), HasSubstr("to spare on the fullest node"),
                    Not(HasSubstr("on the fullest device"))));
  const json written = json::parse(report_json(report).dump());
  EXPECT_EQ(written["memory"]["verdict"], "tight");
  EXPECT_EQ(written["memory"]["host"]["node_high_bytes"], kHostHigh * kept);
  EXPECT_EQ(memory_verdict(read_report(written, {})), MemoryVerdict::tight);
  EXPECT_EQ(read_report(written, {}).host_memory.process_bytes, 1 << 30);
  report.host_memory.capacity_bytes = 0;  // not known
  EXPECT_EQ(memory_verdict(report), MemoryVerdict::fits);
}

TEST(ReportJson, HoldsWhatLiesOnTheHostAndReadsItBack) {
  const Report report = example_report();
  const auto parsed = json::parse(report_json(report).dump());
  EXPECT_EQ(parsed["memory"]["host"]["node_bytes"], 56e9);
  EXPECT_EQ(parsed["memory"]["host"]["node_capacity_bytes"], 100e9);
  EXPECT_EQ(parsed["memory"]["host"]["fits"], true);
  EXPECT_FALSE(parsed["memory"].contains("storage"));
  EXPECT_EQ(parsed["memory"]["parts"]["host_bytes"], 7e9);
  EXPECT_EQ(parsed["memory"]["parts"]["host_optimizer_state_bytes"], 7e9);
  EXPECT_EQ(parsed["memory"]["parts"]["optimizer_state_bytes"], 0);
  const Report back = read_report(parsed, {});
  EXPECT_EQ(back.stages[1].memory.bytes, report.stages[1].memory.bytes);
  EXPECT_EQ(back.host_memory.node_bytes, 56e9);
  EXPECT_EQ(back.host_memory.capacity_bytes, 100e9);
  EXPECT_TRUE(back.memory_fits);
}

TEST(ReportJson, ReadBackIsWhatWasWritten) {
  json written = json::parse(report_json(example_report()).dump());
  json again = json::parse(report_json(read_report(written, {})).dump());
  for (json* of : {&written, &again})
    for (const char* told : {"unmeasured", "unmeasured_share", "notes"}) of->erase(told);
  EXPECT_EQ(again, written);
}

TEST(Figures, AreShownAndReadBackWhoeverHasThem) {
  static constexpr FigureKind kHits{
      .group = "caches", .key = "hit_share", .unit = FigureUnit::share, .label = "cache hits"};
  static constexpr FigureKind kEntries{.group = "caches", .key = "entries", .unit = FigureUnit::count};
  constexpr std::array kKinds{&kHits, &kEntries};
  Report report = example_report();
  EXPECT_EQ(report.figure("caches"), nullptr);
  report.figures = {{.kind = &kHits, .value = 0.25, .remark = "of all lookups"}, {.kind = &kEntries, .value = 7}};
  EXPECT_THAT(report_table(report, {}, {}), testing::ContainsRegex("\n  cache hits +25.0 %  of all lookups\n"));
  json written = json::parse(report_json(report).dump());
  EXPECT_EQ(written["caches"].dump(), "{\"entries\":7,\"hit_share\":0.25}");
  const Report back = read_report(written, {}, kKinds);
  EXPECT_EQ(back.figure("caches", "hit_share")->value, 0.25);
  EXPECT_EQ(back.figure("caches", "entries")->value, 7);
  EXPECT_TRUE(read_report(written, {}).figures.empty()) << "of kinds that nobody names";
  written["caches"]["entries"] = 7.5;
  EXPECT_THROW(read_report(written, {}, kKinds), InputError);
}

TEST(Table, OfOneStageHasNoTableOfStages) {
  Report report = example_report();
  report.stages.resize(1);
  report.memory_stage = 0;
  EXPECT_THAT(report_table(report, {}, {}), AllOf(Not(HasSubstr("Stages")), HasSubstr("every device")));
}

TEST(Table, SaysWhatOnlyTheDiscreteEventEngineKnows) {
  const std::string table = report_table(discrete_event_report(), {}, {});
  EXPECT_THAT(table,
              AllOf(HasSubstr("16 ranks as 3, 1024 flows as 12, 99 links as 7; 4321 events"),
                    HasSubstr("simulated +25.0 %"), HasSubstr("node7.nic0.out"), Not(HasSubstr("node8.nic0.out")),
                    HasSubstr("  2 more\n"), HasSubstr("  1 more, 250.0 ms together\n")));
  EXPECT_THAT(table,
              AllOf(HasSubstr("Critical path"), HasSubstr("slower than alone"), HasSubstr("75.0 %"),
                    HasSubstr("waits for the pipeline"), HasSubstr("Who waited for whom"), HasSubstr("125.0 ms")));
  EXPECT_EQ(discrete_event_table(example_report(), {}), "");
  EXPECT_THAT(report_table(example_report(), {}, {}), Not(HasSubstr("Busiest links")));
  Report quiet = discrete_event_report();
  quiet.discrete_event->contention.clear();
  quiet.discrete_event->waits.clear();
  EXPECT_THAT(report_table(quiet, {}, {}), AllOf(Not(HasSubstr("slower than alone")), Not(HasSubstr("waited"))));
}

TEST(ReportJson, HoldsWhatOnlyTheDiscreteEventEngineKnows) {
  const Report report = discrete_event_report();
  const auto parsed = json::parse(report_json(report).dump()).at("discrete_event");
  EXPECT_EQ(parsed["fidelity"], "steady-flow");
  EXPECT_EQ(parsed["rank_classes"], 3);
  EXPECT_EQ(parsed["link_kinds"][0]["over_time"], json({0.25, 1, 0.75, 0}));
  EXPECT_EQ(parsed["link_kinds"][0]["bytes_per_second"], 50e9);
  EXPECT_EQ(parsed["busiest_links"].size(), 10u);
  EXPECT_EQ(parsed["contention"][0]["seconds_alone"], 0.5);
  EXPECT_EQ(parsed["waits"][0]["for_whom"], "stage 1 with device 9");
  double path = 0;
  for (const json& part : parsed["critical_path"]) path += part["seconds"].get<double>();
  EXPECT_DOUBLE_EQ(path, report.step_seconds);
  EXPECT_FALSE(report_json(example_report()).contains("discrete_event"));
}

TEST(Grid, IsAsWideAsItsWidestCells) {
  EXPECT_EQ(grid("<name|n|<rest", {{"a", "12", "x y"}, {"longer \u00b5", "3", ""}}),
            "  name       n  rest\n"
            "  a         12  x y\n"
            "  longer \u00b5   3\n");
}

TEST(Comparison, NamesItsSides) {
  const std::string table =
      comparison_table(example_report(), example_report(), {}, {}, {.a = "analytical", .b = "des"});
  EXPECT_THAT(table, AllOf(HasSubstr("  analytical           des     change\n"),
                           HasSubstr("analytical: matrix products; des: matrix products")));
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
  double exposed = 0;  // on streams that are reported under a name of their own
  for (std::size_t s = 1; s < kStreams; ++s)
    if (kStreamRows[s].account == kStreamRows[s].stream) exposed += time.exposed[s] = 128;
  double sum = 0;
  for (const TimeTerm& term : time_terms()) sum += term.of(time);
  EXPECT_EQ(sum, 127 + exposed);
  EXPECT_EQ(time.total(), sum);
}

// What the compute stream waits for elsewhere (copies, storage, the host) is no communication.
TEST(Summary, ExposedCommunicationIsThatOfTheFabric) {
  Report report = example_report();
  TimeBreakdown& time = report.stages[0].time;
  time.exposed[static_cast<std::size_t>(Stream::data_communication)] = 0.25;
  time.exposed[static_cast<std::size_t>(Stream::pipeline_communication)] = 0.5;
  for (const Stream other : {Stream::host_to_device, Stream::device_to_host, Stream::storage, Stream::host})
    time.exposed[static_cast<std::size_t>(other)] = 8;
  summarise_bounding_stage(report);
  EXPECT_DOUBLE_EQ(report.exposed_communication_seconds, 0.125 + 0.25 + 0.5);
  EXPECT_DOUBLE_EQ(report.bubble_fraction, time.bubble / report.step_seconds);
}

// Waits for the fabric are one cause, in however many terms: of them as many are named as together exceed any other.
TEST(Summary, BoundByExposedCommunicationAsAWhole) {
  Report report = example_report();
  TimeBreakdown& time = report.stages[0].time;
  const auto bound_by = [&](double tensor, double data, double parameters) {
    time.exposed[static_cast<std::size_t>(Stream::tensor_communication)] = tensor;
    time.exposed[static_cast<std::size_t>(Stream::data_communication)] = data;
    time.exposed[static_cast<std::size_t>(Stream::parameter_communication)] = parameters;
    summarise_bounding_stage(report);
    return report.bound_by;
  };
  EXPECT_EQ(time.matmul, 1.5);
  EXPECT_EQ(bound_by(0.5, 0.5, 0.25), "matrix products");
  EXPECT_EQ(bound_by(0.5, 0.25, 0.75), "matrix products") << "as long is not longer";
  EXPECT_EQ(bound_by(1.75, 1, 1), "exposed tensor-parallel communication") << "one alone exceeds them";
  EXPECT_EQ(bound_by(0.25, 1, 1.25), "exposed parameter gathering + gradient reduction") << "two do, largest first";
  EXPECT_EQ(bound_by(0.625, 0.625, 0.75),
            "exposed parameter gathering + tensor-parallel communication + gradient reduction");
  time.exposed[static_cast<std::size_t>(Stream::host_to_device)] = 4;
  EXPECT_EQ(bound_by(1, 1, 1), "exposed copies to the device") << "no communication";
}

// The stage that bounds the time and the one that is fullest need not be the same.
TEST(ReportCsv, AnIntervalThatIsNotStatedIsEmpty) {
  Report report;
  const auto cell = [&] {
    std::string text;
    append_csv(find_report_column("expected_step_seconds_high")->value(report), text);
    return text;
  };
  EXPECT_EQ(cell(), "");
  report.expected.emplace().high_seconds = 2;
  EXPECT_EQ(cell(), "2");
}

TEST(ReportCsv, HasTheMemoryOfTheFullestStageAndTheTimeOfTheBoundingOne) {
  const Report report = example_report();
  const auto number = [&](const char* name) { return std::get<double>(find_report_column(name)->value(report)); };
  EXPECT_EQ(number("matmul_seconds"), 1.5);
  EXPECT_EQ(number("parameter_bytes"), 50e9);
  EXPECT_EQ(number("framework_bytes"), 10e9);
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

// Over all sizes, and just below where digits or units change: what is printed is the value to half of its last digit,
// with four digits or more, and below the next unit.
TEST(Quantities, SayTheirValueToFourDigitsInTheRightUnit) {
  struct Kind {
    const char* name;
    std::string (*text)(double);
    std::vector<std::pair<const char*, double>> units;  // the largest that fits is taken
    double least_digits;
  };
  const std::vector<Kind> kinds{
      {"seconds", seconds_text, {{" us", 1e-6}, {" ms", 1e-3}, {" s", 1}}, 4},
      {"bytes",
       bytes_text,
       {{" B", 1}, {" KiB", 0x1p10}, {" MiB", 0x1p20}, {" GiB", 0x1p30}, {" TiB", 0x1p40}, {" PiB", 0x1p50}},
       1},
      {"rates", rate_text, {{"", 1}, {" M", 1e6}, {" G", 1e9}, {" T", 1e12}, {" P", 1e15}}, 1}};
  std::size_t checked = 0;
  for (const Kind& kind : kinds)
    for (double size = kind.units.front().second; size < 1e17; size *= 1.37)
      for (const double value : {size, -size}) {
        const std::string text = kind.text(value);
        std::size_t end = 0;
        const double number = std::stod(text, &end);
        const std::string unit = text.substr(end);
        const auto found = std::ranges::find_if(kind.units, [&](const auto& u) { return unit == u.first; });
        ASSERT_NE(found, kind.units.end()) << text;
        const std::size_t dot = text.find('.');
        const double last = dot == std::string::npos ? 1 : std::pow(10, -static_cast<double>(end - dot - 1));
        EXPECT_NEAR(number * found->second, value, 0.5000001 * last * found->second) << kind.name << ' ' << text;
        EXPECT_TRUE(std::next(found) == kind.units.end() || size < std::next(found)->second) << text;
        EXPECT_TRUE(found == kind.units.begin() || size >= found->second) << text;
        if (kind.least_digits == 4) {
          EXPECT_GE(std::abs(number) / last, 999.5) << text;
        }
        ++checked;
      }
  EXPECT_GT(checked, 500u);
  using Texts = std::vector<std::pair<std::string, std::string>>;
  for (const auto& [said, expected] : Texts{{seconds_text(0.99951), "999.5 ms"},
                                            {seconds_text(9.9994), "9.999 s"},
                                            {seconds_text(9.9996), "10.00 s"},
                                            {seconds_text(99.994), "99.99 s"},
                                            {seconds_text(99.996), "100.0 s"},
                                            {seconds_text(999.94), "999.9 s"},
                                            {seconds_text(999.96), "1000 s"},
                                            {bytes_text(1023), "1023 B"},
                                            {bytes_text(1024), "1.00 KiB"},
                                            {bytes_text(0x1p61), "2048.00 PiB"},
                                            {rate_text(99.99), "99.99"},
                                            {rate_text(100), "100"},
                                            {rate_text(999999), "999999"},
                                            {rate_text(1e6), "1.000 M"},
                                            {rate_text(0), "0.00"},
                                            {rate_text(3e18), "3000 P"},
                                            {percent_text(0.00049), "0.0 %"},
                                            {percent_text(-0.5), "-50.0 %"},
                                            {signed_percent_text(0.048), "+4.8 %"},
                                            {signed_percent_text(-0.0004), "+0.0 %"},
                                            {signed_percent_text(0.0004), "+0.0 %"},
                                            {signed_percent_text(-0.0006), "-0.1 %"},
                                            {signed_percent_text(-0.25), "-25.0 %"}})
    EXPECT_EQ(said, expected);
}

TEST(Quantities, TicksAreRoundAndNoMoreThanAskedFor) {
  for (double span = 1e-7; span < 1e9; span *= 1.23)
    for (const int most : {1, 3, 4, 6, 8, 10}) {
      const double step = tick_step(span, most), power = std::pow(10, std::floor(std::log10(step) + 1e-9));
      const double factor = step / power;
      const bool is_round = std::abs(factor - 1) < 1e-9 || std::abs(factor - 2) < 1e-9 || std::abs(factor - 5) < 1e-9;
      EXPECT_TRUE(is_round) << span << ' ' << most << ' ' << step;
      EXPECT_LE(span / step, most * (1 + 1e-9));
      const double next_smaller = std::abs(factor - 5) < 1e-9 ? step / 2.5 : step / 2;
      EXPECT_GT(span / next_smaller, most * (1 - 1e-9)) << "no finer one would do";
    }
}

TEST(Quantities, BarsAreAsLongAsTheirShare) {
  const auto eighths = [](const std::string& text) {
    int sum = 0;
    for (std::size_t i = 0; i < text.size(); i += 3)  // U+2588 is whole, U+258f an eighth
      sum += 8 - (static_cast<unsigned char>(text[i + 2]) - 0x88);
    return sum;
  };
  for (const int columns : {1, 8, 32})
    for (int i = 0; i <= 1000; ++i) {
      const double share = i / 1000.0;
      const std::string text = bar(share, columns);
      ASSERT_EQ(text.size() % 3, 0u);
      EXPECT_EQ(eighths(text), std::lround(share * columns * 8)) << share;
    }
  for (const double beyond : {1.5, 100.0}) EXPECT_EQ(eighths(bar(beyond, 8)), 64);
  EXPECT_EQ(bar(-1, 8), "");
  EXPECT_EQ(bar(std::numeric_limits<double>::quiet_NaN(), 8), "");
}

// Cells of a line by RFC 4180.
std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"') {
      if (quoted && i + 1 < line.size() && line[i + 1] == '"')
        cells.back() += line[i++];
      else
        quoted = !quoted;
    } else if (line[i] == ',' && !quoted) {
      cells.emplace_back();
    } else if (line[i] != '\n' || quoted) {
      cells.back() += line[i];
    }
  }
  return cells;
}

// Whatever a name is made of, it stays in its cell, and is what it was, but for what a spreadsheet would act on.
TEST(ReportCsv, EveryRowHasACellPerHeading) {
  const std::size_t columns = cells_of(csv_header()).size();
  EXPECT_EQ(columns, report_columns().size() + 1);
  const std::string_view more[]{"digest", "version"};
  EXPECT_EQ(cells_of(csv_header(more)).size(), columns + 2);
  for (const std::string name : {"plain", "a,b", "say \"so\"", "two\nlines", "\"", ",", "", " blank ", "\"a\",b"}) {
    Report report = discrete_event_report();
    report.bound_by = name;
    const std::string text[]{name, "0.1"};
    const std::vector<std::string> cells = cells_of(csv_row(name, report, text));
    ASSERT_EQ(cells.size(), columns + 2) << name;
    EXPECT_EQ(cells.front(), name);
    EXPECT_EQ(cells[columns], name);
    EXPECT_EQ(cells[columns + 1], "0.1");
    for (std::size_t i = 0; i < report_columns().size(); ++i) {
      const ColumnValue value = report_columns()[i].value(report);
      const std::string& cell = cells[i + 1];
      if (const auto* number = std::get_if<double>(&value)) {
        if (std::isnan(*number)) {
          EXPECT_EQ(cell, "");
        } else {
          EXPECT_EQ(std::stod(cell), *number) << report_columns()[i].name;
        }
      } else if (const auto* count = std::get_if<std::int64_t>(&value)) {
        EXPECT_EQ(cell, std::to_string(*count));
      } else if (const auto* flag = std::get_if<bool>(&value)) {
        EXPECT_EQ(cell, *flag ? "true" : "false");
      } else {
        EXPECT_EQ(cell, std::get<std::string_view>(value));
      }
    }
  }
  for (const char* formula : {"=1", "+1", "-1", "@a", "\ta"})
    EXPECT_EQ(cells_of(csv_row(formula, example_report())).front(), "'" + std::string(formula));
  for (const ReportColumn& column : report_columns()) {
    EXPECT_EQ(find_report_column(column.name), &column) << "each name once";
  }
  EXPECT_EQ(find_report_column("no such"), nullptr);
}

// By column: both sides as each has it alone, and their difference where there is one.
TEST(Comparison, CsvHasBothSidesAndTheirDifference) {
  const Report a = example_report();
  Report b = discrete_event_report();
  b.step_seconds = 3;
  b.devices = 24;
  b.memory_fits = false;
  std::istringstream lines(comparison_csv(a, b));
  std::string line;
  std::getline(lines, line);
  EXPECT_EQ(line, "column,a,b,difference");
  for (const ReportColumn& column : report_columns()) {
    if (column.of_ops) continue;
    ASSERT_TRUE(std::getline(lines, line)) << column.name;
    const auto cell = [&](const Report& of) {
      std::string text;
      append_csv(column.value(of), text);
      return text;
    };
    std::string difference;
    if (const ColumnValue value = column.value(a); std::holds_alternative<double>(value)) {
      append_csv(std::get<double>(column.value(b)) - std::get<double>(value), difference);
    } else if (std::holds_alternative<std::int64_t>(value)) {
      difference = std::to_string(std::get<std::int64_t>(column.value(b)) - std::get<std::int64_t>(value));
    }
    EXPECT_EQ(line, column.name + "," + cell(a) + "," + cell(b) + "," + difference);
  }
  EXPECT_FALSE(std::getline(lines, line)) << line;
  EXPECT_THAT(comparison_csv(a, b), AllOf(HasSubstr("\ndevices,16,24,8\n"), HasSubstr("\nengine,analytical,des,\n"),
                                          HasSubstr("\nmemory_fits,true,false,\n")));
}

TEST(Comparison, ReadsLikeThis) {
  const Report a = example_report();
  Report b = example_report();
  b.stages[0].time.matmul = 1.0;
  b.stages[0].time.bubble += 0.1;
  b.stages[0].time.attention = 0.25;
  b.stages[0].time.optimizer = 1e-12;  // rounding
  b.step_seconds -= 0.15;
  b.tokens_per_second_per_device = 0;
  b.model_flops_per_second_per_device = 0.25e12;
  b.memory_peak_bytes = 90e9;
  b.memory_fits = false;
  b.bound_by = "the host";
  EXPECT_EQ(comparison_table(a, b, {"a title"}, {}, {.a = "old", .b = "new"}), R"(a title

                                                     old           new     change
  step time                                      2.067 s       1.917 s     -7.3 %
  tokens/s per device                              93750          0.00   -100.0 %
  model TFLOP/s per device                             0          0.25
  MFU                                             42.0 %        42.0 %       same
  peak memory                                  55.88 GiB     83.82 GiB    +50.0 %
  memory                                            fits  does not fit
  bound by                                                              old: matrix products; new: the host

What makes the difference (each on the stage that bounds it)
  matrix products                                1.500 s       1.000 s    -500.0 ms  ████████████████████████████████
  attention                                          0 s      250.0 ms    +250.0 ms  ████████████████
  pipeline bubble                               441.7 ms      541.7 ms    +100.0 ms  ██████▍
  exposed tensor-parallel communication         125.0 ms      125.0 ms          0 s
)");
  const std::string coloured = comparison_table(a, b, {"a title"}, {.colour = true});
  EXPECT_THAT(coloured, AllOf(HasSubstr("\x1b[1ma title\x1b[0m\n"), HasSubstr("-500.0 ms  \x1b[32m\u2588"),
                              HasSubstr("+250.0 ms  \x1b[1;31m\u2588")));
}

// A timeline with one of everything.
Report small_timeline() {
  Report report = discrete_event_report();
  report.step_seconds = 4e-3;
  report.bubble_fraction = 0.25;
  report.discrete_event->link_kinds = {{"nic", 16, 50e9, 1e9, 2e9, 0.25, 0.5, {0.25, 1}}};
  report.tasks = {{"generate", 3, 0.25, 0.125, false, 1e-3, 2e-3}, {"judge", 1, 1.5, 0, true, 2e-3, 5e-3}};
  Timeline& t = report.timeline;
  t = {};
  t.ops = {{"layer.forward.fc1", "linear", "compute", 2e9, 3e6}, {"wait: gradient reduction", "wait", "", 0, 0}};
  t.intervals = {slot(0, SlotKind::forward, 0, 0, 1e-3),
                 slot(0, SlotKind::backward, 0, 2e-3, 3e-3),
                 slot(1, SlotKind::forward, 0, 1e-3, 1.5e-3),
                 slot(1, SlotKind::backward, 0, 1.5e-3, 2e-3),
                 slot(1, SlotKind::weight_gradient, 12, 2e-3, 2.01e-3),
                 {0, Stream::data_communication, 3, 0, 0, 3e-3, 3.5e-3, "gradients.reduce_scatter"},
                 {0, Stream::compute, 3, 0, 0, 3.5e-3, 4e-3, "adam"},
                 {1, Stream::compute, 3, 0, 0, 3.5e-3, 4e-3, ""}};
  t.intervals[1].chunk = 1;
  t.intervals[3].op = 0;
  t.op_slices = {{0, Stream::compute, 0, 0, 0.5e-3},
                 {0, Stream::tensor_communication, 0, 0.5e-3, 0.75e-3},
                 {0, Stream::compute, 1, 0.75e-3, 1e-3},
                 {0, Stream::compute, 1, 1e-3, 1e-3}};
  t.op_stages = {0};
  t.slots_with_ops = 1;
  t.stages = {"stage 0, rank 3"};
  t.ranks = {{"stage 1, 7 ranks like 8", {slot(1, SlotKind::forward, 5, 0.25e-3, 0.5e-3)}}};
  t.arrows = {{0, 1, 1e-3, 1e-3}, {1, 0, 2e-3, 2e-3}, {0, 1, 0, 0}, {0, 1, 1e-3, 9e-3}};
  t.memory = {{0, 0, {}}, {1, 0.5e-3, {2e9, 3e9}}};
  return report;
}

// Of a report that has only a step time every writer says that and no more.
TEST(Table, OfAReportWithoutStagesIsItsHead) {
  Report report;
  report.engine = "measured";
  report.step_seconds = 2;
  report.memory_capacity_bytes = 1;
  report.bound_by = "something";
  const std::string table = report_table(report, {}, {});
  EXPECT_THAT(table, testing::StartsWith("  step time                                      2.000 s\n  tokens/s "));
  EXPECT_THAT(table, testing::EndsWith("\n  bound by                                                something\n"));
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 10) << table;
  EXPECT_THAT(comparison_table(report, report, {}, {}),
              AllOf(testing::StartsWith("                                                       A             B     change\n"),
                    HasSubstr("  step time                                      2.000 s       2.000 s       same\n"),
                    Not(HasSubstr("What makes the difference"))));
  const json written = json::parse(report_json(report).dump());
  EXPECT_FALSE(written.contains("time") || written.contains("bounding_stage") || written["memory"].contains("parts"));
  EXPECT_FALSE(comparison_json(report, report)["change"].contains("time"));
  EXPECT_EQ(read_report(written, {}).step_seconds, 2);
}

TEST(Trace, ReadsLikeThis) {
  EXPECT_EQ(
      report_trace(small_timeline()),
      R"({"displayTimeUnit":"ms","otherData":{"engine":"des","step_seconds":0.004,"slots":5,"slots_with_ops":1,"stages_with_ops":[0],"only_those_stages":false},"traceEvents":[
{"ph":"M","name":"process_name","pid":0,"tid":0,"args":{"name":"stage 0, rank 3"}},
{"ph":"M","name":"process_sort_index","pid":0,"tid":0,"args":{"sort_index":0}},
{"ph":"M","name":"thread_name","pid":0,"tid":1,"args":{"name":"compute"}},
{"ph":"M","name":"thread_sort_index","pid":0,"tid":1,"args":{"sort_index":1}},
{"ph":"M","name":"thread_name","pid":0,"tid":7,"args":{"name":"data_communication"}},
{"ph":"M","name":"thread_sort_index","pid":0,"tid":7,"args":{"sort_index":7}},
{"ph":"M","name":"thread_name","pid":0,"tid":14,"args":{"name":"compute ops"}},
{"ph":"M","name":"thread_sort_index","pid":0,"tid":14,"args":{"sort_index":14}},
{"ph":"M","name":"thread_name","pid":0,"tid":15,"args":{"name":"tensor_communication ops"}},
{"ph":"M","name":"thread_sort_index","pid":0,"tid":15,"args":{"sort_index":15}},
{"ph":"M","name":"process_name","pid":1,"tid":0,"args":{"name":"stage 1"}},
{"ph":"M","name":"process_sort_index","pid":1,"tid":0,"args":{"sort_index":1}},
{"ph":"M","name":"thread_name","pid":1,"tid":1,"args":{"name":"compute"}},
{"ph":"M","name":"thread_sort_index","pid":1,"tid":1,"args":{"sort_index":1}},
{"ph":"M","name":"process_name","pid":2,"tid":0,"args":{"name":"stage 1, 7 ranks like 8"}},
{"ph":"M","name":"process_sort_index","pid":2,"tid":0,"args":{"sort_index":2}},
{"ph":"M","name":"thread_name","pid":2,"tid":1,"args":{"name":"compute"}},
{"ph":"M","name":"thread_sort_index","pid":2,"tid":1,"args":{"sort_index":1}},
{"ph":"M","name":"process_name","pid":3,"tid":0,"args":{"name":"links"}},
{"ph":"M","name":"process_sort_index","pid":3,"tid":0,"args":{"sort_index":3}},
{"ph":"M","name":"process_name","pid":4,"tid":0,"args":{"name":"iteration"}},
{"ph":"M","name":"process_sort_index","pid":4,"tid":0,"args":{"sort_index":4}},
{"ph":"M","name":"thread_name","pid":4,"tid":1,"args":{"name":"tasks"}},
{"ph":"M","name":"thread_sort_index","pid":4,"tid":1,"args":{"sort_index":1}},
{"ph":"M","name":"thread_name","pid":4,"tid":2,"args":{"name":"beside them"}},
{"ph":"M","name":"thread_sort_index","pid":4,"tid":2,"args":{"sort_index":2}},
{"ph":"X","name":"F 0","cat":"forward","pid":0,"tid":1,"ts":0.000,"dur":1000.000,"args":{"kind":"forward","seconds":0.001,"micro_batch":0,"chunk":0}},
{"ph":"C","name":"memory bytes","pid":0,"tid":0,"ts":0.000,"args":{"parameter":0,"gradient":0,"optimizer_state":0,"activation":0,"communication_buffer":0,"workspace":0}},
{"ph":"X","name":"layer.forward.fc1","cat":"kernel","pid":0,"tid":14,"ts":0.000,"dur":500.000,"args":{"kind":"linear","flops":2e+09,"bytes":3e+06,"bound":"compute"}},
{"ph":"C","name":"nic utilisation %","pid":3,"tid":0,"ts":0.000,"args":{"busiest":25}},
{"ph":"X","name":"F 5","cat":"forward","pid":2,"tid":1,"ts":250.000,"dur":250.000,"args":{"kind":"forward","seconds":0.00025,"micro_batch":5,"chunk":0}},
{"ph":"C","name":"memory bytes","pid":1,"tid":0,"ts":500.000,"args":{"parameter":2000000000,"gradient":3000000000,"optimizer_state":0,"activation":0,"communication_buffer":0,"workspace":0}},
{"ph":"X","name":"layer.forward.fc1","cat":"tensor_communication","pid":0,"tid":15,"ts":500.000,"dur":250.000,"args":{"kind":"linear","flops":2e+09,"bytes":3e+06,"bound":"compute"}},
{"ph":"X","name":"wait: gradient reduction","cat":"wait","pid":0,"tid":14,"ts":750.000,"dur":250.000,"args":{"kind":"wait"}},
{"ph":"s","name":"message","cat":"message","id":1,"pid":0,"tid":1,"ts":999.999},
{"ph":"X","name":"F 0","cat":"forward","pid":1,"tid":1,"ts":1000.000,"dur":500.000,"args":{"kind":"forward","seconds":0.0005,"micro_batch":0,"chunk":0}},
{"ph":"f","name":"message","cat":"message","id":1,"pid":1,"tid":1,"ts":1000.000,"bp":"e"},
{"ph":"X","name":"generate","cat":"task","pid":4,"tid":1,"ts":1000.000,"dur":1000.000,"args":{"repeats":3,"seconds":0.25,"waiting_seconds":0.125}},
{"ph":"X","name":"B 0","cat":"backward","pid":1,"tid":1,"ts":1500.000,"dur":500.000,"args":{"kind":"linear","flops":2e+09,"bytes":3e+06,"bound":"compute","seconds":0.0005,"micro_batch":0,"chunk":0}},
{"ph":"s","name":"message","cat":"message","id":2,"pid":1,"tid":1,"ts":1999.999},
{"ph":"X","name":"B 0","cat":"backward","pid":0,"tid":1,"ts":2000.000,"dur":1000.000,"args":{"kind":"backward","seconds":0.001,"micro_batch":0,"chunk":1}},
{"ph":"X","name":"W 12","cat":"weight_gradient","pid":1,"tid":1,"ts":2000.000,"dur":10.000,"args":{"kind":"weight_gradient","seconds":1.0000000000000026e-05,"micro_batch":12,"chunk":0}},
{"ph":"f","name":"message","cat":"message","id":2,"pid":0,"tid":1,"ts":2000.000,"bp":"e"},
{"ph":"C","name":"nic utilisation %","pid":3,"tid":0,"ts":2000.000,"args":{"busiest":100}},
{"ph":"X","name":"judge","cat":"task","pid":4,"tid":2,"ts":2000.000,"dur":3000.000,"args":{"repeats":1,"seconds":1.5,"waiting_seconds":0}},
{"ph":"X","name":"gradients.reduce_scatter","cat":"data_communication","pid":0,"tid":7,"ts":3000.000,"dur":500.000,"args":{"kind":"update","seconds":0.0005}},
{"ph":"X","name":"adam","cat":"update","pid":0,"tid":1,"ts":3500.000,"dur":500.000,"args":{"kind":"update","seconds":0.0005}},
{"ph":"X","name":"update","cat":"update","pid":1,"tid":1,"ts":3500.000,"dur":500.000,"args":{"kind":"update","seconds":0.0005}},
{"ph":"C","name":"nic utilisation %","pid":3,"tid":0,"ts":4000.000,"args":{"busiest":0}}
]}
)");
}

TEST(Svg, ReadsLikeThis) {
  EXPECT_EQ(
      report_svg(small_timeline(), "a title"),
      R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1200 176" width="1200" height="176" font-family="Helvetica, Arial, sans-serif" font-size="11">
<title>a title</title>
<rect width="1200" height="176" fill="#ffffff"/>
<text x="64" y="22" font-size="15" font-weight="bold" fill="#222">a title</text>
<text x="64" y="40" fill="#666">step 4.000 ms, pipeline bubble 25.0 %</text>
<line x1="64.00" y1="54" x2="64.00" y2="118" stroke="#e4e4e4"/>
<text x="64.00" y="134" text-anchor="middle" fill="#666">0 ms</text>
<line x1="204.00" y1="54" x2="204.00" y2="118" stroke="#e4e4e4"/>
<text x="204.00" y="134" text-anchor="middle" fill="#666">0.5 ms</text>
<line x1="344.00" y1="54" x2="344.00" y2="118" stroke="#e4e4e4"/>
<text x="344.00" y="134" text-anchor="middle" fill="#666">1 ms</text>
<line x1="484.00" y1="54" x2="484.00" y2="118" stroke="#e4e4e4"/>
<text x="484.00" y="134" text-anchor="middle" fill="#666">1.5 ms</text>
<line x1="624.00" y1="54" x2="624.00" y2="118" stroke="#e4e4e4"/>
<text x="624.00" y="134" text-anchor="middle" fill="#666">2 ms</text>
<line x1="764.00" y1="54" x2="764.00" y2="118" stroke="#e4e4e4"/>
<text x="764.00" y="134" text-anchor="middle" fill="#666">2.5 ms</text>
<line x1="904.00" y1="54" x2="904.00" y2="118" stroke="#e4e4e4"/>
<text x="904.00" y="134" text-anchor="middle" fill="#666">3 ms</text>
<line x1="1044.00" y1="54" x2="1044.00" y2="118" stroke="#e4e4e4"/>
<text x="1044.00" y="134" text-anchor="middle" fill="#666">3.5 ms</text>
<line x1="1184.00" y1="54" x2="1184.00" y2="118" stroke="#e4e4e4"/>
<text x="1184.00" y="134" text-anchor="middle" fill="#666">4 ms</text>
<text x="56" y="74.5" text-anchor="end" fill="#333">stage 0</text>
<text x="56" y="104.5" text-anchor="end" fill="#333">stage 1</text>
<g fill="none" stroke-width="25">
<path stroke="#45a558" d="M624.3 70.5h279.4"/>
<path stroke="#9ec5f4" d="M64.3 70.5h279.4"/>
<path stroke="#c9c4d8" d="M1044.3 70.5h139.4"/>
<path stroke="#9ec5f4" d="M344.3 100.5h139.4"/>
<path stroke="#a8dcae" d="M484.3 100.5h139.4"/>
<path stroke="#c9c4d8" d="M1044.3 100.5h139.4"/>
<path stroke="#ffd591" d="M624.3 100.5h2.2"/>
</g>
<g text-anchor="middle" fill="#1b1b1b">
<text x="204" y="74.5">0</text>
<text x="764" y="74.5">0</text>
<text x="414" y="104.5">0</text>
<text x="554" y="104.5">0</text>
</g>
<rect x="64" y="150" width="12" height="12" rx="2" fill="#74a6e4"/>
<text x="81" y="160" fill="#333">forward</text>
<rect x="143.4" y="150" width="12" height="12" rx="2" fill="#77c183"/>
<text x="160.4" y="160" fill="#333">backward</text>
<rect x="229" y="150" width="12" height="12" rx="2" fill="#f2b860"/>
<text x="246" y="160" fill="#333">weight gradient</text>
<rect x="358" y="150" width="12" height="12" rx="2" fill="#c9c4d8"/>
<text x="375" y="160" fill="#333">update</text>
</svg>
)");
}

}  // namespace
}  // namespace orrery
