#include "sim/memory/memory.h"

#include <algorithm>
#include <cmath>

namespace orrery {
namespace {

constexpr int kForward = 0, kBackward = 1, kWeightGradient = 2, kUpdate = 3, kBlocks = 4;
using Storage = MemoryScratch::Storage;

constexpr std::size_t index(Category category) { return static_cast<std::size_t>(category); }

constexpr bool is_persistent(Category category) {
  return category == Category::parameter || category == Category::gradient || category == Category::optimizer_state;
}

class Walk {
 public:
  Walk(const Piece& piece, double granularity, std::int64_t instances, MemoryScratch& scratch)
      : piece_(piece),
        instances_(instances),
        blocks_{&piece.forward, &piece.backward, &piece.weight_gradient, &piece.update},
        root_(scratch.root),
        storages_(scratch.storages) {
    find_roots(granularity);
    for (int b = 0; b < kBlocks; ++b) record_accesses(b);
  }

  PieceMemory run() {
    PieceMemory memory;
    for (std::size_t i = 0; i < storages_.size(); ++i)
      if (root_[i] == i) classify(static_cast<TensorId>(i), memory);
    memory.forward_transient = transient(kForward, memory.saved);
    memory.backward_transient = transient(kBackward, memory.saved);
    memory.weight_gradient_transient = transient(kWeightGradient, memory.saved_weight_gradient);
    memory.update_transient = transient(kUpdate, {});
    return memory;
  }

 private:
  Category category(TensorId id) const { return piece_.tensors[id].category; }
  Storage& storage(TensorId id) { return storages_[root_[id]]; }

  void find_roots(double granularity) {
    const auto& tensors = piece_.tensors;
    root_.resize(tensors.size());
    storages_.assign(tensors.size(), Storage{});
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      auto id = static_cast<TensorId>(i);
      while (tensors[id].alias_of != kNoTensor) id = tensors[id].alias_of;
      root_[i] = id;
      Storage& s = storages_[i];
      s.first.fill(-1);
      s.last.fill(-1);
      const auto bytes = static_cast<double>(tensors[i].bytes());
      s.bytes = granularity > 0 ? std::ceil(bytes / granularity) * granularity : bytes;
    }
  }

  void access(int block, int position, const Op& op, TensorId id, bool write) {
    Storage& s = storage(id);
    const auto b = static_cast<std::size_t>(block);
    const bool always = op.when == When::every_micro_batch;
    const bool untouched = std::all_of(s.first.begin(), s.first.end(), [](std::int32_t f) { return f < 0; });
    if (untouched && write && !always) s.conditional = true;
    if (s.first[b] < 0) {
      s.first[b] = position;
      const bool whole = always || !is_persistent(category(root_[id]));
      if (write && whole && (!op.accumulate || untouched)) s.defined = static_cast<std::uint8_t>(s.defined | (1u << b));
    }
    s.last[b] = position;
    s.read |= !write;
    s.unconditional |= always;
  }

  void record_accesses(int block) {
    const auto& ops = blocks_[static_cast<std::size_t>(block)]->ops;
    for (int p = 0; p < static_cast<int>(ops.size()); ++p) {
      const Op& op = ops[static_cast<std::size_t>(p)];
      for (TensorId id : op.reads)
        if (id != kNoTensor) access(block, p, op, id, false);
      for (TensorId id : op.writes)
        if (id != kNoTensor) access(block, p, op, id, true);
    }
  }

  void classify(TensorId id, PieceMemory& memory) {
    Storage& s = storages_[id];
    const auto touched = [&](int b) { return s.first[static_cast<std::size_t>(b)] >= 0; };
    const auto defined = [&](int b) { return (s.defined >> b & 1u) != 0; };
    const bool in_step = touched(kForward) || touched(kBackward) || touched(kWeightGradient);
    const Tensor& tensor = piece_.tensors[id];
    s.skip = tensor.shared || is(id, piece_.side_input) || is(id, piece_.side_input_gradient);
    if (s.skip) {
      if (is(id, piece_.side_input) && touched(kBackward)) memory.saved_side_input[index(category(id))] += s.bytes;
      return;
    }
    if (tensor.resident) {
      s.resident = true;
    } else if (is_persistent(category(id))) {
      const bool flat = (category(id) == Category::parameter && piece_.flat_parameters != kNoTensor) ||
                        (category(id) == Category::gradient && piece_.flat_gradients != kNoTensor);
      s.resident = !s.read && !flat;
      for (int b = 0; b < kBlocks; ++b) s.resident |= touched(b) && !defined(b);
    } else {
      if (!in_step && !touched(kUpdate)) {
        s.resident = category(id) == Category::host_copy;
      } else {
        int first = 0;
        while (!touched(first)) ++first;
        s.resident = (in_step && touched(kUpdate)) || (s.conditional && s.unconditional) ||
                     (category(id) == Category::host_copy && !defined(first));
      }
      if (!s.resident) {
        const bool into_backward = touched(kBackward) && !defined(kBackward);
        const bool into_weight = touched(kWeightGradient) && !defined(kWeightGradient);
        const bool backward_defines = touched(kBackward) && defined(kBackward);
        s.saved = touched(kForward) && (into_backward || (into_weight && !backward_defines));
        s.saved_weight_gradient = into_weight;
      }
    }
    const auto c = index(category(id));
    if (s.resident) memory.resident[c] += s.bytes;
    if (s.saved) memory.saved[c] += s.bytes;
    if (s.saved_weight_gradient) memory.saved_weight_gradient[c] += s.bytes;
  }

