#include "study/validation/fit.h"

#include <fmt/format.h>

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "sim/base/json_reader.h"
#include "sim/base/threads.h"
#include "sim/cost/calibration.h"
#include "sim/hardware/cluster.h"
#include "sim/hardware/presets.h"
#include "strategies/framework/framework.h"
#include "study/validation/intervals.h"

namespace orrery {
namespace {

using Vector = Eigen::VectorXd;
using Matrix = Eigen::MatrixXd;

constexpr double kMeanSpread = 0.4, kDeviceSpread = 0.05, kMemoryMeanSpread = 0.5, kMemorySpread = 0.3;
constexpr double kHostMeanSpread = 1.5, kHostSpread = 0.7, kHostOpsSpread = 0.5;
constexpr double kCollectiveSpread = 0.5;
constexpr Eigen::Index kFamilies = 3;  // of framework::Kernels
// Shared by all points of a kind; then those of each device and each stack.
enum SharedParameter : Eigen::Index {
  kDeviceMean,
  kHostMean,
  kMemoryMean,
  kCollectives = kMemoryMean + kFamilies,
  kCollectiveHost,
  kUpdateHost,
  kExpertHost,
  kShared
};
constexpr double kDifference = 1e-3;  // of a parameter's logarithm
constexpr int kSteps = 12;            // at most
constexpr int kHalvings = 6;          // of a step that fits worse
constexpr int kChordSteps = 40;       // the same for the chord method, which does not find slopes anew
constexpr double kLongestStep = 0.7;

// Parameters are logarithms: of the mean slowdown of devices; of the mean factor by which hosts are slower than
// stacks.json has them; of the mean slowdown of each family's memory-bound kernels; of the collectives' slowdown; of
// the host's time for collectives, updates and experts' products; of each device's slowdown; of each stack's numbers,
// its host's being such a factor.
struct Parameters {
  std::vector<std::string> devices, stacks;
  std::vector<double> known_host;  // of each stack, from stacks.json

  // Kinds of parameters in turn: a point feels one of each.
  enum Kind : std::uint8_t { kDevice, kMemory, kHost, kKinds };
  Eigen::Index size() const { return begin(kKinds); }
  Eigen::Index begin(int kind) const {
    return kShared + static_cast<Eigen::Index>((kind > kDevice ? devices.size() : 0) +
                                               static_cast<std::size_t>(std::max(kind - 1, 0)) * stacks.size());
  }
  Eigen::Index at(Kind kind, std::size_t i) const { return begin(kind) + static_cast<Eigen::Index>(i); }
  Eigen::Index of(Kind kind, const PredictedPoint& p) const {
    const std::vector<std::string>& names = kind == kDevice ? devices : stacks;
    const std::string& name = kind == kDevice ? p.device : p.framework;
    return at(kind, static_cast<std::size_t>(std::lower_bound(names.begin(), names.end(), name) - names.begin()));
  }

  Vector start() const { return Vector::Zero(size()); }
  StepCalibration calibration(const Vector& x) const {
    StepCalibration c;
    c.other_devices_slowdown = std::exp(x[kDeviceMean]);
    c.collective_slowdown = std::exp(x[kCollectives]);
    c.collective_host_ops = std::exp(x[kCollectiveHost]);
    c.update_host_ops = std::exp(x[kUpdateHost]);
    c.expert_host_ops = std::exp(x[kExpertHost]);
    for (std::size_t i = 0; i < devices.size(); ++i) c.device_slowdown[devices[i]] = std::exp(x[at(kDevice, i)]);
    for (std::size_t i = 0; i < stacks.size(); ++i)
      c.stacks[stacks[i]] = {.host_seconds_per_op = known_host[i] * std::exp(x[at(kHost, i)]),
                             .memory_bound_slowdown = std::exp(x[at(kMemory, i)])};
    return c;
  }
};

class Fit {
 public:
  explicit Fit(const ValidationFilter& filter = {}) {
    for (const PredictedPoint& p : predict_published(filter, simulator_, Seen::none))
      if (is_fitted(p)) points_.push_back(p);
    for (const PredictedPoint& p : points_)
      variants_.push_back(simulator_.variant(p.point->scenario->dump(), {p.point->id, {}}));
    weights_ = weights_of_sources(points_);
    std::set<std::string> devices, stacks;
    for (const PredictedPoint& p : points_) {
      devices.insert(p.device);
      stacks.insert(p.framework);
    }
    parameters_.devices.assign(devices.begin(), devices.end());
    parameters_.stacks.assign(stacks.begin(), stacks.end());
    for (const std::string& stack : parameters_.stacks)
      parameters_.known_host.push_back(framework::stack_named(stack).runtime.host_seconds_per_op);
    constrain();
  }

