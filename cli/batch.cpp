#include "cli/batch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "cli/command.h"
#include "cli/output.h"
#include "sim/base/input_file.h"
#include "sim/base/json_reader.h"
#include "sim/base/json_writer.h"
#include "sim/base/one_line.h"
#include "sim/base/words.h"
#include "sim/program/check.h"
#include "sim/report/columns.h"
#include "sim/report/format.h"
#include "sim/report/json.h"
#include "study/answers/arguments.h"
#include "study/answers/inputs.h"
#include "study/answers/results.h"
#include "study/answers/sweep_answer.h"

namespace orrery {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson error_json(const InputError& error) {
  const auto bounded = [](const std::string& text) { return clipped(text, kMostMessageBytes); };
  return {{"message", error.what()},
          {"file", bounded(error.where().file)},
          {"pointer", bounded(error.where().pointer)},
          {"found", bounded(error.found())},
          {"expected", bounded(error.expected())},
          {"nearest", error.nearest()}};
}

OrderedJson violations_json(const std::vector<Violation>& found, const std::string& file) {
  OrderedJson rules = OrderedJson::array();
  for (const Violation& v : found) rules.push_back({{"rule", static_cast<int>(v.rule)}, {"text", v.text}});
  return {{"message", fmt::format("{}: rule {} of sim/program/check.h: {}", file, static_cast<int>(found.front().rule),
                                  found.front().text)},
          {"file", file},
          {"violations", std::move(rules)}};
}

std::size_t count_lines(LineReader& lines) {
  std::string line;
  while (lines.next(line)) {
  }
  const auto count = static_cast<std::size_t>(lines.number());
  return lines.rewind() ? count : 0;
}

// `all`: 0 if it is not known.
void show_progress(ProgressLine& progress, std::size_t done, std::size_t all) {
  if (!progress.is_due()) return;
  std::string left_over;
  if (all > 0)
    left_over =
        fmt::format(" of {}, {} to go", all,
                    seconds_text(progress.seconds() / static_cast<double>(done) * static_cast<double>(all - done)));
  progress.show(fmt::format("{} scenarios{}", done, left_over));
}

constexpr std::string_view kScenario = "scenario";  // field name: the line's number in the input or label

// A line of the input with its result: a report, jobs or an error.
struct BatchLine {
  std::string name;  // in rows
  ScenarioSource source;
  std::optional<std::uint64_t> digest{};
  const Report* report = nullptr;
  std::optional<std::vector<JobResult>> jobs{};
  OrderedJson error{};
};

// The results of lines, in the wanted formats.
class BatchResults {
 public:
  explicit BatchResults(const SimulateArguments& arguments) : arguments_(arguments), inputs_(arguments.calibrations) {
    std::vector<std::string> names;
    if (!arguments.fields.empty()) {
      names = list_of_text(arguments.fields);
      check_fields(names, field_names(), "names of the columns that --csv has, separated by commas");
    } else if (!arguments.csv.empty()) {
      names = field_names();
    }
    for (const std::string& name : names) fields_.push_back(field_of(name));
    if (!arguments.json.empty() || arguments.csv.empty()) json_.emplace(arguments.json.empty() ? "-" : arguments.json);
    if (arguments.csv.empty()) return;
    csv_.emplace(arguments.csv);
    for (const Field& field : fields_) text_ += field.name + ',';
    csv_->write(text_ + "error\n");
  }

  static std::vector<std::string> field_names() {
    std::vector<std::string> names{std::string(kScenario)};
    for (const ReportColumn& column : report_columns()) names.push_back(column.name);
    names.insert(names.end(), kInputColumns.begin(), kInputColumns.end());
    return names;
  }

  bool need_ops() const {
    return arguments_.ops || (arguments_.fields.empty() && json_) ||
           std::any_of(fields_.begin(), fields_.end(),
                       [](const Field& f) { return f.column != nullptr && f.column->of_ops; });
  }

  bool need_digest(bool of_error) const {
    return (json_ && (of_error || arguments_.fields.empty())) ||
           std::any_of(fields_.begin(), fields_.end(),
                       [](const Field& f) { return f.column == nullptr && f.name == kInputColumns.front(); });
  }

