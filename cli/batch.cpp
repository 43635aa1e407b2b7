#include "cli/batch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "cli/command.h"
#include "cli/output.h"
#include "sim/base/argument.h"
#include "sim/base/input_file.h"
#include "sim/base/json_reader.h"
#include "sim/base/json_writer.h"
#include "sim/base/one_line.h"
#include "sim/program/check.h"
#include "sim/report/columns.h"
#include "sim/report/format.h"
#include "sim/report/json.h"
#include "study/answers/inputs.h"
#include "study/answers/results.h"
#include "study/answers/scenario_argument.h"

namespace orrery {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson error_json(const InputError& error) {
  const auto bounded = [](const std::string& text) { return clipped(text, kMostMessageBytes); };
  return {{"error",
           {{"message", error.what()},
            {"file", bounded(error.where().file)},
            {"pointer", bounded(error.where().pointer)},
            {"found", bounded(error.found())},
            {"expected", bounded(error.expected())},
            {"nearest", error.nearest()}}}};
}

OrderedJson violations_json(const std::vector<Violation>& found, const std::string& file) {
  OrderedJson rules = OrderedJson::array();
  for (const Violation& v : found) rules.push_back({{"rule", static_cast<int>(v.rule)}, {"text", v.text}});
  return {{"error",
           {{"message", fmt::format("{}: rule {} of sim/program/check.h: {}", file,
                                    static_cast<int>(found.front().rule), found.front().text)},
            {"file", file},
            {"violations", std::move(rules)}}}};
}

// Shows how far a batch has come, on a terminal only: after the first second, and a few times per second from then on.
class Progress {
 public:
  explicit Progress(std::size_t total) : total_(total) {}

  void advance() {
    ++done_;
    if (!line_.on_terminal()) return;
    const auto now = Clock::now();
    if (now < next_) return;
    next_ = now + std::chrono::milliseconds(200);
    const double elapsed = std::chrono::duration<double>(now - start_).count();
    std::string left_over;
    if (total_ > 0)
      left_over = fmt::format(" of {}, {} to go", total_,
                              seconds_text(elapsed / static_cast<double>(done_) * static_cast<double>(total_ - done_)));
    line_.show(fmt::format("{} scenarios{}", done_, left_over));
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::size_t total_, done_ = 0;
  ProgressLine line_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point next_ = start_ + std::chrono::seconds(1);
};

std::size_t count_lines(LineReader& lines) {
  std::string line;
  while (lines.next(line)) {
  }
  const auto count = static_cast<std::size_t>(lines.number());
  return lines.rewind() ? count : 0;
}

constexpr std::string_view kScenario = "scenario";  // field name: the line's number in the input or label

// A line of the input, with the name of its results.
struct BatchLine {
  const ScenarioSource& source;
  std::string name;  // in rows
  std::optional<std::uint64_t> digest;
};

// The results of one line, in the wanted formats.
class BatchResults {
 public:
  explicit BatchResults(const BatchOptions& options) : options_(options), inputs_(options.calibrations) {
    for (const std::string& name : options.fields) fields_.push_back(field_of(name));
    if (fields_.empty() && !options.csv.empty()) {
      fields_.push_back(field_of(kScenario));
      for (const ReportColumn& column : report_columns()) fields_.push_back(field_of(column.name));
      for (const std::string_view input : kInputColumns) fields_.push_back(field_of(input));
    }
    if (!options.json.empty()) json_.emplace(options.json);
    if (options.csv.empty()) return;
    csv_.emplace(options.csv);
    for (const Field& field : fields_) line_ += field.name + ',';
    csv_->write(line_ + "error\n");
  }

  bool need_ops() const {
    return options_.ops || (options_.fields.empty() && json_) ||
           std::any_of(fields_.begin(), fields_.end(),
                       [](const Field& f) { return f.column != nullptr && f.column->of_ops; });
  }

  bool need_digest(bool of_error) const {
    return (json_ && (of_error || options_.fields.empty())) ||
           std::any_of(fields_.begin(), fields_.end(),
                       [](const Field& f) { return f.column == nullptr && f.name == kInputColumns.front(); });
  }

