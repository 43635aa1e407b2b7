#include "study/capacity/capacity_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "models/read_model.h"
#include "sim/base/json_reader.h"
#include "sim/hardware/presets.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

constexpr double kSecondsPerDay = 86400;
constexpr NumberRange kTokens{.least = 1, .most = 1e18};
constexpr NumberRange kDays{.least = 0, .most = 1e5, .exclude_least = true};
constexpr NumberRange kAmount{.least = 0, .most = 1e15, .exclude_least = true};
constexpr IntegerRange kSteps{.least = 1, .most = 1'000'000'000'000};
constexpr const char* kAllCandidates = "all_candidates";

// Pointers of a scenario that was put together are those of the document it was put together from.
InputError in_plan(const InputError& error, const std::string& file, const std::string& candidate, bool own_workload) {
  const InputError::Where& where = error.where();
  if (!where.file.empty() && where.file != file) return error;
  const auto begins = [&](std::string_view part) { return where.pointer.starts_with(part); };
  const bool of_candidate = begins("/cluster") || begins("/plan") || (begins("/workload") && own_workload);
  return {{file, of_candidate ? candidate + where.pointer : where.pointer},
          error.found(),
          error.expected(),
          error.nearest()};
}

class Reading {
 public:
  Reading(const Json& document, const ScenarioSource& source) : document_(document), file_(source.file) {}

  CapacityPlan run() {
    JsonReader reader(document_, {file_, ""});
    for (const char* key : {"model", "workload", kAllCandidates, "candidates", "budget"}) reader.take(key);
    read_task(reader);
    reader.finish();
    const Json* candidates = reader.take("candidates");
    if (candidates == nullptr || !candidates->is_array() || candidates->empty())
      reader.fail("candidates", "an array of the clusters to choose among");
    if (const Json* all = reader.take(kAllCandidates); all != nullptr && !all->is_object())
      reader.fail(kAllCandidates, "an object: values for candidates without their own");
    for (std::size_t i = 0; i < candidates->size(); ++i) read_candidate_at(i, (*candidates)[i]);
    check_alike();
    return std::move(plan_);
  }

 private:
  const Json& document_;
  const std::string file_;
  ScenarioReader scenarios_;
  CapacityPlan plan_;
  std::set<std::string> names_;

  void read_task(JsonReader& reader) {
    reader.field("tokens", plan_.tokens, kTokens, "");
    reader.field("steps", plan_.steps, kSteps, "");
    if (reader.has("steps") == reader.has("tokens"))
      reader.fail("tokens", "either tokens or steps, the length of the training");
    double days = std::numeric_limits<double>::infinity();
    reader.field("deadline_days", days, kDays, "");
    if (const std::optional<double> between = days_between(reader)) days = *between;
    plan_.deadline_seconds = days * kSecondsPerDay;
    reader.object("budget", [&](JsonReader& budget) {
      plan_.budget = {budget.number("amount", kAmount), budget.text("currency")};
      if (!budget.has("amount")) budget.fail("amount", "the amount of money");
      if (plan_.budget->currency.empty()) budget.fail("currency", "the budget's currency, such as USD");
    });
  }

  // From the start to the deadline, where these are given.
  static std::optional<double> days_between(JsonReader& reader) {
    const auto day = [&](const char* key) {
      std::string text;
      reader.field(key, text, "");
      int year = 0;
      unsigned month = 0, day_of_month = 0;
      char rest = 0;
      const bool read =
          text.size() == 10 && std::sscanf(text.c_str(), "%4d-%2u-%2u%c", &year, &month, &day_of_month, &rest) == 3;
      const std::chrono::year_month_day date{std::chrono::year(year), std::chrono::month(month),
                                             std::chrono::day(day_of_month)};
      if (reader.has(key) && !(read && date.ok())) reader.fail(key, "a day, such as 2026-05-31");
      return std::chrono::sys_days(date);
    };
    const auto start = day("start"), deadline = day("deadline");
    if (!reader.has("start") && !reader.has("deadline")) return std::nullopt;
    if (reader.has("deadline_days")) reader.fail("deadline_days", "either it or a start and a deadline, not both");
    for (const char* key : {"start", "deadline"})
      if (!reader.has(key)) reader.fail(key, "a day, such as 2026-05-31: a start and a deadline go together");
    if (deadline <= start) reader.fail("deadline", "a day after the start");
    return static_cast<double>((deadline - start).count());
  }

