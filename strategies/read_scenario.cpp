#include "strategies/read_scenario.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "models/read_model.h"
#include "sim/base/digest.h"
#include "sim/base/input_file.h"
#include "sim/base/json_reader.h"
#include "sim/base/one_line.h"
#include "sim/hardware/read_cluster.h"
#include "strategies/framework/framework.h"
#include "strategies/perturbations/read_perturbations.h"
#include "traces/packing/packed_workload.h"
#include "traces/routing.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

enum PartOfLine : std::uint8_t { kModel, kCluster, kWorkload, kPlan, kParts };
constexpr std::array<std::string_view, kParts> kPartNames{"model", "cluster", "workload", "plan"};

bool is_path(std::string_view text) { return text.ends_with(".json") || text.find('/') != std::string_view::npos; }

// Whether `text` is a model's name on the Hugging Face Hub, which also contains a "/" ("meta-llama/Meta-Llama-3-8B"),
// and not a path. If `path` is a file, it is a path.
bool is_name_of_model(std::string_view key, const std::string& text, const std::string& path) {
  std::error_code error;
  return key == "model" && !std::filesystem::exists(path, error) && is_model_name(text);
}

// Paths in a document are relative to its file; paths in standard input to the working directory.
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
      throw InputError({"--set", ""}, describe(Json(argument)), "key.key=value, such as plan.tensor_parallel=4");
    value = argument.substr(equals + 1);
  }

  std::string pointer() const {
    std::string result;
    for (const std::string& key : keys) result = pointer_to(result, key);
    return result;
  }
};

// A part of a scenario as an object (or a preset's name, with `keep_names`), and its place.
struct Part {
  Json json;
  InputError::Where where;
};

// `key`: the part's name ("plan"). `where`: its place, which is deeper inside jobs.
Part open_part(const Json& value, const char* key, const InputError::Where& where, bool keep_names) {
  if (!value.is_string()) return {value, where};
  const auto& text = value.get_ref<const std::string&>();
  if (is_path(text) && !is_name_of_model(key, text, path_beside(text, where.file))) {
    const std::string path = path_beside(text, where.file);
    try {
      Part part{std::string_view(key) == "model" ? parse_python_json_file(path) : parse_json_file(path), {path, ""}};
      // The part may be nested under its kind, as `orrery show --json` writes it, or be a part of a whole scenario.
      if (part.json.is_object() && part.json.contains(key))
        part = {Json(part.json.at(key)), {path, std::string("/") + key}};
      return part;
    } catch (const InputError&) {
      std::error_code error;  // circular links, a name that is too long
      if (std::filesystem::exists(path, error)) throw;
      const std::string there = fmt::format("the path of a file ({})", error ? error.message() : "there is no " + path);
      if (std::string_view(key) != "model") throw InputError(where, describe(value), there);
      std::string nearest;
      try {  // --set has made it a path relative to the working directory
        const std::filesystem::path named = text;
        read_model(named.is_absolute() ? named.lexically_relative(std::filesystem::current_path(error)).string() : text,
                   where);
      } catch (const InputError& unknown) {
        nearest = unknown.nearest();
      }
      throw InputError(where, describe(value), there + ", or the name of a model", nearest);
    }
  }
  if (keep_names) return {value, where};
  if (const BundledDocument* bundled = find_bundled(bundled_scenarios(), text)) {
    const Json document = bundled->json();
    if (has_jobs(document) || (!document.contains(key) && std::string_view(key) != "plan"))
      throw InputError(where, describe(value), fmt::format("a bundled scenario that has a {}", key));
    return {document.value(key, Json::object()), {std::string(bundled->path), std::string("/") + key}};
  }
  throw InputError(where, describe(value), "an object, the path of a JSON file, or the name of a bundled scenario",
                   nearest_name(text, names_of(bundled_scenarios())));
}

// Returns "/plan" for "/jobs/0/plan": a job's parts are opened like a scenario's.
std::string within_job(const std::string& pointer) {
  constexpr std::string_view kJobs = "/jobs/";
  if (!pointer.starts_with(kJobs)) return pointer;
  const auto end = pointer.find('/', kJobs.size());
  return end == std::string::npos ? pointer : pointer.substr(end);
}

