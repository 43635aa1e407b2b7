#include <nlohmann/json.hpp>

#include "models/read_model.h"
#include "sim/base/json_reader.h"
#include "tests/fuzz/targets.h"

void orrery::fuzz::model(std::string_view input) {
  const Model model = read_model(parse_json(input, "model.json"), {"model.json", ""});
  const nlohmann::json written = to_json(model);
  require(to_json(read_model(written, {"written.json", ""})) == written, "what is written reads as the same model");
  require(parameters(model) > 0, "a model has parameters");
}
