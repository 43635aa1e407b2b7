// orrery sweep: simulates a scenario over values of its fields and keeps the results in a database.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <csignal>

#include "cli/commands.h"
#include "cli/offers.h"
#include "cli/output.h"
#include "sim/base/input_file.h"
#include "sim/base/json_reader.h"
#include "sim/base/words.h"
#include "sim/des/engine.h"
#include "sim/report/format.h"
#include "study/answers/sweep_answer.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

struct ExportArguments {
  std::string file, fields;  // `file` empty: no export
};

struct SweepArguments {
  std::string document;
  SweepRequest request;
  bool mpi = false;
  ExportArguments exported;
};

constexpr const char* kSweepExamples = R"(Examples:
  orrery sweep scaling --db results.db                        a bundled sweep (orrery list sweeps): the best plan at every scale
  orrery sweep sweep.json --db results.db                     again: only what is missing, after a kill, too
  orrery sweep sweep.json --db results.db --export results.csv --fields cluster.nodes,step_seconds,mfu
  orrery sweep sweep.json --db half-1.db --shard 1/2          on one of two machines; then
  orrery sweep merge results.db half-1.db half-2.db
  mpirun -n 4 orrery sweep sweep.json --db results.db --mpi   by four ranks, of which the first writes
  orrery sweep export results.db --export results.jsonl

Exit codes: 0 done; 1 a point could not be computed, by no fault of its own; 2 the input cannot be used, or no point can be
laid out; 130 and 143 interrupted: the same command goes on.)";

volatile std::sig_atomic_t stopped_by = 0;
extern "C" void note_stop(int signal) { stopped_by = signal; }

// The first signal ends the sweep, the second the process.
class StopSignals {
 public:
  StopSignals() {
    stopped_by = 0;
    struct sigaction note {};
    note.sa_handler = note_stop;
    note.sa_flags = static_cast<int>(SA_RESETHAND);
    for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &note, &before_[i]);
  }
  ~StopSignals() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
  }
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

 private:
  static constexpr std::array kSignals{SIGINT, SIGTERM};
  std::array<struct sigaction, kSignals.size()> before_{};
};

class ShowSweepProgress {
 public:
  // `in_log`: if there is no terminal, one line a minute.
  explicit ShowSweepProgress(bool in_log) : in_log_(in_log && !line_.on_terminal()) {}

  void operator()(const SweepProgress& progress) {
    const bool in_log = in_log_ && line_.seconds() >= next_in_log_;
    if (!line_.is_due() && !in_log) return;
    const std::int64_t done = progress.computed + progress.known;
    const double rate = static_cast<double>(done) / line_.seconds();
    const double left = static_cast<double>(progress.points - done) / rate;
    const std::string text = fmt::format("{} of {} points, {} per second, {} to go", done, progress.points,
                                         rate_text(rate), seconds_text(left));
    if (!in_log) return line_.show(text);
    next_in_log_ = line_.seconds() + kBetweenLines;
    fmt::print(stderr, "orrery: {}\n", text);
  }

 private:
  static constexpr double kBetweenLines = 60;  // seconds
  ProgressLine line_;
  bool in_log_;
  double next_in_log_ = kBetweenLines;
};

void say(const std::vector<std::string>& notes) {
  for (const std::string& note : notes) fmt::print(stderr, "orrery: {}\n", note);
}

bool as_json_lines(const std::string& file) { return file.ends_with(".jsonl") || file.ends_with(".json"); }

// `names`: columns that rows may have.
void check_export(const ExportArguments& arguments, const std::vector<std::string>& names) {
  const std::string& file = arguments.file;
  if (file.empty() && !arguments.fields.empty()) throw InputError({"--fields", ""}, "no --export", "--export FILE");
  if (!file.empty() && file != "-" && !file.ends_with(".csv") && !as_json_lines(file))
    throw InputError({"--export", ""}, describe(Json(file)),
                     "a name that ends in .csv or .jsonl, or - for CSV on standard output");
  if (!arguments.fields.empty()) check_fields(list_of_text(arguments.fields), names);
  check_outputs({file == "-" ? "" : file});
}

