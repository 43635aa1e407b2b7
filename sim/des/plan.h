// Everything that a run needs in addition to the folded traffic, computed before SimGrid starts: each job's compiled
// blocks, and the pattern, latency and share of the links of every transfer. Internal to sim/des.
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

inline constexpr std::int32_t kNoPattern = -2;  // of an exchange that is too small to slow down others (is_felt)
// One use of a pattern with a given number of bytes.
struct Exchange {
  std::int32_t pattern = kNoPattern, communicator = 0;
  OpKind kind = OpKind::all_reduce;
  double bytes = 0;
  CollectiveCost cost;  // when alone, as the analytical engine computes it
  // Set when the traffic is folded: bytes on the links per byte of a flow, protocol overheads included, within nodes
  // and between them.
  double wire_inside = 0, wire_outside = 0;
};
inline constexpr std::uint32_t kNoExchange = 0xffffffff;

// The name of a node of a block in the report, under which its time is booked.
struct OpName {
  const char* piece = "";
  const char* block = "";
  const char* op = "";
  const char* last = "";            // the last of the kernels that a node merges; equal to `op` if it is alone
  const BlockCode* code = nullptr;  // the block that has the op
  BlockKind kind = BlockKind::forward;
  std::uint16_t at = 0;              // index of the op in the block
  std::vector<double> kernels = {};  // seconds of each kernel
  // Seconds of those kernels over unequal numbers of rows, for the busiest rank. Other ranks take the share
  // JobSimulation::rows_of_ranks[load] of this.
  double seconds_by_rows = 0;
  std::size_t load = 0;
  // Ops whose time depends on a rank's documents: attention within documents, and kernels over dimensions in which
  // ranks have their own numbers of rows. They belong to the piece `of`. `seconds_less`, by
  // JobSimulation::document_place(): the seconds by which they are shorter than on the slowest rank.
  std::vector<const Op*> within_documents = {};
  const Piece* of = nullptr;
  std::vector<double> seconds_less = {};
  std::string text() const;
};

// A load in the form in which ranks and their flows fold.
struct FoldedLoad {
  std::vector<double> rows;      // as Load::rows
  std::vector<double> of_ranks;  // rows of the rank's experts, over the busiest rank's
};
inline constexpr std::int64_t kExactRanks = 16;
// The loads of a Program, for one expert group. They are exact if `exact`, and in groups of up to kExactRanks ranks.
// Otherwise they are simplified so that ranks fold. All ranks send in the same proportions, and equal amounts, or
// amounts in a few levels if these differ. The rank that is the busiest of a load keeps its own rows in all loads. The
// other ranks are sorted by their rows over all layers together and grouped, as many to a group as there are nodes; the
// ranks of a group have the group's mean in each load and lie on different nodes.
std::vector<FoldedLoad> folded_loads(std::span<const Load> loads, std::int64_t ranks_per_node, bool exact);

