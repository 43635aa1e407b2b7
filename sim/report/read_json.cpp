#include "sim/report/read_json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "sim/base/json_reader.h"
#include "sim/base/json_writer.h"
#include "sim/base/one_line.h"
#include "sim/report/memory_verdict.h"
#include "sim/report/terms.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

// A member of an object, or an InputError that names it.
class Member {
 public:
  Member(const Json& json, InputError::Where where) : json_(json), where_(std::move(where)) {}

  Member operator[](const std::string& key) const {
    const InputError::Where at{where_.file, where_.pointer + "/" + key};
    if (!json_.is_object() || !json_.contains(key)) throw InputError(at, "nothing", "the figure of a report");
    return {json_.at(key), at};
  }
  Member operator[](std::size_t index) const {
    return {json_.at(index), {where_.file, where_.pointer + "/" + std::to_string(index)}};
  }
  bool has(const std::string& key) const { return json_.is_object() && json_.contains(key); }
  std::size_t size() const {
    if (!json_.is_array()) throw InputError(where_, json_text(json_).substr(0, 40), "a list");
    return json_.size();
  }
  double number() const {
    if (!json_.is_number()) throw InputError(where_, json_text(json_).substr(0, 40), "a number");
    return json_.get<double>();
  }
  std::int64_t integer() const {
    constexpr double kMost = 1e15;  // every integer up to it is a double
    const double value = number();
    if (value != std::trunc(value) || std::fabs(value) > kMost)
      throw InputError(where_, json_text(json_).substr(0, 40), "an integer");
    return static_cast<std::int64_t>(value);
  }
  std::string text() const {
    if (!json_.is_string()) throw InputError(where_, json_text(json_).substr(0, 40), "a text");
    if (has_control_characters(json_.get_ref<const std::string&>()))
      throw InputError(where_, describe(json_), "a text without control characters");
    return json_.get<std::string>();
  }
  const InputError::Where& where() const { return where_; }

 private:
  const Json& json_;
  InputError::Where where_;
};

TimeBreakdown time_of(const Member& json) {
  TimeBreakdown time;
  time.matmul = json["matmul_seconds"].number();
  time.attention = json["attention_seconds"].number();
  time.memory_bound = json["memory_bound_seconds"].number();
  time.recompute = json["recompute_seconds"].number();
  time.slowest_device = json["slowest_device_seconds"].number();
  time.host_issue = json["host_issue_seconds"].number();
  time.bubble = json["bubble_seconds"].number();
  time.optimizer = json["optimizer_seconds"].number();
  time.production = json["production_seconds"].number();
  for (const StreamRow& row : kStreamRows)
    if (is_account(row.stream))
      time.exposed[static_cast<std::size_t>(row.stream)] =
          json[std::string("exposed_") + row.name + "_seconds"].number();
  return time;
}

MemoryBreakdown memory_of(const Member& json) {
  MemoryBreakdown memory;
  for (int c = 0; c < kCategories; ++c) {
    const auto category = static_cast<Category>(c);
    const std::string key = std::string(name_of(category)) + "_bytes";
    memory.bytes.of(Place::device, category) = json[key].number();
    for (const Place place : {Place::host, Place::storage})
      if (const std::string there = std::string(name_of(place)) + "_" + key; json.has(there))
        memory.bytes.of(place, category) = json[there].number();
  }
  memory.framework_bytes = json["framework_bytes"].number();
  memory.peak_bytes = json["peak_bytes"].number();
  return memory;
}

Stream stream_of(const Member& json) {
  const std::string name = json.text();
  for (const StreamRow& row : kStreamRows)
    if (name == row.name) return row.stream;
  throw InputError(json.where(), "\"" + name + "\"", "the name of a stream");
}

}  // namespace

bool is_report(const Json& json) {
  return json.is_object() && (json.contains("measured") || (json.contains("engine") && json.contains("step_seconds")));
}

void refuse_report(const Json& document, const std::string& file, const std::string& expected) {
  if (is_report(document)) throw InputError({file, ""}, "a report", expected);
}

