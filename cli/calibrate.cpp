// orrery calibrate: measures this machine's device and fits the calibration that predictions then use; or fits one to
// logs of nccl-tests or to published measurements.
#include "realrun/calibrate/calibrate.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <csignal>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/offers.h"
#include "cli/output.h"
#include "realrun/bench/facts.h"
#include "realrun/calibrate/collective_fit.h"
#include "realrun/calibrate/fit.h"
#include "realrun/calibrate/nccl_log.h"
#include "realrun/calibrate/published.h"
#include "sim/base/error.h"
#include "sim/base/input_file.h"
#include "sim/base/json_reader.h"
#include "sim/cost/published_collectives.h"
#include "sim/hardware/presets.h"

namespace orrery {
namespace {

struct CalibrateArguments {
  std::string device = "cpu", output, journal, preset, device_output, budget;
  bool quick = false, restart = false;
};

constexpr const char* kCalibrateExamples = R"(Examples:
  orrery calibrate                                 one thread of this CPU, about ten minutes
  orrery calibrate --quick --output mine.json      a minute; rougher
  orrery calibrate --device cuda --preset H200-SXM5-141GB
  orrery simulate scenario.json --calibration mine.json
  orrery run small-gpt --predict --calibration mine.json
  orrery calibrate import all_reduce.log --cluster dgx-h100 --output nccl.json

What was measured stands in a journal beside the output: a calibration that was interrupted goes on where it was, and
one that is complete is fitted again without measuring.)";

constexpr double kUsualBudget = 600, kQuickBudget = 60;

// Parses "10min", "90s", "1.5h", "45".
double seconds_of(const std::string& text) {
  const auto fail = [&] { throw InputError({"--budget", ""}, '"' + text + '"', "a time: 90s, 10min, 1h"); };
  double number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !(number > 0) || !std::isfinite(number)) fail();
  const std::string unit(rest, text.data() + text.size());
  constexpr std::array<std::pair<const char*, double>, 6> kUnits{
      {{"", 1}, {"s", 1}, {"min", 60}, {"m", 60}, {"h", 3600}, {"ms", 1e-3}}};
  for (const auto& [name, seconds] : kUnits)
    if (unit == name) return number * seconds;
  fail();
  return 0;
}

std::string time_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::max(0.0, seconds) + 0.5);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

// A bar on a terminal; otherwise a line for every 10% done.
class ProgressBar {
 public:
  void show(const CalibrationProgress& p) {
    const double share =
        std::max(static_cast<double>(p.done) / static_cast<double>(p.total), p.seconds / p.budget_seconds);
    // Estimated from the pace so far, and at most the remaining budget.
    const double left = std::min(p.budget_seconds - p.seconds, p.seconds * (1 / std::max(share, 1e-9) - 1));
    if (line_.on_terminal()) {
      constexpr std::size_t kWidth = 24;
      const auto full = std::min(kWidth, static_cast<std::size_t>(share * kWidth));
      line_.show(fmt::format("[{}{}] {} of {} points, {} left  {:.40}", std::string(full, '#'),
                             std::string(kWidth - full, ' '), p.done, p.total, time_text(left), p.point));
      return;
    }
    const auto tenth = static_cast<int>(10 * share);
    if (tenth == last_tenth_) return;
    last_tenth_ = tenth;
    fmt::print(stderr, "{} of {} points, {} left\n", p.done, p.total, time_text(left));
  }

 private:
  ProgressLine line_;
  int last_tenth_ = 0;
};

volatile std::sig_atomic_t interrupted = 0;
extern "C" void note_interrupt(int) { interrupted = 1; }

class InterruptHandler {
 public:
  InterruptHandler() : before_(std::signal(SIGINT, note_interrupt)) { interrupted = 0; }
  ~InterruptHandler() { std::signal(SIGINT, before_); }
  InterruptHandler(const InterruptHandler&) = delete;
  InterruptHandler& operator=(const InterruptHandler&) = delete;

 private:
  void (*before_)(int);
};

std::string today() { return fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr))); }

