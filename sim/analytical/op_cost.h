// Seconds of any op: kernels, collectives, copies, host kernels, storage.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "sim/analytical/fabric_share.h"
#include "sim/cost/collective_cost.h"
#include "sim/cost/exchange_skew.h"
#include "sim/cost/kernel_cost.h"
#include "sim/hardware/cluster.h"
#include "sim/hardware/stage_span.h"
#include "sim/program/borders.h"
#include "sim/program/program.h"
#include "sim/program/work.h"

namespace orrery {

struct OpCost {
  double seconds = 0;       // of all `count` launches, on the op's stream
  double last_seconds = 0;  // of the last launch
  double flops = 0;         // of matmuls and attention
  double waiting = 0;       // part of `seconds`: wait of matmuls and attention for the slowest device
  bool absent = false;      // a collective over a group of one rank: it is not issued
  std::array<bool, kFabricLevels> on_level{};  // whether it slows others there

  bool is_on(FabricLevel level) const { return on_level[static_cast<std::size_t>(level)]; }
};

// The first operand or result for which `is` holds; null: none.
template <class Is>
const Tensor* find_tensor(const Op& op, std::span<const Tensor> tensors, const Is& is) {
  for (const TensorId id : op.reads)
    if (id != kNoTensor && is(tensors[id])) return &tensors[id];
  for (const TensorId id : op.writes)
    if (id != kNoTensor && is(tensors[id])) return &tensors[id];
  return nullptr;
}

// Not thread-safe: caches groups and collectives of a mesh.
class OpCostModel {
 public:
  // Keeps references; all must outlive the model.
  OpCostModel(const Cluster& cluster, const Calibration& kernels, const CollectiveCalibration& collectives);

  // Call once before the ops of another Program. REQUIRES: `program` outlives the model.
  void set_program(const Program& program);
  // The same for a mesh alone. `algorithm` and `protocol` apply to all collectives that have them. REQUIRES:
  // `stage_groups` and `loads` (those of the Program) outlive the model.
  void set_mesh(const Mesh& mesh, CollectiveAlgorithm algorithm = CollectiveAlgorithm::automatic,
                CollectiveProtocol protocol = CollectiveProtocol::automatic,
                std::span<const StageGroup> stage_groups = {}, std::span<const Load> loads = {});
  // Instead: makes this the model of one stage, on the cluster and mesh of `all`. Collectives are then those of this
  // stage, whose groups may have another extent than those of other stages, instead of the worst stage's. `busy`: by
  // stage, the share of time for which it uses the network; stages share NICs. REQUIRES: `spans`, those of the mesh,
  // outlive the model.
  void set_stage(const OpCostModel& all, std::int64_t stage, StageSpans& spans, std::span<const double> busy);

  // Cost of one run of an op, split over Op::count launches; each launch of a kernel has the device's fixed time.
  // `instances`: the instances of the piece that the run covers (Op::every): bytes and FLOPs count that many times.
  // Rates: a copy between a device and its host runs at the PCIe rate of the device, or at its share of its PCIe
  // switch's rate, as all devices of a node copy at the same time. Copies from or to storage run at the device's share
  // of the NVMe rate, host kernels at its share of the host's memory rate.
  // Unequal rows (Tensor::load): seconds are those of the rank with the most rows, for which all others wait. FLOPs are
  // the mean over the ranks.
  // Attention within documents: seconds and FLOPs are those of the slowest replica. Within it they are those of
  // slowest_rank(), or, if there is none, of the part of the queries that sees the most pairs.
  // Ranks with their own numbers of rows (dealt_rows): a kernel costs the fullest rank's kernel times the share of rows
  // that slowest_rank() has. Only the sums of a ring (merge_attention) cost as much as the fullest rank's, because
  // ranks wait for each other.
  // Throws InputError if the cluster lacks a rate.
  OpCost cost(const Op& op, std::span<const Tensor> tensors, std::int64_t instances) const;
  // Seconds of a kernel for one replica, on one rank of the mesh. REQUIRES: attention within documents (Op::documents),
  // or dealt_rows().
  double document_seconds(const Op& op, std::span<const Tensor> tensors, std::int64_t replica, std::int64_t rank) const;
  // If ranks have documents of their own (DealTables::by_runs): the rank whose kernels take the longest in all layers
  // together. -1: they have not.
  std::int64_t slowest_rank() const { return set_.slowest_rank; }
  // The dimension of a kernel's operands in which ranks have their own numbers of rows.
  struct DealtRows {
    Deal deal;
    Division over;
  };
  std::optional<DealtRows> dealt_rows(const Op& op, std::span<const Tensor> tensors) const;
  // The share of the fullest rank's kernel that cost() charges (dealt_rows). 1 if all ranks have the same number of
  // rows, and for the sums of a ring.
  double charged_share(const Op& op, std::span<const Tensor> tensors) const;
  double mean_flops(const Op& op, std::span<const Tensor> tensors) const;  // mean over all replicas and ranks
  // The document pairs of the rank that cost() charges; null: the sequence is one document.
  const DocumentPairs* documents_charged(const Op& op, std::span<const Tensor> tensors) const;

