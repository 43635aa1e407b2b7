// The engine and its options in the words of a caller.
#pragma once

#include <optional>
#include <string>

#include "study/simulation/simulation.h"

namespace orrery {

struct EngineChoice {
  std::string engine = std::string(kEngineNames.front());  // or "both"
  std::string fidelity, routing;                           // empty: not given
  std::optional<std::string> limit;                        // number of works ("50e6") beyond which a run is refused
  bool exact = false;                                      // folds only ranks and links that are exactly alike

  bool both() const { return engine == "both"; }
  // For "both": the options of the discrete-event engine. Throws InputError for unknown words, and for options that the
  // analytical engine does not have.
  SimulationOptions options() const;
};

}  // namespace orrery
