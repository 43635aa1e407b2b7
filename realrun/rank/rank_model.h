// The part of the model that a rank runs: the chunks of its stage, in each the instances of pieces in their order.
// Built once; nothing in it changes while the rank runs.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "realrun/rank/piece_plan.h"

namespace orrery::realrun {

struct Instance {
  const PiecePlan* plan = nullptr;
  std::size_t number = 0;           // among the rank's
  std::size_t first_parameter = 0;  // in the model

  const Piece& piece() const { return plan->piece(); }
  const Tensor& tensor(TensorId id) const { return plan->tensor(id); }
};

// An instance where a line (sim/program/issue.h) reaches it.
struct InLine {
  const Instance* instance = nullptr;
  PlaceInStretch place;
};

struct RankChunk {
  std::int64_t position = 0;  // in the model
  std::vector<Instance> instances;
  std::vector<InLine> forwards, backwards;                   // lines of them
  std::array<std::int64_t, kBlocks.size()> longest_ahead{};  // of a block's ops

  const std::vector<InLine>& line(std::size_t block) const { return block == kForwardBlock ? forwards : backwards; }
};

class RankModel {
 public:
  // Throws ExecutionError for stages that do not hold the model's parameters.
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

  // The instance that keeps a tensor, and which tensor it is there: of a table that pieces of the stage share, or its
  // gradient, the embedding's. Throws ExecutionError for such a table without its embedding.
  struct Owner {
    const Instance* instance = nullptr;
    TensorId id = kNoTensor;
  };
  Owner owner_of(const Instance& instance, TensorId id) const;

 private:
  void build_chunk(RankChunk& chunk, const std::vector<Run>& runs, std::size_t first_parameter,
                   const std::vector<Piece>& pieces);
  void find_shared_table();

  std::vector<PiecePlan> plans_;  // by piece
  std::vector<RankChunk> chunks_;
  std::size_t instances_ = 0;
  const Instance* embedding_ = nullptr;  // of this stage
  TensorId table_ = kNoTensor, table_gradient_ = kNoTensor;
};

}  // namespace orrery::realrun
