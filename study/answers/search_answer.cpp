#include "study/answers/search_answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "sim/base/json_reader.h"
#include "sim/base/threads.h"
#include "sim/base/words.h"
#include "sim/report/format.h"
#include "sim/report/memory_verdict.h"
#include "sim/report/terms.h"
#include "study/answers/inputs.h"
#include "study/search/plan_field.h"

namespace orrery {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

AxisRequest request_of(const std::string& text) {
  const std::size_t equals = text.find('=');
  AxisRequest request{plan_field_named(text.substr(0, equals), "--over"), {}};
  if (equals == std::string::npos) return request;
  const std::string values = text.substr(equals + 1);
  if (const Json list = json_or_text(values); list.is_array()) {
    for (const Json& value : list) request.values.push_back(value);
  } else {
    for (const std::string& value : list_of_text(values)) request.values.push_back(json_or_text(value));
  }
  return request;
}

// "256..4096": doubling from the one to the other; "256,384": these.
std::vector<std::int64_t> batches_of(const std::string& text) {
  const auto number = [&](const std::string& part) {
    const Json value = json_or_text(part);
    if (!value.is_number_integer() || value < 1 || value > std::int64_t{1} << 32)
      throw InputError({"--global-batch", ""}, describe(Json(part)), "sequences a step: 1024, 256,384 or 256..4096");
    return value.get<std::int64_t>();
  };
  std::vector<std::int64_t> sizes;
  if (const std::size_t dots = text.find(".."); dots != std::string::npos) {
    const std::int64_t last = number(text.substr(dots + 2));
    for (std::int64_t size = number(text.substr(0, dots)); size <= last; size *= 2) sizes.push_back(size);
    if (sizes.empty()) throw InputError({"--global-batch", ""}, describe(Json(text)), "the smaller batch first");
  } else {
    for (const std::string& part : list_of_text(text)) sizes.push_back(number(part));
  }
  return sizes;
}

double most_memory_of(const std::string& text) {
  const std::optional<double> bytes = bytes_of_text(text);
  if (!bytes) throw InputError({"--max-memory", ""}, describe(Json(text)), "bytes of a device: 64G, 70.5GiB");
  return *bytes;
}

FigureLimit limit_of(const std::string& text) {
  const std::size_t equals = text.find('=');
  const Json value = equals == std::string::npos ? Json() : json_or_text(text.substr(equals + 1));
  if (!value.is_number()) throw InputError({"--at-most", ""}, describe(Json(text)), "FIGURE=NUMBER");
  std::vector<std::string_view> keys;
  for (const FigureKind* kind : all_figure_kinds()) keys.emplace_back(kind->key);
  return {all_figure_kinds()[index_named("--at-most", text.substr(0, equals), keys)], value.get<double>()};
}

SpaceOptions space_options(const SearchRequest& request) {
  SpaceOptions options;
  options.all = request.all;
  // What is set is meant to stay.
  for (const std::string& set : request.sets)
    if (set.starts_with("plan.") && !set.starts_with("plan.layers") && set.find_first_of(".=", 5) != std::string::npos)
      options.fixed.push_back(plan_field_named(set.substr(0, set.find_first_of(".=", 5))));
  for (const std::string& fixed : request.fixed)
    options.fixed.push_back(plan_field_named(fixed.substr(0, fixed.find('=')), "--fix"));
  std::sort(options.fixed.begin(), options.fixed.end());
  options.fixed.erase(std::unique(options.fixed.begin(), options.fixed.end()), options.fixed.end());
  for (const std::string& over : request.over) options.over.push_back(request_of(over));
  if (!request.global_batch.empty()) options.global_batch_sizes = batches_of(request.global_batch);
  return options;
}

// What cannot be searched was asked for by --over, but for a workload that no plan mends; that a field is fixed is
// never wrong by itself.
Space space_of(const Scenario& base, const SpaceOptions& fields) {
  try {
    return Space(base, fields);
  } catch (const InputError& error) {
    if (error.where().pointer.starts_with("/workload")) throw;
    throw error.in_file("--over");
  }
}

void find_nearest_batches(SearchAnswer& a) {
  const auto axes = a.space.axes();
  const auto mesh = static_cast<std::size_t>(std::count_if(
      axes.begin(), axes.end(), [](const Space::Axis& axis) { return axis.chosen_with == ChosenWith::mesh; }));
  Scenario scenario = a.space.base();
  std::vector<std::int64_t> values;
  a.space.for_each(scenario, values, mesh, [&](const Scenario& chosen, const std::vector<std::int64_t>&) {
    const std::int64_t replicas = data_parallel_degree(chosen), batch = chosen.workload.global_batch_size;
    if (replicas == 0 || batch % replicas == 0) return;
    const std::int64_t below = batch / replicas * replicas;
    a.smaller_batch = std::max(a.smaller_batch, below);
    if (a.larger_batch == 0 || below + replicas < a.larger_batch) a.larger_batch = below + replicas;
  });
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// What the search finds, and reports of it.
void fill(SearchAnswer& a, const SpaceOptions& fields, const SearchRequest& request) {
  const UserCalibration user = read_user_calibration(request.calibrations);
  SearchOptions options{.top = static_cast<std::size_t>(request.top),
                        .front = request.front,
                        .exhaustive = request.exhaustive,
                        .most_memory_bytes = a.most_memory_bytes,
                        .memory_margin = request.safe ? kPeakHigh : 1,
                        .threads = request.threads > 0 ? static_cast<int>(request.threads) : hardware_threads(),
                        .progress = request.progress};
  for (const std::string& limit : request.at_most) options.limits.push_back(limit_of(limit));
  const auto start = std::chrono::steady_clock::now();
  a.result = search(a.space, options, user);
  a.seconds = seconds_since(start);
  Simulator simulator(user);
  const auto shown = [&](const FoundPlan& plan) {
    Simulation simulation = simulator.evaluate(a.space.scenario(plan.values), {});
    Report& report = simulation.report;
    report.memory_capacity_bytes = a.most_memory_bytes;
    report.memory_fits = fits_everywhere(report);
    return ShownPlan{plan, std::move(simulation.scenario), std::move(simulation.report)};
  };
  for (const FoundPlan& plan : a.result.best) a.best.push_back(shown(plan));
  for (const FoundPlan& plan : a.result.front) a.front.push_back(shown(plan));
  if (a.result.leanest) a.leanest = shown(*a.result.leanest);
  if (a.best.empty()) {
    if (a.result.considered == 0) find_nearest_batches(a);
    if (request.nothing_fits) request.nothing_fits(a);
    a.remedies =
        remedies(a.base, fields, options, user, a.result.considered > 0 && a.result.refused == a.result.considered);
    a.remedy_seconds = seconds_since(start) - a.seconds;
    return;
  }
  if (request.engine_of_listed) {
    for (ShownPlan& plan : a.best) plan.des = simulator.evaluate(plan.scenario, *request.engine_of_listed).report;
    std::stable_sort(a.best.begin(), a.best.end(), [](const ShownPlan& x, const ShownPlan& y) {
      return x.des->step_seconds / static_cast<double>(x.scenario.workload.global_batch_size) <
             y.des->step_seconds / static_cast<double>(y.scenario.workload.global_batch_size);
    });
  }
  if (request.network_within_percent)
    a.network = network_need(a.best.front().scenario, *request.network_within_percent / kPercent, user);
}

OrderedJson plan_json(const SearchAnswer& a, const ShownPlan& shown) {
  OrderedJson plan;
  for (const Space::Axis& axis : a.space.axes())
    if (axis.field != "global_batch_size") plan[axis.field] = chosen_value(axis, shown.scenario);
  plan["data_parallel"] = data_parallel_degree(shown.scenario);
  const Report& r = shown.report;
  OrderedJson json{{"plan", std::move(plan)},
                   {"global_batch_size", shown.scenario.workload.global_batch_size},
                   {"micro_batches", micro_batches(shown.scenario)},
                   {"step_seconds", r.step_seconds}};
  const Report& asked = shown.asked();
  if (shown.des) json["des_step_seconds"] = asked.step_seconds;
  json["tokens_per_second_per_device"] = asked.tokens_per_second_per_device;
  json["mfu"] = asked.mfu;
  json["memory"] = {{"peak_bytes", r.memory_peak_bytes},
                    {"upper_bytes", kPeakHigh * r.memory_peak_bytes},
                    {"capacity_bytes", r.memory_capacity_bytes},
                    {"fits", r.memory_fits},
                    {"verdict", std::string(name_of(memory_verdict(r)))}};
  if (const SharedMemory& host = r.host_memory; host.node_bytes > 0)
    json["memory"]["host"] = {{"node_bytes", host.node_bytes}, {"node_capacity_bytes", host.capacity_bytes}};
  json["loses_most_by"] = loses_by(asked);
  if (!asked.notes.empty()) json["notes"] = asked.notes;
  return json;
}

}  // namespace

// The term that costs most of those that a faster plan could have less of.
std::string loses_by(const Report& report) {
  const TimeBreakdown& time = report.bounding().time;
  const TimeTerm* most = nullptr;
  for (const TimeTerm& term : time_terms())
    if (term.name != "matmul" && term.name != "attention" && term.of(time) > (most ? most->of(time) : 0)) most = &term;
  return most ? fmt::format("{} {}", most->label, percent_text(most->of(time) / report.step_seconds)) : "";
}

OrderedJson chosen_value(const Space::Axis& axis, const Scenario& scenario) {
  if (axis.field == "global_batch_size") return scenario.workload.global_batch_size;
  return field_of(scenario.plan, axis.field);
}

SearchAnswer answer_search(const ScenarioArgument& scenario, const SearchRequest& request) {
  std::vector<std::string> sets = request.sets;
  for (const std::string& fixed : request.fixed)
    if (const std::size_t equals = fixed.find('='); equals != std::string::npos)
      sets.push_back("plan." + plan_field_named(fixed.substr(0, equals), "--fix") + fixed.substr(equals));
  ScenarioSource source;
  Json document = scenario_argument(scenario, sets, source);
  if (has_jobs(document))
    throw InputError({source.file, "/jobs"}, "jobs that share a cluster", "a scenario of one job");
  Scenario base = read_scenario(document, source);
  const double most_memory =
      request.most_memory.empty() ? base.cluster.device.memory_bytes : most_memory_of(request.most_memory);
  try {
    const SpaceOptions fields = space_options(request);
    Space space = space_of(base, fields);
    SearchAnswer a{.document = std::move(document),
                   .source = source,
                   .base = std::move(base),
                   .most_memory_bytes = most_memory,
                   .space = std::move(space)};
    fill(a, fields, request);
    return a;
  } catch (const InputError& error) {
    throw source.blame(error);
  }
}

OrderedJson search_json(const SearchAnswer& a, const SearchRequest& request, const std::string& label) {
  OrderedJson json;
  if (!label.empty()) json["label"] = label;
  json["scenario"] = a.source.file;
  json["set"] = request.sets;
  OrderedJson searched = OrderedJson::array();
  for (const Space::Axis& axis : a.space.axes()) searched.push_back(axis.field);
  json["searched"] = std::move(searched);
  if (!request.at_most.empty()) json["at_most"] = request.at_most;
  const SearchResult& r = a.result;
  json.update({{"considered", r.considered},
               {"evaluated", r.evaluated},
               {"too_slow", r.too_slow},
               {"too_large", r.too_large},
               {"refused", r.refused},
               {"feasible", r.feasible},
               {"bound_slack", r.bound_slack},
               {"seconds", a.seconds}});
  const auto list = [&](const std::vector<ShownPlan>& plans) {
    OrderedJson all = OrderedJson::array();
    for (const ShownPlan& plan : plans) all.push_back(plan_json(a, plan));
    return all;
  };
  json["plans"] = list(a.best);
  json["front"] = list(a.front);
  if (a.network) {
    json["network"] = {{"allowed", a.network->allowed},
                       {"nic_bytes_per_second", a.network->nic_bytes_per_second},
                       {"needed_bytes_per_second", nullptr}};
    if (a.network->any) json["network"]["needed_bytes_per_second"] = a.network->bytes_per_second;
  }
  if (a.best.empty()) {
    OrderedJson why;
    why["leanest"] = a.leanest ? plan_json(a, *a.leanest) : OrderedJson();
    why["refusals"] = a.result.refusals;
    OrderedJson what = OrderedJson::array();
    for (const Remedy& remedy : a.remedies)
      what.push_back({{"with", remedy.what},
                      {"step_seconds", remedy.plan.step_seconds},
                      {"memory_peak_bytes", remedy.plan.memory_peak_bytes}});
    why["what_fits"] = std::move(what);
    json["nothing_fits"] = std::move(why);
  }
  json["version"] = ORRERY_VERSION;
  json["inputs"] = inputs_json(a.document, a.source, request.calibrations);
  return json;
}

}  // namespace orrery
