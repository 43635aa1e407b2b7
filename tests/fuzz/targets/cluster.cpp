#include <nlohmann/json.hpp>

#include "sim/base/json_reader.h"
#include "sim/cost/calibration.h"
#include "sim/cost/collective_calibration.h"
#include "sim/hardware/read_cluster.h"
#include "tests/fuzz/targets.h"

void orrery::fuzz::cluster(std::string_view input) {
  const Cluster cluster = read_cluster(parse_json(input, "cluster.json"), {"cluster.json", ""});
  const nlohmann::json written = to_json(cluster);
  require(to_json(read_cluster(written, {"written.json", ""})) == written, "what is written reads as the same cluster");
  require(cluster.devices() > 0, "a cluster has devices");
  find_calibration(cluster.device);
  find_collective_calibration(cluster);
}
