// The plans that a search goes through. A space has axes; each is a field with values to try, and they are chosen one
// after the other. The values of an axis may depend on the choices before.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "strategies/scenario.h"
#include "strategies/search_axis.h"

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
    Turns turns = Turns::mesh;
    std::function<void(Scenario&, std::int64_t)> set;
    std::function<void(const Scenario&, std::vector<std::int64_t>&)> values;
  };

  // Throws InputError for fields that no plan has, for values that they cannot hold, and for fields that are both fixed
  // and to be searched.
  Space(const Scenario& base, const SpaceOptions& options);

  const Scenario& base() const { return base_; }
  // In the order in which they are chosen.
  std::span<const Axis> axes() const { return axes_; }
  // The first group_axes() axes form a group: plans that differ only in later axes have the same kernels.
  std::size_t group_axes() const { return group_axes_; }
  // The scenario with these values, one per axis.
  Scenario scenario(std::span<const std::int64_t> values) const;

  // Calls visit(scenario, values), in order, for every choice of the axes from values.size() up to `to`; the earlier
  // axes keep their values in `scenario`. Afterwards `scenario` holds some choice. `values`: the values of all axes so
  // far.
  template <class Visit>
  void for_each(Scenario& scenario, std::vector<std::int64_t>& values, std::size_t to, Visit&& visit) const {
    if (values.size() == to) return visit(scenario, values);
    const Axis& axis = axes_[values.size()];
    std::vector<std::int64_t> choices;
    axis.values(scenario, choices);
    for (const std::int64_t choice : choices) {
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
