// Is a scenario that is a line of many what it is alone, whatever came before it?
#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "sim/report/columns.h"
#include "sim/report/json.h"
#include "strategies/framework/options.h"
#include "study/simulation/simulation.h"
#include "tests/simulation/support.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

// Of every stack, and of what a report has only sometimes: an interval, routing, documents, shared memory, notes.
std::vector<std::string> unlike_lines() {
  const Json base{{"model", "llama-3.2-1b"},
                  {"cluster", {{"node", "dgx-h100"}, {"nodes", 2}}},
                  {"workload", {{"sequence_length", 2048}, {"global_batch_size", 32}}},
                  {"plan", {{"zero_stage", 1}}}};
  std::vector<std::string> lines;
  for (const std::string_view stack : framework::kStackNames) {
    Json of_stack = base;
    of_stack["plan"]["framework"] = stack;
    lines.push_back(of_stack.dump());
  }
  const auto add = [&](const std::vector<std::string>& sets) {
    Json other = base;
    for (const std::string& set : sets) apply_set(other, set, "");
    lines.push_back(other.dump());
  };
  add({"plan.pipeline_parallel=2", "plan.optimizer_offload=true", "cluster.node=dgx-a100"});
  add({"workload.documents=wikipedia", "plan.framework=orrery"});
  add({"workload.documents=wikipedia", "workload.documents_seed=2"});
  add({"cluster.node=dgx-h200", "plan.activation_offload=true", "plan.framework=orrery"});
  add({"cluster.device=L40S", "plan.precision=fp8"});
  add({"model=mixtral-8x7b", "workload.routing=zipf", "workload.routing_skew=1", "plan.expert_parallel=8",
       "plan.tensor_parallel=2", "plan.expert_tensor_parallel=1"});
  add({"plan.tensor_parallel=3"});  // an error
  return lines;
}

std::string text_of(const Report& report) {
  std::string text = report_json(report).dump();
  for (const ReportColumn& column : report_columns()) append_csv(column.value(report), text += ',');
  return text;
}

std::string by_itself(const std::string& line) {
  try {
    return text_of(Simulator().evaluate(Json::parse(line), {"line", {}}, {.ops = true}).report);
  } catch (const InputError& error) {
    return error.what();
  }
}

TEST(Lines, AreWhatTheyAreAloneBehindAnyOther) {
  const std::vector<std::string> lines = unlike_lines();
  std::vector<std::string> alone;
  for (const std::string& line : lines) alone.push_back(by_itself(line));
  Simulator simulator;
  const auto behind_others = [&](std::size_t i) -> std::string {
    try {
      return text_of(simulator.evaluate(simulator.variant(lines[i], {"line", {}}), true));
    } catch (const InputError& error) {
      return error.what();
    }
  };
  for (std::size_t i = 0; i < lines.size(); ++i)
    for (std::size_t j = 0; j < lines.size(); ++j) {
      EXPECT_EQ(behind_others(i), alone[i]) << lines[i];
      ASSERT_EQ(behind_others(j), alone[j]) << lines[j] << "\nbehind\n" << lines[i];
    }
}

// Other values of each field of a workload or plan, whether or not the scenario can be laid out with them.
class OtherValues final : public FieldVisitor {
 public:
  std::vector<std::pair<std::string, Json>> all;

 private:
  void visit(const VisitedField& field, AnyFieldPointer value) override {
    std::visit([&](const auto* its) { add_others(field, *its); }, value);
  }
  void add_others(const VisitedField& field, std::int64_t value) {
    for (const std::int64_t other : std::set<std::int64_t>{value > 0 ? 2 * value : 1, 8})
      if (other != value && other <= field.integers.most) all.emplace_back(field.name, other);
  }
  void add_others(const VisitedField& field, double value) {
    all.emplace_back(field.name, value > 0 ? value / 2 : 0.5);
    all.emplace_back(field.name, 1.25 * value + 1);
  }
  void add_others(const VisitedField& field, bool value) { all.emplace_back(field.name, !value); }
  void add_others(const VisitedField& field, const std::string& value) {
    if (std::string_view(field.name) != "documents") return;
    for (const char* other : {"code", "1024,1024;2048"})
      if (value != other) all.emplace_back(field.name, other);
  }
  void add_others(const VisitedField& field, const std::vector<std::int64_t>&) {
    if (field.names.empty()) all.emplace_back(field.name, Json{8, 8});
    for (const std::string_view one : field.names) all.emplace_back(field.name, Json{one});
  }
  void add_others(const VisitedField& field, std::size_t index) {
    for (std::size_t other = 1; other < std::min<std::size_t>(field.names.size(), 3); ++other)
      all.emplace_back(field.name, field.names[(index + other) % field.names.size()]);
  }
};

