#include "sim/report/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <nlohmann/json.hpp>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "sim/base/json_reader.h"
#include "sim/base/one_line.h"
#include "sim/report/memory_verdict.h"
#include "sim/report/terms.h"

namespace orrery {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// ---- what a report has in JSON: each field once, in its order, for a writer and a reader
//
//   v.field(key, value)             always there
//   v.field_if(key, there, value)   written where `there` is true, read where the JSON has it
//   v.object(key, fields)           an object with the fields that fields(v) visits; object_if as field_if
//   v.told(key, value)              only written: it follows from other fields, or nobody asks a file for it

template <class T, class Struct>
concept Is = std::same_as<std::remove_const_t<T>, Struct>;

void report_fields(auto& v, Is<TimeBreakdown> auto& time) {
  for (const TimeTerm& term : time_terms()) v.field(term.key, term.of(time));
}

void report_fields(auto& v, Is<MemoryBreakdown> auto& memory) {
  for (const MemoryPart& part : memory_parts()) {
    if (part.field != nullptr)
      v.field(part.key, memory.*part.field);
    else if (part.place == Place::device)
      v.field(part.key, memory.bytes.at(part.place)[part.category]);
    else
      v.told(part.key, part.of(memory));
  }
  for (const Place place : {Place::host, Place::storage})
    for (std::size_t c = 0; c < kCategories; ++c) {
      auto& there = memory.bytes.at(place)[c];
      v.field_if(fmt::format("{}_{}_bytes", name_of(place), name_of(static_cast<Category>(c))), there != 0, there);
    }
}

// `high`: the memory that may be needed is this many times the predicted one; 0: nothing is said about it.
void report_fields(auto& v, Is<SharedMemory> auto& shared, double high) {
  v.field("peak_bytes", shared.peak_bytes);
  v.field("node_bytes", shared.node_bytes);
  v.field_if("process_bytes", shared.process_bytes > 0, shared.process_bytes);
  if (high > 0) v.told("node_high_bytes", high * shared.node_bytes);
  v.field("node_capacity_bytes", shared.capacity_bytes);
  v.told("fits", shared.fits());
}

void report_fields(auto& v, const PeakInterval& interval) {
  v.told("low_bytes", interval.low_bytes);
  v.told("high_bytes", interval.high_bytes);
}

void report_fields(auto& v, Is<ExpectedStep> auto& expected) {
  v.told("share", 0.8);
  v.field("low", expected.low_seconds);
  v.field("high", expected.high_seconds);
  v.field("comparable", expected.comparable);
  v.field("points", expected.points);
  v.field("sources", expected.sources);
}

void report_fields(auto& v, Is<StageReport> auto& stage) {
  v.field("stage", stage.stage);
  v.field("stages", stage.stages);
  v.field("busy_seconds", stage.busy_seconds);
  v.field("in_flight_micro_batches", stage.in_flight_micro_batches);
  v.field("time", stage.time);
  v.object("memory", [&](auto& inside) {
    report_fields(inside, stage.memory);
    inside.field("peak_bytes", stage.memory.peak_bytes);
  });
}

void report_fields(auto& v, Is<TaskReport> auto& task) {
  v.field("name", task.name);
  v.field("repeats", task.repeats);
  v.field("seconds", task.seconds);
  v.field("waiting_seconds", task.waiting_seconds);
  v.field("beside", task.beside);
  v.field("begin_seconds", task.begin_seconds);
  v.field("end_seconds", task.end_seconds);
}

void report_fields(auto& v, Is<UnmeasuredShape> auto& shape) {
  v.field("op", shape.op);
  v.field("shape", shape.shape);
  v.field("share_of_step", shape.share_of_step);
}

void report_fields(auto& v, Is<OpReport> auto& op) {
  v.field("name", op.name);
  v.field("stream", op.stream);
  v.field("seconds", op.seconds);
  v.field("times_per_step", op.times_per_step);
  v.field("flops", op.flops);
  v.field("bytes", op.bytes);
  v.field("bound", op.bound);
}

void report_fields(auto& v, Is<LinkReport> auto& link) {
  v.field("name", link.name);
  v.field("links", link.links);
  v.field("bytes_per_second", link.bytes_per_second);
  v.field("bytes", link.bytes);
  v.field("busiest_bytes", link.busiest_bytes);
  v.field("busy_seconds", link.busy_seconds);
  v.field("utilisation", link.utilisation);
  v.field("over_time", link.over_time);
}

void report_fields(auto& v, Is<ContentionReport> auto& contention) {
  v.field("who", contention.who);
  v.field("op", contention.op);
  v.field("link", contention.link);
  v.field("times_per_step", contention.times_per_step);
  v.field("seconds_alone", contention.seconds_alone);
  v.field("seconds", contention.seconds);
}

void report_fields(auto& v, Is<CriticalPathPart> auto& part) {
  v.field("who", part.who);
  v.field("what", part.what);
  v.field("times", part.times);
  v.field("seconds", part.seconds);
}

void report_fields(auto& v, Is<WaitReport> auto& wait) {
  v.field("who", wait.who);
  v.field("alike", wait.alike);
  v.field("for_whom", wait.for_whom);
  v.field("op", wait.op);
  v.field("times", wait.times);
  v.field("seconds", wait.seconds);
}

void report_fields(auto& v, Is<DiscreteEventReport> auto& d) {
  v.field("fidelity", d.fidelity);
  v.field("network_model", d.network_model);
  v.field("ranks", d.ranks);
  v.field("rank_classes", d.rank_classes);
  v.field("flows", d.flows);
  v.field("flow_classes", d.flow_classes);
  v.field("links", d.links);
  v.field("link_classes", d.link_classes);
  v.field("events", d.events);
  v.field("uncontended_step_seconds", d.uncontended_step_seconds);
  v.field("link_kinds", d.link_kinds);
  v.field("busiest_links", d.busiest_links);
  v.field("contention", d.contention);
  v.field("critical_path", d.critical_path);
  v.field("waits", d.waits);
}

void memory_fields(auto& v, Is<Report> auto& r) {
  v.field("peak_bytes", r.memory_peak_bytes);
  v.field("capacity_bytes", r.memory_capacity_bytes);
  v.told("margin_bytes", r.memory_capacity_bytes - r.memory_peak_bytes);
  v.told("fits", r.memory_fits);
  v.told("verdict", name_of(memory_verdict(r)));
  if (const auto interval = peak_interval(r)) v.told("interval", *interval);
  const double high = r.engine == "measured" ? 0 : kHostHigh;
  v.object_if("host", r.host_memory.peak_bytes > 0, [&](auto& in) { report_fields(in, r.host_memory, high); });
  v.object_if("storage", r.storage.peak_bytes > 0, [&](auto& in) { report_fields(in, r.storage, 0); });
  if (r.stages.empty()) return;
  const StageReport& fullest = r.fullest();
  v.told("stage", fullest.stage);
  v.told("parts", fullest.memory);
}

void report_fields(auto& v, Is<Report> auto& r, bool ops) {
  v.field("engine", r.engine);
  v.field("devices", r.devices);
  v.field("step_seconds", r.step_seconds);
  v.field_if("iteration_seconds", !r.tasks.empty(), r.iteration_seconds);
  v.field_if("tasks", !r.tasks.empty(), r.tasks);
  v.field("tokens_per_second", r.tokens_per_second);
  v.field("tokens_per_second_per_device", r.tokens_per_second_per_device);
  v.field("sequences_per_second", r.sequences_per_second);
  v.field("model_flops_per_second_per_device", r.model_flops_per_second_per_device);
  v.field("mfu", r.mfu);
  v.field("mfu_full_attention", r.mfu_full_attention);
  v.field("hfu", r.hfu);
  v.told("flop_convention", flop_convention());
  v.field("pipeline_seconds", r.pipeline_seconds);
  v.field("bubble_fraction", r.bubble_fraction);
  v.field("exposed_communication_seconds", r.exposed_communication_seconds);
  v.field("bound_by", r.bound_by);
  v.object("memory", [&](auto& inside) { memory_fields(inside, r); });
  v.field_if("expected_step_seconds", r.expected.has_value(), r.expected);
  if (!r.stages.empty()) {
    const StageReport& bounding = r.bounding();
    v.told("bounding_stage", bounding.stage);
    v.told("time", bounding.time);
  }
  v.field("stages", r.stages);
  v.told("unmeasured_share", r.unmeasured_share);
  v.told("unmeasured", r.unmeasured);
  v.figures(r.figures);
  v.told("notes", r.notes);
  if (r.discrete_event) v.told("discrete_event", *r.discrete_event);
  v.field_if("ops", ops && !r.ops.empty(), r.ops);
}

// ---- writing

class FieldWriter {
 public:
  explicit FieldWriter(JsonWriter& writer) : w_(writer) {}

