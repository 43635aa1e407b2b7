#include "sim/cost/user_calibration.h"

#include <nlohmann/json.hpp>

#include "sim/base/json_reader.h"
#include "tests/fuzz/predicted.h"
#include "tests/fuzz/targets.h"

void orrery::fuzz::user_calibration(std::string_view input) {
  static const Scenario scenario = [] {
    ScenarioSource source;
    return read_scenario(load_scenario_document("usp", {}, source), source);
  }();
  const UserCalibration user = read_user_calibration(parse_json(input, "calibration.json"), {"calibration.json", ""});
  predicted(scenario, user);
}
