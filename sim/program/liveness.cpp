#include "sim/program/liveness.h"

namespace orrery {
namespace {

constexpr bool is_persistent(Category category) {
  return category == Category::parameter || category == Category::gradient || category == Category::optimizer_state;
}

bool is_resident(const Piece& piece, const Tensor& t, const Life& life) {
  if (t.resident) return true;
  const BlockSet undefined = life.touched & static_cast<BlockSet>(~life.defined);
  if (is_persistent(t.category)) {
    const bool flat = t.category != Category::optimizer_state && !piece.sets.empty();
    return (!life.read && !flat) || undefined != 0;
  }
  const bool in_step = (life.touched & ~bit_of_block(kUpdateBlock)) != 0;
  const BlockSet first = life.touched & static_cast<BlockSet>(-life.touched);
  return (in_step && life.touches(kUpdateBlock)) || (life.conditional && life.unconditional) ||
         (t.place != Place::device && (undefined & first) != 0);
}

}  // namespace

// Derives the storage's life once all uses in the blocks are known.
void Liveness::end(const Piece& piece, TensorId id) {
  Life& life = lives_[id];
  const Tensor& t = piece.tensors[id];
  if (t.shared) life.keeper = Keeper::others;
  if (life.keeper == Keeper::blocks && is_resident(piece, t, life)) {
    life.keeper = Keeper::step;
    return;
  }
  life.enters = life.touched & static_cast<BlockSet>(~life.defined);
  const bool for_weights = life.enters_block(kWeightGradientBlock);
  const bool redefined = (life.defined & bit_of_block(kBackwardBlock)) != 0;
  if (life.touches(kForwardBlock) && (life.enters_block(kBackwardBlock) || (for_weights && !redefined))) {
    life.kept |= bit_of_block(kForwardBlock);
    life.enters |= bit_of_block(kBackwardBlock);  // if only to be kept for a later block
  }
  if (for_weights) life.kept |= bit_of_block(kBackwardBlock);
  if (!life.lent) return;
  if (life.touches(kForwardBlock)) life.kept |= bit_of_block(kForwardBlock);
  if (life.touches(kForwardBlock) || life.touches(kBackwardBlock)) life.enters |= bit_of_block(kBackwardBlock);
}

void Liveness::find(const Piece& piece) {
  const std::vector<Tensor>& tensors = piece.tensors;
  storage_.resize(tensors.size());
  lives_.assign(tensors.size(), {});
  storages_.clear();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    auto id = static_cast<TensorId>(i);
    if (tensors[i].alias_of == kNoTensor) storages_.push_back(id);
    while (tensors[id].alias_of != kNoTensor) id = tensors[id].alias_of;
    storage_[i] = id;
    lives_[id].lent |= tensors[i].lent;
  }
  for (std::size_t block = 0; block < kBlocks.size(); ++block) {
    const BlockSet own = bit_of_block(block);
    const std::vector<Op>& ops = (piece.*kBlocks[block]).ops;
    for (std::size_t p = 0; p < ops.size(); ++p) {
      const Op& op = ops[p];
      const bool always = op.when == When::every_micro_batch;
      const auto position = static_cast<std::uint16_t>(p);
      const auto access = [&](TensorId id, bool write) {
        const TensorId root = storage_[id];
        Life& life = lives_[root];
        if ((life.touched & own) == 0) {
          if (life.touched == 0 && write && !always) life.conditional = true;
          if (write && (always || !is_persistent(tensors[root].category))) {
            const auto all = [&] { return id == root || tensors[id].elements() == tensors[root].elements(); };
            if (life.touched == 0 || (!op.accumulate && all())) life.defined |= own;
          }
          life.touched |= own;
          life.first[block] = position;
        }
        life.last[block] = position;
        life.read |= !write;
        life.unconditional |= always;
      };
      for (const TensorId id : op.reads)
        if (id != kNoTensor) access(id, false);
      for (const TensorId id : op.writes)
        if (id != kNoTensor) access(id, true);
    }
  }
  const auto hand_on = [this](TensorId id, std::size_t block) {
    if (id != kNoTensor) lives_[storage_[id]].handed_on |= bit_of_block(block);
  };
  const auto others = [this](TensorId id) {
    if (id != kNoTensor) lives_[storage_[id]].keeper = Keeper::others;
  };
  hand_on(piece.output, kForwardBlock);
  hand_on(piece.input_gradient, kBackwardBlock);
  for (const SideStream& side : piece.sides) {
    hand_on(side.output, kForwardBlock);
    hand_on(side.input_gradient, kBackwardBlock);
    others(side.input);
    others(side.input_gradient);
  }
  for (const TensorId id : storages_) end(piece, id);
}

}  // namespace orrery
