// orrery sweep: a scenario over the values of its fields, kept in a database.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <chrono>
#include <csignal>
#include <memory>
#include <optional>
#include <thread>

#include "sim/answers/build_commit.h"
#include "cli/commands.h"
#include "cli/engine_options.h"
#include "sim/answers/inputs.h"
#include "cli/output.h"
#include "sim/base/input_file.h"
#include "sim/base/json_reader.h"
#include "sim/base/json_writer.h"
#include "sim/des/engine.h"
#include "sim/report/format.h"
#include "sim/sweep/run.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

struct ExportArguments {
  std::string file, fields;  // `file` empty: no export
};

struct SweepArguments {
  std::string document, database, shard;
  std::vector<std::string> calibrations;
  std::int64_t threads = 0;
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
  // `in_log`: a line a minute where there is no terminal.
  explicit ShowSweepProgress(bool in_log) : in_log_(in_log) {
    if (in_log && !line_.on_terminal()) next_ = start_ + kBetweenLines;
  }

  void operator()(const SweepProgress& progress) {
    const auto now = Clock::now();
    if (now < next_ || !(line_.on_terminal() || in_log_)) return;
    next_ = now + (line_.on_terminal() ? std::chrono::milliseconds(200) : kBetweenLines);
    const double elapsed = std::chrono::duration<double>(now - start_).count();
    const std::int64_t done = progress.computed + progress.known;
    const double rate = static_cast<double>(done) / elapsed;
    const double left = static_cast<double>(progress.points - done) / rate;
    const std::string text = fmt::format("{} of {} points, {} a second, {} to go", done, progress.points,
                                         rate_text(rate), seconds_text(left));
    if (line_.on_terminal()) return line_.show(text);
    fmt::print(stderr, "orrery: {}\n", text);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kBetweenLines{60'000};
  ProgressLine line_;
  bool in_log_;
  Clock::time_point start_ = Clock::now(), next_ = start_ + std::chrono::milliseconds(500);
};

SweepDocument document_of(const std::string& argument) {
  std::vector<std::string> names;
  for (const BundledSweep& sweep : bundled_sweeps()) {
    if (argument == sweep.name)
      return read_sweep(parse_json(sweep.text, std::string(sweep.path)), std::string(sweep.path));
    names.push_back(sweep.name);
  }
  try {
    return read_sweep(parse_json_file(argument), argument == "-" ? "<stdin>" : argument);
  } catch (const InputError& error) {
    if (error.where().file != argument || !error.where().pointer.empty() || !error.nearest().empty()) throw;
    throw InputError(error.where(), error.found(), error.expected(), nearest_name(argument, names));
  }
}

// "2/3": the second of three.
void read_shard(const std::string& text, SweepRunOptions& options) {
  if (text.empty()) return;
  const std::size_t slash = text.find('/');
  std::int64_t shard = 0, shards = 0;
  const auto read = [](std::string_view part, std::int64_t& number) {
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), number);
    return error == std::errc() && end == part.data() + part.size();
  };
  if (slash == std::string::npos || !read(std::string_view(text).substr(0, slash), shard) ||
      !read(std::string_view(text).substr(slash + 1), shards) || shard < 1 || shard > shards)
    throw InputError({"--shard", ""}, describe(Json(text)), "1/3, 2/3 or 3/3: which of how many parts");
  options.shard = shard - 1;
  options.shards = shards;
}

std::vector<std::string> chosen_fields(const std::string& text, const std::vector<std::string>& names) {
  if (text.empty()) {
    // Which sweep and which of its points is for those who ask.
    std::vector<std::string> usual = names;
    usual.erase(std::find(usual.begin(), usual.end(), "error") + 1, usual.end());
    return usual;
  }
  std::vector<std::string> fields;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    std::string name = text.substr(begin, end - begin);
    begin = end + 1;
    if (std::find(names.begin(), names.end(), name) == names.end())
      throw InputError({"--fields", ""}, fmt::format("the unknown field \"{}\"", name),
                       "fields of the sweep's axes, of the plans it found, and columns of `simulate --csv`",
                       nearest_name(name, names));
    if (std::find(fields.begin(), fields.end(), name) != fields.end())
      throw InputError({"--fields", ""}, fmt::format("\"{}\" a second time", name), "each field once");
    fields.push_back(std::move(name));
  }
  return fields;
}

bool as_json_lines(const std::string& file) { return file.ends_with(".jsonl") || file.ends_with(".json"); }

