#include "cli/simulation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "sim/analytical/engine.h"
#include "sim/cost/calibration.h"
#include "sim/cost/collective_calibration.h"
#include "strategies/framework/framework.h"
#include "strategies/lower.h"

namespace orrery {
namespace {

// "name value" of every field.
class FieldTexts final : public FieldVisitor {
 public:
  struct Field {
    std::string text, value;
  };
  std::vector<Field> fields;

 protected:
  void add(const char* name, const std::string& value) { fields.push_back({fmt::format("{} {}", name, value), value}); }
  void integer(const char* name, std::int64_t& value, IntegerRange, const char*) override {
    add(name, std::to_string(value));
  }
  void number(const char* name, double& value, NumberRange, const char*) override {
    add(name, fmt::format("{}", value));
  }
  void boolean(const char* name, bool& value, const char*) override {
    fields.push_back({value ? name : fmt::format("no {}", name), value ? "true" : "false"});
  }
  void text(const char* name, std::string& value, const char*) override { add(name, value); }
  void integers(const char* name, std::vector<std::int64_t>& value, IntegerRange, const char*) override {
    add(name, fmt::format("{}", fmt::join(value, "+")));
  }
  void choice(const char* name, std::size_t& index, std::span<const std::string_view> names, const char*) override {
    add(name, std::string(names[index]));
  }
};

template <class Options>
std::vector<FieldTexts::Field> texts_of(Options options) {
  FieldTexts texts;
  options.visit_fields(texts);
  return std::move(texts.fields);
}

}  // namespace

struct Simulator::Rep {
  ScenarioReader reader;
  Program program;
  std::unordered_map<std::string, Calibration> kernels;  // by what find_calibration goes by
  CollectiveCalibration collectives;

