#include "strategies/read_scenario.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "models/read_model.h"
#include "sim/base/json_reader.h"
#include "sim/base/preset.h"
#include "sim/hardware/read_cluster.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

bool is_path(std::string_view text) { return text.ends_with(".json") || text.find('/') != std::string_view::npos; }

// Paths inside a document are relative to its file; those of standard input to the working directory.
std::string path_beside(const std::string& path, const std::string& file) {
  return (std::filesystem::path(file).parent_path() / path).string();
}

bool begins_with_pointer(std::string_view pointer, std::string_view prefix) {
  return pointer.starts_with(prefix) && (pointer.size() == prefix.size() || pointer[prefix.size()] == '/');
}

// "plan.tensor_parallel=4" -> {"plan", "tensor_parallel"}, "4".
struct Assignment {
  std::vector<std::string> keys;
  std::string value;

  explicit Assignment(const std::string& argument) {
    const auto equals = argument.find('=');
    const std::string path = argument.substr(0, equals);
    for (std::size_t begin = 0; begin <= path.size();) {
      const std::size_t end = std::min(path.find('.', begin), path.size());
      keys.push_back(path.substr(begin, end - begin));
      begin = end + 1;
    }
    const bool complete = equals != std::string::npos &&
                          std::none_of(keys.begin(), keys.end(), [](const std::string& key) { return key.empty(); });
    if (!complete)
      throw InputError({"--set", ""}, describe(Json(argument)), "key.key=value, as in plan.tensor_parallel=4");
    value = argument.substr(equals + 1);
  }

  std::string pointer() const {
    std::string result;
    for (const std::string& key : keys) result = pointer_to(result, key);
    return result;
  }
};

Json parse_value(const std::string& text) {
  Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return value.is_discarded() ? Json(text) : value;
}

const BundledScenario* find_bundled(const std::vector<BundledScenario>& scenarios, std::string_view name) {
  const auto at = std::find_if(scenarios.begin(), scenarios.end(), [&](const auto& s) { return s.name == name; });
  return at == scenarios.end() ? nullptr : &*at;
}

std::vector<std::string> names_of(const std::vector<BundledScenario>& scenarios) {
  std::vector<std::string> names;
  for (const BundledScenario& scenario : scenarios) names.push_back(scenario.name);
  return names;
}

// A part of a scenario as an object (or a preset's name, where `keep_names`), and where it stands.
struct Part {
  Json json;
  InputError::Where where;
};

Part open_part(const Json& value, const char* key, const std::string& file, bool keep_names) {
  const InputError::Where where{file, std::string("/") + key};
  if (!value.is_string()) return {value, where};
  const auto& text = value.get_ref<const std::string&>();
  if (is_path(text)) {
    const std::string path = path_beside(text, file);
    try {
      return {parse_json_file(path), {path, ""}};
    } catch (const InputError& error) {
      if (std::filesystem::exists(path)) throw;
      throw InputError(where, describe(value), fmt::format("the path of a file (there is no {})", path));
    }
  }
  if (keep_names) return {value, where};
  const auto scenarios = bundled_scenarios();
  if (const BundledScenario* bundled = find_bundled(scenarios, text)) {
    const Json document = parse_json(bundled->text, std::string(bundled->path));
    return {document.value(key, Json::object()), {std::string(bundled->path), where.pointer}};
  }
  throw InputError(where, describe(value), "an object, the path of a JSON file, or the name of a bundled scenario",
                   nearest_name(text, names_of(scenarios)));
}

// The object that a name or a path at `pointer` stands for, so that one of its fields can differ; any other string as
// is.
Json opened_up(const Json& name, const std::string& pointer, const std::string& file) {
  if (pointer == "/workload" || pointer == "/plan") return open_part(name, pointer.c_str() + 1, file, false).json;
  if (pointer == "/cluster/node" || pointer == "/cluster/device" || pointer == "/cluster/fabric")
    return {{"base", name}};
  if (pointer != "/model" && pointer != "/cluster") return name;
  Json opened = open_part(name, pointer.c_str() + 1, file, true).json;
  if (!opened.is_string()) {
    // A Hugging Face config in Orrery's own words, so that --set names the same fields for every model.
    const bool imported = pointer == "/model" && (opened.contains("model_type") || opened.contains("architectures"));
    return imported ? to_json(read_model(opened, {file, pointer})) : opened;
  }
  if (pointer == "/model") return {{"preset", std::move(opened)}};
  try {
    find_cluster(opened.get_ref<const std::string&>());
    return {{"base", std::move(opened)}};
  } catch (const InputError&) {  // no cluster, so one node of a kind
    return {{"node", std::move(opened)}};
  }
}

template <class Options>
Options read_fields(const Part& part) {
  JsonReader reader(part.json, part.where);
  Options options;
  options.visit_fields(reader);
  reader.finish();
  return options;
}

}  // namespace

InputError ScenarioSource::blame(const InputError& error) const {
  if (error.where().file.empty() || error.where().file == file)
    for (auto set = sets.rbegin(); set != sets.rend(); ++set)
      if (begins_with_pointer(error.where().pointer, Assignment(*set).pointer()))
        return InputError({"--set " + *set, error.where().pointer}, error.found(), error.expected(), error.nearest());
  return error.in_file(file);
}

