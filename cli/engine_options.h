// The options that choose how a program is timed: --engine, --fidelity, --routing.
#pragma once

#include <optional>
#include <string>

#include "cli/command.h"
#include "sim/simulation/simulation.h"

namespace orrery {

struct EngineArguments {
  std::string engine = "analytical";
  std::string fidelity, routing;  // empty: not given

  // `both`: whether the command can show two engines side by side.
  void add_to(Command command, bool both);

  bool both() const { return engine == "both"; }
  // Of `both` those of the discrete-event engine. Throws InputError when its options stand without it.
  SimulationOptions options() const;
};

}  // namespace orrery
