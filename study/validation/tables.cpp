#include "study/validation/tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "sim/report/format.h"
#include "sim/report/terms.h"

namespace orrery {
namespace {

using OrderedJson = nlohmann::ordered_json;

// As published, where that is none of the quantities.
std::string measured_text(const PublishedPoint& p) {
  if (p.has_value()) return value_text(p.quantity, p.value);
  return p.published_metric.empty() ? "-" : fmt::format("{} {}", p.published_value, p.published_unit);
}

bool has_error(const PredictedPoint& p) { return p.is_predicted() && p.point->quantity != Quantity::fits; }

std::string groups_table(std::string_view heading, const std::vector<ErrorGroup>& groups) {
  std::vector<std::vector<std::string>> rows;
  for (const ErrorGroup& group : groups) {
    std::vector<std::string> row = error_cells(group.error);
    row.insert(row.begin(), group.name);
    row.insert(row.begin() + 2, std::to_string(group.not_predicted));
    row.push_back(ranking_cell(group.ranking));
    rows.push_back(std::move(row));
  }
  return grid(fmt::format("<{}|points|not predicted|median|mean|90th pct|worst|bias|tau (tables)", heading), rows);
}

std::string fits_text(const FitsConfusion& c) {
  if (c.fits_as_predicted + c.fails_as_predicted + c.wrongly_fits + c.wrongly_fails == 0) return "";
  std::string text = fmt::format(
      "Out of memory or not: {} ran as predicted, {} failed as predicted, {} ran although predicted not to fit, {} "
      "failed although predicted to fit;\n{} of the wrong predictions are more than {:.0f} % from the capacity\n",
      c.fits_as_predicted, c.fails_as_predicted, c.wrongly_fails, c.wrongly_fits, c.wrong_beyond_margin,
      kPercent * kFitsMargin);
  if (!c.wrong.empty()) text += grid(kWronglyJudged, wrongly_judged(c));
  return text;
}

OrderedJson statistics_json(const ErrorGroup& group) {
  const ErrorStatistics& e = group.error;
  OrderedJson json{{"name", group.name}, {"points", e.points}, {"not_predicted", group.not_predicted},
                   {"mean", e.mean},     {"median", e.median}, {"percentile_90", e.percentile_90},
                   {"worst", e.worst},   {"bias", e.bias}};
  if (group.ranking.tables > 0)
    json["kendall_tau"] = {
        {"tables", group.ranking.tables}, {"mean", group.ranking.tau}, {"best_lost", group.ranking.best_lost}};
  return json;
}

}  // namespace

std::vector<std::string> error_cells(const ErrorStatistics& e) {
  if (e.points == 0) return {"0", "-", "-", "-", "-", "-"};
  return {std::to_string(e.points),      percent_text(e.median), percent_text(e.mean),
          percent_text(e.percentile_90), percent_text(e.worst),  signed_percent_text(e.bias)};
}

std::string ranking_cell(const Ranking& ranking) {
  return ranking.tables > 0 ? fmt::format("{:.2f} ({})", ranking.tau, ranking.tables) : "-";
}

std::vector<std::vector<std::string>> wrongly_judged(const FitsConfusion& confusion) {
  std::vector<std::vector<std::string>> rows;
  for (const PredictedPoint* p : confusion.wrong)
    rows.push_back({p->point->id, p->source->name, ran(*p->point) ? "ran" : "ended out of memory",
                    bytes_text(p->peak_bytes), bytes_text(p->capacity_bytes),
                    signed_percent_text(p->peak_bytes / p->capacity_bytes - 1)});
  return rows;
}

std::string validation_table(std::span<const PredictedPoint> points) {
  std::string text;
  for (std::size_t q = 0; q < kQuantityNames.size(); ++q) {
    if (static_cast<Quantity>(q) == Quantity::fits) continue;
    std::vector<ErrorGroup> groups = groups_by(points, [&](const PredictedPoint& p) {
      return static_cast<std::size_t>(p.point->quantity) == q ? p.source->name : std::string();
    });
    if (groups.empty()) continue;
    std::vector<ErrorGroup> all = groups_by(points, [&](const PredictedPoint& p) {
      return static_cast<std::size_t>(p.point->quantity) == q && p.is_measured() ? std::string("all measured") : "";
    });
    if (groups.size() > 1 && !all.empty()) groups.push_back(std::move(all.front()));
    text += fmt::format("{}\n{}\n", kQuantityNames[q], groups_table("source", groups));
  }
  text += fits_text(fits_confusion(points));
  std::vector<const PredictedPoint*> worst;
  for (const PredictedPoint& p : points)
    if (has_error(p)) worst.push_back(&p);
  sort_worst_first(worst);
  worst.resize(std::min(worst.size(), kWorstShown));
  if (worst.empty()) return text;
  text += "\nWorst, by the factor of the error (orrery simulate ID runs one of them again)\n";
  std::vector<std::vector<std::string>> rows;
  for (const PredictedPoint* p : worst)
    rows.push_back({p->point->id, p->source->name, std::string(name_of(p->point->quantity)),
                    value_text(p->point->quantity, p->point->value), value_text(p->point->quantity, p->predicted),
                    signed_percent_text(p->error())});
  return text + grid("<id|<source|<|measured|predicted|error", rows);
}

std::string points_table(std::span<const PredictedPoint> points) {
  std::vector<std::vector<std::string>> rows;
  for (const PredictedPoint& p : points) {
    const Quantity quantity = p.point->quantity;
    rows.push_back({p.point->id, p.source->name, measured_text(*p.point),
                    p.is_predicted() ? value_text(quantity, p.predicted) : "-",
                    has_error(p) ? signed_percent_text(p.error()) : "-", p.not_predicted});
  }
  return grid("<id|<source|measured|predicted|error|<", rows);
}

std::string points_csv(std::span<const PredictedPoint> points) {
  const FitsConfusion fits = fits_confusion(points);
  const std::set<const PredictedPoint*> wrong(fits.wrong.begin(), fits.wrong.end());
  std::string text =
      "id,source,quantity,measured,predicted,error,peak_bytes,capacity_bytes,judged_wrongly,device,framework,devices,"
      "not_predicted\n";
  for (const PredictedPoint& p : points) {
    text += fmt::format("{},{},{},", csv_text(p.point->id), p.source->name, name_of(p.point->quantity));
    text += p.point->has_value() ? fmt::format("{},", p.point->value) : ",";
    text += p.is_predicted() ? fmt::format("{},", p.predicted) : ",";
    text += has_error(p) ? fmt::format("{},", p.error()) : ",";
    text += p.capacity_bytes > 0 ? fmt::format("{},{},{},", p.peak_bytes, p.capacity_bytes, wrong.count(&p)) : ",,,";
    text += fmt::format("{},{},{},{}\n", csv_text(p.device), p.framework, p.devices, csv_text(p.not_predicted));
  }
  return text;
}

nlohmann::ordered_json validation_json(std::span<const PredictedPoint> points) {
  OrderedJson json;
  json["points"] = OrderedJson::array();
  for (const PredictedPoint& p : points) {
    OrderedJson one{{"id", p.point->id},
                    {"source", p.source->name},
                    {"where", p.point->where},
                    {"table", p.point->table},
                    {"quality", p.point->quality},
                    {"composed", !p.is_measured()},
                    {"quantity", name_of(p.point->quantity)},
                    {"measured", p.point->has_value() ? OrderedJson(p.point->value) : OrderedJson()},
                    {"published",
                     {{"metric", p.point->published_metric},
                      {"value", p.point->published_value},
                      {"unit", p.point->published_unit}}},
                    {"assumptions", p.point->assumptions}};
    if (p.is_predicted()) {
      one["predicted"] = p.predicted;
      if (has_error(p)) one["error"] = p.error();
      one["peak_bytes"] = p.peak_bytes;
      one["capacity_bytes"] = p.capacity_bytes;
      one["device"] = p.device;
      one["devices"] = p.devices;
      one["nodes"] = p.nodes;
      one["framework"] = p.framework;
      one["measured_device"] = p.measured_device();
      one["strategies"] = p.strategies;
      one["bound_by"] = p.bound_by;
      for (const TimeTerm& term : time_terms())
        if (term.of(p.time) > 0) one["terms"][term.name] = term.of(p.time);
    } else {
      one["not_predicted"] = p.not_predicted;
    }
    if (!p.point->claims.empty()) one["claims"] = p.point->claims;
    json["points"].push_back(std::move(one));
  }
  OrderedJson groups = OrderedJson::object();
  for (const ErrorGroup& group : groups_by(points, [](const PredictedPoint& p) {
         return p.source->name + "/" + std::string(name_of(p.point->quantity));
       }))
    groups[group.name] = statistics_json(group);
  json["groups"] = std::move(groups);
  const FitsConfusion fits = fits_confusion(points);
  json["fits"] = {{"fits_as_predicted", fits.fits_as_predicted},
                  {"fails_as_predicted", fits.fails_as_predicted},
                  {"wrongly_fits", fits.wrongly_fits},
                  {"wrongly_fails", fits.wrongly_fails},
                  {"wrong_beyond_margin", fits.wrong_beyond_margin}};
  json["fits"]["judged_wrongly"] = OrderedJson::array();
  for (const PredictedPoint* p : fits.wrong)
    json["fits"]["judged_wrongly"].push_back({{"id", p->point->id},
                                              {"source", p->source->name},
                                              {"ran", ran(*p->point)},
                                              {"peak_bytes", p->peak_bytes},
                                              {"capacity_bytes", p->capacity_bytes}});
  return json;
}

}  // namespace orrery
