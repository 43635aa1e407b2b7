// Fields of the plan that a search varies (study/search). Each strategy declares its own.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "strategies/scenario.h"

namespace orrery {

// What a field decides. A search chooses fields in this order, each given the values chosen before it.
enum class Turns : std::uint8_t {
  mesh,         // the number of ranks
  micro_batch,  // how much runs at once
  kernels,      // which kernels and collectives the layers' forward and backward consist of
  schedule,     // which micro-batch runs when on which stage
  activations,  // which activations are kept
  replicas,     // what replicas divide among each other, and where they lie
};

struct SearchAxis {
  std::string_view field;  // name of a field of the plan
  std::string_view label;  // column heading
  Turns turns;
  bool usual;  // searched by default
  // Sets the field. `value` is the number of an integer field, 0 or 1 for a flag, and the index of a name.
  void (*set)(Plan& plan, std::int64_t value);
  // Appends the values worth trying, each once. Fields that come before this one have their chosen values in `chosen`;
  // later ones have the scenario's. check() may refuse some of the values. Appends none if only the scenario's own
  // value works. Null: the field is searched only over values that the user names.
  void (*values)(const Scenario& chosen, std::vector<std::int64_t>& values);
  // Whether the field matters for a model. Null: for all models.
  bool (*turns_of)(const Model& model) = nullptr;
  // Whether another value of the field gives another plan, given the fields chosen before it. Null: always. If false,
  // the field is not searched, even over named values: it keeps the scenario's value, or the only one of `values`.
  bool (*acts)(const Scenario& chosen) = nullptr;
};

void append_divisors(std::int64_t number, std::vector<std::int64_t>& values);
// Appends false, and true if `also`.
void append_flags(bool also, std::vector<std::int64_t>& values);

}  // namespace orrery