  const Parameters& parameters() const { return parameters_; }
  std::vector<std::string> sources() const {
    std::vector<std::string> names;
    for (const auto& [name, weight] : weights_) names.push_back(name);
    return names;
  }

  // Devices with curves of their own, with each source that has steps of them.
  std::vector<std::pair<std::string, std::string>> measured_devices() const {
    const std::vector<std::string> measured = calibrated_devices();
    std::set<std::pair<std::string, std::string>> found;
    for (const PredictedPoint& p : points_)
      if (std::find(measured.begin(), measured.end(), p.device) != measured.end())
        found.emplace(p.device, p.source->name);
    return {found.begin(), found.end()};
  }

  // Leaves out the points of the source `without` and of the device `without_device`. `slopes`: those of all points,
  // used at every step (the chord method). Null: each step finds its own.
  Vector run(Vector x, const std::string& without = "", const std::string& without_device = "",
             const Matrix* slopes = nullptr) {
    std::vector<const PredictedPoint*> used;
    for (const PredictedPoint& p : points_)
      if (p.source->name != without && p.device != without_device) used.push_back(&p);
    const int steps = slopes == nullptr ? kSteps : kChordSteps;
    std::vector<double> at_x = log_errors(used, parameters_.calibration(x));
    for (int step = 0; step < steps; ++step) {
      Matrix normal = Matrix::Zero(x.size(), x.size());
      Vector gradient = Vector::Zero(x.size());
      add_points(used, at_x, slopes == nullptr ? slopes_of(used, at_x, x) : *slopes, normal, gradient);
      add_known(x, normal, gradient);
      Vector change = change_within_bounds(x, normal, gradient);
      const double longest = change.cwiseAbs().maxCoeff();
      if (longest > kLongestStep) change *= kLongestStep / longest;
      // Where what hides a collective or a kernel changes, errors have kinks, and a whole step may lead across one.
      const double before = misfit(used, at_x, x);
      for (int halving = 0; halving <= kHalvings; ++halving, change /= 2) {
        const Vector there = x + change;
        std::vector<double> errors = log_errors(used, parameters_.calibration(there));
        if (halving < kHalvings && misfit(used, errors, there) > before) continue;
        x = there;
        at_x = std::move(errors);
        break;
      }
      if (change.cwiseAbs().maxCoeff() < kDifference) break;
    }
    return x;
  }

  // Returns the slopes of all points, a row for each.
  Matrix slopes_at(const Vector& x) {
    std::vector<const PredictedPoint*> all;
    for (const PredictedPoint& p : points_) all.push_back(&p);
    return slopes_of(all, log_errors(all, parameters_.calibration(x)), x);
  }

  // Appends the points of a source, of the device alone where one is named, as the calibration predicts them.
  void predict(const StepCalibration& calibration, const std::string& source, const std::string& device,
               std::vector<PredictedPoint>& predicted) {
    std::vector<const PredictedPoint*> chosen;
    for (const PredictedPoint& p : points_)
      if (p.source->name == source && (device.empty() || p.device == device)) chosen.push_back(&p);
    const std::vector<double> errors = log_errors(chosen, calibration);
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      predicted.push_back(*chosen[i]);
      predicted.back().predicted = chosen[i]->point->value * std::exp(errors[i]);
    }
  }

 private:
  // x[above] - x[below] + slack must be at least 0. Where below < 0, x[above] + slack must be.
  struct Constraint {
    Eigen::Index above = 0, below = -1;
    double slack = 0;
  };