std::string device_preset(const Device& device, const std::string& text) {
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(text).at("device");
  json.erase("name");
  if (device.architecture == "CPU") json["usual_nodes"] = {"cpu-host"};
  return written_json({{device.name, std::move(json)}});
}

std::string report_of(const CalibrateResult& result, const CalibrateArguments& arguments) {
  const CalibrationFit& fit = result.fit;
  std::string text = fit_table(fit);
  if (result.measured < result.planned)
    text += fmt::format("\n{} of {} points measured when the time was up; run again to continue with the rest\n",
                        result.measured, result.planned);
  if (fit.device_is_measured)
    text += fmt::format(
        "\n{} has no preset: its rates are the highest that its kernels approach, {:.4g} FLOP/s in products and {:.4g} "
        "bytes/s (including caches)\n",
        fit.device.name, fit.device.peak(Dtype::fp32), fit.device.memory_bytes_per_second);
  if (fit.calibration.host_processors > 1)
    text += fmt::format("with all {} hardware threads busy, a rank keeps {:.1f}% of its speed when alone\n",
                        fit.calibration.host_processors, 100 * fit.calibration.busy_share);
  return text + fmt::format("\nwritten: {}\n", arguments.output);
}

MakeBackend backend_maker(const std::string& device) {
  if (device == "cuda") return [] { return make_cuda_backend(); };
  return [] { return make_cpu_backend(); };
}

void calibrate_device(CalibrateArguments arguments) {
  const MakeBackend make_backend = backend_maker(arguments.device);
  const BackendFacts facts = make_backend()->facts();
  CalibrateOptions options = options_for(facts);
  if (arguments.preset.empty() && facts.kind != "cpu") arguments.preset = bench::preset_named(facts.device);
  if (!arguments.preset.empty()) options.preset = find_device(arguments.preset, {"--preset", ""});
  options.date = today();
  options.restart = arguments.restart;
  options.budget_seconds = !arguments.budget.empty() ? seconds_of(arguments.budget)
                           : arguments.quick         ? kQuickBudget
                                                     : kUsualBudget;
  if (arguments.quick) options.passes = 1;
  const std::string name = options.preset ? options.preset->name : device_name(facts);
  if (arguments.output.empty()) arguments.output = name + ".json";
  if (arguments.journal.empty()) {
    std::string stem = arguments.output == "-" ? name : arguments.output;
    if (stem.ends_with(".json")) stem.resize(stem.size() - std::string(".json").size());
    arguments.journal = stem + ".points.jsonl";
  }
  options.journal = arguments.journal;
  for (const std::string* path : {&arguments.output, &arguments.device_output})
    if (*path == arguments.journal)
      throw InputError({*path, ""}, "one file for several purposes", "a file of its own for each output");
  remember_input(arguments.journal);
  check_outputs({arguments.output, arguments.device_output});

  CalibrateResult result;
  {
    ProgressBar bar;
    const InterruptHandler handler;
    options.progress = [&bar](const CalibrationProgress& p) { bar.show(p); };
    options.interrupted = [] { return interrupted != 0; };
    result = calibrate(make_backend, options);
  }
  if (result.interrupted)
    throw DeviceError(fmt::format(
        "interrupted: the measured points are in {}, and the same command continues from there", arguments.journal));
  if (!arguments.device_output.empty() && !result.fit.device_is_measured)
    throw InputError({"--device-output", ""}, "a device with a preset", "a device with measured rates");
  Outputs outputs;
  outputs.add(arguments.output, result.text);
  outputs.add_wanted(arguments.device_output, [&] { return device_preset(result.fit.device, result.text); });
  outputs.commit();
  const std::string text = report_of(result, arguments);
  if (arguments.output == "-") {
    fmt::print(stderr, "{}", text);
  } else {
    print(text);
  }
}

// ---- from published measurements

struct CalibratePublishedArguments {
  std::string points, folder, only;
};

constexpr const char* kCalibratePublishedExamples = R"(Examples:
  orrery calibrate published results/published/kernels.json --output results/calibration
  orrery calibrate published results/published/collectives.json --output results/calibration --only "Hopper NVLink4"

