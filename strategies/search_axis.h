// Fields that a search turns (study/search): each strategy declares its own.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "strategies/scenario.h"

namespace orrery {

// What else follows from a field's value: a search chooses in this order, each under what has been chosen before.
enum class Turns : std::uint8_t {
  mesh,         // over how many ranks
  micro_batch,  // the size of what runs at once
  kernels,      // which kernels and collectives the layers' forward and backward are made of
  schedule,     // when micro-batches run where
  activations,  // what of them is kept
  replicas,     // what replicas divide among each other, and where they lie
};

struct SearchAxis {
  std::string_view field;  // of the plan
  std::string_view label;  // at the head of a column
  Turns turns;
  bool usual;  // searched unless told otherwise
  // Values as whole numbers: counts as they are, flags as 0 and 1, names by their places.
  void (*set)(Plan& plan, std::int64_t value);
  // Appends the values worth trying, each once: of fields before it as they are chosen, of those behind it as they
  // stand in the scenario. There may be some that check() refuses; where nothing else goes none. Null: the field is
  // searched only over values that the user names.
  void (*values)(const Scenario& chosen, std::vector<std::int64_t>& values);
  // Models that have what it turns; null: all.
  bool (*turns_of)(const Model& model) = nullptr;
  // Returns whether another value of the field gives another plan, with the fields before it as they are chosen. Null:
  // it always does. Where it does not, the field is not searched: it keeps the scenario's value, or the only one of
  // `values`, even where the user has named others.
  bool (*acts)(const Scenario& chosen) = nullptr;
};

void append_divisors(std::int64_t number, std::vector<std::int64_t>& values);
// false, and true where `also`.
void append_flags(bool also, std::vector<std::int64_t>& values);

}  // namespace orrery
