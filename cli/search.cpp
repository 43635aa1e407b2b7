// orrery search: the best plans for a model on a cluster.
#include "sim/search/search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "cli/commands.h"
#include "cli/engine_options.h"
#include "cli/inputs.h"
#include "cli/offers.h"
#include "cli/output.h"
#include "cli/scenario_argument.h"
#include "cli/title.h"
#include "sim/base/json_reader.h"
#include "sim/report/format.h"
#include "sim/report/memory_verdict.h"
#include "sim/report/terms.h"
#include "sim/search/network.h"
#include "sim/search/plan_field.h"
#include "sim/search/remedies.h"
#include "sim/simulation/simulation.h"

namespace orrery {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

struct SearchArguments {
  std::string scenario;
  std::vector<std::string> sets, fixed, over, calibrations;
  std::string global_batch, most_memory, json, csv, best, label;
  std::int64_t top = 10, threads = 0;
  double front = 1.1, network_within = 0;
  bool all = false, exhaustive = false, safe = false, network_given = false;
  EngineArguments engine;
};

constexpr const char* kSearchExamples = R"(Examples:
  orrery search llama-3-70b-512-h100                             the ten fastest plans, and the front of time and memory
  orrery search s.json --set cluster.nodes=128 --fix plan.tensor_parallel=8
  orrery search s.json --over plan.zero_stage=1,3 --over plan.optimizer_offload
  orrery search s.json --max-memory 64G --safe                   predicted peaks fit with their margin
  orrery search s.json --global-batch 256..4096                  the most tokens a second over several batches
  orrery search s.json --best plan.json                          the fastest as a scenario, for simulate and run
  orrery search s.json --network-within 5                        the slowest network that costs 5 % at most
  orrery search s.json --engine des                              the fastest once more, with contention

Exit codes: 0 done; 1 no plan fits (the answer says why, and what would fit); 2 the input cannot be used.)";

// "plan.tensor_parallel" and "tensor_parallel" are the field.
std::string field_named(const std::string& text) {
  constexpr std::string_view kPlan = "plan.";
  return text.starts_with(kPlan) ? text.substr(kPlan.size()) : text;
}