  void add(const BatchLine& line) {
    cells_ = inputs_.columns(line.digest);
    if (json_) {
      text_.clear();
      JsonWriter writer(text_);
      writer.begin_object();
      if (arguments_.fields.empty() || !line.error.is_null()) {
        write_whole(line, writer);
      } else if (line.jobs) {
        write_jobs(line, writer);
      } else {
        write_fields(line.name, *line.report, writer);
      }
      writer.end_object();
      json_->write(text_ += '\n');
    }
    if (!csv_) return;
    if (!line.jobs) return write_row(line, line.name, line.report);
    for (const JobResult& job : *line.jobs) write_row(line, name_of(line, job), &job.together);
  }

  void commit() {
    if (json_) json_->commit();
    if (csv_) csv_->commit();
  }

 private:
  struct Field {
    std::string name;
    const ReportColumn* column;  // nullptr: not a figure of the report
    // If no column: index into kInputColumns, or their number for the line's name.
    std::size_t input;
  };

  static Field field_of(std::string_view name) {
    const auto input = std::find(kInputColumns.begin(), kInputColumns.end(), name);
    return {std::string(name), find_report_column(name), static_cast<std::size_t>(input - kInputColumns.begin())};
  }
  static std::string name_of(const BatchLine& line, const JobResult& job) { return line.name + "#" + job.job.name; }

  // `report`: null for a line in error, which has no figures.
  ColumnValue value_of(const Field& field, const std::string& name, const Report* report) const {
    if (field.column != nullptr)
      return report != nullptr ? field.column->value(*report) : std::numeric_limits<double>::quiet_NaN();
    return field.input == kInputColumns.size() ? std::string_view(name) : cells_[field.input];
  }

  // Whole results, and errors, as of a single scenario.
  void write_whole(const BatchLine& line, JsonWriter& writer) const {
    if (!arguments_.label.empty()) writer.field("label", arguments_.label);
    writer.field("scenario", line.source.file);
    writer.key("set");
    writer.begin_array();
    for (const std::string& set : line.source.sets) writer.value(set);
    writer.end_array();
    if (line.report != nullptr) {
      write_report(*line.report, arguments_.ops, writer);
    } else if (line.jobs) {
      writer.json_field("jobs", json_text(jobs_json(*line.jobs, arguments_.ops)));
    } else {
      writer.json_field("error", json_text(line.error));
    }
    writer.field("version", ORRERY_VERSION);
    writer.json_field("inputs", json_text(inputs_.json(line.digest)));
  }

  void write_jobs(const BatchLine& line, JsonWriter& writer) const {
    writer.key("jobs");
    writer.begin_array();
    for (const JobResult& job : *line.jobs) {
      writer.begin_object();
      writer.field("name", job.job.name);
      writer.field("slowdown", job.slowdown());
      writer.field("alone_seconds", job.alone_seconds);
      writer.key("together");
      writer.begin_object();
      write_fields(name_of(line, job), job.together, writer);
      writer.end_object();
      writer.end_object();
    }
    writer.end_array();
  }

  void write_fields(const std::string& name, const Report& report, JsonWriter& writer) const {
    for (const Field& field : fields_) {
      writer.key(field.name);
      write_json(value_of(field, name, &report), writer);
    }
  }

  void write_row(const BatchLine& line, const std::string& name, const Report* report) {
    text_.clear();
    for (const Field& field : fields_) {
      append_csv(value_of(field, name, report), text_);
      text_ += ',';
    }
    if (!line.error.is_null()) text_ += csv_text(line.error["message"].get_ref<const std::string&>());
    csv_->write(text_ += '\n');
  }

  const SimulateArguments& arguments_;
  InputsOfMany inputs_;
  InputCells cells_;  // of the line that is added
  std::vector<Field> fields_;
  std::optional<OutputStream> json_, csv_;
  std::string text_;
};

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r\n") == std::string_view::npos; }

}  // namespace

