#include "realrun/calibrate/least_squares.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>

namespace orrery {
namespace {

using Vector = Eigen::VectorXd;

constexpr double kHuberWidth = 0.1;   // beyond it a point is an outlier, whose pull no longer grows
constexpr double kDifference = 1e-4;  // step of a parameter's logarithm, for finite differences
constexpr double kNormal95 = 1.96;    // of the normal distribution's 95% interval, in standard deviations

class Search {
 public:
  Search(const std::vector<FitParameter>& parameters, const LogErrors& log_errors, const FitLoss& loss)
      : parameters_(parameters), log_errors_(log_errors), loss_(loss) {}

  double loss_of(const Vector& errors) const {
    double total = 0;
    for (Eigen::Index i = 0; i < errors.size(); ++i) {
      const double e = errors[i], size = std::fabs(e);
      total += weight(i) * (size < kHuberWidth ? e * e / 2
                            : e > 0 || !loss_.forgets_slow
                                ? kHuberWidth * (size - kHuberWidth / 2)
                                : kHuberWidth * kHuberWidth * (0.5 + std::log(size / kHuberWidth)));
    }
    return total / static_cast<double>(std::max<Eigen::Index>(errors.size(), 1));
  }

  Vector bounded(Vector x) const {
    for (Eigen::Index i = 0; i < x.size(); ++i) {
      const FitParameter& p = parameters_[static_cast<std::size_t>(i)];
      x[i] = std::clamp(x[i], std::log(p.least), std::log(p.most));
    }
    return x;
  }
  std::vector<double> values(const Vector& x) const {
    std::vector<double> v;
    for (const double e : x) v.push_back(std::exp(e));
    return v;
  }
  Vector errors(const Vector& x) const {
    const std::vector<double> e = log_errors_(values(x));
    return Eigen::Map<const Vector>(e.data(), static_cast<Eigen::Index>(e.size()));
  }
  // By finite differences towards the side that is within bounds.
  Eigen::MatrixXd jacobian(const Vector& x, const Vector& at_x) const {
    Eigen::MatrixXd j(at_x.size(), x.size());
    for (Eigen::Index i = 0; i < x.size(); ++i) {
      Vector moved = x;
      const double step =
          x[i] + kDifference > std::log(parameters_[static_cast<std::size_t>(i)].most) ? -kDifference : kDifference;
      moved[i] += step;
      j.col(i) = (errors(moved) - at_x) / step;
    }
    return j;
  }
  Vector weights(const Vector& errors) const {
    Vector weights(errors.size());
    for (Eigen::Index i = 0; i < errors.size(); ++i) {
      const double over = std::fabs(errors[i]) / kHuberWidth;
      weights[i] = weight(i) * (over <= 1 ? 1.0 : errors[i] > 0 || !loss_.forgets_slow ? 1 / over : 1 / (over * over));
    }
    return weights;
  }

  Vector descend(Vector x) const {
    constexpr int kMostSteps = 200;
    constexpr double kFirstDamping = 1e-2, kMostDamping = 1e8, kEnough = 1e-10, kMostChange = 1.0;
    x = bounded(std::move(x));
    Vector e = errors(x);
    double loss = loss_of(e), damping = kFirstDamping;
    for (int step = 0; step < kMostSteps && damping < kMostDamping; ++step) {
      const Vector w = weights(e);
      Eigen::MatrixXd j = jacobian(x, e);
      if (loss_.holds_bounds) hold_bounds(x, w.cwiseProduct(e), j);
      Eigen::MatrixXd normal = j.transpose() * w.asDiagonal() * j;
      const Vector gradient = j.transpose() * w.cwiseProduct(e);
      const double scale = std::max(normal.diagonal().maxCoeff(), 1e-12);
      bool better = false;
      while (!better && damping < kMostDamping) {
        Eigen::MatrixXd damped = normal;
        for (Eigen::Index i = 0; i < x.size(); ++i) damped(i, i) += damping * (normal(i, i) + 1e-6 * scale);
        Vector change = damped.ldlt().solve(-gradient);
        const double largest = change.cwiseAbs().maxCoeff();
        if (!std::isfinite(largest)) {
          damping *= 4;
          continue;
        }
        if (largest > kMostChange) change *= kMostChange / largest;
        const Vector moved = bounded(x + change);
        const Vector at = errors(moved);
        const double reached = loss_of(at);
        if (reached < loss) {
          const bool done = loss - reached < kEnough * std::max(loss, kEnough);
          x = moved, e = at, loss = reached, better = true;
          damping = std::max(damping / 4, 1e-12);
          if (done) return x;
        } else {
          damping *= 4;
        }
      }
    }
    return x;
  }