Json value_of(const std::string& text) {
  const Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return value.is_discarded() ? Json(text) : value;
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(at, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

AxisRequest request_of(const std::string& text) {
  const std::size_t equals = text.find('=');
  AxisRequest request{field_named(text.substr(0, equals)), {}};
  if (equals == std::string::npos) return request;
  const std::string values = text.substr(equals + 1);
  if (const Json list = value_of(values); list.is_array()) {
    for (const Json& value : list) request.values.push_back(value);
  } else {
    for (const std::string& value : split(values, ',')) request.values.push_back(value_of(value));
  }
  return request;
}

// "256..4096": doubling from the one to the other; "256,384": these.
std::vector<std::int64_t> batches_of(const std::string& text) {
  const auto number = [&](const std::string& part) {
    const Json value = value_of(part);
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
    for (const std::string& part : split(text, ',')) sizes.push_back(number(part));
  }
  return sizes;
}

double bytes_of_text(const std::string& text) {
  std::size_t end = 0;
  double bytes = 0;
  try {
    bytes = std::stod(text, &end);
  } catch (const std::exception&) {
    end = 0;
  }
  constexpr std::string_view kUnits = "KMGT";
  std::string unit = text.substr(end);
  if (unit.ends_with("iB")) unit.resize(unit.size() - 2);
  if (unit.ends_with("B")) unit.pop_back();
  const std::size_t power = unit.empty() ? 0 : kUnits.find(unit);
  if (end == 0 || unit.size() > 1 || power == std::string_view::npos || !(bytes > 0))
    throw InputError({"--max-memory", ""}, describe(Json(text)), "bytes of a device: 64G, 70.5GiB");
  for (std::size_t i = 0; !unit.empty() && i <= power; ++i) bytes *= 1024;
  return bytes;
}

// A plan of the answer, evaluated with all that a report has.
struct Shown {
  FoundPlan found;
  Scenario scenario;
  Report report;
  std::optional<double> des_seconds;
};

struct Answer {
  Space space;
  SearchResult result;
  std::vector<Shown> best, front;
  std::optional<NetworkNeed> network;
  std::vector<Remedy> remedies;
  std::optional<Shown> leanest;
  double seconds = 0;
};

// The term that costs most of those that a faster plan could have less of.
std::string loses_by(const Report& report) {
  const TimeBreakdown& time = report.stages[static_cast<std::size_t>(report.bounding_stage)].time;
  Term most;
  for (const Term& term : terms_of(time))
    if (term.name != "matmul" && term.name != "attention" && term.seconds > most.seconds) most = term;
  return most.label.empty() ? "" : fmt::format("{} {}", most.label, percent_text(most.seconds / report.step_seconds));
}

std::string text_of(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  return value.dump();
}

OrderedJson chosen_value(const Space::Axis& axis, const Scenario& scenario) {
  if (axis.field == "global_batch_size") return scenario.workload.global_batch_size;
  return field_of(scenario.plan, axis.field);
}

// Axes of which these plans have several values.
std::vector<const Space::Axis*> differing(const Space& space, const std::vector<Shown>& plans) {
  std::vector<const Space::Axis*> axes;
  for (const Space::Axis& axis : space.axes()) {
    const OrderedJson first = chosen_value(axis, plans.front().scenario);
    if (std::any_of(plans.begin(), plans.end(),
                    [&](const Shown& plan) { return chosen_value(axis, plan.scenario) != first; }))
      axes.push_back(&axis);
  }
  return axes;
}

std::string plans_table(const Space& space, const std::vector<Shown>& plans, bool des) {
  const std::vector<const Space::Axis*> axes = differing(space, plans);
  std::vector<Column> columns{{""}};
  for (const Space::Axis* axis : axes) columns.push_back({axis->label});
  columns.insert(columns.end(), {{"dp"}, {"micro-batches"}, {"step"}});
  if (des) columns.push_back({"by events"});
  columns.insert(columns.end(),
                 {{"tokens/s/device"}, {"MFU"}, {"memory"}, {"up to"}, {"", false}, {"loses most by", false}});
  std::vector<std::vector<std::string>> rows;
  for (const Shown& plan : plans) {
    const Report& r = plan.report;
    std::vector<std::string> row{std::to_string(rows.size() + 1)};
    for (const Space::Axis* axis : axes) row.push_back(text_of(chosen_value(*axis, plan.scenario)));
    row.push_back(std::to_string(data_parallel_degree(plan.scenario)));
    row.push_back(std::to_string(micro_batches(plan.scenario)));
    row.push_back(seconds_text(r.step_seconds));
    if (des) row.push_back(plan.des_seconds ? seconds_text(*plan.des_seconds) : "-");
    row.push_back(rate_text(r.tokens_per_second_per_device));
    row.push_back(percent_text(r.mfu));
    row.push_back(bytes_text(r.memory_peak_bytes));
    row.push_back(bytes_text(kPeakHigh * r.memory_peak_bytes));
    row.emplace_back(name_of(memory_verdict(r)));
    row.push_back(loses_by(r));
    rows.push_back(std::move(row));
  }
  std::string text = grid(columns, rows);
  std::string alike;
  for (const Space::Axis& axis : space.axes()) {
    if (std::find(axes.begin(), axes.end(), &axis) != axes.end()) continue;
    if (axis.field == "data_parallel") continue;
    alike += fmt::format("{}{} {}", alike.empty() ? "" : ", ", axis.field,
                         text_of(chosen_value(axis, plans.front().scenario)));
  }
  if (!alike.empty()) text += fmt::format("  all: {}\n", alike);
  return text;
}

std::string counts_text(const Answer& a) {
  const SearchResult& r = a.result;
  std::string text = fmt::format("{} plans: {} evaluated, {} of them fit", r.considered, r.evaluated, r.feasible);
  if (r.too_slow > 0) text += fmt::format("; {} proven too slow", r.too_slow);
  if (r.too_large > 0) text += fmt::format("; {} proven too large", r.too_large);
  if (r.refused > 0) text += fmt::format("; {} cannot be laid out", r.refused);
  text += fmt::format("\n{}, {} plans a second\n", seconds_text(a.seconds),
                      rate_text(static_cast<double>(r.considered) / a.seconds));
  if (r.bound_slack > 0)
    text += fmt::format("A plan lay below its bound: bounds were lowered by {}\n", percent_text(r.bound_slack));
  return text;
}

std::string plan_text(const Space& space, const Scenario& scenario) {
  std::string text;
  for (const Space::Axis& axis : space.axes()) {
    if (axis.field == "data_parallel") continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", axis.field, text_of(chosen_value(axis, scenario)));
  }
  return text;
}

std::string nothing_text(const Answer& a, double most_memory) {
  std::string text;
  if (a.leanest) {
    text += fmt::format("No plan fits. The leanest takes {} of {} on the fullest device:\n  {}\n",
                        bytes_text(a.leanest->report.memory_peak_bytes), bytes_text(most_memory),
                        plan_text(a.space, a.leanest->scenario));
  } else {
    text += "No plan can be laid out. Most often because of\n";
    std::vector<std::pair<std::string, std::uint64_t>> reasons(a.result.refusals.begin(), a.result.refusals.end());
    std::stable_sort(reasons.begin(), reasons.end(), [](const auto& x, const auto& y) { return x.second > y.second; });
    constexpr std::size_t kMostReasons = 5;
    if (reasons.size() > kMostReasons) reasons.resize(kMostReasons);
    for (const auto& [why, times] : reasons) text += fmt::format("  {} ({} plans)\n", why, times);
    if (reasons.empty()) text += "  no degrees that divide the devices and the batch\n";
  }
  if (!a.remedies.empty()) text += "What fits:\n";
  for (const Remedy& remedy : a.remedies)
    text += fmt::format("  with {}: {} a step, {}\n", remedy.what, seconds_text(remedy.plan.step_seconds),
                        bytes_text(remedy.plan.memory_peak_bytes));
  if (a.leanest)
    text +=
        fmt::format("  with {} of memory a device, {} to be safe\n", bytes_text(a.leanest->report.memory_peak_bytes),
                    bytes_text(kPeakHigh * a.leanest->report.memory_peak_bytes));
  return text;
}

std::string network_text(const NetworkNeed& need) {
  const double gigabits = 8e-9;
  if (!need.any)
    return fmt::format("\nNetwork: no rate costs the fastest plan {} of its step\n", percent_text(need.allowed));
  return fmt::format(
      "\nNetwork: the fastest plan takes at most {} longer with {:.4g} Gbit/s a NIC, {} of what there is\n",
      percent_text(need.allowed), gigabits * need.bytes_per_second,
      percent_text(need.bytes_per_second / need.nic_bytes_per_second));
}

// The document with the plan's values in place of its own.
Json document_with(const Json& document, const ScenarioSource& source, const Space& space, const Scenario& scenario) {
  Json with = document;
  for (const Space::Axis& axis : space.axes()) {
    const std::string part = axis.field == "global_batch_size" ? "workload" : "plan";
    apply_set(with, fmt::format("{}.{}={}", part, axis.field, chosen_value(axis, scenario).dump()), source.file);
  }
  return with;
}

OrderedJson plan_json(const Answer& a, const Shown& shown) {
  OrderedJson plan;
  for (const Space::Axis& axis : a.space.axes())
    if (axis.field != "global_batch_size") plan[axis.field] = chosen_value(axis, shown.scenario);
  plan["data_parallel"] = data_parallel_degree(shown.scenario);
  const Report& r = shown.report;
  OrderedJson json{{"plan", std::move(plan)},
                   {"global_batch_size", shown.scenario.workload.global_batch_size},
                   {"micro_batches", micro_batches(shown.scenario)},
                   {"step_seconds", r.step_seconds}};
  if (shown.des_seconds) json["des_step_seconds"] = *shown.des_seconds;
  json["tokens_per_second_per_device"] = r.tokens_per_second_per_device;
  json["mfu"] = r.mfu;
  json["memory"] = {{"peak_bytes", r.memory_peak_bytes},
                    {"upper_bytes", kPeakHigh * r.memory_peak_bytes},
                    {"capacity_bytes", r.memory_capacity_bytes},
                    {"fits", r.memory_fits},
                    {"verdict", std::string(name_of(memory_verdict(r)))}};
  json["loses_most_by"] = loses_by(r);
  return json;
}

OrderedJson answer_json(const Answer& a, const SearchArguments& arguments, const Json& document,
                        const ScenarioSource& source) {
  OrderedJson json;
  if (!arguments.label.empty()) json["label"] = arguments.label;
  json["scenario"] = source.file;
  json["set"] = arguments.sets;
  OrderedJson searched = OrderedJson::array();
  for (const Space::Axis& axis : a.space.axes()) searched.push_back(axis.field);
  json["searched"] = std::move(searched);
  const SearchResult& r = a.result;
  json.update({{"considered", r.considered},
               {"evaluated", r.evaluated},
               {"too_slow", r.too_slow},
               {"too_large", r.too_large},
               {"refused", r.refused},
               {"feasible", r.feasible},
               {"bound_slack", r.bound_slack},
               {"seconds", a.seconds}});
  const auto list = [&](const std::vector<Shown>& plans) {
    OrderedJson all = OrderedJson::array();
    for (const Shown& plan : plans) all.push_back(plan_json(a, plan));
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
  json["inputs"] = inputs_json(document, source, arguments.calibrations);
  return json;
}

std::string answer_csv(const Answer& a) {
  std::string text = "list,place";
  for (const Space::Axis& axis : a.space.axes())
    if (axis.field != "data_parallel") text += ',' + axis.field;
  text +=
      ",data_parallel,micro_batches,step_seconds,des_step_seconds,tokens_per_second_per_device,mfu,memory_peak_bytes,"
      "memory_upper_bytes,memory_fits,loses_most_by\n";
  const auto add = [&](const char* list, const std::vector<Shown>& plans) {
    for (std::size_t i = 0; i < plans.size(); ++i) {
      const Shown& plan = plans[i];
      text += fmt::format("{},{}", list, i + 1);
      for (const Space::Axis& axis : a.space.axes()) {
        if (axis.field == "data_parallel") continue;
        const OrderedJson value = chosen_value(axis, plan.scenario);
        text += ',' + csv_text(value.is_string() ? value.get<std::string>() : value.dump());
      }
      const Report& r = plan.report;
      text += fmt::format(
          ",{},{},{},{},{},{},{},{},{},{}\n", data_parallel_degree(plan.scenario), micro_batches(plan.scenario),
          r.step_seconds, plan.des_seconds ? fmt::format("{}", *plan.des_seconds) : "", r.tokens_per_second_per_device,
          r.mfu, r.memory_peak_bytes, kPeakHigh * r.memory_peak_bytes, r.memory_fits, csv_text(loses_by(r)));
    }
  };
  add("fastest", a.best);
  add("front", a.front);
  return text;
}

class ShowProgress {
 public:
  void operator()(const SearchProgress& progress) {
    const auto now = Clock::now();
    if (!line_.on_terminal() || now < next_) return;
    next_ = now + std::chrono::milliseconds(200);
    const double elapsed = std::chrono::duration<double>(now - start_).count();
    const double part = static_cast<double>(progress.groups) / static_cast<double>(progress.all_groups);
    line_.show(fmt::format("{} plans, {} a second, {} to go at most", progress.considered,
                           rate_text(static_cast<double>(progress.considered) / elapsed),
                           seconds_text(elapsed / part - elapsed)));
  }

 private:
  using Clock = std::chrono::steady_clock;
  ProgressLine line_;
  Clock::time_point start_ = Clock::now(), next_ = start_ + std::chrono::milliseconds(500);
};

SpaceOptions space_options(const SearchArguments& arguments) {
  SpaceOptions options;
  options.all = arguments.all;
  // What is set is meant to stay.
  for (const std::string& set : arguments.sets)
    if (set.starts_with("plan.") && set.find_first_of(".=", 5) != std::string::npos)
      options.fixed.push_back(field_named(set.substr(0, set.find_first_of(".=", 5))));
  for (const std::string& fixed : arguments.fixed)
    options.fixed.push_back(field_named(fixed.substr(0, fixed.find('='))));
  std::sort(options.fixed.begin(), options.fixed.end());
  options.fixed.erase(std::unique(options.fixed.begin(), options.fixed.end()), options.fixed.end());
  for (const std::string& over : arguments.over) options.over.push_back(request_of(over));
  if (!arguments.global_batch.empty()) options.global_batch_sizes = batches_of(arguments.global_batch);
  return options;
}

Answer answer(const Scenario& base, const SearchArguments& arguments, double most_memory) {
  const SpaceOptions fields = space_options(arguments);
  const UserCalibration user = read_user_calibration(arguments.calibrations);
  SearchOptions options{.top = static_cast<std::size_t>(arguments.top),
                        .front = arguments.front,
                        .exhaustive = arguments.exhaustive,
                        .most_memory_bytes = most_memory,
                        .memory_margin = arguments.safe ? kPeakHigh : 1,
                        .threads = arguments.threads > 0
                                       ? static_cast<int>(arguments.threads)
                                       : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()))};
  Answer a{Space(base, fields), {}, {}, {}, {}, {}, {}, 0};
  {
    auto progress = std::make_shared<ShowProgress>();
    options.progress = [progress](const SearchProgress& p) { (*progress)(p); };
    const auto start = std::chrono::steady_clock::now();
    a.result = search(a.space, options, user);
    a.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    options.progress = nullptr;
  }
  Simulator simulator(user);
  const auto shown = [&](const FoundPlan& plan) {
    Simulation simulation = simulator.evaluate(a.space.scenario(plan.values), {});
    return Shown{plan, std::move(simulation.scenario), std::move(simulation.report), {}};
  };
  for (const FoundPlan& plan : a.result.best) a.best.push_back(shown(plan));
  for (const FoundPlan& plan : a.result.front) a.front.push_back(shown(plan));
  if (a.result.leanest) a.leanest = shown(*a.result.leanest);
  if (a.best.empty()) {
    a.remedies = remedies(base, fields, options, user);
    return a;
  }
  if (arguments.engine.engine == "des") {
    for (Shown& plan : a.best)
      plan.des_seconds = simulator.evaluate(plan.scenario, arguments.engine.options()).report.step_seconds;
    std::stable_sort(a.best.begin(), a.best.end(), [](const Shown& x, const Shown& y) {
      return *x.des_seconds / static_cast<double>(x.scenario.workload.global_batch_size) <
             *y.des_seconds / static_cast<double>(y.scenario.workload.global_batch_size);
    });
  }
  if (arguments.network_given)
    a.network = network_need(a.best.front().scenario, arguments.network_within / kPercent, user);
  return a;
}

void search_command(const SearchArguments& arguments) {
  arguments.engine.become_program_with_engine();
  check_outputs({arguments.json, arguments.csv, arguments.best});
  std::vector<std::string> sets = arguments.sets;
  for (const std::string& fixed : arguments.fixed)
    if (fixed.find('=') != std::string::npos) sets.push_back("plan." + field_named(fixed));
  ScenarioSource source;
  const Json document = scenario_argument(arguments.scenario, sets, source);
  if (has_jobs(document))
    throw InputError({source.file, "/jobs"}, "jobs that share a cluster", "a scenario of one job");
  const Scenario base = read_scenario(document, source);
  const double most_memory =
      arguments.most_memory.empty() ? base.cluster.device.memory_bytes : bytes_of_text(arguments.most_memory);
  static_cast<void>(arguments.engine.options());  // what is wrong with them is said before the search
  std::optional<Answer> found;
  try {
    found = answer(base, arguments, most_memory);
  } catch (const InputError& error) {
    throw source.blame(error);
  }
  const Answer& a = *found;

  Outputs outputs;
  outputs.add_wanted(arguments.json, [&] { return answer_json(a, arguments, document, source).dump(2) + "\n"; });
  outputs.add_wanted(arguments.csv, [&] { return answer_csv(a); });
  if (!arguments.best.empty() && !a.best.empty())
    outputs.add(arguments.best,
                document_with(written_out(document, source), source, a.space, a.best.front().scenario).dump(2) + "\n");
  if (!outputs.on_standard_output()) {
    Scenario without_plan = base;  // which may be none that can be laid out
    without_plan.plan = {};
    std::string text = title_of(without_plan).front() + "\n" + counts_text(a) + "\n";
    if (a.best.empty()) {
      text += nothing_text(a, most_memory);
    } else {
      const bool des = arguments.engine.engine == "des";
      text += fmt::format("{}\n", des ? "The fastest in closed form, in the order of discrete events" : "The fastest");
      text += plans_table(a.space, a.best, des);
      if (a.front.size() > 1)
        text += fmt::format("\nLess memory for more time, up to {} times the fastest\n{}", arguments.front,
                            plans_table(a.space, a.front, false));
      if (a.network) text += network_text(*a.network);
    }
    outputs.add("-", text);
  }
  outputs.commit();
  if (a.best.empty()) throw Exit{1};
}

}  // namespace