  void add(const BatchLine& line, const Report& report) {
    if (json_) {
      line_.clear();
      JsonWriter writer(line_);
      writer.begin_object();
      if (options_.fields.empty()) {
        write_head(line, writer);
        write_report(report, options_.ops, writer);
        write_end(line, writer);
      } else {
        write_fields(line, line.name, report, writer);
      }
      writer.end_object();
      json_->write(line_ += '\n');
    }
    if (csv_) csv_->write(csv_line(line, line.name, &report, ""));
  }

  void add(const BatchLine& line, const std::vector<JobResult>& jobs) {
    const auto name_of = [&](const JobResult& job) { return line.name + "#" + job.job.name; };
    if (json_ && options_.fields.empty()) {
      write_whole(line, jobs_json(jobs, options_.ops));
    } else if (json_) {
      line_.clear();
      JsonWriter writer(line_);
      writer.begin_object();
      writer.key("jobs");
      writer.begin_array();
      for (const JobResult& job : jobs) {
        writer.begin_object();
        writer.field("name", job.job.name);
        writer.field("slowdown", job.slowdown());
        writer.field("alone_seconds", job.alone_seconds);
        writer.key("together");
        writer.begin_object();
        write_fields(line, name_of(job), job.together, writer);
        writer.end_object();
        writer.end_object();
      }
      writer.end_array();
      writer.end_object();
      json_->write(line_ += '\n');
    }
    if (csv_)
      for (const JobResult& job : jobs) csv_->write(csv_line(line, name_of(job), &job.together, ""));
  }

