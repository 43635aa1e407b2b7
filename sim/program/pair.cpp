#include "sim/program/pair.h"

#include <vector>

#include "sim/program/rewrite.h"
#include "sim/program/work.h"

namespace orrery {
namespace {

bool is_exchange(const Op& op) {
  return op.kind == OpKind::redistribute &&
         (op.account == Stream::expert_communication || op.stream == Stream::expert_communication);
}

void unblock(Op& op) {
  if (is_exchange(op)) op.stream = Stream::expert_communication;
}

// The ops at which tokens leave for their experts and return; other exchanges beside them are smaller.
struct Exchanges {
  std::size_t first = 0, last = 0;
  bool any() const { return first < last; }
};
Exchanges exchanges_of(const Piece& piece, const Block& block) {
  Exchanges at;
  bool found = false;
  for (std::size_t i = 0; i < block.ops.size(); ++i) {
    const Op& op = block.ops[i];
    if (!is_exchange(op) || piece.tensors[op.reads[0]].find(Axis::hidden) < 0) continue;
    if (!found) at.first = at.last = i;
    at.last = i;
    found = true;
  }
  return at;
}

}  // namespace

PairCuts pair_cuts(const Piece& piece, bool forward) {
  const Block& block = forward ? piece.forward : piece.backward;
  const std::size_t end = block.ops.size();
  if (const Exchanges at = exchanges_of(piece, block); at.any()) return {{at.first + 1, at.last + 1}, true};
  double all = 0, before = 0;
  for (const Op& op : block.ops) all += flops(op, piece.tensors);
  std::size_t half = 0;
  while (half < end && 2 * before < all) before += flops(block.ops[half++], piece.tensors);
  // The backward's first turn is before the forward's, and its last one after it.
  return {forward ? std::array{half, end} : std::array{std::size_t{0}, half}, false};
}

void unblock_exchanges(Piece& piece) {
  for (Block* block : {&piece.forward, &piece.backward})
    for (Op& op : block->ops) unblock(op);
}

bool pair_blocks(const Piece& piece, Piece& out) {
  const Exchanges forward = exchanges_of(piece, piece.forward), backward = exchanges_of(piece, piece.backward);
  if (!forward.any() || !backward.any()) return false;
  out = piece;
  out.forward.ops.clear();
  out.backward.ops.clear();
  out.weight_gradient.ops.clear();
  out.update.ops.clear();

  // Tensors that the forward needs for itself: all except those that stay from one micro-batch to the next.
  std::vector<TensorId> own(piece.tensors.size(), kNoTensor);
  const auto rename = [&](TensorId id) {
    if (id == kNoTensor) return id;
    const TensorId root = storage_of(piece, id);
    const Tensor& t = piece.tensors[root];
    if (t.resident || t.shared || t.category == Category::parameter) return id;
    if (own[root] == kNoTensor) {
      own[root] = out.add(t);
    }
    if (id == root) return own[root];
    if (own[id] == kNoTensor) {
      own[id] = out.add(piece.tensors[id]);
      out.tensors[own[id]].alias_of = own[root];
    }
    return own[id];
  };
  const auto put = [&](const Block& block, std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      Op op = block.ops[i];
      if (&block == &piece.forward) {
        for (TensorId& id : op.reads) id = rename(id);
        for (TensorId& id : op.writes) id = rename(id);
      }
      unblock(op);
      out.forward.ops.push_back(op);
    }
  };
  const std::size_t last_f = piece.forward.ops.size(), last_b = piece.backward.ops.size();
  put(piece.backward, 0, backward.first + 1);
  put(piece.forward, 0, forward.first + 1);
  put(piece.backward, backward.first + 1, backward.last + 1);
  put(piece.forward, forward.first + 1, forward.last + 1);
  put(piece.backward, backward.last + 1, last_b);
  put(piece.forward, forward.last + 1, last_f);
  if (piece.input != kNoTensor) out.input = rename(piece.input);
  if (piece.output != kNoTensor) out.output = rename(piece.output);
  return true;
}

}  // namespace orrery
