#include "study/answers/sweep_answer.h"

#include <fmt/format.h>

#include <algorithm>

#include "sim/base/json_reader.h"
#include "sim/base/threads.h"
#include "sim/base/words.h"
#include "study/answers/inputs.h"
#include "study/search/plan_field.h"

namespace orrery {
namespace {

// "2/3": the second of three.
void read_shard(const std::string& text, SweepRunOptions& options) {
  if (text.empty()) return;
  const std::size_t slash = text.find('/');
  const auto shard = number_of(text.substr(0, slash)), shards = number_of(text.substr(slash + 1));
  if (slash == std::string::npos || !shard || !shards || *shard < 1 || *shard > *shards)
    throw InputError({"--shard", ""}, describe(nlohmann::json(text)), "1/3, 2/3 or 3/3: which of how many parts");
  options.shard = *shard - 1;
  options.shards = *shards;
}

}  // namespace

SweepDocument sweep_argument(const ScenarioArgument& argument) {
  if (argument.document != nullptr) return read_sweep(*argument.document, argument.name);
  ScenarioSource source;
  const nlohmann::json document = load_document(bundled_sweeps(), "sweep", argument.name, {}, source);
  return read_sweep(document, source.file);
}

SweepRunOptions sweep_options(const SweepRequest& request) {
  SweepRunOptions options;
  const int threads_here = request.helpers != nullptr ? request.helpers->threads_here() : hardware_threads();
  options.threads = request.threads > 0 ? static_cast<int>(request.threads) : threads_here;
  options.version = version_and_commit();
  read_shard(request.shard, options);
  options.user = read_user_calibration(request.calibrations);
  options.calibrations = digests_of_calibrations(request.calibrations);
  if (request.helpers != nullptr && request.helpers->processes() > 0) {
    options.helpers = request.helpers;
    --options.threads;  // one hands out and writes
  }
  return options;
}

void require_a_result(const SweepDocument& sweep, const SweepOutcome& outcome) {
  if (outcome.errors > 0 && outcome.errors == outcome.points)
    throw InputError({sweep.file, ""}, fmt::format("{} points, each without a result", outcome.points),
                     "at least one that can be evaluated; the database has the error of each");
}

std::vector<std::string> names_of_rows(const SweepDocument& sweep) {
  std::vector<std::string> names = sweep.fields();
  if (sweep.search) {
    for (const std::string& field : plan_field_names()) names.push_back("plan." + field);
    names.emplace_back("workload.global_batch_size");
  }
  for (const ReportColumn* column : sweep_columns()) names.push_back(column->name);
  names.insert(names.end(), kPointColumns.begin(), kPointColumns.end());
  return names;
}

void check_fields(const std::vector<std::string>& fields, const std::vector<std::string>& names, const char* expected) {
  for (auto field = fields.begin(); field != fields.end(); ++field) {
    if (std::find(names.begin(), names.end(), *field) == names.end())
      throw InputError({"--fields", ""}, fmt::format("the unknown field \"{}\"", *field), expected,
                       nearest_name(*field, names));
    if (std::find(fields.begin(), field, *field) != field)
      throw InputError({"--fields", ""}, fmt::format("\"{}\" a second time", *field), "each field once");
  }
}

std::vector<std::string> usual_fields(const SweepResults& results, std::int64_t sweep) {
  std::vector<std::string> names = results.names(sweep);
  names.erase(std::find(names.begin(), names.end(), kPointColumns.front()) + 1, names.end());
  return names;
}

std::string rows_json(const SweepResults& results, std::int64_t sweep, const std::vector<std::string>& fields) {
  std::string text = "[";
  const std::vector<std::string> chosen = fields.empty() ? usual_fields(results, sweep) : fields;
  results.for_each(sweep, chosen, /*as_json=*/true,
                   [&](const std::string& row) { text += (text.size() > 1 ? "," : "") + row; });
  return text + "]";
}

nlohmann::ordered_json sweep_json(const SweepRequest& request, const SweepDocument& sweep, const SweepResults& results,
                                  const SweepOutcome& outcome) {
  nlohmann::ordered_json json{{"database", request.database},     {"points", outcome.points},
                              {"computed", outcome.computed},     {"there_before", outcome.known},
                              {"without_result", outcome.errors}, {"first_error", nullptr}};
  if (outcome.errors > 0) json["first_error"] = outcome.first_error;
  json["notes"] = notes_on(sweep, results);
  return json;
}

std::vector<std::string> notes_on(const SweepDocument& sweep, const SweepResults& results) {
  std::vector<std::string> notes = results.doubts();
  if (sweep.leaves_out_perturbations())
    notes.emplace_back(
        "the scenario's perturbations are ignored: only the discrete-event engine uses them (\"engine\": \"des\")");
  return notes;
}

}  // namespace orrery
