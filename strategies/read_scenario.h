// Reads a Scenario from a JSON document:
//
//   { "model": "llama-3-70b", "cluster": { "node": "dgx-h100", "nodes": 64 },
//     "workload": { "sequence_length": 8192, "global_batch_size": 512 },
//     "plan": { "tensor_parallel": 8, "pipeline_parallel": 4 } }
//
// Each part is written inline or is a string. A string that ends in .json or contains a '/' is the path of a JSON file,
// relative to the scenario's file. Any other string is the name of a preset. The presets of workloads and plans are
// those of the bundled scenarios. "perturbations" is a list (strategies/perturbations/read_perturbations.h).
//
// Several jobs on one cluster have "jobs" instead of "model", "workload" and "plan":
//
//   { "cluster": { "node": "dgx-h100", "nodes": 8 },
//     "jobs": [ { "name": "a", "model": ..., "workload": ..., "plan": ..., "nodes": 4, "node_stride": 2 },
//               { "name": "b", "model": ..., "workload": ..., "plan": ..., "nodes": 4, "node_stride": 2,
//                 "first_node": 1 } ] }
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/error.h"
#include "strategies/scenario.h"

namespace orrery {

class JsonReader;

// Where a document came from, for error messages.
struct ScenarioSource {
  std::string file;               // "scenario.json", "<stdin>", "scenarios.jsonl:7"
  std::vector<std::string> sets;  // the --set arguments applied to it, "plan.tensor_parallel=4"

  // Returns `error` with its file filled in: the last --set argument that wrote the value at fault, otherwise `file`.
  InputError blame(const InputError& error) const;
  // If `error` is about the file that the value at `pointer` names, returns it with the place that names the file:
  // "plan.json (scenario.json: /plan)". Returns any other error unchanged.
  InputError named_at(const std::string& pointer, const InputError& error) const;
};

// Overrides one value of `document`: "plan.tensor_parallel=4". The part after '=' is JSON, or a string if it is not
// valid JSON. Missing objects on the way are created. If a part on the way is the name of a preset or file, its content
// replaces the name first. `file` is the document's file; paths inside the document are relative to it. A path in
// `argument` is relative to the working directory.
void apply_set(nlohmann::json& document, const std::string& argument, const std::string& file);

// A document that is part of Orrery.
struct BundledDocument {
  std::string name;
  std::string_view path;  // relative to the repository
  std::string_view text;

  nlohmann::json json() const;
};
// The documents in a folder of the repository ("study/sweep/examples/"), by their files' names.
std::vector<BundledDocument> bundled_documents(std::string_view folder);
std::vector<std::string> names_of(std::span<const BundledDocument> documents);
// Returns nullptr if none has the name.
const BundledDocument* find_bundled(std::span<const BundledDocument> documents, std::string_view name);
// The scenarios: strategies/*/example-<name>.json. Some have jobs.
const std::vector<BundledDocument>& bundled_scenarios();

// Loads the document of a bundled one's name, a file's path, or "-" (standard input), applies `sets` in order, fills
// `source`. `kind`: what messages call it, "plan".
nlohmann::json load_document(std::span<const BundledDocument> bundled, std::string_view kind,
                             const std::string& name_or_path, const std::vector<std::string>& sets,
                             ScenarioSource& source);
nlohmann::json load_scenario_document(const std::string& name_or_path, const std::vector<std::string>& sets,
                                      ScenarioSource& source);

// One of the jobs that share a cluster.
struct Job {
  std::string name;  // empty for a scenario of one job
  // Its cluster is the whole cluster with only as many nodes as the job has. It has no perturbations.
  Scenario scenario;
  JobNodes placement;
  std::string pointer;  // the job's place in the document: "/jobs/0"; "" for a scenario of one job

  // Turns an error about `scenario` (pointer "/plan/...") into one about the document (pointer "/jobs/0/plan/...").
  InputError in_document(const InputError& error) const;
};
struct JobsDocument {
  Cluster cluster;  // the whole cluster, which the jobs share
  std::vector<Job> jobs;
  std::vector<Perturbation> perturbations;
};
bool has_jobs(const nlohmann::json& document);

// Reads many documents. It parses each model and cluster once and copies it afterwards. Not thread-safe.
class ScenarioReader {
 public:
  ScenarioReader();
  ~ScenarioReader();

  // All throw InputError with its file filled in. None checks that the parts fit together: check(scenario) does.
  Scenario read(const nlohmann::json& document, const ScenarioSource& source);
  // Checks that placements lie in the cluster and share no node. Without "jobs": one job on the whole cluster.
  JobsDocument read_jobs(const nlohmann::json& document, const ScenarioSource& source);
  // The parts of what read() makes of a document, given as a line of JSON, after `source.sets` (apply_set). A part that
  // an earlier line has written the same way is not parsed again: it is the same object. Returns nothing if the line is
  // wrong, or has jobs, perturbations or comments; the caller then uses read().
  struct Parts {
    std::shared_ptr<const Model> model;
    std::shared_ptr<const Cluster> cluster;
    std::shared_ptr<const Workload> workload;
    std::shared_ptr<const Plan> plan;
    std::uint64_t digest = 0;  // scenario_digest() of the written_out() document
  };
  std::optional<Parts> read_parts(std::string_view line, const ScenarioSource& source);
  // Reads only the "cluster" of a scenario or of jobs.
  Cluster read_cluster_of(const nlohmann::json& document, const ScenarioSource& source);

 private:
  struct Cache;
  std::unique_ptr<Cache> cache_;

  Cluster take_cluster(JsonReader& reader, const ScenarioSource& source);
  Model take_model(JsonReader& reader, const ScenarioSource& source);
  void take_parts(JsonReader& reader, const ScenarioSource& source, Scenario& scenario);
  Job read_job(const nlohmann::json& json, const std::string& pointer, const ScenarioSource& source,
               const Cluster& cluster);
};

// Reads one document, as ScenarioReader::read does.
Scenario read_scenario(const nlohmann::json& document, const ScenarioSource& source);

// Returns the document with the content of all files and presets that it names in their place, the model and cluster in
// full. The result reads as the same scenario from any folder.
nlohmann::json written_out(const nlohmann::json& document, const ScenarioSource& source);

// Returns a digest that tells written_out() documents apart: the sum over members of the digest of name and text
// (sim/base/digest.h), so that shared members are digested once. A routing_file counts by its content.
std::uint64_t scenario_digest(const nlohmann::json& written_out);

}  // namespace orrery
