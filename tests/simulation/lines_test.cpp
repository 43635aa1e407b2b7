// Is a scenario that is a line of many what it is alone, whatever came before it?
#include <nlohmann/json.hpp>

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
      return text_of(simulator.evaluate_line(lines[i], {"line", {}}, true));
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

}  // namespace
}  // namespace orrery