  // Nothing is faster in a step than alone: slowdowns are at least 1, hosts at least as slow as literature has them.
  // Means of stacks may lie anywhere. A device that is at least as good as another in every rate is never the slower
  // one.
  void constrain() {
    for (Eigen::Index i = 0; i < parameters_.size(); ++i)
      if (i >= kShared || i == kDeviceMean || i == kCollectives) constraints_.push_back({.above = i});
    std::map<std::string, Device> presets;
    for (const std::string& name : device_names())
      if (std::binary_search(parameters_.devices.begin(), parameters_.devices.end(), name))
        presets.emplace(name, find_device(name));
    const auto at = [&](const std::string& name) {
      const auto found = std::lower_bound(parameters_.devices.begin(), parameters_.devices.end(), name);
      return parameters_.at(Parameters::kDevice, static_cast<std::size_t>(found - parameters_.devices.begin()));
    };
    for (const auto& [name, device] : presets)
      for (const auto& [other_name, other] : presets)
        if (name != other_name && is_no_slower(device, other))
          constraints_.push_back({at(other_name), at(name), std::log(allowed_slowdown(device, other))});
  }

  // The step to the least of the quadratic within the constraints: Hildreth's method (1957), which climbs the dual one
  // multiplier after another.
  Vector change_within_bounds(const Vector& x, const Matrix& normal, const Vector& gradient) const {
    constexpr int kTurns = 20000;
    constexpr double kExact = 1e-13;
    const Matrix inverse = normal.ldlt().solve(Matrix::Identity(x.size(), x.size()));
    Vector change = -inverse * gradient;
    std::vector<double> multipliers(constraints_.size(), 0);
    for (int turn = 0; turn < kTurns; ++turn) {
      double most = 0;
      for (std::size_t k = 0; k < constraints_.size(); ++k) {
        const auto [above, below, slack] = constraints_[k];
        Vector direction = inverse.col(above);
        if (below >= 0) direction -= inverse.col(below);
        const auto along = [&, a = above, b = below](const Vector& v) { return v[a] - (b < 0 ? 0 : v[b]); };
        const double before = multipliers[k];
        multipliers[k] = std::max(0.0, before - (along(x) + along(change) + slack) / along(direction));
        const Vector moved = (multipliers[k] - before) * direction;
        change += moved;
        most = std::max(most, moved.cwiseAbs().maxCoeff());
      }
      if (most < kExact) break;
    }
    for (std::size_t k = 0; k < constraints_.size(); ++k)
      if (multipliers[k] > 0 && constraints_[k].below < 0) change[constraints_[k].above] = -x[constraints_[k].above];
    return change;
  }

  std::vector<double> log_errors(const std::vector<const PredictedPoint*>& points, const StepCalibration& calibration) {
    simulator_.use(calibration);
    std::vector<double> errors;
    for (const PredictedPoint* p : points) {
      const Report& report = simulator_.evaluate(variants_[static_cast<std::size_t>(row_of(*p))], /*ops=*/false);
      errors.push_back(std::log(report.step_seconds / p->point->value));
    }
    simulator_.use(step_calibration());
    return errors;
  }

  Eigen::Index row_of(const PredictedPoint& p) const { return static_cast<Eigen::Index>(&p - points_.data()); }

  // Returns a row for each of all points; rows of points that are not asked for are 0. A point depends on the shared
  // parameters and on those of its own device and stack alone, so devices and stacks are moved together.
  Matrix slopes_of(const std::vector<const PredictedPoint*>& points, const std::vector<double>& at_x, const Vector& x) {
    Matrix slopes = Matrix::Zero(static_cast<Eigen::Index>(points_.size()), x.size());
    const auto differentiate = [&](Eigen::Index begin, Eigen::Index end, const auto& index) {
      Vector moved = x;
      moved.segment(begin, end - begin).array() += kDifference;
      const std::vector<double> there = log_errors(points, parameters_.calibration(moved));
      for (std::size_t p = 0; p < points.size(); ++p)
        slopes(row_of(*points[p]), index(*points[p])) = (there[p] - at_x[p]) / kDifference;
    };
    for (const auto kind : {Parameters::kDevice, Parameters::kMemory, Parameters::kHost})
      differentiate(parameters_.begin(kind), parameters_.begin(kind + 1),
                    [&](const PredictedPoint& p) { return parameters_.of(kind, p); });
    for (const Eigen::Index shared : {kCollectives, kCollectiveHost, kUpdateHost, kExpertHost})
      differentiate(shared, shared + 1, [&](const PredictedPoint&) { return shared; });
    return slopes;
  }

