#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "sim/report/format.h"
#include "study/capacity/answer.h"

namespace orrery {
namespace {

using Rows = std::vector<std::vector<std::string>>;

constexpr double kDay = 86400, kHour = 3600;
constexpr std::size_t kMostSizesShown = 12;
constexpr int kBarColumns = 24;
constexpr double kStill = 1e-3;  // of the answer: inputs that move it by less are but named

std::string days_text(double seconds) { return fmt::format("{:.1f}", seconds / kDay); }

std::string hours_text(double seconds) {
  return std::isfinite(seconds) ? fmt::format("{:.2f} h", seconds / kHour) : "-";
}

std::string minutes_text(double seconds) { return seconds > 0 ? fmt::format("{:.1f} min", seconds / 60) : "-"; }

template <class Text>
std::string range_text(const Estimate& estimate, Text text) {
  return estimate.low == estimate.high ? "" : fmt::format("{} to {}", text(estimate.low), text(estimate.high));
}

// What an output is called, its unit in a text and in a picture, and how many of it a value is. The unit of the cost is
// the plan's currency.
struct OutputWords {
  const char *name, *unit, *unit_drawn;
  double factor;
};
const OutputWords& words_of(PlanOutput output) {
  static constexpr std::array<OutputWords, kPlanOutputNames.size()> kWords{{{"time", "days", "days", 1 / kDay},
                                                                            {"ETTR", "%", "%", kPercent},
                                                                            {"goodput", "%", "%", kPercent},
                                                                            {"device-hours", "h", "device-hours", 1},
                                                                            {"cost", "", "", 1},
                                                                            {"energy", "MWh", "MWh", 1e-3},
                                                                            {"carbon", "t", "t CO2e", 1e-3}}};
  return kWords[static_cast<std::size_t>(output)];
}

std::string output_text(PlanOutput output, double value, const std::string& currency) {
  const OutputWords& words = words_of(output);
  value *= words.factor;
  const bool few = output == PlanOutput::wall_seconds || output == PlanOutput::ettr || output == PlanOutput::goodput;
  return fmt::format("{} {}", few ? fmt::format("{:.1f}", value) : rate_text(value),
                     output == PlanOutput::cost ? currency : words.unit);
}

class Texts {
 public:
  Texts(const CapacityAnswer& answer, bool every_size)
      : answer_(answer), plan_(answer.plan), choice_(answer.choice), every_size_(every_size) {}

  std::string run() {
    task();
    candidates();
    impossible();
    sizes();
    outcome();
    deadlines();
    failures();
    sensitivities();
    ties();
    figures();
    return std::move(text_);
  }

 private:
  const CapacityAnswer& answer_;
  const CapacityPlan& plan_;
  const Choice& choice_;
  bool every_size_;
  std::string cost_ = "cost, " + plan_.currency;
  std::string text_;

  const SizedCandidate& at(std::size_t i) const { return answer_.candidates[i]; }
  const std::string& cluster_name(const SizedCandidate& sized) const { return plan_.clusters[sized.cluster].name; }
  const std::string& name(std::size_t i) const { return cluster_name(at(i)); }
  double held(const Estimate& estimate) const {
    return answer_.options.held_by == HeldBy::worst ? estimate.high : estimate.value;
  }
  std::string money(double amount) const { return fmt::format("{} {}", rate_text(amount), plan_.currency); }

  void table(std::string_view title, std::string_view columns, const Rows& rows) {
    if (!rows.empty()) text_ += fmt::format("\n{}\n{}", title, grid(columns, rows));
  }

  void task() {
    std::string model;
    for (const CandidateCluster& cluster : plan_.clusters)
      if (cluster.pattern) model = cluster.pattern->model.name + ": ";
    text_ = model + (plan_.tokens > 0 ? rate_text(plan_.tokens) + " tokens" : std::to_string(plan_.steps) + " steps");
    if (std::isfinite(plan_.deadline_seconds))
      text_ += fmt::format(", within {:g} days", plan_.deadline_seconds / kDay);
    if (plan_.budget) text_ += fmt::format(", for at most {}", money(plan_.budget->amount));
    text_ += "\n";
  }

