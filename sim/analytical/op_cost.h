// Seconds of any op, whatever it runs on: kernels, collectives, copies, host kernels, storage.
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
  double seconds = 0;       // of all `count` launches, on its stream
  double last_seconds = 0;  // of the last of the `count` launches
  double flops = 0;         // matmuls and attention
  double waiting = 0;       // of `seconds`: matmuls and attention, until the slowest device has done with them
  bool absent = false;      // a collective over a group of one: not issued
  bool on_scale_up = false, on_network = false, on_neighbours = false;  // levels that a collective is felt on
};

// Not thread-safe: remembers the groups and collectives it has met on a mesh.
class OpCostModel {
 public:
  // Keeps references; both must outlive the model.
  OpCostModel(const Cluster& cluster, const Calibration& kernels, const CollectiveCalibration& collectives);

  // Call once before the ops of another Program, which must outlive the model.
  void set_program(const Program& program);
  // A Program's mesh alone. The algorithm and protocol are of all its collectives that have them. `stage_groups`,
  // `loads`: of the Program; must outlive the model.
  void set_mesh(const Mesh& mesh, CollectiveAlgorithm algorithm = CollectiveAlgorithm::automatic,
                CollectiveProtocol protocol = CollectiveProtocol::automatic,
                std::span<const StageGroup> stage_groups = {}, std::span<const Load> loads = {});
  // Instead, on the mesh of `all`, a model of the same cluster: collectives are those of this stage, whose groups may
  // span something else than another stage's, not the worst of all. `spans`: of the mesh; must outlive the model.
  // `busy`: by stage, the part of the time that it uses the network; they share NICs.
  void set_stage(const OpCostModel& all, std::int64_t stage, StageSpans& spans, std::span<const double> busy);

  // `instances`: of the piece that one run of the op covers (Op::every): `instances` times the bytes, and the FLOPs,
  // split over Op::count launches; of kernels, each launch has the device's fixed time. Copies between a
  // device and its host run at the PCIe rate of the device, or at its share of its PCIe switch's, as all devices of a
  // node copy at once; those from or to storage at its share of the NVMe rate, host kernels at its share of the host's
  // memory rate. Of rows of unequal number (Tensor::load) the seconds are those of the rank with the most, for which
  // all others wait, the FLOPs the mean of all. Of attention within documents both are of the slowest replica, and
  // there of the slowest_rank(), or else of the part that sees the most; where ranks have rows of their own number
  // (dealt_rows) both are the slowest_rank()'s share of a kernel over the fullest rank's, but for what a ring adds up,
  // which is the fullest rank's. Throws InputError when the cluster lacks a rate.
  OpCost cost(const Op& op, std::span<const Tensor> tensors, std::int64_t instances) const;
  // The seconds of a replica, on a rank of the mesh. REQUIRES: attention within documents (Op::documents), or
  // dealt_rows.
  double document_seconds(const Op& op, std::span<const Tensor> tensors, std::int64_t replica, std::int64_t rank) const;
  // Where ranks have documents of their own (DealTables::by_runs), the one whose kernels take the longest in all layers
  // together. -1: they have not.
  std::int64_t slowest_rank() const { return slowest_rank_; }
  // A dimension of what a kernel reads or writes of which ranks have rows of their own number.
  struct DealtRows {
    Deal deal;
    Division over;
  };
  std::optional<DealtRows> dealt_rows(const Op& op, std::span<const Tensor> tensors) const;
  // Of a kernel over all rows that the fullest rank has, what cost() charges: 1 where ranks have as many, and of what a
  // ring adds up.
  double charged_share(const Op& op, std::span<const Tensor> tensors) const;
  double mean_flops(const Op& op, std::span<const Tensor> tensors) const;  // of all replicas and ranks
  // And what documents leave there to whom cost() charges for; null: the sequence is one.
  const DocumentPairs* documents_charged(const Op& op, std::span<const Tensor> tensors) const;

  // A copy between a device and its host while no other device copies: one of its `count` launches.
  double copy_seconds_alone(const Op& copy, std::span<const Tensor> tensors, std::int64_t instances) const;

  // A collective op (not send, receive): one of its `count` launches. Under a load those of its busiest rank.
  CollectiveCost collective(const Op& op, std::span<const Tensor> tensors, std::int64_t instances) const;
  // A boundary tensor from a pipeline stage to the next, or from the last to the first. As many leave a node at once as
  // its ranks of one stage.
  // Gathering what has arrived in parts counts as latency: it takes no link that the transfer takes.
  CollectiveCost transfer(Crossing crossing, std::int64_t from_stage) const;
  double transfer_seconds(Crossing crossing, std::int64_t from_stage) const {
    return transfer(crossing, from_stage).seconds;
  }

