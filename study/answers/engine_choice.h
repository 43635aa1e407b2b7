// How a program is to be timed, in the words of a caller.
#pragma once

#include <optional>
#include <string>

#include "study/simulation/simulation.h"

namespace orrery {

struct EngineChoice {
  std::string engine = std::string(kEngineNames.front());  // or "both"
  std::string fidelity, routing;                           // empty: not given
  std::optional<std::string> limit;                        // "50e6" works, beyond which a run is refused
  bool exact = false;                                      // folds only what is exactly alike

  bool both() const { return engine == "both"; }
  // Of "both" those of the discrete-event engine. Throws InputError for words that mean nothing, and for choices that
  // the analytical engine does not have.
  SimulationOptions options() const;
};

}  // namespace orrery