  void add_points(const std::vector<const PredictedPoint*>& points, const std::vector<double>& at_x,
                  const Matrix& slopes, Matrix& normal, Vector& gradient) const {
    for (std::size_t p = 0; p < points.size(); ++p) {
      const double weight = weights_.at(points[p]->source->name);
      const double size = std::abs(at_x[p]) / kSpread;
      const double w = weight * (size <= kHuberWidth ? 1 : kHuberWidth / size) / (kSpread * kSpread);
      const Vector slope = slopes.row(row_of(*points[p])).transpose();
      normal += w * slope * slope.transpose();
      gradient += w * at_x[p] * slope;
    }
  }

  // The fit minimises this. add_points() and add_known() add up its derivatives.
  double misfit(const std::vector<const PredictedPoint*>& points, const std::vector<double>& errors,
                const Vector& x) const {
    double sum = 0;
    for (std::size_t p = 0; p < points.size(); ++p) {
      const double size = std::abs(errors[p]) / kSpread;
      sum += weights_.at(points[p]->source->name) *
             (size <= kHuberWidth ? size * size / 2 : kHuberWidth * (size - kHuberWidth / 2));
    }
    Matrix normal = Matrix::Zero(x.size(), x.size());
    Vector gradient = Vector::Zero(x.size());
    add_known(x, normal, gradient);
    return sum + x.dot(gradient) / 2;
  }

  void add_known(const Vector& x, Matrix& normal, Vector& gradient) const {
    const auto pull = [&](Eigen::Index i, double spread, Eigen::Index mean = -1) {
      const double w = 1 / (spread * spread), distance = x[i] - (mean < 0 ? 0 : x[mean]);
      normal(i, i) += w;
      gradient[i] += w * distance;
      if (mean < 0) return;
      normal(mean, mean) += w;
      normal(i, mean) -= w;
      normal(mean, i) -= w;
      gradient[mean] -= w * distance;
    };
    pull(kDeviceMean, kMeanSpread);
    pull(kHostMean, kHostMeanSpread);
    pull(kCollectives, kCollectiveSpread);
    pull(kCollectiveHost, kHostOpsSpread);
    pull(kUpdateHost, kHostOpsSpread);
    pull(kExpertHost, kHostOpsSpread);
    for (Eigen::Index family = 0; family < kFamilies; ++family) pull(kMemoryMean + family, kMemoryMeanSpread);
    for (std::size_t i = 0; i < parameters_.devices.size(); ++i)
      pull(parameters_.at(Parameters::kDevice, i), kDeviceSpread, kDeviceMean);
    for (std::size_t i = 0; i < parameters_.stacks.size(); ++i) {
      const auto family = static_cast<Eigen::Index>(framework::stack_named(parameters_.stacks[i]).kernels);
      pull(parameters_.at(Parameters::kMemory, i), kMemorySpread, kMemoryMean + family);
      pull(parameters_.at(Parameters::kHost, i), kHostSpread, kHostMean);
    }
  }

  Simulator simulator_;
  std::vector<PredictedPoint> points_;
  std::vector<Variant> variants_;          // their scenarios
  std::map<std::string, double> weights_;  // of a source's points
  Parameters parameters_;
  std::vector<Constraint> constraints_;
};

double rounded(double value) { return std::stod(fmt::format("{:.4g}", value)); }

// As the file has it, so that intervals are those of what it predicts.
StepCalibration rounded(StepCalibration c) {
  c.other_devices_slowdown = rounded(c.other_devices_slowdown);
  for (double* shared : {&c.collective_slowdown, &c.collective_host_ops, &c.update_host_ops, &c.expert_host_ops})
    *shared = rounded(*shared);
  for (auto& [name, value] : c.device_slowdown) value = rounded(value);
  for (auto& [name, s] : c.stacks)
    s = {.host_seconds_per_op = rounded(s.host_seconds_per_op),
         .memory_bound_slowdown = rounded(s.memory_bound_slowdown)};
  return c;
}

}  // namespace