  void field(std::string_view key, const auto& value) {
    w_.key(key);
    put(value);
  }
  void field_if(std::string_view key, bool there, const auto& value) {
    if (there) field(key, value);
  }
  void told(std::string_view key, const auto& value) { field(key, value); }
  void object(std::string_view key, auto fields) {
    w_.key(key);
    w_.begin_object();
    fields(*this);
    w_.end_object();
  }
  void object_if(std::string_view key, bool there, auto fields) {
    if (there) object(key, fields);
  }
  void figures(const std::vector<Figure>& figures) {
    for (auto group = figures.begin(); group != figures.end();)
      object(group->kind->group, [&](auto&) {
        const std::string_view name = group->kind->group;
        for (; group != figures.end() && group->kind->group == name; ++group) put(*group);
      });
  }

 private:
  JsonWriter& w_;

  template <class Value>
  void put(const Value& value) {
    if constexpr (requires { w_.value(value); }) {
      w_.value(value);
    } else {
      w_.begin_object();
      report_fields(*this, value);
      w_.end_object();
    }
  }
  void put(const Stream& stream) { w_.value(name_of(stream)); }
  void put(const Figure& figure) {
    if (figure.kind->unit == FigureUnit::count)
      field(figure.kind->key, static_cast<std::int64_t>(figure.value));
    else
      field(figure.kind->key, figure.value);
  }
  template <class Value>
  void put(const std::optional<Value>& value) {
    put(*value);
  }
  template <class Value>
  void put(const std::vector<Value>& values) {
    w_.begin_array();
    for (const Value& value : values) put(value);
    w_.end_array();
  }
};

// ---- reading back

// A value of the JSON, with where it stands.
class FieldReader {
 public:
  FieldReader(const Json& json, InputError::Where where) : json_(json), where_(std::move(where)) {}