  void read_candidate_at(std::size_t i, const Json& own) {
    const std::string pointer = fmt::format("/candidates/{}", i);
    if (!own.is_object()) throw InputError({file_, pointer}, describe(own), "an object: a cluster to choose");
    Json merged = document_.contains(kAllCandidates) ? document_[kAllCandidates] : Json::object();
    merged.update(own);
    try {
      read_cluster_of(merged, pointer);
    } catch (const InputError& error) {
      // What was written for all candidates is at fault there.
      InputError::Where where = error.where();
      if ((!where.file.empty() && where.file != file_) || !where.pointer.starts_with(pointer + "/")) throw;
      const std::string rest = where.pointer.substr(pointer.size() + 1);
      const std::string key = rest.substr(0, rest.find('/'));
      if (own.contains(key) || !merged.contains(key)) throw;
      throw InputError({file_, fmt::format("/{}/{}", kAllCandidates, rest)}, error.found(), error.expected(),
                       error.nearest());
    }
  }

  void read_cluster_of(const Json& json, const std::string& pointer) {
    CandidateCluster cluster;
    cluster.pointer = pointer;
    if (json.contains("step_seconds")) {
      read_measured(json, pointer, cluster);
    } else {
      JsonReader reader(json, {file_, pointer});
      reader.field("name", cluster.name, "");
      cluster.pattern = pattern_of(reader, json, pointer);
      read_operations(reader, cluster.pattern->cluster.node.devices, cluster.whole);
      check_device(reader, cluster);
      cluster.checkpoint_bytes_given = reader.has("checkpoint_bytes");
      if (reader.has("spare_nodes")) {
        cluster.spare_nodes = 0;
        reader.field("spare_nodes", *cluster.spare_nodes, degree(0), "");
      }
      read_devices(reader, cluster);
      reader.finish();
      cluster.whole.name = cluster.name;
    }
    if (cluster.name.empty()) throw InputError({file_, pointer + "/name"}, "nothing", "a name for reports");
    if (!names_.insert(cluster.name).second)
      throw InputError({file_, pointer + "/name"}, describe(cluster.name), "a name that no other candidate has");
    plan_.clusters.push_back(std::move(cluster));
  }

  void read_measured(const Json& json, const std::string& pointer, CandidateCluster& cluster) {
    Json whole = json;
    if (plan_.tokens > 0) whole["tokens"] = plan_.tokens;
    if (plan_.steps > 0) whole["steps"] = plan_.steps;
    for (const char* key : {"tokens", "steps"})
      if (json.contains(key))
        throw InputError({file_, pointer_to(pointer, key)}, describe(json[key]),
                         "nothing: it belongs to the whole plan");
    cluster.whole = read_candidate(whole, {file_, pointer});
    cluster.name = cluster.whole.name;
    cluster.devices = {cluster.whole.run.devices};
    cluster.checkpoint_bytes_given = true;
    if (json.contains("spare_nodes")) cluster.spare_nodes = cluster.whole.run.spare_nodes;
  }

  Scenario pattern_of(JsonReader& reader, const Json& json, const std::string& pointer) {
    const Json* named = reader.take("scenario");
    for (const char* key : {"cluster", "plan", "workload"})
      if (reader.take(key) != nullptr && named != nullptr)
        reader.fail(key, "nothing next to a scenario, which has its own");
    if (named == nullptr) return put_together(json, pointer);
    for (const char* key : {"model", "workload"})
      if (document_.contains(key))
        throw InputError({file_, std::string("/") + key}, describe(document_[key]),
                         fmt::format("nothing next to {}/scenario, which has its own", pointer));
    if (named->is_object()) {
      try {
        return scenarios_.read(*named, {file_, {}});
      } catch (const InputError& error) {
        if (error.where().file != file_) throw;
        throw InputError({file_, pointer + "/scenario" + error.where().pointer}, error.found(), error.expected(),
                         error.nearest());
      }
    }
    if (!named->is_string()) reader.fail("scenario", "a scenario: its name, file or object");
    return from_elsewhere(named->get<std::string>(), reader.at("scenario"));
  }

  Scenario from_elsewhere(std::string name, const InputError::Where& where) {
    const bool is_path = name.ends_with(".json") || name.find('/') != std::string::npos;
    if (is_path) name = (std::filesystem::path(file_).parent_path() / name).string();
    ScenarioSource source;
    Json document;
    try {
      document = load_scenario_document(name, {}, source);
    } catch (const InputError& error) {
      std::error_code ignored;
      if (is_path && std::filesystem::exists(name, ignored)) throw;
      throw InputError(where, describe(Json(name)), "a bundled scenario's name (orrery list scenarios) or its file",
                       error.nearest());
    }
    return scenarios_.read(document, source);
  }