// Returns what a name or a path at `at` stands for, so that its fields can be changed; else the string itself.
Json opened_up(const Json& name, const std::string& at, const std::string& file) {
  const std::string pointer = within_job(at);
  if (pointer == "/workload" || pointer == "/plan" || pointer == "/perturbations")
    return open_part(name, pointer.c_str() + 1, {file, at}, false).json;
  if (pointer == "/cluster/node" || pointer == "/cluster/device" || pointer == "/cluster/fabric")
    return {{"base", name}};
  if (pointer != "/model" && pointer != "/cluster") return name;
  Json opened = open_part(name, pointer.c_str() + 1, {file, at}, true).json;
  if (!opened.is_string()) {
    // Converts a Hugging Face config to Orrery's fields, so that --set names the same fields for every model.
    const bool imported = pointer == "/model" && (opened.contains("model_type") || opened.contains("architectures"));
    return imported ? to_json(read_model(opened, {file, pointer})) : opened;
  }
  if (pointer == "/model") return {{"preset", std::move(opened)}};
  try {
    find_cluster(opened.get_ref<const std::string&>());
    return {{"base", std::move(opened)}};
  } catch (const InputError&) {  // not a cluster, so one node of a kind
    return {{"node", std::move(opened)}};
  }
}

// Paths in --set are relative to the working directory, paths in a document to its file.
void find_from_working_directory(Json& value, const std::string& at, const std::string& file) {
  if (std::filesystem::path(file).parent_path().empty()) return;
  const auto make_absolute = [](Json& path) {
    std::error_code error;
    if (!path.is_string()) return;
    const std::filesystem::path absolute = std::filesystem::absolute(path.get<std::string>(), error);
    if (!error) path = absolute.string();
  };
  const std::string pointer = within_job(at);
  const bool is_part = pointer == "/model" || pointer == "/cluster" || pointer == "/workload" || pointer == "/plan" ||
                       pointer == "/perturbations";
  if (is_part && value.is_string() && is_path(value.get_ref<const std::string&>()) &&
      !is_name_of_model(pointer.substr(1), value.get_ref<const std::string&>(), value.get_ref<const std::string&>()))
    make_absolute(value);
  for (const auto& [part, field] : {std::pair{"/cluster", "topology_file"}, std::pair{"/workload", "routing_file"},
                                    std::pair{"/workload", "documents_file"}}) {
    if (pointer == std::string(part) + "/" + field) make_absolute(value);
    if (pointer == part && value.is_object() && value.contains(field)) make_absolute(value[field]);
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

// Fields that a range does not give are those of the plan around it.
LayerRange read_range(const Json& json, const InputError::Where& where, const Plan& plan) {
  JsonReader reader(json, where);
  LayerRange range;
  range.visit_fields(reader);
  reader.begin_layers();
  range.plan = plan;
  range.plan.visit_fields(reader);
  reader.finish();
  return range;
}

Plan read_plan(const Part& part) {
  JsonReader reader(part.json, part.where);
  Plan plan;
  try {
    plan.visit_fields(reader);
  } catch (const InputError& error) {  // a library's name, which is unlike that of its stack
    const auto named = part.json.find("framework");
    if (named == part.json.end() || !named->is_string() || error.where().pointer != reader.at("framework").pointer)
      throw;
    const std::string_view stack = framework::stack_known_as(named->get_ref<const std::string&>());
    if (stack.empty()) throw;
    throw InputError(error.where(), error.found(), error.expected(), std::string(stack));
  }
  const Json* ranges = reader.take("layers");
  reader.finish();
  if (ranges == nullptr) return plan;
  if (!ranges->is_array()) reader.fail("layers", "an array of ranges of layers");
  const std::string pointer = reader.at("layers").pointer;
  std::vector<LayerRange> read;
  for (std::size_t i = 0; i < ranges->size(); ++i)
    read.push_back(read_range((*ranges)[i], {part.where.file, fmt::format("{}/{}", pointer, i)}, plan));
  plan.layers = std::move(read);
  return plan;
}

}  // namespace

InputError ScenarioSource::blame(const InputError& error) const {
  if (error.where().file.empty() || error.where().file == file)
    for (auto set = sets.rbegin(); set != sets.rend(); ++set)
      if (begins_with_pointer(error.where().pointer, Assignment(*set).pointer()))
        return InputError({"--set " + *set, error.where().pointer}, error.found(), error.expected(), error.nearest());
  return error.in_file(file);
}

InputError ScenarioSource::named_at(const std::string& pointer, const InputError& error) const {
  const InputError::Where& where = error.where();
  if (where.file.empty() || where.file == file) return error;
  const InputError::Where by = blame(InputError({file, pointer}, "", "")).where();
  return {{fmt::format("{} ({}: {})", where.file, by.file, by.pointer), where.pointer},
          error.found(),
          error.expected(),
          error.nearest()};
}

void apply_set(Json& document, const std::string& argument, const std::string& file) {
  const Assignment assignment(argument);
  const InputError::Where where{"--set " + argument, ""};
  if (!is_utf8(argument)) throw InputError(where, "bytes that are not UTF-8", "KEY=VALUE in UTF-8");
  Json* at = &document;
  std::string pointer;
  for (std::size_t i = 0; i < assignment.keys.size(); ++i) {
    const std::string& key = assignment.keys[i];
    // A name or a path stands for an object: opens it up, so that one of its fields can be changed.
    try {
      if (at->is_string()) *at = opened_up(*at, pointer, file);
    } catch (const InputError& error) {
      throw ScenarioSource{file, {}}.named_at(pointer, error);
    }
    if (at->is_array()) {
      const bool index = key.find_first_not_of("0123456789") == std::string::npos && key.size() < 10;
      if (!index || std::stoul(key) >= at->size())
        throw InputError({where.file, pointer}, describe(Json(key)), fmt::format("an index into {}", describe(*at)));
      at = &(*at)[std::stoul(key)];
    } else {
      if (at->is_null() && key.find_first_not_of("0123456789") == std::string::npos)
        throw InputError({where.file, pointer}, describe(Json(key)), "a name: there is no list to take an index of");
      if (at->is_null()) *at = Json::object();
      if (!at->is_object())
        throw InputError({where.file, pointer}, describe(*at), fmt::format("an object to set \"{}\" in", key));
      at = &(*at)[key];
    }
    pointer = pointer_to(pointer, key);
  }
  *at = json_or_text(assignment.value);
  if (within_job(pointer) == "/workload/documents" && at->is_number()) *at = assignment.value;  // one length
  find_from_working_directory(*at, pointer, file);
}

Json BundledDocument::json() const { return parse_json(text, std::string(path)); }

std::vector<BundledDocument> bundled_documents(std::string_view folder) {
  std::vector<BundledDocument> documents;
  for (const EmbeddedFile& file : embedded_files(folder))
    documents.push_back({std::filesystem::path(file.path).stem().string(), file.path, file.text});
  return documents;
}

std::vector<std::string> names_of(std::span<const BundledDocument> documents) {
  std::vector<std::string> names;
  for (const BundledDocument& document : documents) names.push_back(document.name);
  return names;
}

const BundledDocument* find_bundled(std::span<const BundledDocument> documents, std::string_view name) {
  const auto at = std::ranges::find(documents, name, &BundledDocument::name);
  return at == documents.end() ? nullptr : &*at;
}

const std::vector<BundledDocument>& bundled_scenarios() {
  static const std::vector<BundledDocument> all = [] {
    static constexpr std::string_view kLead = "example";
    std::vector<BundledDocument> scenarios = bundled_documents("strategies/");
    std::erase_if(scenarios, [](const auto& s) { return !s.name.starts_with(kLead); });  // strategies' data files
    for (BundledDocument& scenario : scenarios) {
      scenario.name.erase(0, kLead.size());
      if (scenario.name.starts_with('-')) scenario.name.erase(0, 1);
      if (scenario.name.empty())  // strategies/tensor_parallel/example.json
        scenario.name = std::filesystem::path(scenario.path).parent_path().filename().string();
    }
    std::ranges::sort(scenarios, {}, &BundledDocument::name);
    return scenarios;
  }();
  return all;
}

Json load_document(std::span<const BundledDocument> bundled, std::string_view kind, const std::string& name_or_path,
                   const std::vector<std::string>& sets, ScenarioSource& source) {
  Json document;
  if (const BundledDocument* named = find_bundled(bundled, name_or_path)) {
    source = {std::string(named->path), sets};
    document = named->json();
  } else {
    std::error_code ignored;
    if (name_or_path != "-" && !is_path(name_or_path) && !std::filesystem::exists(name_or_path, ignored))
      throw InputError({}, describe(Json(name_or_path)),
                       fmt::format("a {0}'s file, or the name of a bundled one (orrery list {0}s)", kind),
                       nearest_name(name_or_path, names_of(bundled)));
    source = {name_or_path == "-" ? "<stdin>" : name_or_path, sets};
    document = parse_json_file(name_or_path);
  }
  for (const std::string& set : sets) apply_set(document, set, source.file);
  return document;
}

Json load_scenario_document(const std::string& name_or_path, const std::vector<std::string>& sets,
                            ScenarioSource& source) {
  return load_document(bundled_scenarios(), "scenario", name_or_path, sets, source);
}

namespace {

// Values that were read, by their texts.
template <class Value>
class ReadTexts {
 public:
  // Returns a stored value, or what `read` makes of the text.
  template <class Read>
  std::shared_ptr<const Value> get(std::string_view text, Read read) {
    if (const auto found = values_.find(text); found != values_.end()) return found->second;
    auto value = std::make_shared<const Value>(read());
    // Limits memory: parts of a sweep that never occur again would fill it.
    constexpr std::size_t kMost = 1 << 12;
    if (values_.size() >= kMost) values_.clear();
    return values_.emplace(text, std::move(value)).first->second;
  }

 private:
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  std::unordered_map<std::string, std::shared_ptr<const Value>, Hash, std::equal_to<>> values_;
};

// Digest of a file that has been read, or of its name if it is gone.
std::uint64_t file_digest(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::uint64_t digest = digest_of(file ? "" : path);
  std::vector<char> text(1 << 16);
  while (file) {
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    digest = digest_of({text.data(), static_cast<std::size_t>(file.gcount())}, digest);
  }
  return digest;
}

// The files that a workload names.
constexpr std::array kWorkloadFiles{"routing_file", "documents_file"};

// Makes a part's file names absolute, so that `document` (the part's) can be moved anywhere.
void make_files_absolute(const Part& part, Json& document) {
  if (!part.json.is_object()) return;
  for (const char* field : kWorkloadFiles)
    if (const Json file = part.json.value(field, Json()); file.is_string() && file != "")
      document[field] = std::filesystem::absolute(path_beside(file.get<std::string>(), part.where.file)).string();
}

// A member's share of a scenario's digest. It is mixed, as otherwise similar plans could have equal digests.
std::uint64_t member_digest(std::string_view key, const Json& value) {
  const Json* as_digested = &value;
  Json with_content;
  for (const char* field : kWorkloadFiles)
    if (const Json file = value.is_object() ? value.value(field, Json()) : Json(); file.is_string() && file != "") {
      if (as_digested == &value) with_content = value;
      with_content[field] = file_digest(file.get<std::string>());
      as_digested = &with_content;
    }
  return mixed(digest_of(as_digested->dump(), digest_of(key) + 1));  // + 1: marks the end of the key
}

}  // namespace

std::uint64_t scenario_digest(const Json& written_out) {
  std::uint64_t digest = 0;
  for (const auto& [key, value] : written_out.items()) digest += member_digest(key, value);
  return digest;
}

struct ScenarioReader::Cache {
  // By the part's text and the folder that relative paths start from.
  ReadTexts<Model> models;
  ReadTexts<Cluster> clusters;

  // For lines: all in one folder, with the same --set arguments.
  struct Lines {
    std::string folder;
    std::vector<std::string> sets;
    std::array<std::vector<std::string>, kParts> sets_of;  // by part
    bool other_sets = false;                               // --set arguments outside of these parts
    template <class Value>
    struct Part {
      Value value;
      std::uint64_t digest = 0;  // its share of the line's digest
    };
    ReadTexts<Part<Model>> models;
    ReadTexts<Part<Cluster>> clusters;
    ReadTexts<Part<Workload>> workloads;
    ReadTexts<Part<Plan>> plans;
  };
  Lines lines;
  std::vector<JsonMember> members;

  void begin_lines(const ScenarioSource& source);
};

void ScenarioReader::Cache::begin_lines(const ScenarioSource& source) {
  const std::string_view folder = std::string_view(source.file).substr(0, source.file.rfind('/') + 1);
  if (lines.folder == folder && lines.sets == source.sets) return;
  Lines begun;
  begun.folder = folder;
  begun.sets = source.sets;
  for (const std::string& set : source.sets) {
    const std::string key = Assignment(set).keys.front();
    const auto part = std::find(kPartNames.begin(), kPartNames.end(), key);
    if (part == kPartNames.end()) {
      begun.other_sets = true;
    } else {
      begun.sets_of[static_cast<std::size_t>(part - kPartNames.begin())].push_back(set);
    }
  }
  lines = std::move(begun);
}

ScenarioReader::ScenarioReader() : cache_(std::make_unique<Cache>()) {}
ScenarioReader::~ScenarioReader() = default;

namespace {

// The value that `read` makes of a part, from `cache` when the same part was read before.
template <class Value, class Read>
const Value& cached(ReadTexts<Value>& cache, const Json& json, const char* key, const InputError::Where& where,
                    Read read) {
  const std::string folder = std::filesystem::path(where.file).parent_path().string();
  return *cache.get(folder + '\n' + json.dump(), [&] {
    Part part = open_part(json, key, where, /*keep_names=*/true);
    if (part.json.is_object() && part.json.contains("topology_file") && part.json["topology_file"].is_string())
      part.json["topology_file"] = path_beside(part.json["topology_file"].get<std::string>(), part.where.file);
    return read(part.json, part.where);
  });
}

// Returns what `read` returns; adds to errors the file or the --set at fault.
template <class Read>
auto blaming(const ScenarioSource& source, Read read) {
  try {
    return read();
  } catch (const InputError& error) {
    throw source.blame(error);
  } catch (const Json::exception& error) {  // dump() of text that is not UTF-8: only --set can contain it
    throw source.blame(InputError({source.file, ""}, error.what(), "text in UTF-8"));
  }
}

// Returns what `read` returns for the part at `where`; adds to errors the file that the part names.
template <class Read>
auto reading_part(const ScenarioSource& source, const InputError::Where& where, Read read) {
  try {
    return read(where);
  } catch (const InputError& error) {
    throw source.named_at(where.pointer, error);
  }
}

const Json& need(JsonReader& reader, const char* key, const char* expected) {
  const Json* const part = reader.take(key);
  if (part == nullptr) reader.fail(key, expected);
  return *part;
}

std::vector<Perturbation> take_perturbations(JsonReader& reader, const ScenarioSource& source, const Cluster& cluster) {
  const Json* json = reader.take("perturbations");
  if (json == nullptr) return {};
  return reading_part(source, reader.at("perturbations"), [&](const InputError::Where& where) {
    const Part part = open_part(*json, "perturbations", where, /*keep_names=*/false);
    return read_perturbations(part.json, part.where, cluster);
  });
}

// REQUIRES: the placement's numbers fit the cluster's nodes; otherwise it overflows.
std::int64_t last_node(const Job& job) {
  return job.placement.first_node + (job.scenario.cluster.nodes - 1) * job.placement.node_stride;
}

std::string nodes_text(const Job& job) {
  const std::int64_t nodes = job.scenario.cluster.nodes;
  std::string text = fmt::format("{} node{} from {} on", nodes, nodes == 1 ? "" : "s", job.placement.first_node);
  if (nodes > 1 && job.placement.node_stride > 1) text += fmt::format(", {} apart", job.placement.node_stride);
  return text;
}

bool has_node(const Job& job, std::int64_t node) {
  const std::int64_t after_first = node - job.placement.first_node;
  return after_first >= 0 && node <= last_node(job) && after_first % job.placement.node_stride == 0;
}

// Returns a node that both have, or -1.
std::int64_t common_node(const Job& a, const Job& b) {
  if (last_node(a) < b.placement.first_node || last_node(b) < a.placement.first_node) return -1;
  const Job& fewer = a.scenario.cluster.nodes < b.scenario.cluster.nodes ? a : b;
  const Job& more = &fewer == &a ? b : a;
  for (std::int64_t i = 0; i < fewer.scenario.cluster.nodes; ++i) {
    const std::int64_t node = fewer.placement.first_node + i * fewer.placement.node_stride;
    if (has_node(more, node)) return node;
  }
  return -1;
}

void check_placements(const std::vector<Job>& jobs, const Cluster& cluster, const std::string& file) {
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const Job& job = jobs[i];
    const bool several = job.scenario.cluster.nodes > 1;
    if (job.placement.first_node >= cluster.nodes ||
        (several && (job.placement.node_stride >= cluster.nodes || last_node(job) >= cluster.nodes)))
      throw InputError({file, job.pointer + "/nodes"}, nodes_text(job),
                       fmt::format("nodes of the cluster, 0 to {}", cluster.nodes - 1));
    for (std::size_t j = 0; j < i; ++j) {
      if (jobs[j].name == job.name)
        throw InputError({file, job.pointer + "/name"}, describe(Json(job.name)) + " a second time",
                         "a name of its own for each job");
      const std::int64_t node = common_node(jobs[j], job);
      if (node >= 0)
        throw InputError({file, job.pointer + "/first_node"}, nodes_text(job),
                         fmt::format("other nodes than those of job \"{}\": it has node {} ({})", jobs[j].name, node,
                                     nodes_text(jobs[j])));
    }
  }
}

}  // namespace