void run_batch(const SimulateArguments& arguments) {
  SimulationOptions simulation = arguments.engine.options();
  check_outputs({arguments.json, arguments.csv});
  Simulator simulator(read_user_calibration(arguments.calibrations));
  LineReader lines(arguments.batch, "a readable file of JSON lines with one scenario each");
  const std::string& name = lines.name();
  // Checks `sets` once: a set that no line can use is not each line's error.
  for (const std::string& set : arguments.sets) {
    nlohmann::json nothing;
    apply_set(nothing, set, "");
  }
  const bool can_begin_anew = arguments.batch != "-" && ::isatty(STDERR_FILENO) != 0 && lines.rewind();
  const std::size_t all = can_begin_anew ? count_lines(lines) : 0;
  ProgressLine progress;
  BatchResults results(arguments);
  simulation.ops = results.need_ops();
  std::size_t scenarios = 0, failed = 0, verified = 0, wrong_programs = 0;
  std::string first_error;
  for (std::string text; lines.next(text);) {
    if (is_blank(text)) continue;
    ++scenarios;
    BatchLine line{.name = {}, .source = {fmt::format("{}:{}", name, lines.number()), arguments.sets}};
    // Only errors in the line's result are the line's; a failure to write results is the batch's.
    std::optional<Variant> variant;
    std::optional<Simulation> one;
    try {
      if (text[text.find_first_not_of(" \t\r")] == '"') {  // a name stands for its scenario, as on a command line
        ScenarioSource named;
        text = scenario_argument(parse_json(text, line.source.file).get<std::string>(), {}, named).dump();
        line.source.file = std::move(named.file);
      }
      variant = simulator.variant(text, line.source);
      if (simulation.engine == Engine::analytical && !arguments.verify) {
        line.report = &simulator.evaluate(*variant, simulation.ops);
      } else {
        const nlohmann::json document = variant->document();
        if (has_jobs(document)) {
          if (arguments.verify) throw InputError({"--verify", ""}, "jobs", "a scenario of one job");
          line.jobs = simulator.evaluate_jobs(document, line.source, simulation);
        } else {
          one.emplace(simulator.evaluate(document, line.source, simulation));
          verified += arguments.verify ? 1 : 0;
          const std::vector<Violation> found = arguments.verify ? check(*one->program) : std::vector<Violation>{};
          if (found.empty()) {
            line.report = &one->report;
          } else {
            ++wrong_programs;
            line.error = violations_json(found, line.source.file);
          }
        }
      }
    } catch (const InputError& wrong) {
      line.error = error_json(wrong);
    } catch (const StalledError& stalled) {
      line.error = {{"message", stalled.what()}, {"file", line.source.file}, {"stalled", true}};
    } catch (const std::exception& internal) {  // one line's failure does not affect the others
      line.error = {{"message", fmt::format("{}: {}", line.source.file, error_text(internal))},
                    {"file", line.source.file},
                    {"internal", true}};
    }
    if (variant && results.need_digest(!line.error.is_null())) line.digest = variant->digest();
    line.name = arguments.label.empty() ? line.source.file : fmt::format("{}:{}", arguments.label, lines.number());
    if (!line.error.is_null() && ++failed == 1) first_error = line.error["message"].get<std::string>();
    results.add(line);
    show_progress(progress, scenarios, all);
  }
  if (scenarios == 0) throw InputError({name, ""}, "no scenario", "one scenario per line");
  results.commit();
  if (verified > 0)
    fmt::print(stderr, "orrery: verified: {} program{}, {} with violations\n", verified, verified == 1 ? "" : "s",
               wrong_programs > 0 ? std::to_string(wrong_programs) : "none");
  if (wrong_programs > 0) throw Exit{1};
  if (failed == scenarios)
    throw InputError({name, ""},
                     scenarios == 1 ? "one scenario, in error" : fmt::format("{} scenarios, each in error", scenarios),
                     "at least one that can be simulated; the output has the error of each");
  if (failed > 0)
    fmt::print(stderr, "orrery: {} of {} scenarios in error, the first: {}\n", failed, scenarios, first_error);
}

}  // namespace orrery
