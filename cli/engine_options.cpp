#include <vector>

#include "cli/offers.h"
#include "cli/sibling.h"

namespace orrery {

void EngineArguments::add_to(Command command, bool both) {
  std::vector<std::string> engines = texts(kEngineNames);
  if (both) engines.emplace_back("both");
  command
      .add_option("--engine", engine,
                  both ? "How the program is timed: in closed form, event by event, or both side by side"
                       : "How the program is timed: in closed form or event by event")
      .one_of(engines);
  command.add_option("--fidelity", fidelity, "des: collectives as steady flows, or message by message")
      .one_of(texts(kFidelityNames));
  command.add_option("--routing", routing, "des: how switches choose among several up-links")
      .one_of(texts(kRoutingNames));
  command.add_option(
      "--limit", [this](const std::string& text) { limit = text; },
      "des: refuse simulations of more kernels and transfers than this", "N");
  command.add_flag("--exact", exact, "des: fold only ranks that are exactly alike, however long it takes");
}

void EngineArguments::become_program_with_engine() const {
  if (engine == kEngineNames[static_cast<std::size_t>(Engine::analytical)]) return;
  become_program_with(Part::simgrid, "--engine", engine, "analytical");
}

}  // namespace orrery
