#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/calibrate_commands.h"
#include "cli/cluster_argument.h"
#include "cli/offers.h"
#include "cli/output.h"
#include "realrun/calibrate/collective_fit.h"
#include "realrun/calibrate/nccl_log.h"
#include "sim/base/error.h"

namespace orrery {
namespace {

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

  std::string fitted;
  for (const std::string& name : fit.fitted) fitted += (fitted.empty() ? "" : ", ") + name;
  Outputs outputs;
  outputs.add(arguments.output,
              collectives_text(fit, fmt::format("orrery calibrate import: {}; Huber fit in log space of {}; all other "
                                                "parameters are those of the bundled calibration",
                                                method, fitted)));
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

}  // namespace

void add_calibrate_import(Command calibrate) {
  auto arguments = std::make_shared<CalibrateImportArguments>();
  const Command command = calibrate.add_subcommand(
      "import", "How fast collectives are by logs of nccl-tests, fitted to what predictions go by");
  command.footer(kCalibrateImportExamples);
  command.add_option("LOG", arguments->logs, "What all_reduce_perf and its like print, or write with -J")
      .required()
      .offers_files();
  offer_clusters(command
                     .add_option("--cluster", arguments->cluster,
                                 "Where they ran: a cluster, node or scenario, or the JSON file of one")
                     .required());
  command
      .add_option("--collective", arguments->log.collective,
                  "Read a log's tests of this collective alone; it is also that of tests that do not name theirs")
      .offers_words(collectives_of_logs());
  command.add_flag("--in-place", arguments->log.in_place, "Take the in-place columns");
  command.add_flag("--force", arguments->force, "Write a calibration that misses the measurements, too");
  command.add_file("--output", arguments->output, "The calibration; - for standard output").capture_default();
  command.add_file("--curves", arguments->curves,
                   "Also write the curves as results/published/collectives.json has them");
  command.callback([arguments] { import(*arguments); });
}

}  // namespace orrery
