// The options that choose how a program is timed: --engine, --fidelity, --routing.
#pragma once

#include "cli/command.h"
#include "study/answers/arguments.h"

namespace orrery {

struct EngineArguments : EngineChoice {
  // `both`: whether the command accepts two engines, side by side.
  void add_to(Command command, bool both);

  // become_program_with() SimGrid (cli/sibling.h), if the chosen engine needs it.
  void become_program_with_engine() const;
};

}  // namespace orrery
