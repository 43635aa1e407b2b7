// orrery plan: the time and cost of a whole training on each of several clusters, and which one to use.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ranges>

#include "cli/commands.h"
#include "cli/offers.h"
#include "cli/output.h"
#include "sim/base/json_writer.h"
#include "sim/report/format.h"
#include "study/answers/plan_answer.h"
#include "study/capacity/answer.h"
#include "study/capacity/published_runs.h"

namespace orrery {
namespace {

struct PlanArguments {
  std::string plan;
  PlanRequest request;
  std::string json, csv, svg;
  bool every_size = false, published = false;
};

constexpr const char* kPlanExamples = R"(Examples:
  orrery plan llama-3-70b-60-days                                a bundled plan (orrery list plans)
  orrery plan plan.json --set deadline_days=45                   one field changed
  orrery plan plan.json --search                                 the fastest plan that fits, on each cluster and size
  orrery plan plan.json --worst                                  deadline and budget hold at the slow end, too
  orrery plan plan.json --of wall_seconds --svg tornado.svg      what moves the time, as a picture
  orrery plan plan.json --every-size --csv sizes.csv             all that was tried
  orrery plan plan.json --seed 7 --histories 1000                other failures, more of them
  orrery plan --published                                        how near it comes to trainings of the past

Exit codes: 0 done; 1 nothing meets all constraints (the answer says what would let something in); 2 the input cannot be
used.)";

void published(const PlanArguments& arguments) {
  for (const auto& [option, given] : {std::pair("--csv", !arguments.csv.empty()),
                                      {"--svg", !arguments.svg.empty()},
                                      {"--set", !arguments.request.sets.empty()}})
    if (given) throw InputError({option, ""}, "--published as well", "one of the two");
  if (!arguments.plan.empty()) throw InputError({"--published", ""}, "a plan as well", "one of the two");
  Simulator simulator(read_user_calibration(arguments.request.calibrations));
  const std::vector<ReportedFigure> figures = predict_published_runs(simulator);
  Outputs outputs;
  outputs.add_wanted(arguments.json, [&] { return json_text(published_runs_json(figures), 2) + "\n"; });
  outputs.commit_with([&] { return published_runs_table(figures); });
}

// Lists the plans that were searched, for each cluster's best.
std::string plans_text(const CapacityAnswer& result) {
  std::string text = "\nPlans\n";
  std::size_t widest = 0;
  for (const CandidateCluster& cluster : result.plan.clusters) widest = std::max(widest, cluster.name.size());
  for (const std::optional<std::size_t> best : result.choice.best) {
    if (!best || !result.candidates[*best].scenario) continue;
    const SizedCandidate& sized = result.candidates[*best];
    text += fmt::format("  {}  {}\n", left(result.plan.clusters[sized.cluster].name, widest),
                        fmt::join(title_of(*sized.scenario) | std::views::drop(1), ", "));
  }
  return text;
}

void plan(PlanArguments& arguments) {
  if (arguments.published) return published(arguments);
  if (arguments.plan.empty()) throw UsageError("PLAN is required");
  const PlanAnswer answered = [&] {
    ProgressLine progress;
    arguments.request.searching = [&](const Scenario& scenario) {
      progress.show(
          fmt::format("searching plans for {} devices: {}", scenario.cluster.devices(), scenario.cluster.device.name));
    };
    return answer_plan(arguments.plan, arguments.request);
  }();
  const CapacityAnswer& result = answered.result;

  Outputs outputs;
  outputs.add_wanted(arguments.json,
                     [&] { return json_text(plan_answer_json(answered, arguments.request), 2) + "\n"; });
  outputs.add_wanted(arguments.csv, [&] { return answer_csv(result); });
  if (!arguments.svg.empty()) {
    if (!result.tornado)
      throw InputError({"--svg", ""}, "a plan without a candidate that fits, or with an answer of 0",
                       "an answer to draw");
    outputs.add(arguments.svg, answer_svg(result));
  }
  if (!outputs.on_standard_output())
    outputs.add("-", answer_text(result, arguments.every_size) + (arguments.request.search ? plans_text(result) : ""));
  outputs.commit();
  if (!result.choice.cheapest) throw Exit{1};
}

}  // namespace

void add_plan(Command app) {
  const auto [command, arguments] = app.declare<PlanArguments>(
      "plan", "Which cluster trains a model by a deadline and within a budget, for how much, failures included",
      kPlanExamples, plan);
  PlanRequest& request = arguments.request;
  command.add_option("PLAN", arguments.plan, "A plan's file, - for standard input, or a bundled plan")
      .offers_names({"plans"})
      .offers_files();
  command.add_flag("--published", arguments.published,
                   "Instead of a plan: published trainings, their predictions and the errors");
  command.add_several("--set", request.sets, "Override a field: candidates.0.devices=512", "KEY=VALUE");
  command.add_flag("--worst", request.worst,
                   "Compare deadline and budget with the slow end of the step's interval, not with the expected step");
  command.add_flag(
      "--search", request.search,
      "For each size of each candidate, search the fastest plan that surely fits, instead of its own plan");
  command.add_several("--fix", request.fixed, "--search: keep this field of the candidates' plans", "KEY");
  command.add_flag("--every-size", arguments.every_size,
                   "Print a row for each size of each candidate, not only for its best");
  command.add_option("--of", request.output, "Figure whose sensitivities are shown")
      .one_of(texts(kPlanOutputNames))
      .capture_default();
  command.add_option("--swing", request.options.swing, "Share by which inputs are lowered and raised for sensitivities")
      .within(kLeastSwing, kMostSwing);
  command.add_option("--against", request.options.against,
                     "Candidate whose price the others are compared with [the cheapest]", "NAME");
  command.add_option("--seed", request.options.histories.seed, "Seed of the first simulated history of failures");
  command.add_option("--histories", request.options.history_count, "Number of histories simulated for each candidate")
      .between(1, kMostHistories);
  command
      .add_option(
          "--shape", request.options.histories.shape,
          "Shape of the Weibull distribution of times between simulated failures; below 1 they come in clusters")
      .within(kLeastShape, kMostShape);
  command.add_file("--json", arguments.json, "Write all figures as JSON; - for standard output");
  command.add_file("--csv", arguments.csv, "Write a row for each size of each candidate; - for standard output");
  command.add_file("--svg", arguments.svg, "Draw the sensitivities as a tornado chart; - for standard output");
  add_calibrations(command, request.calibrations);
}

}  // namespace orrery
