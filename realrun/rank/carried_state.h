// What goes over from one Program of a run to the next: parameters and states of the optimizer, by the element of the
// whole model that each is, whatever the layouts before and behind. A rank keeps what it held; what it needs and has
// not held comes from ranks that have (experts that move to another rank; parts of what is gathered).
#pragma once

#include <compare>
#include <map>
#include <span>
#include <vector>

#include "realrun/communicator.h"

namespace orrery::realrun {

// A parameter of the next Program, and what it was in the last: -1 where it is a new one. Of so many elements, which
// are repeated: an expert that has been the only one becomes all.
struct CarriedParameter {
  std::int64_t parameter = -1, elements = 0;
};

class CarriedState {
 public:
  // What of a parameter: as the device holds it, what the optimizer updates in more bits or elsewhere, what it writes,
  // and its states (further results of its op).
  struct Key {
    std::int64_t parameter = 0, what = 0;
    auto operator<=>(const Key&) const = default;
  };
  static constexpr std::int64_t kParameter = 0, kWeights = 1, kResult = 2, kFirstState = 3;

  void add(const Key& key, std::int64_t element, std::span<const float> values);  // of neighbouring elements
  // Null where there is none.
  const float* find(const Key& key, std::int64_t element) const;

  struct Stretch {
    Key key;
    std::int64_t element = 0, elements = 0;
  };
  // Adds what `lacks` says from what all ranks hold. To be called by all; throws ExecutionError where nobody has it.
  void complete(Communicator& communicator, const std::vector<Stretch>& lacks);

 private:
  std::map<Key, std::map<std::int64_t, std::vector<float>>> held_;  // stretches by their first element, apart
};

// Adds an element to the last stretch, or begins one.
void append(std::vector<CarriedState::Stretch>& stretches, const CarriedState::Key& key, std::int64_t element);

}  // namespace orrery::realrun
