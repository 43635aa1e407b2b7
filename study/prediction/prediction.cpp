#include "study/prediction/prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "sim/base/error.h"
#include "sim/cost/calibration.h"
#include "sim/cost/collective_calibration.h"
#include "strategies/framework/framework.h"
#include "strategies/lower.h"
#include "strategies/precision/precision.h"

namespace orrery {

struct Calibrator::Rep {
  Program program;
  std::unordered_map<std::string, Calibration> kernels;  // by what find_calibration goes by
  CollectiveCalibration collectives;
  UserCalibration user;
  const StepCalibration* steps = &step_calibration();

  // `stack`: "" where steps of none are known.
  const Calibration& kernels_of(Cluster& cluster, const Plan& plan, const std::string& stack, std::int64_t ranks);
};

const Calibration& Calibrator::Rep::kernels_of(Cluster& cluster, const Plan& plan, const std::string& stack,
                                               std::int64_t ranks) {
  user.apply(cluster);
  Device& device = cluster.device;
  const std::string_view attention = framework::attention_kernel(plan, device);
  const std::string key =
      fmt::format("{}\n{}\n{}\n{}\n{}\n{}", device.name, device.architecture, device.vendor, attention, ranks, stack);
  auto found = kernels.find(key);
  if (found == kernels.end()) {
    found = kernels.emplace(key, user.kernels ? user.kernels_of(device) : find_calibration(device)).first;
    if (!attention.empty()) use_attention_kernel(found->second, attention);
    if (!user.kernels && !stack.empty()) steps->apply(stack, device, found->second);
    Device ignored;
    if (const double share = rank_share(found->second, ranks); share < 1) take_share(share, ignored, found->second);
  }
  if (const double share = rank_share(found->second, ranks); share < 1) {
    Calibration ignored;
    take_share(share, device, ignored);
  }
  return found->second;
}

Calibrator::Calibrator(UserCalibration user) : rep_(std::make_unique<Rep>()) { rep_->user = std::move(user); }
Calibrator::~Calibrator() = default;

void Calibrator::use(const StepCalibration& steps) {
  if (rep_->steps == &steps) return;
  rep_->steps = &steps;
  rep_->kernels.clear();
}

const StepCalibration& Calibrator::steps() const { return *rep_->steps; }

Prepared Calibrator::prepare(Scenario scenario, std::optional<std::int64_t> executor_ranks) {
  Prepared prepared{std::move(scenario), &rep_->program, nullptr, &rep_->collectives};
  Cluster& cluster = prepared.scenario.cluster;
  if (executor_ranks) {
    prepared.kernels = &rep_->kernels_of(cluster, prepared.scenario.plan, "", *executor_ranks);
    orrery::lower(prepared.scenario, rep_->program);
    collectives(cluster, {});
  } else {
    prepared.kernels = &kernels(cluster, prepared.scenario);
    lower(prepared.scenario, rep_->program);
    const std::string stack = stack_of(prepared.scenario);
    collectives(cluster, {&stack, 1});
  }
  return prepared;
}

const Calibration& Calibrator::kernels(Cluster& cluster, const Scenario& scenario) {
  return rep_->kernels_of(cluster, scenario.plan, stack_of(scenario), std::min(cluster.node.devices, ranks(scenario)));
}

void Calibrator::lower(const Scenario& scenario, Program& program) const {
  orrery::lower(scenario, program);
  rep_->steps->apply(stack_of(scenario), program.runtime);
}

const CollectiveCalibration& Calibrator::collectives(const Cluster& cluster, std::span<const std::string> stacks) {
  rep_->collectives = find_collective_calibration(cluster, rep_->user.collectives);
  for (const std::string& stack : stacks) rep_->steps->apply(stack, rep_->collectives);
  return rep_->collectives;
}

std::string stack_of(const Scenario& scenario) { return std::string(framework::stack_name(scenario.plan)); }

IntervalClass interval_class(const Scenario& scenario, const Calibration& kernels,
                             const CollectiveCalibration& collectives) {
  const Cluster& cluster = scenario.cluster;
  return {.stack = stack_of(scenario),
          .origin = curve_origin(cluster.device, kernels, precision::peak_dtype(scenario)),
          .devices = ranks(scenario),
          .device_seen = step_calibration().device_slowdown.contains(cluster.device.name),
          .mixture = scenario.model.has_experts(),
          .four_bits = precision::peak_dtype(scenario) == Dtype::nvfp4,
          .network = cluster.nodes == 1            ? ""
                     : collectives.inter_stands_in ? cluster.fabric.name
                                                   : collectives.inter_class};
}

Report predict(const Prepared& prepared, const AnalyticalOptions& options) {
  AnalyticalEngine engine(prepared.scenario.cluster, *prepared.kernels, *prepared.collectives);
  Report report;
  engine.evaluate(*prepared.program, precision::peak_dtype(prepared.scenario), options, report);
  check_ends(report);
  report.figures = figures_of(prepared.scenario, *prepared.program);
  return report;
}

void check_ends(const Report& report) {
  if (!std::isfinite(report.step_seconds))
    throw InputError({"", ""}, "rates or sizes so extreme that the step never ends",
                     "rates and sizes of real hardware");
}

}  // namespace orrery
