#include <nlohmann/json.hpp>

#include "sim/hardware/read_cluster.h"
#include "sim/hardware/read_placement.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

// Writes a struct's fields. Empty texts and lists are left out: they are what the reader starts from.
class JsonWriter final : public FieldVisitor {
 public:
  explicit JsonWriter(Json& object) : object_(object) { object_ = Json::object(); }

 protected:
  void integer(const char* name, std::int64_t& value, IntegerRange, const char*) override { object_[name] = value; }
  void number(const char* name, double& value, NumberRange, const char*) override { object_[name] = value; }
  void boolean(const char* name, bool& value, const char*) override { object_[name] = value; }
  void text(const char* name, std::string& value, const char*) override {
    if (!value.empty()) object_[name] = value;
  }
  void integers(const char* name, std::vector<std::int64_t>& value, IntegerRange, const char*) override {
    if (!value.empty()) object_[name] = value;
  }
  void choice(const char* name, std::size_t& index, std::span<const std::string_view> names, const char*) override {
    object_[name] = names[index];
  }
  void choices(const char* name, std::vector<std::int64_t>& chosen, std::span<const std::string_view> names,
               const char*) override {
    for (const std::int64_t i : chosen) object_[name].push_back(names[static_cast<std::size_t>(i)]);
  }

 private:
  Json& object_;
};

template <class Struct>
Json written(Struct value) {  // a copy: tables of fields take what they visit by reference
  Json json;
  JsonWriter writer(json);
  value.visit_fields(writer);
  return json;
}

}  // namespace

Json to_json(const Device& device) {
  Json json = written(device);
  json["usual_nodes"] = device.usual_nodes;
  return json;
}

Json to_json(const Node& node) { return written(node); }

Json to_json(const Fabric& fabric) { return written(fabric); }

Json to_json(const Cluster& cluster) {
  Json json{{"name", cluster.name},
            {"nodes", cluster.nodes},
            {"device", to_json(cluster.device)},
            {"node", to_json(cluster.node)},
            {"fabric", to_json(cluster.fabric)}};
  if (!cluster.source.empty()) json["source"] = cluster.source;
  if (cluster.production) json["production"] = true;
  if (cluster.is_scattered() || cluster.placement.of > 0) json["placement"] = to_json(cluster.placement);
  return json;
}

}  // namespace orrery
