// The options that choose how a program is timed: --engine, --fidelity, --routing.
#pragma once

#include "cli/command.h"
#include "study/answers/engine_choice.h"

namespace orrery {

struct EngineArguments : EngineChoice {
  // `both`: whether the command accepts two engines, side by side.
  void add_to(Command command, bool both);

  // If the chosen engine needs SimGrid, which this program does not link (loading it would slow every start): becomes
  // orrery-des, beside this program. Call it before anything is read from standard input.
  void become_program_with_engine() const;
};

}  // namespace orrery
