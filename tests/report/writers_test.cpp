// Do the writers say what the report says, in formats that other programs accept?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

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

}  // namespace
}  // namespace orrery
