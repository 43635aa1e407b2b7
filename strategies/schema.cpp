#include "strategies/schema.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "models/read_model.h"
#include "sim/base/json_reader.h"
#include "sim/hardware/cluster.h"
#include "sim/hardware/perturbation.h"
#include "sim/hardware/presets.h"
#include "strategies/perturbations/read_perturbations.h"
#include "strategies/plan.h"
#include "strategies/read_scenario.h"
#include "traces/workload.h"

namespace orrery {
namespace {

using Json = nlohmann::ordered_json;

// The properties of an object, from its table of fields.
class Properties final : public FieldVisitor {
 public:
  // `with_defaults`: the values that the visited struct holds are what an absent field means.
  explicit Properties(bool with_defaults) : with_defaults_(with_defaults) {}
  Json json = Json::object();

 protected:
  void integer(const char* name, std::int64_t& value, IntegerRange range, const char* doc) override {
    add(name, integer_type(range), doc, value);
  }
  void number(const char* name, double& value, NumberRange range, const char* doc) override {
    Json type{{"type", "number"}};
    type[range.exclude_least ? "exclusiveMinimum" : "minimum"] = range.least;
    if (range.most != std::numeric_limits<double>::max()) type["maximum"] = range.most;
    add(name, std::move(type), doc, value);
  }
  void boolean(const char* name, bool& value, const char* doc) override {
    add(name, {{"type", "boolean"}}, doc, value);
  }
  void text(const char* name, std::string& value, const char* doc) override {
    add(name, {{"type", "string"}}, doc, value);
  }
  void integers(const char* name, std::vector<std::int64_t>& value, IntegerRange range, const char* doc) override {
    add(name, {{"type", "array"}, {"items", integer_type(range)}}, doc, value);
  }
  void choice(const char* name, std::size_t& index, std::span<const std::string_view> names, const char* doc) override {
    add(name, {{"enum", names}}, doc, names[index]);
  }

 private:
  static Json integer_type(IntegerRange range) {
    Json type{{"type", "integer"}, {"minimum", range.least}};
    if (range.most != std::numeric_limits<std::int64_t>::max()) type["maximum"] = range.most;
    return type;
  }
  void add(const char* name, Json type, const char* doc, const Json& value) {
    type["description"] = doc;
    if (with_defaults_) type["default"] = value;
    json[name] = std::move(type);
  }

