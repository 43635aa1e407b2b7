// Does every field of a report reach whoever reads it: the table, the JSON, the CSV, and a report that is read back?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/report/columns.h"
#include "sim/report/json.h"
#include "sim/report/memory_verdict.h"
#include "sim/report/table.h"
#include "sim/report/terms.h"

namespace orrery {
namespace {

constexpr FigureKind kCopies{.group = "copies",
                             .key = "largest",
                             .unit = FigureUnit::number,
                             .explanation = "a test's",
                             .label = "largest copy"};

// Every field is set, no two numbers are the same, and each has few enough digits for the table to show them all.
Report whole_report() {
  Report r;
  r.engine = "des";
  r.step_seconds = 8;
  r.expected = ExpectedStep{7.25, 9.75, "megatron-core on measured devices", 31, 6};
  r.tasks = {{"generate", 3, 0.25, 0.125, false, 1, 2}, {"judge", 1, 1.5, 0, true, 2, 3.5}};
  r.iteration_seconds = 9;
  r.pipeline_seconds = 7.5;
  r.tokens_per_second = 64e3;
  r.tokens_per_second_per_device = 4e3;
  r.sequences_per_second = 15.5;
  r.model_flops_per_second_per_device = 321e12;
  r.mfu = 0.41;
  r.mfu_full_attention = 0.43;
  r.hfu = 0.52;
  r.bubble_fraction = 0.13;
  r.exposed_communication_seconds = 1.75;
  r.bound_by = "matrix products";
  r.devices = 16;
  r.memory_capacity_bytes = 80e9;
  r.memory_peak_bytes = 61e9;
  r.host_memory = {7e9, 56e9, 100e9, 3e9};
  r.storage = {9e9, 71e9, 900e9, 0};
  r.memory_fits = true;
  StageReport first;
  first.stages = 3;
  first.busy_seconds = 5.5;
  first.in_flight_micro_batches = 4;
  double seconds = 0.03;
  for (const TimeTerm& term : time_terms()) term.of(first.time) = seconds += 0.01;
  first.who = "stage 0, rank 13";
  first.memory.framework_bytes = 2.5e9;
  first.memory.peak_bytes = 17e9;
  StageReport second = first;
  second.stage = 3;
  second.stages = 1;
  second.busy_seconds = 6.5;
  second.in_flight_micro_batches = 2;
  second.memory.peak_bytes = 61e9;
  double bytes = 1e9;
  for (const Place place : {Place::device, Place::host, Place::storage})
    for (std::size_t c = 0; c < kCategories; ++c) second.memory.bytes.at(place)[c] = bytes += 0.5e9;
  r.stages = {first, second};
  r.memory_stage = 1;
  for (int i = 0; i < 10; ++i)
    r.unmeasured.push_back({"layer.fc" + std::to_string(i), "m=" + std::to_string(64 << i), 0.002 * (i + 1)});
  r.unmeasured_share = 0.11;
  r.figures = {{.kind = &kCopies, .value = 1.75, .remark = "in a test"}};
  r.notes = {"the first note", "the second note"};
  DiscreteEventReport& d = r.discrete_event.emplace();
  d.fidelity = "steady-flow";
  d.network_model = "max-min";
  d.ranks = 19, d.rank_classes = 5, d.flows = 1023, d.flow_classes = 12, d.links = 99, d.link_classes = 7;
  d.events = 4321;
  d.uncontended_step_seconds = 6.4;
  d.link_kinds = {{"nic", 16, 50e9, 1e9, 2e9, 0.25, 0.5, {0.25, 1, 0.75, 0}}};
  for (int i = 0; i < 10; ++i)
    d.busiest_links.push_back({"node" + std::to_string(i) + ".nic0.out",
                               8 + i,
                               5e10 + 1e9 * i,
                               1e9,
                               2e9 + 1e8 * i,
                               0.25,
                               0.9 - 0.05 * i,
                               {}});
  for (int i = 0; i < 10; ++i)
    d.contention.push_back({"stage 0", "op" + std::to_string(i), "leaf0.spine1.up", 4, 0.5 - 0.01 * i, 0.8 - 0.02 * i});
  d.critical_path = {{"stage 3 with device 9", "layer.forward.fc1", 32, 6}, {"stage 0", "host issue", 3, 2}};
  d.waits = {{"stage 0", "stage 3 with device 9", "gradients.reduce_scatter", 2, 0.125, 4}};
  r.ops = {{"layer.forward.fc1", 1, 0, Stream::compute, 0.01, 32, 5e12, 6e9, "compute"}};
  return r;
}

std::string table_of(const Report& report) { return report_table(report, {"whole", "on a test's cluster"}, {}); }

// Where a field is to be seen. kTold is in the JSON for readers, but reading back does without it.
constexpr unsigned kTable = 1, kJson = 2, kCsv = 4, kBack = 8, kTold = kJson;

struct Field {
  const char* name;
  unsigned seen;
  std::function<void(Report&)> change;
};

std::vector<Field> fields() {
  constexpr unsigned kAll = kTable | kJson | kCsv | kBack;
  std::vector<Field> all{
      {"engine", kJson | kCsv | kBack, [](Report& r) { r.engine = "analytical"; }},
      {"step_seconds", kAll, [](Report& r) { r.step_seconds = 8.5; }},
      {"expected.low", kTable | kJson | kCsv | kBack, [](Report& r) { r.expected->low_seconds = 7; }},
      {"expected.high", kTable | kJson | kCsv | kBack, [](Report& r) { r.expected->high_seconds = 10; }},
      {"expected.comparable", kTable | kJson | kBack, [](Report& r) { r.expected->comparable = "others"; }},
      {"expected.points", kJson | kBack, [](Report& r) { r.expected->points = 5; }},
      {"expected.sources", kJson | kBack, [](Report& r) { r.expected->sources = 5; }},
      {"iteration_seconds", kTable | kJson | kBack, [](Report& r) { r.iteration_seconds = 10; }},
      {"task.name", kTable | kJson | kBack, [](Report& r) { r.tasks[1].name = "another"; }},
      {"task.repeats", kTable | kJson | kBack, [](Report& r) { r.tasks[0].repeats = 2; }},
      {"task.seconds", kTable | kJson | kBack, [](Report& r) { r.tasks[0].seconds = 0.5; }},
      {"task.waiting", kTable | kJson | kBack, [](Report& r) { r.tasks[0].waiting_seconds = 0.5; }},
      {"task.beside", kTable | kJson | kBack, [](Report& r) { r.tasks[0].beside = true; }},
      {"task.begin", kJson | kBack, [](Report& r) { r.tasks[0].begin_seconds = 0.5; }},
      {"task.end", kJson | kBack, [](Report& r) { r.tasks[0].end_seconds = 0.5; }},
      {"pipeline_seconds", kJson | kBack, [](Report& r) { r.pipeline_seconds = 7; }},
      {"tokens_per_second", kAll, [](Report& r) { r.tokens_per_second *= 2; }},
      {"tokens_per_second_per_device", kAll, [](Report& r) { r.tokens_per_second_per_device *= 2; }},
      {"sequences_per_second", kAll, [](Report& r) { r.sequences_per_second *= 2; }},
      {"model_flops", kAll, [](Report& r) { r.model_flops_per_second_per_device *= 2; }},
      {"mfu", kAll, [](Report& r) { r.mfu = 0.4; }},
      {"mfu_full_attention", kAll, [](Report& r) { r.mfu_full_attention = 0.44; }},
      {"hfu", kAll, [](Report& r) { r.hfu = 0.6; }},
      {"bubble_fraction", kAll, [](Report& r) { r.bubble_fraction = 0.2; }},
      {"exposed_communication_seconds", kAll, [](Report& r) { r.exposed_communication_seconds = 2; }},
      {"bound_by", kAll, [](Report& r) { r.bound_by = "attention"; }},
      {"devices", kJson | kCsv | kBack, [](Report& r) { r.devices = 32; }},
      {"bounding_stage", kTable | kJson | kBack, [](Report& r) { r.bounding_stage = 1; }},
      {"stage", kTable | kJson | kBack, [](Report& r) { r.stages[1].stage = 5; }},
      {"stages", kTable | kJson | kBack, [](Report& r) { r.stages[1].stages = 5; }},
      {"busy_seconds", kTable | kJson | kBack, [](Report& r) { r.stages[0].busy_seconds = 5; }},
      {"in_flight", kTable | kJson | kBack, [](Report& r) { r.stages[0].in_flight_micro_batches = 5; }},
      {"who", kTable, [](Report& r) { r.stages[0].who = "somebody"; }},
      {"framework_bytes", kAll, [](Report& r) { r.stages[1].memory.framework_bytes = 3e9; }},
      {"stage peak", kTable | kJson | kBack, [](Report& r) { r.stages[0].memory.peak_bytes = 3e9; }},
      {"memory_peak_bytes", kAll, [](Report& r) { r.memory_peak_bytes = 62e9; }},
      {"memory_capacity_bytes", kAll, [](Report& r) { r.memory_capacity_bytes = 81e9; }},
      {"memory_stage", kAll, [](Report& r) { r.memory_stage = 0; }},
      {"unmeasured.op", kTable | kTold, [](Report& r) { r.unmeasured[2].op = "another"; }},
      {"unmeasured.shape", kTable | kTold, [](Report& r) { r.unmeasured[2].shape = "another"; }},
      {"unmeasured.share", kTable | kTold, [](Report& r) { r.unmeasured[2].share_of_step = 0.5; }},
      {"unmeasured, not listed", kTable | kTold, [](Report& r) { r.unmeasured[9].share_of_step = 0.5; }},
      {"unmeasured_share", kTable | kTold | kCsv, [](Report& r) { r.unmeasured_share = 0.5; }},
      {"figure", kTable | kJson | kBack, [](Report& r) { r.figures[0].value = 3; }},
      {"figure.remark", kTable, [](Report& r) { r.figures[0].remark = "elsewhere"; }},
      {"notes", kTable | kTold, [](Report& r) { r.notes[1] = "another note"; }},
      {"fidelity", kTable | kTold, [](Report& r) { r.discrete_event->fidelity = "step-exact"; }},
      {"network_model", kTold, [](Report& r) { r.discrete_event->network_model = "another"; }},
      {"ranks", kTable | kTold, [](Report& r) { r.discrete_event->ranks = 1; }},
      {"rank_classes", kTable | kTold, [](Report& r) { r.discrete_event->rank_classes = 1; }},
      {"flows", kTable | kTold, [](Report& r) { r.discrete_event->flows = 1; }},
      {"flow_classes", kTable | kTold, [](Report& r) { r.discrete_event->flow_classes = 1; }},
      {"links", kTable | kTold, [](Report& r) { r.discrete_event->links = 1; }},
      {"link_classes", kTable | kTold, [](Report& r) { r.discrete_event->link_classes = 1; }},
      {"events", kTable | kTold, [](Report& r) { r.discrete_event->events = 1; }},
      {"uncontended", kTable | kTold, [](Report& r) { r.discrete_event->uncontended_step_seconds = 4; }},
      {"link_kinds", kTold, [](Report& r) { r.discrete_event->link_kinds[0].busy_seconds = 1; }},
      {"link.name", kTable | kTold, [](Report& r) { r.discrete_event->busiest_links[7].name = "another"; }},
      {"link.links", kTable | kTold, [](Report& r) { r.discrete_event->busiest_links[7].links = 1; }},
      {"link.bytes", kTold, [](Report& r) { r.discrete_event->busiest_links[7].bytes = 1; }},
      {"link.rate", kTable | kTold, [](Report& r) { r.discrete_event->busiest_links[7].bytes_per_second = 1; }},
      {"link.carried", kTable | kTold, [](Report& r) { r.discrete_event->busiest_links[7].busiest_bytes = 1; }},
      {"link.utilisation", kTable | kTold, [](Report& r) { r.discrete_event->busiest_links[7].utilisation = 0.1; }},
      {"link.over_time", kTold, [](Report& r) { r.discrete_event->link_kinds[0].over_time[2] = 0.1; }},
      {"contention.who", kTable | kTold, [](Report& r) { r.discrete_event->contention[7].who = "another"; }},
      {"contention.op", kTable | kTold, [](Report& r) { r.discrete_event->contention[7].op = "another"; }},
      {"contention.link", kTable | kTold, [](Report& r) { r.discrete_event->contention[7].link = "another"; }},
      {"contention.times", kTold, [](Report& r) { r.discrete_event->contention[7].times_per_step = 9; }},
      {"contention.alone", kTable | kTold, [](Report& r) { r.discrete_event->contention[7].seconds_alone = 0.1; }},
      {"contention.seconds", kTable | kTold, [](Report& r) { r.discrete_event->contention[7].seconds = 0.9; }},
      {"contention, not listed", kTable | kTold, [](Report& r) { r.discrete_event->contention[9].seconds = 0.9; }},
      {"path.who", kTable | kTold, [](Report& r) { r.discrete_event->critical_path[1].who = "another"; }},
      {"path.what", kTable | kTold, [](Report& r) { r.discrete_event->critical_path[1].what = "another"; }},
      {"path.times", kTable | kTold, [](Report& r) { r.discrete_event->critical_path[1].times = 9; }},
      {"path.seconds", kTable | kTold, [](Report& r) { r.discrete_event->critical_path[1].seconds = 1; }},
      {"wait.who", kTable | kTold, [](Report& r) { r.discrete_event->waits[0].who = "another"; }},
      {"wait.for_whom", kTable | kTold, [](Report& r) { r.discrete_event->waits[0].for_whom = "another"; }},
      {"wait.op", kTable | kTold, [](Report& r) { r.discrete_event->waits[0].op = "another"; }},
      {"wait.times", kTable | kTold, [](Report& r) { r.discrete_event->waits[0].times = 9; }},
      {"wait.seconds", kTable | kTold, [](Report& r) { r.discrete_event->waits[0].seconds = 9; }},
      {"wait.alike", kTable | kTold, [](Report& r) { r.discrete_event->waits[0].alike = 9; }},
      {"op.name", kJson | kBack, [](Report& r) { r.ops[0].name = "another"; }},
      {"op.stream", kJson | kBack, [](Report& r) { r.ops[0].stream = Stream::data_communication; }},
      {"op.seconds", kJson | kBack, [](Report& r) { r.ops[0].seconds = 9; }},
      {"op.times", kJson | kBack, [](Report& r) { r.ops[0].times_per_step = 9; }},
      {"op.flops", kJson | kBack, [](Report& r) { r.ops[0].flops = 9; }},
      {"op.bytes", kJson | kBack, [](Report& r) { r.ops[0].bytes = 9; }},
      {"op.bound", kJson | kBack, [](Report& r) { r.ops[0].bound = "memory"; }},
  };
  for (const TimeTerm& term : time_terms()) {
    all.push_back({term.key.c_str(), kAll, [&term](Report& r) { term.of(r.stages[0].time) += 0.5; }});
    const bool in_stages = term.field == nullptr || term.field == &TimeBreakdown::bubble;  // the table of stages has it
    all.push_back({term.key.c_str(), (in_stages ? kTable : 0) | kJson | kBack,
                   [&term](Report& r) { term.of(r.stages[1].time) += 0.5; }});
  }
  for (const Place place : {Place::device, Place::host, Place::storage})
    for (std::size_t c = 0; c < kCategories; ++c)
      all.push_back({name_of(static_cast<Category>(c)), kAll,
                     [place, c](Report& r) { r.stages[1].memory.bytes.at(place)[c] += 3e9; }});
  for (SharedMemory Report::*const shared : {&Report::host_memory, &Report::storage}) {
    all.push_back({"shared.peak_bytes", kJson | kBack, [shared](Report& r) { (r.*shared).peak_bytes = 1e9; }});
    all.push_back({"shared.node_bytes", kAll, [shared](Report& r) { (r.*shared).node_bytes = 60e9; }});
    all.push_back({"shared.capacity", kAll, [shared](Report& r) { (r.*shared).capacity_bytes = 2e12; }});
    all.push_back(
        {"shared.processes", kTable | kJson | kBack, [shared](Report& r) { (r.*shared).process_bytes = 5e9; }});
  }
  return all;
}

Report read_back(const Report& report) {
  static constexpr const FigureKind* kKinds[] = {&kCopies};
  return read_report(nlohmann::json::parse(report_json(report).dump()), {}, kKinds);
}

TEST(EveryField, IsSeenWhereItIsMeantToBe) {
  const Report whole = whole_report();
  const std::string in_table = table_of(whole), in_json = report_json(whole).dump(), in_csv = csv_row("s", whole);
  const std::string in_back = report_json(read_back(whole)).dump();
  for (const Field& field : fields()) {
    Report changed = whole;
    field.change(changed);
    EXPECT_EQ(table_of(changed) != in_table, (field.seen & kTable) != 0) << field.name << " in the table";
    EXPECT_EQ(report_json(changed).dump() != in_json, (field.seen & kJson) != 0) << field.name << " in JSON";
    EXPECT_EQ(csv_row("s", changed) != in_csv, (field.seen & kCsv) != 0) << field.name << " in CSV";
    EXPECT_EQ(report_json(read_back(changed)).dump() != in_back, (field.seen & kBack) != 0)
        << field.name << " read back";
  }
}

// The figures that reading back knows are the ones that were written, to the last digit.
TEST(EveryField, IsReadBackAsItWasWritten) {
  using nlohmann::json;
  json written = json::parse(report_json(whole_report()).dump()),
       again = json::parse(report_json(read_back(whole_report())).dump());
  for (json* of : {&written, &again})
    for (const char* told : {"unmeasured", "unmeasured_share", "notes", "discrete_event"}) of->erase(told);
  EXPECT_EQ(again, written);
  const Report back = read_back(whole_report());
  EXPECT_EQ(back.bounding_stage, 0);
  EXPECT_EQ(back.memory_stage, 1);
  EXPECT_TRUE(back.memory_fits);
  EXPECT_EQ(back.figure("copies", "largest")->value, 1.75);
}

// Of every member that is read: another kind of value, or none, is refused by its place. The rest is overlooked.
TEST(EveryField, ThatIsWrongIsRefusedByItsPlace) {
  using nlohmann::json;
  const json whole = json::parse(report_json(whole_report()).dump());
  static constexpr const FigureKind* kKinds[] = {&kCopies};
  const auto refusal = [&](const json& changed) {
    try {
      read_report(changed, {"report.json", "/of"}, kKinds);
    } catch (const InputError& error) {
      return error.where().pointer + ": " + error.found() + ", " + error.expected();
    }
    return std::string();
  };
  EXPECT_EQ(refusal(whole), "");
  const std::vector<std::string> told{"/unmeasured",
                                      "/notes",
                                      "/discrete_event",
                                      "/flop_convention",
                                      "/memory/margin",
                                      "/memory/fits",
                                      "/memory/verdict",
                                      "/memory/interval",
                                      "/memory/parts",
                                      "/memory/stage",
                                      "/bounding_stage",
                                      "/time",
                                      "/expected_step_seconds/share"};
  const auto is_told = [&](const std::string& at) {
    return at.ends_with("/fits") || at.ends_with("node_high_bytes") ||
           (at.starts_with("/stages") &&
            (at.ends_with("/memory/host_bytes") || at.ends_with("/memory/storage_bytes"))) ||
           std::ranges::any_of(told, [&](const std::string& part) {
             return at.starts_with(part) && part != "/memory/stage" && part != "/bounding_stage";
           });
  };
  std::size_t refused = 0;
  const json leaves = whole.flatten();
  for (const auto& [at, value] : leaves.items()) {
    const json::json_pointer pointer(at);
    const auto with = [&](const json& other) {
      json changed = whole;
      changed[pointer] = other;
      return refusal(changed);
    };
    if (is_told(at)) {
      EXPECT_EQ(with(json::object({{"a", 1}})), "") << at;
      continue;
    }
    ++refused;
    const std::string place = "/of" + at + ": ";
    const char* const kind = value.is_string()    ? "a text"
                             : value.is_boolean() ? "true or false"
                             : value.is_number()  ? "a number"
                                                  : "?";
    for (const json& other : {json(true), json("x"), json(3), json{1}, json{{"a", 1}}, json()}) {
      if (other.type() == value.type() || (other.is_number() && value.is_number())) continue;
      EXPECT_EQ(with(other), place + other.dump() + ", " + kind) << at;
    }
    if (value.is_number_integer() && at != "/memory/stage" && at != "/bounding_stage") {
      EXPECT_EQ(with(1.5), place + "1.5, an integer");
      EXPECT_EQ(with(1e16), place + "1e+16, an integer");
    }
    if (value.is_string()) {
      EXPECT_NE(with("a\x1b"), "") << at;
    }
    json without = whole;
    json& parent = without[pointer.parent_pointer()];
    if (!parent.is_object()) continue;
    parent.erase(pointer.back());
    const bool optional = at == "/iteration_seconds" || at == "/memory/stage" || at == "/bounding_stage" ||
                          at.ends_with("/process_bytes") || at.find("/memory/host_") != at.npos ||
                          at.find("/memory/storage_") != at.npos;
    EXPECT_EQ(refusal(without), optional ? "" : place + "nothing, the figure of a report") << at;
  }
  EXPECT_GT(refused, 120u);
  json stream = whole;
  stream["ops"][0]["stream"] = "river";
  EXPECT_EQ(refusal(stream), "/of/ops/0/stream: \"river\", the name of a stream");
  json none = whole;
  none["step_seconds"] = 0;
  EXPECT_EQ(refusal(none), "/of/step_seconds: no time, seconds");
  // Of a real run and its prediction the run is meant.
  json both{{"prediction", whole}, {"measured", whole}};
  both["measured"]["step_seconds"] = 16;
  EXPECT_EQ(read_report(both, {}).step_seconds, 16);
  EXPECT_TRUE(is_report(both) && is_report(whole));
  for (const json& other : {json{{"engine", "des"}}, json{{"step_seconds", 1}}, json::array({whole}), json("measured")})
    EXPECT_FALSE(is_report(other)) << other;
}

TEST(SharedMemory, FitsWhereItsCapacityIsUnknownOrEnough) {
  EXPECT_TRUE((SharedMemory{1, 2, 0, 0}).fits()) << "unknown";
  EXPECT_TRUE((SharedMemory{1, 2, 2, 0}).fits());
  EXPECT_FALSE((SharedMemory{1, 2, 0.5, 0}).fits());
}

TEST(ReportTable, ReadsLikeThis) {
  EXPECT_EQ(table_of(whole_report()), R"(whole
on a test's cluster

  step time                                      8.000 s  80 %: 7.250 s to 9.750 s (megatron-core on measured devices)
  tokens/s                                         64000
  tokens/s per device                               4000
  sequences/s                                      15.50
  model TFLOP/s per device                         321.0
  MFU                                             41.0 %  causal attention counted as the lower triangle, no recomputation
  MFU, full attention                             43.0 %  attention counted without the causal mask
  HFU                                             52.0 %  what the devices execute, recomputation included
  pipeline bubble                                 13.0 %  of the step
  exposed communication                          1.750 s  21.9 % of the step
  bound by                                                matrix products
  largest copy                                      1.75  in a test

Time of one step (stage 0, rank 13)
  matrix products                               40.00 ms     1.6 %  ▌
  attention                                     50.00 ms     2.0 %  ▋
  memory-bound kernels                          60.00 ms     2.4 %  ▊
  recomputation                                 70.00 ms     2.8 %  ▉
  waiting for the slowest device                80.00 ms     3.2 %  █
  waiting for the host to launch                90.00 ms     3.6 %  █▏
  exposed tensor-parallel communication         100.0 ms     4.0 %  █▎
  exposed context-parallel communication        110.0 ms     4.5 %  █▍
  exposed expert-parallel communication         120.0 ms     4.9 %  █▌
  exposed gradient reduction                    130.0 ms     5.3 %  █▋
  exposed parameter gathering                   140.0 ms     5.7 %  █▉
  exposed pipeline transfers                    150.0 ms     6.1 %  ██
  exposed copies to the host                    160.0 ms     6.5 %  ██▏
  exposed copies to the device                  170.0 ms     6.9 %  ██▎
  exposed host kernels                          180.0 ms     7.3 %  ██▍
  exposed storage transfers                     190.0 ms     7.7 %  ██▌
  pipeline bubble                               200.0 ms     8.1 %  ██▋
  optimizer                                     210.0 ms     8.5 %  ██▊
  production slow-down                          220.0 ms     8.9 %  ██▉
  total                                          2.470 s

Iteration
  generate                                      250.0 ms  x 3, waits 125.0 ms before it begins
  judge                                          1.500 s  beside the tasks that follow
  slower beside others                           8.125 s
  total                                          9.000 s  the step time is its mean over the steps

Memory of one device at the peak (stage 3)
  parameters                                    1.40 GiB     1.9 %  ▋
  gradients                                     1.86 GiB     2.5 %  ▊
  optimizer states                              2.33 GiB     3.1 %  █
  activations                                   2.79 GiB     3.8 %  █▎
  communication buffers                         3.26 GiB     4.4 %  █▍
  workspace                                     3.73 GiB     5.0 %  █▋
  framework                                     2.33 GiB     3.1 %  █
  peak                                         56.81 GiB  of 74.51 GiB: fits, 17.70 GiB to spare
                                                          80 %: 55.67 GiB to 64.76 GiB (published peaks)
  in host memory                               32.13 GiB  parameters 4.19 GiB, gradients 4.66 GiB, optimizer states 5.12 GiB, activations 5.59 GiB, communication buffers 6.05 GiB, workspace 6.52 GiB
                                                          52.15 GiB of a node (2.79 GiB of it for processes), of 93.13 GiB: fits, 40.98 GiB to spare
                                                          up to 78.23 GiB: 1.5 times as much, as DeepSpeed recommends (pinned buffers, copies)
  in storage                                   48.89 GiB  parameters 6.98 GiB, gradients 7.45 GiB, optimizer states 7.92 GiB, activations 8.38 GiB, communication buffers 8.85 GiB, workspace 9.31 GiB
                                                          66.12 GiB of a node, of 838.19 GiB: fits, 772.07 GiB to spare

Stages
      stage   alike         busy      exposed       bubble   in flight   peak memory
          0       3      5.500 s      1.450 s     200.0 ms           4     15.83 GiB  bounds the step
          3       1      6.500 s      1.450 s     200.0 ms           2     56.81 GiB  fullest

Discrete-event simulation
  simulated                                  steady-flow  19 ranks as 5, 1023 flows as 12, 99 links as 7; 4321 events
  in closed form, links unshared                 6.400 s  simulated +25.0 %

Busiest links
  link            alike        rate   carried      used
  node0.nic0.out      8  50.00 GB/s  1.86 GiB    90.0 %  ████████████████████████████▊
  node1.nic0.out      9  51.00 GB/s  1.96 GiB    85.0 %  ███████████████████████████▎
  node2.nic0.out     10  52.00 GB/s  2.05 GiB    80.0 %  █████████████████████████▋
  node3.nic0.out     11  53.00 GB/s  2.14 GiB    75.0 %  ████████████████████████
  node4.nic0.out     12  54.00 GB/s  2.24 GiB    70.0 %  ██████████████████████▍
  node5.nic0.out     13  55.00 GB/s  2.33 GiB    65.0 %  ████████████████████▊
  node6.nic0.out     14  56.00 GB/s  2.42 GiB    60.0 %  ███████████████████▎
  node7.nic0.out     15  57.00 GB/s  2.51 GiB    55.0 %  █████████████████▋
  2 more

Collectives slower than alone on undisturbed links (concurrent: times do not add up)
  who      op   link                alone      took  lost
  stage 0  op0  leaf0.spine1.up  500.0 ms  800.0 ms  300.0 ms
  stage 0  op1  leaf0.spine1.up  490.0 ms  780.0 ms  290.0 ms
  stage 0  op2  leaf0.spine1.up  480.0 ms  760.0 ms  280.0 ms
  stage 0  op3  leaf0.spine1.up  470.0 ms  740.0 ms  270.0 ms
  stage 0  op4  leaf0.spine1.up  460.0 ms  720.0 ms  260.0 ms
  stage 0  op5  leaf0.spine1.up  450.0 ms  700.0 ms  250.0 ms
  stage 0  op6  leaf0.spine1.up  440.0 ms  680.0 ms  240.0 ms
  stage 0  op7  leaf0.spine1.up  430.0 ms  660.0 ms  230.0 ms
  2 more, 430.0 ms together

Critical path
  who                    what               times  seconds     share
  stage 3 with device 9  layer.forward.fc1     32  6.000 s    75.0 %  ████████████████████████
  stage 0                host issue             3  2.000 s    25.0 %  ████████

Who waited for whom (concurrent: times do not add up)
  who                          for whom               at                        times  seconds
  stage 0 and 4 similar kinds  stage 3 with device 9  gradients.reduce_scatter      2  125.0 ms

Kernel shapes without a measured efficiency nearby (11.0 % of the step)
  layer.fc0                                        0.2 %  m=64
  layer.fc1                                        0.4 %  m=128
  layer.fc2                                        0.6 %  m=256
  layer.fc3                                        0.8 %  m=512
  layer.fc4                                        1.0 %  m=1024
  layer.fc5                                        1.2 %  m=2048
  layer.fc6                                        1.4 %  m=4096
  layer.fc7                                        1.6 %  m=8192
  2 more                                           3.8 %

Notes
  - the first note
  - the second note
)");
}

}  // namespace
}  // namespace orrery
