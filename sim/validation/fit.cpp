#include "sim/validation/fit.h"

#include <fmt/format.h>

#include <Eigen/Dense>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <thread>

#include "sim/base/json_reader.h"
#include "sim/base/preset.h"
#include "sim/validation/intervals.h"
#include "strategies/framework/framework.h"

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
    for (const PredictedPoint& p : points_) lines_.push_back(p.point->scenario->dump());
    weights_ = weights_of_sources(points_);
    std::set<std::string> devices, stacks;
    for (const PredictedPoint& p : points_) {
      devices.insert(p.device);
      stacks.insert(p.framework);
    }
    parameters_.devices.assign(devices.begin(), devices.end());
    parameters_.stacks.assign(stacks.begin(), stacks.end());
    for (const std::string& stack : parameters_.stacks)
      parameters_.known_host.push_back(framework::literature_host_seconds_per_op(stack));
  }

  const Parameters& parameters() const { return parameters_; }
  std::vector<std::string> sources() const {
    std::vector<std::string> names;
    for (const auto& [name, weight] : weights_) names.push_back(name);
    return names;
  }

  Vector run(Vector x, int steps, const std::string& without) {
    std::vector<const PredictedPoint*> used;
    for (const PredictedPoint& p : points_)
      if (p.source->name != without) used.push_back(&p);
    for (int step = 0; step < steps; ++step) {
      Matrix normal = Matrix::Zero(x.size(), x.size());
      Vector gradient = Vector::Zero(x.size());
      add_points(used, x, normal, gradient);
      add_known(x, normal, gradient);
      Vector change = change_within_bounds(x, normal, gradient);
      const double longest = change.cwiseAbs().maxCoeff();
      if (longest > kLongestStep) change *= kLongestStep / longest;
      x += change;
      if (longest < kDifference) break;
    }
    return x;
  }

  // Appends the points of a source as the calibration predicts them.
  void predict(const StepCalibration& calibration, const std::string& source, std::vector<PredictedPoint>& predicted) {
    std::vector<const PredictedPoint*> of_source;
    for (const PredictedPoint& p : points_)
      if (p.source->name == source) of_source.push_back(&p);
    const std::vector<double> errors = log_errors(of_source, calibration);
    for (std::size_t i = 0; i < of_source.size(); ++i) {
      predicted.push_back(*of_source[i]);
      predicted.back().predicted = of_source[i]->point->value * std::exp(errors[i]);
    }
  }

 private:
  // Nothing is faster in a step than alone: slowdowns are at least 1, hosts at least as slow as literature has them.
  // What would leave is held where it begins and the others are solved for again, until all held pull outwards. Means
  // of stacks may lie anywhere.
  static Vector change_within_bounds(const Vector& x, const Matrix& normal, const Vector& gradient) {
    std::vector<bool> held(static_cast<std::size_t>(x.size()), false);
    for (Eigen::Index tried = 0;; ++tried) {
      Matrix left = normal;
      Vector slope = gradient;
      for (Eigen::Index i = 0; i < x.size(); ++i) {
        if (!held[static_cast<std::size_t>(i)]) continue;
        slope -= x[i] * left.col(i);
        left.row(i).setZero();
        left.col(i).setZero();
        left(i, i) = 1;
        slope[i] = x[i];
      }
      const Vector change = left.ldlt().solve(-slope);
      bool leaves = false;
      for (Eigen::Index i = 0; i < x.size(); ++i) {
        const bool bounded = i >= kShared || i == kDeviceMean || i == kCollectives;
        if (!bounded || held[static_cast<std::size_t>(i)] || x[i] + change[i] >= 0) continue;
        held[static_cast<std::size_t>(i)] = leaves = true;
      }
      if (leaves) continue;
      const Vector pull = normal * change + gradient;
      Eigen::Index freed = -1;
      for (Eigen::Index i = 0; i < x.size(); ++i)
        if (held[static_cast<std::size_t>(i)] && pull[i] < (freed < 0 ? 0 : pull[freed])) freed = i;
      if (freed < 0 || tried > x.size()) return change;
      held[static_cast<std::size_t>(freed)] = false;
    }
  }

  std::vector<double> log_errors(const std::vector<const PredictedPoint*>& points, const StepCalibration& calibration) {
    simulator_.use(calibration);
    std::vector<double> errors;
    for (const PredictedPoint* p : points) {
      const std::string& line = lines_[static_cast<std::size_t>(p - points_.data())];
      const Report& report = simulator_.evaluate_line(line, {p->point->id, {}}, false);
      errors.push_back(std::log(report.step_seconds / p->point->value));
    }
    simulator_.use(step_calibration());
    return errors;
  }

  // Beside what is shared a point feels its own device's and its own stack's parameters alone.
  void add_points(const std::vector<const PredictedPoint*>& points, const Vector& x, Matrix& normal, Vector& gradient) {
    const std::vector<double> at_x = log_errors(points, parameters_.calibration(x));
    Matrix slopes = Matrix::Zero(static_cast<Eigen::Index>(points.size()), x.size());
    const auto differentiate = [&](Eigen::Index begin, Eigen::Index end, const auto& index) {
      Vector moved = x;
      moved.segment(begin, end - begin).array() += kDifference;
      const std::vector<double> there = log_errors(points, parameters_.calibration(moved));
      for (std::size_t p = 0; p < points.size(); ++p)
        slopes(static_cast<Eigen::Index>(p), index(*points[p])) = (there[p] - at_x[p]) / kDifference;
    };
    for (const auto kind : {Parameters::kDevice, Parameters::kMemory, Parameters::kHost})
      differentiate(parameters_.begin(kind), parameters_.begin(kind + 1),
                    [&](const PredictedPoint& p) { return parameters_.of(kind, p); });
    for (const Eigen::Index shared : {kCollectives, kCollectiveHost, kUpdateHost, kExpertHost})
      differentiate(shared, shared + 1, [&](const PredictedPoint&) { return shared; });
    for (std::size_t p = 0; p < points.size(); ++p) {
      const double weight = weights_.at(points[p]->source->name);
      const double size = std::abs(at_x[p]) / kSpread;
      const double w = weight * (size <= kHuberWidth ? 1 : kHuberWidth / size) / (kSpread * kSpread);
      const Vector slope = slopes.row(static_cast<Eigen::Index>(p)).transpose();
      normal += w * slope * slope.transpose();
      gradient += w * at_x[p] * slope;
    }
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
      const auto family = static_cast<Eigen::Index>(framework::kernels_of(parameters_.stacks[i]));
      pull(parameters_.at(Parameters::kMemory, i), kMemorySpread, kMemoryMean + family);
      pull(parameters_.at(Parameters::kHost, i), kHostSpread, kHostMean);
    }
  }

  Simulator simulator_;
  std::vector<PredictedPoint> points_;
  std::vector<std::string> lines_;         // their scenarios
  std::map<std::string, double> weights_;  // of a source's points
  Parameters parameters_;
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
  const std::vector<std::string> sources = Fit().sources();
  // Of all sources; then of all but each, with what becomes of its points. None depends on another: each thread has a
  // Fit of its own.
  std::vector<StepCalibration> calibrations(1 + sources.size());
  std::vector<std::vector<PredictedPoint>> unseen_of(calibrations.size());
  std::atomic<std::size_t> next = 0;
  std::mutex shown;
  std::size_t done = 0;
  std::vector<std::exception_ptr> failures(std::max(1U, std::thread::hardware_concurrency()));
  const auto work = [&](std::size_t thread) {
    try {
      Fit fit;
      const Parameters& parameters = fit.parameters();
      for (std::size_t i = next++; i < calibrations.size(); i = next++) {
        // From the start: from where all sources lead to, what is left of the source would flatter its own prediction.
        const std::string without = i == 0 ? "" : sources[i - 1];
        calibrations[i] = rounded(parameters.calibration(fit.run(parameters.start(), kSteps, without)));
        if (i > 0) fit.predict(calibrations[i], without, unseen_of[i]);
        const std::lock_guard lock(shown);
        progress(++done, calibrations.size());
      }
    } catch (...) {
      failures[thread] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (std::size_t t = 1; t < failures.size(); ++t) {
      try {
        threads.emplace_back(work, t);
      } catch (const std::system_error&) {  // the others do its part
        break;
      }
    }
    work(0);
  }
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
  nlohmann::ordered_json fitted = {{"fitted", to_json(calibrations.front())}};
  nlohmann::ordered_json left_out = nlohmann::ordered_json::object();
  std::vector<PredictedPoint> unseen;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    left_out[sources[i]] = to_json(calibrations[i + 1]);
    unseen.insert(unseen.end(), unseen_of[i + 1].begin(), unseen_of[i + 1].end());
  }
  const StepIntervals found = step_intervals(unseen);
  nlohmann::ordered_json& intervals = fitted["intervals"] = nlohmann::ordered_json::object();
  for (const auto& [name, stack] : found.stacks)
    intervals["stacks"][name] = {{"half_width", rounded(stack.half_width)},
                                 {"points", stack.points},
                                 {"sources", stack.sources},
                                 {"most_devices", stack.most_devices}};
  for (std::size_t i = 0; i < kCurveOrigins; ++i)
    intervals["origin_factor"][std::string(name_of(static_cast<CurveOrigin>(i)))] = rounded(found.origin_factor[i]);
  return {fitted.dump(1) + "\n", left_out.dump(1) + "\n"};
}

StepCalibration fit_steps_of(const ValidationFilter& filter) {
  Fit fit(filter);
  return fit.parameters().calibration(fit.run(fit.parameters().start(), kSteps, ""));
}

}  // namespace orrery