  // Of what the op reads or writes; null: every rank has as many rows.
  const Load* row_load(const Op& op, std::span<const Tensor> tensors) const;
  // Of an exchange under it: of the groups that it is of, the most that any has on either level.
  ExchangeSkew skew_under(const Load& load, const Op& op, std::int64_t ranks_per_node,
                          const CollectiveCost& cost) const;

  // What bounds the op, in words, for OpReport.
  std::string bound(const Op& op, std::span<const Tensor> tensors, std::int64_t instances) const;
  const KernelModel& kernels() const { return kernels_; }

 private:
  // As cost(), of all rows that a kernel has room for.
  OpCost kernel_cost(const Op& op, std::span<const Tensor> tensors, std::int64_t instances,
                     const DocumentPairs* documents) const;
  std::int64_t find_slowest_rank(const Program& program) const;
  void set_documents(const PackedSequences* packed, std::span<const DocumentLoad> loads);
  struct Rate {
    double bytes_per_second = 0;
    const char* pointer = "";  // of the rate in a cluster document
  };
  // `alone`: no other device behind the same PCIe switch copies.
  Rate rate(const Op& op, std::span<const Tensor> tensors, bool alone) const;
  struct Spanned {
    GroupSpan span;
    double slowdown = 1;  // of what goes over NICs, by other stages
  };
  Spanned span(const Op& op) const;
  GroupSpan span_of_stages(std::span<const std::uint16_t> stages) const;
  // Where nodes are scattered, of a mesh group, or of all ranks at the same place of these stages; remembered over
  // meshes: others have the same groups.
  std::shared_ptr<const FabricLoad> load_of(MeshGroup group) const;
  std::shared_ptr<const FabricLoad> load_of(std::span<const std::uint16_t> stages) const;
  struct Collective {  // its cost depends on nothing else; all by_token are of one router
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
  Mesh mesh_;
  std::span<const StageGroup> stage_groups_;
  std::span<const Load> loads_;
  std::shared_ptr<ExchangeSkews> skews_ = std::make_shared<ExchangeSkews>();  // of all stages and Programs
  const PackedSequences* packed_ = nullptr;
  std::span<const DocumentLoad> document_loads_;
  std::int64_t slowest_rank_ = -1;
  // Of an op that sees documents, all that its pairs depend on.
  struct Attention {
    TableIndex<DocumentLoad> load;
    std::int32_t parts = 1, keys_before = 0, inner_parts = 1;
    Deal query_deal = Deal::contiguous, key_deal = Deal::contiguous;
    bool gathered = true;
    std::int64_t window = 0, queries = 0, keys = 0;
    auto operator<=>(const Attention&) const = default;
  };
  static Attention attention_of(const Op& op, std::span<const Tensor> tensors);
  // The mean of the sequences that a replica has of a load.
  const DocumentPairs& document_pairs_at(const Op& op, std::span<const Tensor> tensors, std::int64_t replica,
                                         std::int64_t part) const;
  // The part of the slowest replica's sequences that sees the most.
  std::int64_t busiest_part(const Op& op, std::span<const Tensor> tensors) const;
  mutable std::map<std::tuple<Attention, std::int64_t, std::int64_t>, DocumentPairs> documents_met_;
  mutable std::map<Attention, std::int64_t> busiest_parts_;
  CollectiveAlgorithm algorithm_ = CollectiveAlgorithm::automatic;
  CollectiveProtocol protocol_ = CollectiveProtocol::automatic;
  double slowest_loss_ = 0;  // of this mesh's devices (sim/cost/scale_cost.h)
  struct Span {
    MeshGroup group;
    TableIndex<StageGroup> stages;
    Spanned spanned;
  };
  StageSpans* stage_spans_ = nullptr;  // none: collectives are those of any stage
  std::int64_t stage_ = 0;
  std::vector<double> busy_;
  mutable std::vector<Span> spans_met_;  // on this mesh
  mutable std::map<std::vector<std::int64_t>, std::shared_ptr<const FabricLoad>> loads_met_;
  mutable std::vector<Collective> collectives_met_;  // likewise: a layer repeats the same few
};

}  // namespace orrery
