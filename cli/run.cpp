// orrery run: executes a scenario's Program on this machine, measures it, and compares it with its prediction.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/commands.h"
#include "cli/offers.h"
#include "cli/output.h"
#include "realrun/agreement.h"
#include "realrun/cuda/nccl_communicator.h"
#include "realrun/executor.h"
#include "realrun/measured_report.h"
#include "realrun/mpi/launch.h"
#include "sim/base/error.h"
#include "sim/base/json_writer.h"
#include "sim/cost/user_calibration.h"
#include "sim/memory/memory.h"
#include "sim/report/columns.h"
#include "sim/report/format.h"
#include "sim/report/json.h"
#include "sim/report/table.h"
#include "sim/report/trace.h"
#include "strategies/lower.h"
#include "strategies/precision/precision.h"
#include "strategies/read_scenario.h"
#include "strategies/strategy.h"
#include "study/answers/inputs.h"
#include "study/prediction/planning_notes.h"
#include "study/prediction/prediction.h"

namespace orrery {
namespace {

struct RunArguments {
  std::string scenario;
  std::vector<std::string> sets, calibrations;
  std::string device = "cpu", ranks = "threads";
  std::string json, csv, trace;
  std::int64_t steps = 10, warmup = 2;
  std::uint64_t seed = 1;
  std::optional<double> tolerance;
  bool predict = false, check = false, ops = false, emulate_bf16 = false;
};

constexpr const char* kRunExamples = R"(Examples:
  orrery run small-gpt                                        ten steps on this machine, a thread a rank
  orrery run small-gpt --predict                              measured beside predicted, op by op
  orrery run small-gpt --predict --set plan.data_parallel=4
  orrery run small-gpt --check --set plan.tensor_parallel=2   against the same model on one rank
  orrery run small-gpt --ranks mpi --set plan.data_parallel=2   a process a rank, started by mpirun
  orrery run gpt2-124m-h200 --device cuda --predict --calibration h200.json
  orrery run small-gpt --device cuda --ranks mpi --set plan.tensor_parallel=2   over NCCL, each on a GPU of its own)";

// More ranks than this are too many for one machine.
constexpr std::int64_t kMostRanks = 64;
constexpr std::size_t kOpsListed = 25;

// `shared`: all ranks run on the host's processor.
Report predict_here(const Scenario& scenario, const UserCalibration& user, bool shared) {
  const std::int64_t ranks_of_host = shared ? ranks(scenario) : 1;
  Calibrator calibrator(user);
  const Prepared prepared = calibrator.prepare(scenario, ranks_of_host);
  Report report = predict(prepared, {.timeline = false, .ops = true});
  report.notes = planning_notes(prepared.scenario, *prepared.program);
  if (std::string note = utilisation_note(report); !note.empty()) report.notes.push_back(std::move(note));
  if (!user.kernels)
    report.notes.push_back(fmt::format(
        "predicted with the bundled calibration of {}: `orrery calibrate` measures this machine (--calibration FILE)",
        prepared.scenario.cluster.device.name));
  if (const double share = rank_share(*prepared.kernels, ranks_of_host); share < 1)
    report.notes.push_back(
        fmt::format("there are more ranks than processor threads: each rank gets {} of one", percent_text(share)));
  return report;
}

struct OpPair {
  std::string name;
  Stream stream = Stream::compute;
  double times = 0, measured = 0, predicted = 0;  // seconds per step
};

std::vector<OpPair> op_pairs(const Report& measured, const Report* predicted) {
  std::vector<OpPair> pairs;
  const auto pair_of = [&](const OpReport& op) -> OpPair& {
    for (OpPair& pair : pairs)
      if (pair.name == op.name) return pair;
    return pairs.emplace_back(OpPair{op.name, op.stream, 0, 0, 0});
  };
  for (const OpReport& op : measured.ops) {
    OpPair& pair = pair_of(op);
    pair.times += op.times_per_step;
    pair.measured += op.seconds * op.times_per_step;
  }
  if (predicted != nullptr)
    for (const OpReport& op : predicted->ops) pair_of(op).predicted += op.seconds * op.times_per_step;
  std::stable_sort(pairs.begin(), pairs.end(), [](const OpPair& a, const OpPair& b) {
    return std::max(a.measured, a.predicted) > std::max(b.measured, b.predicted);
  });
  return pairs;
}

std::string error_text(double measured, double predicted) {
  return measured > 0 && predicted > 0 ? signed_percent_text(predicted / measured - 1) : "-";
}

std::string op_table(const Report& measured, const Report* predicted, bool all) {
  const std::vector<OpPair> pairs = op_pairs(measured, predicted);
  std::vector<std::vector<std::string>> rows;
  double rest = 0;
  for (const OpPair& pair : pairs) {
    if (!all && rows.size() == kOpsListed) {
      rest += pair.measured;
      continue;
    }
    rows.push_back({pair.name, name_of(pair.stream), fmt::format("{:.6g}", pair.times), seconds_text(pair.measured)});
    if (predicted != nullptr) {
      rows.back().push_back(pair.predicted > 0 ? seconds_text(pair.predicted) : "-");
      rows.back().push_back(error_text(pair.measured, pair.predicted));
    }
  }
  const char* const columns = predicted != nullptr ? "<op|<stream|times|measured a step|predicted a step|error"
                                                   : "<op|<stream|times|measured a step";
  std::string text = "\nOps of the stage that bounds the step\n" + grid(columns, rows);
  if (pairs.size() > rows.size())
    text += fmt::format("  {} more, {} measured (--ops lists all)\n", pairs.size() - rows.size(), seconds_text(rest));
  return text;
}

std::string notes_text(std::initializer_list<const Report*> reports) {
  std::string text;
  for (const Report* report : reports)
    for (const std::string& note : report->notes) text += fmt::format("  - {}\n", note);
  return text.empty() ? text : "\nNotes\n" + text;
}

nlohmann::ordered_json agreement_json(const Agreement& a, double tolerance) {
  return {{"loss", a.loss},
          {"gradient_norm", a.gradient_norm},
          {"gradients", a.gradients},
          {"worst_gradient", a.worst_gradient},
          {"parameters", a.parameters},
          {"worst_parameter", a.worst_parameter},
          {"disagreement_of_ranks", a.disagreement},
          {"tolerance", tolerance},
          {"agrees", a.within(tolerance)}};
}

std::string agreement_text(const Agreement& a, double tolerance) {
  return fmt::format(
      "\nAgainst the same model on one rank (relative, tolerance {:g})\n"
      "  loss {:.2g}, gradient norm {:.2g}, gradients {:.2g} ({}), parameters {:.2g} ({}), ranks among themselves "
      "{:.2g}: {}\n",
      tolerance, a.loss, a.gradient_norm, a.gradients, a.worst_gradient, a.parameters, a.worst_parameter,
      a.disagreement, a.within(tolerance) ? "agrees" : "DIFFERS");
}

// `exact`: for comparing numbers.
BackendFactory backends(const std::string& device, bool exact) {
  if (device == "cuda") return [exact](std::size_t) { return make_cuda_backend(0, /*tf32=*/!exact); };
  return [](std::size_t) { return make_cpu_backend(); };
}

// For ranks as processes on GPUs: reports what is missing before mpirun starts them.
void require_nccl_ranks() {
  if (!built_with_cuda())
    throw InputError({"--ranks", ""}, "no program orrery-gpu next to this one",
                     "a build where nvcc is (cmake -DORRERY_CUDA=ON)");
  if (!built_with_nccl())
    throw InputError({"--ranks", ""}, "mpi with --device cuda in a program without NCCL",
                     "threads, or a build where nccl.h and libnccl are");
  cuda_devices();
}

// Lower bound on the memory of all ranks: parameters, gradients and states, and the activations of one micro-batch.
double least_bytes(const Program& program) {
  double bytes = 0;
  for (const auto& stage : program.stages)
    for (const Chunk& chunk : stage)
      for (const PieceRun& run : chunk.runs) {
        const PieceMemory memory = piece_memory(program.pieces[run.piece], 0, run.count);
        bytes += static_cast<double>(run.count) * (device_bytes(memory.resident) + device_bytes(memory.saved));
      }
  return bytes * static_cast<double>(program.mesh.ranks()) / static_cast<double>(program.stages.size());
}

// A scenario that can be executed here, lowered.
struct RunJob {
  ScenarioSource source;
  nlohmann::json document;
  // As predicted, and as run: with slots for all tokens of experts.
  Scenario described, scenario;
  Program program;
  bool processes = false, on_gpus = false;
};

// The results of a run.
struct RunOutcome {
  BackendFacts facts;
  std::optional<Agreement> agrees;  // with the same model on one rank, if asked for
  double tolerance = 0;
  std::optional<Report> measured;  // none if no steps were measured
  std::optional<Report> predicted;
  // Fastest step: on a shared host, the one that others disturbed least.
  double fastest = 0;
  // If the steps of a run differ: all that were measured. The report is of the last ones.
  struct Step {
    std::int64_t step = 0;
    double loss = 0, gradient_norm = 0, seconds = 0;
    double active_experts = 0;  // per token, if a gate decides; 0: no gate
  };
  std::vector<Step> steps;
};

std::string steps_table(const std::vector<RunOutcome::Step>& steps) {
  if (steps.empty()) return {};
  const bool gated = std::ranges::any_of(steps, [](const RunOutcome::Step& step) { return step.active_experts > 0; });
  std::vector<std::vector<std::string>> rows;
  for (const RunOutcome::Step& step : steps) {
    rows.push_back({std::to_string(step.step), fmt::format("{:.6g}", step.loss),
                    fmt::format("{:.4g}", step.gradient_norm), seconds_text(step.seconds)});
    if (gated) rows.back().push_back(step.active_experts > 0 ? fmt::format("{:.4g}", step.active_experts) : "-");
  }
  return "\nThe steps differ; the figures above are those of the last\n" +
         grid(gated ? "step|loss|gradient norm|time|active experts" : "step|loss|gradient norm|time", rows);
}

// The steps of the workload, without warm-up.
std::vector<RunOutcome::Step> steps_of(const std::vector<RankResult>& ranks, std::int64_t first) {
  std::vector<RunOutcome::Step> steps(ranks.front().seconds_by_step.size());
  const std::size_t warmup = ranks.front().losses.size() - steps.size();
  for (std::size_t i = 0; i < steps.size(); ++i) {
    steps[i].step = first + static_cast<std::int64_t>(warmup + i);
    steps[i].gradient_norm = ranks.front().gradient_norms.at(warmup + i);
    double active = 0, tokens = 0;
    for (const RankResult& rank : ranks) {
      active += static_cast<double>(rank.active_experts.at(warmup + i));
      tokens += static_cast<double>(rank.routed_tokens.at(warmup + i));
      steps[i].loss += rank.losses.at(warmup + i);
      steps[i].seconds = std::max(steps[i].seconds, rank.seconds_by_step.at(i));
    }
    if (tokens > 0) steps[i].active_experts = active / tokens;
  }
  return steps;
}

RunJob job_of(const RunArguments& arguments) {
  RunJob job;
  job.document = load_scenario_document(arguments.scenario, arguments.sets, job.source);
  refuse_report(job.document, job.source.file, "a scenario, such as inputs.scenario of a report");
  if (has_jobs(job.document)) throw InputError({job.source.file, "/jobs"}, "jobs", "a scenario of one job");
  job.described = read_scenario(job.document, job.source);
  job.processes = arguments.ranks == "mpi";
  job.on_gpus = arguments.device == "cuda";
  try {
    job.scenario = runnable(job.described);
    lower(job.scenario, job.program);
  } catch (const InputError& error) {
    throw job.source.blame(error);
  }
  if (const std::int64_t ranks = job.program.mesh.ranks(); ranks > kMostRanks)
    throw InputError({job.source.file, "/plan"}, fmt::format("{} ranks", ranks),
                     fmt::format("at most {}: they share this machine", kMostRanks));
  if (job.on_gpus && job.program.packed != nullptr)
    throw InputError({job.source.file,
                      job.described.workload.documents.empty() ? "/workload/documents_file" : "/workload/documents"},
                     "documents with --device cuda",
                     "--device cpu: the GPU's attention does not stay within documents");
  if (job.processes && !arguments.trace.empty())
    throw InputError({"--trace", ""}, "ranks that are processes (--ranks mpi)", "threads: they share a timeline");
  if (arguments.check && job.program.mesh.size(MeshAxis::worker) > 1)
    throw InputError({"--check", ""}, "a plan with workers that agree on one model",
                     "a plan that sums gradients over all replicas: a run on one rank has no workers");
  if (arguments.steps == 0 && !arguments.check)
    throw InputError({"--steps", ""}, "0 without --check",
                     "at least one step; orrery simulate predicts without running");
  if (job.processes && job.on_gpus) require_nccl_ranks();
  return job;
}

// Refuses a run that would exhaust memory, before the system kills it or other processes.
void require_memory(const RunJob& job, const BackendFacts& facts) {
  const double least = least_bytes(job.program);
  if (facts.memory_bytes <= 0 || least <= facts.memory_bytes) return;
  const std::int64_t ranks = job.program.mesh.ranks();
  throw InputError(
      {job.source.file, "/model"},
      fmt::format("a model that takes at least {} on {} rank{}", bytes_text(least), ranks, ranks == 1 ? "" : "s"),
      fmt::format("a model that fits into the {} of this machine's {}, for example with --set model.layers=2",
                  bytes_text(facts.memory_bytes), job.on_gpus ? "GPU" : "memory"));
}

RunOutcome execute_job(const RunArguments& arguments, const RunJob& job) {
  RunOutcome outcome;
  const auto execute_with = [&](const ExecutionOptions& options, bool exact) {
    if (!job.processes)
      return execute_ranks(parts_of(job.scenario, options.warmup_steps + options.steps), options,
                           backends(arguments.device, exact));
    JobResults results = execute_ranks_over_mpi(
        {arguments.scenario, arguments.sets, job.program.mesh.ranks(), job.on_gpus ? RankKind::cuda : RankKind::cpu},
        options);
    outcome.facts = std::move(results.facts);
    return std::move(results.ranks);
  };
  if (!job.processes || !job.on_gpus) {
    outcome.facts = backends(arguments.device, /*exact=*/false)(0)->facts();
    require_memory(job, outcome.facts);
  }
  check_runnable(job.scenario);
  if (job.on_gpus) check_gpus_store(job.program);
  ExecutionOptions options;
  options.seed = arguments.seed;
  options.find_undefined = arguments.check;
  options.round_to_bf16 = arguments.emulate_bf16;
  if (arguments.check) {
    const ExecutionOptions checked = options_to_compare(options, job.scenario, arguments.steps);
    const std::vector<RankResult> results = execute_with(checked, /*exact=*/true);
    const Scenario last = parts_of(job.scenario, checked.steps).back().scenario;
    ExecutionOptions exact = checked;
    exact.round_to_bf16 = false;
    outcome.agrees = agreement(execute(on_one_rank(job.scenario), exact), assemble(last, results));
  }
  if (arguments.steps > 0) {
    ProgressLine progress;
    options.measure = true;
    options.keep_tensors = false;
    options.find_undefined = false;
    options.steps = arguments.steps;
    options.warmup_steps = arguments.warmup;
    const std::int64_t steps = arguments.warmup + arguments.steps;
    options.after_step = [&progress, steps](std::size_t rank, std::int64_t step) {
      if (rank == 0) progress.show(fmt::format("step {} of {}", step + 1, steps));
    };
    const std::vector<RankResult> results = execute_with(options, /*exact=*/false);
    progress.clear();
    const std::vector<RunPart> parts = parts_of(job.scenario, steps);
    outcome.measured = measured_report(parts.back().scenario, parts.back().program, results, outcome.facts);
    if (parts.size() > 1) outcome.steps = steps_of(results, job.scenario.workload.step);
    outcome.fastest = fastest_step_seconds(job.program, results);
  }
  outcome.tolerance = arguments.tolerance.value_or(tolerance_of(outcome.facts, job.scenario, arguments.emulate_bf16));
  return outcome;
}

// Uses the same peak as a prediction: each rank's share of the processor.
void go_by_share(const RunJob& job, const UserCalibration& user, Report& measured) {
  Calibrator calibrator(user);
  const Prepared prepared = calibrator.prepare(job.scenario, job.on_gpus ? 1 : ranks(job.scenario));
  const Dtype dtype = precision::peak_dtype(job.scenario);
  const double whole = job.scenario.cluster.device.peak(dtype), own = prepared.scenario.cluster.device.peak(dtype);
  if (!(own > 0)) return;
  for (double* share : {&measured.mfu, &measured.mfu_full_attention, &measured.hfu}) *share *= whole / own;
}

nlohmann::ordered_json outcome_json(const RunArguments& arguments, const RunJob& job, const RunOutcome& outcome) {
  nlohmann::ordered_json json;
  if (outcome.predicted) {
    json = comparison_json(*outcome.measured, *outcome.predicted);
    json = {{"measured", json["a"]}, {"predicted", json["b"]}, {"change", json["change"]}};
    json["step_error"] = outcome.predicted->step_seconds / outcome.measured->step_seconds - 1;
  } else if (outcome.measured) {
    json = report_json(*outcome.measured);
  }
  if (outcome.measured) json["fastest_step_seconds"] = outcome.fastest;
  for (const RunOutcome::Step& step : outcome.steps)
    json["steps"].push_back({{"step", step.step},
                             {"loss", step.loss},
                             {"gradient_norm", step.gradient_norm},
                             {"seconds", step.seconds},
                             {"active_experts", step.active_experts}});
  if (outcome.agrees) json["agreement"] = agreement_json(*outcome.agrees, outcome.tolerance);
  json["backend"] = {{"kind", outcome.facts.kind},
                     {"device", outcome.facts.device},
                     {"software", outcome.facts.software},
                     {"ranks", arguments.ranks}};
  json["scenario"] = job.source.file;
  json["set"] = job.source.sets;
  json["inputs"] = inputs_json(job.document, job.source, arguments.calibrations);
  json["version"] = ORRERY_VERSION;
  return json;
}

std::string outcome_text(const RunArguments& arguments, const RunJob& job, const RunOutcome& outcome) {
  const TableStyle style{.colour = colour_wanted()};
  const std::int64_t ranks = job.program.mesh.ranks();
  const char* over = !job.processes ? "" : job.on_gpus ? " over NCCL" : " over MPI";
  std::vector<std::string> title = title_of(job.scenario);
  title.push_back(fmt::format("run on {} ({} rank{}{})", outcome.facts.device, ranks, ranks == 1 ? "" : "s", over));
  const Report* measured = outcome.measured ? &*outcome.measured : nullptr;
  const Report* predicted = outcome.predicted ? &*outcome.predicted : nullptr;
  std::string text;
  if (predicted != nullptr) {
    text = comparison_table(*measured, *predicted, title, style, {.a = "measured", .b = "predicted"});
  } else if (measured != nullptr) {
    text = report_table(*measured, title, style);
  }
  if (measured != nullptr && (predicted != nullptr || arguments.ops))
    text += op_table(*measured, predicted, arguments.ops);
  if (predicted != nullptr)
    text += fmt::format("\nstep: measured {} (fastest {}), predicted {} ({})\n", seconds_text(measured->step_seconds),
                        seconds_text(outcome.fastest), seconds_text(predicted->step_seconds),
                        error_text(measured->step_seconds, predicted->step_seconds));
  text += steps_table(outcome.steps);
  if (outcome.agrees) text += agreement_text(*outcome.agrees, outcome.tolerance);
  if (predicted != nullptr) text += notes_text({measured, predicted});
  return text;
}

void run_scenario(const RunArguments& arguments) {
  const RunJob job = job_of(arguments);
  const UserCalibration user = read_user_calibration(arguments.calibrations);
  check_outputs({arguments.json, arguments.csv, arguments.trace});
  RunOutcome outcome;
  try {
    outcome = execute_job(arguments, job);
  } catch (const InputError& error) {
    throw job.source.blame(error);
  }
  if (outcome.measured) go_by_share(job, user, *outcome.measured);
  if (arguments.predict && outcome.measured)
    outcome.predicted =
        predict_here(parts_of(job.described, arguments.warmup + arguments.steps).back().scenario, user, !job.on_gpus);

  Outputs outputs;
  outputs.add_wanted(arguments.json, [&] { return json_text(outcome_json(arguments, job, outcome), 2) + "\n"; });
  if (outcome.measured) {
    outputs.add_wanted(arguments.csv, [&] {
      const InputCells inputs = input_cells(job.document, job.source, arguments.calibrations);
      std::string text = csv_header(kInputColumns) + csv_row(job.source.file, *outcome.measured, inputs);
      if (outcome.predicted) text += csv_row(job.source.file, *outcome.predicted, inputs);
      return text;
    });
    outputs.add_wanted(arguments.trace, [&] { return report_trace(*outcome.measured); });
  }
  outputs.commit_with([&] { return outcome_text(arguments, job, outcome); });
  if (outcome.agrees && !outcome.agrees->within(outcome.tolerance))
    throw ExecutionError(
        fmt::format("the layout does not compute what one rank computes (gradients differ by {:.2g}, "
                    "parameters by {:.2g}, tolerance {:g})",
                    outcome.agrees->gradients, outcome.agrees->parameters, outcome.tolerance));
}

}  // namespace

