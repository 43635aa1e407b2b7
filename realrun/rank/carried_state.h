// State that is carried from one Program of a run to the next: parameters and optimizer states, by element of the whole
// model, whatever the two layouts are. A rank keeps what it held. What it needs and has not held comes from ranks that
// have it (experts that move to another rank; parts of gathered parameters).
#pragma once

#include <compare>
#include <map>
#include <span>
#include <vector>

#include "realrun/backend.h"
#include "realrun/communicator.h"

namespace orrery::realrun {

// For a parameter of the next Program: its number in the last Program (-1: new), and its number of elements there. The
// elements are repeated if the parameter has grown: a single expert becomes all experts.
struct CarriedParameter {
  std::int64_t parameter = -1, elements = 0;
};

class CarriedState {
 public:
  // Which value of a parameter. kParameter: as the device holds it. kWeights: what the optimizer updates, in more bits
  // or elsewhere. kResult: what the optimizer writes. kFirstState and up: its states (further results of its op).
  struct Key {
    std::int64_t parameter = 0, what = 0;
    auto operator<=>(const Key&) const = default;
  };
  static constexpr std::int64_t kParameter = 0, kWeights = 1, kResult = 2, kFirstState = 3;

  void add(const Key& key, std::int64_t element, std::span<const float> values);  // values of consecutive elements
  // Returns null if there is no such element.
  const float* find(const Key& key, std::int64_t element) const;

  struct Stretch {
    Key key;
    std::int64_t element = 0, elements = 0;
    std::int64_t end() const { return element + elements; }
    auto operator<=>(const Stretch&) const = default;
  };
  // Adds the stretches in `lacks`: each element is sent by one rank that holds it. All ranks must call it. Throws
  // ExecutionError if no rank has an element.
  void complete(Communicator& communicator, Backend& backend, const std::vector<Stretch>& lacks);

 private:
  std::map<Key, std::map<std::int64_t, std::vector<float>>> held_;  // disjoint stretches, by first element
};

// Adds an element to the last stretch, or begins a new one.
void append(std::vector<CarriedState::Stretch>& stretches, const CarriedState::Key& key, std::int64_t element);

}  // namespace orrery::realrun
