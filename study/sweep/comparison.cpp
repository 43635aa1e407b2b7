#include "study/sweep/comparison.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>

#include "sim/base/digest.h"
#include "sim/base/error.h"
#include "sim/base/one_line.h"
#include "sim/base/statistics.h"
#include "sim/report/columns.h"
#include "sim/report/format.h"
#include "study/sweep/results.h"

namespace orrery {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr double kNoRatio = std::numeric_limits<double>::infinity();

struct KeptPoint {
  std::string scenario;  // a digest
  std::string place;     // of the document and the point's number in it, a digest
  std::string fields, error, plan;
  std::vector<OrderedJson> figures;
};

bool is_flag(const std::string& figure) {
  static const Report nothing;
  const ReportColumn* column = find_report_column(figure);
  return column != nullptr && std::holds_alternative<bool>(column->value(nothing));
}

std::vector<std::string> texts_of(const Database& database, const char* sql) {
  std::vector<std::string> texts;
  for (Statement rows(database, sql); rows.step();) texts.push_back(rows.text(0));
  return texts;
}

// `what`: the file. Figures are whatever that version of Orrery had.
std::vector<KeptPoint> read_points(const std::string& path, const std::vector<std::string>& figures,
                                   ComparedSweeps& what) {
  const Database database(path, Database::Mode::read, sweep_database());
  const std::vector<std::string> columns =
      texts_of(database, "SELECT name FROM pragma_table_info('results') WHERE cid > 4 ORDER BY cid");
  std::string names;
  std::vector<bool> flags;
  for (const std::string& figure : figures) {
    if (std::find(columns.begin(), columns.end(), figure) == columns.end())
      throw InputError({path, ""}, fmt::format("no figure \"{}\"", one_line(figure)),
                       "a column of its table of results", nearest_name(figure, columns));
    names += ", r." + figure;
    flags.push_back(is_flag(figure));
  }
  Statement rows(database, fmt::format("SELECT r.scenario, s.document, p.number, p.fields, r.error, r.plan{} FROM "
                                       "points p JOIN results r ON r.key = p.key JOIN sweeps s ON s.id = p.sweep "
                                       "ORDER BY p.sweep, p.number",
                                       names));
  constexpr int kFirstFigure = 6;
  std::vector<KeptPoint> points;
  std::unordered_map<std::string, std::size_t> last;  // of a scenario's results
  while (rows.step()) {
    KeptPoint point{rows.text(0), fmt::format("{:x}", digest_of(fmt::format("{}\n{}", rows.text(1), rows.integer(2)))),
                    rows.text(3), rows.text(4),
                    rows.text(5), {}};
    for (std::size_t i = 0; i < figures.size(); ++i) {
      const int at = kFirstFigure + static_cast<int>(i);
      if (rows.is_null(at)) {
        point.figures.emplace_back();
      } else if (flags[i]) {
        point.figures.emplace_back(rows.integer(at) != 0);
      } else if (rows.is_text(at)) {
        point.figures.emplace_back(rows.text(at));
      } else {
        point.figures.emplace_back(rows.number(at));
      }
    }
    const auto [known, is_new] = last.try_emplace(point.scenario, points.size());
    if (is_new) points.emplace_back();
    points[known->second] = std::move(point);
  }
  what = {path, texts_of(database, "SELECT DISTINCT version FROM sweeps ORDER BY id"), doubts_about(database)};
  return points;
}

// The partner of each point of `a` in `b`, if any.
using Partners = std::vector<std::optional<std::size_t>>;

// Pairs points of `a` and of `b` that have no partner yet and that alone have a key.
void pair_by(const std::string KeptPoint::*key, const std::vector<KeptPoint>& a, const std::vector<KeptPoint>& b,
             Partners& of_a, Partners& of_b) {
  struct Places {
    std::vector<std::size_t> a, b;
  };
  std::unordered_map<std::string_view, Places> of_key;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!of_a[i]) of_key[a[i].*key].a.push_back(i);
  for (std::size_t i = 0; i < b.size(); ++i)
    if (!of_b[i]) of_key[b[i].*key].b.push_back(i);
  for (const auto& [name, places] : of_key) {
    if (places.a.size() != 1 || places.b.size() != 1) continue;
    of_a[places.a.front()] = places.b.front();
    of_b[places.b.front()] = places.a.front();
  }
}

