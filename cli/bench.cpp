// orrery bench: runs the kernels, compares runs, keeps them.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <optional>

#include "cli/commands.h"
#include "cli/output.h"
#include "realrun/bench/compare.h"
#include "realrun/bench/drift.h"
#include "realrun/bench/history.h"
#include "realrun/bench/run_file.h"
#include "realrun/bench/suite.h"
#include "realrun/bench/text.h"
#include "sim/base/error.h"
#include "sim/base/words.h"
#include "sim/report/format.h"
#include "study/answers/inputs.h"

namespace orrery {
namespace {

constexpr const char* kBenchExamples = R"(Examples:
  orrery bench --output before.json                       every kernel on this CPU, two to three minutes
  orrery bench --filter '^(linear|attention)/' --device cuda --output kernels.json
  orrery bench --shape linear:m=64,k=4096,n=11008 --shape norm/rmsnorm:batch=1,sequence=64,hidden=4096
  orrery bench compare before.json after.json --junit bench.xml --markdown bench.md
  orrery bench --history kernels.db                       keep the run
  orrery bench import before.json --history kernels.db    keep one that was made elsewhere
  orrery bench history linear/fp32/256x512x512 --history kernels.db --svg linear.svg
  orrery bench drift --history kernels.db                 did anything become slower over the runs, and when)";

constexpr const char* kCompareExamples = R"(Examples:
  orrery bench compare before.json after.json
  orrery bench compare before.json after.json --threshold 3% --filter '^attention/' --markdown -
  orrery bench compare before.json after.json --strict --junit bench.xml       for CI: what is not tested fails too

Exit codes: 0 nothing is slower; 1 something is, or fails now (with --strict also: is missing, or cannot be told);
2 the files cannot be used; 3 nothing could be told of any benchmark.)";

constexpr const char* kDriftExamples = R"(Examples:
  orrery bench drift --history kernels.db
  orrery bench drift --history kernels.db --runs 60 --threshold 3% --filter '^attention/' --json drift.json

Exit codes: 0 nothing is slower; 1 something is (with --strict also: has too few runs); 2 the history cannot be used;
3 nothing could be told of any benchmark.)";

// ---- run

struct BenchArguments {
  bench::SuiteOptions suite;
  std::string device = "cpu";
  std::vector<std::string> shapes;
  std::string shapes_file, output, history;
  bool list = false;
};

std::string listing(const std::vector<bench::SuiteEntry>& entries) {
  std::vector<std::vector<std::string>> rows;
  for (const bench::SuiteEntry& entry : entries)
    rows.push_back(
        {entry.name, entry.bytes > 0 ? bytes_text(entry.bytes) : "-", entry.flops > 0 ? rate_text(entry.flops) : "-"});
  return grid("<benchmark|bytes|FLOPs", rows);
}

void run_benchmarks(BenchArguments& arguments) {
  bench::SuiteOptions& options = arguments.suite;
  options.device = arguments.device == "cuda" ? bench::DeviceKind::cuda : bench::DeviceKind::cpu;
  for (const std::string& shape : arguments.shapes) options.shapes.push_back(bench::parse_shape(shape));
  if (!arguments.shapes_file.empty())
    for (bench::Shape& shape : bench::read_shapes(arguments.shapes_file)) options.shapes.push_back(std::move(shape));
  const std::vector<bench::SuiteEntry> entries = bench::suite_entries(options);
  if (arguments.list) {
    print(listing(entries));
    return;
  }
  check_outputs({arguments.output});
  std::optional<bench::History> history;
  if (!arguments.history.empty()) history.emplace(arguments.history, bench::History::Mode::write);

  options.progress = ::isatty(STDERR_FILENO) != 0;
  options.facts = {{"orrery_version", ORRERY_VERSION}};
  if (*build_type() != '\0') options.facts.emplace_back("orrery_build_type", build_type());
  if (*build_commit() != '\0') options.facts.emplace_back("git_commit", build_commit());
  const std::string document = bench::run_suite(options);
  const bench::BenchmarkRun result = bench::parse_run(document, arguments.output);
  Outputs outputs;
  outputs.add_wanted(arguments.output, [&] { return document; });
  if (!outputs.on_standard_output()) outputs.add("-", bench::run_text(result));
  if (history) history->add(result);
  outputs.commit();
}

// ---- compare

// The options that `compare` and `drift` have in common.
struct VerdictArguments {
  std::string filter, threshold;
  bench::VerdictOptions options;
  std::string markdown, json, csv;
};

struct CompareArguments : VerdictArguments {
  std::string baseline, candidate, junit;
};

void set_limits(VerdictArguments& arguments) {
  arguments.options.threshold = share_of_text(arguments.threshold, "--threshold");
  if (!arguments.filter.empty()) arguments.options.wanted = bench::matches(arguments.filter);
}

// Throws if no benchmark of `file` was wanted. `all`: "files".
template <class Result>
void refuse_nothing(const Result& result, const std::string& filter, const std::string& file, const char* expected,
                    const char* all) {
  if (!result.benchmarks.empty()) return;
  if (filter.empty()) throw InputError({file, ""}, "no benchmark", expected);
  throw InputError({"--filter", ""}, '"' + filter + '"', fmt::format("what a benchmark of the {} contains", all));
}