// Exports the sweep with this number in the file, or all sweeps: 0.
void write_export(const SweepResults& results, std::int64_t sweep, const ExportArguments& arguments) {
  if (arguments.file.empty()) return;
  const std::vector<std::string> fields =
      arguments.fields.empty() ? usual_fields(results, sweep) : list_of_text(arguments.fields);
  OutputStream out(arguments.file);
  const bool json = as_json_lines(arguments.file);
  if (!json) {
    std::string line;
    for (const std::string& field : fields) line += (line.empty() ? "" : ",") + csv_text(field);
    out.write(line + "\n");
  }
  results.for_each(sweep, fields, json, [&](const std::string& row) { out.write(row + "\n"); });
  out.commit();
}

// Quotes a word for a shell.
std::string quoted(const std::string& word) {
  constexpr std::string_view kPlain = "-_./,=:+";
  const auto plain = [&](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || kPlain.find(c) != kPlain.npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), plain)) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

std::string command_of(const SweepArguments& arguments) {
  const SweepRequest& request = arguments.request;
  std::string text = fmt::format("orrery sweep {} --db {}", quoted(arguments.document), quoted(request.database));
  if (arguments.mpi) text += " --mpi";
  if (!request.shard.empty()) text += " --shard " + request.shard;
  if (request.threads > 0) text += fmt::format(" --threads {}", request.threads);
  for (const std::string& calibration : request.calibrations) text += " --calibration " + quoted(calibration);
  if (!arguments.exported.file.empty()) text += " --export " + quoted(arguments.exported.file);
  if (!arguments.exported.fields.empty()) text += " --fields " + quoted(arguments.exported.fields);
  return text;
}

constexpr int kBySignal = 128;  // added to the signal in exit codes, as shells do

void say_interrupted(const SweepArguments& arguments, std::int64_t done, std::int64_t points) {
  fmt::print(stderr, "orrery: interrupted: {} of {} points are in {}; to continue{}:\n  {}\n", done, points,
             arguments.request.database, arguments.mpi ? ", started as before" : "", command_of(arguments));
}

void sweep_command(SweepArguments& arguments, SweepHelpers* helpers) {
  SweepRequest& request = arguments.request;
  if (arguments.document.empty()) throw UsageError("sweep: a DOCUMENT is required, or one of merge and export");
  if (request.database.empty()) throw UsageError("sweep: --db FILE is required: where results are kept");
  if (arguments.mpi && helpers == nullptr)
    throw InputError({"--mpi", ""}, "no program orrery-mpi next to this one: it was built without MPI",
                     "--shard I/N on each machine, and then orrery sweep merge");
  request.helpers = helpers;
  const SweepDocument sweep = sweep_argument(arguments.document);
  if (sweep.simulation.engine == Engine::des) {
    if (arguments.document == "-" && !built_with_simgrid())
      throw InputError({"<stdin>", "/engine"}, "\"des\"", "a document in a file: this engine is in another program");
    EngineArguments des;
    des.engine = kEngineNames[static_cast<std::size_t>(Engine::des)];
    des.become_program_with_engine();
  }
  SweepRunOptions options = sweep_options(request);
  if (request.database == arguments.document || is_input(request.database))
    throw InputError({request.database, ""}, "a file that this command reads", "a file of its own for the results");
  check_export(arguments.exported, names_of_rows(sweep));
  if (options.helpers != nullptr)
    options.helpers->prepare(sweep, request.calibrations, options, static_cast<int>(request.threads));
  SweepResults results(request.database, Database::Mode::write);
  SweepOutcome outcome;
  {
    const StopSignals signals;
    ShowSweepProgress progress(options.helpers != nullptr);
    options.progress = [&](const SweepProgress& p) { progress(p); };
    options.stop = [] { return stopped_by != 0; };
    // Launchers that end a job give its ranks one second.
    if (options.helpers != nullptr)
      options.give_up = [&](const SweepProgress& p) {
        say_interrupted(arguments, p.in_file, p.points);
        options.helpers->abort(kBySignal + stopped_by);
      };
    outcome = run_sweep(sweep, results, options);
  }
  const std::int64_t done = outcome.computed + outcome.known;
  if (outcome.stopped) {
    say_interrupted(arguments, outcome.in_file, outcome.points);
    throw Exit{kBySignal + stopped_by};
  }
  write_export(results, outcome.sweep, arguments.exported);
  say(notes_on(sweep, results));
  std::string text = fmt::format("{} points in {}: {} computed, {} there before", done, request.database,
                                 outcome.computed, outcome.known);
  if (outcome.errors > 0)
    text += fmt::format("; {} without a result, the first: {}", outcome.errors, outcome.first_error);
  if (arguments.exported.file == "-") {
    fmt::print(stderr, "orrery: {}\n", text);
  } else {
    print(text + "\n");
  }
  if (outcome.failed > 0) {
    fmt::print(stderr, "orrery: {} points could not be computed, the first: {}; to try them again:\n  {}\n",
               outcome.failed, outcome.first_failure, command_of(arguments));
    throw Exit{1};
  }
  require_a_result(sweep, outcome);
}