The program begins with the calibrations that it was built with, and predicts by them.)";

void fit_published(const CalibratePublishedArguments& arguments) {
  const nlohmann::json document = parse_json_file(arguments.points);
  const bool kernels = document.is_object() && document.contains("points");
  if (!kernels && !(document.is_object() && document.contains("curves")))
    throw InputError({arguments.points, ""}, describe(document), "the points of kernels, or the curves of collectives");
  if (kernels && !arguments.only.empty())
    throw InputError({"--only", ""}, describe(arguments.only), "no class: these are points of kernels");
  check_outputs({arguments.folder + "/collectives.json"});  // whether the folder can be written, before the fit
  const PublishedFit fit = kernels ? fit_published_kernels(document, arguments.points, today())
                                   : fit_published_collectives(document, arguments.points, arguments.only);
  Outputs outputs;
  for (const auto& [name, text] : fit.files) outputs.add(arguments.folder + "/" + name, text);
  outputs.add("-", fit.table);
  outputs.commit();
}

void add_calibrate_published(Command calibrate) {
  const auto [command, arguments] = calibrate.declare<CalibratePublishedArguments>(
      "published", "Which parameters fit the published measurements: the bundled calibrations, fitted again",
      kCalibratePublishedExamples, fit_published);
  command.add_option("POINTS", arguments.points, "Measured kernels or collectives, as results/published has them")
      .required()
      .offers_files();
  command.add_option("--output", arguments.folder, "The folder for the calibrations").required().type_name("FOLDER");
  command.add_option("--only", arguments.only, "Fit this class of collectives alone").type_name("CLASS");
}

// ---- from logs of nccl-tests

struct CalibrateImportArguments {
  std::vector<std::string> logs;
  std::string cluster, output = "collectives.json", curves;
  LogOptions log;
  bool force = false;
};

constexpr const char* kCalibrateImportExamples = R"(Examples:
  all_reduce_perf -b 8 -e 8G -f 2 -g 8 >all_reduce.log
  orrery calibrate import all_reduce.log all_gather.log --cluster dgx-h100 --output nccl.json
  orrery calibrate import sixteen-nodes.json --cluster my-cluster.json --output nccl.json
  orrery simulate scenario.json --calibration nccl.json

Logs are what nccl-tests prints, or writes with -J. The cluster is the hardware that they ran on.)";

// Writes the points that a fit misses as one line of text.
std::string missed_text(const CurveError& curve) {
  constexpr std::size_t kShown = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(curve.missed.size(), kShown); ++i) {
    const auto& [point, predicted] = curve.missed[i];
    text +=
        fmt::format("{}{:.0f} bytes{}: measured {:.4g} us, fitted {:.4g} us", text.empty() ? "" : "; ", point.bytes,
                    point.line > 0 ? fmt::format(" (line {})", point.line) : "", 1e6 * point.seconds, 1e6 * predicted);
  }
  if (curve.missed.size() > kShown) text += fmt::format("; and {} more", curve.missed.size() - kShown);
  return fmt::format("{} of {} points are off by more than {} times: {}", curve.missed.size(), curve.points,
                     kMissedFactor, text);
}