// Throws Exit by the verdicts. `too_few`: what more is needed where all benchmarks have too few repetitions or runs.
template <class Result>
void exit_by(const Result& result, const std::string& too_few) {
  if (result.nothing_told()) {
    std::string line = "orrery: nothing could be told of any benchmark";
    if (result.count(bench::Verdict::too_few_repetitions) == result.benchmarks.size()) line += ": too few " + too_few;
    std::fputs((line + "\n").c_str(), stderr);  // if standard error is closed, the exit code must do
  }
  if (result.exit_code() != 0) throw Exit{result.exit_code()};
}

void compare_files(CompareArguments& arguments) {
  if (arguments.baseline == "-" && arguments.candidate == "-")
    throw InputError({"<stdin>", ""}, "both runs on standard input", "one of them in a file");
  set_limits(arguments);
  const bench::BenchmarkRun baseline = bench::read_run(arguments.baseline),
                            candidate = bench::read_run(arguments.candidate);
  const bench::Comparison comparison = bench::compare_runs(baseline, candidate, arguments.options);
  refuse_nothing(comparison, arguments.filter, arguments.baseline, "a run with benchmarks", "files");
  Outputs outputs;
  const auto add = [&](const std::string& path, auto make) {
    outputs.add_wanted(path, [&] { return make(comparison); });
  };
  add(arguments.markdown, bench::comparison_markdown);
  add(arguments.junit, bench::comparison_junit);
  add(arguments.json, bench::comparison_json);
  add(arguments.csv, bench::comparison_csv);
  outputs.commit_with([&] { return bench::comparison_text(comparison, colour_wanted()); });
  exit_by(comparison, fmt::format("repetitions, {} of each are needed in both runs (orrery bench --repetitions)",
                                  comparison.needed_repetitions));
}

// ---- history

struct HistoryArguments {
  std::string kernel, history, svg, csv, json;
};

void show_history(const HistoryArguments& arguments) {
  const bench::History history(arguments.history, bench::History::Mode::read);
  const std::vector<bench::HistoryPoint> points = history.points(arguments.kernel);
  Outputs outputs;
  const auto add = [&](const std::string& path, auto make) {
    outputs.add_wanted(path, [&] { return make(arguments.kernel, points); });
  };
  add(arguments.svg, bench::history_svg);
  add(arguments.csv, bench::history_csv);
  add(arguments.json, bench::history_json);
  outputs.commit_with([&] { return bench::history_text(arguments.kernel, points); });
}

struct DriftArguments : VerdictArguments {
  std::string history;
  std::int64_t runs = 30;
};

void show_drift(DriftArguments& arguments) {
  set_limits(arguments);
  const bench::History history(arguments.history, bench::History::Mode::read);
  bench::Drift drift =
      bench::find_drift(history.last_runs(static_cast<std::size_t>(arguments.runs)), arguments.options);
  drift.history = arguments.history;
  refuse_nothing(drift, arguments.filter, arguments.history, "a history with runs", "history");
  Outputs outputs;
  const auto add = [&](const std::string& path, auto make) { outputs.add_wanted(path, [&] { return make(drift); }); };
  add(arguments.markdown, bench::drift_markdown);
  add(arguments.json, bench::drift_json);
  add(arguments.csv, bench::drift_csv);
  outputs.commit_with([&] { return bench::drift_text(drift, colour_wanted()); });
  exit_by(drift, fmt::format("runs, {} of each are needed", drift.needed_runs));
}

struct ImportArguments {
  std::vector<std::string> files;
  std::string history;
};

void import_runs(const ImportArguments& arguments) {
  std::vector<bench::BenchmarkRun> runs;  // all are read before any is added
  for (const std::string& file : arguments.files) {
    runs.push_back(bench::read_run(file));
    if (runs.back().series.empty()) throw InputError({file, "/benchmarks"}, "no benchmark", "a run with benchmarks");
  }
  bench::History history(arguments.history, bench::History::Mode::write);
  std::string text;
  for (const bench::BenchmarkRun& run : runs)
    text += fmt::format("{}: {}\n", run.file, history.add(run) ? "added" : "is there already");
  print(text + fmt::format("{} runs in {}\n", history.runs(), arguments.history));
}

// ---- the subcommands

// The options of comparisons and drifts alike; the texts say what each means there.
void add_limits(Command command, VerdictArguments& arguments, const char* usual_threshold, const char* threshold,
                const char* alpha, const char* strict) {
  arguments.threshold = usual_threshold;
  command.add_option("--threshold", arguments.threshold, threshold).capture_default().type_name("SHARE");
  command.add_option("--alpha", arguments.options.alpha, alpha).within(1e-12, 0.5).capture_default();
  command.add_option("--filter", arguments.filter, "Only benchmarks whose name matches").type_name("REGEX");
  command.add_flag("--strict", arguments.options.strict, strict);
}

