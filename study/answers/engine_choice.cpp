#include "study/answers/engine_choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>

#include "sim/base/json_reader.h"

namespace orrery {
namespace {

constexpr std::array<std::string_view, kEngines + 1> kChoices{kEngineNames[0], kEngineNames[1], "both"};

// "50000000", "50e6".
double read_limit(const std::string& text) {
  double limit = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, limit);
  if (error != std::errc() || stop != end || !std::isfinite(limit) || limit < 1 || limit != std::floor(limit))
    throw InputError({"--limit", ""}, describe(text), "a whole number of at least 1, such as 50e6");
  return limit;
}

// An empty name stands for the first.
template <class Enum>
Enum chosen(const char* option, const std::string& name, std::span<const std::string_view> names) {
  if (name.empty()) return Enum{};
  const auto at = std::find(names.begin(), names.end(), name);
  if (at == names.end())
    throw InputError({option, ""}, describe(name), fmt::format("one of {}", fmt::join(names, ", ")),
                     nearest_name(name, names));
  return static_cast<Enum>(at - names.begin());
}

}  // namespace

SimulationOptions EngineChoice::options() const {
  SimulationOptions options;
  if (!both()) options.engine = chosen<Engine>("--engine", engine, kChoices);
  if (both()) options.engine = Engine::des;
  const auto refuse = [&](const char* option, const std::string& found) {
    if (options.engine == Engine::analytical && !found.empty())
      throw InputError({option, ""}, found, "--engine des with it: the analytical engine has no such choice");
  };
  refuse("--fidelity", fidelity.empty() ? "" : describe(fidelity));
  refuse("--routing", routing.empty() ? "" : describe(routing));
  refuse("--limit", limit.value_or(""));
  refuse("--exact", exact ? "it" : "");
  options.fidelity = chosen<Fidelity>("--fidelity", fidelity, kFidelityNames);
  if (limit) options.most_works = read_limit(*limit);
  if (exact) options.most_exact_works = std::numeric_limits<double>::infinity();
  options.routing = chosen<Routing>("--routing", routing, kRoutingNames);
  return options;
}

}  // namespace orrery
