// Memory of a step: chunks from pieces, and stages from the micro-batches in flight.
#include <fmt/format.h>

#include <algorithm>

#include "sim/analytical/engine_rep.h"
#include "sim/memory/memory.h"
#include "sim/program/work.h"

namespace orrery {
// Finds the run that lends gradients (PieceMemory::lent_gradients), and the last one that shares them.
AnalyticalEngine::Rep::LentGradients AnalyticalEngine::Rep::lent_gradients(const Chunk& chunk) const {
  LentGradients lent{chunk.runs.size(), 0};
  for (std::size_t r = 0; r < chunk.runs.size(); ++r) {
    const PieceMemory& p = pieces[chunk.runs[r].piece].memory;
    if (lent.lender == chunk.runs.size() && p.lends_gradients) lent.lender = r;
    if (p.shares_gradients) lent.begins = r;
  }
  return lent;
}

// Calls visit(transient) for each stretch of the backward of an instance of run `r`.
template <class Visit>
void AnalyticalEngine::Rep::visit_backward(const Chunk& chunk, LentGradients of, std::size_t r,
                                           const Visit& visit) const {
  const PieceMemory& p = pieces[chunk.runs[r].piece].memory;
  if (r <= of.lender || r > of.begins) return visit(p.backward_transient);
  const PlacedBytes& lent = pieces[chunk.runs[of.lender].piece].memory.lent_gradients;
  if (r == of.begins) visit(p.backward_before_shared);
  visit(sum(r == of.begins ? p.backward_from_shared : p.backward_transient, lent));
}

// The bytes of a slot in addition to everything that its micro-batch saves in the chunk. A forward has saved the
// instances up to the running one; a backward and a weight gradient have freed those behind it. Along a run, bytes
// change by the same amount per instance, so that only its ends can be the maximum. `sent`: bytes of the output that
// the chunk has sent and keeps until its backward.
ChunkMemory AnalyticalEngine::Rep::chunk_memory(const Chunk& chunk, double sent) const {
  ChunkMemory m;
  Fullest fullest_side;
  for (const PieceRun& run : chunk.runs) {
    const PieceMemory& p = pieces[run.piece].memory;
    const auto n = static_cast<double>(run.count);
    m.saved = sum(m.saved, p.saved, n);
    m.kept = sum(m.kept, p.saved_weight_gradient, n);
    fullest_side.consider(p.saved_side_input);
  }
  m.side = fullest_side.bytes();
  m.saved += m.side;
  PlacedBytes kept_behind = m.kept;
  PlacedBytes saved = m.side, kept{};  // of the runs before
  Fullest forward, backward, weight_gradient;
  const LentGradients lent = lent_gradients(chunk);
  for (std::size_t r = 0; r < chunk.runs.size(); ++r) {
    const PieceRun& run = chunk.runs[r];
    const PieceMemory& p = pieces[run.piece].memory;
    const auto n = static_cast<double>(run.count);
    const PlacedBytes through = sum(saved, p.saved, n), kept_through = sum(kept, p.saved_weight_gradient, n);
    forward.consider(sum(through, p.forward_transient));
    // In the backward, the run's last instance comes first.
    const PlacedBytes behind = sum(kept_behind, p.saved_weight_gradient, -n);
    visit_backward(chunk, lent, r, [&](const PlacedBytes& transient) {
      backward.consider(sum(sum(through, behind), transient));
      backward.consider(sum(sum(sum(saved, p.saved), sum(behind, p.saved_weight_gradient, n - 1)), transient));
    });
    weight_gradient.consider(sum(kept_through, p.weight_gradient_transient));
    saved = through;
    kept = kept_through;
    kept_behind = behind;
  }
  if (chunk.runs.empty()) return m;
  m.transient[index(SlotKind::forward)] = sum(forward.bytes(), m.saved, -1);
  m.transient[index(SlotKind::backward)] = sum(backward.bytes(), m.saved, -1);
  m.transient[index(SlotKind::weight_gradient)] = sum(weight_gradient.bytes(), m.kept, -1);
  // The forward's last op writes the output that is sent. Before it, these bytes do not exist yet.
  m.saved.of(Place::device, Category::activation) += sent;
  m.transient[index(SlotKind::forward)].of(Place::device, Category::activation) -= sent;
  return m;
}

// A pair goes through its chunks layer by layer: while the forward saves its k-th instance, the backward is at its k-th
// from the end and has freed those behind it. Returns the most that both hold, beyond all that both save.
PlacedBytes AnalyticalEngine::Rep::pair_transient(std::size_t forward_row, std::size_t backward_row) const {
  const Chunk &forward = row(forward_row).chunk, &backward = row(backward_row).chunk;
  const ChunkMemory &f = memory[forward_row], &b = memory[backward_row];
  const LentGradients lent = lent_gradients(backward);
  // Bytes that the forward has saved before its current instance; bytes that the backward has not freed yet.
  PlacedBytes saved = f.side, left = b.saved;
  Fullest fullest;
  std::size_t i = 0, j = backward.runs.size();  // indices of runs; the backward's is j - 1
  std::int64_t done_i = 0, done_j = 0;          // finished instances of these runs
  while (i < forward.runs.size() || j > 0) {
    const bool has_forward = i<forward.runs.size(), has_backward = j> 0;
    const PieceMemory* const p = has_forward ? &pieces[forward.runs[i].piece].memory : nullptr;
    const PieceMemory* const q = has_backward ? &pieces[backward.runs[j - 1].piece].memory : nullptr;
    const std::int64_t of_forward = has_forward ? forward.runs[i].count - done_i : 0;
    const std::int64_t of_backward = has_backward ? backward.runs[j - 1].count - done_j : 0;
    const std::int64_t n = !has_forward ? of_backward : !has_backward ? of_forward : std::min(of_forward, of_backward);
    // The bytes held change by the same amount with each of these instances, so the first or the last is the fullest.
    for (const std::int64_t k : {std::int64_t{0}, n - 1}) {
      PlacedBytes held = sum(saved, left);
      if (p != nullptr) held = sum(sum(held, p->saved, static_cast<double>(k + 1)), p->forward_transient);
      if (q == nullptr) {
        fullest.consider(held);
        continue;
      }
      held = sum(sum(held, q->saved, -static_cast<double>(k)), q->saved_weight_gradient, static_cast<double>(k));
      visit_backward(backward, lent, j - 1,
                     [&](const PlacedBytes& transient) { fullest.consider(sum(held, transient)); });
    }
    if (p != nullptr) {
      saved = sum(saved, p->saved, static_cast<double>(n));
      if ((done_i += n) == forward.runs[i].count) ++i, done_i = 0;
    }
    if (q != nullptr) {
      left = sum(sum(left, q->saved, -static_cast<double>(n)), q->saved_weight_gradient, static_cast<double>(n));
      if ((done_j += n) == backward.runs[j - 1].count) --j, done_j = 0;
    }
  }
  PlacedBytes transient = sum(sum(fullest.bytes(), f.saved, -1), b.saved, -1);
  transient.of(Place::device, Category::communication_buffer) += b.backward_buffers;
  return transient;
}

// The bytes of the chunks of each class of stages.
void AnalyticalEngine::Rep::hold_memory() {
  memory.resize(rows());
  gradients.assign(program->runtime.releases_gradients ? memory.size() : 0, 0);
  pair_memory.clear();
  for (std::size_t i = 0; i < classes.size(); ++i) {
    StageClass& c = classes[i];
    const auto first_stage = static_cast<std::size_t>(c.first_stage);
    const StageBuffers buffers = stage_buffers(*program, program->stages[first_stage]);
    Fullest update;
    for (std::size_t k = at(i, 0); k < at(i + 1, 0); ++k) {
      const Row of_row = row(k);
      const auto n = static_cast<double>(program->micro_batches_of(of_row.of_class));
      const std::size_t chunk = k % static_cast<std::size_t>(program->schedule.chunks);
      memory[k] = chunk_memory(
          of_row.chunk, sent_output_bytes(*program, of_row.chunk, program->schedule.position_of(first_stage, chunk)));
      memory[k].backward_buffers = buffers.backward;
      for (const SlotKind kind : {SlotKind::backward, SlotKind::weight_gradient})
        memory[k].transient[index(kind)].of(Place::device, Category::communication_buffer) += buffers.backward;
      for (const PieceRun& run : of_row.chunk.runs) {
        const PieceData& data = pieces[run.piece];
        c.recompute_flops += n * static_cast<double>(run.count) * data.recompute_flops;
        if (!gradients.empty())
          gradients[k] +=
              static_cast<double>(run.count) * released_gradient_bytes(*program, program->pieces[run.piece]);
        if (of_row.of_class > 0) continue;  // parameters are the same
        c.resident += data.memory.resident * static_cast<double>(run.count);
        update.consider(data.memory.update_transient);
      }
      if (of_row.of_class == 0 && !gradients.empty()) c.resident.of(Place::device, Category::gradient) -= gradients[k];
    }
    c.resident += buffers.resident;
    c.update_transient = update.bytes();
    c.update_transient.of(Place::device, Category::workspace) += buffers.update;
  }
}

// The fullest instant of each stage in one place. Empty if no micro-batch holds anything there.
std::vector<StagePeak> AnalyticalEngine::Rep::find_peaks(Place place) {
  const auto holds = [place](const ChunkMemory& m) {
    return m.saved.in(place) != 0 || m.kept.in(place) != 0 ||
           std::ranges::any_of(m.transient, [place](const PlacedBytes& bytes) { return bytes.in(place) != 0; });
  };
  PeakOptions options;
  if (program->schedule.pairs)
    options.pair = [&](std::size_t forward, std::size_t backward) { return pair_of(forward, backward).in(place); };
  if (place == Place::device) options.gradients = gradients;
  options.micro_batch_class = program->micro_batch_class;
  options.micro_batch_classes = program->micro_batch_classes();
  std::vector<StagePeak> peaks;
  if (std::ranges::none_of(memory, holds) &&
      std::ranges::none_of(options.gradients, [](double bytes) { return bytes > 0; }))
    return peaks;
  std::vector<ChunkBytes> chunk_bytes;
  for (const ChunkMemory& m : memory) {
    ChunkBytes& b = chunk_bytes.emplace_back(ChunkBytes{.saved = m.saved.in(place), .kept = m.kept.in(place)});
    for (std::size_t kind = 0; kind < kSlotKinds; ++kind) b.transient[kind] = m.transient[kind].in(place);
  }
  peak_bytes(program->schedule, stage_class, chunk_bytes, peaks, options);
  return peaks;
}

const PlacedBytes& AnalyticalEngine::Rep::pair_of(std::size_t forward, std::size_t backward) {
  const auto [at, is_new] = pair_memory.try_emplace({forward, backward});
  if (is_new) at->second = pair_transient(forward, backward);
  return at->second;
}

std::pair<PlacedBytes, double> AnalyticalEngine::Rep::at_peak(std::size_t stage, const StagePeak& peak) {
  const auto c = static_cast<std::size_t>(stage_class[stage]);
  const std::size_t first = at(c, 0);
  std::vector<HeldMicroBatches> held(at(c + 1, 0) - first);
  count_held(program->schedule, stage, peak.at, program->micro_batch_class, held);
  PlacedBytes bytes{};
  double in_flight = 0;
  for (std::size_t k = 0; k < held.size(); ++k) {
    const ChunkMemory& m = memory[first + k];
    in_flight += static_cast<double>(held[k].in_flight);
    bytes = sum(bytes, m.saved, static_cast<double>(held[k].in_flight));
    bytes = sum(bytes, m.kept, static_cast<double>(held[k].awaiting_weight_gradient));
  }
  bytes.of(Place::device, Category::gradient) += peak.gradient_bytes;
  const std::size_t peak_row = at(c, peak.micro_batch_class, peak.chunk);
  const PlacedBytes& transient = peak.beside >= 0 ? pair_of(first + static_cast<std::size_t>(peak.beside), peak_row)
                                                  : memory[peak_row].transient[index(peak.slot)];
  return {sum(bytes, transient), in_flight};
}

// Bytes of the driver's context, and of the buffers of each communicator that the program's ops use.
double AnalyticalEngine::Rep::framework_bytes() {
  std::vector<MeshGroup> communicators;
  const auto use = [&communicators](MeshGroup group) {
    if (std::find(communicators.begin(), communicators.end(), group) == communicators.end())
      communicators.push_back(group);
  };
  for (std::size_t p = 0; p < program->pieces.size(); ++p) {
    const PieceData& data = pieces[p];
    if (!data.used) continue;
    for (const Block& task : program->pieces[p].tasks)
      for (const Op& op : task.ops)
        if (is_communication(op.kind) && !op.is_alone() && !op.stages.has_value()) use(op.group);
    for (const BlockCode& code : data.blocks.front())
      for (const ClockNode& node : code.nodes)
        if (node.moves && !code.ops[node.op].stages.has_value()) use(code.ops[node.op].group);
  }
  const MeshGroup stages = program->mesh.group(MeshAxis::pp);
  if (!stages.empty()) use(stages);
  const std::size_t count = communicators.size() + program->stage_groups.size();
  return program->runtime.context_bytes + static_cast<double>(count) * program->runtime.buffer_bytes_per_communicator;
}

void AnalyticalEngine::Rep::fill_memory(Report& report) {
  const double framework = framework_bytes();
  const std::vector<StagePeak> peaks = find_peaks(Place::device);
  for (StageReport& stage : report.stages) stage.memory = {};
  report.memory_peak_bytes = 0;
  double update = 0, resident = 0;  // of the class
  for (std::size_t s = 0; s < program->stages.size(); ++s) {
    const StageClass& c = classes[static_cast<std::size_t>(stage_class[s])];
    if (s == 0 || stage_class[s] != stage_class[s - 1]) {
      update = device_bytes(c.update_transient);
      resident = device_bytes(c.resident);
    }
    StageReport& stage = report.stages[static_cast<std::size_t>(stage_class[s])];
    const double slots = peaks.empty() ? 0 : peaks[s].bytes;
    // Stages of a class differ in the micro-batches in flight; the fullest one represents the class.
    if (stage.memory.peak_bytes > 0 && resident + std::max(slots, update) + framework <= stage.memory.peak_bytes)
      continue;
    MemoryBreakdown& m = stage.memory;
    const bool in_slot = !peaks.empty() && slots >= update;
    const auto [bytes, in_flight] = in_slot ? at_peak(s, peaks[s]) : std::pair(c.update_transient, 0.0);
    m.bytes.at(Place::device) = sum(c.resident, bytes).at(Place::device);
    m.framework_bytes = framework;
    m.peak_bytes = device_bytes(m.bytes) + m.framework_bytes;
    stage.in_flight_micro_batches = in_flight;
  }
  for (std::size_t i = 0; i < report.stages.size(); ++i) {
    if (report.stages[i].memory.peak_bytes <= report.memory_peak_bytes) continue;
    report.memory_peak_bytes = report.stages[i].memory.peak_bytes;
    report.memory_stage = static_cast<std::int64_t>(i);
  }
  report.memory_capacity_bytes = cluster.device.memory_bytes;
  report.memory_fits = report.memory_peak_bytes <= report.memory_capacity_bytes;
  report.host_memory = {.capacity_bytes = cluster.node.host_memory_bytes};
  fill_shared(Place::host, report.host_memory, report);
  report.storage = {.capacity_bytes = cluster.node.nvme_bytes};
  fill_shared(Place::storage, report.storage, report);
}

// The devices of a node share the place. The stage with the most bytes there may fill a whole node.
void AnalyticalEngine::Rep::fill_shared(Place place, SharedMemory& shared, Report& report) {
  const std::vector<StagePeak> peaks = find_peaks(place);
  const bool stays = std::any_of(classes.begin(), classes.end(), [place](const StageClass& c) {
    return c.resident.in(place) != 0 || c.update_transient.in(place) != 0;
  });
  if (peaks.empty() && !stays) return;
  for (std::size_t s = 0; s < program->stages.size(); ++s) {
    const StageClass& c = classes[static_cast<std::size_t>(stage_class[s])];
    const bool in_slot = !peaks.empty() && peaks[s].bytes > c.update_transient.in(place);
    const PlacedBytes bytes = sum(c.resident, in_slot ? at_peak(s, peaks[s]).first : c.update_transient);
    PlacedBytes& fullest = report.stages[static_cast<std::size_t>(stage_class[s])].memory.bytes;
    if (bytes.in(place) <= fullest.in(place)) continue;
    fullest.at(place) = bytes.at(place);
    shared.peak_bytes = std::max(shared.peak_bytes, bytes.in(place));
  }
  if (shared.peak_bytes <= 0) return;
  const auto ranks = static_cast<double>(std::min<std::int64_t>(cluster.node.devices, program->mesh.ranks()));
  if (place == Place::host) shared.process_bytes = ranks * program->runtime.host_bytes_per_rank;
  shared.node_bytes = ranks * shared.peak_bytes + shared.process_bytes;
  const char* const words = place == Place::host ? "host memory" : "storage";
  const char* const field = place == Place::host ? "/cluster/node/host_memory_bytes" : "/cluster/node/nvme_bytes";
  constexpr auto kGibibyte = static_cast<double>(1 << 30);
  const double kept = shared.node_bytes / kGibibyte;
  if (shared.capacity_bytes <= 0) {
    report.notes.push_back(fmt::format("{} is not checked: a node's devices keep {:.1f} GiB there, and {} is not known",
                                       words, kept, field));
  } else if (!shared.fits()) {
    report.memory_fits = false;
    report.notes.push_back(
        fmt::format("does not fit in {}: a node's devices keep {:.1f} GiB there, but it has {:.1f} GiB ({})", words,
                    kept, shared.capacity_bytes / kGibibyte, field));
  }
}

}  // namespace orrery
