#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "sim/base/input_file.h"
#include "sim/base/json_reader.h"
#include "sim/cost/calibration.h"
#include "sim/hardware/presets.h"
#include "sim/report/format.h"
#include "strategies/strategy.h"
#include "study/validation/intervals.h"
#include "study/validation/measured_collectives.h"
#include "study/validation/tables.h"

namespace orrery {
namespace {

using Rows = std::vector<std::vector<std::string>>;

bool is_step(const PredictedPoint& p) { return p.point->quantity == Quantity::step_seconds; }

std::string summary(const ValidationRuns& runs) {
  Rows rows;
  const auto row = [&](const std::string& name, const std::vector<PredictedPoint>& points, bool composed = false) {
    std::vector<const PredictedPoint*> steps;
    std::vector<double> errors;
    for (const PredictedPoint& p : points) {
      if (!p.is_predicted() || !is_step(p) || !(composed || p.is_measured())) continue;
      steps.push_back(&p);
      errors.push_back(p.error());
    }
    std::vector<std::string> r = error_cells(error_statistics(errors));
    r.insert(r.begin(), name);
    const Ranking ranking = ranking_of(steps);
    r.push_back(fmt::format("{:.2f}", ranking.tau));
    r.push_back(percent_text(ranking.best_lost));
    rows.push_back(r);
  };
  row("**all other sources** (leave one source out)", runs.others);
  row("all sources (in sample)", runs.all);
  row("none: only kernels and collectives", runs.none);
  row("all other sources, including composed numbers", runs.others, true);
  return markdown_grid(
      "<the step calibration has seen|steps|median|mean|90th pct|worst|bias|Kendall's tau|lost by trusting it", rows);
}

struct Shown {
  bool ranking = false, not_predicted = false;
  // The quantity whose medians of results/published/accuracy_before.json stand beside; or none.
  std::string before = {};
};

const nlohmann::json& medians_before() {
  static const nlohmann::json medians = parse_embedded("results/published/accuracy_before.json").at("medians");
  return medians;
}

std::string groups(std::string_view heading, const std::vector<ErrorGroup>& groups, Shown shown) {
  std::string columns = fmt::format("<{}|points|median|mean|90th pct|worst|bias", heading);
  if (shown.ranking) columns += "|tau (tables)";
  if (!shown.before.empty()) columns += "|median before";
  if (shown.not_predicted) columns += "|not predicted";
  Rows rows;
  for (const ErrorGroup& g : groups) {
    std::vector<std::string>& row = rows.emplace_back(error_cells(g.error));
    row.insert(row.begin(), g.name);
    if (shown.ranking) row.push_back(ranking_cell(g.ranking));
    if (!shown.before.empty()) {
      const auto before = medians_before().find(g.name + "/" + shown.before);
      row.push_back(before == medians_before().end() ? "-" : percent_text(before->get<double>()));
    }
    if (shown.not_predicted) row.push_back(std::to_string(g.not_predicted));
  }
  return markdown_grid(columns, rows);
}

std::string scaling(std::span<const PredictedPoint> points) {
  Rows rows;
  for (const ScalingSeries& s : scaling_series(points)) {
    std::string devices;
    for (const PredictedPoint* p : s.points) devices += (devices.empty() ? "" : ", ") + std::to_string(p->devices);
    rows.push_back({s.name, s.weak ? "replica" : "global batch", devices, percent_text(s.measured_loss),
                    percent_text(s.predicted_loss), signed_percent_text(s.points.front()->error()),
                    signed_percent_text(s.points.back()->error())});
  }
  return markdown_grid("<series|<constant|<devices|lost, measured|lost, predicted|error, fewest|error, most", rows);
}

std::string worst(std::span<const PredictedPoint> points) {
  std::vector<const PredictedPoint*> steps;
  for (const PredictedPoint& p : points)
    if (p.is_predicted() && p.is_measured() && (is_step(p) || is_bytes(p.point->quantity))) steps.push_back(&p);
  sort_worst_first(steps);
  Rows rows;
  std::map<std::string, std::size_t> of_source;  // the worst of a source speaks for those like it
  for (const PredictedPoint* p : steps) {
    if (rows.size() == kWorstShown) break;
    if (++of_source[p->source->name] > 2) continue;
    const std::string& why = p->point->explanation;
    const auto text = [&](double value) { return is_step(*p) ? seconds_text(value) : bytes_text(value); };
    rows.push_back({fmt::format("`{}`", p->point->id), p->source->name, text(p->point->value), text(p->predicted),
                    signed_percent_text(p->error()), why.empty() ? "not explained" : why});
  }
  return markdown_grid("<`orrery simulate ...`|<source|measured|predicted|error|<why", rows);
}

std::string fits_sentence(const FitsConfusion& fits) {
  return fmt::format(
      "Does it fit? Of the runs whose outcome is known, {} ran and were predicted to, {} ended out of memory and were "
      "predicted to; {} ran although predicted\nnot to fit, {} ended out of memory although predicted to fit. {} of "
      "the wrong ones lie more than {:.0f} % from the capacity.\n",
      fits.fits_as_predicted, fits.fails_as_predicted, fits.wrongly_fails, fits.wrongly_fits, fits.wrong_beyond_margin,
      kPercent * kFitsMargin);
}

std::string judged_wrongly(const FitsConfusion& fits) {
  if (fits.wrong.empty()) return "";
  Rows rows = wrongly_judged(fits);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::string& why = fits.wrong[i]->point->memory_explanation;
    rows[i].front() = "`" + rows[i].front() + "`";
    rows[i].push_back(why.empty() ? "not explained" : why);
  }
  return markdown_grid(fmt::format("{}|<why", kWronglyJudged), rows) + "\n";
}

std::string not_predicted(std::span<const PredictedPoint> points) {
  std::map<std::string, std::size_t> reasons;
  for (const PredictedPoint& p : points)
    if (!p.is_predicted()) ++reasons[p.not_predicted];
  std::vector<std::pair<std::string, std::size_t>> sorted(reasons.begin(), reasons.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  Rows rows;
  for (const auto& [why, count] : sorted) rows.push_back({std::to_string(count), why});
  return markdown_grid("points|<why not", rows);
}

std::string peers(const ValidationRuns& runs) {
  const nlohmann::json document = parse_embedded("results/published/peers.json");
  Rows rows;
  for (const auto& claim : document.at("claims")) {
    std::string ours = "-", in_sample = "-";
    if (claim.contains("points")) {
      const std::string source = claim.at("points"), quantity = claim.value("quantity", "step_seconds");
      const auto text = [&](const std::vector<PredictedPoint>& points) {
        std::vector<double> errors;
        for (const PredictedPoint& p : points)
          if (p.is_predicted() && p.source->name == source && name_of(p.point->quantity) == quantity &&
              p.point->where.starts_with(claim.value("where", "")))
            errors.push_back(p.error());
        const ErrorStatistics e = error_statistics(errors);
        return fmt::format("{}, worst {} ({} points)", percent_text(e.mean), percent_text(e.worst), e.points);
      };
      ours = text(runs.others);
      in_sample = text(runs.all);
    }
    std::string theirs = percent_text(claim.at("mean").get<double>());
    if (claim.contains("worst")) theirs += ", worst " + percent_text(claim.at("worst").get<double>());
    rows.push_back({claim.at("simulator"), claim.at("on"), theirs, ours, in_sample, claim.at("source")});
  }
  return markdown_grid("<simulator|<on|its claim, mean error|ours, source left out|ours, in sample|<its source", rows);
}

// One of results/published/goals.json, as it stands: the statistic of the points it is of.
double reached(const nlohmann::json& goal, const nlohmann::json& not_llm, const std::vector<PredictedPoint>& points) {
  const std::string source = goal.value("source", ""), quantity = goal.value("quantity", "step_seconds");
  const bool of_models = source.empty() && quantity == "step_seconds";
  std::vector<const PredictedPoint*> of_goal;
  std::vector<double> errors;
  for (const PredictedPoint& p : points) {
    if (!p.is_predicted() || name_of(p.point->quantity) != quantity) continue;
    if (!source.empty() && p.source->name != source) continue;
    if (source.empty() && !p.is_measured()) continue;
    if (of_models && std::find(not_llm.begin(), not_llm.end(), p.source->name) != not_llm.end()) continue;
    if (!p.point->where.starts_with(goal.value("where", ""))) continue;
    if (goal.contains("sequence_from") &&
        p.point->scenario->at("workload").value("sequence_length", 0.0) < goal.at("sequence_from").get<double>())
      continue;
    const auto has = [&](const char* key) {
      return std::find(p.strategies.begin(), p.strategies.end(), goal.value(key, "")) != p.strategies.end();
    };
    if ((goal.contains("strategy") && !has("strategy")) || (goal.contains("without") && has("without"))) continue;
    of_goal.push_back(&p);
    errors.push_back(p.error());
  }
  const ErrorStatistics e = error_statistics(errors);
  const std::string statistic = goal.at("statistic");
  if (statistic == "tau") return ranking_of(of_goal).tau;
  return statistic == "mean"     ? e.mean
         : statistic == "median" ? e.median
         : statistic == "worst"  ? e.worst
                                 : e.percentile_90;
}

std::string goals(const ValidationRuns& runs) {
  const nlohmann::json document = parse_embedded("results/published/goals.json");
  Rows rows;
  for (const auto& goal : document.at("goals")) {
    const bool is_tau = goal.at("statistic") == "tau";
    const auto text = [&](double value) { return is_tau ? fmt::format("{:.2f}", value) : percent_text(value); };
    bool met = true;
    const auto cell = [&](const char* limit, const std::vector<PredictedPoint>& points) {
      const double value = reached(goal, document.at("not_llm"), points);
      if (!goal.contains(limit)) return text(value);
      const double most = goal.at(limit);
      met = met && (is_tau ? value >= most : value <= most);
      return fmt::format("{} (goal {})", text(value), text(most));
    };
    const std::string in_sample = cell("in_sample", runs.all), left_out = cell("left_out", runs.others);
    const std::string statistic = goal.at("statistic") == "percentile_90" ? "90th pct" : goal.at("statistic");
    rows.push_back({goal.at("of"), statistic, in_sample, left_out, met ? "met" : "**missed**",
                    met ? "" : goal.at("cause").get<std::string>()});
  }
  return markdown_grid("<goal|<|in sample|source left out|<|<largest cause", rows);
}

std::string kernels() {
  Rows rows;
  const auto row = [&](const std::string& device, const std::string& kernels, const auto& residual) {
    rows.push_back({device, kernels, std::to_string(residual.points), percent_text(residual.median),
                    percent_text(residual.percentile_90), signed_percent_text(residual.bias)});
  };
  for (const std::string& name : calibrated_devices()) {
    const Calibration c = find_calibration(find_device(name));
    for (const Dtype dtype : {Dtype::bf16, Dtype::fp8, Dtype::nvfp4}) {
      const MatmulCurve& curve = c.matmul[static_cast<std::size_t>(dtype)];
      if (!curve.measured || curve.residual.points == 0) continue;
      row(name, fmt::format("products, {}", name_of(dtype)), curve.residual);
    }
    for (const Dtype dtype : {Dtype::bf16, Dtype::fp8}) {
      if (c.grouped.empty()) break;
      const GroupedCurve& curve = c.grouped[static_cast<std::size_t>(dtype)];
      if (!curve.borrowed_from.empty() || curve.residual.points == 0 ||
          (dtype == Dtype::fp8 && curve.source == c.grouped[static_cast<std::size_t>(Dtype::bf16)].source))
        continue;
      row(name, fmt::format("products of experts, {}", name_of(dtype)), curve.residual);
    }
    for (const AttentionCurve& curve : c.attention_kernels)
      if (curve.residual.points > 0 && c.attention_borrowed_from.empty())
        row(name, "attention, " + curve.name, curve.residual);
  }
  return markdown_grid("<device|<kernels|points|median|90th pct|bias", rows);
}

std::string collectives() {
  MeasuredOptions options;
  options.engines = {static_cast<std::size_t>(Engine::analytical)};
  const MeasuredCollectives measured = predict_measured(options);
  Rows rows;
  for (const ErrorSummary& s : summaries_of(measured.curves, options.engines))
    rows.push_back({s.level, s.name, std::to_string(s.curves), std::to_string(s.all[0].points),
                    percent_text(s.large[0].median), percent_text(s.all[0].median),
                    signed_percent_text(s.large[0].bias)});
  return markdown_grid("<level|<links|curves|points|median, from 1 MiB|median, all sizes|bias, from 1 MiB", rows);
}

std::vector<PredictedPoint> of_quantity(const std::vector<PredictedPoint>& points, Quantity quantity) {
  std::vector<PredictedPoint> kept;
  for (const PredictedPoint& p : points)
    if (p.point->quantity == quantity) kept.push_back(p);
  return kept;
}

// Intervals are found from every other source and tried on those between, and the other way round.
std::pair<double, double> coverage_of_halves(std::span<const PredictedPoint> points) {
  const auto [one, other] = halves_of_sources(points);
  return {interval_coverage(points, step_intervals(points, one), other).at(kAllSteps).share(),
          interval_coverage(points, step_intervals(points, other), one).at(kAllSteps).share()};
}

std::string coverage(std::span<const PredictedPoint> points) {
  const StepIntervals intervals = step_intervals(points);
  const CoverageOfGroups plain = plain_coverage(points);
  Rows rows;
  for (const auto& [group, unseen] : unseen_coverage(points)) {
    const auto stack = intervals.stacks.find(group);
    const auto width = [](double half) { return fmt::format("{:.2f} to {:.2f}", std::exp(-half), std::exp(half)); };
    rows.push_back(
        {group, stack == intervals.stacks.end() ? "-" : width(stack->second.half_width), percent_text(unseen.share())});
    const auto all = plain.find(group);
    rows.back().push_back(all == plain.end() ? "-" : fmt::format("{} of {}", all->second.inside, all->second.points));
  }
  return markdown_grid("<steps|interval, of the prediction|inside, sources left out|of all steps, each once", rows);
}

std::vector<ErrorGroup> by_size(const std::vector<PredictedPoint>& steps) {
  constexpr std::array<std::pair<std::int64_t, const char*>, 6> kSizes{
      {{1, "1"}, {8, "2 to 8"}, {64, "9 to 64"}, {512, "65 to 512"}, {4096, "513 to 4,096"}, {1 << 30, "more"}}};
  std::vector<ErrorGroup> all;
  std::int64_t below = 0;
  for (const auto& [most, name] : kSizes) {
    for (ErrorGroup& group : groups_by(steps, [&, most = most, name = name](const PredictedPoint& p) {
           return p.is_predicted() && p.devices > below && p.devices <= most ? name : "";
         }))
      all.push_back(std::move(group));
    below = most;
  }
  return all;
}

std::vector<ErrorGroup> by_strategy(const std::vector<PredictedPoint>& steps) {
  std::vector<ErrorGroup> all;
  for (const std::string_view word : all_plan_words())
    for (ErrorGroup& group : groups_by(steps, [&](const PredictedPoint& p) {
           const bool has = std::find(p.strategies.begin(), p.strategies.end(), word) != p.strategies.end();
           return has ? std::string(word) : std::string();
         }))
      all.push_back(std::move(group));
  return all;
}

std::vector<ErrorGroup> by_device(const std::vector<PredictedPoint>& steps) {
  std::vector<ErrorGroup> groups = groups_by(steps, [](const PredictedPoint& p) {
    return p.device.empty() ? "" : p.device + (p.measured_device() ? "" : " (curves borrowed)");
  });
  std::sort(groups.begin(), groups.end(), [](const ErrorGroup& a, const ErrorGroup& b) { return a.name < b.name; });
  return groups;
}

}  // namespace

std::string accuracy_page(const ValidationRuns& runs, std::span<const PublishedFigure> figures,
                          const std::string& plot) {
  const std::vector<PredictedPoint> all_steps = of_quantity(runs.others, Quantity::step_seconds);
  std::vector<PredictedPoint> steps;
  std::map<std::string, std::string> composed;  // by source
  for (const PredictedPoint& p : all_steps) {
    if (p.is_measured()) {
      steps.push_back(p);
    } else {
      composed[p.source->name] = p.source->composed;
    }
  }
  std::string composed_text;
  for (const auto& [name, why] : composed)
    composed_text += fmt::format(
        "**{} is composed, not measured.** {} Its {} numbers are fitted as one source of many, and\nonly its own row "
        "and the last row above count them.\n\n",
        name, why, std::count_if(all_steps.begin(), all_steps.end(), [&name = name](const PredictedPoint& p) {
          return p.source->name == name && p.is_predicted();
        }));
  const auto by_source = [](const std::vector<PredictedPoint>& points) {
    return groups_by(points, [](const PredictedPoint& p) { return p.source->name; });
  };
  std::string other_quantities;
  for (std::size_t q = 0; q < kQuantityNames.size(); ++q) {
    const auto quantity = static_cast<Quantity>(q);
    const std::vector<PredictedPoint> points = of_quantity(runs.others, quantity);
    if (points.empty() || quantity == Quantity::step_seconds || quantity == Quantity::fits) continue;
    const std::string_view name = name_of(quantity);
    other_quantities += groups(name, by_source(points), {.not_predicted = true, .before = std::string(name)}) + "\n";
  }
  const FitsConfusion fits = fits_confusion(runs.others);
  const auto [first, second] = coverage_of_halves(runs.others);
  const Shown ranked{.ranking = true};
  return fmt::format(
      fmt::runtime(embedded_files("study/validation/accuracy.txt").front().text), fmt::arg("plot", plot),
      fmt::arg("points", runs.others.size()), fmt::arg("sources", published_sources().size()),
      fmt::arg("summary", summary(runs)), fmt::arg("least_of_table", kLeastOfTable),
      fmt::arg("first_half", kPercent * first), fmt::arg("second_half", kPercent * second),
      fmt::arg("composed", composed_text),
      fmt::arg("by_source", groups("source", by_source(all_steps),
                                   {.ranking = true, .not_predicted = true, .before = "step_seconds"})),
      fmt::arg("by_stack",
               groups("framework", groups_by(steps, [](const PredictedPoint& p) { return p.framework; }), ranked)),
      fmt::arg("by_size", groups("devices", by_size(steps), ranked)),
      fmt::arg("by_strategy", groups("strategy", by_strategy(steps), ranked)),
      fmt::arg("by_device", groups("device", by_device(steps), {})), fmt::arg("intervals", coverage(runs.others)),
      fmt::arg("scaling", scaling(runs.others)), fmt::arg("other_quantities", other_quantities),
      fmt::arg("fits", fits_sentence(fits)), fmt::arg("judged_wrongly", judged_wrongly(fits)),
      fmt::arg("worst", worst(runs.others)), fmt::arg("figures", figures_markdown(figures)),
      fmt::arg("goals", goals(runs)), fmt::arg("peers", peers(runs)), fmt::arg("kernels", kernels()),
      fmt::arg("collectives", collectives()), fmt::arg("not_predicted", not_predicted(runs.others)));
}

std::string accuracy_plot(std::span<const PredictedPoint> points) {
  constexpr double kSide = 720, kMargin = 60, kRadius = 2.5;
  constexpr double kLegendRow = 13;
  std::map<std::string, std::size_t> sources;
  double least = 1e300, most = 0;
  for (const PredictedPoint& p : points) {
    if (!p.is_predicted() || !is_step(p)) continue;
    sources.try_emplace(p.source->name, 0);
    for (const double v : {p.predicted, p.point->value}) least = std::min(least, v), most = std::max(most, v);
  }
  if (sources.empty()) throw InputError({"--plot", ""}, "no predicted step in the points", "at least one");
  std::size_t next = 0;
  for (auto& [name, index] : sources) index = next++;
  const double low = std::floor(std::log10(least)), high = std::ceil(std::log10(most));
  const auto at = [&](double seconds) { return (std::log10(seconds) - low) / (high - low) * kSide; };
  const auto x = [&](double seconds) { return kMargin + at(seconds); };
  const auto y = [&](double seconds) { return 20 + kSide - at(seconds); };
  // Hues apart by the golden angle differ for neighbours too.
  const auto colour = [&](std::size_t i) {
    constexpr double kGoldenAngle = 137.508;
    return fmt::format("hsl({:.0f},{}%,{}%)", std::fmod(kGoldenAngle * static_cast<double>(i), 360.0), 70,
                       30 + 10 * (i % 3));
  };
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n<title>Predicted against measured step times</title>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      kMargin + kSide + 240, kSide + 70);
  for (double e = low; e <= high; ++e) {
    const double v = std::pow(10, e);
    out += fmt::format(
        "<path d=\"M{0:.1f} 20V{1:.1f}M{2:.1f} {3:.1f}H{4:.1f}\" stroke=\"#ddd\"/>\n"
        "<text x=\"{0:.1f}\" y=\"{5:.1f}\" text-anchor=\"middle\">{6}</text>\n"
        "<text x=\"{7:.1f}\" y=\"{8:.1f}\" text-anchor=\"end\">{6}</text>\n",
        x(v), 20 + kSide, kMargin, y(v), kMargin + kSide, 36 + kSide, seconds_text(v), kMargin - 5, y(v) + 4);
  }
  const double first = std::pow(10, low), last = std::pow(10, high);
  for (const auto& [factor, dash] : {std::pair(1.0, ""), std::pair(1.2, "4"), std::pair(1 / 1.2, "4")}) {
    const double from = factor < 1 ? first / factor : first, to = factor > 1 ? last / factor : last;
    out += fmt::format("<path d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\" stroke=\"#666\" stroke-dasharray=\"{}\"/>\n", x(from),
                       y(from * factor), x(to), y(to * factor), dash);
  }
  for (const PredictedPoint& p : points) {
    if (!p.is_predicted() || !is_step(p)) continue;
    out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"{}\" fill-opacity=\"0.6\"/>\n",
                       x(p.point->value), y(p.predicted), kRadius, colour(sources[p.source->name]));
  }
  out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">measured (dashed: 20 % off)</text>\n",
                     kMargin + kSide / 2, kSide + 58);
  out += fmt::format("<text transform=\"translate(14 {:.1f}) rotate(-90)\" text-anchor=\"middle\">predicted</text>\n",
                     20 + kSide / 2);
  for (const auto& [name, index] : sources) {
    const double row = 24 + kLegendRow * static_cast<double>(index);
    out += fmt::format("<circle cx=\"{}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\"/><text x=\"{}\" y=\"{:.1f}\">{}</text>\n",
                       kMargin + kSide + 20, row, colour(index), kMargin + kSide + 30, row + 4, xml_text(name));
  }
  return out + "</svg>\n";
}

}  // namespace orrery