void apply_set(Json& document, const std::string& argument, const std::string& file) {
  const Assignment assignment(argument);
  const InputError::Where where{"--set " + argument, ""};
  Json* at = &document;
  std::string pointer;
  for (std::size_t i = 0; i < assignment.keys.size(); ++i) {
    const std::string& key = assignment.keys[i];
    // A name or a path stands for an object: open it up, so that one of its fields can differ.
    if (at->is_string()) *at = opened_up(*at, pointer, file);
    if (at->is_array()) {
      const bool index = key.find_first_not_of("0123456789") == std::string::npos && key.size() < 10;
      if (!index || std::stoul(key) >= at->size())
        throw InputError({where.file, pointer}, describe(Json(key)), fmt::format("an index into {}", describe(*at)));
      at = &(*at)[std::stoul(key)];
    } else {
      if (at->is_null()) *at = Json::object();
      if (!at->is_object())
        throw InputError({where.file, pointer}, describe(*at), fmt::format("an object to set \"{}\" in", key));
      at = &(*at)[key];
    }
    pointer = pointer_to(pointer, key);
  }
  *at = parse_value(assignment.value);
}

Json load_scenario_document(const std::string& name_or_path, const std::vector<std::string>& sets,
                            ScenarioSource& source) {
  const auto scenarios = bundled_scenarios();
  Json document;
  if (const BundledScenario* bundled = find_bundled(scenarios, name_or_path)) {
    source = {std::string(bundled->path), sets};
    document = parse_json(bundled->text, source.file);
  } else {
    std::error_code ignored;
    if (name_or_path != "-" && !is_path(name_or_path) && !std::filesystem::exists(name_or_path, ignored))
      throw InputError({}, describe(Json(name_or_path)),
                       "a scenario's file, or the name of a bundled one (orrery list scenarios)",
                       nearest_name(name_or_path, names_of(scenarios)));
    source = {name_or_path == "-" ? "<stdin>" : name_or_path, sets};
    document = parse_json_file(name_or_path);
  }
  for (const std::string& set : sets) apply_set(document, set, source.file);
  return document;
}

struct ScenarioReader::Cache {
  // By the part's text and the folder that relative paths start from.
  std::unordered_map<std::string, Model> models;
  std::unordered_map<std::string, Cluster> clusters;
};

ScenarioReader::ScenarioReader() : cache_(std::make_unique<Cache>()) {}
ScenarioReader::~ScenarioReader() = default;

namespace {

// The value that `read` makes of a part, from `cache` when the same part was read before.
template <class Value, class Read>
const Value& cached(std::unordered_map<std::string, Value>& cache, const Json& json, const char* key,
                    const std::string& file, Read read) {
  const std::string text = std::filesystem::path(file).parent_path().string() + '\n' + json.dump();
  const auto found = cache.find(text);
  if (found != cache.end()) return found->second;
  Part part = open_part(json, key, file, /*keep_names=*/true);
  if (part.json.is_object() && part.json.contains("topology_file") && part.json["topology_file"].is_string())
    part.json["topology_file"] = path_beside(part.json["topology_file"].get<std::string>(), part.where.file);
  return cache.emplace(text, read(part.json, part.where)).first->second;
}

}  // namespace

Scenario ScenarioReader::read(const Json& document, const ScenarioSource& source) {
  try {
    JsonReader reader(document, {source.file, ""});
    const Json* model = reader.take("model");
    const Json* cluster = reader.take("cluster");
    const Json* workload = reader.take("workload");
    const Json* plan = reader.take("plan");
    reader.finish();
    if (model == nullptr) reader.fail("model", "a model: a preset's name, a file, or an object");
    if (cluster == nullptr) reader.fail("cluster", "a cluster: a preset's name, a file, or an object");
    if (workload == nullptr) reader.fail("workload", "what is fed to the model each step: an object or a file");

    Scenario scenario;
    scenario.model = cached(cache_->models, *model, "model", source.file,
                            [](const Json& json, const InputError::Where& where) { return read_model(json, where); });
    scenario.cluster =
        cached(cache_->clusters, *cluster, "cluster", source.file,
               [](const Json& json, const InputError::Where& where) { return read_cluster(json, where); });
    scenario.workload = read_fields<Workload>(open_part(*workload, "workload", source.file, /*keep_names=*/false));
    if (plan != nullptr) scenario.plan = read_fields<Plan>(open_part(*plan, "plan", source.file, /*keep_names=*/false));
    return scenario;
  } catch (const InputError& error) {
    throw source.blame(error);
  } catch (const Json::exception& error) {  // dump() of text that is no UTF-8: only --set can bring it
    throw source.blame(InputError({source.file, ""}, error.what(), "text in UTF-8"));
  }
}

Scenario read_scenario(const Json& document, const ScenarioSource& source) {
  return ScenarioReader().read(document, source);
}

std::vector<BundledScenario> bundled_scenarios() {
  constexpr std::string_view kLead = "example";
  std::vector<BundledScenario> scenarios;
  for (const EmbeddedFile& file : embedded_files("strategies/")) {
    const std::filesystem::path path(file.path);
    std::string name = path.stem().string();
    if (!name.starts_with(kLead)) continue;  // a strategy's own data
    name.erase(0, kLead.size());
    if (name.starts_with('-')) name.erase(0, 1);
    if (name.empty()) name = path.parent_path().filename().string();  // strategies/tensor_parallel/example.json
    scenarios.push_back({std::move(name), file.path, file.text});
  }
  std::sort(scenarios.begin(), scenarios.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return scenarios;
}

}  // namespace orrery
