// Memory of a step: chunks from pieces, stages from what is in flight.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <limits>
#include <string>

#include "sim/analytical/engine_rep.h"

namespace orrery {
namespace {

constexpr std::size_t index(SlotKind kind) { return static_cast<std::size_t>(kind); }

std::string gibibytes(double bytes) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f GiB", bytes / static_cast<double>(1 << 30));
  return text.data();
}

// Keeps the fullest of several instants.
class Fullest {
 public:
  void consider(const CategoryBytes& bytes) {
    const double device = device_bytes(bytes);
    if (device <= device_) return;
    device_ = device;
    bytes_ = bytes;
  }
  CategoryBytes above(const CategoryBytes& base) const {
    CategoryBytes difference = bytes_;
    for (std::size_t i = 0; i < difference.size(); ++i) difference[i] -= base[i];
    return difference;
  }

 private:
  double device_ = -std::numeric_limits<double>::infinity();
  CategoryBytes bytes_{};
};

CategoryBytes sum(CategoryBytes a, const CategoryBytes& b) { return a += b; }

}  // namespace

// The transient of a slot on top of all that its micro-batch saves in the chunk: a forward has saved the instances up
// to the one that runs; a backward and a weight gradient have freed those behind it. Along a run what is held changes
// by the same amounts from instance to instance, so its ends are the candidates.
ChunkMemory AnalyticalEngine::Rep::chunk_memory(const Chunk& chunk) const {
  ChunkMemory m;
  CategoryBytes side{}, kept_behind{};
  for (const Run& run : chunk.runs) {
    const PieceMemory& p = pieces[run.piece].memory;
    const auto n = static_cast<double>(run.count);
    m.saved += p.saved * n;
    m.kept += p.saved_weight_gradient * n;
    if (device_bytes(p.saved_side_input) > device_bytes(side)) side = p.saved_side_input;
  }
  m.saved += side;
  kept_behind = m.kept;
  CategoryBytes saved = side, kept{};  // of the runs before
  Fullest forward, backward, weight_gradient;
  for (const Run& run : chunk.runs) {
    const PieceMemory& p = pieces[run.piece].memory;
    const auto n = static_cast<double>(run.count);
    const CategoryBytes through = sum(saved, p.saved * n), kept_through = sum(kept, p.saved_weight_gradient * n);
    forward.consider(sum(through, p.forward_transient));
    // Backwards, the run's last instance comes first.
    CategoryBytes behind = kept_behind;
    for (std::size_t i = 0; i < behind.size(); ++i) behind[i] -= n * p.saved_weight_gradient[i];
    backward.consider(sum(sum(through, behind), p.backward_transient));
    backward.consider(
        sum(sum(sum(saved, p.saved), sum(behind, p.saved_weight_gradient * (n - 1))), p.backward_transient));
    weight_gradient.consider(sum(kept_through, p.weight_gradient_transient));
    saved = through;
    kept = kept_through;
    kept_behind = behind;
  }
  if (chunk.runs.empty()) return m;
  m.transient[index(SlotKind::forward)] = forward.above(m.saved);
  m.transient[index(SlotKind::backward)] = backward.above(m.saved);
  m.transient[index(SlotKind::weight_gradient)] = weight_gradient.above(m.kept);
  return m;
}

CategoryBytes AnalyticalEngine::Rep::bytes_at_peak(const Program& program, std::size_t stage) const {
  const auto chunks = static_cast<std::size_t>(program.schedule.chunks);
  const auto c = static_cast<std::size_t>(stage_class[stage]);
  CategoryBytes bytes{};
  for (std::size_t k = 0; k < chunks; ++k) {
    const ChunkMemory& m = memory[c * chunks + k];
    bytes += m.saved * static_cast<double>(peaks.in_flight[stage * chunks + k]);
    bytes += m.kept * static_cast<double>(peaks.awaiting_weight_gradient[stage * chunks + k]);
  }
  const StagePeak& peak = peaks.stages[stage];
  bytes += memory[c * chunks + peak.chunk].transient[index(peak.slot)];
  return bytes;
}

