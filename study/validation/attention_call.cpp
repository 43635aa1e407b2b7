#include "study/validation/attention_call.h"

#include <algorithm>
#include <vector>

#include "sim/base/error.h"
#include "study/prediction/prediction.h"

namespace orrery {
namespace {

bool is_attention(const Op& op) { return traits_of(op.kind).op_class == OpClass::attention; }

// What of a block is attention's, in its order: kernels, exchanges, and what joins their results.
class OfAttention {
 public:
  explicit OfAttention(std::size_t tensors) : writer_(tensors) {}

  Block of(const Block& block) {
    std::vector<const Op*> of_attention;
    for (const Op& op : block.ops) {
      if (!may_have(op)) continue;
      for (const TensorId id : op.writes)
        if (id != kNoTensor) writer_[id] = &op;
      of_attention.push_back(&op);
    }
    Block kept;
    for (const Op* op : of_attention)
      if (op->kind != OpKind::cast || joins(*op, of_attention)) kept.ops.push_back(*op);
    return kept;
  }

 private:
  bool may_have(const Op& op) const {
    if (is_attention(op) || op.stream == Stream::context_communication || op.kind == OpKind::merge_attention)
      return true;
    const auto is_result = [&](TensorId id) { return id != kNoTensor && writer_[id] != nullptr; };
    if (op.kind == OpKind::cast) return is_result(op.reads[0]);
    return op.kind == OpKind::add && is_result(op.reads[0]) && is_result(op.reads[1]);
  }
  // A cast of a sum, or for one. Others are of what comes behind attention: rotary positions in fp32.
  bool joins(const Op& cast, const std::vector<const Op*>& ops) const {
    return !is_attention(*writer_[cast.reads[0]]) || std::any_of(ops.begin(), ops.end(), [&](const Op* op) {
      return std::find(op->reads.begin(), op->reads.end(), cast.writes[0]) != op->reads.end();
    });
  }

  std::vector<const Op*> writer_;  // by tensor: which of them writes it
};

}  // namespace

Program attention_alone(const Program& program, std::size_t layer, AttentionPasses passes) {
  Program alone = program;
  for (Piece& piece : alone.pieces) piece.update.ops.clear();
  Piece& piece = alone.pieces[layer];
  OfAttention attention(piece.tensors.size());
  piece.forward = attention.of(piece.forward);
  piece.backward = attention.of(piece.backward);
  piece.weight_gradient.ops.clear();
  if (passes == AttentionPasses::backward) piece.forward.ops.clear();
  if (passes == AttentionPasses::forward) piece.backward.ops.clear();
  const std::vector<PieceRun> once{{static_cast<std::uint16_t>(layer), 1}};
  alone.for_each_class([&](std::vector<PieceRun>& line, std::vector<std::vector<Chunk>>& stages) {
    line = once;
    stages.assign(1, {Chunk{once}});
  });
  return alone;
}

double attention_seconds(const Simulation& simulation, std::size_t layer, AttentionPasses passes) {
  if (const std::size_t stages = simulation.program->stages.size(); stages > 1)
    throw InputError({"", "/plan/pipeline_parallel"}, std::to_string(stages), "1 for a call of attention alone");
  const Program alone = attention_alone(*simulation.program, layer, passes);
  Prepared prepared = simulation;
  prepared.program = &alone;
  return predict(prepared).step_seconds / static_cast<double>(alone.schedule.micro_batches);
}

}  // namespace orrery