void add_export_options(Command command, ExportArguments& arguments) {
  command.add_file(
      "--export", arguments.file,
      "Write a row for each point: CSV, or JSON lines if the name ends in .jsonl; - for CSV on standard output");
  command.add_option(
      "--fields", arguments.fields,
      "Only these columns: fields of axes, fields that a search found, columns of `simulate --csv`, error, "
      "sweep, number, key",
      "NAME,...");
}

void add_merge(Command sweep) {
  struct Arguments {
    std::string into;
    std::vector<std::string> from;
  };
  const auto [command, arguments] = sweep.declare<Arguments>(
      "merge", "What the shards of several machines have found, in one database",
      "Examples:\n  orrery sweep merge results.db half-1.db half-2.db\n\nWhat is there stays as it is; the databases "
      "stay as they are.",
      [](const Arguments& given) {
        for (const std::string& from : given.from)
          SweepResults(from, Database::Mode::read);  // before any file is created
        SweepResults into(given.into, Database::Mode::write);
        std::int64_t added = 0;
        for (const std::string& from : given.from) added += into.merge(from);
        say(into.doubts());
        print(fmt::format("{}: {} points, {} of them new\n", given.into, into.count(0), added));
      });
  command.add_file("INTO", arguments.into, "The database that gets them; made if it is not there").required();
  command.add_option("FROM", arguments.from, "Databases that orrery sweep has made", "FILE").required();
}

void add_export(Command sweep) {
  struct Arguments {
    std::string database;
    ExportArguments exported{"-", ""};
  };
  const auto [command, arguments] =
      sweep.declare<Arguments>("export", "What a database holds, as CSV or JSON lines",
                               "Examples:\n  orrery sweep export results.db --fields cluster.nodes,step_seconds,mfu\n"
                               "  orrery sweep export results.db --export results.jsonl",
                               [](const Arguments& given) {
                                 const SweepResults results(given.database, Database::Mode::read);
                                 check_export(given.exported, results.names(0));
                                 write_export(results, 0, given.exported);
                                 say(results.doubts());
                               });
  command.add_file("DB", arguments.database, "A database that orrery sweep has made").required();
  add_export_options(command, arguments.exported);
}

}  // namespace

void add_sweep(Command app, SweepHelpers* helpers) {
  const auto [command, arguments] = app.declare<SweepArguments>(
      "sweep", "What a scenario gives over many values of its fields, kept in a database and resumed where it stopped",
      kSweepExamples, [helpers](SweepArguments& given) { sweep_command(given, helpers); });
  command.require_subcommand(0, 1);
  command
      .add_option("DOCUMENT", arguments.document,
                  "A scenario and axes over its fields: a JSON file, or a bundled sweep's name")
      .offers_names({"sweeps"})
      .offers_files();
  SweepRequest& request = arguments.request;
  command.add_file("--db", request.database, "Database of results; points that it holds are not computed again");
  command
      .add_option("--threads", request.threads,
                  "Number of threads; 0: the machine's. With --mpi: of each rank; 0: its share of its machine's", "N")
      .between(0, kMostSweepThreads);
  command.add_option("--shard", request.shard,
                     "Compute only part I of N, one per machine; then join them with orrery sweep merge", "I/N");
  command.add_flag(
      "--mpi", arguments.mpi,
      "This process is one of the ranks that mpirun or srun has started; the first hands out points and writes");
  add_export_options(command, arguments.exported);
  add_calibrations(command, request.calibrations);
  add_merge(command);
  add_export(command);
}

}  // namespace orrery
