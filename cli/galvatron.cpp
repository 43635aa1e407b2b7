// orrery galvatron: layers with plans of their own, found by Galvatron's planner and cost model.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/output.h"
#include "sim/base/json_writer.h"
#include "sim/base/words.h"
#include "sim/report/format.h"
#include "study/galvatron/planner.h"

namespace orrery {
namespace {

using Json = nlohmann::ordered_json;

struct GalvatronArguments {
  std::string profile;
  std::vector<std::string> sets;
  std::string layers, batches, system = "dp+sdp+tp+pp", hybrid;
  double memory_gib = 0;
  std::string json, csv;
};

constexpr const char* kGalvatronExamples = R"(Examples:
  orrery galvatron bert-huge-8-titan --memory 12                    the authors' profile and its best plan
  orrery galvatron t5-large-16-titan --memory 16 --layers 24,24     another depth, a count for each kind of layers
  orrery galvatron bert-huge-8-titan --memory 12 --system dp+tp     a system that has only these dimensions
  orrery galvatron bert-huge-8-titan --memory 12 --hybrid '2-2*-2'  all layers alike
  orrery galvatron profile.json --memory 40 --csv -                 your own measurements

Exit codes: 0 done; 1 nothing fits; 2 the input cannot be used.)";

constexpr std::int64_t kMibPerGib = 1024;

std::vector<std::int64_t> counts_of(const std::string& text, const char* option) {
  std::vector<std::int64_t> counts;
  for (const std::string& part : list_of_text(text)) {
    const std::optional<std::int64_t> count = number_of(part);
    if (!count || *count < 1) throw InputError({option, ""}, "\"" + part + "\"", "whole numbers, such as 8,16");
    counts.push_back(*count);
  }
  return counts;
}

template <class Read>
auto from_option(const char* option, Read read) {
  try {
    return read();
  } catch (const InputError& error) {
    throw error.in_file(option);
  }
}

std::string split_text(const galvatron::FoundHybrids& found) {
  std::string text;
  for (const galvatron::StagePlan& stage : found.stages)
    text += fmt::format("{}{}", text.empty() ? "" : "/", stage.layers.size());
  return text;
}

// Equal stages are shown once.
std::string stages_text(const galvatron::FoundHybrids& found) {
  std::string text;
  for (std::size_t i = 0; i < found.stages.size(); ++i) {
    if (i > 0 && found.stages[i].layers == found.stages[i - 1].layers) continue;
    text += (text.empty() ? "" : " | ") + galvatron::runs_text(found.stages[i].layers);
  }
  return text;
}

std::string memory_text(const galvatron::FoundHybrids& found) {
  std::string text;
  for (std::size_t i = 0; i < found.stages.size(); ++i) {
    if (i > 0 && found.stages[i].memory_mib == found.stages[i - 1].memory_mib) continue;
    text += fmt::format("{}{:.2f}", text.empty() ? "" : "/",
                        static_cast<double>(found.stages[i].memory_mib) / static_cast<double>(kMibPerGib));
  }
  return text;
}

std::string table_of(const galvatron::PlannerResult& result, std::size_t hybrids, std::int64_t unpruned) {
  std::string text = fmt::format("Hybrids: {} of the {} in the decision tree\n\n", hybrids, unpruned);
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < result.by_pipeline.size(); ++i) {
    const galvatron::PipelineResult& of = result.by_pipeline[i];
    std::vector<std::string>& cells = rows.emplace_back();
    cells.push_back(fmt::format("{}{}", of.pipeline, result.best == i ? " *" : ""));
    if (of.best) {
      cells.insert(cells.end(),
                   {std::to_string(of.best->batch), std::to_string(of.best->micro_batches),
                    seconds_text(of.best->step_seconds), fmt::format("{:.2f}", of.best->samples_per_second()),
                    memory_text(*of.best), split_text(*of.best), stages_text(*of.best)});
    } else {
      cells.insert(cells.end(), {"-", "-", "-", "does not fit", "-", "-", "-"});
    }
  }
  return text + grid("<stages|batch|micro-batches|step|samples/s|GiB|<layers|<hybrids", rows);
}

