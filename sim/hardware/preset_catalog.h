// The presets of one kind, parsed when first asked for. For sim/hardware, and for sim/planning in the same form.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "sim/base/error.h"

namespace orrery {

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
