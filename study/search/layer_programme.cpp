#include "study/search/layer_programme.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "sim/base/vector_clones.h"

namespace orrery {
namespace {

constexpr double kCannot = std::numeric_limits<double>::infinity();
// Units at once: the rows of all choices stay in the second cache.
constexpr std::int64_t kUnitsAtOnce = 512;

// best[i] = min over s' of (before[s'][i] + entering[s']) + cost, and the lowest s' that has it. Two choices at once
// halve the loads and stores of what is best so far.
ORRERY_VECTOR_CLONES void take_cheapest(const double* before, std::size_t row, std::size_t choices,
                                        const double* entering, double cost, std::int64_t units, double* best,
                                        double* from) {
  for (std::int64_t i = 0; i < units; ++i) best[i] = kCannot, from[i] = 0;
  std::size_t s = 0;
  for (; s + 1 < choices; s += 2) {
    const double *const f = before + s * row, *const g = f + row;
    const double enter_f = entering[s], enter_g = entering[s + 1];
    const auto name_f = static_cast<double>(s), name_g = static_cast<double>(s + 1);
    for (std::int64_t i = 0; i < units; ++i) {
      const double by_f = (f[i] + enter_f) + cost, by_g = (g[i] + enter_g) + cost;
      const double pair = by_g < by_f ? by_g : by_f, name = by_g < by_f ? name_g : name_f;
      const double old = best[i], old_from = from[i];
      best[i] = pair < old ? pair : old;
      from[i] = pair < old ? name : old_from;
    }
  }
  if (s == choices) return;
  const double* const f = before + s * row;
  for (std::int64_t i = 0; i < units; ++i) {
    const double by = (f[i] + entering[s]) + cost, old = best[i], old_from = from[i];
    best[i] = by < old ? by : old;
    from[i] = by < old ? static_cast<double>(s) : old_from;
  }
}

}  // namespace

LayerProgramme::LayerProgramme(std::vector<LayerKind> kinds, std::vector<std::int32_t> layers, std::int64_t budget)
    : kinds_(std::move(kinds)), layers_(std::move(layers)), choices_(kinds_.front().options.size()), budget_(budget) {
  if (!bound_units()) return;
  row_ = static_cast<std::size_t>(most_.back() + 1);
  std::vector<double> before(choices_ * row_, 0), after(choices_ * row_);
  runs_.resize(layers_.size() * choices_);
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    for (std::size_t to = 0; to < choices_; ++to) advance(layer, to, before, after);
    before.swap(after);
  }
  ends_ = std::move(before);
}

bool LayerProgramme::bound_units() {
  const std::size_t layers = layers_.size();
  std::vector<std::int64_t> smallest(kinds_.size()), largest(kinds_.size());
  std::int64_t most_transient = 0;
  for (std::size_t k = 0; k < kinds_.size(); ++k) {
    smallest[k] = std::numeric_limits<std::int64_t>::max();
    for (const LayerOption& option : kinds_[k].options) {
      if (option.cost == kCannot) continue;
      smallest[k] = std::min(smallest[k], option.memory);
      largest[k] = std::max(largest[k], option.memory);
      most_transient = std::max(most_transient, option.transient);
    }
  }
  has_transients_ = most_transient > 0;
  least_.assign(layers + 1, 0);
  most_.assign(layers + 1, 0);
  for (std::size_t layer = 0; layer < layers; ++layer) {
    const auto kind = static_cast<std::size_t>(layers_[layer]);
    if (smallest[kind] > budget_ - least_[layer]) return false;
    least_[layer + 1] = least_[layer] + smallest[kind];
    most_[layer + 1] = std::min(budget_, most_[layer] + largest[kind]);
  }
  top_ = most_;
  budget_ = std::min(budget_, most_.back() + most_transient);
  for (std::size_t layer = 0; layer <= layers; ++layer) {
    most_[layer] = budget_ - (least_.back() - least_[layer]);
    top_[layer] = has_transients_ ? most_[layer] : std::min(top_[layer], most_[layer]);
  }
  return true;
}

