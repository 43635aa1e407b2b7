// Fields of the plan that a search varies (study/search). Each strategy declares its own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "strategies/scenario.h"

namespace orrery {

// What a field decides. A search chooses fields in this order, each given the values chosen before it.
enum class ChosenWith : std::uint8_t {
  mesh,         // the number of ranks
  micro_batch,  // how much runs at once
  kernels,      // which kernels and collectives the layers' forward and backward consist of
  schedule,     // which micro-batch runs when on which stage
  activations,  // which activations are kept
  replicas,     // what replicas divide among each other, and where they lie
  shards,       // how many of the ranks that divide states divide weights and gradients, or a second copy of weights
};

using AxisValues = std::vector<std::int64_t>;

struct SearchAxis {
  std::string_view field;  // name of a field of the plan
  std::string_view label;  // column heading
  ChosenWith chosen_with;
  bool usual = false;  // searched by default
  // Sets the field. `value` is the number of an integer field, 0 or 1 for a flag, and the index of a name.
  void (*set)(Plan& plan, std::int64_t value);
  // Returns the values worth trying, each once. Fields that come before this one have their chosen values in `chosen`;
  // later ones have the scenario's. check() may refuse some of the values. Returns none if only the scenario's own
  // value works. Null: the field is searched only over values that the user names.
  AxisValues (*values)(const Scenario& chosen) = nullptr;
  // Whether the field matters for a model. Null: for all models.
  bool (*turns_of)(const Model& model) = nullptr;
  // Whether another value of the field gives another plan, given the fields chosen before it. Null: always. If false,
  // the field is not searched, even over named values: it keeps the scenario's value, or the only one of `values`.
  bool (*acts)(const Scenario& chosen) = nullptr;
};

// Ascending.
inline AxisValues divisors_of(std::int64_t number) {
  AxisValues values;
  for (std::int64_t d = 1; d * d <= number; ++d) {
    if (number % d != 0) continue;
    values.push_back(d);
    if (d != number / d) values.push_back(number / d);
  }
  std::ranges::sort(values);
  return values;
}
inline AxisValues flags(bool also_true) { return also_true ? AxisValues{0, 1} : AxisValues{0}; }

}  // namespace orrery
