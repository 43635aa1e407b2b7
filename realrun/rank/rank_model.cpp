#include "realrun/rank/rank_model.h"

#include <algorithm>
#include <string>

#include "sim/program/issue.h"

namespace orrery::realrun {
namespace {

// Returns the number of the model's parameters before each chunk, in the order of positions, and the total.
std::vector<std::size_t> parameters_before_chunks(const Program& program) {
  std::vector<std::size_t> before(program.schedule.position.size() + 1, 0);
  for (std::size_t s = 0; s < program.stages.size(); ++s)
    for (std::size_t c = 0; c < program.stages[s].size(); ++c) {
      std::size_t n = 0;
      for (const PieceRun& run : program.stages[s][c].runs)
        n += static_cast<std::size_t>(run.count) * program.pieces[run.piece].parameters.size();
      before[static_cast<std::size_t>(program.schedule.position_of(s, c)) + 1] = n;
    }
  for (std::size_t q = 1; q < before.size(); ++q) before[q] += before[q - 1];
  return before;
}

}  // namespace

RankModel::RankModel(const RunSetup& setup, const Position& position) {
  const Program& program = setup.program;
  plans_.reserve(program.pieces.size());
  for (const Piece& piece : program.pieces) plans_.emplace_back(piece, program, position, setup.sequences);
  const std::vector<std::size_t> before = parameters_before_chunks(program);
  if (before.back() != setup.parameters.size())
    throw ExecutionError("the stages hold " + std::to_string(before.back()) + " parameters, the model has " +
                         std::to_string(setup.parameters.size()));
  const auto stage = static_cast<std::size_t>(position.pp);
  chunks_.resize(program.stages[stage].size());
  for (std::size_t c = 0; c < chunks_.size(); ++c) {
    chunks_[c].position = program.schedule.position_of(stage, c);
    build_chunk(chunks_[c], program.stages[stage][c].runs, before[static_cast<std::size_t>(chunks_[c].position)],
                program.pieces);
  }
  find_shared_table();
}

void RankModel::build_chunk(RankChunk& chunk, const std::vector<PieceRun>& runs, std::size_t parameter,
                            const std::vector<Piece>& pieces) {
  for (const PieceRun& run : runs)
    for (std::int64_t i = 0; i < run.count; ++i) {
      const PiecePlan& plan = plans_[run.piece];
      chunk.instances.push_back({&plan, instances_++, turns_, parameter});
      turns_ += takes_turns(plan.piece());
      parameter += plan.piece().parameters.size();
      for (std::size_t b = 0; b < kBlocks.size(); ++b)
        chunk.longest_ahead[b] = std::max(chunk.longest_ahead[b], plan.longest_ahead(b));
    }
  std::size_t next = 0;
  for_each_in_line(pieces, runs, false, [&](const PieceRun& run, PositionInStretch place) {
    for (std::int64_t i = 0; i < run.count; ++i, ++place.before)
      chunk.forwards.push_back({&chunk.instances[next++], place});
  });
  for_each_in_line(pieces, runs, true, [&](const PieceRun& run, PositionInStretch place) {
    for (std::int64_t i = 0; i < run.count; ++i, ++place.before)
      chunk.backwards.push_back({&chunk.instances[--next], place});
  });
}

void RankModel::find_shared_table() {
  for_each_instance([&](const Instance& instance) {
    const Piece& piece = instance.piece();
    for (const Op& op : piece.forward.ops)
      if (embedding_ == nullptr && op.kind == OpKind::embedding && is_vocabulary_table(piece.tensors[op.reads[1]])) {
        embedding_ = &instance;
        table_ = op.reads[1];
      }
    if (embedding_ == &instance)
      for (const ParameterGradient& p : piece.parameters)
        if (is_vocabulary_table(piece.tensors[p.parameter])) table_gradient_ = p.gradient;
  });
}

RankModel::Owner RankModel::owner_of(const Instance& instance, TensorId id) const {
  const Tensor& t = instance.tensor(id);
  if (!t.shared) return {&instance, id};
  if (embedding_ == nullptr) throw ExecutionError("a shared table without its embedding on the same stage");
  return {embedding_, t.category == Category::gradient ? table_gradient_ : table_};
}

}  // namespace orrery::realrun