  FieldReader operator[](const std::string& key) const {
    InputError::Where at{where_.file, where_.pointer + "/" + key};
    if (!has(key)) throw InputError(at, "nothing", "the figure of a report");
    return {json_.at(key), std::move(at)};
  }
  bool has(const std::string& key) const { return json_.is_object() && json_.contains(key); }
  const InputError::Where& where() const { return where_; }

  void field(const std::string& key, auto& value) const { (*this)[key].get(value); }
  void field_if(const std::string& key, bool, auto& value) const {
    if (has(key)) field(key, value);
  }
  void told(std::string_view, const auto&) const {}
  void object(const std::string& key, auto fields) const {
    FieldReader inside = (*this)[key];
    fields(inside);
  }
  void object_if(const std::string& key, bool, auto fields) const {
    if (has(key)) object(key, fields);
  }
  void figures(const std::vector<Figure>&) const {}  // read_report knows their kinds

  void get(double& value) const {
    if (!json_.is_number()) fail("a number");
    value = json_.get<double>();
  }
  void get(std::int64_t& value) const {
    constexpr double kMost = 1e15;  // every integer up to it is a double
    double number = 0;
    get(number);
    if (number != std::trunc(number) || std::fabs(number) > kMost) fail("an integer");
    value = static_cast<std::int64_t>(number);
  }
  void get(std::string& value) const {
    if (!json_.is_string()) fail("a text");
    value = json_.get<std::string>();
    if (has_control_characters(value)) throw InputError(where_, describe(json_), "a text without control characters");
  }
  void get(bool& value) const {
    if (!json_.is_boolean()) fail("true or false");
    value = json_.get<bool>();
  }
  void get(Stream& stream) const {
    std::string name;
    get(name);
    const auto* const row = std::ranges::find(kStreamRows, name, &StreamRow::name);
    if (row == kStreamRows.end()) throw InputError(where_, "\"" + name + "\"", "the name of a stream");
    stream = row->stream;
  }
  void get(Figure& figure) const {
    std::int64_t count = 0;
    if (figure.kind->unit != FigureUnit::count) return get(figure.value);
    get(count);
    figure.value = static_cast<double>(count);
  }
  template <class Value>
  void get(std::optional<Value>& value) const {
    get(value.emplace());
  }
  template <class Value>
  void get(std::vector<Value>& values) const {
    if (!json_.is_array()) fail("a list");
    for (std::size_t i = 0; i < json_.size(); ++i)
      FieldReader(json_.at(i), {where_.file, where_.pointer + "/" + std::to_string(i)}).get(values.emplace_back());
  }
  void get(auto& its) const { report_fields(*this, its); }