void import(const CalibrateImportArguments& arguments) {
  const Cluster cluster = read_cluster_argument(arguments.cluster);
  std::vector<CollectiveCurve> curves;
  for (const std::string& file : arguments.logs) {
    CollectiveLog log = read_nccl_log(file, arguments.log);
    for (CollectiveCurve& curve : log.curves) {
      place_on(cluster, curve);
      curves.push_back(std::move(curve));
    }
    for (const std::string& test : log.left_out) fmt::print(stderr, "orrery: ignored in {}: {}\n", file, test);
  }
  const std::string method =
      fmt::format("nccl-tests, {} columns", arguments.log.in_place ? "in-place" : "out-of-place");
  std::string sources;
  for (const CollectiveCurve& curve : curves) sources += (sources.empty() ? "" : ", ") + curve.source;
  const CollectiveFit fit = fit_collectives(cluster, curves, sources);
  for (std::size_t i = 0; i < curves.size(); ++i)
    if (fit.errors[i].is_missed() && !arguments.force)
      throw InputError({curves[i].source, ""}, fmt::format("{}: {}", curves[i].id, missed_text(fit.errors[i])),
                       "a measurement of these ranks on this cluster that a fit can follow; --force writes the "
                       "calibration nevertheless");

  Outputs outputs;
  outputs.add(arguments.output,
              written_json(collectives_json(
                  fit, fmt::format("orrery calibrate import: {}; Huber fit in log space of {}; all other parameters "
                                   "are those of the bundled calibration",
                                   method, fmt::join(fit.fitted, ", ")))));
  outputs.add_wanted(arguments.curves, [&] { return curves_text(cluster, curves, method); });
  if (!outputs.on_standard_output()) {
    std::string text =
        fmt::format("{:48} {:>6} {:>16} {:>16}\n", "curve", "points", "bundled: median", "fitted: median");
    for (const CurveError& e : fit.errors)
      text += fmt::format("{:48} {:>6} {:>15.1f}% {:>15.1f}%\n", e.id, e.points, 100 * e.before, 100 * e.after);
    for (const CurveError& e : fit.errors)
      if (!e.missed.empty()) text += fmt::format("\n{}: {}\n", e.id, missed_text(e));
    outputs.add("-", text + fmt::format("\nwritten: {}\n", arguments.output));
  }
  outputs.commit();
}

void add_calibrate_import(Command calibrate) {
  const auto [command, arguments] = calibrate.declare<CalibrateImportArguments>(
      "import", "How fast collectives are by logs of nccl-tests, fitted to what predictions go by",
      kCalibrateImportExamples, import);
  command.add_option("LOG", arguments.logs, "What all_reduce_perf and its like print, or write with -J")
      .required()
      .offers_files();
  offer_clusters(command
                     .add_option("--cluster", arguments.cluster,
                                 "Where they ran: a cluster, node or scenario, or the JSON file of one")
                     .required());
  command
      .add_option("--collective", arguments.log.collective,
                  "Read a log's tests of this collective alone; it is also that of tests that do not name theirs")
      .offers_words(collective_names());
  command.add_flag("--in-place", arguments.log.in_place, "Take the in-place columns");
  command.add_flag("--force", arguments.force, "Write a calibration that misses the measurements, too");
  command.add_file("--output", arguments.output, "The calibration; - for standard output").capture_default();
  command.add_file("--curves", arguments.curves,
                   "Also write the curves as results/published/collectives.json has them");
}

}  // namespace

void add_calibrate(Command app) {
  const auto [command, arguments] = app.declare<CalibrateArguments>(
      "calibrate", "How fast this machine's kernels are: measured, and fitted to what predictions go by",
      kCalibrateExamples, calibrate_device);
  command.require_subcommand(0, 1);
  command.add_option("--device", arguments.device, "Device to measure: cpu (one thread is one rank) or cuda")
      .one_of({"cpu", "cuda"})
      .capture_default();
  command.add_file("--output", arguments.output, "File of the calibration [DEVICE.json]; - for standard output");
  command.add_file("--journal", arguments.journal,
                   "File of the measured points [beside the output: DEVICE.points.jsonl]");
  command.add_option("--budget", arguments.budget, "Time for measuring: 90s, 10min [10min; --quick: 1min]")
      .type_name("TIME");
  command.add_flag("--quick", arguments.quick, "Measure each point once, in about a minute");
  command.add_flag("--restart", arguments.restart, "Start again without the points of an earlier journal");
  command
      .add_option("--preset", arguments.preset,
                  "Preset of the device, whose peaks are the base of efficiencies [found by the device's name]")
      .type_name("DEVICE")
      .offers_names({"devices"});
  command.add_file("--device-output", arguments.device_output,
                   "Also write the measured device as a preset (sim/hardware/presets/devices_cpu.json)");
  add_calibrate_import(command);
  add_calibrate_published(command);
}

}  // namespace orrery
