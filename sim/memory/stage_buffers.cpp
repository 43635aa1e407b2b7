#include "sim/memory/stage_buffers.h"

#include <algorithm>
#include <array>
#include <utility>

#include "sim/program/liveness.h"
#include "sim/program/op_traits.h"
#include "sim/program/rewrite.h"
#include "sim/program/work.h"

namespace orrery {
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

// Counts the elements of 16-bit gradients that optimizers read, by place.
std::array<double, kPlaces> narrow_gradients(const Program& program, std::span<const Chunk> stage) {
  std::array<double, kPlaces> elements{};
  for (const Chunk& chunk : stage)
    for (const PieceRun& run : chunk.runs) {
      const Piece& piece = program.pieces[run.piece];
      for (const Op& op : piece.update.ops) {
        if (!is_optimizer(op.kind)) continue;
        const Tensor& gradients = piece.tensors[op.reads[0]];
        if (bits_of(gradients.dtype) != 16) continue;
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