  Scenario put_together(const Json& json, const std::string& pointer) {
    const bool own_workload = json.contains("workload");
    Json scenario = Json::object();
    for (const char* key : {"model", "workload"})
      if (document_.contains(key)) scenario[key] = document_[key];
    for (const char* key : {"cluster", "plan", "workload"})
      if (json.contains(key)) scenario[key] = json[key];
    if (!json.contains("cluster"))
      throw InputError({file_, pointer + "/cluster"}, "nothing",
                       "a cluster (and a plan), a scenario, or measured step_seconds");
    try {
      return scenarios_.read(scenario, {file_, {}});
    } catch (const InputError& error) {
      throw in_plan(error, file_, pointer, own_workload);
    }
  }

  // A device that is no preset's may be priced as the one that it is like.
  static void check_device(const JsonReader& reader, const CandidateCluster& cluster) {
    const std::string& device = cluster.pattern->cluster.device.name;
    const std::vector<std::string> presets = device_names();
    if (std::find(presets.begin(), presets.end(), device) == presets.end()) return;
    for (const auto& [key, of] :
         {std::pair("price", &cluster.whole.price.device), std::pair("power", &cluster.whole.power.device)})
      if (!of->empty() && *of != device)
        throw InputError(reader.at(key), fmt::format("that of {}", *of),
                         fmt::format("that of {}, the cluster's device", device));
  }

  void read_devices(JsonReader& reader, CandidateCluster& cluster) {
    const Json* devices = reader.take("devices");
    const Scenario& pattern = *cluster.pattern;
    if (devices == nullptr) {
      cluster.devices = {pattern.cluster.devices()};
    } else if (devices->is_object()) {
      JsonReader range(*devices, reader.at("devices"));
      std::int64_t least = 1, most = 0;
      range.field("least", least, degree(), "");
      range.field("most", most, degree(), "");
      range.finish();
      if (!range.has("most")) range.fail("most", "the largest number of devices to try");
      if (most < least) range.fail("most", fmt::format("at least least, {}", least));
      cluster.devices = sizes_between(pattern, least, most);
      if (cluster.devices.empty())
        reader.fail("devices", fmt::format("a range with a number of whole nodes ({} devices each) and whole replicas "
                                           "({} devices each) over which the batch of {} divides",
                                           pattern.cluster.node.devices, model_parallel_ranks(pattern.plan),
                                           pattern.workload.global_batch_size));
    } else if (devices->is_array()) {
      reader.field("devices", cluster.devices, degree(), "");
      if (cluster.devices.empty()) reader.fail("devices", "at least one number of devices");
    } else {
      std::int64_t only = 0;
      reader.field("devices", only, degree(), "");
      cluster.devices = {only};
    }
    std::sort(cluster.devices.begin(), cluster.devices.end());
    cluster.devices.erase(std::unique(cluster.devices.begin(), cluster.devices.end()), cluster.devices.end());
  }

  static std::vector<std::int64_t> sizes_between(const Scenario& pattern, std::int64_t least, std::int64_t most) {
    const std::int64_t replica = model_parallel_ranks(pattern.plan), node = pattern.cluster.node.devices;
    const std::int64_t share = pattern.plan.batch.micro_batch_size;
    std::vector<std::int64_t> sizes;
    for (std::int64_t replicas = 1; replicas <= most / replica; ++replicas) {
      const std::int64_t devices = replicas * replica;
      if (devices >= least && devices % node == 0 && pattern.workload.global_batch_size % (replicas * share) == 0)
        sizes.push_back(devices);
    }
    return sizes;
  }

  void check_alike() {
    const CandidateCluster* modelled = nullptr;
    for (const CandidateCluster& cluster : plan_.clusters) {
      const std::string& currency = cluster.whole.price.currency;
      if (plan_.currency.empty()) plan_.currency = currency;
      if (currency != plan_.currency)
        throw InputError({file_, cluster.pointer + "/price"}, fmt::format("a price in {}", currency),
                         fmt::format("one in {}, the currency of {}", plan_.currency, plan_.clusters.front().name));
      if (!cluster.pattern) continue;
      if (modelled == nullptr) modelled = &cluster;
      const Model &first = modelled->pattern->model, &here = cluster.pattern->model;
      if (to_json(first) != to_json(here))
        throw InputError({file_, cluster.pointer}, fmt::format("a training of {}", here.name),
                         fmt::format("one of {}, the model of {}", first.name, modelled->name));
    }
    if (plan_.budget && plan_.budget->currency != plan_.currency)
      throw InputError({file_, "/budget/currency"}, describe(plan_.budget->currency),
                       fmt::format("{}, in which the prices are", plan_.currency));
  }
};

}  // namespace

CapacityPlan read_capacity_plan(const Json& document, const ScenarioSource& source) {
  try {
    return Reading(document, source).run();
  } catch (const InputError& error) {
    throw source.blame(error);
  }
}

std::vector<BundledDocument> bundled_plans() { return bundled_documents("study/capacity/examples/"); }

}  // namespace orrery