StepFit fit_steps(const std::function<void(std::size_t, std::size_t)>& progress) {
  Fit whole;
  const std::vector<std::string> sources = whole.sources();
  const std::vector<std::pair<std::string, std::string>> measured = whole.measured_devices();
  // The first calibration is fitted on all sources. Then come those without one source, and those without a source and
  // a device that it has steps of; each predicts the points that it has not seen. None depends on another, so each
  // thread has a Fit of its own.
  std::vector<StepCalibration> calibrations(1 + sources.size() + measured.size());
  std::vector<std::vector<PredictedPoint>> unseen_of(calibrations.size());
  const Vector minimum = whole.run(whole.parameters().start());
  const Matrix slopes = whole.slopes_at(minimum);
  calibrations.front() = rounded(whole.parameters().calibration(minimum));
  std::vector<std::unique_ptr<Fit>> fits(static_cast<std::size_t>(hardware_threads()));
  std::mutex mutex;  // of what follows
  std::size_t done = 1;
  progress(done, calibrations.size());
  for_each_index(calibrations.size() - 1, hardware_threads(), [&](std::size_t at, std::size_t thread) {
    std::unique_ptr<Fit>& fit = fits[thread];
    if (!fit) fit = std::make_unique<Fit>();
    // Each fit begins at the start. From the minimum of all sources, what is left of a source would flatter its own
    // prediction. Fits without a device only make an interval, so the slopes at that minimum are close enough.
    const bool of_device = at >= sources.size();
    const std::string device = of_device ? measured[at - sources.size()].first : "";
    const std::string without = of_device ? measured[at - sources.size()].second : sources[at];
    StepCalibration& found = calibrations[at + 1];
    const Parameters& parameters = fit->parameters();
    found =
        rounded(parameters.calibration(fit->run(parameters.start(), without, device, of_device ? &slopes : nullptr)));
    found.device_slowdown.erase(device);
    fit->predict(found, without, device, unseen_of[at + 1]);
    const std::lock_guard lock(mutex);
    progress(++done, calibrations.size());
  });
  nlohmann::ordered_json fitted = {{"fitted", to_json(calibrations.front())}};
  nlohmann::ordered_json left_out = nlohmann::ordered_json::object();
  std::vector<PredictedPoint> unseen;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    left_out[sources[i]] = to_json(calibrations[i + 1]);
    unseen.insert(unseen.end(), unseen_of[i + 1].begin(), unseen_of[i + 1].end());
  }
  Simulator simulator;
  for (PredictedPoint& p :
       predict_published({}, simulator, [&](const PublishedSource& source) -> const StepCalibration& {
         const auto without = std::ranges::find(sources, source.name);
         return without == sources.end() ? calibrations[0]
                                         : calibrations[1 + static_cast<std::size_t>(without - sources.begin())];
       }))
    if (!is_fitted(p)) unseen.push_back(std::move(p));
  std::vector<PredictedPoint> of_unseen_devices;
  for (std::size_t i = 1 + sources.size(); i < unseen_of.size(); ++i)
    of_unseen_devices.insert(of_unseen_devices.end(), unseen_of[i].begin(), unseen_of[i].end());
  const StepIntervals found = step_intervals(unseen);
  nlohmann::ordered_json& intervals = fitted["intervals"] = nlohmann::ordered_json::object();
  for (const auto& [name, stack] : found.stacks)
    intervals["stacks"][name] = {{"half_width", rounded(stack.half_width)},
                                 {"points", stack.points},
                                 {"sources", stack.sources},
                                 {"most_devices", stack.most_devices},
                                 {"mixture_networks", stack.mixture_networks}};
  for (std::size_t i = 0; i < kCurveOrigins; ++i)
    intervals["origin_factor"][std::string(name_of(static_cast<CurveOrigin>(i)))] = rounded(found.origin_factor[i]);
  intervals["mixture_factor"] = rounded(found.mixture_factor);
  intervals["four_bit_factor"] = rounded(found.four_bit_factor);
  intervals["rare_mixtures"] = {{"half_width", rounded(found.rare_mixtures.half_width)},
                                {"points", found.rare_mixtures.points},
                                {"sources", found.rare_mixtures.sources}};
  intervals["unseen_device_factor"] = rounded(unseen_device_factor(of_unseen_devices, found));
  return {fitted.dump(1) + "\n", left_out.dump(1) + "\n"};
}

StepCalibration fit_steps_of(const ValidationFilter& filter) {
  Fit fit(filter);
  return fit.parameters().calibration(fit.run(fit.parameters().start()));
}

}  // namespace orrery
