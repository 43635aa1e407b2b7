#include "study/galvatron/profile.h"

#include <fmt/format.h>

#include <bit>
#include <nlohmann/json.hpp>

#include "sim/base/json_reader.h"
#include "sim/base/words.h"

namespace orrery::galvatron {
namespace {

using Json = nlohmann::json;

constexpr NumberRange kAnyAmount{.least = 0, .most = 1e6};
constexpr NumberRange kFactor{.least = 0, .most = 1e3, .exclude_least = true};
constexpr NumberRange kPositive{.least = 1e-6, .most = 1e6};
constexpr IntegerRange kDevices{.least = 1, .most = 1024};
constexpr IntegerRange kLayerCount{.least = 1, .most = 10'000};
constexpr IntegerRange kLength{.least = 1, .most = std::int64_t{1} << 30};
constexpr IntegerRange kBatch{.least = 1, .most = std::int64_t{1} << 20};

bool is_power_of_two(std::int64_t value) { return value > 0 && std::has_single_bit(static_cast<std::uint64_t>(value)); }

void need_fields(const JsonReader& reader, std::initializer_list<const char*> names, const char* expected) {
  for (const char* name : names)
    if (!reader.has(name)) reader.fail(name, expected);
}

// {"1": 94.07, "2": 52.475}: a value for each power of two up to `most`.
std::map<std::int64_t, double> by_degree(JsonReader& reader, const char* name, const char* what, std::int64_t least,
                                         std::int64_t most) {
  std::map<std::int64_t, double> values;
  reader.object(
      name,
      [&](JsonReader& of) {
        for (std::int64_t degree = 1; degree <= kDevices.most; degree *= 2) {
          const std::string key = std::to_string(degree);
          if (of.has(key.c_str())) values[degree] = of.number(key.c_str(), kPositive);
          if (degree >= least && degree <= most && !values.contains(degree))
            of.fail(key, fmt::format("{} for degree {}", what, degree));
        }
      },
      "an object with a value for each degree");
  return values;
}

Cluster cluster_of(const Json& json, const InputError::Where& where) {
  Cluster cluster;
  JsonReader reader(json, where);
  reader.field("devices", cluster.devices, kDevices, "");
  if (!is_power_of_two(cluster.devices)) reader.fail("devices", "a power of two: GPUs of the cluster");
  reader.object(
      "estimator",
      [&](JsonReader& of) {
        cluster.estimator.visit_fields(of);
        need_fields(of, {"backward_to_forward", "overlap_slowdown", "seconds_per_ms", "state_copies"},
                    "a number above 0: the estimator has no defaults");
      },
      "an object: constants of the estimator");
  reader.each("all_reduce", "an array of measured all-reduces", [&](JsonReader& of) {
    std::int64_t pipeline = 0, ranks = 0;
    bool consecutive = false;
    of.field("pipeline", pipeline, kDevices, "");
    of.field("ranks", ranks, kDevices, "");
    of.field("consecutive", consecutive, "");
    need_fields(of, {"pipeline", "ranks", "consecutive", "ms_per_mib"}, "a value: it says what was measured");
    const double value = of.number("ms_per_mib", {.least = 0, .most = kAnyAmount.most, .exclude_least = true});
    if (!cluster.all_reduce.emplace(std::tuple(pipeline, ranks, consecutive), value).second)
      of.fail("ranks", "a group that no other entry has");
  });
  for (std::int64_t pipeline = 1; pipeline <= cluster.devices; pipeline *= 2)
    for (std::int64_t whole = cluster.devices / pipeline, ranks = whole; ranks > 1; ranks /= 2)
      for (const bool consecutive : {false, true})
        if ((consecutive || ranks < whole) && !cluster.all_reduce.contains({pipeline, ranks, consecutive}))
          throw InputError(
              {where.file, pointer_to(where.pointer, "all_reduce")},
              fmt::format("no entry with pipeline {}, ranks {}, consecutive {}", pipeline, ranks, consecutive),
              "one for each group that divides a stage");
  if (reader.has("send_ms_per_mib"))
    cluster.send = by_degree(reader, "send_ms_per_mib", "milliseconds per MiB", 2, cluster.devices);
  reader.finish();
  return cluster;
}

Layers layers_of(JsonReader& reader, std::int64_t devices) {
  Layers layers;
  layers.visit_fields(reader);
  need_fields(reader, {"name", "count", "parameters_mib", "forward_ms_per_sample", "sequence", "hidden"},
              "a value: layers have no defaults");
  layers.activation_mib_per_sample =
      by_degree(reader, "activation_mib_per_sample", "MiB of activations of a sample", 1, devices);
  return layers;
}

MicroBatchRule rule_of(JsonReader& reader) {
  MicroBatchRule rule;
  rule.visit_fields(reader);
  if ((rule.count > 0) == (rule.samples_each > 0))
    reader.fail("count", "either a count or samples_each, the samples of a micro-batch");
  return rule;
}

}  // namespace

void Estimator::visit_fields(FieldVisitor& v) {
  v.field("backward_to_forward", backward_to_forward, kFactor, "time of a backward pass over a forward pass's");
  v.field("overlap_slowdown", overlap_slowdown, {.least = 1, .most = 10},
          "slowdown of computation and of communication while they overlap");
  v.field("seconds_per_ms", seconds_per_ms, kFactor, "seconds for which a measured millisecond counts");
  v.field("boundary_mib_per_sample", boundary_mib_per_sample, kAnyAmount, "MiB of a sample that a change moves");
  v.field("leaving_sharded_seconds", leaving_sharded_seconds, kAnyAmount, "price of a change from sharded to not");
  v.field("state_copies", state_copies, kFactor, "states over parameters, in memory");
  v.field("sharded_extra", sharded_extra, {.least = 0, .most = 1}, "sharded states are 1/data + this");
  v.field("sharded_overlapped", sharded_overlapped, {.least = 0, .most = 2},
          "sharded: bytes of an all-reduce that overlap with the backward pass");
  v.field("exposed_gathers", exposed_gathers, {.least = 0, .most = 3},
          "sharded: all-gathers of parameters that overlap with nothing");
  v.field("stages_reduce_together", stages_reduce_together,
          "in a pipeline without tensor parallelism, one stage's rest of an all-reduce counts");
  v.field("context_mib", context_mib, kAnyAmount, "memory of the framework");
  v.field("context_on_every_stage", context_on_every_stage, "it counts on each stage, not only on the first");
  v.field("stages_by_whole", stages_by_whole, "stages are divided by the memory outside layers without a pipeline");
}

void Layers::visit_fields(FieldVisitor& v) {
  v.field("name", name, "what the layers are called");
  v.field("count", count, kLayerCount, "layers");
  v.field("decoder", decoder, "they have cross attention");
  v.field("parameters_mib", parameters_mib, kAnyAmount, "parameters of a layer, in fp32");
  v.field("forward_ms_per_sample", forward_ms_per_sample, kAnyAmount, "measured without tensor parallelism");
  v.field("sequence", sequence, kLength, "positions of a sample");
  v.field("hidden", hidden, kLength, "width of the residual stream");
}

void MicroBatchRule::visit_fields(FieldVisitor& v) {
  v.field("pipeline", pipeline, kDevices, "pipeline degrees for which the rule holds");
  v.field("data", data, kDevices, "data degrees for which it holds");
  v.field("from", from, kAnyAmount, "fewest samples of a replica");
  v.field("below", below, kAnyAmount, "fewer samples than this");
  v.field("at_most", at_most, kAnyAmount, "most samples");
  v.field("count", count, kAnyAmount, "micro-batches");
  v.field("samples_each", samples_each, kAnyAmount, "samples of a micro-batch");
  v.field("plus", plus, kAnyAmount, "micro-batches besides");
  v.field("whole", whole, "whole samples of a tensor rank, in whole micro-batches");
}

void EndMemory::visit_fields(FieldVisitor& v) {
  v.field("states_mib", states_mib, kAnyAmount, "parameters, gradients and optimizer states");
  v.field("activation_mib_per_sample", activation_mib_per_sample, kAnyAmount, "activations of a sample");
  v.field("over_stages", over_stages, "activations are divided by the number of stages");
  v.field("spared_mib_per_sample", spared_mib_per_sample, kAnyAmount, "what micro-batches spare");
}

double Cluster::all_reduce_ms_per_mib(std::int64_t pipeline, std::int64_t ranks, bool consecutive) const {
  if (ranks == 1) return 0;
  return all_reduce.at({pipeline, ranks, consecutive || ranks == devices / pipeline});
}

std::int64_t Profile::layer_count() const {
  std::int64_t count = 0;
  for (const Layers& of : layers) count += of.count;
  return count;
}

std::vector<BundledDocument> bundled_profiles() { return bundled_documents("study/galvatron/profiles/"); }
std::vector<BundledDocument> bundled_clusters() { return bundled_documents("study/galvatron/clusters/"); }

Profile read_profile(const Json& given, const std::string& file) {
  Json document = given;
  if (given.is_object() && given.contains("base")) {
    const std::vector<BundledDocument> all = bundled_profiles();
    const std::string name = JsonReader(given, {file, ""}).text("base");
    const BundledDocument* const base = find_bundled(all, name);
    if (base == nullptr)
      throw InputError({file, "/base"}, "\"" + name + "\"", "a bundled profile", nearest_name(name, names_of(all)));
    document = base->json();
    document.merge_patch(given);
    document.erase("base");
  }

  Profile profile;
  JsonReader reader(document, {file, ""});
  const Json& cluster = reader.need("cluster", "an object, or a bundled cluster's name");
  if (cluster.is_string()) {
    const std::vector<BundledDocument> all = bundled_clusters();
    const std::string name = cluster.get<std::string>();
    const BundledDocument* const found = find_bundled(all, name);
    if (found == nullptr)
      throw InputError({file, "/cluster"}, "\"" + name + "\"", "a bundled cluster, or an object",
                       nearest_name(name, names_of(all)));
    profile.cluster = cluster_of(found->json(), {std::string(found->path), ""});
  } else {
    profile.cluster = cluster_of(cluster, {file, "/cluster"});
  }
  reader.each("layers", "an array of kinds of layers",
              [&](JsonReader& of) { profile.layers.push_back(layers_of(of, profile.cluster.devices)); });
  if (profile.layers.empty()) reader.fail("layers", "a kind of layers");
  reader.field("batch_step", profile.batch_step, kBatch, "");
  if (!reader.has("batch_step")) reader.fail("batch_step", "samples by which batches grow");
  reader.field("mean_over_layers", profile.mean_over_layers, {.least = 0, .most = kLayerCount.most}, "");
  profile.reduction_ms = reader.number("reduction_ms", kAnyAmount);
  reader.each("micro_batches", "an array of rules for micro-batches",
              [&](JsonReader& of) { profile.micro_batches.push_back(rule_of(of)); });
  const auto holds_always = [](const MicroBatchRule& r) {
    return r.pipeline.empty() && r.data.empty() && r.from == 0 && r.below == 0 && r.at_most == 0;
  };
  if (profile.micro_batches.empty() || !holds_always(profile.micro_batches.back()))
    reader.fail("micro_batches", "rules of which the last has no condition");
  reader.object("outside_layers", [&](JsonReader& of) {
    for (const auto& [name, end] :
         {std::pair("whole", &profile.whole), {"first", &profile.first}, {"last", &profile.last}})
      of.object(name, [&, its = end](JsonReader& memory) { its->visit_fields(memory); });
  });
  profile.most_over_mean = reader.number("most_over_mean", or_none({.least = 1, .most = 100}));
  reader.finish();
  return profile;
}

void set_layer_counts(Profile& profile, const std::vector<std::int64_t>& counts) {
  if (counts.size() != profile.layers.size())
    throw InputError({}, fmt::format("{} counts", counts.size()),
                     fmt::format("{}, one for each kind of layers", profile.layers.size()));
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] < kLayerCount.least || counts[i] > kLayerCount.most)
      throw InputError({}, std::to_string(counts[i]), fmt::format("1 to {} layers", kLayerCount.most));
    profile.layers[i].count = counts[i];
  }
}

}  // namespace orrery::galvatron
