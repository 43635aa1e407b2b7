// The options that choose how a program is timed: --engine, --fidelity, --routing.
#pragma once

#include "cli/command.h"
#include "study/answers/engine_choice.h"

namespace orrery {

struct EngineArguments : EngineChoice {
  // `both`: whether the command can show two engines side by side.
  void add_to(Command command, bool both);

  // Where the engine asked for needs SimGrid and this program has none of it (loading it would slow every start): goes
  // on as orrery-des, which the same build puts beside it. To be called before anything is read from standard input.
  void become_program_with_engine() const;
};

}  // namespace orrery
