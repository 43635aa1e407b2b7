#include "sim/program/program.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace orrery {
namespace {

// The layers of the model that a piece computes in any micro-batch, in order. `all`: set to the model's number of
// layers.
std::vector<std::int64_t> layers_of(const Program& program, std::size_t piece, std::int64_t& all) {
  std::vector<std::int64_t> layers;
  for (std::size_t c = 0; c < program.micro_batch_classes(); ++c) {
    std::int64_t next = 0;
    for (const Chunk* chunk : program.chunks_in_order(c))
      for (const PieceRun& run : chunk->runs) {
        const std::int64_t behind = next + run.count * program.pieces[run.piece].layers;
        for (; next < behind; ++next)
          if (run.piece == piece) layers.push_back(next);
      }
    all = next;
  }
  std::sort(layers.begin(), layers.end());
  layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
  return layers;
}

// Writes numbers as slices of 0 .. all-1: the longest progression from each number that is left.
std::string slices_of(const std::vector<std::int64_t>& numbers, std::int64_t all) {
  constexpr std::size_t kMost = 4;  // slices shown; more are "..."
  std::string text;
  std::size_t slices = 0;
  for (std::size_t i = 0; i < numbers.size(); ++slices) {
    const std::int64_t step = i + 1 < numbers.size() ? numbers[i + 1] - numbers[i] : 1;
    std::size_t end = i + 1;
    while (end < numbers.size() && numbers[end] - numbers[end - 1] == step) ++end;
    if (step > 1 && end - i < 3) end = i + 1;  // two numbers are no pattern
    if (slices > 0) text += ',';
    if (slices == kMost) return text + "...";
    const std::int64_t by = end == i + 1 ? 1 : step;
    text += std::to_string(numbers[i]) + ':' + std::to_string(std::min(numbers[end - 1] + by, all));
    if (by > 1) text += ':' + std::to_string(by);
    i = end;
  }
  return text;
}

}  // namespace

void Program::clear() {
  // Pieces, line, stages and schedule keep their storage; the lowering clears each and sets the counts.
  Program empty;
  std::swap(empty.pieces, pieces);
  std::swap(empty.line, line);
  std::swap(empty.stages, stages);
  std::swap(empty.schedule, schedule);
  *this = std::move(empty);
}

std::vector<const Chunk*> Program::chunks_in_order(std::size_t of_class) const {
  const auto chunks = static_cast<std::size_t>(schedule.chunks);
  std::vector<const Chunk*> in_order(schedule.position.size());
  for (std::size_t i = 0; i < in_order.size(); ++i)
    in_order[static_cast<std::size_t>(schedule.position[i])] = &stages_of(of_class)[i / chunks][i % chunks];
  return in_order;
}

bool Program::has_copies() const {
  std::vector<std::int64_t> experts = expert_of_slot;
  std::ranges::sort(experts);
  return std::ranges::adjacent_find(experts) != experts.end() ||
         std::ranges::find(loads, RowsOf::gradients, &Load::of) != loads.end();
}

std::int64_t Program::micro_batches_of(std::size_t of_class) const {
  if (micro_batch_class.empty()) return of_class == 0 ? schedule.micro_batches : 0;
  return std::count(micro_batch_class.begin(), micro_batch_class.end(), static_cast<std::uint8_t>(of_class));
}

namespace {

// Layers of one piece's rows have one.
TableIndex<Load> load_of(const Piece& piece) {
  const auto rows =
      std::find_if(piece.tensors.begin(), piece.tensors.end(), [](const Tensor& t) { return t.load.has_value(); });
  return rows == piece.tensors.end() ? TableIndex<Load>() : rows->load;
}
// All attention of a piece has the same.
TableIndex<DocumentLoad> documents_of(const Piece& piece) {
  const std::vector<Op>& ops = piece.forward.ops;
  const auto attention = std::find_if(ops.begin(), ops.end(), [](const Op& op) { return op.documents.has_value(); });
  return attention == ops.end() ? TableIndex<DocumentLoad>() : attention->documents;
}

}  // namespace

std::string piece_title(const Program& program, std::size_t piece) {
  const Piece& p = program.pieces[piece];
  const bool one_plan = std::all_of(program.pieces.begin(), program.pieces.end(), [&](const Piece& other) {
    return (other.plan == p.plan && load_of(other) == load_of(p) && documents_of(other) == documents_of(p)) ||
           std::string_view(other.name) != p.name;
  });
  if (p.layers == 0 || one_plan) return p.name;
  std::int64_t all = 0;
  const std::vector<std::int64_t> layers = layers_of(program, piece, all);
  std::string text = std::string(p.name) + '[' + slices_of(layers, all);
  const auto add = [&](const char* what, auto index) {
    if (!program.other_classes.empty() && index.has_value())
      text += std::string(", ") + what + ' ' + std::to_string(index.value() + 1);
  };
  add("load", load_of(p));
  add("documents", documents_of(p));
  return text + ']';
}

}  // namespace orrery