  static std::string held_text(bool met, double excess, bool worst_meets) {
    if (!met) return fmt::format("{:.1f} % over", excess * kPercent);
    return worst_meets ? "met" : "met, unless slow";
  }

  std::vector<std::string> row(std::size_t i) const {
    const SizedCandidate& sized = at(i);
    const Forecast& forecast = sized.forecast;
    const Verdict& verdict = choice_.verdicts[i];
    const std::string in_time =
        std::isfinite(plan_.deadline_seconds)
            ? held_text(verdict.in_time, verdict.time_excess, forecast.wall_seconds.high <= plan_.deadline_seconds)
            : "-";
    const std::string in_budget =
        plan_.budget ? held_text(verdict.in_budget, verdict.cost_excess, forecast.cost.high <= plan_.budget->amount)
                     : "-";
    const std::string in_memory = sized.memory_capacity_bytes <= 0 ? "-" : sized.memory_fits ? "fits" : "lacks";
    return {cluster_name(sized),
            std::to_string(sized.devices),
            seconds_text(sized.candidate.step_seconds.value),
            days_text(forecast.wall_seconds.value),
            range_text(forecast.wall_seconds, days_text),
            rate_text(forecast.cost.value),
            range_text(forecast.cost, rate_text),
            in_memory,
            in_time,
            in_budget};
  }

  std::vector<std::string> more_of(std::size_t i) const {
    const SizedCandidate& sized = at(i);
    const Forecast& forecast = sized.forecast;
    const TrainingRun& run = sized.candidate.run;
    const bool modelled = sized.memory_capacity_bytes > 0;
    return {cluster_name(sized),
            std::to_string(sized.devices),
            std::to_string(run.spare_nodes),
            modelled ? percent_text(sized.mfu) : "-",
            modelled ? bytes_text(sized.memory_peak_bytes) : "-",
            percent_text(forecast.ettr.value),
            percent_text(forecast.goodput.value),
            rate_text(forecast.device_hours.value),
            rate_text(forecast.energy_kwh.value / 1000),
            rate_text(forecast.carbon_kg.value / 1000)};
  }

  void candidates() {
    Rows rows, more;
    const auto add = [&](std::size_t i) {
      rows.push_back(row(i));
      more.push_back(more_of(i));
    };
    if (every_size_) {
      for (std::size_t i = 0; i < answer_.candidates.size(); ++i)
        if (choice_.verdicts[i].possible) add(i);
    } else {
      for (const std::optional<std::size_t> best : choice_.best)
        if (best) add(*best);
    }
    table(every_size_ ? "Candidates, in every size"
                      : "Candidates, each in the cheapest size that meets all constraints, or else in the nearest",
          "<candidate|devices|step|days|80 %|" + cost_ + "|80 %|<memory|<deadline|<budget", rows);
    table("Use of devices, energy and carbon",
          "<candidate|devices|spare nodes|MFU|peak memory|ETTR|goodput|device-hours|MWh|t CO2e", more);
  }

  void impossible() {
    Rows rows;
    for (const SizedCandidate& sized : answer_.candidates)
      if (!sized.impossible.empty())
        rows.push_back({cluster_name(sized), std::to_string(sized.devices), sized.impossible});
    table("Not possible", "<candidate|devices|<why", rows);
  }

  std::string tried(std::size_t cluster) const {
    const std::vector<std::int64_t>& all = plan_.clusters[cluster].devices;
    if (all.size() <= kMostSizesShown) return fmt::format("{}", fmt::join(all, ", "));
    const auto head = all.begin() + static_cast<std::ptrdiff_t>(kMostSizesShown) - 1;
    return fmt::format("{}, ... {} ({} sizes)", fmt::join(all.begin(), head, ", "), all.back(), all.size());
  }

