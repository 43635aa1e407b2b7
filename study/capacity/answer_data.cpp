#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "sim/report/format.h"
#include "study/capacity/answer.h"

namespace orrery {
namespace {

using Ordered = nlohmann::ordered_json;

Ordered estimate_json(const Estimate& e) { return {{"low", e.low}, {"value", e.value}, {"high", e.high}}; }
Ordered spread_json(const Spread& s) { return {{"mean", s.mean}, {"tenth", s.tenth}, {"ninetieth", s.ninetieth}}; }

Ordered outcome_json(const RunOutcome& o) {
  return {{"wall_seconds", o.wall_seconds},
          {"useful_seconds", o.useful_seconds},
          {"checkpoint_seconds", o.checkpoint_seconds},
          {"lost_seconds", o.lost_seconds},
          {"detection_seconds", o.detection_seconds},
          {"restart_seconds", o.restart_seconds},
          {"waiting_seconds", o.waiting_seconds},
          {"failures", o.failures},
          {"interval_seconds", o.interval_seconds},
          {"ettr", o.ettr()}};
}

Ordered figures_json(const Candidate& c) {
  return {{"price", to_json(c.price)},     {"electricity_per_kwh", c.electricity_per_kwh},
          {"power", to_json(c.power)},     {"site", to_json(c.site)},
          {"grid", to_json(c.grid)},       {"failures", to_json(c.failures)},
          {"storage", to_json(c.storage)}, {"restarts", to_json(c.restarts)}};
}

Ordered reference_json(const CapacityAnswer& answer, std::size_t i) {
  const SizedCandidate& sized = answer.candidates[i];
  return {{"name", answer.plan.clusters[sized.cluster].name}, {"devices", sized.devices}};
}

Ordered candidate_json(const CapacityAnswer& answer, std::size_t i) {
  const SizedCandidate& sized = answer.candidates[i];
  const Verdict& verdict = answer.choice.verdicts[i];
  Ordered json = reference_json(answer, i);
  if (!verdict.possible) {
    json["impossible"] = sized.impossible;
    return json;
  }
  const Candidate& c = sized.candidate;
  json["nodes"] = c.run.nodes;
  json["spare_nodes"] = c.run.spare_nodes;
  json["steps"] = c.run.steps;
  json["tokens_per_step"] = c.tokens_per_step;
  json["step_seconds"] = estimate_json(c.step_seconds);
  if (sized.memory_capacity_bytes > 0) {
    json["mfu"] = sized.mfu;
    json["memory_peak_bytes"] = sized.memory_peak_bytes;
    json["memory_capacity_bytes"] = sized.memory_capacity_bytes;
    json["memory_fits"] = sized.memory_fits;
  }
  json["checkpoint_bytes"] = c.run.checkpoint_bytes;
  const Forecast& f = sized.forecast;
  json["wall_seconds"] = estimate_json(f.wall_seconds);
  json["cost"] = estimate_json(f.cost);
  json["device_hours"] = estimate_json(f.device_hours);
  json["energy_kwh"] = estimate_json(f.energy_kwh);
  json["carbon_kg"] = estimate_json(f.carbon_kg);
  json["ettr"] = estimate_json(f.ettr);
  json["goodput"] = estimate_json(f.goodput);
  json["outcome"] = outcome_json(f.outcome);
  json["meets"] = {{"memory", verdict.in_memory}, {"deadline", verdict.in_time}, {"budget", verdict.in_budget}};
  return json;
}

}  // namespace

nlohmann::ordered_json answer_json(const CapacityAnswer& answer) {
  const auto reference = [&](std::optional<std::size_t> i) { return i ? reference_json(answer, *i) : Ordered(); };
  const Choice& choice = answer.choice;
  Ordered json;
  json["currency"] = answer.plan.currency;
  json["held_by"] = answer.options.held_by == HeldBy::worst ? "worst" : "expectation";
  json["feasible"] = choice.cheapest.has_value();
  json["cheapest"] = reference(choice.cheapest);
  json["fastest"] = reference(choice.fastest);
  json["relaxations"] = Ordered::array();
  for (const Relaxation& r : choice.relaxations) {
    Ordered each = reference_json(answer, r.candidate);
    if (r.deadline_seconds) each["deadline_days"] = *r.deadline_seconds / 86400;
    if (r.budget_amount) each["budget_amount"] = *r.budget_amount;
    json["relaxations"].push_back(std::move(each));
  }
  json["clusters"] = Ordered::array();
  for (std::size_t c = 0; c < answer.plan.clusters.size(); ++c)
    json["clusters"].push_back({{"name", answer.plan.clusters[c].name},
                                {"devices_tried", answer.plan.clusters[c].devices},
                                {"best", reference(choice.best[c])},
                                {"fewest_devices_in_time", reference(choice.fewest[c])},
                                {"figures", figures_json(answer.plan.clusters[c].whole)}});
  json["candidates"] = Ordered::array();
  for (std::size_t i = 0; i < answer.candidates.size(); ++i) json["candidates"].push_back(candidate_json(answer, i));
  json["frontier"] = Ordered::array();
  for (const std::size_t i : choice.frontier) json["frontier"].push_back(reference_json(answer, i));
  json["histories"] = {{"count", answer.options.history_count},
                       {"seed", answer.options.histories.seed},
                       {"shape", answer.options.histories.shape}};
  json["failures"] = Ordered::array();
  for (const FailureStudy& study : answer.failures) {
    Ordered each = reference_json(answer, study.candidate);
    if (std::isfinite(study.seconds_between)) each["seconds_between_failures"] = study.seconds_between;
    each["stall_seconds"] = study.stall_seconds;
    each["young_seconds"] = study.young_seconds;
    each["daly_seconds"] = study.daly_seconds;
    each["optimal_seconds"] = study.optimal_seconds;
    each["closed_form"] = outcome_json(study.closed);
    each["simulated"] = {{"wall_seconds", spread_json(study.simulated_wall_seconds)},
                         {"ettr", spread_json(study.simulated_ettr)},
                         {"failures", spread_json(study.simulated_failures)}};
    json["failures"].push_back(std::move(each));
  }
  if (answer.tornado) {
    Ordered& tornado = json["tornado"];
    tornado = reference_json(answer, *answer.subject);
    tornado["output"] = kPlanOutputNames[static_cast<std::size_t>(answer.tornado->output)];
    tornado["swing"] = answer.tornado->swing;
    tornado["value"] = answer.tornado->value;
    tornado["bars"] = Ordered::array();
    for (const TornadoBar& each : answer.tornado->bars)
      tornado["bars"].push_back(
          {{"input", each.input}, {"at_less", each.at_less}, {"at_more", each.at_more}, {"less_fits", each.less_fits}});
  }
  json["break_even"] = Ordered::array();
  for (const PriceTie& tie : answer.ties) {
    Ordered each = reference_json(answer, tie.of);
    each["against"] = reference_json(answer, tie.against);
    each["price"] = estimate_json(tie.tie.price);
    each["ratio"] = estimate_json(tie.tie.ratio);
    json["break_even"].push_back(std::move(each));
  }
  return json;
}

std::string answer_csv(const CapacityAnswer& answer) {
  std::string text =
      "candidate,devices,spare_nodes,step_seconds,step_seconds_low,step_seconds_high,wall_seconds,wall_seconds_low,"
      "wall_seconds_high,cost,cost_low,cost_high,currency,device_hours,energy_kwh,carbon_kg,ettr,goodput,failures,"
      "interval_seconds,mfu,memory_peak_bytes,memory_fits,in_time,in_budget,impossible\n";
  for (std::size_t i = 0; i < answer.candidates.size(); ++i) {
    const SizedCandidate& sized = answer.candidates[i];
    const Verdict& verdict = answer.choice.verdicts[i];
    text += fmt::format("{},{}", csv_text(answer.plan.clusters[sized.cluster].name), sized.devices);
    if (!verdict.possible) {
      text += std::string(24, ',') + csv_text(sized.impossible) + "\n";
      continue;
    }
    const Estimate &step = sized.candidate.step_seconds, &wall = sized.forecast.wall_seconds,
                   &cost = sized.forecast.cost;
    text += fmt::format(",{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},\n",
                        sized.candidate.run.spare_nodes, step.value, step.low, step.high, wall.value, wall.low,
                        wall.high, cost.value, cost.low, cost.high, answer.plan.currency,
                        sized.forecast.device_hours.value, sized.forecast.energy_kwh.value,
                        sized.forecast.carbon_kg.value, sized.forecast.ettr.value, sized.forecast.goodput.value,
                        sized.forecast.outcome.failures, sized.forecast.outcome.interval_seconds, sized.mfu,
                        sized.memory_peak_bytes, verdict.in_memory, verdict.in_time, verdict.in_budget);
  }
  return text;
}

}  // namespace orrery