// Context of the driver, and buffers of each communicator that the program's ops use.
double AnalyticalEngine::Rep::framework_bytes(const Program& program) const {
  std::uint64_t groups = 0, cut_groups = 0;
  static_assert(kMeshAxes <= 6, "a set of axes is a bit of `groups`");
  for (const PieceData& data : pieces) {
    if (!data.used) continue;
    for (const BlockCode& code : data.blocks)
      for (const ClockNode& node : code.nodes)
        if (node.moves)
          (code.ops[node.op].neighbours > 0 ? cut_groups : groups) |= std::uint64_t{1} << code.ops[node.op].axes.bits();
  }
  if (program.boundary_bytes > 0 && program.mesh.size(MeshAxis::pp) > 1)
    groups |= std::uint64_t{1} << MeshAxes(MeshAxis::pp).bits();
  const int communicators = std::popcount(groups) + std::popcount(cut_groups) + (tied_seconds > 0 ? 1 : 0);
  return program.runtime.context_bytes + communicators * program.runtime.buffer_bytes_per_communicator;
}

void AnalyticalEngine::Rep::fill_memory(const Program& program, Report& report) {
  peak_bytes(program.schedule, stage_class, chunk_bytes, peaks);
  const auto chunks = static_cast<std::size_t>(program.schedule.chunks);
  const double framework = framework_bytes(program);
  constexpr auto kActivation = static_cast<std::size_t>(Category::activation);
  for (StageReport& stage : report.stages) stage.memory = {};
  report.memory_peak_bytes = 0;
  for (std::size_t s = 0; s < program.stages.size(); ++s) {
    const StageClass& c = classes[static_cast<std::size_t>(stage_class[s])];
    StageReport& stage = report.stages[static_cast<std::size_t>(stage_class[s])];
    const double slots = peaks.stages[s].bytes, update = device_bytes(c.update_transient);
    const double resident = device_bytes(c.resident);
    // Stages of a class differ in what is in flight; the fullest speaks for it.
    if (stage.memory.peak_bytes > 0 &&
        resident + std::max(slots, update) + framework <= stage.memory.peak_bytes - stage.memory.fragmentation_bytes)
      continue;
    MemoryBreakdown& m = stage.memory;
    const CategoryBytes above = slots >= update ? bytes_at_peak(program, s) : c.update_transient;
    m.bytes = sum(c.resident, above);
    m.framework_bytes = framework;
    m.fragmentation_bytes = program.runtime.allocator_fragmentation * std::max(0.0, m.bytes[kActivation]);
    m.peak_bytes = device_bytes(m.bytes) + m.framework_bytes + m.fragmentation_bytes;
    stage.in_flight_micro_batches = 0;
    if (slots >= update)
      for (std::size_t k = 0; k < chunks; ++k)
        stage.in_flight_micro_batches += static_cast<double>(peaks.in_flight[s * chunks + k]);
  }
  for (std::size_t i = 0; i < report.stages.size(); ++i) {
    if (report.stages[i].memory.peak_bytes <= report.memory_peak_bytes) continue;
    report.memory_peak_bytes = report.stages[i].memory.peak_bytes;
    report.memory_stage = static_cast<std::int64_t>(i);
  }
  report.memory_capacity_bytes = cluster.device.memory_bytes;
  report.memory_fits = report.memory_peak_bytes <= report.memory_capacity_bytes;

  // A node's devices share its host memory; the stage with the largest host copies may fill a whole node.
  double host_bytes = 0;
  for (const StageReport& stage : report.stages)
    host_bytes = std::max(host_bytes, stage.memory.bytes[static_cast<std::size_t>(Category::host_copy)]);
  host_bytes *= static_cast<double>(std::min<std::int64_t>(cluster.node.devices, program.mesh.ranks()));
  const double host_capacity = cluster.node.host_memory_bytes;
  if (host_capacity > 0 && host_bytes > host_capacity) {
    report.memory_fits = false;
    report.notes.push_back("does not fit in host memory: a node's devices keep " + gibibytes(host_bytes) + " there, it has " +
                           gibibytes(host_capacity));
  }
}

}  // namespace orrery