void add_run(Command app) {
  const auto [command, arguments] = app.declare<RunArguments>(
      "run", "How long training steps take when this machine executes them, and how far the prediction is off",
      kRunExamples, run_scenario);
  command.add_option("SCENARIO", arguments.scenario, "As for simulate")
      .required()
      .offers_names({"scenarios"})
      .offers_files();
  add_fields(command, "--set", arguments.sets, "Override a field: plan.tensor_parallel=2");
  command
      .add_option("--device", arguments.device,
                  "Where ranks run: cpu or cuda (threads share one GPU; each process has its own)")
      .one_of({"cpu", "cuda"})
      .capture_default();
  command
      .add_option("--ranks", arguments.ranks,
                  "What ranks are: threads of this process, or processes that mpirun starts (mpi; on GPUs over NCCL)")
      .one_of({"threads", "mpi"})
      .capture_default();
  command
      .add_option("--steps", arguments.steps,
                  "Number of measured steps: the first half gives the step time, the second half the ops")
      .between(0, 1'000'000);
  command.add_option("--warmup", arguments.warmup, "Number of steps before the measured ones").between(0, 1'000'000);
  command.add_option("--seed", arguments.seed, "Seed of parameters and inputs");
  command.add_flag("--predict", arguments.predict, "Also predict the step and show both side by side");
  add_calibrations(command, arguments.calibrations,
                   "A calibration made by `orrery calibrate`, for --predict; may be given several times");
  command.add_flag(
      "--check", arguments.check,
      "First compare loss, gradients and updated parameters with those of one rank; exit 1 if they differ");
  command
      .add_option("--tolerance", arguments.tolerance, "--check: relative tolerance [2e-5; 2e-2 in bf16 and narrower]")
      .positive();
  command.add_flag("--bf16-storage", arguments.emulate_bf16,
                   "CPU: round bf16 tensors to bf16; without it all numbers are fp32");
  command.add_flag("--ops", arguments.ops, "List every op");
  command.add_file("--json", arguments.json, "Write the report (with --predict: both) as JSON; - for standard output");
  command.add_file("--csv", arguments.csv, "Write a row of CSV with a header");
  command.add_file("--trace", arguments.trace, "Write the last step's timeline for Perfetto (ui.perfetto.dev)");
}

}  // namespace orrery
