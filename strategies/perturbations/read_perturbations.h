// Reads a scenario's "perturbations": a list of objects, each with the fields of its kind.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "sim/base/error.h"
#include "sim/hardware/cluster.h"
#include "sim/hardware/perturbation.h"

namespace orrery {

// The fields of a kind of perturbation, without "kind" itself.
struct PerturbationFields {
  std::vector<std::string_view> needed;
  std::vector<std::string_view> targets;  // if not empty, at least one is needed
  std::vector<std::string_view> optional;

  bool has(std::string_view name) const;
};
PerturbationFields fields_of(PerturbationKind kind);

// Throws InputError, also for a field that the kind does not have and for devices and nodes that the cluster does not
// have. The engine checks the names in `link`, as it knows the links.
std::vector<Perturbation> read_perturbations(const nlohmann::json& json, const InputError::Where& where,
                                             const Cluster& cluster);

}  // namespace orrery
