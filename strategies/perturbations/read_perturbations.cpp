#include "strategies/perturbations/read_perturbations.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <numbers>
#include <set>
#include <string>

#include "sim/base/json_reader.h"

namespace orrery {
namespace {

using Json = nlohmann::json;
using Names = std::span<const std::string_view>;

constexpr double kLeastFactor = 1e-6, kMostVariation = 10;

bool contains(Names names, std::string_view name) { return std::find(names.begin(), names.end(), name) != names.end(); }

// Indices of devices or nodes: below `limit`, each once.
void check_indices(const JsonReader& reader, const char* key, const std::vector<std::int64_t>& indices,
                   std::int64_t limit) {
  std::set<std::int64_t> seen;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    InputError::Where where = reader.at(key);
    where.pointer += '/' + std::to_string(i);
    if (indices[i] >= limit)
      throw InputError(std::move(where), std::to_string(indices[i]),
                       fmt::format("one of the cluster's {}, 0 to {}", key, limit - 1));
    if (!seen.insert(indices[i]).second)
      throw InputError(std::move(where), fmt::format("{} a second time", indices[i]),
                       fmt::format("each of the {} once", key));
  }
}

void check_fields(const JsonReader& reader, const Json& json, PerturbationKind kind) {
  const std::string_view name = kPerturbationKindNames[static_cast<std::size_t>(kind)];
  const PerturbationFields fields = fields_of(kind);
  Names documentation = documentation_keys();
  for (const auto& [key, value] : json.items()) {
    if (key == "kind" || fields.has(key) || contains(documentation, key)) continue;
    std::vector<std::string_view> known = fields.needed;
    known.insert(known.end(), fields.targets.begin(), fields.targets.end());
    known.insert(known.end(), fields.optional.begin(), fields.optional.end());
    throw InputError(reader.at(key), describe(value),
                     fmt::format("no such field: \"{}\" has only {}", name, fmt::join(known, ", ")));
  }
  for (const std::string_view key : fields.needed)
    if (!json.contains(key)) reader.fail(key, fmt::format("a value: \"{}\" needs one", name));
}

void check_values(const JsonReader& reader, const Json& json, const Perturbation& p, const Cluster& cluster) {
  const std::string_view name = kPerturbationKindNames[static_cast<std::size_t>(p.kind)];
  check_indices(reader, "devices", p.devices, cluster.devices());
  check_indices(reader, "nodes", p.nodes, cluster.nodes);
  const PerturbationFields fields = fields_of(p.kind);
  const bool of_nodes = p.kind == PerturbationKind::failing_node;
  const auto& named = of_nodes ? p.nodes : p.devices;
  if (!fields.targets.empty() && named.empty() && p.count == 0)
    reader.fail(fields.targets.front(),
                fmt::format("the {0} that it affects, or \"count\" for random ones", fields.targets.front()));
  if (!fields.has("link")) {
    const std::int64_t all = of_nodes ? cluster.nodes : cluster.devices();
    const std::int64_t most = named.empty() ? all : static_cast<std::int64_t>(named.size());
    if (p.count > most)
      reader.fail("count", fmt::format("at most the {} {} that {}", most, of_nodes ? "nodes" : "devices",
                                       named.empty() ? "the cluster has" : "are named"));
  } else if (p.link.empty()) {
    reader.fail("link", "a link's name, or a pattern with * (orrery show links)");
  }
  if (json.contains("seed") && p.count == 0 && p.kind != PerturbationKind::jitter)
    reader.fail("seed", "none without \"count\": nothing is drawn at random");
  if (p.factor > 1) reader.fail("factor", "at most 1: the share of the usual rate that remains");
  if (p.factor < kLeastFactor) reader.fail("factor", "at least 1e-6; for a rate of 0 use failing_link or failing_node");
  if (p.until_seconds > 0 && p.until_seconds <= p.from_seconds)
    reader.fail("until_seconds",
                fmt::format("more than from_seconds, {}, or 0 for the end of the step", p.from_seconds));
  if (contains(fields.needed, "bytes_per_second") && p.bytes_per_second <= 0)
    reader.fail("bytes_per_second", fmt::format("more than 0: \"{}\" is traffic", name));
  if (p.kind == PerturbationKind::jitter) {
    if (p.coefficient_of_variation <= 0) reader.fail("coefficient_of_variation", "more than 0: how much times vary");
    if (p.coefficient_of_variation > kMostVariation)
      reader.fail("coefficient_of_variation", "at most 10: above it, no sample of a step shows the mean");
    // Uniform on [1 - w, 1 + w] has the standard deviation w / sqrt(3); w > 1 would make times negative.
    if (p.distribution == JitterDistribution::uniform && p.coefficient_of_variation > std::numbers::inv_sqrt3)
      reader.fail(
          "coefficient_of_variation",
          fmt::format("at most 1 / sqrt(3) = {:.4f} for \"uniform\": times stay positive", std::numbers::inv_sqrt3));
  }
}

Perturbation read_perturbation(const Json& json, const InputError::Where& where, const Cluster& cluster) {
  JsonReader reader(json, where);
  Perturbation perturbation;
  perturbation.visit_fields(reader);
  reader.finish();
  if (!json.contains("kind"))
    reader.fail("kind", fmt::format("one of \"{}\"", fmt::join(kPerturbationKindNames, "\", \"")));
  check_fields(reader, json, perturbation.kind);
  check_values(reader, json, perturbation, cluster);
  return perturbation;
}

}  // namespace

bool PerturbationFields::has(std::string_view name) const {
  return contains(needed, name) || contains(targets, name) || contains(optional, name);
}

PerturbationFields fields_of(PerturbationKind kind) {
  switch (kind) {
    case PerturbationKind::slow_device:
      return {{"factor"}, {"devices", "count"}, {"seed", "from_seconds", "until_seconds"}};
    case PerturbationKind::slow_link:
      return {{"link", "factor"}, {}, {"count", "seed", "from_seconds", "until_seconds"}};
    case PerturbationKind::failing_link:
      return {{"link"}, {}, {"count", "seed", "from_seconds"}};
    case PerturbationKind::failing_node:
      return {{}, {"nodes", "count"}, {"seed", "from_seconds"}};
    case PerturbationKind::background_traffic:
      return {{"link", "bytes_per_second"}, {}, {"count", "seed", "from_seconds", "until_seconds"}};
    case PerturbationKind::jitter:
      return {{"coefficient_of_variation"}, {}, {"devices", "seed", "distribution", "from_seconds", "until_seconds"}};
  }
  return {};
}

std::vector<Perturbation> read_perturbations(const Json& json, const InputError::Where& where, const Cluster& cluster) {
  if (!json.is_array()) throw InputError(where, describe(json), "an array of perturbations");
  std::vector<Perturbation> perturbations;
  for (std::size_t i = 0; i < json.size(); ++i)
    perturbations.push_back(
        read_perturbation(json[i], {where.file, pointer_to(where.pointer, std::to_string(i))}, cluster));
  return perturbations;
}

}  // namespace orrery
