#include "cli/engine_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "sim/base/json_reader.h"

namespace orrery {
namespace {

std::vector<std::string> texts(std::span<const std::string_view> names) { return {names.begin(), names.end()}; }

// REQUIRES: `name` is empty or one of `names`.
template <class Enum>
Enum chosen(const std::string& name, std::span<const std::string_view> names) {
  const auto at = std::find(names.begin(), names.end(), name);
  return at == names.end() ? Enum{} : static_cast<Enum>(at - names.begin());
}

}  // namespace

void EngineArguments::add_to(CLI::App& command, bool both) {
  std::vector<std::string> engines{"analytical", "des"};
  if (both) engines.emplace_back("both");
  command
      .add_option("--engine", engine,
                  both ? "How the program is timed: in closed form, event by event, or both side by side"
                       : "How the program is timed: in closed form or event by event")
      ->check(CLI::IsMember(engines));
  command.add_option("--fidelity", fidelity, "des: collectives as steady flows, or message by message")
      ->check(CLI::IsMember(texts(kFidelityNames)));
  command.add_option("--routing", routing, "des: how switches with several ways up pick one")
      ->check(CLI::IsMember(texts(kRoutingNames)));
}

SimulationOptions EngineArguments::options() const {
  const auto refuse = [&](const char* option, const std::string& value) {
    if (engine == "analytical" && !value.empty())
      throw InputError({option, ""}, describe(value),
                       "--engine des beside it: the analytical engine has no such choice");
  };
  refuse("--fidelity", fidelity);
  refuse("--routing", routing);
  SimulationOptions options;
  options.engine = engine == "analytical" ? Engine::analytical : Engine::des;
  options.fidelity = chosen<Fidelity>(fidelity, kFidelityNames);
  options.routing = chosen<Routing>(routing, kRoutingNames);
  return options;
}

}  // namespace orrery