double change_of(const OrderedJson& a, const OrderedJson& b) {
  if (a == b) return 0;
  return a.is_number() && b.is_number() && a != 0 ? b.get<double>() / a.get<double>() - 1 : kNoRatio;
}

// `changes`: by figure, of all points so far.
void compare(const KeptPoint& a, const KeptPoint& b, SweepComparison& into, std::vector<std::vector<double>>& changes) {
  ++into.in_both;
  if (a.error.empty() != b.error.empty()) {
    const auto side = [](const std::string& error) {
      return error.empty() ? OrderedJson() : OrderedJson(one_line(error));
    };
    into.moved.push_back({b.fields, "error", side(a.error), side(b.error), kNoRatio});
    return;
  }
  if (a.plan != b.plan) ++into.other_plans;
  for (std::size_t i = 0; i < changes.size(); ++i) {
    if (a.figures[i].is_null() && b.figures[i].is_null()) continue;
    const double change = change_of(a.figures[i], b.figures[i]);
    if (std::isfinite(change)) changes[i].push_back(change);
    if (!(std::abs(change) > into.threshold)) continue;
    ++into.figures[i].moved;
    into.moved.push_back({b.fields, into.figures[i].figure, a.figures[i], b.figures[i], change});
  }
}

std::string text_of(const OrderedJson& figure, std::string_view name) {
  if (figure.is_null()) return "-";
  if (figure.is_boolean()) return figure.get<bool>() ? "yes" : "no";
  if (figure.is_string()) return clipped(figure.get<std::string>(), 60);
  if (name.ends_with("_seconds")) return seconds_text(figure);
  if (name.ends_with("_bytes")) return bytes_text(figure);
  return fmt::format("{:.4g}", figure.get<double>());
}

// "cluster.nodes 8, plan.tensor_parallel 4"
std::string fields_text(const std::string& fields) {
  std::string text;
  const OrderedJson json = object_in(fields);
  for (const auto& [field, value] : json.items())
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", field,
                        value.is_string() ? value.get<std::string>() : value.dump());
  return one_line(text.empty() ? "the scenario itself" : text);
}

std::string points_text(std::size_t count) { return fmt::format("{} point{}", count, count == 1 ? "" : "s"); }

}  // namespace

SweepComparison compare_sweeps(const std::string& a, const std::string& b, const SweepComparisonOptions& options) {
  SweepComparison comparison;
  const std::vector<KeptPoint> points_a = read_points(a, options.figures, comparison.a),
                               points_b = read_points(b, options.figures, comparison.b);
  comparison.threshold = options.threshold;
  Partners of_a(points_a.size()), of_b(points_b.size());
  for (const auto key : {&KeptPoint::scenario, &KeptPoint::place, &KeptPoint::fields})
    pair_by(key, points_a, points_b, of_a, of_b);
  for (const std::string& figure : options.figures) comparison.figures.push_back({figure});
  std::vector<std::vector<double>> changes(options.figures.size());
  for (std::size_t i = 0; i < points_a.size(); ++i) {
    if (of_a[i]) {
      compare(points_a[i], points_b[*of_a[i]], comparison, changes);
    } else {
      comparison.only_in_a.push_back(points_a[i].fields);
    }
  }
  for (std::size_t i = 0; i < points_b.size(); ++i)
    if (!of_b[i]) comparison.only_in_b.push_back(points_b[i].fields);
  if (comparison.in_both == 0)
    throw InputError({b, ""}, fmt::format("no point of {}", a), "sweeps with points in common");
  for (std::size_t i = 0; i < changes.size(); ++i) {
    if (changes[i].empty()) continue;
    const auto [lowest, highest] = std::ranges::minmax(changes[i]);
    comparison.figures[i].lowest = lowest;
    comparison.figures[i].median = median(changes[i]);
    comparison.figures[i].highest = highest;
  }
  std::ranges::stable_sort(comparison.moved, std::greater(), [](const MovedFigure& m) { return std::abs(m.change); });
  return comparison;
}

