// What a run needs beside the folded traffic, worked out before SimGrid starts: each job's compiled blocks, and for
// everything that moves bytes its pattern, latency and share of the links. Internal to sim/des.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sim/analytical/block_clock.h"
#include "sim/analytical/op_cost.h"
#include "sim/des/engine.h"
#include "sim/des/traffic.h"

namespace orrery {

// One use of a pattern with so many bytes.
struct Exchange {
  std::int32_t pattern = 0, communicator = 0;  // kNoPattern: unfelt
  OpKind kind = OpKind::all_reduce;
  double bytes = 0;
  CollectiveCost cost;  // alone, as the analytical engine has it
  // Filled once the traffic is folded. Bytes on the links for each of a flow's share, protocol overheads included.
  double wire_inside = 0, wire_outside = 0;
};
inline constexpr std::int32_t kNoPattern = -2;
inline constexpr std::uint32_t kNoExchange = 0xffffffff;

// An op of the report: where its time is booked by name.
struct OpName {
  const char* piece = "";
  const char* block = "";
  const char* op = "";
  const char* last = "";             // of the kernels that a node merges; op itself if it is alone
  const BlockCode* code = nullptr;   // the block that has the op
  BlockKind kind = BlockKind::forward;
  std::uint16_t at = 0;  // the op's place in the block
  std::vector<double> kernels = {};  // seconds of each
  // Of them those over rows of unequal number, which take other ranks less: their share of what the busiest takes is
  // JobPlan::rows_of_ranks[load].
  double seconds_by_rows = 0;
  std::size_t load = 0;
  // Attention within documents among them and kernels over what ranks have unequal rows of, of this piece; by
  // JobPlan::document_place, what they take less than of the slowest rank.
  std::vector<const Op*> within_documents = {};
  const Piece* of = nullptr;
  std::vector<double> seconds_less = {};
  std::string text() const;
};

// A load as ranks and their flows have it.
struct FoldedLoad {
  std::vector<double> rows;      // as Load::rows
  std::vector<double> of_ranks;  // of the rank's experts, over the busiest's
};
inline constexpr std::int64_t kExactRanks = 16;
// Loads of tokens, of one group of experts. `exact`, and in groups of up to kExactRanks ranks: as they are. Else so
// that ranks fold: all send in the same proportions, and alike, or in levels where they send unlike much; the rank that
// is the busiest of a load has what it has in all loads; of the others, in order of what they have of all layers
// together, as many as there are nodes are alike, have the mean of each load, and lie on different nodes.
std::vector<FoldedLoad> folded_loads(std::span<const Load> loads, std::int64_t ranks_per_node, bool exact);

struct JobPlan {
  std::string name;
  const Program* program = nullptr;
  Placement placement;
  std::unique_ptr<OpCostModel> costs;
  double overlap_slowdown = 0;
  std::vector<std::array<BlockCode, kBlockKinds>> codes;  // [piece]
  // Of a forward that runs beside a backward, and of that backward (sim/program/pair.h): [piece][slot kind]. Of a
  // schedule without pairs: none.
  std::vector<std::array<BlockCode, 2>> paired_codes;
  std::vector<std::unique_ptr<Piece>> paired_pieces;   // whose blocks those are
  std::map<const BlockCode*, std::uint32_t> first_op;  // of its nodes, which follow each other in `ops`
  std::vector<OpName> ops;
  // Exchanges of each op, by how many instances it covers.
  std::vector<std::vector<std::pair<std::int64_t, std::uint32_t>>> exchanges_of;
  std::uint32_t exchange_of(std::uint32_t op, std::int64_t instances) const {
    for (const auto& [covered, exchange] : exchanges_of[op])
      if (covered == instances) return exchange;
    return kNoExchange;
  }
  // By position of the chunk that sends: to position + 1 forwards, to position - 1 backwards; kNoExchange on one stage.
  std::vector<std::uint32_t> forward, backward;
  // By place in the load's group, over the busiest: of each of Program::loads that is of tokens.
  std::vector<std::vector<double>> rows_of_ranks;
  std::vector<std::int32_t> rows;  // and its number in the traffic
  double rows_of(std::size_t load, std::int64_t rank) const {
    return rows_of_ranks[load][static_cast<std::size_t>(program->mesh.coordinate(rank, program->loads[load].group))];
  }
  // Of replicas whose documents differ, and of the ranks of a sequence.
  std::size_t document_place(std::int64_t rank) const {
    const Mesh& mesh = program->mesh;
    const std::int64_t replica = mesh.coordinate(rank, mesh.group({MeshAxis::dp_shard, MeshAxis::dp_replicate}));
    return static_cast<std::size_t>(replica * mesh.size(MeshAxis::cp) + mesh.coordinate(rank, MeshAxis::cp));
  }
  bool synchronises = false;           // all stages meet at the gradient norm
  std::vector<std::int32_t> stage_at;  // [position]

  double works_of(std::size_t stage) const;  // kernels, collectives and copies of one of its ranks
};

struct ResolvedPerturbation {
  Perturbation perturbation;
  std::vector<LinkId> links;
  std::vector<std::pair<std::int32_t, std::int64_t>> ranks;  // job, rank
  std::vector<std::int32_t> background;                      // numbers in the traffic, one for each link
  std::int64_t first_node = 0;                               // of those that fail
};

// That chains and trees of a step-exact collective pass on one by one.
std::int32_t chunks_of(const Cluster& cluster, double bytes, const DiscreteEventOptions& options);

struct RunPlan {
  RunPlan(const Cluster& cluster_, const DiscreteEventOptions& options_);

  const Cluster& cluster;
  DiscreteEventOptions options;
  Topology topology;
  Traffic traffic;
  std::vector<JobPlan> jobs;
  std::vector<Exchange> exchanges;
  std::vector<ResolvedPerturbation> perturbations;

  void add_job(const DiscreteEventJob& job, const CollectiveCalibration& collectives);
  std::uint32_t add_exchange(std::int32_t communicator, OpKind kind, double bytes, const CollectiveCost& cost,
                             Direction way = {}, bool reversed = false, std::int32_t rows = -1, bool returns = false);
  // Throws InputError when one names nothing.
  void add_perturbations(std::span<const Perturbation> perturbations);
  void fold();
  // Kernels, collectives and copies that rank classes perform in all, by the code of their blocks; each is an event or
  // a few. REQUIRES: fold().
  double works() const;
  // Those of them that a timeline may show: of a rank for each stage, and of each other track.
  double timeline_works() const;

 private:
  void fold_loads(std::int32_t id, JobPlan& job);
  void add_load_of_positions(std::int32_t id, std::size_t load, JobPlan& job);
  // Replicas with unlike documents: each by itself, exactly and up to kExactRanks of them; else all take what the
  // slowest takes.
  void fold_documents(std::int32_t id, JobPlan& job);
  void compile_blocks(JobPlan& job);
  void compile_pairs(JobPlan& job, std::size_t piece);
  // The nodes of the block as ops of the report.
  static void name_ops(JobPlan& job, const BlockCode& code, BlockKind kind);
  void add_block_exchanges(std::int32_t id, JobPlan& job);
  void add_stage_exchanges(std::int32_t id, JobPlan& job);  // between pipeline stages
};

}  // namespace orrery
