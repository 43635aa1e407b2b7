// The "perturbations" of a scenario: a list of objects, each with the fields that its kind has.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string_view>
#include <vector>

#include "sim/base/error.h"
#include "sim/hardware/cluster.h"
#include "sim/hardware/perturbation.h"

namespace orrery {

// The fields of a kind of perturbation beside "kind" itself.
struct PerturbationFields {
  std::span<const std::string_view> needed;
  std::span<const std::string_view> targets;  // at least one of them, where there are any
  std::span<const std::string_view> optional;

  bool has(std::string_view name) const;
};
PerturbationFields fields_of(PerturbationKind kind);

// Throws InputError, among others for a field that the kind does not have and for devices and nodes beyond the cluster.
// Whether `link` names any is checked by the engine, which knows the links.
std::vector<Perturbation> read_perturbations(const nlohmann::json& json, const InputError::Where& where,
                                             const Cluster& cluster);

}  // namespace orrery
