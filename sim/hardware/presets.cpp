#include "sim/hardware/presets.h"

#include <cctype>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "sim/base/input_file.h"
#include "sim/base/json_reader.h"
#include "sim/hardware/read_cluster.h"

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

namespace {

using Json = nlohmann::json;

const std::string& preset_name(const Json& json, const InputError::Where& where, const char* what) {
  if (json.is_string()) return json.get_ref<const std::string&>();
  throw InputError(where, describe(json), std::string("the name of a ") + what + " preset, or an object");
}

void require(const JsonReader& reader, bool there, const char* key, const char* expected) {
  if (!there) reader.fail(key, expected);
}

// Not a plain field: the names must exist.
void read_usual_nodes(JsonReader& reader, std::vector<std::string>& usual_nodes) {
  const Json* json = reader.take("usual_nodes");
  if (json == nullptr) return;
  if (!json->is_array()) reader.fail("usual_nodes", "an array of names of node presets");
  usual_nodes.clear();
  for (std::size_t i = 0; i < json->size(); ++i) {
    InputError::Where where = reader.at("usual_nodes");
    where.pointer += '/' + std::to_string(i);
    const std::string& name = preset_name((*json)[i], where, "node");
    usual_nodes.push_back(node_catalog().at(name, where).name);
  }
}

void check_complete(const JsonReader& reader, const Device& device) {
  require(reader, !device.name.empty(), "name", "the device's name");
  require(reader, device.memory_bytes > 0, "memory_bytes", "the device's memory in bytes");
  require(reader, device.memory_bytes_per_second > 0, "memory_bytes_per_second", "the rate of the device's memory");
  require(reader, device.vector_flops_per_second > 0, "vector_flops_per_second",
          "the fp32 peak outside the matrix units");
  require(reader, device.multiprocessors > 0, "multiprocessors", "the number of SMs or CUs");
  require(reader, device.pcie_bytes_per_second > 0, "pcie_bytes_per_second", "the device's PCIe rate");
}

Device device_of(const Json& json, const InputError::Where& where, Device device) {
  JsonReader reader(json, where);
  if (const Json* base = reader.take("base"))
    device = find_device(preset_name(*base, reader.at("base"), "device"), reader.at("base"));
  device.visit_fields(reader);
  read_usual_nodes(reader, device.usual_nodes);
  reader.finish();
  check_complete(reader, device);
  return device;
}

// `start`: the fields that a "base" does not give; for a preset, its name.
Node node_of(const Json& json, const InputError::Where& where, Node start, Device* device) {
  JsonReader reader(json, where);
  Node node = start;
  if (const Json* base = reader.take("base")) {
    node = find_node(preset_name(*base, reader.at("base"), "node"), reader.at("base"));
    if (device != nullptr && !node.device.empty()) *device = find_device(node.device);
    if (!start.name.empty()) node.name = start.name;
  }
  node.visit_fields(reader);
  if (const Json* wanted = reader.take("device")) {
    const Device read = read_device(*wanted, reader.at("device"));
    node.device = read.name;
    if (device != nullptr) *device = read;
  }
  read_links(reader, node);
  reader.finish();
  return node;
}

template <class Preset>
Preset named(const std::string& name) {
  Preset preset;
  preset.name = name;
  return preset;
}

}  // namespace

std::vector<std::string> device_names() { return device_catalog().names(); }
std::vector<std::string> node_names() { return node_catalog().names(); }
std::vector<std::string> fabric_names() { return fabric_catalog().names(); }
std::vector<std::string> cluster_names() { return cluster_catalog().names(); }

Device find_device(std::string_view name, const InputError::Where& where) {
  const auto& entry = device_catalog().at(name, where);
  return device_of(*entry.json, entry.where, named<Device>(entry.name));
}

Node find_node(std::string_view name, const InputError::Where& where) {
  const auto& entry = node_catalog().at(name, where);
  return node_of(*entry.json, entry.where, named<Node>(entry.name), nullptr);
}

Fabric find_fabric(std::string_view name, const InputError::Where& where) {
  const auto& entry = fabric_catalog().at(name, where);
  return read_fabric(*entry.json, entry.where, named<Fabric>(entry.name));
}

Cluster find_cluster(std::string_view name, const InputError::Where& where) {
  const auto& entry = cluster_catalog().at(name, where);
  Cluster cluster = read_cluster(*entry.json, entry.where);
  cluster.name = entry.name;
  return cluster;
}

Device read_device(const Json& json, const InputError::Where& where) {
  if (!json.is_object()) return find_device(preset_name(json, where, "device"), where);
  return device_of(json, where, {});
}

Node read_node(const Json& json, const InputError::Where& where, Device* device) {
  if (json.is_object()) return node_of(json, where, {}, device);
  Node node = find_node(preset_name(json, where, "node"), where);
  if (device != nullptr && !node.device.empty()) *device = find_device(node.device);
  return node;
}

Fabric read_fabric(const Json& json, const InputError::Where& where, const Fabric& start) {
  if (!json.is_object()) return find_fabric(preset_name(json, where, "fabric"), where);
  JsonReader reader(json, where);
  Fabric fabric = start;
  if (const Json* base = reader.take("base"))
    fabric = find_fabric(preset_name(*base, reader.at("base"), "fabric"), reader.at("base"));
  fabric.visit_fields(reader);
  reader.finish();
  return fabric;
}

}  // namespace orrery
