#include "sim/memory/memory.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "sim/program/issue.h"
#include "sim/program/op_traits.h"
#include "sim/program/rewrite.h"
#include "sim/program/work.h"

namespace orrery {
namespace {

using Storage = MemoryScratch::Storage;

constexpr std::size_t index(Place place) { return static_cast<std::size_t>(place); }

class Walk {
 public:
  Walk(const Piece& piece, std::int64_t instances, MemoryScratch& scratch)
      : piece_(piece), instances_(instances), scratch_(scratch), lives_(scratch.lives), storages_(scratch.storages) {}

  PieceMemory run(const Granularity& granularity) {
    PieceMemory memory;
    lives_.find(piece_);
    storages_.resize(piece_.tensors.size());
    for (auto& ids : scratch_.entering) ids.clear();
    scratch_.passing.clear();
    std::size_t shared = kNone;  // index of the backward's op that first adds to shared gradients
    for (const TensorId id : lives_.storages()) {
      if (piece_.tensors[id].shared && category(id) == Category::gradient && lives_.of(id).touches(kBackwardBlock))
        shared = std::min<std::size_t>(shared, lives_.of(id).first[kBackwardBlock]);
      elsewhere_ = elsewhere_ || place(id) != Place::device;
      const auto bytes = static_cast<double>(piece_.tensors[id].bytes());
      const double granule = granularity.bytes[index(place(id))];
      storages_[id] = {.bytes = granule > 0 ? std::ceil(bytes / granule) * granule : bytes};
      keep(id, memory);
    }
    for (const SideStream& side : piece_.sides)
      if (side.input != kNoTensor) keep_side_input(lives_.storage(side.input), memory);
    memory.forward_transient = transient(kForwardBlock, memory.saved);
    memory.backward_transient = transient(kBackwardBlock, memory.saved);
    memory.shares_gradients = shared != kNone;
    if (memory.shares_gradients) {
      memory.backward_before_shared = transient(kBackwardBlock, memory.saved, 0, shared);
      memory.backward_from_shared = transient(kBackwardBlock, memory.saved, shared);
    }
    memory.weight_gradient_transient = transient(kWeightGradientBlock, memory.saved_weight_gradient);
    memory.update_transient = transient(kUpdateBlock, {});
    return memory;
  }

 private:
  Category category(TensorId id) const { return piece_.tensors[id].category; }
  Place place(TensorId id) const { return piece_.tensors[id].place; }
  void add(TensorId id, PlacedBytes& to) const { to.of(place(id), category(id)) += storages_[id].bytes; }

  // Adds the storage to everything that outlives a block.
  void keep(TensorId id, PieceMemory& memory) {
    const Life& life = lives_.of(id);
    if (life.keeper == Keeper::step) return add(id, memory.resident);
    if (life.keeper == Keeper::others || life.touched == 0) return;
    scratch_.passing.push_back(id);
    if ((life.kept & bit_of_block(kForwardBlock)) != 0) add(id, memory.saved);
    if (life.enters_block(kWeightGradientBlock)) add(id, memory.saved_weight_gradient);
    for (std::size_t block = 0; block < kBlocks.size(); ++block)
      if (life.enters_block(block)) scratch_.entering[block].push_back(id);
    if (!life.lent || category(id) != Category::gradient || !life.enters_block(kBackwardBlock)) return;
    memory.lends_gradients = true;
    add(id, memory.lent_gradients);
  }

  void keep_side_input(TensorId id, PieceMemory& memory) const {
    if (lives_.of(id).touches(kBackwardBlock)) add(id, memory.saved_side_input);
  }