 private:
  // A parameter at its bound that wants to go beyond stays there: its part of a step would be lost, and bend the rest.
  void hold_bounds(const Vector& x, const Vector& weighted_errors, Eigen::MatrixXd& j) const {
    Vector wanted = x - j.transpose() * weighted_errors;
    wanted = bounded(std::move(wanted));
    for (Eigen::Index i = 0; i < x.size(); ++i)
      if (wanted[i] == x[i]) j.col(i).setZero();
  }
  double weight(Eigen::Index i) const { return loss_.weights.empty() ? 1 : loss_.weights[static_cast<std::size_t>(i)]; }

  const std::vector<FitParameter>& parameters_;
  const LogErrors& log_errors_;
  const FitLoss& loss_;
};

}  // namespace

FitResult fit_least_squares(const std::vector<FitParameter>& parameters, const LogErrors& log_errors,
                            const FitLoss& loss) {
  const Search search(parameters, log_errors, loss);
  const auto n = static_cast<Eigen::Index>(parameters.size());
  Vector start(n);
  for (Eigen::Index i = 0; i < n; ++i) start[i] = std::log(parameters[static_cast<std::size_t>(i)].start);
  // Waves of tiles and maxima cause local minima: starts from several points, with each parameter moved both ways.
  Vector best = search.descend(start);
  double least = search.loss_of(search.errors(best));
  constexpr double kMove = 1.5;
  for (Eigen::Index i = 0; i < n; ++i)
    for (const double move : {kMove, -kMove}) {
      Vector other = best;
      other[i] += move;
      other = search.descend(other);
      if (const double reached = search.loss_of(search.errors(other)); reached < least) {
        best = other;
        least = reached;
      }
    }

  FitResult result;
  result.values = search.values(best);
  result.loss = least;
  result.factor_95.assign(parameters.size(), 0);
  const Vector e = search.errors(best);
  if (e.size() <= n) return result;
  const Eigen::MatrixXd j = search.jacobian(best, e);
  const Vector w = search.weights(e);
  // The parameters inside their bounds that affect the points.
  std::vector<Eigen::Index> free;
  constexpr double kAtBound = 1e-6, kNoEffect = 1e-4;
  for (Eigen::Index i = 0; i < n; ++i) {
    const FitParameter& p = parameters[static_cast<std::size_t>(i)];
    const bool inside = best[i] > std::log(p.least) + kAtBound && best[i] < std::log(p.most) - kAtBound;
    if (inside && j.col(i).cwiseAbs().maxCoeff() > kNoEffect) free.push_back(i);
  }
  if (free.empty()) return result;
  const Eigen::MatrixXd of_free = j(Eigen::all, free);
  const Eigen::MatrixXd normal = of_free.transpose() * w.asDiagonal() * of_free;
  const double variance =
      e.cwiseProduct(w.cwiseProduct(e)).sum() / static_cast<double>(e.size() - static_cast<Eigen::Index>(free.size()));
  const Eigen::MatrixXd covariance =
      variance * normal.ldlt().solve(Eigen::MatrixXd::Identity(normal.rows(), normal.cols()));
  for (std::size_t f = 0; f < free.size(); ++f) {
    const double deviation =
        std::sqrt(std::max(covariance(static_cast<Eigen::Index>(f), static_cast<Eigen::Index>(f)), 0.0));
    if (std::isfinite(deviation)) result.factor_95[static_cast<std::size_t>(free[f])] = std::exp(kNormal95 * deviation);
  }
  return result;
}

}  // namespace orrery