// Scenarios whose results are kept by something: documents, drawn routing, gates, balancers.
std::map<std::string, Json> kept_scenarios() {
  const Json cluster{{"node", "dgx-h100"}, {"nodes", 1}};
  const Json experts{{"expert_parallel", 8}, {"zero_stage", 1}};
  const Json zipf{{"sequence_length", 1024}, {"global_batch_size", 16}, {"routing", "zipf"},
                  {"routing_skew", 1},       {"routing_noise", 0.3},    {"routing_autocorrelation", 0.5}};
  std::map<std::string, Json> all;
  all["documents"] = {{"model", "llama-3.2-1b"},
                      {"cluster", cluster},
                      {"workload", {{"sequence_length", 2048}, {"global_batch_size", 16}, {"documents", "wikipedia"}}},
                      {"plan", {{"context_parallel", 2}, {"framework", "orrery"}}}};
  all["routing"] = {{"model", "mixtral-8x7b"}, {"cluster", cluster}, {"workload", zipf}, {"plan", experts}};
  all["gate"] = all["routing"];
  all["gate"]["model"] = "megablocks-moe-small";
  all["gate"]["workload"].update({{"routing_interval", 1000}, {"step", 300}});  // of the same routing as step 600
  all["gate"]["plan"].update({{"moe_gate", "dense_to_sparse"},
                              {"moe_gate_seed_steps", 100},
                              {"moe_gate_hard_step", 1000},
                              {"moe_gate_decay_steps", 640}});
  return all;
}

// A scenario in which one field differs.
struct Changed {
  std::string field;
  Json scenario;
};

// The scenario with one other value, field by field.
std::vector<Changed> with_other_values(const Json& scenario) {
  Scenario read = ScenarioReader().read(scenario, {"line", {}});
  std::vector<Changed> all;
  const auto add = [&](const char* part, auto& fields) {
    OtherValues others;
    fields.visit_fields(others);
    for (const auto& [name, value] : others.all) {
      all.push_back({std::string(part) + "." + name, scenario});
      all.back().scenario[part][name] = value;
    }
  };
  add("workload", read.workload);
  add("plan", read.plan);
  return all;
}

// The same for numbers of its cluster and model.
std::vector<Changed> on_other_devices(const Json& scenario) {
  std::vector<Changed> all;
  const Json whole = written_out(scenario, {"line", {}}), leaves = whole.flatten();
  for (const auto& [pointer, value] : leaves.items()) {
    if (!value.is_number() || !(pointer.starts_with("/cluster") || pointer.starts_with("/model"))) continue;
    all.push_back({pointer, whole});
    Json& other = all.back().scenario[Json::json_pointer(pointer)];
    other = value == 0                  ? Json(1)
            : value.is_number_integer() ? Json(2 * value.get<std::int64_t>())
                                        : Json(1.25 * value.get<double>());
  }
  return all;
}

// What is kept between predictions (drawn documents and routing, calibrations, engines, parts that were read) must be
// asked for by all that it follows from. Threads keep nothing of each other. Of a field one value that can be laid out
// is enough: a key that forgets the field forgets every value of it.
TEST(Lines, EveryFieldChangesALineAsItDoesAlone) {
  for (const auto& [name, scenario] : kept_scenarios()) {
    const std::string line = scenario.dump();
    Simulator simulator;
    std::size_t laid = 0;
    std::vector<Changed> others = with_other_values(scenario);
    if (name == "routing") std::ranges::move(on_other_devices(scenario), std::back_inserter(others));
    std::set<std::string> met;
    for (const auto& [field, other] : others) {
      if (met.contains(field)) continue;
      std::string alone, behind;
      std::jthread([&, &changed = other] { alone = by_itself(changed.dump()); }).join();
      simulator.evaluate(simulator.variant(line, {"line", {}}), true);
      try {
        behind = text_of(simulator.evaluate(simulator.variant(other.dump(), {"line", {}}), true));
        ++laid;
        met.insert(field);
      } catch (const InputError& error) {
        behind = error.what();
      }
      EXPECT_EQ(behind, alone) << name << ": " << other;
    }
    EXPECT_GT(laid, 50U) << name;
  }
}

// By which sweeps and trainings know their results again.
TEST(Lines, EveryFieldChangesTheDigest) {
  for (const auto& [name, scenario] : kept_scenarios()) {
    ScenarioReader reader;
    std::set<std::uint64_t> digests;
    std::vector<Changed> others = with_other_values(scenario);
    std::ranges::move(on_other_devices(scenario), std::back_inserter(others));
    others.push_back({"none", scenario});
    for (const auto& [field, other] : others) {
      const std::optional<ScenarioReader::Parts> read = reader.read_parts(other.dump(), {"line", {}});
      if (!read) continue;  // no cluster or model has that value
      EXPECT_EQ(read->digest, scenario_digest(written_out(other, {"line", {}}))) << other;
      EXPECT_TRUE(digests.insert(read->digest).second) << other;
    }
    EXPECT_GT(digests.size(), 150U) << name;
  }
}

}  // namespace
}  // namespace orrery