Report read_report(const Json& document, const InputError::Where& where) {
  const Member whole(document, where);
  const Member json = whole.has("measured") ? whole["measured"] : whole;
  Report r;
  r.engine = json["engine"].text();
  r.devices = json["devices"].integer();
  r.step_seconds = json["step_seconds"].number();
  if (!(r.step_seconds > 0)) throw InputError(json["step_seconds"].where(), "no time", "seconds");
  r.pipeline_seconds = json["pipeline_seconds"].number();
  r.tokens_per_second = json["tokens_per_second"].number();
  r.tokens_per_second_per_device = json["tokens_per_second_per_device"].number();
  r.sequences_per_second = json["sequences_per_second"].number();
  r.model_flops_per_second_per_device = json["model_flops_per_second_per_device"].number();
  r.mfu = json["mfu"].number();
  r.mfu_full_attention = json["mfu_full_attention"].number();
  r.hfu = json["hfu"].number();
  r.bubble_fraction = json["bubble_fraction"].number();
  r.exposed_communication_seconds = json["exposed_communication_seconds"].number();
  r.bound_by = json["bound_by"].text();
  const Member memory = json["memory"], stages = json["stages"];
  r.memory_peak_bytes = memory["peak_bytes"].number();
  r.memory_capacity_bytes = memory["capacity_bytes"].number();
  const auto shared = [&memory](const char* place) -> SharedMemory {
    if (!memory.has(place)) return {};
    const Member of = memory[place];
    return {of["peak_bytes"].number(), of["node_bytes"].number(), of["node_capacity_bytes"].number(),
            of.has("process_bytes") ? of["process_bytes"].number() : 0};
  };
  r.host_memory = shared("host");
  r.storage = shared("storage");
  r.memory_fits = fits_everywhere(r);
  // A class is identified by its first stage; if several have the same one, the first of them.
  const auto place_of = [&r](std::int64_t stage) {
    const auto at =
        std::find_if(r.stages.begin(), r.stages.end(), [&](const StageReport& s) { return s.stage == stage; });
    return at == r.stages.end() ? 0 : at - r.stages.begin();
  };
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const Member s = stages[i];
    StageReport stage;
    stage.stage = s["stage"].integer();
    stage.stages = s["stages"].integer();
    stage.busy_seconds = s["busy_seconds"].number();
    stage.in_flight_micro_batches = s["in_flight_micro_batches"].number();
    stage.time = time_of(s["time"]);
    stage.memory = memory_of(s["memory"]);
    r.stages.push_back(std::move(stage));
  }
  if (json.has("bounding_stage")) r.bounding_stage = place_of(json["bounding_stage"].integer());
  if (memory.has("stage")) r.memory_stage = place_of(memory["stage"].integer());
  if (json.has("expected_step_seconds")) {
    const Member e = json["expected_step_seconds"];
    r.expected = ExpectedStep{.low_seconds = e["low"].number(),
                              .high_seconds = e["high"].number(),
                              .comparable = e["comparable"].text(),
                              .points = e["points"].integer(),
                              .sources = e["sources"].integer()};
  }
  if (json.has("routing")) {
    const Member routing = json["routing"];
    r.routing = RoutingReport{.busiest_rank = routing["busiest_rank_over_mean"].number(),
                              .busiest_expert = routing["busiest_expert_over_mean"].number(),
                              .mean_busiest_rank = routing["mean_busiest_rank_over_mean"].number(),
                              .dropped_share = routing["dropped_share"].number()};
  }
  if (json.has("documents")) {
    const Member documents = json["documents"];
    r.documents = DocumentsReport{.documents = documents["documents_per_sequence"].number(),
                                  .longest = documents["longest_document"].integer(),
                                  .padded_share = documents["padded_share"].number(),
                                  .attention_share = documents["attention_share"].number(),
                                  .busiest_replica = documents["busiest_replica_over_mean"].number(),
                                  .busiest_micro_batch = documents["busiest_micro_batch_over_mean"].number()};
  }
  if (!json.has("ops")) return r;
  const Member ops = json["ops"];
  for (std::size_t i = 0; i < ops.size(); ++i) {
    OpReport op;
    op.name = ops[i]["name"].text();
    op.stream = stream_of(ops[i]["stream"]);
    op.seconds = ops[i]["seconds"].number();
    op.times_per_step = ops[i]["times_per_step"].number();
    op.flops = ops[i]["flops"].number();
    op.bytes = ops[i]["bytes"].number();
    op.bound = ops[i]["bound"].text();
    r.ops.push_back(std::move(op));
  }
  return r;
}

}  // namespace orrery
