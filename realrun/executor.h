// Runs a lowered Program, step after step, on the ranks' backends: the same Program that the engines time. Results are
// assembled into the layout of one rank, so that every layout of a scenario can be compared with every other. Runs can
// be measured; the measurement has the form of a prediction (measured_report.h).
//
// The Program determines what is computed: what ops add to (Op::accumulate), what norms count
// (sim/program/step_end.h), which positions attend to each other (Op::keys_before), what crosses borders between
// stages (sim/program/borders.h), what side streams without a reader receive (Piece::sides), and whose memory a tied
// table uses (Tensor::shared). A step's inputs (rank/tensor_memory.cpp) and ExecutionOptions are not part of it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "realrun/backend.h"
#include "realrun/communicator.h"
#include "realrun/in_process.h"
#include "sim/program/program.h"
#include "sim/report/report.h"
#include "strategies/scenario.h"

namespace orrery {

struct ExecutionOptions {
  // Seed of parameters and inputs, which are functions of (seed, parameter, element), whatever the layout.
  std::uint64_t seed = 1;
  std::int64_t steps = 1;  // all steps use the same batch
  double learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0, momentum = 0.9;
  bool round_to_bf16 = false;  // fp32 storage: tensors of bf16 are rounded to bf16
  // Storage that has not been written holds NaN. An op that writes NaN ends the run with an error that names the op.
  bool find_undefined = true;
  double watchdog_seconds = 20;  // longest wait on other ranks
  // Values that parameters begin with, by their number in the model. Empty, or empty for a parameter: drawn from
  // `seed`.
  std::vector<std::vector<float>> first_values;
  // Added to one element of one parameter before the first step, for finite differences. -1: none.
  std::int64_t nudged_parameter = -1, nudged_element = 0;
  double nudge = 0;
  bool keep_tensors = true;  // return gradients and parameters
  // Return times and memory. After the warm-up steps, the first half of the steps gives the step time; the second half
  // has marks around every op and gives the rest.
  bool measure = false;
  std::int64_t warmup_steps = 0;
  std::function<void(std::size_t rank, std::int64_t step)> after_step;  // called in the rank's thread
};

// A tensor as one rank would hold it, row-major.
struct WholeTensor {
  std::string name;  // "layer 1 qkv"
  std::vector<std::int64_t> sizes;
  std::vector<float> values;
};

// One op of one block, on one rank.
struct MeasuredOp {
  std::uint16_t piece = 0, op = 0;
  std::uint8_t block = 0;  // forward, backward, weight gradient, update
  double times_per_step = 0;
  // Mean seconds of one call, by step.
  std::vector<double> seconds;
};

// Part of a parameter or its gradient that a rank holds.
struct HeldPart {
  std::size_t parameter = 0;
  std::vector<std::int64_t> element;  // indices in the whole parameter
  std::vector<float> gradient, value;
};

// Rows of a dropless run whose experts have slots for all tokens: only slots with rows are sent and computed. Sums over
// one rank's layers with experts, micro-batches and steps, recomputed forwards included.
struct RoutedRows {
  double layers = 0;
  // Rows that this rank's experts computed in one pass through them, and the slots that they had.
  double computed = 0, slots = 0;
  // Rows sent to other ranks in one dispatch, and what sending all slots would have been.
  double sent = 0, slots_sent = 0;
  // Largest ratio of rows to the mean.
  double busiest_rank = 1, busiest_expert = 1;
  double sum_of_busiest_ranks = 0;  // sum over `layers`
};

// Results of one rank's run.
struct RankResult {
  std::size_t rank = 0;
  std::int64_t stage = 0;
  // By step, warm-up included, without the loss scale. losses: this rank's share.
  std::vector<double> losses, gradient_norms;
  // By step, for routers whose threshold decides how many experts a token has (otherwise 0): the active experts, summed
  // over tokens, and the number of tokens, of all layers and micro-batches.
  std::vector<std::int64_t> active_experts, routed_tokens;
  std::vector<HeldPart> parts;  // if kept
  // If measured:
  // Sums over all measured steps. The members that follow are of the last part of a run.
  std::vector<double> seconds_by_step;
  std::vector<double> step_seconds;         // of the measured steps without marks
  std::vector<double> marked_step_seconds;  // of the measured steps with marks
  std::vector<MeasuredOp> ops;
  TimeBreakdown time;                   // mean over the marked steps, not scaled
  std::vector<TimelineSpan> intervals;  // of the last step
  PlacedBytes bytes_at_peak{};
  double peak_bytes = 0;  // on the device; tensors only, in their own dtypes
  RoutedRows rows;        // layers == 0: rows were not counted
};

struct Execution {
  // By step. A loss is the mean cross entropy over all positions of the global batch.
  std::vector<double> losses, gradient_norms;
  // In model order: piece by piece, then in the order of Piece::parameters. The table of a tied head is omitted.
  std::vector<WholeTensor> gradients;   // of the last step, trained parameters only, unscaled, before clipping
  std::vector<WholeTensor> parameters;  // after the last step
  // The largest difference between ranks that hold the same element, relative to the tensor's largest value. If workers
  // train copies that differ (MeshAxis::worker), the first one's gradients and parameters are returned, and its
  // gradients are not compared with the others'.
  double gradient_disagreement = 0, parameter_disagreement = 0;
};

// Throws InputError for models and plans that cannot be run. execute(), execute_ranks() and execute_rank() call it.
void check_runnable(const Scenario& scenario);
// Throws InputError for tensors that no kernel of a GPU stores yet, blocks of numbers with a scale each, and for
// attention in fp8. execute_rank() calls it; who calls execute_ranks() with GPUs calls it before.
void check_gpus_store(const Program& program);

// Consecutive steps of a run that have one Program. scenario.workload.step is the first of them.
struct RunPart {
  Scenario scenario;
  Program program;
  std::int64_t steps = 1;
};
// Splits a run of `steps` steps from the workload's step on: one part, unless a gate or a placement changes with the
// step (begins_anew(), strategies/strategy.h). REQUIRES: `scenario` is from runnable(). Throws as lower() does.
std::vector<RunPart> parts_of(const Scenario& scenario, std::int64_t steps);

// Lowers and runs runnable(scenario) with one thread per rank, in several parts if its steps differ
// (strategies/strategy.h). Throws InputError for what it cannot run (Swin, vocabularies padded to another size than one
// rank's), ExecutionError for failures during the run.
Execution execute(const Scenario& scenario, const ExecutionOptions& options = {});
// The same for a Program lowered from `scenario` (and perhaps changed). Here and below `scenario` is from runnable().
Execution execute(const Scenario& scenario, const Program& program, const ExecutionOptions& options);

// The stages of execute(), for ranks that are not threads of this process or not on a CPU.
std::vector<RankResult> execute_ranks(const Scenario& scenario, const Program& program, const ExecutionOptions& options,
                                      const BackendFactory& backend);
// Runs the parts of a run one after the other: warm-up steps first, then the steps of all parts
// (ExecutionOptions::steps is ignored). Parameters and optimizer states are carried from one part to the next.
// Measurements are of the last part, step times of all parts.
std::vector<RankResult> execute_ranks(std::span<const RunPart> parts, const ExecutionOptions& options,
                                      const BackendFactory& backend);
// Runs only this process's rank. A failure is reported to the communicator and thrown.
RankResult execute_rank(std::span<const RunPart> parts, const ExecutionOptions& options, Backend& backend,
                        Communicator& communicator);
// Assembles the results of all ranks, in any order, into the layout of one rank. `scenario`: that of the last part.
Execution assemble(const Scenario& scenario, const std::vector<RankResult>& ranks);

// Convert a result, without `intervals`, to bytes and back, to send it to another process of the same build.
std::vector<std::uint8_t> to_bytes(const RankResult& result);
RankResult result_of_bytes(std::span<const std::uint8_t> bytes);
// Returns all ranks' results, in the order of ranks. All must call it.
std::vector<RankResult> gather_results(const RankResult& own, Communicator& communicator);

}  // namespace orrery
