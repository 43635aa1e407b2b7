#include "study/sweep/evaluate.h"

#include <fmt/format.h>

#include <exception>
#include <optional>
#include <utility>

#include "sim/base/digest.h"
#include "sim/base/json_reader.h"
#include "sim/report/memory_verdict.h"
#include "study/search/plan_field.h"
#include "study/search/search.h"

namespace orrery {
namespace {

using OrderedJson = nlohmann::ordered_json;

// How points were evaluated, beside their scenarios.
std::string method_text(const SweepDocument& sweep) {
  std::string text = orrery::method_text(sweep.simulation);
  if (sweep.search) {
    text += " search " + sweep.whole.at("search").dump();
    for (const std::string& fixed : sweep.search->space.fixed) text += " " + fixed;
  }
  return text;
}

class Evaluator {
 public:
  Evaluator(const SweepDocument& sweep, const SweepEvaluation& evaluation)
      : sweep_(sweep),
        evaluation_(evaluation),
        method_(method_text(sweep)),
        lines_(sweep),
        simulator_(evaluation.user) {}

  // The point's fields and key, and its scenario, or none where the row says in its error why there is none.
  std::pair<SweepRow, std::optional<Variant>> begin(const SweepPoint& point) {
    SweepRow row;
    row.number = point.number;
    row.fields = lines_.fields(point.choices);
    std::optional<Variant> scenario;
    try {
      scenario = simulator_.variant(lines_.line(point.choices), sweep_.source);
    } catch (const InputError& error) {
      row.error = error.what();
    }
    const std::optional<std::uint64_t> digest = scenario ? scenario->digest() : digest_of(row.fields, base_digest());
    row.scenario = digest_of(method_, digest ? *digest : digest_of(scenario->line));
    row.key = digest_of(evaluation_.program, row.scenario);
    return {std::move(row), std::move(scenario)};
  }

  // False: the machine's fault, of which `work` is told.
  bool finish(SweepRow& row, const std::optional<Variant>& scenario, SweepWork& work) {
    if (!scenario) return true;
    try {
      evaluate(*scenario, row);
    } catch (const InputError& error) {
      row.error = error.what();
    } catch (const StalledError& error) {
      row.error = error.what();
    } catch (const std::exception& error) {
      work.fail(error.what());
      return false;
    }
    return true;
  }

 private:
  void evaluate(const Variant& point, SweepRow& row) {
    if (sweep_.search) return search_best(point, row);
    if (sweep_.simulation.engine == Engine::analytical) {
      row.values = sweep_values(simulator_.evaluate(point, /*ops=*/false));
    } else {
      row.values = sweep_values(simulator_.evaluate(point.document(), sweep_.source, sweep_.simulation).report);
    }
  }

  void search_best(const Variant& point, SweepRow& row) {
    const Scenario scenario = read_scenario(point.document(), sweep_.source);
    try {
      const Space space(scenario, sweep_.search->space);
      const SearchResult found = search(space,
                                        {.top = 1,
                                         .front = 1,
                                         .leanest = false,
                                         .most_memory_bytes = sweep_.search->most_memory_bytes,
                                         .memory_margin = sweep_.search->safe ? kPeakHigh : 1,
                                         .threads = evaluation_.search_threads},
                                        evaluation_.user);
      if (found.best.empty()) {
        row.error = fmt::format("no plan fits: {} evaluated, {} proven too large, {} cannot be laid out",
                                found.evaluated, found.too_large, found.refused);
        return;
      }
      const Simulation best = simulator_.evaluate(space.scenario(found.best.front().values), sweep_.simulation);
      OrderedJson plan;
      for (const Space::Axis& axis : space.axes()) {
        if (axis.field == "global_batch_size") {
          plan["workload." + axis.field] = best.scenario.workload.global_batch_size;
        } else {
          plan["plan." + axis.field] = field_of(best.scenario.plan, axis.field);
        }
      }
      if (plan.contains("plan.data_parallel")) plan["plan.data_parallel"] = data_parallel_degree(best.scenario);
      row.plan = plan.dump();
      row.values = sweep_values(best.report);
    } catch (const InputError& error) {
      throw sweep_.source.blame(error);
    }
  }

  std::uint64_t base_digest() const { return orrery::digest_of(sweep_.base.dump()); }
  // The digest of a number and of what was read.
  static std::uint64_t digest_of(std::string_view text, std::uint64_t number) {
    return orrery::digest_of(text, orrery::digest_of(fmt::format("{:016x} ", number)));
  }
  static std::uint64_t digest_of(std::string_view text) { return orrery::digest_of(text); }

  const SweepDocument& sweep_;
  const SweepEvaluation& evaluation_;
  std::string method_;
  SweepLines lines_;
  Simulator simulator_;
};

}  // namespace

void evaluate_points(const SweepDocument& sweep, const SweepEvaluation& evaluation, SweepWork& work) {
  Evaluator evaluator(sweep, evaluation);
  const bool quick = !sweep.search && sweep.simulation.engine == Engine::analytical;
  constexpr std::size_t kQuickAtOnce = 512;  // a twentieth of a second
  std::vector<SweepRow> rows, done;
  std::vector<std::optional<Variant>> scenarios;
  for (std::vector<SweepPoint> points; !(points = work.take(quick ? kQuickAtOnce : 1)).empty();) {
    rows.clear();
    scenarios.clear();
    for (const SweepPoint& point : points) {
      auto [row, scenario] = evaluator.begin(point);
      rows.push_back(std::move(row));
      scenarios.push_back(std::move(scenario));
    }
    const std::vector<Kept> kept = work.kept(rows);
    done.clear();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      SweepRow& row = rows[i];
      if (kept[i] == Kept::point) continue;
      row.known = kept[i] == Kept::result;
      if (row.known) row.error.clear();
      if (row.known || evaluator.finish(row, scenarios[i], work)) done.push_back(std::move(row));
    }
    work.add(std::move(done));
  }
}

}  // namespace orrery