void LayerProgramme::advance(std::size_t layer, std::size_t to, const std::vector<double>& before,
                             std::vector<double>& after) {
  const LayerKind& kind = kinds_[static_cast<std::size_t>(layers_[layer])];
  const LayerOption& option = kind.options[to];
  const std::int64_t least = least_[layer + 1], most = most_[layer + 1];
  double* const out = after.data() + to * row_;
  if (option.cost == kCannot) {
    std::fill(out + least, out + most + 1, kCannot);
    return;
  }
  const std::int64_t end = std::min(top_[layer + 1], budget_ - option.transient) + 1;
  std::int64_t unit = std::max(least, least_[layer] + option.memory);
  std::fill(out + least, out + std::min(unit, most + 1), kCannot);
  std::vector<double> entering(choices_, 0);
  if (layer > 0 && !kind.entering.empty())
    for (std::size_t from = 0; from < choices_; ++from) entering[from] = kind.entering[from * choices_ + to];
  std::vector<Run>& runs = runs_[layer * choices_ + to];
  std::array<double, kUnitsAtOnce> from;
  while (unit < end) {
    const std::int64_t units = std::min(kUnitsAtOnce, end - unit);
    take_cheapest(before.data() + (unit - option.memory), row_, choices_, entering.data(), option.cost, units,
                  out + unit, from.data());
    for (std::int64_t i = 0; i < units; ++i)
      if (const auto name = static_cast<std::int32_t>(from[static_cast<std::size_t>(i)]);
          runs.empty() || runs.back().from != name)
        runs.push_back({unit + i, name});
    unit += units;
  }
  // More than all that the layers so far can take changes nothing; more than the budget without the transient is none.
  if (unit <= most) std::fill(out + unit, out + most + 1, has_transients_ ? kCannot : out[unit - 1]);
}

std::optional<LayerPlan> LayerProgramme::cheapest() const {
  if (!has_transients_) return cheapest(budget_);
  std::int64_t units = -1;
  double cost = kCannot;
  for (std::int64_t u = least_.back(); u <= most_.back() && !ends_.empty(); ++u)
    for (std::size_t s = 0; s < choices_; ++s)
      if (const double by = ends_[s * row_ + static_cast<std::size_t>(u)]; by < cost) cost = by, units = u;
  return units < 0 ? std::nullopt : ending_at(units);
}

std::optional<LayerPlan> LayerProgramme::cheapest(std::int64_t budget) const {
  if (ends_.empty() || budget < least_.back()) return std::nullopt;
  return ending_at(std::min(budget, most_.back()));
}

std::optional<LayerPlan> LayerProgramme::ending_at(std::int64_t units) const {
  LayerPlan plan{.cost = kCannot, .choices = std::vector<std::int32_t>(layers_.size())};
  for (std::size_t s = 0; s < choices_; ++s)
    if (const double by = ends_[s * row_ + static_cast<std::size_t>(units)]; by < plan.cost) {
      plan.cost = by;
      plan.choices.back() = static_cast<std::int32_t>(s);
    }
  if (plan.cost == kCannot) return std::nullopt;
  for (std::size_t layer = layers_.size(); layer-- > 0;) {
    const auto choice = static_cast<std::size_t>(plan.choices[layer]);
    const std::int64_t memory = kinds_[static_cast<std::size_t>(layers_[layer])].options[choice].memory;
    plan.memory += memory;
    if (layer == 0) break;
    const std::vector<Run>& runs = runs_[layer * choices_ + choice];
    const auto after = std::ranges::upper_bound(runs, units, {}, &Run::first);
    plan.choices[layer - 1] = std::prev(after)->from;
    units -= memory;
  }
  return plan;
}

}  // namespace orrery