  void add_error(const BatchLine& line, const OrderedJson& error) {
    if (json_) write_whole(line, error);
    if (csv_) csv_->write(csv_line(line, line.name, nullptr, error["error"]["message"].get_ref<const std::string&>()));
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

  // Text of a field that is not a figure.
  std::string_view text_of(const Field& field, const BatchLine& line, const std::string& name) {
    return field.input == kInputColumns.size() ? name : inputs_.column(field.input, line.digest);
  }

  // Writes the head of whole results, and of errors, as for a single scenario.
  void write_head(const BatchLine& line, JsonWriter& writer) const {
    if (!options_.label.empty()) writer.field("label", options_.label);
    writer.field("scenario", line.source.file);
    writer.key("set");
    writer.begin_array();
    for (const std::string& set : line.source.sets) writer.value(set);
    writer.end_array();
  }
  void write_end(const BatchLine& line, JsonWriter& writer) const {
    writer.field("version", ORRERY_VERSION);
    writer.key("inputs");
    inputs_.write_json(line.digest, writer);
  }
  void write_whole(const BatchLine& line, const OrderedJson& result) {
    line_.clear();
    JsonWriter writer(line_);
    writer.begin_object();
    write_head(line, writer);
    for (const auto& [key, value] : result.items())
      if (key != "version") writer.json_field(key, value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
    write_end(line, writer);
    writer.end_object();
    json_->write(line_ += '\n');
  }

  void write_fields(const BatchLine& line, const std::string& name, const Report& report, JsonWriter& writer) {
    for (const Field& field : fields_) {
      writer.key(field.name);
      if (field.column == nullptr) {
        writer.value(text_of(field, line, name));
      } else {
        write_json(field.column->value(report), writer);
      }
    }
  }

  // `report`: null for a line in error, whose fields are empty.
  const std::string& csv_line(const BatchLine& line, const std::string& name, const Report* report,
                              const std::string& error) {
    line_.clear();
    for (const Field& field : fields_) {
      if (field.column == nullptr) {
        line_ += csv_text(text_of(field, line, name));
      } else if (report != nullptr) {
        append_csv(field.column->value(*report), line_);
      }
      line_ += ',';
    }
    line_ += csv_text(error);
    return line_ += '\n';
  }

  const BatchOptions& options_;
  InputsOfMany inputs_;
  std::vector<Field> fields_;
  std::optional<OutputStream> json_, csv_;
  std::string line_;
};

nlohmann::json document_of(const std::string& line, const ScenarioSource& source) {
  nlohmann::json document = parse_json(line, source.file);
  for (const std::string& set : source.sets) apply_set(document, set, source.file);
  return document;
}

// Returns nothing for a line that cannot be read.
std::optional<std::uint64_t> digest_of_whole(const std::string& line, const ScenarioSource& source) {
  try {
    return scenario_digest(written_out(document_of(line, source), source));
  } catch (const InputError&) {
    return std::nullopt;
  }
}

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r\n") == std::string_view::npos; }

}  // namespace

std::vector<std::string> read_fields(const std::string& text) {
  std::vector<std::string> names{std::string(kScenario)}, fields;
  for (const ReportColumn& column : report_columns()) names.push_back(column.name);
  for (const std::string_view input : kInputColumns) names.emplace_back(input);
  for (const std::string& name : list_of_text(text)) {
    if (std::find(names.begin(), names.end(), name) == names.end())
      throw InputError({"--fields", ""}, fmt::format("the unknown field \"{}\"", name),
                       "names of the columns that --csv has, separated by commas", nearest_name(name, names));
    if (std::find(fields.begin(), fields.end(), name) != fields.end())
      throw InputError({"--fields", ""}, fmt::format("\"{}\" a second time", name), "each field once");
    fields.push_back(name);
  }
  return fields;
}

void run_batch(const BatchOptions& options, UserCalibration user) {
  LineReader lines(options.input, "a readable file of JSON lines with one scenario each");
  const std::string& name = lines.name();
  // Checks `sets` once: a set that no line can use is not each line's error.
  for (const std::string& set : options.sets) {
    nlohmann::json nothing;
    apply_set(nothing, set, "");
  }
  const bool can_begin_anew = options.input != "-" && ::isatty(STDERR_FILENO) != 0 && lines.rewind();
  Progress progress(can_begin_anew ? count_lines(lines) : 0);
  BatchResults results(options);
  SimulationOptions simulation = options.simulation;
  simulation.timeline = false;
  simulation.ops = results.need_ops();
  Simulator simulator(std::move(user));
  std::size_t scenarios = 0, failed = 0, verified = 0, wrong_programs = 0;
  std::string first_error;
  ScenarioSource source{"", options.sets};
  for (std::string line; lines.next(line);) {
    const std::int64_t number = lines.number();
    if (is_blank(line)) continue;
    ++scenarios;
    source.file = fmt::format("{}:{}", name, number);
    // Only errors in the line's result are the line's; a failure to write results is the batch's.
    const Report* report = nullptr;
    std::optional<Simulation> one;
    std::optional<std::vector<JobResult>> jobs;
    OrderedJson error;
    bool evaluated_line = false;
    try {
      if (line[line.find_first_not_of(" \t\r")] == '"') {  // a name stands for its scenario, as on a command line
        ScenarioSource named;
        line = scenario_argument(parse_json(line, source.file).get<std::string>(), {}, named).dump();
        source.file = std::move(named.file);
      }
      if (simulation.engine == Engine::analytical && !options.verify) {
        evaluated_line = true;
        report = &simulator.evaluate_line(line, source, simulation.ops);
      } else {
        const nlohmann::json document = document_of(line, source);
        if (has_jobs(document)) {
          if (options.verify) throw InputError({"--verify", ""}, "jobs", "a scenario of one job");
          jobs = simulator.evaluate_jobs(document, source, simulation);
        } else {
          one.emplace(simulator.evaluate(document, source, simulation));
          verified += options.verify ? 1 : 0;
          const std::vector<Violation> found = options.verify ? check(*one->program) : std::vector<Violation>{};
          if (found.empty()) {
            report = &one->report;
          } else {
            ++wrong_programs;
            error = violations_json(found, source.file);
          }
        }
      }
    } catch (const InputError& wrong) {
      error = error_json(wrong);
    } catch (const StalledError& stalled) {
      error = {{"error", {{"message", stalled.what()}, {"file", source.file}, {"stalled", true}}}};
    } catch (const std::exception& internal) {  // one line's failure does not affect the others
      error = {{"error",
                {{"message", fmt::format("{}: {}", source.file, error_text(internal))},
                 {"file", source.file},
                 {"internal", true}}}};
    }
    std::optional<std::uint64_t> digest;
    if (evaluated_line) digest = simulator.line_digest();
    if (!digest && results.need_digest(report == nullptr && !jobs)) digest = digest_of_whole(line, source);
    const BatchLine of{source, options.label.empty() ? source.file : fmt::format("{}:{}", options.label, number),
                       digest};
    if (report != nullptr) {
      results.add(of, *report);
    } else if (jobs) {
      results.add(of, *jobs);
    } else {
      if (++failed == 1) first_error = error["error"]["message"].get<std::string>();
      results.add_error(of, error);
    }
    progress.advance();
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
