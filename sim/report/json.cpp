#include "sim/report/json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "sim/report/terms.h"

namespace orrery {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson time_json(const TimeBreakdown& time) {
  OrderedJson json;
  for (const Term& term : terms_of(time)) json[term.name + "_seconds"] = term.seconds;
  return json;
}

OrderedJson parts_json(const MemoryBreakdown& memory) {
  OrderedJson json;
  for (const MemoryTerm& term : terms_of(memory)) json[term.name + "_bytes"] = term.bytes;
  for (const Place place : {Place::host, Place::storage})
    for (const MemoryTerm& term : terms_of(memory.bytes.at(place)))
      if (term.bytes != 0) json[fmt::format("{}_{}_bytes", name_of(place), term.name)] = term.bytes;
  return json;
}

OrderedJson shared_json(const SharedMemory& shared) {
  return {{"peak_bytes", shared.peak_bytes},
          {"node_bytes", shared.node_bytes},
          {"node_capacity_bytes", shared.capacity_bytes},
          {"fits", shared.fits()}};
}

OrderedJson memory_json(const Report& r) {
  OrderedJson json{{"peak_bytes", r.memory_peak_bytes},
            {"capacity_bytes", r.memory_capacity_bytes},
            {"margin_bytes", r.memory_capacity_bytes - r.memory_peak_bytes},
            {"fits", r.memory_fits}};
  if (r.host_memory.peak_bytes > 0) json["host"] = shared_json(r.host_memory);
  if (r.storage.peak_bytes > 0) json["storage"] = shared_json(r.storage);
  if (r.stages.empty()) return json;
  const StageReport& fullest = r.stages[static_cast<std::size_t>(r.memory_stage)];
  json["stage"] = fullest.stage;
  json["parts"] = parts_json(fullest.memory);
  return json;
}

OrderedJson stage_json(const StageReport& stage) {
  OrderedJson memory = parts_json(stage.memory);
  memory["peak_bytes"] = stage.memory.peak_bytes;
  return {{"stage", stage.stage},
          {"stages", stage.stages},
          {"busy_seconds", stage.busy_seconds},
          {"in_flight_micro_batches", stage.in_flight_micro_batches},
          {"time", time_json(stage.time)},
          {"memory", std::move(memory)}};
}

OrderedJson op_json(const OpReport& op) {
  return {{"name", op.name},       {"stream", name_of(op.stream)},
          {"seconds", op.seconds}, {"times_per_step", op.times_per_step},
          {"flops", op.flops},     {"bytes", op.bytes},
          {"bound", op.bound}};
}

OrderedJson link_json(const LinkReport& link) {
  return {{"name", link.name},
          {"links", link.links},
          {"bytes_per_second", link.bytes_per_second},
          {"bytes", link.bytes},
          {"busiest_bytes", link.busiest_bytes},
          {"busy_seconds", link.busy_seconds},
          {"utilisation", link.utilisation},
          {"over_time", link.over_time}};
}

OrderedJson discrete_event_json(const DiscreteEventReport& d) {
  OrderedJson json{{"fidelity", d.fidelity}, {"network_model", d.network_model},
                   {"ranks", d.ranks},       {"rank_classes", d.rank_classes},
                   {"flows", d.flows},       {"flow_classes", d.flow_classes},
                   {"links", d.links},       {"link_classes", d.link_classes},
                   {"events", d.events},     {"uncontended_step_seconds", d.uncontended_step_seconds}};
  const auto list = [&json](const char* key, const auto& items, auto item_json) {
    json[key] = OrderedJson::array();
    for (const auto& item : items) json[key].push_back(item_json(item));
  };
  list("link_kinds", d.link_kinds, link_json);
  list("busiest_links", d.busiest_links, link_json);
  list("contention", d.contention, [](const ContentionReport& c) -> OrderedJson {
    return {{"who", c.who},
            {"op", c.op},
            {"link", c.link},
            {"times_per_step", c.times_per_step},
            {"seconds_alone", c.seconds_alone},
            {"seconds", c.seconds}};
  });
  list("critical_path", d.critical_path, [](const CriticalPathPart& part) -> OrderedJson {
    return {{"who", part.who}, {"what", part.what}, {"times", part.times}, {"seconds", part.seconds}};
  });
  list("waits", d.waits, [](const WaitReport& wait) -> OrderedJson {
    return {{"who", wait.who},
            {"for_whom", wait.for_whom},
            {"op", wait.op},
            {"times", wait.times},
            {"seconds", wait.seconds}};
  });
  return json;
}

}  // namespace

OrderedJson report_json(const Report& r) {
  OrderedJson json{{"engine", r.engine},
                   {"devices", r.devices},
                   {"step_seconds", r.step_seconds},
                   {"tokens_per_second", r.tokens_per_second},
                   {"tokens_per_second_per_device", r.tokens_per_second_per_device},
                   {"sequences_per_second", r.sequences_per_second},
                   {"model_flops_per_second_per_device", r.model_flops_per_second_per_device},
                   {"mfu", r.mfu},
                   {"mfu_full_attention", r.mfu_full_attention},
                   {"hfu", r.hfu},
                   {"flop_convention", flop_convention()},
                   {"pipeline_seconds", r.pipeline_seconds},
                   {"bubble_fraction", r.bubble_fraction},
                   {"exposed_communication_seconds", r.exposed_communication_seconds},
                   {"bound_by", r.bound_by},
                   {"memory", memory_json(r)}};
  if (r.expected)
    json["expected_step_seconds"] = {{"share", 0.8},
                                     {"low", r.expected->low_seconds},
                                     {"high", r.expected->high_seconds},
                                     {"comparable", r.expected->comparable},
                                     {"points", r.expected->points},
                                     {"sources", r.expected->sources}};
  if (!r.stages.empty()) {
    const StageReport& bounding = r.stages[static_cast<std::size_t>(r.bounding_stage)];
    json["bounding_stage"] = bounding.stage;
    json["time"] = time_json(bounding.time);
  }
  json["stages"] = OrderedJson::array();
  for (const StageReport& stage : r.stages) json["stages"].push_back(stage_json(stage));
  json["unmeasured_share"] = r.unmeasured_share;
  json["unmeasured"] = OrderedJson::array();
  for (const UnmeasuredShape& shape : r.unmeasured)
    json["unmeasured"].push_back({{"op", shape.op}, {"shape", shape.shape}, {"share_of_step", shape.share_of_step}});
  json["notes"] = r.notes;
  if (r.discrete_event) json["discrete_event"] = discrete_event_json(*r.discrete_event);
  if (!r.ops.empty()) {
    json["ops"] = OrderedJson::array();
    for (const OpReport& op : r.ops) json["ops"].push_back(op_json(op));
  }
  return json;
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