void check_export(const ExportArguments& arguments) {
  const std::string& file = arguments.file;
  if (file.empty() && !arguments.fields.empty())
    throw InputError({"--fields", ""}, "no --export beside it", "--export FILE");
  if (!file.empty() && file != "-" && !file.ends_with(".csv") && !as_json_lines(file))
    throw InputError({"--export", ""}, describe(Json(file)),
                     "a name that ends in .csv or .jsonl, or - for CSV on standard output");
  check_outputs({file == "-" ? "" : file});
}

// Of the sweep with this number in the file, or of all of them: 0.
void write_export(const SweepResults& results, std::int64_t sweep, const ExportArguments& arguments) {
  if (arguments.file.empty()) return;
  const std::vector<std::string> fields = chosen_fields(arguments.fields, results.names(sweep));
  OutputStream out(arguments.file);
  const bool json = as_json_lines(arguments.file);
  std::string line;
  if (!json) {
    for (const std::string& field : fields) line += (line.empty() ? "" : ",") + csv_text(field);
    out.write(line + "\n");
  }
  results.for_each(sweep, fields, [&](const std::vector<SweepCell>& cells) {
    line.clear();
    JsonWriter writer(line);
    if (json) writer.begin_object();
    for (const SweepCell& cell : cells) {
      if (json) {
        writer.json_field(cell.name, cell.json);
      } else {
        line += cell.text;
        line += ',';
      }
    }
    if (json) {
      writer.end_object();
    } else {
      line.pop_back();
    }
    line += '\n';
    out.write(line);
  });
  out.commit();
}

// A word of a shell.
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
  std::string text = fmt::format("orrery sweep {} --db {}", quoted(arguments.document), quoted(arguments.database));
  if (arguments.mpi) text += " --mpi";
  if (!arguments.shard.empty()) text += " --shard " + arguments.shard;
  if (arguments.threads > 0) text += fmt::format(" --threads {}", arguments.threads);
  for (const std::string& calibration : arguments.calibrations) text += " --calibration " + quoted(calibration);
  if (!arguments.exported.file.empty()) text += " --export " + quoted(arguments.exported.file);
  if (!arguments.exported.fields.empty()) text += " --fields " + quoted(arguments.exported.fields);
  return text;
}

constexpr int kBySignal = 128;  // in exit codes, as shells have it

void say_interrupted(const SweepArguments& arguments, std::int64_t done, std::int64_t points) {
  fmt::print(stderr, "orrery: interrupted: {} of {} points are in {}; to go on{}:\n  {}\n", done, points,
             arguments.database, arguments.mpi ? ", started as before" : "", command_of(arguments));
}

