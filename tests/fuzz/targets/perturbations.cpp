#include <nlohmann/json.hpp>

#include "sim/base/json_reader.h"
#include "sim/hardware/presets.h"
#include "strategies/perturbations/read_perturbations.h"
#include "tests/fuzz/targets.h"

void orrery::fuzz::perturbations(std::string_view input) {
  static const Cluster cluster = find_cluster("selene");
  const nlohmann::json list = parse_json(input, "scenario.json");
  const std::vector<Perturbation> read = read_perturbations(list, {"scenario.json", "/perturbations"}, cluster);
  require(read.size() == list.size(), "none is passed over");
}
