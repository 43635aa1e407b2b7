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
  std::optional<std::string> limit;
  bool exact = false;

  // `both`: whether the command can show two engines side by side.
  void add_to(Command command, bool both);

  // Where the engine asked for needs SimGrid and this program has none of it (loading it would slow every start): goes
  // on as orrery-des, which the same build puts beside it. To be called before anything is read from standard input.
  void become_program_with_engine() const;

  bool both() const { return engine == "both"; }
  // Of `both` those of the discrete-event engine. Throws InputError when its options stand without it.
  SimulationOptions options() const;
};

}  // namespace orrery
