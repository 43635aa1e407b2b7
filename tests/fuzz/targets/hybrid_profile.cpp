#include <cmath>
#include <nlohmann/json.hpp>

#include "sim/base/json_reader.h"
#include "study/galvatron/planner.h"
#include "tests/fuzz/targets.h"

void orrery::fuzz::hybrid_profile(std::string_view input) {
  using namespace galvatron;
  constexpr std::int64_t kMostDevices = 16, kMostLayers = 40, kMemoryMib = 2048;  // what is planned within milliseconds
  const Profile profile = read_profile(parse_json(input, "profile.json"), "profile.json");
  std::vector<Hybrid> space;
  for (const Hybrid& h : hybrids(profile.cluster.devices)) {
    for (const Layers& layers : profile.layers) {
      const double seconds = layer_seconds(profile, layers, h, profile.batch_step);
      require(std::isfinite(seconds) && seconds >= 0, "a layer takes a time");
      require(layer_memory(profile, layers, h, profile.batch_step).total_mib() >= 0, "and memory");
    }
    if (h.pipeline == 2) space.push_back(h);
  }
  if (space.empty() || profile.cluster.devices > kMostDevices || profile.layer_count() > kMostLayers) return;
  const std::optional<FoundHybrids> found = plan_batch(profile, space, profile.cluster.devices, kMemoryMib);
  if (!found) return;
  std::int64_t layers = 0;
  for (const StagePlan& stage : found->stages) {
    layers += static_cast<std::int64_t>(stage.layers.size());
    require(!stage.layers.empty() && stage.memory_mib <= kMemoryMib, "each stage has layers that fit");
  }
  require(layers == profile.layer_count(), "each layer has a hybrid");
}
