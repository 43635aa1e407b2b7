#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/calibrate_commands.h"
#include "cli/output.h"
#include "realrun/calibrate/published.h"
#include "sim/base/error.h"
#include "sim/base/json_reader.h"

namespace orrery {
namespace {

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
  const PublishedFit fit = kernels ? fit_published_kernels(document, arguments.points,
                                                           fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr))))
                                   : fit_published_collectives(document, arguments.points, arguments.only);
  Outputs outputs;
  for (const auto& [name, text] : fit.files) outputs.add(arguments.folder + "/" + name, text);
  outputs.add("-", fit.table);
  outputs.commit();
}

}  // namespace

void add_calibrate_published(Command calibrate) {
  auto arguments = std::make_shared<CalibratePublishedArguments>();
  const Command command = calibrate.add_subcommand(
      "published", "Which parameters fit the published measurements: the bundled calibrations, fitted again");
  command.footer(kCalibratePublishedExamples);
  command.add_option("POINTS", arguments->points, "Measured kernels or collectives, as results/published has them")
      .required()
      .offers_files();
  command.add_option("--output", arguments->folder, "The folder for the calibrations").required().type_name("FOLDER");
  command.add_option("--only", arguments->only, "Fit this class of collectives alone").type_name("CLASS");
  command.callback([arguments] { fit_published(*arguments); });
}

}  // namespace orrery
