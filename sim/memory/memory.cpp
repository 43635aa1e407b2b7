#include "sim/memory/memory.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "sim/program/issue.h"

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

}  // namespace orrery
