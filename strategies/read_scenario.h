// From a JSON document to a Scenario:
//
//   { "model": "llama-3-70b", "cluster": { "node": "dgx-h100", "nodes": 64 },
//     "workload": { "sequence_length": 8192, "global_batch_size": 512 },
//     "plan": { "tensor_parallel": 8, "pipeline_parallel": 4 } }
//
// Each part is written inline, or is a string: the path of a JSON file when it ends in .json or contains a '/'
// (relative to the scenario's file), else the name of a preset. A workload or plan has the presets of the bundled
// scenarios. "perturbations" is a list (strategies/perturbations/read_perturbations.h).
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
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/error.h"
#include "strategies/scenario.h"

namespace orrery {

class JsonReader;

// Where a document came from: what messages name.
struct ScenarioSource {
  std::string file;               // "scenario.json", "<stdin>", "scenarios.jsonl:7"
  std::vector<std::string> sets;  // the --set arguments applied to it, "plan.tensor_parallel=4"

  // The error with its file filled in: of the last --set that wrote the value at fault, else this file.
  InputError blame(const InputError& error) const;
  // An error of the file that the value at `pointer` names, with who names it: "plan.json (scenario.json: /plan)". Any
  // other as it is.
  InputError named_at(const std::string& pointer, const InputError& error) const;
};

// Overrides one value: "plan.tensor_parallel=4". The part after '=' is JSON, or else a string. Objects on the way are
// created; a part that is a preset's name or a file is opened up first. `file` is the document's, to which paths in it
// are relative; a path in `argument` is relative to the working directory.
void apply_set(nlohmann::json& document, const std::string& argument, const std::string& file);

// The document of a bundled scenario's name, a path, or "-" (standard input), with `sets` applied in order. Fills
// `source`.
nlohmann::json load_scenario_document(const std::string& name_or_path, const std::vector<std::string>& sets,
                                      ScenarioSource& source);

// One of the jobs that share a cluster.
struct Job {
  std::string name;   // a plain scenario's is empty
  Scenario scenario;  // its cluster: as many nodes as the job has, all else as in the whole; no perturbations
  Placement placement;
  std::string pointer;  // where it stands in the document: "/jobs/0"; "" for a plain scenario

  // An error about `scenario` (pointer "/plan/...") as one about the document ("/jobs/0/plan/...").
  InputError in_document(const InputError& error) const;
};
struct JobsDocument {
  Cluster cluster;  // the whole
  std::vector<Job> jobs;
  std::vector<Perturbation> perturbations;
};
bool has_jobs(const nlohmann::json& document);

// Reads many documents; models and clusters that were read before are copied, not parsed again. Not thread-safe.
class ScenarioReader {
 public:
  ScenarioReader();
  ~ScenarioReader();

  // All throw InputError, its file already filled in. None checks that the parts fit together: check(scenario) does.
  Scenario read(const nlohmann::json& document, const ScenarioSource& source);
  // Placements lie within the cluster and share no node. A plain scenario is one job on its whole cluster.
  JobsDocument read_jobs(const nlohmann::json& document, const ScenarioSource& source);
  // A scenario of many, each a line of JSON: what read() makes of the line's document after `source.sets` (apply_set).
  // Model, cluster, workload and plan that stand in the line as in an earlier one are not parsed again. Null where it
  // takes read() to tell, because the line is wrong, or no plain scenario (jobs, perturbations, comments inside); else
  // the caller's until the next line is read.
  struct Line {
    Scenario scenario;
    std::int64_t cluster = 0;  // a number of its own for each cluster as it was written
    std::uint64_t digest = 0;  // scenario_digest() of the document, written out
  };
  Line* read_line(std::string_view line, const ScenarioSource& source);
  // The "cluster" of a scenario or of jobs; the rest is not read.
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

// The same for a single document.
Scenario read_scenario(const nlohmann::json& document, const ScenarioSource& source);

// The document with everything in it that it names: parts in files, its model and cluster in full. Reads as the same
// scenario from any folder.
nlohmann::json written_out(const nlohmann::json& document, const ScenarioSource& source);

// Tells scenarios apart that are written out: the sum, over the members, of the digests of their names and texts
// (sim/base/digest.h), so that what many lines have in common is worked out once. A routing_file counts by its content.
std::uint64_t scenario_digest(const nlohmann::json& written_out);

// Scenarios that come with Orrery: strategies/*/example-<name>.json; some hold jobs.
struct BundledScenario {
  std::string name;
  std::string_view path;  // in the repository
  std::string_view text;
};
std::vector<BundledScenario> bundled_scenarios();

}  // namespace orrery
