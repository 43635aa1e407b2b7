#include "sim/memory/memory.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace orrery {
namespace {

constexpr int kForward = 0, kBackward = 1, kWeightGradient = 2, kUpdate = 3, kBlocks = 4;
using Storage = MemoryScratch::Storage;

constexpr std::size_t index(Place place) { return static_cast<std::size_t>(place); }

constexpr bool is_persistent(Category category) {
  return category == Category::parameter || category == Category::gradient || category == Category::optimizer_state;
}

class Walk {
 public:
  Walk(const Piece& piece, const Granularity& granularity, std::int64_t instances, MemoryScratch& scratch)
      : piece_(piece),
        instances_(instances),
        blocks_{&piece.forward, &piece.backward, &piece.weight_gradient, &piece.update},
        root_(scratch.root),
        storages_(scratch.storages),
        entering_(scratch.entering),
        starts_(scratch.starts),
        ends_(scratch.ends) {
    find_roots(granularity);
    for (int b = 0; b < kBlocks; ++b) record_accesses(b);
  }

  PieceMemory run() {
    PieceMemory memory;
    for (auto& ids : entering_) ids.clear();
    for (std::size_t i = 0; i < storages_.size(); ++i)
      if (root_[i] == i) classify(static_cast<TensorId>(i), memory);
    memory.forward_transient = transient(kForward, memory.saved);
    memory.backward_transient = transient(kBackward, memory.saved);
    memory.weight_gradient_transient = transient(kWeightGradient, memory.saved_weight_gradient);
    memory.update_transient = transient(kUpdate, {});
    return memory;
  }

 private:
  static constexpr std::uint8_t bit(int block) { return static_cast<std::uint8_t>(1u << block); }
  Category category(TensorId id) const { return piece_.tensors[id].category; }

  Place place(TensorId id) const { return piece_.tensors[id].place; }

  void find_roots(const Granularity& granularities) {
    const auto& tensors = piece_.tensors;
    root_.resize(tensors.size());
    storages_.resize(tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      auto id = static_cast<TensorId>(i);
      while (tensors[id].alias_of != kNoTensor) id = tensors[id].alias_of;
      root_[i] = id;
      if (id != i) continue;
      const auto bytes = static_cast<double>(tensors[i].bytes());
      const double granularity = granularities.bytes[index(tensors[i].place)];
      elsewhere_ = elsewhere_ || tensors[i].place != Place::device;
      storages_[i] = Storage{};
      storages_[i].bytes = granularity > 0 ? std::ceil(bytes / granularity) * granularity : bytes;
    }
  }

  void access(int block, std::uint16_t position, const Op& op, TensorId id, bool write) {
    const TensorId root = root_[id];
    Storage& s = storages_[root];
    const bool always = op.when == When::every_micro_batch;
    if ((s.touched & bit(block)) == 0) {
      if (s.touched == 0 && write && !always) s.conditional = true;
      const bool whole = always || !is_persistent(category(root));
      if (write && whole && (!op.accumulate || s.touched == 0)) s.defined |= bit(block);
      s.touched |= bit(block);
      s.first[static_cast<std::size_t>(block)] = position;
    }
    s.last[static_cast<std::size_t>(block)] = position;
    s.read |= !write;
    s.unconditional |= always;
  }

  void record_accesses(int block) {
    const auto& ops = blocks_[static_cast<std::size_t>(block)]->ops;
    for (std::size_t p = 0; p < ops.size(); ++p) {
      const Op& op = ops[p];
      for (TensorId id : op.reads)
        if (id != kNoTensor) access(block, static_cast<std::uint16_t>(p), op, id, false);
      for (TensorId id : op.writes)
        if (id != kNoTensor) access(block, static_cast<std::uint16_t>(p), op, id, true);
    }
  }

  bool is(TensorId root, TensorId boundary) const { return boundary != kNoTensor && root_[boundary] == root; }

  bool is_resident(TensorId id, const Storage& s) const {
    const Category c = category(id);
    if (piece_.tensors[id].resident) return true;
    if (is_persistent(c)) {
      const bool flat = (c == Category::parameter && piece_.flat_parameters != kNoTensor) ||
                        (c == Category::gradient && piece_.flat_gradients != kNoTensor);
      return (!s.read && !flat) || (s.touched & ~s.defined) != 0;
    }
    const bool in_step = (s.touched & (bit(kForward) | bit(kBackward) | bit(kWeightGradient))) != 0;
    const bool updated = (s.touched & bit(kUpdate)) != 0;
    const std::uint8_t first = s.touched & static_cast<std::uint8_t>(-s.touched);
    const bool written_first = (s.defined & first) != 0;
    return (in_step && updated) || (s.conditional && s.unconditional) || (place(id) != Place::device && !written_first);
  }

