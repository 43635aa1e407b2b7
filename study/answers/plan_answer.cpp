#include "study/answers/plan_answer.h"

#include "sim/base/json_reader.h"
#include "sim/base/threads.h"
#include "study/answers/inputs.h"
#include "study/capacity/answer.h"
#include "study/capacity/capacity_plan.h"
#include "study/search/plan_field.h"
#include "study/simulation/simulation.h"

namespace orrery {
namespace {

// Fields that a search leaves.
SpaceOptions left_fields(const std::vector<std::string>& fixed) {
  SpaceOptions fields;
  for (const std::string& given : fixed) fields.fixed.push_back(plan_field_named(given, "--fix"));
  return fields;
}

}  // namespace

PlanAnswer answer_plan(const ScenarioArgument& plan, const PlanRequest& request) {
  PlanAnswer a;
  if (plan.document == nullptr) {
    a.document = load_document(bundled_plans(), "plan", plan.name, request.sets, a.source);
  } else {
    a.document = scenario_argument(plan, request.sets, a.source);
  }
  const CapacityPlan read = read_capacity_plan(a.document, a.source);
  AnswerOptions options = request.options;
  options.held_by = request.worst ? HeldBy::worst : HeldBy::expectation;
  options.output = static_cast<PlanOutput>(index_named("--of", request.output, kPlanOutputNames));
  if (!request.search && !request.fixed.empty())
    throw InputError({"--fix", ""}, "no --search", "--search: without it every field of the plan stays");
  const UserCalibration user = read_user_calibration(request.calibrations);
  Simulator simulator(user);
  if (!request.search) {
    a.result = answer(read, options, simulator);
  } else {
    a.result = answer(read, options, simulator,
                      searched_plans(left_fields(request.fixed), hardware_threads(), user, request.searching));
  }
  return a;
}

nlohmann::ordered_json plan_answer_json(const PlanAnswer& a, const PlanRequest& request) {
  nlohmann::ordered_json json;
  json["plan"] = a.source.file;
  json["set"] = request.sets;
  json.update(answer_json(a.result));
  json["inputs"] = inputs_json("plan", a.document, request.calibrations);
  json["version"] = ORRERY_VERSION;
  return json;
}

}  // namespace orrery
