// The bundled devices, nodes, fabrics and clusters (sim/hardware/presets/*.json), by name. Names and aliases match in
// any letter case, and '-', '_' and ' ' count as equal.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "sim/base/error.h"
#include "sim/hardware/cluster.h"

namespace orrery {

// Canonical names, sorted; no aliases.
std::vector<std::string> device_names();
std::vector<std::string> node_names();
std::vector<std::string> fabric_names();
std::vector<std::string> cluster_names();

// The preset of that name or alias. Throws InputError at `where`, with the nearest name, if there is none. A node that
// takes any device ("pcie-8") may have rates of 0; read_cluster() fills them in from the device.
Device find_device(std::string_view name, const InputError::Where& where = {});
Node find_node(std::string_view name, const InputError::Where& where = {});
Fabric find_fabric(std::string_view name, const InputError::Where& where = {});
Cluster find_cluster(std::string_view name, const InputError::Where& where = {});

// Reads a preset's name, or an object: the fields of the struct and optionally "base", the preset that gives missing
// fields. Without "base" they are those of `start`. The fields that every device needs must be present. Throws
// InputError.
Device read_device(const nlohmann::json& json, const InputError::Where& where);
Fabric read_fabric(const nlohmann::json& json, const InputError::Where& where, const Fabric& start = {});
// A node may name its device ("device": a name or an object), which is then stored in `device`.
Node read_node(const nlohmann::json& json, const InputError::Where& where, Device* device = nullptr);

// The presets of one kind, parsed when first asked for. For sim/hardware, and for sim/planning in the same form.

class PresetCatalog {
 public:
  struct Entry {
    std::string name;                            // canonical, not an alias
    std::shared_ptr<const nlohmann::json> json;  // without "aliases"
    InputError::Where where;
  };

  // Reads all embedded files whose path starts with `prefix`; each is an object of presets by name. `expected`
  // describes a valid name in errors: "the name of a device preset".
  PresetCatalog(std::string_view prefix, std::string expected);

  // Returns nullptr if no preset has that name or alias.
  const Entry* find(std::string_view name) const;
  // Throws InputError at `where` if there is no such preset.
  const Entry& at(std::string_view name, const InputError::Where& where) const;

  std::vector<std::string> names() const;
  const std::vector<std::string>& names_and_aliases() const { return known_; }

 private:
  std::map<std::string, Entry> entries_;
  std::unordered_map<std::string, const Entry*> by_folded_name_;  // by folded name or alias
  std::vector<std::string> known_;
  std::string expected_;
};

const PresetCatalog& device_catalog();
const PresetCatalog& node_catalog();
const PresetCatalog& fabric_catalog();
const PresetCatalog& cluster_catalog();

}  // namespace orrery