void sweep_command(const SweepArguments& arguments, SweepHelpers* helpers) {
  if (arguments.document.empty()) throw UsageError("sweep: a DOCUMENT is required, or one of merge and export");
  if (arguments.database.empty()) throw UsageError("sweep: --db FILE is required: where results are kept");
  if (arguments.mpi && helpers == nullptr)
    throw InputError({"--mpi", ""}, "no program orrery-mpi beside this one: it was built without MPI",
                     "--shard I/N on each machine, and then orrery sweep merge");
  SweepRunOptions options;
  const int threads_here = helpers != nullptr ? helpers->threads_here()
                                              : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  options.threads = arguments.threads > 0 ? static_cast<int>(arguments.threads) : threads_here;
  options.version = version_and_commit();
  read_shard(arguments.shard, options);
  const SweepDocument sweep = document_of(arguments.document);
  if (sweep.simulation.engine == Engine::des) {
    if (arguments.document == "-" && !built_with_simgrid())
      throw InputError({"<stdin>", "/engine"}, "\"des\"", "a document in a file: that engine is in another program");
    EngineArguments des;
    des.engine = kEngineNames[static_cast<std::size_t>(Engine::des)];
    des.become_program_with_engine();
  }
  options.user = read_user_calibration(arguments.calibrations);
  options.calibrations = digests_of_calibrations(arguments.calibrations);
  if (arguments.database == arguments.document || is_input(arguments.database))
    throw InputError({arguments.database, ""}, "a file that this command reads", "a file of its own for the results");
  check_export(arguments.exported);
  if (helpers != nullptr && helpers->processes() > 0) {
    helpers->prepare({&sweep, arguments.calibrations, options.version, options.calibrations,
                      static_cast<int>(arguments.threads)});
    options.helpers = helpers;
    --options.threads;  // one hands out and writes
  }
  SweepResults results(arguments.database, Database::Mode::write);
  SweepOutcome outcome;
  {
    const StopSignals signals;
    ShowSweepProgress progress(options.helpers != nullptr);
    options.progress = [&](const SweepProgress& p) { progress(p); };
    options.stop = [] { return stopped_by != 0; };
    // What ends a job of ranks gives them a second.
    if (options.helpers != nullptr)
      options.give_up = [&](const SweepProgress& p) {
        say_interrupted(arguments, p.computed + p.known, p.points);
        options.helpers->abort(kBySignal + stopped_by);
      };
    outcome = run_sweep(sweep, results, options);
  }
  const std::int64_t done = outcome.computed + outcome.known;
  if (outcome.stopped) {
    say_interrupted(arguments, done, outcome.points);
    throw Exit{kBySignal + stopped_by};
  }
  write_export(results, outcome.sweep, arguments.exported);
  std::string text = fmt::format("{} points in {}: {} computed, {} there before", done, arguments.database,
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
  if (outcome.errors > 0 && outcome.errors == outcome.points)
    throw InputError({sweep.file, ""}, fmt::format("{} points, each without a result", outcome.points),
                     "at least one that can be evaluated; the database says what is wrong with each");
}

void add_export_options(Command command, ExportArguments& arguments) {
  command
      .add_option("--export", arguments.file,
                  "Write a row for each point: CSV, or JSON lines where the name ends in .jsonl; - for CSV on standard "
                  "output")
      .type_name("FILE");
  command
      .add_option("--fields", arguments.fields,
                  "Only these: fields of axes, fields that a search found, columns of `simulate --csv`, error, sweep, "
                  "number, key")
      .type_name("NAME,...");
}

void add_merge(Command sweep) {
  struct Arguments {
    std::string into;
    std::vector<std::string> from;
  };
  auto arguments = std::make_shared<Arguments>();
  const Command command = sweep.add_subcommand("merge", "What the shards of several machines have found, in one database");
  command.footer(
      "Examples:\n  orrery sweep merge results.db half-1.db half-2.db\n\nWhat is there stays as it is; the databases "
      "stay as they are.");
  command.add_option("INTO", arguments->into, "The database that gets them; made if it is not there")
      .required()
      .type_name("FILE");
  command.add_option("FROM", arguments->from, "Databases that orrery sweep has made").required().type_name("FILE");
  command.callback([arguments] {
    for (const std::string& from : arguments->from)
      SweepResults(from, Database::Mode::read);  // before anything is made
    SweepResults into(arguments->into, Database::Mode::write);
    std::int64_t added = 0;
    for (const std::string& from : arguments->from) added += into.merge(from);
    print(fmt::format("{}: {} points, {} of them new\n", arguments->into, into.count(0), added));
  });
}

void add_export(Command sweep) {
  struct Arguments {
    std::string database;
    ExportArguments exported{"-", ""};
  };
  auto arguments = std::make_shared<Arguments>();
  const Command command = sweep.add_subcommand("export", "What a database holds, as CSV or JSON lines");
  command.footer(
      "Examples:\n  orrery sweep export results.db --fields cluster.nodes,step_seconds,mfu\n"
      "  orrery sweep export results.db --export results.jsonl");
  command.add_option("DB", arguments->database, "A database that orrery sweep has made").required().type_name("FILE");
  add_export_options(command, arguments->exported);
  command.callback([arguments] {
    const SweepResults results(arguments->database, Database::Mode::read);
    check_export(arguments->exported);
    write_export(results, 0, arguments->exported);
  });
}

}  // namespace

void add_sweep(Command app, SweepHelpers* helpers) {
  auto arguments = std::make_shared<SweepArguments>();
  const Command command = app.add_subcommand(
      "sweep", "What a scenario gives over many values of its fields, kept in a database and resumed where it stopped");
  command.footer(kSweepExamples);
  command.require_subcommand(0, 1);
  command
      .add_option("DOCUMENT", arguments->document,
                  "A scenario and axes over its fields: a JSON file, or a bundled sweep's name")
      .offers_names({"sweeps"})
      .offers_files();
  command.add_option("--db", arguments->database, "Where results are kept; what is there is not computed again")
      .type_name("FILE");
  command.add_option("--threads", arguments->threads,
                      "0: as many as the machine has; with --mpi each rank's, 0: its part of its machine's")
      .between(0, 4096)
      .type_name("N")
      .capture_default();
  command.add_option("--shard", arguments->shard, "Only the I-th of N parts, for N machines; then orrery sweep merge")
      .type_name("I/N");
  command.add_flag("--mpi", arguments->mpi,
                   "This is each of the ranks that mpirun or srun has started: the first hands out points and writes");
  add_export_options(command, arguments->exported);
  command
      .add_option("--calibration", arguments->calibrations,
                  "What `orrery calibrate` has measured, in place of the bundled calibration")
      .one_value_each()
      .type_name("FILE");
  add_merge(command);
  add_export(command);
  command.callback([command, arguments, helpers] {
    if (!command.has_subcommand_given()) sweep_command(*arguments, helpers);
  });
}

}  // namespace orrery
