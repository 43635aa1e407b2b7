#include "sim/report/json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "sim/report/memory_verdict.h"
#include "sim/report/terms.h"

namespace orrery {
namespace {

using OrderedJson = nlohmann::ordered_json;

void write_parts(const MemoryBreakdown& memory, JsonWriter& w) {
  for (const MemoryPart& part : memory_parts()) w.field(part.key, part.of(memory));
  for (const Place place : {Place::host, Place::storage}) {
    const CategoryBytes& there = memory.bytes.at(place);
    for (std::size_t c = 0; c < there.size(); ++c)
      if (there[c] != 0)
        w.field(fmt::format("{}_{}_bytes", name_of(place), name_of(static_cast<Category>(c))), there[c]);
  }
}

// `high`: the memory that may be needed is this many times the prediction; 0: not stated.
void write_shared(const char* key, const SharedMemory& shared, double high, JsonWriter& w) {
  if (!(shared.peak_bytes > 0)) return;
  w.key(key);
  w.begin_object();
  w.field("peak_bytes", shared.peak_bytes);
  w.field("node_bytes", shared.node_bytes);
  if (shared.process_bytes > 0) w.field("process_bytes", shared.process_bytes);
  if (high > 0) w.field("node_high_bytes", high * shared.node_bytes);
  w.field("node_capacity_bytes", shared.capacity_bytes);
  w.field("fits", shared.fits());
  w.end_object();
}

void write_time(const TimeBreakdown& time, JsonWriter& w) {
  w.key("time");
  w.begin_object();
  for (const TimeTerm& term : time_terms()) w.field(term.key, term.of(time));
  w.end_object();
}

void write_memory(const Report& r, JsonWriter& w) {
  w.key("memory");
  w.begin_object();
  w.field("peak_bytes", r.memory_peak_bytes);
  w.field("capacity_bytes", r.memory_capacity_bytes);
  w.field("margin_bytes", r.memory_capacity_bytes - r.memory_peak_bytes);
  w.field("fits", r.memory_fits);
  w.field("verdict", name_of(memory_verdict(r)));
  if (const auto interval = peak_interval(r)) {
    w.key("interval");
    w.begin_object();
    w.field("low_bytes", interval->low_bytes);
    w.field("high_bytes", interval->high_bytes);
    w.end_object();
  }
  write_shared("host", r.host_memory, r.engine == "measured" ? 0 : kHostHigh, w);
  write_shared("storage", r.storage, 0, w);
  if (!r.stages.empty()) {
    const StageReport& fullest = r.stages[static_cast<std::size_t>(r.memory_stage)];
    w.field("stage", fullest.stage);
    w.key("parts");
    w.begin_object();
    write_parts(fullest.memory, w);
    w.end_object();
  }
  w.end_object();
}

void write(const StageReport& stage, JsonWriter& w) {
  w.field("stage", stage.stage);
  w.field("stages", stage.stages);
  w.field("busy_seconds", stage.busy_seconds);
  w.field("in_flight_micro_batches", stage.in_flight_micro_batches);
  write_time(stage.time, w);
  w.key("memory");
  w.begin_object();
  write_parts(stage.memory, w);
  w.field("peak_bytes", stage.memory.peak_bytes);
  w.end_object();
}

void write(const UnmeasuredShape& shape, JsonWriter& w) {
  w.field("op", shape.op);
  w.field("shape", shape.shape);
  w.field("share_of_step", shape.share_of_step);
}

void write(const OpReport& op, JsonWriter& w) {
  w.field("name", op.name);
  w.field("stream", name_of(op.stream));
  w.field("seconds", op.seconds);
  w.field("times_per_step", op.times_per_step);
  w.field("flops", op.flops);
  w.field("bytes", op.bytes);
  w.field("bound", op.bound);
}

void write(const LinkReport& link, JsonWriter& w) {
  w.field("name", link.name);
  w.field("links", link.links);
  w.field("bytes_per_second", link.bytes_per_second);
  w.field("bytes", link.bytes);
  w.field("busiest_bytes", link.busiest_bytes);
  w.field("busy_seconds", link.busy_seconds);
  w.field("utilisation", link.utilisation);
  w.key("over_time");
  w.begin_array();
  for (const double share : link.over_time) w.value(share);
  w.end_array();
}

void write(const ContentionReport& c, JsonWriter& w) {
  w.field("who", c.who);
  w.field("op", c.op);
  w.field("link", c.link);
  w.field("times_per_step", c.times_per_step);
  w.field("seconds_alone", c.seconds_alone);
  w.field("seconds", c.seconds);
}

void write(const CriticalPathPart& part, JsonWriter& w) {
  w.field("who", part.who);
  w.field("what", part.what);
  w.field("times", part.times);
  w.field("seconds", part.seconds);
}

void write(const WaitReport& wait, JsonWriter& w) {
  w.field("who", wait.who);
  w.field("alike", wait.alike);
  w.field("for_whom", wait.for_whom);
  w.field("op", wait.op);
  w.field("times", wait.times);
  w.field("seconds", wait.seconds);
}

template <class Item>
void write_list(std::string_view key, const std::vector<Item>& items, JsonWriter& w) {
  w.key(key);
  w.begin_array();
  for (const Item& item : items) {
    w.begin_object();
    write(item, w);
    w.end_object();
  }
  w.end_array();
}

void write(const DiscreteEventReport& d, JsonWriter& w) {
  w.field("fidelity", d.fidelity);
  w.field("network_model", d.network_model);
  w.field("ranks", d.ranks);
  w.field("rank_classes", d.rank_classes);
  w.field("flows", d.flows);
  w.field("flow_classes", d.flow_classes);
  w.field("links", d.links);
  w.field("link_classes", d.link_classes);
  w.field("events", d.events);
  w.field("uncontended_step_seconds", d.uncontended_step_seconds);
  write_list("link_kinds", d.link_kinds, w);
  write_list("busiest_links", d.busiest_links, w);
  write_list("contention", d.contention, w);
  write_list("critical_path", d.critical_path, w);
  write_list("waits", d.waits, w);
}

}  // namespace

void write_report(const Report& r, bool ops, JsonWriter& w) {
  w.field("engine", r.engine);
  w.field("devices", r.devices);
  w.field("step_seconds", r.step_seconds);
  w.field("tokens_per_second", r.tokens_per_second);
  w.field("tokens_per_second_per_device", r.tokens_per_second_per_device);
  w.field("sequences_per_second", r.sequences_per_second);
  w.field("model_flops_per_second_per_device", r.model_flops_per_second_per_device);
  w.field("mfu", r.mfu);
  w.field("mfu_full_attention", r.mfu_full_attention);
  w.field("hfu", r.hfu);
  w.field("flop_convention", flop_convention());
  w.field("pipeline_seconds", r.pipeline_seconds);
  w.field("bubble_fraction", r.bubble_fraction);
  w.field("exposed_communication_seconds", r.exposed_communication_seconds);
  w.field("bound_by", r.bound_by);
  write_memory(r, w);
  if (r.expected) {
    w.key("expected_step_seconds");
    w.begin_object();
    w.field("share", 0.8);
    w.field("low", r.expected->low_seconds);
    w.field("high", r.expected->high_seconds);
    w.field("comparable", r.expected->comparable);
    w.field("points", r.expected->points);
    w.field("sources", r.expected->sources);
    w.end_object();
  }
  if (!r.stages.empty()) {
    const StageReport& bounding = r.stages[static_cast<std::size_t>(r.bounding_stage)];
    w.field("bounding_stage", bounding.stage);
    write_time(bounding.time, w);
  }
  write_list("stages", r.stages, w);
  w.field("unmeasured_share", r.unmeasured_share);
  write_list("unmeasured", r.unmeasured, w);
  if (r.routing) {
    w.key("routing");
    w.begin_object();
    w.field("busiest_rank_over_mean", r.routing->busiest_rank);
    w.field("mean_busiest_rank_over_mean", r.routing->mean_busiest_rank);
    w.field("busiest_expert_over_mean", r.routing->busiest_expert);
    w.field("dropped_share", r.routing->dropped_share);
    w.end_object();
  }
  if (r.documents) {
    w.key("documents");
    w.begin_object();
    w.field("documents_per_sequence", r.documents->documents);
    w.field("longest_document", r.documents->longest);
    w.field("padded_share", r.documents->padded_share);
    w.field("attention_share", r.documents->attention_share);
    w.field("busiest_replica_over_mean", r.documents->busiest_replica);
    w.field("busiest_micro_batch_over_mean", r.documents->busiest_micro_batch);
    w.end_object();
  }
  w.key("notes");
  w.begin_array();
  for (const std::string& note : r.notes) w.value(note);
  w.end_array();
  if (r.discrete_event) {
    w.key("discrete_event");
    w.begin_object();
    write(*r.discrete_event, w);
    w.end_object();
  }
  if (ops && !r.ops.empty()) write_list("ops", r.ops, w);
}

OrderedJson report_json(const Report& r) {
  std::string text;
  JsonWriter writer(text);
  writer.begin_object();
  write_report(r, /*ops=*/true, writer);
  writer.end_object();
  return OrderedJson::parse(text);
}

OrderedJson comparison_json(const Report& a, const Report& b) {
  OrderedJson change{{"step_seconds", b.step_seconds - a.step_seconds},
                     {"tokens_per_second_per_device", b.tokens_per_second_per_device - a.tokens_per_second_per_device},
                     {"mfu", b.mfu - a.mfu},
                     {"memory_peak_bytes", b.memory_peak_bytes - a.memory_peak_bytes}};
  if (!a.stages.empty() && !b.stages.empty()) {
    const auto terms_a = terms_of(a.stages[static_cast<std::size_t>(a.bounding_stage)].time);
    const auto terms_b = terms_of(b.stages[static_cast<std::size_t>(b.bounding_stage)].time);
    for (std::size_t i = 0; i < terms_a.size(); ++i)
      change["time"][terms_a[i].name + "_seconds"] = terms_b[i].seconds - terms_a[i].seconds;
  }
  return {{"a", report_json(a)}, {"b", report_json(b)}, {"change", std::move(change)}};
}

}  // namespace orrery
