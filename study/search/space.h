// The plans that a search goes through. A space has axes. Each axis is a field with values to try. A search chooses a
// value for one axis after the other; which values an axis offers may depend on the choices before it.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "strategies/strategy.h"

namespace orrery {

// A field that is searched because the user asks for it.
struct AxisRequest {
  std::string field;                   // of the plan
  std::vector<nlohmann::json> values;  // empty: those that its strategy declares
};

struct SpaceOptions {
  std::vector<std::string> fixed;  // fields of the plan that keep the scenario's value
  std::vector<AxisRequest> over;
  bool all = false;                                // also search fields that are not usually searched
  std::vector<std::int64_t> global_batch_sizes{};  // empty: the scenario's
};

class Space {
 public:
  struct Axis {
    std::string field;  // "tensor_parallel"
    std::string label;  // "tp"
    ChosenWith chosen_with = ChosenWith::mesh;
    // Both use a number for a value: SearchAxis::set says which; for other values, the place among those that the user
    // names. values() gets a scenario with the choices of all axes before.
    std::function<void(Scenario&, std::int64_t)> set;
    std::function<std::vector<std::int64_t>(const Scenario&)> values;
  };

  // Throws InputError for fields that no plan has, for values that they cannot hold, and for fields that are both fixed
  // and to be searched.
  Space(const Scenario& base, const SpaceOptions& options);

  const Scenario& base() const { return base_; }
  // In the order in which they are chosen.
  std::span<const Axis> axes() const { return axes_; }
  // The first group_axes() axes decide which kernels run (ChosenWith::mesh, micro_batch and kernels). Plans that agree
  // in them form a group: they have the same kernels and differ only in the later axes.
  std::size_t group_axes() const { return group_axes_; }
  // The scenario with these values, one per axis.
  Scenario scenario(std::span<const std::int64_t> values) const;

  // Calls visit(scenario, values), in order, for every choice of the axes numbered from values.size() to `to` - 1.
  // `values` holds the values of all axes before; `scenario` must hold them, too. Within visit() both hold the choice.
  // Afterwards `values` is as before, and `scenario` holds some choice.
  template <class Visit>
  void for_each(Scenario& scenario, std::vector<std::int64_t>& values, std::size_t to, Visit&& visit) const {
    if (values.size() == to) return visit(scenario, values);
    const Axis& axis = axes_[values.size()];
    for (const std::int64_t choice : axis.values(scenario)) {
      axis.set(scenario, choice);
      values.push_back(choice);
      for_each(scenario, values, to, visit);
      values.pop_back();
    }
  }

 private:
  Scenario base_;
  std::vector<Axis> axes_;
  std::size_t group_axes_ = 0;
};

}  // namespace orrery
