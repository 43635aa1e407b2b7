// orrery validate: compares predictions with published measurements.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/offers.h"
#include "cli/output.h"
#include "sim/base/error.h"
#include "sim/base/json_reader.h"
#include "sim/base/json_writer.h"
#include "strategies/strategy.h"
#include "study/answers/arguments.h"
#include "study/validation/figures.h"
#include "study/validation/fit.h"
#include "study/validation/predicted_points.h"
#include "study/validation/tables.h"

namespace orrery {
namespace {

struct ValidateArguments {
  ValidationFilter filter;
  std::string json, csv, fit, markdown, plot, baseline, write_baseline;
  std::string seen = std::string(kSeenNames.front());
  bool points = false, figures = false;
};

constexpr const char* kPlot = "figures/accuracy.svg";  // relative to the folder of results/ACCURACY.md

constexpr const char* kValidateExamples = R"(Examples:
  orrery validate                                every published step, summed up by source
  orrery validate --source vtrain --points       a row a point
  orrery validate --gpu H100 --strategy zero-3 --json errors.json
  orrery validate --baseline results/accuracy.json   what has moved; exit 1 if a source is predicted worse
  orrery simulate vtrain-single-0017             one point's scenario, run again)";

// The left-out fits go to FILE_left_out.json beside FILE.json.
void fit(const std::string& path) {
  check_outputs({path});
  Outputs outputs;
  ProgressLine progress;
  const StepFit steps = fit_steps([&](std::size_t done, std::size_t total) {
    progress.show(fmt::format("fitting: {} of {}, leaving each source out", done, total));
  });
  outputs.add(path, steps.fitted);
  if (path != "-") {
    std::filesystem::path left_out = path;
    left_out.replace_filename(left_out.stem().string() + "_left_out" + left_out.extension().string());
    outputs.add(left_out.string(), steps.left_out);
  }
  outputs.commit();
}

void validate(const ValidateArguments& arguments) {
  const ValidationFilter& f = arguments.filter;
  const bool filtered = !f.source.empty() || !f.gpu.empty() || !f.strategy.empty();
  const bool usual_seen = arguments.seen == kSeenNames.front();
  const auto alone = [](bool holds, const char* option, const char* found, const char* expected) {
    if (holds) throw InputError({option, ""}, found, expected);
  };
  const std::pair<const char*, bool> of_all_points[] = {{"--markdown", !arguments.markdown.empty()},
                                                        {"--baseline", !arguments.baseline.empty()},
                                                        {"--write-baseline", !arguments.write_baseline.empty()},
                                                        {"--fit", !arguments.fit.empty()}};
  for (const auto& [name, given] : of_all_points)
    alone(given && filtered, name, "a part of the points (--source, --gpu, --strategy)", "all points");
  const bool shown = arguments.points || !arguments.json.empty() || !arguments.csv.empty() || !arguments.plot.empty() ||
                     !arguments.markdown.empty() || !arguments.baseline.empty() || !arguments.write_baseline.empty();
  alone(!arguments.fit.empty() && (shown || !usual_seen), "--fit", "other options as well",
        "no other option: the command only fits");
  for (const auto& [name, given] : of_all_points)
    alone(given && !usual_seen, name, "--seen as well",
          "the default: each source predicted by a calibration of all others");
  alone(arguments.figures && (filtered || shown || !arguments.fit.empty() || !usual_seen), "--figures",
        "other options as well", "no other option: these figures are not steps");
  alone(!arguments.baseline.empty() && arguments.points, "--baseline", "--points as well",
        "one of them: changes, or every point");
  if (!arguments.fit.empty()) return fit(arguments.fit);
  Simulator simulator;
  if (arguments.figures) {
    Outputs outputs;
    outputs.add("-", figures_table(predicted_figures(simulator)));
    return outputs.commit();
  }
  const auto predicted = [&](Seen seen) { return points_asked_for(arguments.filter, simulator, seen); };
  const std::vector<PredictedPoint> points = predicted(chosen<Seen>("--seen", arguments.seen, kSeenNames));
  Outputs outputs;
  outputs.add_wanted(arguments.json, [&] { return json_text(validation_json(points), 1) + "\n"; });
  outputs.add_wanted(arguments.csv, [&] { return points_csv(points); });
  outputs.add_wanted(arguments.plot, [&] { return accuracy_plot(points); });
  outputs.add_wanted(arguments.write_baseline, [&] { return json_text(baseline_json(points), 1) + "\n"; });
  outputs.add_wanted(arguments.markdown, [&] {
    return accuracy_page(
        {.others = predicted(Seen::others), .all = predicted(Seen::all), .none = predicted(Seen::none)},
        predicted_figures(simulator), kPlot);
  });
  std::string text;
  bool is_worse = false;
  if (!arguments.baseline.empty()) {
    const std::vector<MovedGroup> moved = moved_groups(points, parse_json_file(arguments.baseline), arguments.baseline);
    is_worse = std::any_of(moved.begin(), moved.end(), [](const MovedGroup& m) { return m.is_worse; });
    text = moved.empty() ? "no group has moved\n" : moved_table(moved);
  } else {
    text = arguments.points ? points_table(points) : validation_table(points);
    if (!filtered && !arguments.points && !outputs.on_standard_output())
      text += "\n" + figures_line(predicted_figures(simulator));
    if (!f.gpu.empty() || !f.strategy.empty())
      text += "\nPoints that are not predicted have no device and no plan, and are not in this list\n";
  }
  outputs.commit_with([&] { return text; });
  if (is_worse) throw Exit{1};
}

}  // namespace

void add_validate(Command app) {
  const auto [command, arguments] = app.declare<ValidateArguments>(
      "validate", "How far predictions are from every published measurement", kValidateExamples, validate);
  command.add_option("--source", arguments.filter.source, "Only sources with this in their name, title or citation");
  command.add_option("--gpu", arguments.filter.gpu, "Only devices with this in their name").offers_names({"devices"});
  command
      .add_option("--strategy", arguments.filter.strategy,
                  "Only plans with this: data, zero-3, tensor, pipeline, recompute-full, ...")
      .one_of(texts(all_plan_words()));
  command
      .add_option("--seen", arguments.seen,
                  "Published steps in the calibration: those of all other sources (the default), all, or none (kernels "
                  "and collectives alone)")
      .one_of(texts(kSeenNames));
  command.add_file(
      "--fit", arguments.fit,
      "Only fit results/calibration/steps.json anew (some minutes): write it to this file and steps_left_out.json "
      "beside it, or the first alone to -");
  command.add_flag("--points", arguments.points, "Print a row per point instead of a row per source");
  command.add_flag("--figures", arguments.figures,
                   "Print published figures other than steps, of mixtures of experts and of long contexts: times of "
                   "ops, rates, limits, speed-ups");
  command.add_file("--json", arguments.json, "All points and statistics as JSON, to a file or -");
  command.add_file("--plot", arguments.plot, "Predicted against measured step times, as SVG, to a file or -");
  command.add_file("--markdown", arguments.markdown, "The page results/ACCURACY.md, to a file or -");
  command.add_file(
      "--baseline", arguments.baseline,
      "Show what has changed since this file was written; exit 1 if a group became worse by more than its noise");
  command.add_file("--write-baseline", arguments.write_baseline, "Write the file that --baseline reads");
  command.add_file("--csv", arguments.csv, "Write a row per point as CSV, to a file or -");
}

}  // namespace orrery