bool has_jobs(const Json& document) { return document.is_object() && document.contains("jobs"); }

InputError Job::in_document(const InputError& error) const {
  const InputError::Where& where = error.where();
  if (!where.file.empty() || begins_with_pointer(where.pointer, "/cluster")) return error;
  return InputError({"", pointer + where.pointer}, error.found(), error.expected(), error.nearest());
}

Cluster ScenarioReader::take_cluster(JsonReader& reader, const ScenarioSource& source) {
  const Json& cluster = need(reader, "cluster", "a cluster: a preset's name, a file, or an object");
  return reading_part(source, reader.at("cluster"), [&](const InputError::Where& where) {
    return cached(cache_->clusters, cluster, "cluster", where,
                  [](const Json& json, const InputError::Where& at) { return read_cluster(json, at); });
  });
}

namespace {

const Json& need_model(JsonReader& reader) {
  return need(reader, "model", "a model: a preset's name, a file, or an object");
}
const Json& need_workload(JsonReader& reader) { return need(reader, "workload", "a workload: an object or a file"); }

Workload take_workload(JsonReader& reader, const ScenarioSource& source) {
  const Json& workload = need_workload(reader);
  return reading_part(source, reader.at("workload"), [&](const InputError::Where& where) {
    const Part part = open_part(workload, "workload", where, /*keep_names=*/false);
    auto read = read_fields<Workload>(part);
    read.gives_batch = part.json.contains("global_batch_size");
    const auto find = [&](const char* field, std::string& file) {
      if (file.empty()) return false;
      const std::string path = path_beside(file, part.where.file);
      std::error_code error;
      if (!std::filesystem::exists(path, error))
        throw InputError({part.where.file, pointer_to(part.where.pointer, field)}, describe(Json(file)),
                         "the path of a file (there is no " + path + ")");
      file = path;
      return true;
    };
    if (find("routing_file", read.routing_file))
      read.recorded_routing = std::make_shared<const RoutingCounts>(read_routing(read.routing_file));
    if (find("documents_file", read.documents_file))
      read.recorded_documents = std::make_shared<const RecordedDocuments>(read_recorded_documents(read.documents_file));
    return read;
  });
}

Plan take_plan(JsonReader& reader, const ScenarioSource& source) {
  const Json* plan = reader.take("plan");
  if (plan == nullptr) return {};
  return reading_part(source, reader.at("plan"), [&](const InputError::Where& where) {
    return read_plan(open_part(*plan, "plan", where, /*keep_names=*/false));
  });
}

}  // namespace