void add_compare_runs(Command bench) {
  const auto [command, arguments] = bench.declare<CompareArguments>(
      "compare", "What has become slower since an earlier run", kCompareExamples, compare_files);
  command.add_option("BASELINE", arguments.baseline, "A run (--output, or any Google Benchmark JSON)")
      .required()
      .offers_files();
  command.add_option("NEW", arguments.candidate, "A later one; - for standard input").required().offers_files();
  add_limits(command, arguments, "5%", "Smallest change of the median that counts: 5% or 0.05",
             "Chance of a false alarm in a comparison, at the most",
             "Fail what the new run lacks, and what cannot be told");
  command.add_file("--markdown", arguments.markdown, "Write the table as Markdown; - for standard output");
  command.add_file("--junit", arguments.junit, "Write JUnit XML: a test case each, regressions fail");
  command.add_file("--json", arguments.json, "Write verdicts and numbers as JSON");
  command.add_file("--csv", arguments.csv, "Write them as CSV, a row each");
}

void add_history(Command bench) {
  const auto [command, arguments] = bench.declare<HistoryArguments>(
      "history", "How one benchmark went over all kept runs",
      "Examples:\n  orrery bench history linear/fp32/256x512x512 --history kernels.db --svg linear.svg", show_history);
  command.add_option("KERNEL", arguments.kernel, "The benchmark's name").required();
  command.add_file("--history", arguments.history, "Where the runs are kept").required();
  command.add_file("--svg", arguments.svg, "Write a plot; - for standard output");
  command.add_file("--csv", arguments.csv, "Write CSV, a row a run");
  command.add_file("--json", arguments.json, "Write JSON");
}

void add_drift(Command bench) {
  const auto [command, arguments] = bench.declare<DriftArguments>(
      "drift", "What has become slower over the kept runs, and when", kDriftExamples, show_drift);
  command.add_file("--history", arguments.history, "Where the runs are kept").required();
  constexpr std::int64_t kMostRuns = 1000;
  command.add_option("--runs", arguments.runs, "Only the last so many runs of each device")
      .between(2, kMostRuns)
      .capture_default();
  // That runs of one binary differ by a few percent is part of the spread between runs, which a drift's test sees.
  add_limits(command, arguments, "2%", "Smallest slow-down that counts: 2% or 0.02",
             "Chance of a false alarm over all benchmarks, at the most", "Fail benchmarks of too few runs");
  command.add_file("--markdown", arguments.markdown, "Write the table as Markdown; - for standard output");
  command.add_file("--json", arguments.json, "Write verdicts, changes and numbers as JSON");
  command.add_file("--csv", arguments.csv, "Write them as CSV, a row for each change");
}

void add_import(Command bench) {
  const auto [command, arguments] = bench.declare<ImportArguments>(
      "import", "Which runs are kept: adds those that were made elsewhere",
      "Examples:\n  orrery bench import before.json --history kernels.db\n\nWhat is there stays as it is.",
      import_runs);
  command.add_option("RUNS", arguments.files, "Runs (--output, or any Google Benchmark JSON)")
      .required()
      .type_name("FILE");
  command.add_file("--history", arguments.history, "Where runs are kept").required();
}

}  // namespace

void add_bench(Command app) {
  const auto [command, arguments] = app.declare<BenchArguments>(
      "bench", "How fast every kernel and some training steps run on this machine, now and over time", kBenchExamples,
      run_benchmarks);
  command.require_subcommand(0, 1);
  command.add_option("--filter", arguments.suite.filter, "Only benchmarks whose name matches").type_name("REGEX");
  command.add_several("--shape", arguments.shapes,
                      "This kernel at these sizes instead of the suite: linear:m=4096,k=4096,n=11008,dtype=bf16",
                      "KERNEL:AXIS=SIZE,...");
  command.add_file("--shapes", arguments.shapes_file, "A JSON array of such shapes; - for standard input");
  command.add_option("--device", arguments.device, "Device to run on").one_of({"cpu", "cuda"}).capture_default();
  command.add_option("--repetitions", arguments.suite.repetitions, "Repetitions of each benchmark, in random order")
      .between(1, 10'000)
      .capture_default();
  command.add_option("--min-time", arguments.suite.min_seconds, "Least duration of a repetition in seconds")
      .within(1e-6, 1e3)
      .capture_default();
  command
      .add_option("--patience", arguments.suite.patience_seconds,
                  "Time for extra repetitions in seconds, if other work disturbed some; 0: none")
      .within(0, 1e6)
      .capture_default();
  command.add_flag("--cold-cache", arguments.suite.cold_cache,
                   "Clear operands from the caches before each iteration; kernels only, no steps");
  command.add_file("--output", arguments.output, "Write the run as Google Benchmark's JSON; - for standard output");
  command.add_file("--history", arguments.history, "Keep the run in this file");
  command.add_flag("--list", arguments.list, "List the benchmarks without running them");
  add_compare_runs(command);
  add_history(command);
  add_drift(command);
  add_import(command);
}

}  // namespace orrery