std::string sweep_comparison_text(const SweepComparison& c, std::size_t most) {
  std::string text;
  for (const auto& [letter, side] : {std::pair("A", &c.a), std::pair("B", &c.b)})
    text += fmt::format("{}: {} (orrery {})\n", letter, side->file,
                        one_line(fmt::format("{}", fmt::join(side->versions, ", "))));
  for (const ComparedSweeps* side : {&c.a, &c.b})
    for (const std::string& doubt : side->doubts) text += doubt + "\n";
  text += fmt::format("{} in both, {} only in A, {} only in B\n", points_text(static_cast<std::size_t>(c.in_both)),
                      c.only_in_a.size(), c.only_in_b.size());
  if (!c.only_in_a.empty())
    text += fmt::format("First point that is only in A: {}\n", fields_text(c.only_in_a.front()));
  if (c.other_plans > 0)
    text += fmt::format("Searches found another plan at {}\n", points_text(static_cast<std::size_t>(c.other_plans)));
  const std::string moved = fmt::format("moved by more than {}", percent_text(c.threshold));
  std::vector<std::vector<std::string>> rows;
  for (const FigureChanges& f : c.figures) {
    std::vector<std::string> row{f.figure, fmt::format("{}", f.moved)};
    if (is_flag(f.figure)) {
      row.insert(row.end(), 3, "");
    } else {
      for (const double change : {f.lowest, f.median, f.highest}) row.push_back(signed_percent_text(change));
    }
    rows.push_back(std::move(row));
  }
  text += "\n" + grid(fmt::format("<|{}|lowest|median|highest", moved), rows);
  if (c.moved.empty()) return text;
  rows.clear();
  for (const MovedFigure& m : c.moved) {
    if (rows.size() == most) break;
    rows.push_back({m.figure, text_of(m.a, m.figure), text_of(m.b, m.figure),
                    std::isfinite(m.change) ? signed_percent_text(m.change) : "", fields_text(m.fields)});
  }
  text += "\n" + grid("<|A|B|change|<at", rows);
  if (c.moved.size() > most) text += fmt::format("  and {} more (--top, --json, --csv)\n", c.moved.size() - most);
  return text;
}

OrderedJson sweep_comparison_json(const SweepComparison& c) {
  OrderedJson json;
  for (const auto& [letter, side] : {std::pair("a", &c.a), std::pair("b", &c.b)})
    json[letter] = {{"file", side->file}, {"versions", side->versions}, {"notes", side->doubts}};
  json["threshold"] = c.threshold;
  json["alike"] = c.alike();
  json["points_in_both"] = c.in_both;
  for (const auto& [key, points] : {std::pair("only_in_a", &c.only_in_a), std::pair("only_in_b", &c.only_in_b)}) {
    json[key] = OrderedJson::array();
    for (const std::string& fields : *points) json[key].push_back(object_in(fields));
  }
  json["other_plans"] = c.other_plans;
  json["figures"] = OrderedJson::array();
  for (const FigureChanges& f : c.figures)
    json["figures"].push_back(
        {{"figure", f.figure}, {"moved", f.moved}, {"lowest", f.lowest}, {"median", f.median}, {"highest", f.highest}});
  json["moved"] = OrderedJson::array();
  for (const MovedFigure& m : c.moved) {
    OrderedJson row{{"fields", object_in(m.fields)}, {"figure", m.figure}, {"a", m.a}, {"b", m.b}};
    row["change"] = std::isfinite(m.change) ? OrderedJson(m.change) : OrderedJson();
    json["moved"].push_back(std::move(row));
  }
  return json;
}

std::string sweep_comparison_csv(const SweepComparison& c) {
  std::string text = "fields,figure,a,b,change\n";
  const auto cell = [](const OrderedJson& value) {
    return value.is_null() ? "" : csv_text(value.is_string() ? value.get<std::string>() : value.dump());
  };
  for (const MovedFigure& m : c.moved)
    text += fmt::format("{},{},{},{},{}\n", csv_text(m.fields), m.figure, cell(m.a), cell(m.b),
                        std::isfinite(m.change) ? OrderedJson(m.change).dump() : "");
  return text;
}

}  // namespace orrery
