// orrery._orrery: what the commands of `orrery` answer, for Python. Documents are JSON texts in both directions, which
// the package (python/orrery) reads and writes; they are those of the command line, made by the same functions. Other
// threads run meanwhile.
#include <fmt/format.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "sim/base/json_reader.h"
#include "sim/base/json_writer.h"
#include "sim/report/json.h"
#include "study/answers/arguments.h"
#include "study/answers/comparison.h"
#include "study/answers/inputs.h"
#include "study/answers/listing.h"
#include "study/answers/plan_answer.h"
#include "study/answers/program_json.h"
#include "study/answers/results.h"
#include "study/answers/search_answer.h"
#include "study/answers/sweep_answer.h"
#include "study/sweep/comparison.h"
#include "study/validation/predicted_points.h"
#include "study/validation/tables.h"

namespace py = pybind11;

namespace orrery {
namespace {

using Texts = std::vector<std::string>;
using WithoutLock = py::call_guard<py::gil_scoped_release>;

// A scenario, plan, sweep or report that is no file; messages call it so.
ScenarioArgument held(const std::string& called, const std::string& text) { return {called, parse_json(text, called)}; }

SimulationOptions one_engine(const EngineChoice& choice) {
  if (choice.both()) throw InputError({"--engine", ""}, "both", "analytical or des");
  return choice.options();
}

template <class Number>
void require_within(const char* option, Number value, Number least, Number most) {
  if (!(value >= least && value <= most))
    throw InputError({option, ""}, fmt::format("{}", value), fmt::format("a number from {} to {}", least, most));
}

std::string simulate(const ScenarioArgument& scenario, const Texts& sets, const EngineChoice& engine, bool ops,
                     const Texts& calibrations, const std::string& label) {
  SimulationOptions options = engine.options();
  options.ops = true;
  ScenarioSource source;
  const nlohmann::json given = scenario_argument(scenario, sets, source);
  refuse_report(given, source.file, "a scenario, such as inputs.scenario of a report");
  const Asked asked{given, source, calibrations, label, ops};
  Simulator simulator(read_user_calibration(calibrations));
  if (has_jobs(given)) {
    if (engine.engine != kEngineNames[static_cast<std::size_t>(Engine::des)])
      throw InputError({source.file, "/jobs"}, "jobs that share a cluster",
                       "the engine des: the analytical engine simulates one job at a time");
    return json_text(jobs_json(asked, simulator.evaluate_jobs(given, source, options)));
  }
  std::optional<Report> analytical;
  if (engine.both()) analytical = simulator.evaluate(given, source, {.engine = Engine::analytical, .ops = true}).report;
  const Report report = simulator.evaluate(given, source, options).report;
  return json_text((analytical ? both_json(asked, *analytical, report) : simulation_json(asked, report)));
}

std::string compare(const ScenarioArgument& a, const ScenarioArgument& b, const Texts& sets, const Texts& sets_a,
                    const Texts& sets_b, const EngineChoice& engine, const Texts& calibrations) {
  const SimulationOptions options = one_engine(engine);
  const UserCalibration user = read_user_calibration(calibrations);
  const ComparedSide side_a = compared_side(a, sets, {"--set-a", sets_a}, options, calibrations, user);
  const ComparedSide side_b = compared_side(b, sets, {"--set-b", sets_b}, options, calibrations, user);
  return json_text(compared_json(side_a, side_b));
}

// Throws KeyboardInterrupt where one is waiting. Only the interpreter's main thread is told.
void check_interrupt() {
  const py::gil_scoped_acquire lock;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

// The same for functions that are called so often that not every call should look.
class InterruptCheck {
 public:
  void operator()() {
    if (Clock::now() < next_) return;
    check_interrupt();
    next_ = Clock::now() + kBetweenChecks;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr auto kBetweenChecks = std::chrono::milliseconds(50);
  Clock::time_point next_ = Clock::now() + kBetweenChecks;
};

std::string plan(const ScenarioArgument& document, const Texts& sets, bool worst, bool search, const Texts& fixed,
                 const std::string& of, double swing, const std::string& against, std::uint64_t seed,
                 std::int64_t histories, double shape, const Texts& calibrations) {
  require_within("--swing", swing, kLeastSwing, kMostSwing);
  require_within<std::int64_t>("--histories", histories, 1, kMostHistories);
  require_within("--shape", shape, kLeastShape, kMostShape);
  PlanRequest request;
  request.sets = sets;
  request.worst = worst;
  request.search = search;
  request.fixed = fixed;
  request.output = of;
  request.options.swing = swing;
  request.options.against = against;
  request.options.histories.seed = seed;
  request.options.histories.shape = shape;
  request.options.history_count = histories;
  request.calibrations = calibrations;
  request.searching = [](const Scenario&) { check_interrupt(); };
  request.options.histories.between = InterruptCheck();
  return json_text(plan_answer_json(answer_plan(document, request), request));
}

std::string sweep(const ScenarioArgument& document, const std::string& database, const std::string& shard,
                  std::int64_t threads, const Texts& calibrations, bool rows, const Texts& fields) {
  require_within<std::int64_t>("--threads", threads, 0, kMostSweepThreads);
  SweepRequest request;
  request.database = database;
  request.shard = shard;
  request.threads = threads;
  request.calibrations = calibrations;
  const SweepDocument read = sweep_argument(document);
  SweepRunOptions options = sweep_options(request);
  std::exception_ptr interrupt;  // thrown when what has been computed is in the file
  options.stop = [&] {
    try {
      if (!interrupt) check_interrupt();
    } catch (...) {
      interrupt = std::current_exception();
    }
    return interrupt != nullptr;
  };
  check_fields(fields, names_of_rows(read));
  SweepResults results(database, Database::Mode::write);
  const SweepOutcome outcome = run_sweep(read, results, options);
  if (interrupt) std::rethrow_exception(interrupt);
  if (outcome.failed > 0)
    throw std::runtime_error(
        fmt::format("{} points could not be computed, the first: {}", outcome.failed, outcome.first_failure));
  require_a_result(read, outcome);
  std::string text = json_text(sweep_json(request, read, results, outcome));
  if (!rows) return text;
  text.pop_back();
  return text + ",\"rows\":" + rows_json(results, outcome.sweep, fields) + "}";
}

std::string sweep_rows(const std::string& database, const Texts& fields) {
  const SweepResults results(database, Database::Mode::read);
  check_fields(fields, results.names(0));
  return rows_json(results, 0, fields);
}

std::string compare_databases(const std::string& a, const std::string& b, double threshold, const Texts& fields) {
  if (!(threshold >= 0)) throw InputError({"--threshold", ""}, fmt::format("{}", threshold), "a share: 0.05");
  nlohmann::ordered_json json = sweep_comparison_json(compare_sweeps(a, b, {fields, threshold}));
  json["version"] = ORRERY_VERSION;
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string search_plans(const ScenarioArgument& scenario, const Texts& sets, const Texts& fixed, const Texts& over,
                         bool all, const std::string& global_batch, const std::string& most_memory,
                         const Texts& at_most, bool safe, std::int64_t top, double front,
                         std::optional<double> network_within, bool exhaustive, std::int64_t threads,
                         const EngineChoice& engine, const Texts& calibrations, const std::string& label) {
  require_within<std::int64_t>("--top", top, 1, kMostPlansListed);
  require_within<std::int64_t>("--threads", threads, 0, kMostSearchThreads);
  require_within("--front", front, 1.0, kMostFront);
  if (network_within) require_within("--network-within", *network_within, kLeastNetworkPercent, kMostNetworkPercent);
  SearchRequest request;
  request.sets = sets;
  request.fixed = fixed;
  request.over = over;
  request.global_batch = global_batch;
  request.most_memory = most_memory;
  request.at_most = at_most;
  request.safe = safe;
  request.all = all;
  request.exhaustive = exhaustive;
  request.top = top;
  request.threads = threads;
  request.front = front;
  request.network_within_percent = network_within;
  const SimulationOptions options = one_engine(engine);
  if (options.engine == Engine::des) request.engine_of_listed = options;
  request.calibrations = calibrations;
  request.progress = [check = InterruptCheck()](const SearchProgress&) mutable { check(); };
  return json_text(search_json(answer_search(scenario, request), request, label));
}

std::string validate(const std::string& source, const std::string& gpu, const std::string& strategy,
                     const std::string& seen) {
  const auto sources = static_cast<Seen>(index_named("--seen", seen, kSeenNames));
  Simulator simulator;
  const std::vector<PredictedPoint> points =
      points_asked_for({.source = source, .gpu = gpu, .strategy = strategy}, simulator, sources);
  return json_text(validation_json(points).at("points"));
}

std::string program(const ScenarioArgument& scenario, const Texts& sets, const Texts& calibrations) {
  ScenarioSource source;
  const nlohmann::json given = scenario_argument(scenario, sets, source);
  if (has_jobs(given)) throw InputError({source.file, "/jobs"}, "jobs that share a cluster", "a scenario of one job");
  Scenario read = read_scenario(given, source);
  try {
    Calibrator calibrator(read_user_calibration(calibrations));
    return json_text(program_json(*calibrator.prepare(std::move(read)).program));
  } catch (const InputError& error) {
    throw source.blame(error);
  }
}

std::string list(const std::string& kind) {
  std::vector<std::string_view> kinds;
  for (const Listing& listing : listings()) kinds.emplace_back(listing.name);
  return json_text(listing_json(listings()[index_named("--kind", kind, kinds)]));
}

std::string show(const std::string& name) { return json_text(shown_json(name)); }

// An option of the command line as the argument of a function: "--max-memory" is max_memory.
InputError with_arguments_name(const InputError& error) {
  InputError::Where where = error.where();
  if (!where.file.starts_with("--") || where.file.find(' ') != std::string::npos) return error;
  where.file.erase(0, 2);
  std::replace(where.file.begin(), where.file.end(), '-', '_');
  return {std::move(where), error.found(), error.expected(), error.nearest()};
}

// A message may quote any bytes of a file.
py::object text_of(const std::string& text) {
  PyObject* const decoded = PyUnicode_DecodeUTF8(text.data(), static_cast<py::ssize_t>(text.size()), "replace");
  if (decoded == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(decoded);
}

// An exception of orrery/_errors.py.
template <class... Texts>
void raise(const char* name, const Texts&... texts) {
  const py::object type = py::module_::import("orrery._errors").attr(name);
  PyErr_SetObject(type.ptr(), type(text_of(texts)...).ptr());
}

void translate(std::exception_ptr thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const InputError& original) {
    const InputError error = with_arguments_name(original);
    raise("InputError", error.what(), error.where().file, error.where().pointer, error.found(), error.expected(),
          error.nearest());
  } catch (const StalledError& error) {
    raise("StalledError", error.what());
  } catch (const std::runtime_error& error) {
    // An interrupt ends simulations, too, which run in processes of their own.
    if (PyErr_CheckSignals() == 0) PyErr_SetObject(PyExc_RuntimeError, text_of(error.what()).ptr());
  }
}

}  // namespace

PYBIND11_MODULE(_orrery, module) {
  py::register_exception_translator(&translate);
  module.attr("version") = ORRERY_VERSION;
  module.attr("commit") = build_commit();
  py::class_<ScenarioArgument>(module, "Argument").def(py::init<std::string>()).def(py::init(&held));
  py::class_<EngineChoice>(module, "Engine")
      .def(py::init<std::string, std::string, std::string, std::optional<std::string>, bool>());
  const auto def = [&](const char* name, auto function) { module.def(name, function, WithoutLock()); };
  def("simulate", &simulate);
  def("compare", &compare);
  def("search", &search_plans);
  def("plan", &plan);
  def("sweep", &sweep);
  def("sweep_rows", &sweep_rows);
  def("compare_sweeps", &compare_databases);
  def("validate", &validate);
  def("program", &program);
  def("list", &list);
  def("show", &show);
}

}  // namespace orrery
