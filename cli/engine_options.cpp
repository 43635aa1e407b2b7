#include "cli/engine_options.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/names.h"
#include "realrun/sibling.h"
#include "sim/base/json_reader.h"
#include "sim/des/engine.h"

namespace orrery {
namespace {

// "50000000", "50e6".
double read_limit(const std::string& text) {
  double limit = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, limit);
  if (error != std::errc() || stop != end || !std::isfinite(limit) || limit < 1 || limit != std::floor(limit))
    throw InputError({"--limit", ""}, describe(text), "a whole number of at least 1, as 50e6");
  return limit;
}

}  // namespace

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
  command.add_option("--routing", routing, "des: how switches with several ways up pick one")
      .one_of(texts(kRoutingNames));
  command
      .add_option(
          "--limit", [this](const std::string& text) { limit = text; },
          "des: kernels and transfers beyond which a run is refused")
      .type_name("N");
  command.add_flag("--exact", exact, "des: fold only what is exactly alike, however long it takes");
}

void EngineArguments::become_program_with_engine() const {
  if (engine == kEngineNames[static_cast<std::size_t>(Engine::analytical)] || built_with_simgrid()) return;
  const auto sibling = sibling_program("orrery-des");
  if (!sibling)
    throw InputError({"--engine", ""}, engine + ", but no program orrery-des beside this one", "analytical");
  become(*sibling);
}

SimulationOptions EngineArguments::options() const {
  const auto refuse = [&](const char* option, const std::string& found) {
    if (engine == "analytical" && !found.empty())
      throw InputError({option, ""}, found, "--engine des beside it: the analytical engine has no such choice");
  };
  refuse("--fidelity", fidelity.empty() ? "" : describe(fidelity));
  refuse("--routing", routing.empty() ? "" : describe(routing));
  refuse("--limit", limit.value_or(""));
  refuse("--exact", exact ? "it" : "");
  SimulationOptions options;
  options.engine = engine == "analytical" ? Engine::analytical : Engine::des;
  options.fidelity = chosen<Fidelity>(fidelity, kFidelityNames);
  if (limit) options.most_works = read_limit(*limit);
  if (exact) options.most_exact_works = std::numeric_limits<double>::infinity();
  options.routing = chosen<Routing>(routing, kRoutingNames);
  return options;
}

}  // namespace orrery