Json json_of(const galvatron::PlannerResult& result) {
  Json rows = Json::array();
  for (std::size_t i = 0; i < result.by_pipeline.size(); ++i) {
    const galvatron::PipelineResult& of = result.by_pipeline[i];
    Json row{{"pipeline", of.pipeline}, {"best", result.best == i}, {"fits", of.best.has_value()}};
    if (of.best) {
      row["batch"] = of.best->batch;
      row["micro_batches"] = of.best->micro_batches;
      row["step_seconds"] = of.best->step_seconds;
      row["samples_per_second"] = of.best->samples_per_second();
      Json& stages = row["stages"] = Json::array();
      for (const galvatron::StagePlan& stage : of.best->stages) {
        Json layers = Json::array();
        for (const galvatron::Hybrid& hybrid : stage.layers) layers.push_back(text_of(hybrid));
        stages.push_back({{"memory_mib", stage.memory_mib}, {"layers", std::move(layers)}});
      }
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string csv_of(const galvatron::PlannerResult& result) {
  std::string text = "pipeline,best,batch,micro_batches,step_seconds,samples_per_second,stage,memory_mib,hybrids\n";
  for (std::size_t i = 0; i < result.by_pipeline.size(); ++i) {
    if (!result.by_pipeline[i].best) continue;
    const galvatron::FoundHybrids& found = *result.by_pipeline[i].best;
    for (std::size_t stage = 0; stage < found.stages.size(); ++stage)
      text += fmt::format("{},{},{},{},{},{},{},{},{}\n", found.pipeline, result.best == i, found.batch,
                          found.micro_batches, found.step_seconds, found.samples_per_second(), stage,
                          found.stages[stage].memory_mib, csv_text(galvatron::runs_text(found.stages[stage].layers)));
  }
  return text;
}

// Why nothing fits.
std::string shortage_text(const std::optional<galvatron::Shortage>& why) {
  if (!why) return "\nNo pipeline degree has stages whose GPUs divide the batch and that all have a layer.\n";
  return fmt::format(
      "\nStage {} of {} takes at least {} MiB at batch {}: {} layers, of which one of \"{}\" takes {}, and {} "
      "outside the layers.\n",
      why->stage + 1, why->pipeline, why->least_mib, why->batch, why->layers, why->largest, why->largest_mib,
      why->outside_mib);
}

void plan_by_galvatron(const GalvatronArguments& arguments) {
  check_outputs({arguments.json, arguments.csv});
  ScenarioSource source;
  galvatron::Profile profile = galvatron::read_profile(
      load_document(galvatron::bundled_profiles(), "profile", arguments.profile, arguments.sets, source), source.file);
  if (!arguments.layers.empty())
    from_option("--layers", [&] { set_layer_counts(profile, counts_of(arguments.layers, "--layers")); });
  const std::int64_t devices = profile.cluster.devices;
  std::vector<galvatron::Hybrid> space = galvatron::hybrids(
      devices, from_option("--system", [&] { return galvatron::read_dimensions(arguments.system); }));
  if (!arguments.hybrid.empty()) {
    const galvatron::Hybrid only = from_option("--hybrid", [&] { return galvatron::read_hybrid(arguments.hybrid); });
    if (only.pipeline * only.ranks() != devices)
      throw InputError({"--hybrid", ""}, arguments.hybrid,
                       fmt::format("degrees whose product is {}, the GPUs", devices));
    space = {only};
  }
  ProgressLine progress;
  galvatron::PlannerOptions options{
      .memory_mib = static_cast<std::int64_t>(arguments.memory_gib * static_cast<double>(kMibPerGib)),
      .batches = {},
      .progress = [&](std::int64_t batch) { progress.show(fmt::format("batch {}", batch)); }};
  if (!arguments.batches.empty()) options.batches = counts_of(arguments.batches, "--batches");
  const galvatron::PlannerResult result = search(profile, space, options);
  progress.clear();
  Outputs outputs;
  outputs.add_wanted(arguments.json, [&] { return json_text(json_of(result), 2) + "\n"; });
  outputs.add_wanted(arguments.csv, [&] { return csv_of(result); });
  outputs.commit_with([&] {
    std::string text = table_of(result, space.size(), galvatron::unpruned_hybrids(devices));
    if (!result.best)
      text += shortage_text(result.first_batch > 0 ? shortage(profile, space, result.first_batch) : std::nullopt);
    return text;
  });
  if (!result.best) throw Exit{1};
}

}  // namespace

void add_galvatron(Command app) {
  const auto [command, arguments] = app.declare<GalvatronArguments>(
      "galvatron", "Which hybrid of parallelism each layer gets under a memory budget, by Galvatron's estimate",
      kGalvatronExamples, plan_by_galvatron);
  command
      .add_option("PROFILE", arguments.profile,
                  "Measured layers and links: a file, - for standard input, or a bundled profile")
      .required()
      .offers_names({"profiles"})
      .offers_files();
  command.add_option("--memory", arguments.memory_gib, "Memory of a GPU that may be used", "GIB")
      .required()
      .within(1, 1024);
  command.add_several("--set", arguments.sets, "Override a field of the profile: batch_step=32", "KEY=VALUE");
  command.add_option("--layers", arguments.layers, "Number of layers of each kind [the profile's]", "N,...");
  command.add_option("--batches", arguments.batches, "Batches to try [multiples of batch_step until nothing fits]",
                     "N,...");
  command.add_option("--system", arguments.system, "Dimensions that the system has: some of dp, sdp, tp, pp", "DIM+DIM")
      .capture_default();
  command.add_option("--hybrid", arguments.hybrid,
                     "Give all layers this hybrid: pipeline-tensor-data, f: sharded, *: neighbours", "P-T-D");
  command.add_file("--json", arguments.json, "Write the plans with all layers as JSON; - for standard output");
  command.add_file("--csv", arguments.csv, "Write a row for each stage as CSV; - for standard output");
}

}  // namespace orrery
