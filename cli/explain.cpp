#include "cli/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "cli/memory_trace.h"
#include "sim/analytical/op_cost.h"
#include "sim/base/json_reader.h"
#include "sim/base/words.h"
#include "sim/cost/exchange_skew.h"
#include "sim/cost/fabric_traffic.h"
#include "sim/cost/step_calibration.h"
#include "sim/memory/memory.h"
#include "sim/program/liveness.h"
#include "sim/program/work.h"
#include "sim/report/format.h"
#include "sim/report/terms.h"
#include "strategies/precision/precision.h"
#include "strategies/strategy.h"
#include "study/simulation/simulation.h"

namespace orrery {
namespace {

constexpr std::int64_t kMostLayers = 1 << 20;

// An op of the program, with the engine's report of it.
struct OpInPlace {
  std::string name;  // "layer.forward.fc1", as in OpReport
  const Piece* piece = nullptr;
  const Op* op = nullptr;
  const OpReport* report = nullptr;

  double seconds_per_step() const { return report->seconds * report->times_per_step; }
};

// Ops of one block may share a name (a product's two gradients): told apart by the bytes they move, then by order.
const OpReport* take_report(std::vector<const OpReport*>& candidates, const Op& op, const Piece& piece) {
  const double moved = bytes(op, piece.tensors) / op.count;
  const auto same =
      std::find_if(candidates.begin(), candidates.end(), [&](const OpReport* r) { return r->bytes == moved; });
  const auto chosen = same != candidates.end() ? same : candidates.begin();
  const OpReport* report = *chosen;
  if (candidates.size() > 1) candidates.erase(chosen);
  return report;
}

// "layer[0:20,40:80:2].forward.fc1": the layers in the slices, as in Python, and the name without them.
struct SlicedName {
  std::string plain;
  std::set<std::int64_t> layers;
};
std::optional<SlicedName> sliced(const std::string& name) {
  const std::size_t open = name.find('['), close = name.find(']', open);
  if (open == std::string::npos || close == std::string::npos) return std::nullopt;
  SlicedName result{name.substr(0, open) + name.substr(close + 1), {}};
  for (const std::string_view slice : split(std::string_view(name).substr(open + 1, close - open - 1), ',')) {
    std::vector<std::int64_t> numbers;  // from, to, step
    for (const std::string_view part : split(slice, ':')) numbers.push_back(number_of(part).value_or(-1));
    if (std::ranges::any_of(numbers, [](std::int64_t n) { return n < 0 || n > kMostLayers; }))
      return result;  // "0:2..."
    const std::int64_t end = numbers.size() > 1 ? numbers[1] : numbers[0] + 1,
                       step = numbers.size() > 2 ? std::max<std::int64_t>(numbers[2], 1) : 1;
    for (std::int64_t layer = numbers[0]; layer < end; layer += step) result.layers.insert(layer);
  }
  return result;
}

// "layer.forward.fc1" asks for the op under every plan that layers have, "layer[5].forward.fc1" for that of one layer.
bool asks_for(const std::string& wanted, const std::string& name) {
  if (name == wanted || name.ends_with("." + wanted)) return true;
  const std::optional<SlicedName> of = sliced(name), asked = sliced(wanted);
  const std::string& plain = of ? of->plain : name;
  if (!asked) return plain == wanted;
  if (plain != asked->plain) return false;
  return !of || std::any_of(asked->layers.begin(), asked->layers.end(),
                            [&](std::int64_t layer) { return of->layers.contains(layer); });
}

std::vector<OpInPlace> ops_in_place(const Simulation& simulation) {
  std::map<std::string, std::vector<const OpReport*>, std::less<>> reports;
  for (const OpReport& report : simulation.report.ops) reports[report.name].push_back(&report);
  std::vector<OpInPlace> ops;
  for (std::size_t p = 0; p < simulation.program->pieces.size(); ++p) {
    const Piece& piece = simulation.program->pieces[p];
    const std::string title = piece_title(*simulation.program, p);
    for (std::size_t b = 0; b < kBlocks.size(); ++b) {
      const char* const block_name = kBlockNames[b];
      for (const Op& op : (piece.*kBlocks[b]).ops) {
        std::string name = fmt::format("{}.{}.{}", title, block_name, op.name);
        auto found = reports.find(name);
        if (found == reports.end()) {  // one report for all layers
          name = fmt::format("{}.{}.{}", piece.name, block_name, op.name);
          found = reports.find(name);
          if (std::any_of(ops.begin(), ops.end(),
                          [&](const OpInPlace& o) { return o.name == name && o.op->kind == op.kind; }))
            continue;
        }
        if (found != reports.end())
          ops.push_back({std::move(name), &piece, &op, take_report(found->second, op, piece)});
      }
    }
  }
  return ops;
}

void append_op_head(std::string& text) {
  text += fmt::format("  {:<44}{:>11}{:>10}{:>12}{:>9}{:>12}  {}\n", "op", "once", "times", "per step", "share",
                      "TFLOP/s", "bound by");
}

void append_op(std::string& text, const OpReport& op, double step_seconds) {
  const double total = op.seconds * op.times_per_step;
  const std::string rate = op.flops > 0 && op.seconds > 0 ? fmt::format("{:.1f}", op.flops / op.seconds * 1e-12) : "";
  text += fmt::format("  {:<44}{:>11}{:>10.6g}{:>12}{:>9}{:>12}  {}\n", op.name, seconds_text(op.seconds),
                      op.times_per_step, seconds_text(total),
                      step_seconds > 0 ? percent_text(total / step_seconds) : "", rate, op.bound);
}

std::string indented(std::string_view text) {
  std::string result;
  while (const auto line = next_line(text)) result += fmt::format("    {}\n", *line);
  return result;
}

// For what is sent in another way than NCCL's all-to-all, or not equally to all ranks: rows of experts or of documents,
// gradients of copies.
std::string exchange_formula(const Op& op, std::span<const Tensor> tensors, const OpCostModel& costs,
                             const GroupSpan& span) {
  const CollectiveCost cost = costs.collective(op, tensors, 1);
  const bool rings = op.reduction == Reduction::copies;
  std::string text = fmt::format("{} of {} over {} ranks on {} node{}, {}: {}\n", name_of(op.kind),
                                 bytes_text(bytes(op, tensors)), span.ranks, span.nodes, span.nodes == 1 ? "" : "s",
                                 rings ? "a ring for the copies of each expert, all at once" : name_of(cost.algorithm),
                                 seconds_text(cost.seconds));
  text += fmt::format("  = latency {} + {} {} within nodes and {} between them\n", seconds_text(cost.latency_seconds),
                      cost.in_sequence ? "the sum of" : "the longer of", seconds_text(cost.intra_seconds),
                      seconds_text(cost.inter_seconds));
  if (cost.algorithm == CollectiveAlgorithm::by_token)
    text += fmt::format(
        "  a token has {:.4g} experts and is sent once to each rank and node that has one: {:.4f} of all rows' bytes "
        "go to another rank, {:.4f} to another node over NICs\n",
        cost.token_shares.choices, cost.token_shares.to_rank, cost.token_shares.to_node);
  if (const Load* const load = costs.row_load(op, tensors); load != nullptr) {
    const ExchangeSkew skew = costs.skew_under(*load, op, span.ranks_per_node, cost);
    text += fmt::format(
        "  the busiest rank sends or receives, relative to a balanced exchange: {:.3f} within nodes, {:.3f} between "
        "them{}\n",
        skew.inside, skew.between,
        load->of == RowsOf::tokens ? fmt::format("; rows at its experts {:.3f}", load->busiest_rank) : "");
  }
  return text;
}

std::string formula(const OpInPlace& place, const Simulation& simulation) {
  const Cluster& cluster = simulation.scenario.cluster;
  const Op& op = *place.op;
  const auto& tensors = place.piece->tensors;
  // The bytes of one launch: a part of the op's bytes, or those of several instances in one bucket or fused kernel.
  const double covered = place.report->bytes;
  if (is_copy(op.kind) || row_of(op.stream).occupies == Occupies::host)
    return fmt::format("{} moved, bound by {}", bytes_text(covered), place.report->bound);
  OpCostModel costs(cluster, *simulation.kernels, *simulation.collectives);
  const Program& program = *simulation.program;
  costs.set_program(program);
  if (is_communication(op.kind) && !op.is_alone()) {
    if (op.algorithm != CollectiveAlgorithm::automatic || costs.row_load(op, tensors) != nullptr)
      return exchange_formula(op, tensors, costs, span_of(program.mesh, op.group, cluster));
  }
  if (is_communication(op.kind))
    return CollectiveModel(cluster, *simulation.collectives)
        .explain(collective_of(op), covered, span_of(program.mesh, op.group, cluster));
  std::string text =
      KernelModel(cluster.device, *simulation.kernels).explain(op, tensors, costs.documents_charged(op, tensors));
  if (const double share = costs.charged_share(op, tensors); share < 1)
    text += fmt::format(
        "\ntimes {:.3f}, the share of these rows on rank {} of context_parallel, whose kernels take longest over all "
        "layers",
        share, program.mesh.coordinate(costs.slowest_rank(), MeshAxis::cp));
  if (!op.turns.empty())
    text += fmt::format("  times {:.3f}: ranks take turns at the layers, and the busiest has this share of them\n",
                        op.share);
  const std::int64_t devices = program.mesh.ranks();
  if (const double loss = slowest_device_loss(devices, simulation.kernels->device_spread);
      loss > 0 && (is_matmul(op.kind) || is_attention(op.kind)))
    text += fmt::format("  times {:.4f}: until the slowest of {} devices is done (results/calibration/scale.json)\n",
                        1 + loss, devices);
  const double once = bytes(op, tensors);
  if (covered > once)
    text = fmt::format("one launch for {:.0f} instances of the piece, {}; for a single instance:\n", covered / once,
                       bytes_text(covered)) +
           text;
  return text;
}

std::string explain_ops(const std::vector<OpInPlace>& ops, const Simulation& simulation) {
  std::string text;
  append_op_head(text);
  for (const OpInPlace& place : ops) {
    append_op(text, *place.report, simulation.report.step_seconds);
    text += indented(formula(place, simulation));
  }
  return text + fmt::format("\nkernels: {}\ncollectives in a node: {}\ncollectives between nodes: {}\n",
                            simulation.kernels->source, simulation.collectives->intra_source,
                            simulation.collectives->inter_source);
}

// ---- terms

bool belongs(const OpInPlace& place, std::string_view term) {
  const Op& op = *place.op;
  const Stream waited_for = op.stream == Stream::compute ? op.account : op.stream;
  if (term.starts_with("exposed_"))
    return waited_for != Stream::compute && term.substr(8) == name_of(row_of(waited_for).account);
  if (op.stream != Stream::compute || is_communication(op.kind)) return false;
  if (term == "optimizer") return op.phase == Phase::update;
  if (op.phase == Phase::update) return false;
  if (term == "recompute") return op.phase == Phase::recompute;
  if (op.phase == Phase::recompute) return false;
  if (term == "matmul") return is_matmul(op.kind);
  if (term == "attention") return is_attention(op.kind);
  return term == "memory_bound" && !is_matmul(op.kind) && !is_attention(op.kind);
}

std::string explain_term(const TimeTerm& term, std::vector<OpInPlace> ops, const Simulation& simulation) {
  const Report& report = simulation.report;
  const double seconds = term.of(report.bounding().time);
  std::string text = fmt::format("{}: {}, {} of the step\n", term.label, seconds_text(seconds),
                                 percent_text(report.step_seconds > 0 ? seconds / report.step_seconds : 0));
  text += term.definition + '\n';
  const Program& program = *simulation.program;
  if (term.name == "bubble") {
    const auto stages = static_cast<std::int64_t>(program.stages.size());
    text += fmt::format(
        "found by walking the schedule of {} micro-batches over {} stages of {} chunks, transfers included\n"
        "for comparison, with equal stages and free transfers (Narayanan et al. 2021, section 2.2): "
        "(p - 1) / (v m) = {:.4f} of the compute time\n",
        program.schedule.micro_batches, stages, program.schedule.chunks,
        static_cast<double>(stages - 1) /
            static_cast<double>(program.schedule.chunks * program.schedule.micro_batches));
  }
  if (term.name == "host_issue") {
    const Runtime& runtime = program.runtime;
    text += fmt::format("{} per kernel, {} per collective, {} per kernel of the update{}\n",
                        seconds_text(runtime.host_seconds_per_op), seconds_text(runtime.host_seconds_per_collective),
                        seconds_text(runtime.host_seconds_per_update_op),
                        runtime.cuda_graphs ? ", paid once per block (CUDA graphs)" : "");
    if (runtime.reads_row_counts)
      text += "in each layer with experts the host waits until the device has routed the tokens: it reads the counts\n";
  }
  if (term.name == "slowest_device") {
    const std::int64_t devices = program.mesh.ranks();
    const double spread = simulation.kernels->device_spread;
    text += fmt::format(
        "= {:.4f} of products and attention: {:g} x (E({}) - E({})), where E(n) is the mean of the largest of n normal "
        "numbers\n"
        "{:g}: standard deviation / mean of the rates of seven B200 under sustained load, used for all devices\n",
        slowest_device_loss(devices, spread), spread, devices, scale_figures().calibrated_devices, spread);
    return text;
  }
  if (term.name == "production") {
    const ProductionSlowdown& slowdown = scale_figures().production;
    text += fmt::format(
        "= {} of the rest of the step for the median job; one job in ten loses {} or less, one in ten {} or more\n",
        percent_text(slowdown.median), percent_text(slowdown.better_tenth()), percent_text(slowdown.worse_tenth()));
    return text;
  }
  std::erase_if(ops, [&](const OpInPlace& place) { return !belongs(place, term.name); });
  std::stable_sort(ops.begin(), ops.end(),
                   [](const OpInPlace& a, const OpInPlace& b) { return a.seconds_per_step() > b.seconds_per_step(); });
  if (ops.empty()) return text;
  text += '\n';
  append_op_head(text);
  double alone = 0;
  for (const OpInPlace& place : ops) {
    append_op(text, *place.report, report.step_seconds);
    alone += place.seconds_per_step();
  }
  const bool of_kernels =
      term.name == "matmul" || term.name == "attention" || term.name == "memory_bound" || term.name == "recompute";
  if (!of_kernels) return text;
  text += "kernels are slower while collectives run (overlap_slowdown of the calibration)";
  if (program.stages.size() == 1) text += fmt::format(", by {} in all", seconds_text(std::max(seconds - alone, 0.0)));
  text += "; the term includes this, and these times do not\n";
  return text;
}

// A line for each term of the step that takes time and that `shown` accepts.
template <class Shown>
std::string terms_text(const Report& report, Shown shown) {
  std::string text;
  const TimeBreakdown& time = report.bounding().time;
  for (const TimeTerm& term : time_terms())
    if (term.of(time) != 0 && shown(term))
      text += fmt::format("  {:<44}{:>12}  {}\n", term.label, seconds_text(term.of(time)), term.name);
  return text;
}

std::string explain_step(const Simulation& simulation) {
  const Report& report = simulation.report;
  return fmt::format("step time: {}, the sum of what the compute stream of the bounding stage does and waits for\n",
                     seconds_text(report.step_seconds)) +
         terms_text(report, [](const TimeTerm&) { return true; });
}

// Without the unit.
std::string teraflops_text(double flops_per_second) {
  const double teraflops = flops_per_second * 1e-12;
  return teraflops < 1 ? fmt::format("{:.2g}", teraflops) : fmt::format("{:.1f}", teraflops);
}

std::string explain_mfu(const Simulation& simulation) {
  const Report& r = simulation.report;
  const ModelWork& work = simulation.program->model;
  const Dtype dtype = precision::peak_dtype(simulation.scenario);
  const double peak = r.mfu > 0 ? r.model_flops_per_second_per_device / r.mfu : 0;
  const std::string experts = work.active_parameters < work.parameters
                                  ? fmt::format("only experts that a token goes to count: {} of {} parameters\n",
                                                rate_text(work.active_parameters), rate_text(work.parameters))
                                  : "";
  return fmt::format(
      "MFU: {}\n  = model FLOPs / (step time x devices x peak)\n  = {:.4e} / ({} x {} x {} TFLOP/s)\n"
      "{}\n{}attention counted in full (PaLM, appendix B): {:.4e} FLOPs, {}\n"
      "peak of {} in {}{}: {}\n",
      percent_text(r.mfu), work.flops_per_step, seconds_text(r.step_seconds), r.devices, teraflops_text(peak),
      flop_convention(), experts, work.flops_per_step_full_attention, percent_text(r.mfu_full_attention),
      simulation.scenario.cluster.device.name, name_of(dtype),
      simulation.scenario.plan.layers.empty() ? "" : ", the fastest that layers compute in",
      simulation.scenario.cluster.device.source);
}

std::string explain_hfu(const Simulation& simulation) {
  const Report& r = simulation.report;
  const double per_device = r.mfu > 0 ? r.model_flops_per_second_per_device * r.hfu / r.mfu : 0;
  return fmt::format(
      "HFU: {}\n  = FLOPs that the devices execute / (step time x devices x peak)\n  = {:.4e} / ({} x {} x {} "
      "TFLOP/s)\nFLOPs of the model ({:.4e}, see mfu), of recomputation, and of masked pairs that kernels compute\n",
      percent_text(r.hfu), per_device * r.step_seconds * static_cast<double>(r.devices), seconds_text(r.step_seconds),
      r.devices, teraflops_text(r.hfu > 0 ? per_device / r.hfu : 0), simulation.program->model.flops_per_step);
}

std::string explain_rates(const Simulation& simulation) {
  const Report& r = simulation.report;
  return fmt::format(
      "tokens/s: {}, {} per device; sequences/s: {}\n  = tokens and sequences of one step / step time\n  = {:.0f} "
      "tokens in {:.0f} "
      "sequences / {}; per device: divided by {} devices\n",
      rate_text(r.tokens_per_second), rate_text(r.tokens_per_second_per_device), rate_text(r.sequences_per_second),
      r.tokens_per_second * r.step_seconds, r.sequences_per_second * r.step_seconds, seconds_text(r.step_seconds),
      r.devices);
}

std::string explain_exposed_communication(const Simulation& simulation) {
  return fmt::format(
             "exposed communication: {}, the time in which the bounding stage's compute stream waits for collectives "
             "and messages\n",
             seconds_text(simulation.report.exposed_communication_seconds)) +
         terms_text(simulation.report, [](const TimeTerm& term) { return term.is_communication(); });
}

std::string explain_memory(const Report& r) {
  std::string text = fmt::format("memory: {} of {} at the peak, on the fullest stage\n",
                                 bytes_text(r.memory_peak_bytes), bytes_text(r.memory_capacity_bytes));
  if (r.stages.empty()) return text;
  const StageReport& stage = r.fullest();
  text += fmt::format(
      "stage {}, {:.4g} micro-batches in flight; every tensor lives from its first definition to its last use\n",
      stage.stage, stage.in_flight_micro_batches);
  for (const MemoryPart& part : memory_parts())
    if (const double bytes = part.of(stage.memory); bytes != 0)
      text += fmt::format("  {:<44}{:>14}\n", part.label, bytes_text(bytes));
  for (const auto& [place, shared] : {std::pair{Place::host, r.host_memory}, {Place::storage, r.storage}}) {
    if (shared.peak_bytes <= 0) continue;
    text += fmt::format("{}: {} of {} per node, shared by its devices\n", name_of(place), bytes_text(shared.node_bytes),
                        shared.capacity_bytes > 0 ? bytes_text(shared.capacity_bytes) : "an unknown capacity");
    for (const MemoryPart& part : category_parts())
      if (const double bytes = stage.memory.bytes.at(place)[part.category]; bytes != 0)
        text += fmt::format("  {:<44}{:>14}\n", part.label, bytes_text(bytes));
  }
  return text;
}

// Storages of one category that a piece keeps all step long, or from the forward to the backward; the largest first.
struct KeptStorage {
  const Tensor* tensor;
  bool resident;
};
std::vector<KeptStorage> kept_storages(const Piece& piece, Category category) {
  Liveness lives;
  lives.find(piece);
  std::vector<KeptStorage> kept;
  for (const TensorId id : lives.storages()) {
    const Tensor& tensor = piece.tensors[id];
    if (tensor.category != category || tensor.place != Place::device) continue;
    const Life& life = lives.of(id);
    if (life.keeper == Keeper::step ||
        (life.keeper == Keeper::blocks && (life.kept & bit_of_block(kForwardBlock)) != 0))
      kept.push_back({&tensor, life.keeper == Keeper::step});
  }
  std::stable_sort(kept.begin(), kept.end(),
                   [](const KeptStorage& a, const KeptStorage& b) { return a.tensor->bytes() > b.tensor->bytes(); });
  return kept;
}

// Explains a category of tensors: what each piece of the fullest stage keeps, and the largest tensors.
std::string explain_tensors(Category category, double bytes, const StageReport& stage, const Program& program) {
  constexpr std::size_t kMostListed = 6;
  const std::vector<Chunk>& chunks = program.stages[static_cast<std::size_t>(stage.stage)];
  std::map<std::uint16_t, std::int64_t> instances, longest;  // by piece: number on the stage, and longest run
  for (const Chunk& chunk : chunks)
    for (const PieceRun& run : chunk.runs) {
      instances[run.piece] += run.count;
      longest[run.piece] = std::max(longest[run.piece], run.count);
    }
  const double in_flight = stage.in_flight_micro_batches / static_cast<double>(chunks.size());
  std::string text;
  double rest = bytes;
  for (const auto& [index, count] : instances) {
    const Piece& piece = program.pieces[index];
    const PieceMemory memory = piece_memory(piece, program.runtime.granularity, longest[index]);
    const double resident = memory.resident.of(Place::device, category),
                 saved = memory.saved.of(Place::device, category);
    if (resident == 0 && saved == 0) continue;
    text += fmt::format("  {}, {} on the stage\n", piece_title(program, index), count);
    const auto line = [&](const char* what, double of_one, double times, const std::string& factor) {
      if (of_one == 0) return;
      rest -= of_one * times;
      text += fmt::format("    {:<28}{:>14} x {:<24} = {:>12}\n", what, bytes_text(of_one), factor,
                          bytes_text(of_one * times));
    };
    const auto n = static_cast<double>(count);
    line("held all step long", resident, n, fmt::format("{}", count));
    line("kept for the backward", saved, n * in_flight, fmt::format("{} x {:.4g} micro-batches", count, in_flight));
    const std::vector<KeptStorage> kept = kept_storages(piece, category);
    for (std::size_t i = 0; i < std::min(kept.size(), kMostListed); ++i)
      text += fmt::format(
          "      {:<40}{:>14}  {} of {}\n", kept[i].tensor->name,
          bytes_text(static_cast<double>(kept[i].tensor->bytes())),
          fmt::join(std::span(kept[i].tensor->sizes).first(static_cast<std::size_t>(kept[i].tensor->rank)), " x "),
          name_of(kept[i].tensor->dtype));
    if (kept.size() > kMostListed) text += fmt::format("      and {} smaller ones\n", kept.size() - kMostListed);
  }
  if (std::abs(rest) < 1) return text;
  return text + fmt::format("  {:<30}{:>14}\n", "temporary tensors", bytes_text(rest)) +
         "    of the block that runs at the peak, less what it has freed by then; chunks with unequal numbers of "
         "layers add to it\n";
}

std::string explain_memory_part(const MemoryPart& part, const Simulation& simulation) {
  const Report& r = simulation.report;
  std::string text;
  if (r.stages.empty()) return part.label + "\n";
  const StageReport& stage = r.fullest();
  const double bytes = part.of(stage.memory);
  text =
      fmt::format("{}: {} of the memory peak on the fullest stage ({})\n", part.label, bytes_text(bytes), stage.stage);
  if (part.field == nullptr && part.place == Place::device)
    return text + explain_tensors(static_cast<Category>(part.category), bytes, stage, *simulation.program);
  return text + "\n" + explain_memory(r);
}

std::string explain_interval(const Simulation& simulation) {
  const Scenario& scenario = simulation.scenario;
  const Device& device = scenario.cluster.device;
  const Report& report = simulation.report;
  const IntervalClass of = interval_class(scenario, *simulation.kernels, *simulation.collectives);
  const std::optional<StepInterval> found = step_interval(of);
  if (!found) return "interval: none, because no step of this training stack was published\n";
  if (!report.expected) return "interval: none for this engine, only for the analytical engine (--engine analytical)\n";
  std::string text = fmt::format(
      "interval = step time x exp(-w) to step time x exp(w) = {} to {}, w = {:.3f}\n  four in five published steps lie "
      "inside, each predicted without its own source\n"
      "  class: {}\n  learned from: {} steps of {} sources",
      seconds_text(report.expected->low_seconds), seconds_text(report.expected->high_seconds), std::log(found->high),
      found->comparable, found->points, found->sources);
  if (found->rare_mixture_half_width > 0) {
    text += fmt::format("\n  w = {:.3f} for mixtures of experts where few were published: on {} {}",
                        found->rare_mixture_half_width, of.stack,
                        of.network.empty() ? "within a node" : "over " + of.network);
  } else {
    text +=
        fmt::format(", on up to {} devices\n  w = {:.3f} for the stack", found->most_devices, found->stack_half_width);
    if (found->origin_factor > 1) text += fmt::format(" x {:.3f} for borrowed curves", found->origin_factor);
    if (found->mixture_factor > 1) text += fmt::format(" x {:.3f} for mixtures of experts", found->mixture_factor);
    if (found->four_bit_factor > 1) text += fmt::format(" x {:.3f} for products in NVFP4", found->four_bit_factor);
  }
  if (!of.device_seen)
    text += fmt::format(" x {:.3f}, no step of {} was measured", found->unseen_device_factor, device.name);
  if (found->beyond_half_width > 0)
    text += fmt::format(" + {:.3f} for {} devices, {:.3f} per doubling beyond {}", found->beyond_half_width,
                        report.devices, scale_figures().interval_per_doubling, found->most_devices);
  if (scenario.cluster.production)
    text += "\n  widened by the spread of jobs on a production cluster: one in ten loses less, one in ten more";
  return text + "\n  source: results/calibration/steps.json, /intervals\n";
}

// Lines of the report's head, by their labels and by their names in JSON and CSV.
struct HeadLine {
  std::array<std::string_view, 6> names;
  std::string (*explain)(const Simulation&);
};
constexpr std::array<HeadLine, 7> kHeadLines{{
    {{"step", "step time", "step_seconds", "bound by", "bound_by", "total"}, explain_step},
    {{"tokens/s", "tokens/s per device", "sequences/s", "tokens_per_second", "tokens_per_second_per_device",
      "sequences_per_second"},
     explain_rates},
    {{"mfu", "MFU", "MFU, full attention", "mfu_full_attention", "model TFLOP/s per device",
      "model_flops_per_second_per_device"},
     explain_mfu},
    {{"hfu", "HFU"}, explain_hfu},
    {{"exposed communication", "exposed_communication_seconds"}, explain_exposed_communication},
    {{"interval", "80 %", "expected_step_seconds"}, explain_interval},
    {{"memory", "peak", "memory_peak_bytes", "peak_bytes"},
     [](const Simulation& s) { return explain_memory(s.report) + "\n" + allocator_text(s); }},
}};

}  // namespace

std::string explain(const std::string& name, const Simulation& simulation,
                    const std::function<Simulation(const Scenario&)>& evaluate) {
  if (name == kMemoryPlan) return memory_plan_text(simulation);
  const std::vector<OpInPlace> ops = ops_in_place(simulation);
  const Report& report = simulation.report;
  std::vector<std::string> known{std::string(kMemoryPlan)};
  const auto is_one_of = [&](const auto& names) {
    known.insert(known.end(), names.begin(), names.end());
    return std::ranges::find(names, name) != names.end();
  };
  using Names = std::array<std::string_view, 2>;
  for (const Strategy& strategy : all_strategies())
    for (const Topic& topic : strategy.topics)
      if (is_one_of(topic.names))
        return topic.text(*evaluated(simulation), [&](const Scenario& other) { return evaluated(evaluate(other)); });
  for (const HeadLine& line : kHeadLines)
    if (is_one_of(line.names)) return line.explain(simulation);
  for (const Figure& figure : report.figures) {
    const FigureKind& kind = *figure.kind;
    if (name == kind.label || name == kind.key || name == kind.group)
      return fmt::format("{}: {}, {}\n", kind.key, figure_text(figure), kind.explanation);
    known.emplace_back(kind.key);
  }
  for (const TimeTerm& term : time_terms())
    if (is_one_of(Names{term.name, term.label}) || name == term.key) return explain_term(term, ops, simulation);
  for (const MemoryPart& part : memory_parts())
    if (is_one_of(Names{part.name, part.label}) || name == part.key) return explain_memory_part(part, simulation);
  if (name == report.bound_by) return explain_step(simulation);
  std::vector<OpInPlace> wanted;
  for (const OpInPlace& place : ops)  // by name, or by the name without the block, as lists of shapes show it
    if (asks_for(name, place.name) || name == fmt::format("{}.{}", place.piece->name, place.op->name))
      wanted.push_back(place);
  if (!wanted.empty()) return explain_ops(wanted, simulation);
  for (const OpInPlace& place : ops) {
    known.push_back(place.name);
    known.emplace_back(place.op->name);
  }
  throw InputError({"--explain", ""}, describe(name),
                   "an op (see --ops), or a line of the report: step, mfu, memory, matmul, gradients, ...",
                   nearest_name(name, known));
}

std::vector<std::string> explained_names() {
  std::vector<std::string> names{std::string(kMemoryPlan)};
  for (const HeadLine& line : kHeadLines)
    if (line.names.front().find(' ') == std::string_view::npos) names.emplace_back(line.names.front());
  for (const Strategy& strategy : all_strategies())
    for (const Topic& topic : strategy.topics) names.emplace_back(topic.names.front());
  return names;
}

std::string topics_text() {
  std::string text = "\n\nTopics of --explain, beside ops and lines of the report:\n";
  for (const Strategy& strategy : all_strategies())
    for (const Topic& topic : strategy.topics) text += fmt::format("  {:<22}{}\n", topic.names.front(), topic.summary);
  return text;
}

std::string op_table(const Simulation& simulation) {
  std::string text;
  append_op_head(text);
  for (const OpReport& op : simulation.report.ops) append_op(text, op, simulation.report.step_seconds);
  return text;
}

}  // namespace orrery