struct JobSimulation {
  std::string name;
  const Program* program = nullptr;
  JobNodes placement;
  std::int64_t repeats = 1;  // how often it runs, without a pause
  // A task that runs beside another job, on the same devices: that job's kernels are as slow while it runs as they are
  // beside collectives of their own.
  bool beside = false;
  std::unique_ptr<OpCostModel> costs;
  double overlap_slowdown = 0;
  std::vector<std::array<BlockCode, kBlockKinds>> codes;  // by piece
  // [piece][slot kind]: the blocks of a forward that runs at the same time as a backward, and of that backward
  // (sim/program/pair.h). Empty for a schedule without pairs.
  std::vector<std::array<BlockCode, 2>> paired_codes;
  std::vector<std::unique_ptr<Piece>> paired_pieces;   // the pieces that own these blocks
  std::map<const BlockCode*, std::uint32_t> first_op;  // index into `ops` of the block's first node; the others follow
  std::vector<OpName> ops;
  // By op: its exchanges by the number of instances that it covers.
  std::vector<std::vector<std::pair<std::int64_t, std::uint32_t>>> exchanges_of;
  std::uint32_t exchange_of(std::uint32_t op, std::int64_t instances) const {
    for (const auto& [covered, exchange] : exchanges_of[op])
      if (covered == instances) return exchange;
    return kNoExchange;
  }
  // By position of the sending chunk: to position + 1 (forward), to position - 1 (backward); kNoExchange on one stage.
  std::vector<std::uint32_t> forward, backward;
  // [load of Program::loads][place in the expert group]: rows over the busiest rank's.
  std::vector<std::vector<double>> rows_of_ranks;
  std::vector<std::int32_t> rows;  // by load: its number in the traffic
  double rows_of(std::size_t load, std::int64_t rank) const {
    return rows_of_ranks[load][static_cast<std::size_t>(program->mesh.coordinate(rank, program->loads[load].group))];
  }
  // The index of a rank in seconds_less: replicas have different documents, and so have the ranks of a sequence.
  std::size_t document_place(std::int64_t rank) const {
    const Mesh& mesh = program->mesh;
    const std::int64_t replica = mesh.coordinate(rank, mesh.replicas());
    return static_cast<std::size_t>(replica * mesh.size(MeshAxis::cp) + mesh.coordinate(rank, MeshAxis::cp));
  }
  bool synchronises = false;           // all stages wait for each other at the gradient norm
  std::vector<std::int32_t> stage_at;  // by position

  double works_of(std::size_t stage) const;  // number of kernels, collectives and copies of one rank of the stage
};

struct ResolvedPerturbation {
  Perturbation perturbation;
  std::vector<LinkId> links;
  std::vector<std::pair<std::int32_t, std::int64_t>> ranks;  // (job, rank)
  std::vector<std::int32_t> background;                      // numbers in the traffic, one for each link
  std::int64_t first_node = 0;                               // first node that fails
};

// The number of chunks that chains and trees of a step-exact collective pass on one by one.
std::int32_t chunks_of(const Cluster& cluster, double bytes, const DiscreteEventOptions& options);

struct SimulationPlan {
  SimulationPlan(const Cluster& cluster_, const DiscreteEventOptions& options_);

  const Cluster& cluster;
  DiscreteEventOptions options;
  Topology topology;
  Traffic traffic;
  std::vector<JobSimulation> jobs;
  std::vector<Exchange> exchanges;
  std::vector<ResolvedPerturbation> perturbations;

  void add_job(const DiscreteEventJob& job, const CollectiveCalibration& collectives);
  // `kind`: without what `cost` says of the algorithm.
  std::uint32_t add_exchange(PatternKind kind, double bytes, const CollectiveCost& cost);
  // Throws InputError if a perturbation names nothing.
  void add_perturbations(std::span<const Perturbation> perturbations);
  void fold();
  // Number of kernels, collectives and copies of all rank classes, from the code of their blocks; each is one event or
  // a few. REQUIRES: fold().
  double works() const;
  // The number of these that a timeline may show: for one rank of each stage, and for each other track.
  double timeline_works() const;

 private:
  // Returns whether `ranks` ranks of each stage are simulated one by one: folding is off, or the plan has room for
  // their works.
  bool is_exact(const JobSimulation& job, std::int64_t ranks) const;
  void fold_loads(std::int32_t id, JobSimulation& job);
  void add_load_of_pairs(std::int32_t id, std::size_t load, JobSimulation& job);
  // Replicas with different documents: each is simulated by itself if `exact` or if there are at most kExactRanks of
  // them. Otherwise all take the slowest replica's time.
  void fold_documents(std::int32_t id, JobSimulation& job);
  void compile_blocks(JobSimulation& job);
  void compile_pairs(JobSimulation& job, std::size_t piece);
  // Registers the nodes of the block as ops of the report.
  static void name_ops(JobSimulation& job, const BlockCode& code, BlockKind kind);
  void add_block_exchanges(std::int32_t id, JobSimulation& job);
  void add_stage_exchanges(std::int32_t id, JobSimulation& job);  // between pipeline stages
};

}  // namespace orrery