  // The bytes at the worst instant of the ops from `first` to before `end`.
  PlacedBytes transient(std::size_t block, const PlacedBytes& saved, std::size_t first = 0, std::size_t end = kNone) {
    const std::span<const Op> ops = (piece_.*kBlocks[block]).ops;
    if (ops.empty()) return {};
    PlacedBytes now = saved * -1, ahead{};
    std::array<double, kPlaces> sums;
    for (std::size_t p = 0; p < kPlaces; ++p) sums[p] = now.in(static_cast<Place>(p));
    const auto change = [&](TensorId id, double bytes) {
      now.of(place(id), category(id)) += bytes;
      sums[index(place(id))] += bytes;
    };
    list_lives(block, ops.size());
    for (TensorId id : scratch_.entering[block]) change(id, storages_[id].bytes);
    PlacedBytes worst = now;  // at the start of the block, if it counts
    std::array<double, kPlaces> most = sums;
    if (first > 0) most.fill(-std::numeric_limits<double>::infinity());
    const std::size_t places = elsewhere_ ? kPlaces : 1;
    const auto keep_worst = [&] {
      for (std::size_t p = 0; p < places; ++p)
        if (sums[p] > most[p]) worst.places[p] = now.places[p], most[p] = sums[p];
    };
    bool gathers_ahead = false;
    std::size_t issues_from = 0;
    for (std::size_t p = 0; p < ops.size(); ++p) {
      if (gathers_ahead && p == issues_from && p > 0) hold_furthest(ops.first(p), now, sums);
      for (TensorId id = scratch_.starts[p]; id != kNoTensor; id = storages_[id].next_start)
        change(id, storages_[id].bytes);
      if (p >= first && p < end) keep_worst();
      for (TensorId id = scratch_.ends[p]; id != kNoTensor; id = storages_[id].next_end)
        change(id, -storages_[id].bytes);
      const Op& op = ops[p];
      if (op.prefetch > 0) {
        if (!gathers_ahead) issues_from = issues_ahead_from(ops);
        gathers_ahead = true;
        hold_for_others(op, false, op.prefetch - (issues_from > p ? 1 : 0), ahead);
      }
      if (op.every > 1 && block != kUpdateBlock) hold_for_others(op, true, op.every - 1, ahead);
    }
    worst += ahead;
    return worst;
  }

  // By op: the storages whose lives in the block begin and end there. Storages that are alive at the start begin
  // before.
  void list_lives(std::size_t block, std::size_t ops) {
    scratch_.starts.assign(ops, kNoTensor);
    scratch_.ends.assign(ops, kNoTensor);
    for (const TensorId id : scratch_.passing) {
      const Life& life = lives_.of(id);
      if (!life.touches(block)) continue;
      Storage& s = storages_[id];
      if (!life.enters_block(block)) s.next_start = std::exchange(scratch_.starts[life.first[block]], id);
      if (!life.outlives(block)) s.next_end = std::exchange(scratch_.ends[life.last[block]], id);
    }
  }

  // Buffers of other instances of the piece that are alive at the same time: gathered ahead, or waiting for their
  // bucket.
  void hold_for_others(const Op& op, bool reads, std::int64_t instances, PlacedBytes& ahead) const {
    const auto others = static_cast<double>(std::min(instances, instances_ - 1));
    std::array<TensorId, 10> used;  // storages of the op, each once
    std::size_t n = 0;
    const auto hold = [&](TensorId id, bool counts) {
      if (id == kNoTensor) return;
      const TensorId root = lives_.storage(id);
      if (lives_.of(root).keeper != Keeper::blocks) return;
      if (std::find(used.begin(), used.begin() + n, root) != used.begin() + n) return;
      used[n++] = root;
      if (counts) ahead.of(place(root), category(root)) += others * storages_[root].bytes;
    };
    for (TensorId id : op.reads) hold(id, reads);
    for (TensorId id : op.writes) hold(id, true);
  }

