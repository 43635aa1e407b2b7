// The part of the model that a rank runs: the chunks of its stage, and the instances of pieces in each, in order. Built
// once; constant while the rank runs.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "realrun/rank/piece_plan.h"

namespace orrery::realrun {

struct Instance {
  const PiecePlan* plan = nullptr;
  std::size_t number = 0;           // index among the rank's instances
  std::int64_t turn = 0;            // of rank_of_turn(): those before it that have ops with turns
  std::size_t first_parameter = 0;  // index in the model

  const Piece& piece() const { return plan->piece(); }
  const Tensor& tensor(TensorId id) const { return plan->tensor(id); }
};

// An instance and its place in a line of ops that are issued together (sim/program/issue.h).
struct InLine {
  const Instance* instance = nullptr;
  PositionInStretch place;
};

struct RankChunk {
  std::int64_t position = 0;  // chunk's position in the model
  std::vector<Instance> instances;
  std::vector<InLine> forwards, backwards;                   // in the order of the forward, and of the backward
  std::array<std::int64_t, kBlocks.size()> longest_ahead{};  // of a block's ops, in instances

  const std::vector<InLine>& line(std::size_t block) const { return block == kForwardBlock ? forwards : backwards; }
};

class RankModel {
 public:
  // Throws ExecutionError if the stages together do not hold exactly the model's parameters.
  RankModel(const RunSetup& setup, const Position& position);
  RankModel(const RankModel&) = delete;
  RankModel& operator=(const RankModel&) = delete;

  const std::vector<RankChunk>& chunks() const { return chunks_; }
  std::size_t instances() const { return instances_; }
  template <class Visit>
  void for_each_instance(Visit visit) const {
    for (const RankChunk& chunk : chunks_)
      for (const Instance& instance : chunk.instances) visit(instance);
  }

  // Returns the instance that stores a tensor, and the tensor's id there. For a table that several pieces of the stage
  // share, or its gradient, it is the embedding's; throws ExecutionError if the stage has no embedding.
  struct Owner {
    const Instance* instance = nullptr;
    TensorId id = kNoTensor;
  };
  Owner owner_of(const Instance& instance, TensorId id) const;

 private:
  void build_chunk(RankChunk& chunk, const std::vector<PieceRun>& runs, std::size_t first_parameter,
                   const std::vector<Piece>& pieces);
  void find_shared_table();

  std::vector<PiecePlan> plans_;  // by piece
  std::vector<RankChunk> chunks_;
  std::size_t instances_ = 0;
  std::int64_t turns_ = 0;  // instances with ops that ranks take turns at
  const Instance* embedding_ = nullptr;  // of this stage, if it has one
  TensorId table_ = kNoTensor, table_gradient_ = kNoTensor;
};

}  // namespace orrery::realrun