  void sizes() {
    if (!std::isfinite(plan_.deadline_seconds)) return;
    Rows rows;
    for (std::size_t c = 0; c < plan_.clusters.size(); ++c) {
      const std::optional<std::size_t> fewest = choice_.fewest[c];
      rows.push_back({plan_.clusters[c].name, fewest ? std::to_string(at(*fewest).devices) : "none",
                      fewest ? days_text(at(*fewest).forecast.wall_seconds.value) : "-",
                      fewest ? rate_text(at(*fewest).forecast.cost.value) : "-", tried(c)});
    }
    table("Devices needed: the fewest within the deadline", "<candidate|devices|days|" + cost_ + "|<tried", rows);
  }

  std::string in_words(std::size_t i) const {
    const SizedCandidate& sized = at(i);
    return fmt::format("{} on {} devices: {} days, {}", cluster_name(sized), sized.devices,
                       days_text(held(sized.forecast.wall_seconds)), money(held(sized.forecast.cost)));
  }

  void outcome() {
    const char* by = answer_.options.held_by == HeldBy::worst ? " (by the slow end of the interval)" : "";
    if (choice_.cheapest) {
      text_ += fmt::format("\nCheapest{}: {}\nFastest{}:  {}\n", by, in_words(*choice_.cheapest), by,
                           in_words(*choice_.fastest));
      return;
    }
    text_ += fmt::format("\nNothing meets all constraints{}\n", by);
    for (const Relaxation& r : choice_.relaxations) {
      std::string give;
      if (r.deadline_seconds)
        give =
            fmt::format("a deadline of {} days instead of {:g} (+{:.1f} %)", days_text(*r.deadline_seconds),
                        plan_.deadline_seconds / kDay, (*r.deadline_seconds / plan_.deadline_seconds - 1) * kPercent);
      if (r.budget_amount)
        give += fmt::format("{}a budget of {} instead of {} (+{:.1f} %)", give.empty() ? "" : " and ",
                            money(*r.budget_amount), money(plan_.budget->amount),
                            (*r.budget_amount / plan_.budget->amount - 1) * kPercent);
      text_ += fmt::format("  {} would allow {}\n", give, in_words(r.candidate));
    }
    if (choice_.relaxations.empty()) lacking();
  }

  // Nothing fits, so neither time nor money helps.
  void lacking() {
    std::optional<std::size_t> nearest;
    const auto over = [&](std::size_t i) { return at(i).memory_peak_bytes / at(i).memory_capacity_bytes; };
    for (std::size_t i = 0; i < answer_.candidates.size(); ++i)
      if (choice_.verdicts[i].possible && (!nearest || over(i) < over(*nearest))) nearest = i;
    if (!nearest) {
      text_ += "  no candidate can be laid out in any size that was tried\n";
      return;
    }
    text_ += fmt::format("  no candidate fits in memory; the nearest is {} on {} devices: {} of {} per device\n",
                         name(*nearest), at(*nearest).devices, bytes_text(at(*nearest).memory_peak_bytes),
                         bytes_text(at(*nearest).memory_capacity_bytes));
  }

  void deadlines() {
    Rows rows;
    for (const std::size_t i : choice_.frontier)
      rows.push_back({days_text(held(at(i).forecast.wall_seconds)), name(i), std::to_string(at(i).devices),
                      rate_text(held(at(i).forecast.cost))});
    table("Cheapest by deadline: from this number of days to that of the next line", "days|<candidate|devices|" + cost_,
          rows);
  }

  void failures() {
    Rows rows;
    for (const FailureStudy& study : answer_.failures) {
      const Spread &ettr = study.simulated_ettr, &wall = study.simulated_wall_seconds;
      rows.push_back({name(study.candidate), hours_text(study.seconds_between),
                      fmt::format("{:.1f}", study.closed.failures), seconds_text(study.stall_seconds),
                      minutes_text(study.young_seconds), minutes_text(study.daly_seconds),
                      minutes_text(study.optimal_seconds), minutes_text(study.closed.interval_seconds),
                      percent_text(study.closed.ettr()), percent_text(ettr.mean), days_text(study.closed.wall_seconds),
                      days_text(wall.mean), fmt::format("{} to {}", days_text(wall.tenth), days_text(wall.ninetieth))});
    }
    const std::string title =
        fmt::format("Failures and checkpoints: in closed form, and the mean over {} simulated histories (seed {})",
                    answer_.options.history_count, answer_.options.histories.seed);
    table(
        title.c_str(),
        "<candidate|between|failures|stall|Young|Daly|optimum|interval|ETTR|simulated|days|simulated|80 % of histories",
        rows);
  }

