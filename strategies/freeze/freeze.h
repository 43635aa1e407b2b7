// The pass that freezes parameters, for strategies that say by other fields what a step trains.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/program/program.h"
#include "strategies/scenario.h"

namespace orrery::freeze {

// Returns true if a parameter of a piece is frozen. `number`: the piece's place in Program::pieces before the pass.
using IsFrozen = std::function<bool(std::size_t number, const Piece& piece, TensorId parameter)>;

// Takes the gradients from frozen parameters, and from the backward what only these needed. Frozen parameters of a
// piece get parameter sets of their own. Program::model loses the FLOPs that are spared. REQUIRES: no pass but those
// that add trained parameters has rewritten the backward.
void freeze(const Scenario& scenario, const IsFrozen& is_frozen, Program& program);

// Returns for each layer of the model whether its plan freezes it.
std::vector<bool> frozen_layers(const Scenario& scenario, bool (*is_frozen)(const Plan&));

// The parts of a model that a step does not train.
struct Frozen {
  std::vector<bool> layers;  // by layer
  bool embedding = false;    // all that precedes a stack's layers
  bool head = false;         // all that follows the last layer
};
// Throws InputError unless gradients cross every border between model chunks and, if they are clipped, every stage has
// trained parameters to take a norm of. `field`, `cure`: the field of the plan that leaves the first chunk without a
// backward, and what is expected of it: "false, or a trained layer in".
void check_pipeline(const Scenario& scenario, const Frozen& frozen, std::string_view field, const std::string& cure);

}  // namespace orrery::freeze