Model ScenarioReader::take_model(JsonReader& reader, const ScenarioSource& source) {
  const Json& model = need_model(reader);
  return reading_part(source, reader.at("model"), [&](const InputError::Where& where) {
    return cached(cache_->models, model, "model", where,
                  [](const Json& json, const InputError::Where& at) { return read_model(json, at); });
  });
}

void ScenarioReader::take_parts(JsonReader& reader, const ScenarioSource& source, Scenario& scenario) {
  need_model(reader);  // a missing part is reported before a wrong one
  need_workload(reader);
  scenario.model = take_model(reader, source);
  scenario.workload = take_workload(reader, source);
  scenario.plan = take_plan(reader, source);
}

std::optional<ScenarioReader::Parts> ScenarioReader::read_parts(std::string_view line, const ScenarioSource& source) {
  Cache& cache = *cache_;
  if (!split_members(line, cache.members)) return std::nullopt;
  std::array<std::string_view, kParts> texts;
  try {
    cache.begin_lines(source);
    if (cache.lines.other_sets) return std::nullopt;
    Parts parts;
    for (const JsonMember& member : cache.members) {
      const auto part = std::find(kPartNames.begin(), kPartNames.end(), member.key);
      if (part != kPartNames.end()) {
        texts[static_cast<std::size_t>(part - kPartNames.begin())] = member.text;
        continue;
      }
      const auto comments = documentation_keys();
      if (std::find(comments.begin(), comments.end(), member.key) == comments.end()) return std::nullopt;
      parts.digest += member_digest(member.key, parse_json(member.text, source.file));
    }
    // Reads a part from a document that has only this part, after the --set arguments that write it. `write_out`:
    // returns the part as written_out() has it.
    const auto read = [&]<class Value>(std::shared_ptr<const Value>& into, PartOfLine part,
                                       ReadTexts<Cache::Lines::Part<Value>>& known, auto take, auto write_out) {
      const auto found = known.get(texts[part], [&] {
        const std::string key(kPartNames[part]);
        Json document = Json::object();
        if (!texts[part].empty()) document[key] = parse_json(texts[part], source.file);
        for (const std::string& set : cache.lines.sets_of[part]) apply_set(document, set, source.file);
        JsonReader reader(document, {source.file, ""});
        Value value = take(reader);
        const std::uint64_t digest = document.contains(key) ? member_digest(key, write_out(value, document[key])) : 0;
        return Cache::Lines::Part<Value>{std::move(value), digest};
      });
      parts.digest += found->digest;
      into = {found, &found->value};
    };
    const auto whole = [](const auto& value, const Json&) { return to_json(value); };
    const auto opened = [&](const char* key) {
      return [&source, key](const auto&, const Json& part) {
        Part open = open_part(part, key, {source.file, pointer_to("", key)}, /*keep_names=*/false);
        make_files_absolute(open, open.json);
        return std::move(open.json);
      };
    };
    read(
        parts.model, kModel, cache.lines.models, [&](JsonReader& r) { return take_model(r, source); }, whole);
    read(
        parts.workload, kWorkload, cache.lines.workloads, [&](JsonReader& r) { return take_workload(r, source); },
        opened("workload"));
    read(
        parts.plan, kPlan, cache.lines.plans, [&](JsonReader& r) { return take_plan(r, source); }, opened("plan"));
    read(
        parts.cluster, kCluster, cache.lines.clusters, [&](JsonReader& r) { return take_cluster(r, source); }, whole);
    return parts;
  } catch (const InputError&) {
    return std::nullopt;
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

Scenario ScenarioReader::read(const Json& document, const ScenarioSource& source) {
  return blaming(source, [&] {
    if (has_jobs(document))
      throw InputError({source.file, "/jobs"}, describe(document["jobs"]),
                       "one model, workload and plan: only simulate --engine des takes jobs that share a cluster");
    JsonReader reader(document, {source.file, ""});
    for (const char* key : {"model", "cluster", "workload", "plan", "perturbations"}) reader.take(key);
    reader.finish();  // a mistyped key is reported before what is missing because of it
    Scenario scenario;
    take_parts(reader, source, scenario);
    scenario.cluster = take_cluster(reader, source);
    scenario.perturbations = take_perturbations(reader, source, scenario.cluster);
    return scenario;
  });
}

Job ScenarioReader::read_job(const Json& json, const std::string& pointer, const ScenarioSource& source,
                             const Cluster& cluster) {
  JsonReader reader(json, {source.file, pointer});
  Job job;
  job.pointer = pointer;
  job.scenario.cluster = cluster;
  job.scenario.cluster.name.clear();
  for (const char* key : {"model", "workload", "plan", "nodes"}) reader.take(key);
  reader.field("name", job.name, "name in reports");
  job.placement.visit_fields(reader);
  reader.finish();
  if (!reader.has("nodes")) reader.fail("nodes", "the number of the cluster's nodes that the job uses");
  if (job.name.empty()) reader.fail("name", "a name for the job");
  reader.field("nodes", job.scenario.cluster.nodes, IntegerRange{.least = 1, .most = cluster.nodes}, "");
  take_parts(reader, source, job.scenario);
  return job;
}

JobsDocument ScenarioReader::read_jobs(const Json& document, const ScenarioSource& source) {
  JobsDocument result;
  if (!has_jobs(document)) {
    Job& job = result.jobs.emplace_back();
    job.scenario = read(document, source);
    result.cluster = job.scenario.cluster;
    result.perturbations = std::exchange(job.scenario.perturbations, {});
    return result;
  }
  return blaming(source, [&] {
    JsonReader reader(document, {source.file, ""});
    for (const char* key : {"model", "workload", "plan"})
      if (document.contains(key)) reader.fail(key, "nothing next to \"jobs\": each job has its own");
    const Json& jobs = *reader.take("jobs");
    reader.take("cluster");
    reader.take("perturbations");
    reader.finish();
    if (!jobs.is_array() || jobs.empty()) reader.fail("jobs", "an array of jobs");
    result.cluster = take_cluster(reader, source);
    for (std::size_t i = 0; i < jobs.size(); ++i)
      result.jobs.push_back(read_job(jobs[i], fmt::format("/jobs/{}", i), source, result.cluster));
    check_placements(result.jobs, result.cluster, source.file);
    result.perturbations = take_perturbations(reader, source, result.cluster);
    return result;
  });
}

Cluster ScenarioReader::read_cluster_of(const Json& document, const ScenarioSource& source) {
  return blaming(source, [&] {
    JsonReader reader(document, {source.file, ""});
    return take_cluster(reader, source);
  });
}

Scenario read_scenario(const Json& document, const ScenarioSource& source) {
  return ScenarioReader().read(document, source);
}

Json written_out(const Json& document, const ScenarioSource& source) {
  return blaming(source, [&] {
    const auto write_parts = [&](Json& of, const std::string& pointer) {
      const auto at = [&](const char* key) { return InputError::Where{source.file, pointer_to(pointer, key)}; };
      for (const char* key : {"workload", "plan", "perturbations"})
        if (of.contains(key)) {
          const Part part = open_part(of[key], key, at(key), /*keep_names=*/false);
          of[key] = part.json;
          make_files_absolute(part, of[key]);
        }
      if (!of.contains("model")) return;
      const Part model = open_part(of["model"], "model", at("model"), /*keep_names=*/true);
      of["model"] = to_json(read_model(model.json, model.where));
    };
    Json whole = document;
    write_parts(whole, "");
    whole["cluster"] = to_json(ScenarioReader().read_cluster_of(document, source));
    if (has_jobs(whole))
      for (std::size_t i = 0; i < whole["jobs"].size(); ++i) write_parts(whole["jobs"][i], fmt::format("/jobs/{}", i));
    return whole;
  });
}

}  // namespace orrery