  void sensitivities() {
    if (!answer_.tornado) return;
    const Tornado& tornado = *answer_.tornado;
    const SizedCandidate& subject = at(*answer_.subject);
    Rows rows;
    const double widest = tornado.bars.empty() ? 0 : tornado.bars.front().width();
    const auto change = [&](double value) { return signed_percent_text(value / tornado.value - 1); };
    std::vector<std::string> still;
    for (const TornadoBar& each : tornado.bars) {
      if (each.width() < kStill * std::fabs(tornado.value) && each.less_fits) {
        still.push_back(each.input);
        continue;
      }
      rows.push_back({each.input, each.less_fits ? change(each.at_less) : "does not fit", change(each.at_more),
                      widest > 0 ? bar(each.width() / widest, kBarColumns) : ""});
    }
    const std::string title =
        fmt::format("What moves the {} of {} on {} devices, {}: each input {:g} % less and more, the rest unchanged",
                    words_of(tornado.output).name, cluster_name(subject), subject.devices,
                    output_text(tornado.output, tornado.value, plan_.currency), tornado.swing * kPercent);
    table(title, "<input|less|more|<", rows);
    if (!still.empty()) text_ += fmt::format("  less than {:g} %: {}\n", kStill * kPercent, fmt::join(still, ", "));
  }

  void ties() {
    Rows rows;
    for (const PriceTie& tie : answer_.ties) {
      const SizedCandidate &of = at(tie.of), &against = at(tie.against);
      const double asked = of.candidate.price.per_device_hour;
      const auto price = [](double value) { return fmt::format("{:.2f}", value); };
      rows.push_back({cluster_name(of), std::to_string(of.devices), price(asked), price(tie.tie.price.value),
                      range_text(tie.tie.price, price), fmt::format("{:.2f}", tie.tie.ratio.value),
                      fmt::format("{:.2f}", asked / against.candidate.price.per_device_hour)});
    }
    if (rows.empty()) return;
    const SizedCandidate& other = at(answer_.ties.front().against);
    const std::string title =
        fmt::format("Break-even against {} on {} devices at {:.2f} {} per device-hour", cluster_name(other),
                    other.devices, other.candidate.price.per_device_hour, plan_.currency);
    table(title, "<candidate|devices|asks|pays below|80 %|times its price|asks times", rows);
  }