  // From here on, holds what `ops` gather ahead for the furthest instance.
  void hold_furthest(std::span<const Op> ops, PlacedBytes& now, std::array<double, kPlaces>& sums) const {
    PlacedBytes held{};
    for (const Op& op : ops) {
      if (op.prefetch == 0) continue;
      hold_for_others(op, false, op.prefetch, held);
      PlacedBytes nearer{};
      hold_for_others(op, false, op.prefetch - 1, nearer);
      held += nearer * -1;
    }
    now += held;
    for (std::size_t p = 0; p < kPlaces; ++p) sums[p] += held.in(static_cast<Place>(p));
  }

  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  const Piece& piece_;
  const std::int64_t instances_;
  bool elsewhere_ = false;  // whether some tensor lies outside the device
  MemoryScratch& scratch_;
  Liveness& lives_;
  std::vector<Storage>& storages_;
};

}  // namespace

void Fullest::consider(const PlacedBytes& bytes) {
  for (std::size_t p = 0; p < kPlaces; ++p) {
    const double sum = bytes.in(static_cast<Place>(p));
    if (any_ && sum <= most_[p]) continue;
    most_[p] = sum;
    bytes_.places[p] = bytes.places[p];
  }
  any_ = true;
}

PieceMemory piece_memory(const Piece& piece, const Granularity& granularity, std::int64_t instances,
                         MemoryScratch& scratch) {
  return Walk(piece, instances, scratch).run(granularity);
}

PieceMemory piece_memory(const Piece& piece, const Granularity& granularity, std::int64_t instances) {
  MemoryScratch scratch;
  return piece_memory(piece, granularity, instances, scratch);
}

namespace {

// Bytes of a stage's Runtime::placeholder_gradients. They have the dtype of the tensors that layers hand on.
double placeholder_bytes(const Program& program, std::span<const Chunk> stage) {
  double total = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> placeholders;  // rows and columns
  for (const Chunk& chunk : stage)
    for (const PieceRun& run : chunk.runs) {
      const Piece& piece = program.pieces[run.piece];
      if (piece.input == kNoTensor) continue;
      for (const Block* block : {&piece.backward, &piece.weight_gradient})
        for (const Op& op : block->ops) {
          if (op.kind != OpKind::linear_weight_gradient) continue;
          const GemmShape shape = gemm_shape(op, piece.tensors);
          const std::pair matrix{shape.m, shape.n};
          if (std::find(placeholders.begin(), placeholders.end(), matrix) != placeholders.end()) continue;
          placeholders.push_back(matrix);
          total += static_cast<double>(bytes_of(piece.tensors[piece.input].dtype, shape.m * shape.n));
        }
    }
  return total;
}

// Counts the elements of 16-bit gradients that the update turns into optimizers' numbers, by place.
std::array<double, kPlaces> narrow_gradients(const Program& program, std::span<const Chunk> stage) {
  std::array<double, kPlaces> elements{};
  for (const Chunk& chunk : stage)
    for (const PieceRun& run : chunk.runs) {
      const Piece& piece = program.pieces[run.piece];
      for (const Op& op : piece.update.ops) {
        // The optimizer reads gradients itself, or what a scale in another place makes of them.
        const bool scales = op.kind == OpKind::scale && op.reads[0] != op.writes[0];
        if (!is_optimizer(op.kind) && !scales) continue;
        const Tensor& gradients = piece.tensors[op.reads[0]];
        // An outer optimizer reads no gradients.
        if (bits_of(gradients.dtype) != 16 || gradients.category != Category::gradient) continue;
        const Place place = piece.tensors[storage_of(piece, op.reads[0])].place;
        elements[static_cast<std::size_t>(place)] += static_cast<double>(run.count * gradients.elements());
      }
    }
  return elements;
}

}  // namespace

StageBuffers stage_buffers(const Program& program, std::span<const Chunk> stage) {
  const Runtime& runtime = program.runtime;
  StageBuffers buffers;
  if (runtime.placeholder_gradients)
    buffers.resident.of(Place::device, Category::workspace) += placeholder_bytes(program, stage);
  if (runtime.keeps_reduction_buffers)
    buffers.resident.of(Place::device, Category::communication_buffer) += runtime.reduction_buffer_bytes;
  else
    buffers.backward = runtime.reduction_buffer_bytes;
  if (runtime.copies_gradients_for_update) {
    constexpr double kFp32 = 4, kFlat = 2;
    const std::array<double, kPlaces> elements = narrow_gradients(program, stage);
    const double here = elements[static_cast<std::size_t>(Place::device)];
    const double at_once = runtime.update_copy_elements > 0 ? std::min(here, runtime.update_copy_elements) : here;
    buffers.update = at_once * (kFlat + kFp32);
    buffers.resident.of(Place::host, Category::gradient) += elements[static_cast<std::size_t>(Place::host)] * kFp32;
  }
  return buffers;
}

double released_gradient_bytes(const Program& program, const Piece& piece) {
  if (!program.runtime.releases_gradients) return 0;
  double bytes = 0;
  for (const ParameterSet& set : piece.sets) {
    if (set.frozen() || set.own_gradients == set.gradients) continue;
    const Tensor& whole = piece.tensors[storage_of(piece, set.gradients)];
    if (whole.place == Place::device && whole.resident)
      bytes += static_cast<double>(whole.bytes() - piece.tensors[set.own_gradients].bytes());
  }
  return bytes;
}

double sent_output_bytes(const Program& program, const Chunk& chunk, std::int64_t position) {
  const SentOutputs sent = program.runtime.sent_outputs;
  const auto last = static_cast<std::int64_t>(program.stages.size()) * program.schedule.chunks - 1;
  if (sent == SentOutputs::freed || position == last || chunk.runs.empty()) return 0;
  const Piece& piece = program.pieces[chunk.runs.back().piece];
  if (piece.output == kNoTensor) return 0;
  Liveness lives;
  lives.find(piece);
  const TensorId output = lives.storage(piece.output);
  const Life& life = lives.of(output);
  const Tensor& tensor = piece.tensors[output];
  if (tensor.place != Place::device || life.keeper != Keeper::blocks || (life.kept & bit_of_block(kForwardBlock)) != 0)
    return 0;
  const auto bytes = static_cast<double>(tensor.bytes());
  const MeshGroup tp = program.mesh.group(MeshAxis::tp);
  const bool in_parts = sent == SentOutputs::part && program.schedule.scattered_transfers && !tp.empty() &&
                        !piece.tensors[piece.output].divided_over().contains(tp);
  return in_parts ? bytes / static_cast<double>(program.mesh.size(tp)) : bytes;
}

}  // namespace orrery
