#include "sim/hardware/preset_catalog.h"

#include <cctype>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "sim/base/json_reader.h"
#include "sim/base/preset.h"

namespace orrery {
namespace {

std::string folded(std::string_view name) {
  std::string result(name);
  for (char& c : result)
    c = c == '_' || c == ' ' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

}  // namespace

PresetCatalog::PresetCatalog(std::string_view prefix, std::string expected) : expected_(std::move(expected)) {
  std::vector<std::pair<std::string, std::string>> aliases;  // (alias, name)
  for (const EmbeddedFile& file : embedded_files(prefix)) {
    // Not parse_json(): tests prove that presets are well-formed, and start-up time counts.
    nlohmann::json presets = nlohmann::json::parse(file.text);
    for (auto& [name, json] : presets.items()) {
      if (const auto at = json.find("aliases"); at != json.end()) {
        for (const auto& alias : *at) aliases.emplace_back(alias.get<std::string>(), name);
        json.erase(at);
      }
      entries_.emplace(
          name,
          Entry{name, std::make_shared<const nlohmann::json>(std::move(json)), {std::string(file.path), '/' + name}});
    }
  }
  const auto add = [&](const std::string& name, const std::string& canonical) {
    if (!by_folded_name_.emplace(folded(name), &entries_.at(canonical)).second)
      throw std::logic_error("two presets are called " + name);
    known_.push_back(name);
  };
  for (const auto& [name, entry] : entries_) add(name, name);
  for (const auto& [alias, name] : aliases) add(alias, name);
}

const PresetCatalog::Entry* PresetCatalog::find(std::string_view name) const {
  const auto at = by_folded_name_.find(folded(name));
  return at == by_folded_name_.end() ? nullptr : at->second;
}

const PresetCatalog::Entry& PresetCatalog::at(std::string_view name, const InputError::Where& where) const {
  if (const Entry* entry = find(name)) return *entry;
  throw InputError(where, describe(std::string(name)), expected_, nearest_name(name, known_));
}

std::vector<std::string> PresetCatalog::names() const {
  std::vector<std::string> result;
  for (const auto& [name, entry] : entries_) result.push_back(name);
  return result;
}

const PresetCatalog& device_catalog() {
  static const PresetCatalog catalog("sim/hardware/presets/devices", "the name of a device preset");
  return catalog;
}
const PresetCatalog& node_catalog() {
  static const PresetCatalog catalog("sim/hardware/presets/nodes", "the name of a node preset");
  return catalog;
}
const PresetCatalog& fabric_catalog() {
  static const PresetCatalog catalog("sim/hardware/presets/fabrics", "the name of a fabric preset");
  return catalog;
}
const PresetCatalog& cluster_catalog() {
  static const PresetCatalog catalog("sim/hardware/presets/clusters", "the name of a cluster preset");
  return catalog;
}

}  // namespace orrery