  bool with_defaults_;
};

template <class Options>
Json properties_of(bool with_defaults) {
  Options options;
  Properties properties(with_defaults);
  options.visit_fields(properties);
  return std::move(properties.json);
}

Json reference(const char* definition) { return {{"$ref", std::string("#/$defs/") + definition}}; }

// Keys that the reader accepts everywhere and ignores.
void add_documentation(Json& properties) {
  for (const std::string_view key : documentation_keys())
    if (!properties.contains(key)) properties[std::string(key)] = Json{{"description", "for readers; changes nothing"}};
}

Json object(const char* description, Json properties, std::vector<std::string> required = {}) {
  add_documentation(properties);
  Json json{{"description", description},
            {"type", "object"},
            {"properties", std::move(properties)},
            {"additionalProperties", false}};
  if (!required.empty()) json["required"] = std::move(required);
  return json;
}

// Names are matched whatever their case, and have aliases: listed as examples, not as the only values.
Json name(const char* description, const std::vector<std::string>& names) {
  return {{"description", description}, {"type", "string"}, {"examples", names}};
}

Json either(Json first, Json second) { return {{"anyOf", Json::array({std::move(first), std::move(second)})}}; }

Json with_base(Json properties, const char* what, const std::vector<std::string>& names) {
  properties["base"] =
      name((std::string("preset of the ") + what + " whose fields are taken where absent here").c_str(), names);
  return properties;
}

Json model_schema() {
  Json properties = properties_of<Model>(false);
  properties["preset"] = name("a model whose fields are taken where absent here", model_names());
  const Json imported{{"description", "a Hugging Face config.json"},
                      {"type", "object"},
                      {"anyOf", Json::array({{{"required", {"model_type"}}}, {{"required", {"architectures"}}}})}};
  Json json = either(name("a preset, or the path of a JSON file", model_names()),
                     object("an architecture: a preset with changes, or written out", std::move(properties)));
  json["anyOf"].push_back(imported);
  return json;
}

Json cluster_schema(const Json& own_properties) {
  Json properties = own_properties;
  properties["device"] = reference("device");
  properties["node"] = reference("node");
  properties["fabric"] = reference("fabric");
  properties["topology_file"] =
      Json{{"description", "output of `nvidia-smi topo -m` on such a node"}, {"type", "string"}};
  return either(
      name("a preset, or the path of a JSON file", cluster_names()),
      object("nodes of a kind, joined by a fabric", with_base(std::move(properties), "cluster", cluster_names())));
}

// One alternative a kind: the fields that it has, and those that it needs.
Json perturbation_schema() {
  const Json all = properties_of<Perturbation>(true);
  Json alternatives = Json::array();
  for (std::size_t kind = 0; kind < kPerturbationKindNames.size(); ++kind) {
    const PerturbationFields fields = fields_of(static_cast<PerturbationKind>(kind));
    Json properties;
    properties["kind"] = Json{{"const", kPerturbationKindNames[kind]}};
    for (const auto& item : all.items())
      if (fields.has(item.key())) properties[item.key()] = item.value();
    std::vector<std::string> required{"kind"};
    for (const std::string_view needed : fields.needed) {
      required.emplace_back(needed);
      properties[std::string(needed)].erase("default");
    }
    Json alternative = object("what goes wrong on the cluster during the step", std::move(properties), required);
    for (const std::string_view target : fields.targets) alternative["anyOf"].push_back({{"required", {target}}});
    alternatives.push_back(std::move(alternative));
  }
  return {{"anyOf", std::move(alternatives)}};
}

Json perturbations_schema(const Json& elsewhere) {
  return either(elsewhere, {{"description", "what goes wrong on the cluster, for the discrete-event engine"},
                            {"type", "array"},
                            {"items", reference("perturbation")}});
}

Json job_schema() {
  Json properties;
  properties["name"] = Json{{"description", "what reports call it"}, {"type", "string"}, {"minLength", 1}};
  properties["nodes"] =
      Json{{"description", "how many of the cluster's nodes the job has"}, {"type", "integer"}, {"minimum", 1}};
  properties.update(properties_of<Placement>(true));
  for (const char* part : {"model", "workload", "plan"}) properties[part] = reference(part);
  return object("one of the jobs that share the cluster", std::move(properties),
                {"name", "nodes", "model", "workload"});
}

Json definitions() {
  Json device = properties_of<Device>(false);
  device["usual_nodes"] = Json{{"description", "node presets that such devices are usually found in"},
                               {"type", "array"},
                               {"items", {{"type", "string"}}}};
  Json node = properties_of<Node>(false);
  node["device"] = reference("device");

  std::vector<std::string> scenarios;
  for (const BundledScenario& scenario : bundled_scenarios()) scenarios.push_back(scenario.name);
  const Json elsewhere = name("the path of a JSON file, or a bundled scenario that has it", scenarios);

  Json json;
  json["model"] = model_schema();
  json["cluster"] = cluster_schema(properties_of<Cluster>(false));
  json["device"] = either(name("a preset", device_names()),
                          object("an accelerator", with_base(std::move(device), "device", device_names())));
  json["node"] = either(name("a preset", node_names()),
                        object("a host with its devices", with_base(std::move(node), "node", node_names())));
  json["fabric"] =
      either(name("a preset", fabric_names()),
             object("how nodes are joined", with_base(properties_of<Fabric>(false), "fabric", fabric_names())));
  json["workload"] = either(elsewhere, object("what is fed to the model each step", properties_of<Workload>(true)));
  json["plan"] = either(elsewhere, object("how the work is laid over the devices", properties_of<Plan>(true)));
  json["perturbation"] = perturbation_schema();
  json["perturbations"] = perturbations_schema(elsewhere);
  json["job"] = job_schema();
  return json;
}

}  // namespace

Json scenario_schema() {
  Json properties;
  properties["model"] = reference("model");
  properties["cluster"] = reference("cluster");
  properties["workload"] = reference("workload");
  properties["plan"] = reference("plan");
  properties["perturbations"] = reference("perturbations");
  properties["jobs"] =
      Json{{"description", "several jobs on the cluster, instead of model, workload and plan (simulate --engine des)"},
           {"type", "array"},
           {"items", reference("job")},
           {"minItems", 1}};
  const auto required = [](const char* key) { return Json{{"required", {key}}}; };
  Json json{{"$schema", "https://json-schema.org/draft/2020-12/schema"}, {"title", "Orrery scenario"}};
  json.update(
      object("What is trained, where, on which input, and how it is laid out", std::move(properties), {"cluster"}));
  const Json one{{"required", {"model", "workload"}}, {"not", required("jobs")}};
  const Json several{{"required", {"jobs"}},
                     {"not", {{"anyOf", Json::array({required("model"), required("workload"), required("plan")})}}}};
  json["oneOf"] = Json::array({one, several});
  json["$defs"] = definitions();
  return json;
}

}  // namespace orrery