  const Calibration& kernels_of(const Scenario& scenario);
};

const Calibration& Simulator::Rep::kernels_of(const Scenario& scenario) {
  const Device& device = scenario.cluster.device;
  const std::string_view attention = framework::attention_kernel(scenario.plan);
  const std::string key = fmt::format("{}\n{}\n{}\n{}", device.name, device.architecture, device.vendor, attention);
  auto found = kernels.find(key);
  if (found == kernels.end()) {
    found = kernels.emplace(key, find_calibration(device)).first;
    if (!attention.empty()) use_attention_kernel(found->second, attention);
  }
  return found->second;
}

Simulator::Simulator() : rep_(std::make_unique<Rep>()) {}
Simulator::~Simulator() = default;

namespace {

constexpr const char* kPerturbationsIgnored =
    "the scenario's perturbations are left out: they act in the discrete-event engine (--engine des)";

void check_ends(const Report& report) {
  if (!std::isfinite(report.step_seconds))
    throw InputError({"", ""}, "rates or sizes so extreme that the step never ends", "those of real hardware");
}

DiscreteEventOptions discrete_event_options(const SimulationOptions& options) {
  return {.fidelity = options.fidelity, .routing = options.routing, .timeline = options.timeline, .ops = options.ops};
}

// Time lost to contention, by link.
std::map<std::string, double> seconds_lost(const Report& report) {
  std::map<std::string, double> lost;
  if (report.discrete_event)
    for (const ContentionReport& c : report.discrete_event->contention) lost[c.link] += c.seconds - c.seconds_alone;
  return lost;
}

std::string most_shared_link(const Report& alone, const Report& together) {
  const auto before = seconds_lost(alone);
  std::string link;
  double most = 0;
  for (const auto& [name, seconds] : seconds_lost(together)) {
    const auto found = before.find(name);
    const double more = seconds - (found == before.end() ? 0 : found->second);
    if (more <= most) continue;
    most = more;
    link = name;
  }
  return link;
}

}  // namespace

Simulation Simulator::evaluate(const nlohmann::json& document, const ScenarioSource& source,
                               const SimulationOptions& options) {
  Simulation result;
  result.scenario = rep_->reader.read(document, source);
  const Scenario& scenario = result.scenario;
  try {
    lower(scenario, rep_->program);
    result.program = &rep_->program;
    result.kernels = &rep_->kernels_of(scenario);
    rep_->collectives = find_collective_calibration(scenario.cluster);
    result.collectives = &rep_->collectives;
    const Dtype dtype = scenario.plan.precision.compute();
    if (options.engine == Engine::des) {
      const DiscreteEventJob job{
          .name = "", .program = result.program, .mfu_dtype = dtype, .kernels = result.kernels, .placement = {}};
      run_discrete_event(scenario.cluster, rep_->collectives, {&job, 1}, scenario.perturbations,
                         discrete_event_options(options), {&result.report, 1});
    } else {
      AnalyticalEngine engine(scenario.cluster, *result.kernels, rep_->collectives);
      engine.evaluate(rep_->program, dtype, {.timeline = options.timeline, .ops = options.ops}, result.report);
      if (!scenario.perturbations.empty()) result.report.notes.emplace_back(kPerturbationsIgnored);
    }
    check_ends(result.report);
  } catch (const InputError& error) {
    throw source.blame(error);
  }
  return result;
}

std::vector<JobResult> Simulator::evaluate_jobs(const nlohmann::json& document, const ScenarioSource& source,
                                                const SimulationOptions& options) {
  JobsDocument read = rep_->reader.read_jobs(document, source);
  std::vector<Program> programs(read.jobs.size());
  std::vector<DiscreteEventJob> jobs;
  for (std::size_t i = 0; i < read.jobs.size(); ++i) {
    const Job& job = read.jobs[i];
    try {
      lower(job.scenario, programs[i]);
    } catch (const InputError& error) {
      throw source.blame(job.in_document(error));
    }
    jobs.push_back({.name = job.name,
                    .program = &programs[i],
                    .mfu_dtype = job.scenario.plan.precision.compute(),
                    .kernels = &rep_->kernels_of(job.scenario),
                    .placement = job.placement});
  }
  try {
    rep_->collectives = find_collective_calibration(read.cluster);
    const DiscreteEventOptions together = discrete_event_options(options);
    std::vector<Report> reports(jobs.size());
    run_discrete_event(read.cluster, rep_->collectives, jobs, read.perturbations, together, reports);
    DiscreteEventOptions alone = together;
    alone.timeline = alone.ops = false;
    std::vector<JobResult> results;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      check_ends(reports[i]);
      Report by_itself = reports[i];
      if (jobs.size() > 1) {
        by_itself = {};
        run_discrete_event(read.cluster, rep_->collectives, {&jobs[i], 1}, read.perturbations, alone, {&by_itself, 1});
        check_ends(by_itself);
      }
      std::string link = most_shared_link(by_itself, reports[i]);
      results.push_back({std::move(read.jobs[i]), std::move(reports[i]), by_itself.step_seconds, std::move(link)});
    }
    return results;
  } catch (const InputError& error) {
    throw source.blame(error);
  }
}

std::vector<std::string> title_of(const Scenario& scenario) {
  const Cluster& cluster = scenario.cluster;
  const auto named = [](const std::string& name, const char* otherwise) {
    return name.empty() ? otherwise : name.c_str();
  };
  std::vector<std::string> lines;
  lines.push_back(fmt::format("{} on {} x {} ({} x {})", named(scenario.model.name, "an unnamed model"), cluster.nodes,
                              named(cluster.node.name, "an unnamed node"), cluster.devices(),
                              named(cluster.device.name, "an unnamed device")));
  const Model& model = scenario.model;
  const bool images = model.kind == ModelKind::vit || model.kind == ModelKind::swin;
  const std::int64_t length =
      scenario.workload.sequence_length > 0 ? scenario.workload.sequence_length : model.max_positions;
  lines.push_back(fmt::format("{} {} a step, data_parallel {}, micro-batches a pipeline: {}",
                              scenario.workload.global_batch_size,
                              images ? "images" : fmt::format("sequences of {} tokens", length),
                              data_parallel_degree(scenario), micro_batches(scenario)));
  const auto usual = texts_of(Plan{});
  const auto chosen = texts_of(scenario.plan);
  std::string line;
  constexpr std::size_t kWidth = 100;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    if (chosen[i].value == usual[i].value) continue;
    if (line.size() + chosen[i].text.size() > kWidth) lines.push_back(std::exchange(line, {}));
    line += (line.empty() ? "" : ", ") + chosen[i].text;
  }
  if (!line.empty()) lines.push_back(line);
  return lines;
}

}  // namespace orrery