  bool counts(TensorId id) { return !storage(id).resident && !storage(id).skip; }

  bool is(TensorId root, TensorId boundary) const { return boundary != kNoTensor && root_[boundary] == root; }

  // Whether the storage is alive before the first op of the block.
  bool alive_at_start(int block, TensorId id) const {
    const Storage& s = storages_[id];
    const auto b = static_cast<std::size_t>(block);
    if (s.resident || s.skip) return false;
    const bool enters = s.first[b] >= 0 && (s.defined >> block & 1) == 0;
    if (block == kBackward) return enters || (s.saved && (s.defined >> block & 1) == 0);
    return enters;
  }
  bool alive_at_end(int block, TensorId id) const {
    const Storage& s = storages_[id];
    switch (block) {
      case kForward:
        return s.saved || is(id, piece_.output);
      case kBackward:
        return s.saved_weight_gradient || is(id, piece_.input_gradient);
      default:
        return false;
    }
  }

  CategoryBytes transient(int block, const CategoryBytes& saved) {
    const auto& ops = blocks_[static_cast<std::size_t>(block)]->ops;
    if (ops.empty()) return {};
    CategoryBytes now{};
    for (std::size_t i = 0; i < now.size(); ++i) now[i] -= saved[i];
    double device = -device_bytes(saved);
    const auto change = [&](TensorId id, double sign) {
      const double bytes = sign * storages_[id].bytes;
      now[index(category(id))] += bytes;
      if (category(id) != Category::host_copy) device += bytes;
    };
    for (std::size_t i = 0; i < storages_.size(); ++i) {
      storages_[i].alive = root_[i] == i && alive_at_start(block, static_cast<TensorId>(i));
      if (storages_[i].alive) change(static_cast<TensorId>(i), 1);
    }
    CategoryBytes worst = now, ahead{};
    double worst_device = device;
    for (int p = 0; p < static_cast<int>(ops.size()); ++p) {
      const Op& op = ops[static_cast<std::size_t>(p)];
      const auto each = [&](auto&& visit) {
        for (TensorId id : op.reads)
          if (id != kNoTensor && counts(id)) visit(root_[id]);
        for (TensorId id : op.writes)
          if (id != kNoTensor && counts(id)) visit(root_[id]);
      };
      each([&](TensorId id) {
        if (storages_[id].alive) return;
        storages_[id].alive = 1;
        change(id, 1);
      });
      if (device > worst_device) worst = now, worst_device = device;
      each([&](TensorId id) {
        Storage& s = storages_[id];
        if (!s.alive || s.last[static_cast<std::size_t>(block)] != p || alive_at_end(block, id)) return;
        s.alive = 0;
        change(id, -1);
      });
      // Buffers of other instances of the piece that are alive meanwhile: gathered ahead, or waiting for their bucket.
      const auto others = [&](std::int64_t n) { return static_cast<double>(std::min(n, instances_ - 1)); };
      if (op.prefetch > 0) {
        for (TensorId id : op.writes)
          if (id != kNoTensor && counts(id)) ahead[index(category(root_[id]))] += others(op.prefetch) * storages_[root_[id]].bytes;
      }
      if (op.every > 1 && block != kUpdate) {
        std::array<TensorId, 10> seen;
        auto end = seen.begin();
        each([&](TensorId id) {
          if (std::find(seen.begin(), end, id) != end) return;
          *end++ = id;
          ahead[index(category(id))] += others(op.every - 1) * storages_[id].bytes;
        });
      }
    }
    worst += ahead;
    return worst;
  }

  const Piece& piece_;
  const std::int64_t instances_;
  std::array<const Block*, kBlocks> blocks_;
  std::vector<TensorId>& root_;
  std::vector<Storage>& storages_;
};

}  // namespace

CategoryBytes& operator+=(CategoryBytes& a, const CategoryBytes& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

CategoryBytes operator*(const CategoryBytes& a, double factor) {
  CategoryBytes product;
  for (std::size_t i = 0; i < a.size(); ++i) product[i] = a[i] * factor;
  return product;
}

double device_bytes(const CategoryBytes& bytes) {
  double total = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    if (i != index(Category::host_copy)) total += bytes[i];
  return total;
}

PieceMemory piece_memory(const Piece& piece, double granularity, std::int64_t instances, MemoryScratch& scratch) {
  return Walk(piece, granularity, instances, scratch).run();
}

PieceMemory piece_memory(const Piece& piece, double granularity, std::int64_t instances) {
  MemoryScratch scratch;
  return piece_memory(piece, granularity, instances, scratch);
}

}  // namespace orrery