  void figures() {
    std::set<std::string> seen;
    Rows rows;
    // Those of all clusters, each once.
    const auto add = [&](const char* what, auto Candidate::*member, const auto& text) {
      for (const CandidateCluster& cluster : plan_.clusters) {
        const auto& of = cluster.whole.*member;
        const std::string figure = text(of), source = of.source.empty() ? "the plan" : of.source;
        if (seen.insert(fmt::format("{}\n{}\n{}", what, figure, source)).second)
          rows.push_back({what, of.name.empty() ? "-" : of.name, figure, of.date.empty() ? "-" : of.date, source});
      }
    };
    add("price", &Candidate::price,
        [](const Price& p) { return fmt::format("{:g} {} per device-hour", p.per_device_hour, p.currency); });
    add("power", &Candidate::power, [](const Power& p) { return fmt::format("{:g} W busy", p.busy_watts); });
    add("PUE", &Candidate::site, [](const SiteOverhead& s) { return fmt::format("{:g}", s.pue); });
    add("grid", &Candidate::grid, [](const Grid& g) { return fmt::format("{:g} g/kWh", g.grams_per_kwh); });
    add("failures", &Candidate::failures,
        [](const FailureRate& f) { return fmt::format("{:g} per node-day", f.failures_per_node_day); });
    add("storage", &Candidate::storage,
        [](const CheckpointStorage& s) { return fmt::format("{:g} GB/s", s.write_bytes_per_second * 1e-9); });
    add("restarts", &Candidate::restarts,
        [](const RestartOverhead& r) { return fmt::format("{:g} s", r.detection_seconds + r.restart_seconds); });
    table("Figures", "<|<preset|<|<date|<source", rows);
  }
};

// ---- the chart

// The picture's layout, in pixels.
constexpr double kWidth = 900, kLeft = 250, kRight = 90, kTop = 64, kRow = 26, kBar = 18, kBelow = 34;
constexpr double kLabel = 100;  // what labels of the axis need

// A standalone SVG document.
std::string tornado_svg(const Tornado& tornado, std::string_view title, std::string_view unit) {
  double least = tornado.value, most = tornado.value;
  for (const TornadoBar& bar : tornado.bars) {
    least = std::min({least, bar.at_less, bar.at_more});
    most = std::max({most, bar.at_less, bar.at_more});
  }
  const double span = most > least ? most - least : 1;
  const auto x = [&](double value) { return kLeft + (value - least) / span * (kWidth - kLeft - kRight); };
  const double bottom = kTop + kRow * static_cast<double>(tornado.bars.size());
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
      "<text x=\"16\" y=\"24\" font-size=\"15\" fill=\"#111\">{2}</text>\n"
      "<text x=\"16\" y=\"44\" fill=\"#555\">each input {3:g} % less (blue) and more (orange), the others "
      "unchanged</text>\n",
      kWidth, bottom + kBelow, xml_text(title), tornado.swing * kPercent);
  double y = kTop;
  for (const TornadoBar& bar : tornado.bars) {
    out += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\" fill=\"#222\">{}</text>\n", kLeft - 10,
                       y + kBar - 5, xml_text(bar.input));
    const auto half = [&](double end, const char* colour) {
      const double from = x(std::min(end, tornado.value)), to = x(std::max(end, tornado.value));
      out += fmt::format("<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\" fill=\"{}\"/>\n", from, y,
                         to - from, kBar, colour);
    };
    half(bar.at_less, "#4a86d4");
    half(bar.at_more, "#e59a2f");
    const double end = std::max({x(bar.at_less), x(bar.at_more), x(tornado.value)});
    out += fmt::format(
        "<text x=\"{:.2f}\" y=\"{:.1f}\" fill=\"#555\">{}{}</text>\n", end + 6, y + kBar - 5,
        tornado.value != 0 ? fmt::format("{:.1f} %", bar.width() / std::fabs(tornado.value) * kPercent) : "",
        bar.less_fits ? "" : ", less does not fit");
    y += kRow;
  }
  out += fmt::format("<line x1=\"{0:.2f}\" y1=\"{1}\" x2=\"{0:.2f}\" y2=\"{2}\" stroke=\"#333\"/>\n", x(tornado.value),
                     kTop - 4, bottom);
  const auto label = [&](double value) {
    out += fmt::format("<text x=\"{:.2f}\" y=\"{}\" text-anchor=\"middle\" fill=\"#333\">{} {}</text>\n", x(value),
                       bottom + 18, rate_text(value), xml_text(unit));
  };
  label(tornado.value);
  for (const double end : {least, most})
    if (std::fabs(x(end) - x(tornado.value)) > kLabel) label(end);
  return out + "</svg>\n";
}

}  // namespace

std::string answer_text(const CapacityAnswer& answer, bool every_size) { return Texts(answer, every_size).run(); }

std::string answer_svg(const CapacityAnswer& answer) {
  const SizedCandidate& subject = answer.candidates[*answer.subject];
  Tornado scaled = *answer.tornado;
  const OutputWords& words = words_of(scaled.output);
  scaled.value *= words.factor;
  for (TornadoBar& each : scaled.bars) {
    each.at_less *= words.factor;
    each.at_more *= words.factor;
  }
  return tornado_svg(scaled,
                     fmt::format("What moves the {} of {} on {} devices", words.name,
                                 answer.plan.clusters[subject.cluster].name, subject.devices),
                     scaled.output == PlanOutput::cost ? answer.plan.currency : words.unit_drawn);
}

}  // namespace orrery
