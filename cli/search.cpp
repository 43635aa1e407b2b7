// orrery search: finds the best plans for a model on a cluster.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "cli/commands.h"
#include "cli/offers.h"
#include "cli/output.h"
#include "sim/base/json_writer.h"
#include "sim/report/format.h"
#include "sim/report/memory_verdict.h"
#include "strategies/strategy.h"
#include "study/answers/search_answer.h"
#include "study/search/plan_field.h"

namespace orrery {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

struct SearchArguments {
  std::string scenario, json, csv, best, label;
  SearchRequest request;
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

std::string text_of(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  return json_text(value);
}

// The fields of a plan that are searched, but for these, with their values.
std::string fields_text(const Space& space, const Scenario& scenario, std::span<const Space::Axis* const> but = {}) {
  std::string text;
  for (const Space::Axis& axis : space.axes())
    if (axis.field != "data_parallel" && std::ranges::find(but, &axis) == but.end())
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", axis.field, text_of(chosen_value(axis, scenario)));
  return text;
}

// Returns the axes on which these plans differ.
std::vector<const Space::Axis*> differing(const Space& space, const std::vector<ShownPlan>& plans) {
  std::vector<const Space::Axis*> axes;
  for (const Space::Axis& axis : space.axes()) {
    const OrderedJson first = chosen_value(axis, plans.front().scenario);
    if (std::any_of(plans.begin(), plans.end(),
                    [&](const ShownPlan& plan) { return chosen_value(axis, plan.scenario) != first; }))
      axes.push_back(&axis);
  }
  return axes;
}

std::string plans_table(const Space& space, const std::vector<ShownPlan>& plans, bool des) {
  const std::vector<const Space::Axis*> axes = differing(space, plans);
  std::string columns;
  for (const Space::Axis* axis : axes) columns += fmt::format("|{}", axis->label);
  columns += fmt::format("|dp|micro-batches|step{}|tokens/s/device|MFU|memory|up to|<|<loses most by",
                         des ? "|by events" : "");
  std::vector<std::vector<std::string>> rows;
  for (const ShownPlan& plan : plans) {
    const Report& r = plan.report;
    std::vector<std::string> row{std::to_string(rows.size() + 1)};
    for (const Space::Axis* axis : axes) row.push_back(text_of(chosen_value(*axis, plan.scenario)));
    row.push_back(std::to_string(data_parallel_degree(plan.scenario)));
    row.push_back(std::to_string(micro_batches(plan.scenario)));
    row.push_back(seconds_text(r.step_seconds));
    const Report& asked = plan.asked();
    if (des) row.push_back(seconds_text(asked.step_seconds));
    row.push_back(rate_text(asked.tokens_per_second_per_device));
    row.push_back(percent_text(asked.mfu));
    row.push_back(bytes_text(r.memory_peak_bytes));
    row.push_back(bytes_text(kPeakHigh * r.memory_peak_bytes));
    // The columns before it show the memory on the device, not on the host.
    row.push_back(fmt::format("{}{}", name_of(memory_verdict(r)),
                              host_is_tight(r) && !device_is_tight(r) ? ": host memory" : ""));
    row.push_back(loses_by(asked));
    rows.push_back(std::move(row));
  }
  std::string text = grid(columns, rows);
  const std::string alike = fields_text(space, plans.front().scenario, axes);
  if (!alike.empty()) text += fmt::format("  all: {}\n", alike);
  if (!space.base().plan.layers.empty()) text += "  except in ranges of layers with plans of their own\n";
  return text;
}

std::string counts_text(const SearchAnswer& a) {
  const SearchResult& r = a.result;
  std::string text = fmt::format("{} plans: {} evaluated, {} of them fit", r.considered, r.evaluated, r.feasible);
  if (r.too_slow > 0) text += fmt::format("; {} proven too slow", r.too_slow);
  if (r.too_large > 0) text += fmt::format("; {} proven too large", r.too_large);
  if (r.refused > 0) text += fmt::format("; {} cannot be laid out", r.refused);
  text += fmt::format("\n{}, {} plans per second\n", seconds_text(a.seconds),
                      rate_text(static_cast<double>(r.considered) / a.seconds));
  if (r.bound_slack > 0)
    text += fmt::format("A plan was faster than its bound: bounds were lowered by {}\n", percent_text(r.bound_slack));
  return text;
}

std::string head_text(const SearchAnswer& a) {
  Scenario without_plan = a.base;  // its own plan need not fit
  without_plan.plan = {};
  return title_of(without_plan).front() + "\n" + counts_text(a) + "\n";
}

// The figures that are reported if memory is too small even for the leanest plan.
struct ShortMemory {
  double taken_bytes, capacity_bytes, safe_bytes;
  const char *where, *offered;
};

std::vector<ShortMemory> short_memories(const SearchAnswer& a, bool safe) {
  const Report& r = a.leanest->report;
  const SharedMemory &host = r.host_memory, &storage = r.storage;
  const double peak = r.memory_peak_bytes;
  std::vector<ShortMemory> memories;
  if (peak * (safe ? kPeakHigh : 1) > a.most_memory_bytes)
    memories.push_back({peak, a.most_memory_bytes, kPeakHigh * peak, "on the fullest device", "memory per device"});
  if (!host.fits() || (safe && host_is_tight(r)))
    memories.push_back({host.node_bytes, host.capacity_bytes, kHostHigh * host.node_bytes,
                        "of the host memory of the fullest node", "host memory per node"});
  if (!storage.fits())
    memories.push_back({storage.node_bytes, storage.capacity_bytes, storage.node_bytes,
                        "of the storage of the fullest node", "storage per node"});
  return memories;
}

std::string nothing_text(const SearchAnswer& a, bool safe) {
  std::string text;
  if (a.leanest) {
    std::string taken;
    for (const ShortMemory& memory : short_memories(a, safe))
      taken += fmt::format("{}{} of {} {}", taken.empty() ? "" : ", and ", bytes_text(memory.taken_bytes),
                           bytes_text(memory.capacity_bytes), memory.where);
    text += fmt::format("No plan fits{}. The leanest takes {}:\n  {}\n", safe ? " with its margin" : "", taken,
                        fields_text(a.space, a.leanest->scenario));
  } else {
    text += "No plan can be laid out. The most frequent reasons:\n";
    std::vector<std::pair<std::string, std::uint64_t>> reasons(a.result.refusals.begin(), a.result.refusals.end());
    std::stable_sort(reasons.begin(), reasons.end(), [](const auto& x, const auto& y) { return x.second > y.second; });
    constexpr std::size_t kMostReasons = 5;
    if (reasons.size() > kMostReasons) reasons.resize(kMostReasons);
    for (const auto& [why, times] : reasons) text += fmt::format("  {} ({} plans)\n", why, times);
    if (reasons.empty()) {
      const Workload& workload = a.base.workload;
      text += fmt::format("  no degrees that divide the {} devices and the batch{}", a.base.cluster.devices(),
                          workload.gives_batch ? fmt::format(" of {}", workload.global_batch_size)
                                               : ", which is not given (workload.global_batch_size)");
      if (a.larger_batch > 0)
        text += fmt::format("; the nearest batches that some divide: {}{}",
                            a.smaller_batch > 0 ? fmt::format("{} or ", a.smaller_batch) : "", a.larger_batch);
      text += '\n';
    }
  }
  return text;
}

std::string remedies_text(const SearchAnswer& a, bool safe) {
  std::string text;
  if (!a.remedies.empty() || a.leanest)
    text += fmt::format("What fits (searched in {}):\n", seconds_text(a.remedy_seconds));
  for (const Remedy& remedy : a.remedies)
    text += fmt::format("  with {}: {} per step, {}\n", remedy.what, seconds_text(remedy.plan.step_seconds),
                        bytes_text(remedy.plan.memory_peak_bytes));
  if (a.leanest) {
    std::string offered, to_be_safe;
    for (const ShortMemory& memory : short_memories(a, safe)) {
      const char* joint = offered.empty() ? "" : " and ";
      offered += fmt::format("{}{} of {}", joint, bytes_text(memory.taken_bytes), memory.offered);
      to_be_safe += joint + bytes_text(memory.safe_bytes);
    }
    text += fmt::format("  with {}, {} to be safe\n", offered, to_be_safe);
  }
  return text;
}

std::string network_text(const NetworkNeed& need) {
  const double gigabits = 8e-9;
  if (!need.any)
    return fmt::format("\nNetwork: no NIC rate slows the fastest plan by {}\n", percent_text(need.allowed));
  return fmt::format(
      "\nNetwork: the fastest plan takes at most {} longer with {:.4g} Gbit/s per NIC, {} of the present rate\n",
      percent_text(need.allowed), gigabits * need.bytes_per_second,
      percent_text(need.bytes_per_second / need.nic_bytes_per_second));
}

// The fastest plan as a scenario: the document with the plan's values in place of its own.
Json fastest_json(const SearchAnswer& a) {
  Json with = written_out(a.document, a.source);
  for (const Space::Axis& axis : a.space.axes()) {
    const std::string part = axis.field == "global_batch_size" ? "workload" : "plan";
    apply_set(with, fmt::format("{}.{}={}", part, axis.field, json_text(chosen_value(axis, a.best.front().scenario))),
              a.source.file);
  }
  // Writes fields that the plan leaves open but its stack must be given.
  const Scenario& fastest = a.best.front().scenario;
  Plan plan = fastest.plan;
  for (const Strategy& strategy : all_strategies())
    if (strategy.write_out != nullptr) strategy.write_out(fastest, plan);
  for (const std::string& field : plan_field_names())
    if (const OrderedJson value = field_of(plan, field); value != field_of(fastest.plan, field))
      apply_set(with, fmt::format("plan.{}={}", field, value.dump()), a.source.file);
  return with;
}

std::string answer_csv(const SearchAnswer& a) {
  std::string text = "list,place";
  for (const Space::Axis& axis : a.space.axes())
    if (axis.field != "data_parallel") text += ',' + axis.field;
  text +=
      ",data_parallel,micro_batches,step_seconds,des_step_seconds,tokens_per_second_per_device,mfu,memory_peak_bytes,"
      "memory_upper_bytes,memory_fits,loses_most_by\n";
  const auto add = [&](const char* list, const std::vector<ShownPlan>& plans) {
    for (std::size_t i = 0; i < plans.size(); ++i) {
      const ShownPlan& plan = plans[i];
      text += fmt::format("{},{}", list, i + 1);
      for (const Space::Axis& axis : a.space.axes()) {
        if (axis.field == "data_parallel") continue;
        const OrderedJson value = chosen_value(axis, plan.scenario);
        text += ',' + csv_text(value.is_string() ? value.get<std::string>() : json_text(value));
      }
      const Report &r = plan.report, &asked = plan.asked();
      text += fmt::format(
          ",{},{},{},{},{},{},{},{},{},{}\n", data_parallel_degree(plan.scenario), micro_batches(plan.scenario),
          r.step_seconds, plan.des ? fmt::format("{}", asked.step_seconds) : "", asked.tokens_per_second_per_device,
          asked.mfu, r.memory_peak_bytes, kPeakHigh * r.memory_peak_bytes, r.memory_fits, csv_text(loses_by(asked)));
    }
  };
  add("fastest", a.best);
  add("front", a.front);
  return text;
}

std::string found_text(const SearchAnswer& a, double front, bool des) {
  std::string text = head_text(a);
  const Report& first = a.best.front().report;
  if (host_is_tight(first))
    text += fmt::format("The first uses {} of the {} of host memory on its fullest node\n",
                        bytes_text(first.host_memory.node_bytes), bytes_text(first.host_memory.capacity_bytes));
  if (memory_verdict(first) == MemoryVerdict::tight)
    text += "The first is tight: it may not fit; --safe requires plans that surely fit\n\n";
  const std::string_view undisturbed = a.base.perturbations.empty() ? "" : " without the scenario's perturbations";
  text += des ? fmt::format(
                    "The fastest in closed form{}, ordered by their times in discrete events; figures after \"by "
                    "events\" are those of events, except memory\n",
                    undisturbed)
              : "The fastest\n";
  text += plans_table(a.space, a.best, des);
  if (a.front.size() > 1)
    text +=
        fmt::format("\nLess memory for more time, up to {} times the fastest plan's{}\n{}", front,
                    des ? fmt::format(", in closed form{}", undisturbed) : "", plans_table(a.space, a.front, false));
  if (a.network) text += network_text(*a.network);
  const std::vector<std::string>& notes = a.best.front().asked().notes;
  if (!notes.empty()) text += "\nNotes on the first plan\n";
  for (const std::string& note : notes) text += fmt::format("  - {}\n", note);
  return text;
}

void show(const SearchProgress& progress, ProgressLine& line) {
  if (!line.is_due()) return;
  const double elapsed = line.seconds();
  const double part = static_cast<double>(progress.groups) / static_cast<double>(progress.all_groups);
  line.show(fmt::format("{} plans, {} per second, at most {} to go", progress.considered,
                        rate_text(static_cast<double>(progress.considered) / elapsed),
                        seconds_text(elapsed / part - elapsed)));
}

void search_command(const SearchArguments& arguments) {
  arguments.engine.become_program_with_engine();
  check_outputs({arguments.json, arguments.csv, arguments.best});
  // Errors in the engine's options are reported before the search.
  const SimulationOptions engine = arguments.engine.options();
  SearchRequest request = arguments.request;
  if (engine.engine == Engine::des) request.engine_of_listed = engine;
  const SearchAnswer a = [&] {
    ProgressLine line;
    request.progress = [&line](const SearchProgress& progress) { show(progress, line); };
    // Reports at once that nothing fits, and what would fit when that is found.
    request.nothing_fits = [&](const SearchAnswer& answer) {
      if (arguments.json == "-" || arguments.csv == "-") return;
      line.clear();
      print(head_text(answer) + nothing_text(answer, request.safe));
    };
    SearchAnswer found = answer_search(arguments.scenario, request);
    request.progress = nullptr;
    request.nothing_fits = nullptr;
    return found;
  }();

  Outputs outputs;
  outputs.add_wanted(arguments.json, [&] { return json_text(search_json(a, request, arguments.label), 2) + "\n"; });
  outputs.add_wanted(arguments.csv, [&] { return answer_csv(a); });
  if (!arguments.best.empty() && !a.best.empty()) outputs.add(arguments.best, json_text(fastest_json(a), 2) + "\n");
  outputs.commit_with([&] {
    return a.best.empty() ? remedies_text(a, request.safe)  // the rest was reported already
                          : found_text(a, request.front, engine.engine == Engine::des);
  });
  if (a.best.empty()) throw Exit{1};
}

}  // namespace

void add_search(Command app) {
  const auto [command, arguments] = app.declare<SearchArguments>(
      "search", "Which plans are the fastest that fit, and what each loses by", kSearchExamples, search_command);
  offer_scenarios(command
                      .add_option("SCENARIO", arguments.scenario,
                                  "Model, cluster and workload, and the plan's fields that are not searched: a bundled "
                                  "scenario's name, a JSON file, or - for standard input")
                      .required());
  add_fields(command, "--set", arguments.request.sets, "Override a field; a field of the plan is then not searched");
  add_fields(command, "--fix", arguments.request.fixed, "Do not search this field of the plan", "KEY[=VALUE]");
  add_fields(command, "--over", arguments.request.over,
             "Search this field of the plan, over these values or over those that its strategy declares",
             "KEY[=VALUE,VALUE]");
  command.add_flag("--all", arguments.request.all,
                   "Search every field that strategies declare, not only the usual ones");
  command.add_option(
      "--global-batch", arguments.request.global_batch,
      "Also search these global batch sizes, doubling from LEAST to MOST; plans are then compared by time "
      "per sequence",
      "LEAST..MOST");
  command.add_option("--max-memory", arguments.request.most_memory, "Memory of a device, instead of its capacity: 64G",
                     "SIZE");
  add_fields(command, "--at-most", arguments.request.at_most,
             "Refuse plans with a larger value of this figure of the report, named as in JSON: staleness=24",
             "FIGURE=NUMBER");
  command.add_flag("--safe", arguments.request.safe, "Require the upper end of the predicted peak's interval to fit");
  command.add_option("--top", arguments.request.top, "Number of plans to show", "N").between(1, kMostPlansListed);
  command
      .add_option("--front", arguments.request.front,
                  "Trade time for memory up to this many times the fastest plan's time; larger values search longer",
                  "TIMES")
      .within(1, kMostFront);
  command
      .add_option("--network-within", arguments.request.network_within_percent,
                  "Find the slowest network with which the fastest plan takes at most this many per cent longer",
                  "PERCENT")
      .within(kLeastNetworkPercent, kMostNetworkPercent);
  command.add_flag("--exhaustive", arguments.request.exhaustive,
                   "Evaluate every plan, even those that a bound rules out");
  command.add_option("--threads", arguments.request.threads, "Number of threads; 0: the machine's", "N")
      .between(0, kMostSearchThreads);
  command.add_file("--json", arguments.json, "Write the answer as JSON; - for standard output");
  command.add_file("--csv", arguments.csv, "Write the plans as CSV, a row each; - for standard output");
  command.add_file("--best", arguments.best, "Write the fastest plan as a scenario for simulate and run");
  command.add_option("--label", arguments.label, "Name of the result in JSON", "TEXT");
  add_calibrations(command, arguments.request.calibrations);
  arguments.engine.add_to(command, /*both=*/false);
}

}  // namespace orrery