  void classify(TensorId id, PieceMemory& memory) {
    Storage& s = storages_[id];
    const auto add = [&](PlacedBytes& to) { to.of(place(id), category(id)) += s.bytes; };
    const auto touches = [&](int block) { return (s.touched & bit(block)) != 0; };
    const auto enters = [&](int block) { return (s.touched & ~s.defined & bit(block)) != 0; };
    bool side_input = false, side_gradient = false, side_output = false;
    for (const SideStream& side : piece_.sides) {
      side_input = side_input || is(id, side.input);
      side_gradient = side_gradient || is(id, side.input_gradient);
      side_output = side_output || is(id, side.output);
    }
    if (piece_.tensors[id].shared || side_input || side_gradient) {
      if (side_input && touches(kBackward)) add(memory.saved_side_input);
      return;
    }
    if (is_resident(id, s)) {
      add(memory.resident);
      return;
    }
    s.comes_and_goes = true;
    const bool for_weights = enters(kWeightGradient);
    const bool redefined = touches(kBackward) && !enters(kBackward);
    const bool saved = touches(kForward) && (enters(kBackward) || (for_weights && !redefined));
    if (saved) add(memory.saved);
    if (for_weights) add(memory.saved_weight_gradient);
    if (saved || is(id, piece_.output) || side_output) s.outlives |= bit(kForward);
    if (for_weights || is(id, piece_.input_gradient)) s.outlives |= bit(kBackward);
    for (int block = 0; block < kBlocks; ++block)
      if (enters(block) || (block == kBackward && saved)) {
        entering_[static_cast<std::size_t>(block)].push_back(id);
        s.enters |= bit(block);
      }
  }

  PlacedBytes transient(int block, const PlacedBytes& saved) {
    const auto& ops = blocks_[static_cast<std::size_t>(block)]->ops;
    if (ops.empty()) return {};
    PlacedBytes now = saved * -1, ahead{};
    std::array<double, kPlaces> sums;
    for (std::size_t p = 0; p < kPlaces; ++p) sums[p] = now.in(static_cast<Place>(p));
    const auto change = [&](TensorId id, double bytes) {
      now.of(place(id), category(id)) += bytes;
      sums[index(place(id))] += bytes;
    };
    list_lives(block, ops.size());
    for (TensorId id : entering_[static_cast<std::size_t>(block)]) change(id, storages_[id].bytes);
    PlacedBytes worst = now;
    std::array<double, kPlaces> most = sums;
    const std::size_t places = elsewhere_ ? kPlaces : 1;
    const auto keep_worst = [&] {
      for (std::size_t p = 0; p < places; ++p)
        if (sums[p] > most[p]) worst.places[p] = now.places[p], most[p] = sums[p];
    };
    for (std::size_t p = 0; p < ops.size(); ++p) {
      for (TensorId id = starts_[p]; id != kNoTensor; id = storages_[id].next_start) change(id, storages_[id].bytes);
      keep_worst();
      for (TensorId id = ends_[p]; id != kNoTensor; id = storages_[id].next_end) change(id, -storages_[id].bytes);
      const Op& op = ops[p];
      if (op.prefetch > 0) hold_for_others(op, false, op.prefetch, ahead);
      if (op.every > 1 && block != kUpdate) hold_for_others(op, true, op.every - 1, ahead);
    }
    worst += ahead;
    return worst;
  }

  // Of each op, whose life in the block begins and ends with it; what enters the block alive has begun before.
  void list_lives(int block, std::size_t ops) {
    const auto b = static_cast<std::size_t>(block);
    starts_.assign(ops, kNoTensor);
    ends_.assign(ops, kNoTensor);
    for (std::size_t i = 0; i < storages_.size(); ++i) {
      if (root_[i] != i) continue;
      Storage& s = storages_[i];
      if (!s.comes_and_goes || (s.touched & bit(block)) == 0) continue;
      const auto id = static_cast<TensorId>(i);
      if ((s.enters & bit(block)) == 0) s.next_start = std::exchange(starts_[s.first[b]], id);
      if ((s.outlives & bit(block)) == 0) s.next_end = std::exchange(ends_[s.last[b]], id);
    }
  }

  // Buffers of other instances of the piece that are alive meanwhile: gathered ahead, or waiting for their bucket.
  void hold_for_others(const Op& op, bool reads, std::int64_t instances, PlacedBytes& ahead) const {
    const auto others = static_cast<double>(std::min(instances, instances_ - 1));
    std::array<TensorId, 10> used;  // storages of the op, each once
    std::size_t n = 0;
    const auto hold = [&](TensorId id, bool counts) {
      if (id == kNoTensor) return;
      const TensorId root = root_[id];
      if (!storages_[root].comes_and_goes) return;
      if (std::find(used.begin(), used.begin() + n, root) != used.begin() + n) return;
      used[n++] = root;
      if (counts) ahead.of(place(root), category(root)) += others * storages_[root].bytes;
    };
    for (TensorId id : op.reads) hold(id, reads);
    for (TensorId id : op.writes) hold(id, true);
  }

  const Piece& piece_;
  const std::int64_t instances_;
  bool elsewhere_ = false;  // something lies beyond the device
  std::array<const Block*, kBlocks> blocks_;
  std::vector<TensorId>& root_;
  std::vector<Storage>& storages_;
  std::array<std::vector<TensorId>, 4>& entering_;
  std::vector<TensorId>&starts_, &ends_;
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
  return Walk(piece, granularity, instances, scratch).run();
}

PieceMemory piece_memory(const Piece& piece, const Granularity& granularity, std::int64_t instances) {
  MemoryScratch scratch;
  return piece_memory(piece, granularity, instances, scratch);
}

}  // namespace orrery