 private:
  const Json& json_;
  InputError::Where where_;

  [[noreturn]] void fail(const char* expected) const {
    throw InputError(where_, json_text(json_).substr(0, 40), expected);
  }
};

}  // namespace

void write_report(const Report& report, bool ops, JsonWriter& writer) {
  FieldWriter fields(writer);
  report_fields(fields, report, ops);
}

OrderedJson report_json(const Report& report, bool ops) {
  std::string text;
  JsonWriter writer(text);
  writer.begin_object();
  write_report(report, ops, writer);
  writer.end_object();
  return OrderedJson::parse(text);
}

OrderedJson comparison_json(const Report& a, const Report& b, bool ops) {
  OrderedJson change{{"step_seconds", b.step_seconds - a.step_seconds},
                     {"tokens_per_second_per_device", b.tokens_per_second_per_device - a.tokens_per_second_per_device},
                     {"mfu", b.mfu - a.mfu},
                     {"memory_peak_bytes", b.memory_peak_bytes - a.memory_peak_bytes}};
  if (!a.stages.empty() && !b.stages.empty())
    for (const TimeTerm& term : time_terms())
      change["time"][term.key] = term.of(b.bounding().time) - term.of(a.bounding().time);
  return {{"a", report_json(a, ops)}, {"b", report_json(b, ops)}, {"change", std::move(change)}};
}

bool is_report(const Json& json) {
  return json.is_object() && (json.contains("measured") || (json.contains("engine") && json.contains("step_seconds")));
}

void refuse_report(const Json& document, const std::string& file, const std::string& expected) {
  if (is_report(document)) throw InputError({file, ""}, "a report", expected);
}

Report read_report(const Json& document, const InputError::Where& where, std::span<const FigureKind* const> figures) {
  const FieldReader whole(document, where);
  const FieldReader json = whole.has("measured") ? whole["measured"] : whole;
  Report r;
  report_fields(json, r, /*ops=*/true);
  if (!(r.step_seconds > 0)) throw InputError(json["step_seconds"].where(), "no time", "seconds");
  r.memory_fits = fits_everywhere(r);
  for (const FigureKind* kind : figures)
    if (json.has(kind->group)) json[kind->group].field(kind->key, r.figures.emplace_back(Figure{.kind = kind}));
  // A class is called by its first stage; of several called alike the first is meant.
  const auto find_stage = [&r](const FieldReader& in, const char* key, std::int64_t& place) {
    std::int64_t stage = 0;
    in.field_if(key, true, stage);
    const auto at = std::ranges::find(r.stages, stage, &StageReport::stage);
    if (in.has(key) && at != r.stages.end()) place = at - r.stages.begin();
  };
  find_stage(json, "bounding_stage", r.bounding_stage);
  find_stage(json["memory"], "stage", r.memory_stage);
  return r;
}

}  // namespace orrery
