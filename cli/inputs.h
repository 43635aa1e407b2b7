// What a result was made of, in its JSON: to tell results apart, and to make them again.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "strategies/read_scenario.h"

namespace orrery {

// { "digest", "scenario", "calibrations": [{ "file", "digest" }], "commit" }: the scenario written out (it can be given
// to any command), the user's calibrations, and a digest of both; "commit" where it is known.
// REQUIRES: `document` and the calibrations have been read.
nlohmann::ordered_json inputs_json(const nlohmann::json& document, const ScenarioSource& source,
                                   const std::vector<std::string>& calibrations);
// The same of what is no scenario: "NAME" in its place holds `asked`.
nlohmann::ordered_json inputs_json(const char* name, const nlohmann::json& asked,
                                   const std::vector<std::string>& calibrations);

}  // namespace orrery
