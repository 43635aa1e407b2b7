#include "strategies/schema.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "models/read_model.h"
#include "sim/base/json_reader.h"
#include "sim/base/json_writer.h"
#include "sim/hardware/cluster.h"
#include "sim/hardware/perturbation.h"
#include "sim/hardware/presets.h"
#include "sim/hardware/read_placement.h"
#include "strategies/perturbations/read_perturbations.h"
#include "strategies/plan.h"
#include "strategies/read_scenario.h"
#include "traces/workload.h"

namespace orrery {
namespace {

using OrderedJson = nlohmann::ordered_json;

// The properties of an object, from its table of fields.
class Properties final : public FieldVisitor {
 public:
  // `with_defaults`: absent fields have the values of the visited struct.
  explicit Properties(bool with_defaults) : with_defaults_(with_defaults) {}
  OrderedJson json = OrderedJson::object();
  bool of_layers = false;  // only fields that ranges of layers may set

 private:
  void visit(const VisitedField& field, AnyFieldPointer value) override {
    if (of_layers && field.scope != Scope::layer) return;
    std::visit(
        [&](const auto* its) {
          OrderedJson& type = json[field.name] = type_of(field, *its);
          type["description"] = field.doc;
          if (with_defaults_) type["default"] = field_json(field, *its);
        },
        value);
  }

  static OrderedJson type_of(const VisitedField& field, std::int64_t) {
    OrderedJson type{{"type", "integer"}, {"minimum", field.integers.least}};
    if (field.integers.most != std::numeric_limits<std::int64_t>::max()) type["maximum"] = field.integers.most;
    return type;
  }
  static OrderedJson type_of(const VisitedField& field, double) {
    const NumberRange range = field.numbers;
    OrderedJson type{{"type", "number"}};
    type[range.exclude_least ? "exclusiveMinimum" : "minimum"] = range.least;
    if (range.most != std::numeric_limits<double>::max()) type["maximum"] = range.most;
    if (range.or_zero) type = {{"anyOf", {{{"const", 0}}, std::move(type)}}};
    return type;
  }
  static OrderedJson type_of(const VisitedField&, bool) { return {{"type", "boolean"}}; }
  static OrderedJson type_of(const VisitedField&, const std::string&) { return {{"type", "string"}}; }
  static OrderedJson type_of(const VisitedField& field, const std::vector<std::int64_t>&) {
    if (field.names.empty()) return {{"type", "array"}, {"items", type_of(field, std::int64_t{})}};
    return {{"type", "array"}, {"items", {{"enum", field.names}}}, {"uniqueItems", true}};
  }
  static OrderedJson type_of(const VisitedField& field, std::size_t) { return {{"enum", field.names}}; }