void add_search(Command app) {
  auto arguments = std::make_shared<SearchArguments>();
  const Command command = app.add_subcommand("search", "Which plans are the fastest that fit, and what each loses by");
  command.footer(kSearchExamples);
  offer_scenarios(command
                      .add_option("SCENARIO", arguments->scenario,
                                  "Model, cluster and workload, and the plan's fields that are not searched: a bundled "
                                  "scenario's name, a JSON file, or - for standard input")
                      .required());
  const auto several = [&](const char* name, std::vector<std::string>& values, const char* what, const char* type) {
    return command.add_option(name, values, what).one_value_each().type_name(type);
  };
  offer_fields(
      several("--set", arguments->sets, "Override a field; one of the plan is then not searched", "KEY=VALUE"));
  offer_fields(several("--fix", arguments->fixed, "Do not search this field of the plan", "KEY[=VALUE]"));
  offer_fields(several("--over", arguments->over,
                       "Search this field of the plan: over these values, or over those that its strategy declares",
                       "KEY[=VALUE,VALUE]"));
  command.add_flag("--all", arguments->all, "Search all fields that strategies declare, not only the usual ones");
  command
      .add_option("--global-batch", arguments->global_batch,
                  "Also over these batches, doubling from LEAST to MOST; the fastest is then by time a sequence")
      .type_name("LEAST..MOST");
  command.add_option("--max-memory", arguments->most_memory, "Of a device, in place of its capacity: 64G")
      .type_name("SIZE");
  command.add_flag("--safe", arguments->safe, "Predicted peaks must fit with the upper end of their interval");
  command.add_option("--top", arguments->top, "How many plans").between(1, 1000).type_name("N").capture_default();
  command
      .add_option("--front", arguments->front,
                  "Trade time for memory up to so many times the fastest plan's time; larger takes longer")
      .within(1, 1000)
      .type_name("TIMES")
      .capture_default();
  command
      .add_option("--network-within", arguments->network_within,
                  "The slowest network with which the fastest plan takes at most so many per cent longer")
      .within(0.1, 1000)
      .type_name("PERCENT")
      .on_value([arguments](const std::string&) { arguments->network_given = true; });
  command.add_flag("--exhaustive", arguments->exhaustive, "Evaluate every plan, also those proven no answer");
  command.add_option("--threads", arguments->threads, "0: as many as the machine has")
      .between(0, 4096)
      .type_name("N")
      .capture_default();
  const auto file = [&](const char* name, std::string& path, const char* text) {
    return command.add_option(name, path, text).type_name("FILE");
  };
  file("--json", arguments->json, "Write the answer as JSON; - for standard output");
  file("--csv", arguments->csv, "Write the plans as CSV, a row each; - for standard output");
  file("--best", arguments->best, "Write the fastest plan as a scenario that simulate and run take");
  command.add_option("--label", arguments->label, "What the result is called in JSON").type_name("TEXT");
  command
      .add_option("--calibration", arguments->calibrations,
                  "What `orrery calibrate` has measured, in place of the bundled calibration")
      .one_value_each()
      .type_name("FILE");
  arguments->engine.add_to(command, /*both=*/false);
  command.callback([arguments] { search_command(*arguments); });
}

}  // namespace orrery
