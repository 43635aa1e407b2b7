#include "sim/cost/step_calibration.h"

#include <nlohmann/json.hpp>

#include "sim/base/json_reader.h"
#include "tests/fuzz/targets.h"

void orrery::fuzz::step_calibration(std::string_view input) {
  const StepCalibration steps = read_step_calibration(parse_json(input, "steps.json"), {"steps.json", ""});
  require(to_json(read_step_calibration(to_json(steps), {"written.json", ""})) == to_json(steps),
          "what is written reads as the same calibration");
}