  bool with_defaults_;
};

template <class Options>
OrderedJson properties_of(bool with_defaults) {
  Options options;
  Properties properties(with_defaults);
  options.visit_fields(properties);
  return std::move(properties.json);
}

OrderedJson reference(const char* definition) { return {{"$ref", std::string("#/$defs/") + definition}}; }

// Keys that the reader accepts everywhere and ignores.
void add_documentation(OrderedJson& properties) {
  for (const std::string_view key : documentation_keys())
    if (!properties.contains(key))
      properties[std::string(key)] = OrderedJson{{"description", "for readers; changes nothing"}};
}

OrderedJson object(const char* description, OrderedJson properties, std::vector<std::string> required = {}) {
  add_documentation(properties);
  OrderedJson json{{"description", description},
                   {"type", "object"},
                   {"properties", std::move(properties)},
                   {"additionalProperties", false}};
  if (!required.empty()) json["required"] = std::move(required);
  return json;
}

// Names are matched in any case and have aliases, so they are listed as examples, not as the only values.
OrderedJson name(const char* description, const std::vector<std::string>& names) {
  return {{"description", description}, {"type", "string"}, {"examples", names}};
}

OrderedJson either(OrderedJson first, OrderedJson second) {
  return {{"anyOf", OrderedJson::array({std::move(first), std::move(second)})}};
}

OrderedJson with_base(OrderedJson properties, const char* what, const std::vector<std::string>& names) {
  properties["base"] =
      name((std::string("preset of the ") + what + " that gives the fields that are absent here").c_str(), names);
  return properties;
}

OrderedJson model_schema() {
  OrderedJson properties = properties_of<Model>(false);
  properties["preset"] = name("a model that gives the fields that are absent here", model_names());
  const OrderedJson imported{
      {"description", "a Hugging Face config.json"},
      {"type", "object"},
      {"anyOf", OrderedJson::array({{{"required", {"model_type"}}}, {{"required", {"architectures"}}}})}};
  OrderedJson json = either(name("a preset, or the path of a JSON file", model_names()),
                            object("an architecture: a preset with changes, or written out", std::move(properties)));
  json["anyOf"].push_back(imported);
  return json;
}

OrderedJson placement_schema() {
  OrderedJson properties;
  properties["nodes"] = OrderedJson{
      {"description",
       "contiguous: leaf by leaf; scattered: drawn at random; or which nodes, as a scheduler lists them "
       "(node[001-004,010]) or by number"},
      {"anyOf", OrderedJson::array({{{"type", "string"}, {"examples", {"contiguous", "scattered"}}},
                                    {{"type", "array"}, {"items", {{"type", "integer"}, {"minimum", 0}}}}})},
      {"default", "contiguous"}};
  properties.update(properties_of<PlacementFields>(true));
  return object("the fabric's nodes that form the cluster", std::move(properties));
}

OrderedJson cluster_schema(const OrderedJson& own_properties) {
  OrderedJson properties = own_properties;
  properties["device"] = reference("device");
  properties["node"] = reference("node");
  properties["fabric"] = reference("fabric");
  properties["placement"] = placement_schema();
  properties["topology_file"] =
      OrderedJson{{"description", "output of `nvidia-smi topo -m` on such a node"}, {"type", "string"}};
  return either(
      name("a preset, or the path of a JSON file", cluster_names()),
      object("nodes of a kind, joined by a fabric", with_base(std::move(properties), "cluster", cluster_names())));
}

// One alternative per kind, with its fields and its required fields.
OrderedJson perturbation_schema() {
  const OrderedJson all = properties_of<Perturbation>(true);
  OrderedJson alternatives = OrderedJson::array();
  for (std::size_t kind = 0; kind < kPerturbationKindNames.size(); ++kind) {
    const PerturbationFields fields = fields_of(static_cast<PerturbationKind>(kind));
    OrderedJson properties;
    properties["kind"] = OrderedJson{{"const", kPerturbationKindNames[kind]}};
    for (const auto& item : all.items())
      if (fields.has(item.key())) properties[item.key()] = item.value();
    std::vector<std::string> required{"kind"};
    for (const std::string_view needed : fields.needed) {
      required.emplace_back(needed);
      properties[std::string(needed)].erase("default");
    }
    OrderedJson alternative = object("what goes wrong on the cluster during the step", std::move(properties), required);
    for (const std::string_view target : fields.targets) alternative["anyOf"].push_back({{"required", {target}}});
    alternatives.push_back(std::move(alternative));
  }
  return {{"anyOf", std::move(alternatives)}};
}

OrderedJson perturbations_schema(const OrderedJson& elsewhere) {
  return either(elsewhere, {{"description", "what goes wrong on the cluster, for the discrete-event engine"},
                            {"type", "array"},
                            {"items", reference("perturbation")}});
}

OrderedJson plan_schema() {
  OrderedJson properties = properties_of<Plan>(true);
  properties["layers"] = OrderedJson{{"description", "ranges of layers with other values of some fields"},
                                     {"type", "array"},
                                     {"items", reference("layers")},
                                     {"default", OrderedJson::array()}};
  return object("how the work is divided over the devices", std::move(properties));
}

OrderedJson layers_schema() {
  LayerRange range;
  Properties properties(false);
  range.visit_fields(properties);
  const std::size_t own = properties.json.size();
  properties.of_layers = true;
  range.plan.visit_fields(properties);
  OrderedJson says_something = OrderedJson::array();
  for (auto field = std::next(properties.json.begin(), static_cast<std::ptrdiff_t>(own));
       field != properties.json.end(); ++field)
    says_something.push_back({{"required", {field.key()}}});
  OrderedJson json = object(
      "layers from, from + step, ... below to; fields that a range does not set keep the plan's values, and so do "
      "layers outside all ranges",
      std::move(properties.json));
  json["anyOf"] = std::move(says_something);
  return json;
}

OrderedJson job_schema() {
  OrderedJson properties;
  properties["name"] = OrderedJson{{"description", "name in reports"}, {"type", "string"}, {"minLength", 1}};
  properties["nodes"] = OrderedJson{
      {"description", "number of the cluster's nodes that the job uses"}, {"type", "integer"}, {"minimum", 1}};
  properties.update(properties_of<JobNodes>(true));
  for (const char* part : {"model", "workload", "plan"}) properties[part] = reference(part);
  return object("one of the jobs that share the cluster", std::move(properties),
                {"name", "nodes", "model", "workload"});
}

OrderedJson definitions() {
  OrderedJson device = properties_of<Device>(false);
  device["usual_nodes"] = OrderedJson{{"description", "node presets that usually hold such devices"},
                                      {"type", "array"},
                                      {"items", {{"type", "string"}}}};
  OrderedJson node = properties_of<Node>(false);
  node["device"] = reference("device");

  const OrderedJson elsewhere =
      name("the path of a JSON file, or a bundled scenario that has it", names_of(bundled_scenarios()));

  OrderedJson json;
  json["model"] = model_schema();
  json["cluster"] = cluster_schema(properties_of<Cluster>(false));
  json["device"] = either(name("a preset", device_names()),
                          object("an accelerator", with_base(std::move(device), "device", device_names())));
  json["node"] = either(name("a preset", node_names()),
                        object("a host with its devices", with_base(std::move(node), "node", node_names())));
  json["fabric"] =
      either(name("a preset", fabric_names()),
             object("how nodes are joined", with_base(properties_of<Fabric>(false), "fabric", fabric_names())));
  json["workload"] = either(elsewhere, object("the model's input in each step", properties_of<Workload>(true)));
  json["plan"] = either(elsewhere, plan_schema());
  json["layers"] = layers_schema();
  json["perturbation"] = perturbation_schema();
  json["perturbations"] = perturbations_schema(elsewhere);
  json["job"] = job_schema();
  return json;
}

}  // namespace

OrderedJson scenario_schema() {
  OrderedJson properties;
  properties["model"] = reference("model");
  properties["cluster"] = reference("cluster");
  properties["workload"] = reference("workload");
  properties["plan"] = reference("plan");
  properties["perturbations"] = reference("perturbations");
  properties["jobs"] = OrderedJson{
      {"description", "several jobs on the cluster, instead of model, workload and plan (simulate --engine des)"},
      {"type", "array"},
      {"items", reference("job")},
      {"minItems", 1}};
  const auto required = [](const char* key) { return OrderedJson{{"required", {key}}}; };
  OrderedJson json{{"$schema", "https://json-schema.org/draft/2020-12/schema"}, {"title", "Orrery scenario"}};
  json.update(object("A model, the cluster that trains it, its input, and how the work is divided",
                     std::move(properties), {"cluster"}));
  const OrderedJson one{{"required", {"model", "workload"}}, {"not", required("jobs")}};
  const OrderedJson several{
      {"required", {"jobs"}},
      {"not", {{"anyOf", OrderedJson::array({required("model"), required("workload"), required("plan")})}}}};
  json["oneOf"] = OrderedJson::array({one, several});
  json["$defs"] = definitions();
  return json;
}

namespace {

// The fields of what a part of the scenario schema describes, with their descriptions.
void add_fields(const OrderedJson& schema, const OrderedJson& part, const std::string& before,
                std::vector<ScenarioField>& fields) {
  const auto resolved = [&](const OrderedJson& of) -> const OrderedJson& {
    return of.contains("$ref") ? schema.at(OrderedJson::json_pointer(of["$ref"].get<std::string>().substr(1))) : of;
  };
  const OrderedJson& described = resolved(part);
  if (described.contains("anyOf"))
    for (const OrderedJson& either : described["anyOf"]) add_fields(schema, either, before, fields);
  if (!described.contains("properties")) return;
  const std::span<const std::string_view> ignored = documentation_keys();
  for (const auto& [key, field] : described["properties"].items()) {
    if (std::find(ignored.begin(), ignored.end(), key) != ignored.end()) continue;
    const OrderedJson* of = &resolved(field);
    if (!of->contains("description") && of->contains("anyOf")) of = &resolved((*of)["anyOf"].front());
    fields.push_back({before + key, of->value("description", "")});
    add_fields(schema, field, before + key + ".", fields);
  }
}

}  // namespace

std::vector<ScenarioField> scenario_fields() {
  const OrderedJson schema = scenario_schema();
  std::vector<ScenarioField> fields;
  add_fields(schema, schema, "", fields);
  return fields;
}

}  // namespace orrery