  // Seconds of one launch of a copy between a device and its host while no other device copies.
  double copy_seconds_alone(const Op& copy, std::span<const Tensor> tensors, std::int64_t instances) const;

  // Cost of one launch of a collective. Under a load: for its busiest rank.
  CollectiveCost collective(const Op& op, std::span<const Tensor> tensors, std::int64_t instances) const;
  // A border tensor that goes from a pipeline stage to the next, or from the last to the first. All ranks of the stage
  // on a node send at the same time. Gathering a tensor that arrived in parts counts as latency: it uses no link that
  // the transfer uses.
  CollectiveCost transfer(Crossing crossing, std::int64_t from_stage) const;

  // The load of the op's operands or results; null: every rank has the same number of rows.
  const Load* row_load(const Op& op, std::span<const Tensor> tensors) const;
  // The skew of an exchange under a load. If the op's group is a part of the load's, the largest skew of any of these
  // groups on each level.
  ExchangeSkew skew_under(const Load& load, const Op& op, std::int64_t ranks_per_node,
                          const CollectiveCost& cost) const;

  // The op's bound in words, for OpReport.
  std::string bound(const Op& op, std::span<const Tensor> tensors, std::int64_t instances) const;
  const KernelModel& kernels() const { return kernels_; }

 private:
  // Like cost(), for all rows that a kernel has room for.
  OpCost kernel_cost(const Op& op, std::span<const Tensor> tensors, std::int64_t instances,
                     const DocumentPairs* documents) const;
  std::int64_t find_slowest_rank(const Program& program) const;
  void forget();  // what is known of the mesh and its documents
  struct Rate {
    double bytes_per_second = 0;
    const char* pointer = "";  // of the rate in a cluster document
  };
  // `alone`: no other device behind the same PCIe switch copies at the same time.
  Rate rate(const Op& op, std::span<const Tensor> tensors, bool alone) const;
  struct Spanned {
    MeshGroup group;
    TableIndex<StageGroup> stages;
    GroupSpan span = {};
    double slowdown = 1;  // of NIC traffic, because of other stages
  };
  Spanned span(const Op& op) const;
  GroupSpan span_of_stages(std::span<const std::uint16_t> stages) const;
  // For scattered nodes: the fabric load of a mesh group, or of its members with these numbers ("places") in each
  // group. Kept across meshes, since other meshes have the same groups.
  std::shared_ptr<const FabricTraffic> load_of(MeshGroup group, std::span<const std::uint16_t> places = {}) const;
  // The key and the cost of a collective; nothing else affects its cost. All by_token exchanges use one router.
  struct Collective {
    OpKind kind;
    CollectiveAlgorithm algorithm;
    MeshGroup group;
    TableIndex<StageGroup> stages;
    double bytes;
    const Load* load;
    CollectiveCost cost;
  };

  const Cluster& cluster_;
  const Calibration& calibration_;
  KernelModel kernels_;
  CollectiveModel collectives_;
  // The settings of one Program. The models of its stages share them.
  struct Setting {
    Mesh mesh;
    CollectiveAlgorithm algorithm = CollectiveAlgorithm::automatic;
    CollectiveProtocol protocol = CollectiveProtocol::automatic;
    std::span<const StageGroup> stage_groups;
    std::span<const Load> loads;
    std::shared_ptr<ExchangeSkews> skews = std::make_shared<ExchangeSkews>();  // of all Programs
    double slowest_loss = 0;  // for the number of devices of this mesh (sim/cost/step_calibration.h)
    const PackedSequences* packed = nullptr;
    std::span<const DocumentLoad> document_loads = {};
    std::int64_t slowest_rank = -1;
  } set_;
  // All inputs on which the pairs of an op with documents depend.
  struct Attention {
    TableIndex<DocumentLoad> load;
    std::int32_t parts = 1, keys_before = 0, inner_parts = 1;
    Deal query_deal = Deal::contiguous, key_deal = Deal::contiguous;
    bool gathered = true;
    std::int64_t window = 0, queries = 0, keys = 0;
    auto operator<=>(const Attention&) const = default;
  };
  static Attention attention_of(const Op& op, std::span<const Tensor> tensors);
  // The mean over the sequences that a replica has of a load.
  const DocumentPairs& document_pairs_at(const Op& op, std::span<const Tensor> tensors, std::int64_t replica,
                                         std::int64_t part) const;
  // The part of the slowest replica's sequences that sees the most pairs.
  std::int64_t busiest_part(const Op& op, std::span<const Tensor> tensors) const;
  mutable std::map<std::tuple<Attention, std::int64_t, std::int64_t>, DocumentPairs> documents_met_;
  mutable std::map<Attention, std::int64_t> busiest_parts_;
  StageSpans* stage_spans_ = nullptr;  // null: collectives of any stage
  std::int64_t stage_ = 0;
  std::vector<double> busy_;
  mutable std::vector<Spanned> spans_met_;  // on this mesh
  mutable std::map<std::vector<std::int64_t>, std::shared_ptr<const FabricTraffic>> loads_met_;
  mutable std::vector<Collective> collectives_met_;  // on this mesh: layers repeat the same few
};

}  // namespace orrery
