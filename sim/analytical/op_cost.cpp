#include "sim/analytical/op_cost.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "sim/base/error.h"
#include "sim/cost/fabric_traffic.h"
#include "sim/cost/step_calibration.h"

namespace orrery {
OpCostModel::OpCostModel(const Cluster& cluster, const Calibration& kernels, const CollectiveCalibration& collectives)
    : cluster_(cluster), calibration_(kernels), kernels_(cluster.device, kernels), collectives_(cluster, collectives) {
  set_mesh(Mesh{});
}

void OpCostModel::set_program(const Program& program) {
  set_mesh(program.mesh, program.runtime.collective_algorithm, program.runtime.collective_protocol,
           program.stage_groups, program.loads);
  set_.packed = program.packed.get();
  set_.document_loads = program.document_loads;
  set_.slowest_rank = find_slowest_rank(program);
}

void OpCostModel::set_mesh(const Mesh& mesh, CollectiveAlgorithm algorithm, CollectiveProtocol protocol,
                           std::span<const StageGroup> stage_groups, std::span<const Load> loads) {
  const double loss = mesh.ranks() == set_.mesh.ranks() ? set_.slowest_loss
                                                        : slowest_device_loss(mesh.ranks(), calibration_.device_spread);
  set_ = {mesh, algorithm, protocol, stage_groups, loads, set_.skews, loss};
  stage_spans_ = nullptr;
  forget();
}

void OpCostModel::set_stage(const OpCostModel& all, std::int64_t stage, StageSpans& spans,
                            std::span<const double> busy) {
  set_ = all.set_;
  stage_spans_ = &spans;
  stage_ = stage;
  busy_.assign(busy.begin(), busy.end());
  forget();
}

void OpCostModel::forget() {
  spans_met_.clear();
  collectives_met_.clear();
  documents_met_.clear();
  busiest_parts_.clear();
}

OpCostModel::Spanned OpCostModel::span(const Op& op) const {
  for (const Spanned& met : spans_met_)
    if (met.group == op.group && met.stages == op.stages) return met;
  Spanned spanned{.group = op.group, .stages = op.stages};
  GroupSpan& span = spanned.span;
  if (op.stages.has_value()) {
    span = span_of_stages(set_.stage_groups[op.stages.value()]);
  } else if (stage_spans_ == nullptr || op.group.meets(set_.mesh.group(MeshAxis::pp))) {
    span = span_of(set_.mesh, op.group, cluster_.node.devices);
  } else {
    const StageSpan& own = stage_spans_->of(op.group, stage_);
    span = own.span;
    if (!cluster_.is_scattered()) spanned.slowdown = slowdown_by_others(own, busy_);
  }
  if (cluster_.is_scattered() && span.nodes > 1)
    span.load = op.stages.has_value() ? load_of(set_.mesh.group(MeshAxis::pp), set_.stage_groups[op.stages.value()])
                                      : load_of(op.group);
  spans_met_.push_back(spanned);
  return spanned;
}

// The span of the first ranks of the stages; all their ranks have such groups.
GroupSpan OpCostModel::span_of_stages(std::span<const std::uint16_t> stages) const {
  const std::int64_t stride = set_.mesh.stride(MeshAxis::pp), per_node = cluster_.node.devices;
  GroupSpan span;
  span.ranks = static_cast<std::int64_t>(stages.size());
  span.stride = stride * (stages[1] - stages[0]);
  std::int64_t node = -1, here = 0;
  span.nodes = span.ranks_per_node = 0;
  for (const std::uint16_t stage : stages) {  // ascending
    const std::int64_t at = stride * stage / per_node;
    if (at != node) ++span.nodes, here = 0;
    node = at;
    span.ranks_per_node = std::max(span.ranks_per_node, ++here);
  }
  span.groups_sharing_nics = std::min(stride, per_node);
  return span;
}

namespace {

// Other traffic uses the NICs, too.
void slow_network(double times, CollectiveCost& cost) {
  cost.inter_seconds *= times;
  cost.inter_bound |= cost.inter_seconds > cost.intra_seconds;
  const double nodes_only = cost.inter_seconds + (cost.in_sequence ? cost.intra_seconds : 0);
  // Narrower links beyond the NICs keep their share.
  const double seconds = std::max(cost.seconds, cost.latency_seconds + nodes_only);
  cost.bus_bytes_per_second *= cost.seconds / seconds;
  cost.seconds = seconds;
}

// The bytes that the busiest node sends to other nodes, over those that the busiest rank sends there: the number of
// ranks that share the node's NICs.
std::int64_t ranks_that_cross(const Load& load, std::int64_t per_node) {
  double of_node = 0, of_rank = 0;
  for (std::int64_t first = 0; first < load.ranks; first += per_node) {
    double here = 0;
    for (std::int64_t from = first; from < std::min(first + per_node, load.ranks); ++from) {
      double crosses = 0;
      for (std::int64_t to = 0; to < load.ranks; ++to)
        if (to / per_node != first / per_node) crosses += load.at(from, to);
      here += crosses;
      of_rank = std::max(of_rank, crosses);
    }
    of_node = std::max(of_node, here);
  }
  return of_rank > 0 ? std::llround(std::ceil(of_node / of_rank)) : 1;
}

// Rings of the ranks that hold an expert, all at once. The busiest rank sends `busiest` times what each rank sends in a
// balanced exchange of `bytes`, to its neighbours in the rings.
CollectiveCost cost_of_rings(const CollectiveModel& collectives, double bytes, const ExchangeSkew& busiest,
                             const Load& load, const GroupSpan& span, std::int64_t per_node) {
  const double to_each = bytes / static_cast<double>(span.ranks);
  const CollectiveCost inside = collectives.transfer(
      busiest.inside * to_each * static_cast<double>(span.ranks_per_node - 1), std::min(span.stride, per_node - 1), 1);
  CollectiveCost cost =
      collectives.transfer(busiest.between * to_each * static_cast<double>(span.ranks - span.ranks_per_node), per_node,
                           ranks_that_cross(load, span.ranks_per_node) * span.groups_sharing_nics, span.load);
  cost.algorithm = CollectiveAlgorithm::direct;
  cost.intra_bytes = inside.intra_bytes;
  cost.intra_seconds = inside.intra_seconds;
  cost.latency_seconds = std::max(cost.latency_seconds, inside.latency_seconds);
  cost.inter_bound = cost.inter_seconds > cost.intra_seconds;
  cost.seconds = std::max(cost.seconds, cost.latency_seconds + cost.intra_seconds);
  return cost;
}

constexpr std::size_t kMostLoads = 4096;  // entries of some kilobytes

// The properties of a mesh on which a load depends.
std::vector<std::int64_t> key_of(const Mesh& mesh, MeshGroup group) {
  std::vector<std::int64_t> key;
  int index = 0;
  for (const Digit& digit : mesh.digits()) {
    key.push_back(digit.size);
    key.push_back(group.contains(index++) ? 1 : 0);
  }
  return key;
}

}  // namespace

const Load* OpCostModel::row_load(const Op& op, std::span<const Tensor> tensors) const {
  if (set_.loads.empty()) return nullptr;
  if (op.load.has_value()) return &set_.loads[op.load.value()];
  const Tensor* const loaded = find_tensor(op, tensors, [](const Tensor& t) { return t.load.has_value(); });
  return loaded == nullptr ? nullptr : &set_.loads[loaded->load.value()];
}

OpCostModel::Attention OpCostModel::attention_of(const Op& op, std::span<const Tensor> tensors) {
  const std::size_t first = queries_operand(op.kind);
  const Tensor& q = tensors[op.reads[first]];
  const Tensor& kv = op.reads[first + 1] == kNoTensor ? q : tensors[op.reads[first + 1]];
  return {op.documents, op.parts,           op.keys_before, op.inner_parts, q.deal(1),
          kv.deal(1),   kv.over[1].empty(), op.window,      q.sizes[1],     kv.sizes[1]};
}

const DocumentPairs& OpCostModel::document_pairs_at(const Op& op, std::span<const Tensor> tensors, std::int64_t replica,
                                                    std::int64_t part) const {
  const auto [met, is_new] = documents_met_.try_emplace({attention_of(op, tensors), replica, part});
  if (is_new) {
    const auto& sequences = set_.document_loads[op.documents.value()].sequences[static_cast<std::size_t>(replica)];
    for (const std::int64_t s : sequences)
      met->second.add(document_pairs(op, tensors, part, set_.packed->ends_of(s), kAttentionRows),
                      1 / static_cast<double>(sequences.size()));
  }
  return met->second;
}

namespace {

std::int64_t part_of_queries(const Op& op, std::span<const Tensor> tensors, const Mesh& mesh, std::int64_t rank) {
  return op.parts == 1 ? 0 : part_of(tensors[op.reads[queries_operand(op.kind)]].over[1], mesh, rank);
}

}  // namespace

std::optional<OpCostModel::DealtRows> OpCostModel::dealt_rows(const Op& op, std::span<const Tensor> tensors) const {
  if (set_.document_loads.empty() || is_attention(op.kind)) return std::nullopt;
  const Tensor* const dealt = find_tensor(op, tensors, [](const Tensor& t) {
    const int d = t.find(Axis::sequence);
    return d >= 0 && !t.over[d].empty() && is_table_of_runs(t.deal(d));
  });
  if (dealt == nullptr) return std::nullopt;
  const int d = dealt->find(Axis::sequence);
  return DealtRows{dealt->deal(d), dealt->over[d]};
}

double OpCostModel::charged_share(const Op& op, std::span<const Tensor> tensors) const {
  // The ranks of a ring wait for each other's sums.
  if (set_.slowest_rank < 0 || op.kind == OpKind::merge_attention) return 1;
  const std::optional<DealtRows> rows = dealt_rows(op, tensors);
  return rows ? filled_share(rows->deal, rows->over, set_.mesh, set_.slowest_rank) : 1;
}

std::int64_t OpCostModel::find_slowest_rank(const Program& program) const {
  const auto has_own_documents = [](const Piece& piece) {
    return std::ranges::any_of(piece.forward.ops, [&](const Op& op) {
      return op.documents.has_value() && is_table_of_runs(piece.tensors[op.reads[queries_operand(op.kind)]].deal(1));
    });
  };
  if (std::ranges::none_of(program.pieces, has_own_documents)) return -1;
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(set_.mesh.size(MeshAxis::cp)), 0);  // by place in cp: a rank
  for (std::int64_t rank = set_.mesh.ranks(); rank-- > 0;)
    ranks[static_cast<std::size_t>(set_.mesh.coordinate(rank, MeshAxis::cp))] = rank;
  std::vector<double> seconds(ranks.size(), 0);
  const std::int64_t replica = set_.document_loads.front().slowest_replica;
  const auto add = [&](const Piece& piece, const Op& op, double runs) {
    if (is_communication(op.kind) || row_of(op.stream).occupies == Occupies::host || op.kind == OpKind::copy) return;
    if (!op.documents.has_value() && !dealt_rows(op, piece.tensors)) return;
    for (std::size_t i = 0; i < ranks.size(); ++i)
      seconds[i] += runs * document_seconds(op, piece.tensors, replica, ranks[i]);
  };
  std::vector<double> runs(program.pieces.size(), 0);
  for (const PieceRun& run : program.line) runs[run.piece] += static_cast<double>(run.count);
  for (std::size_t p = 0; p < runs.size(); ++p) {
    if (runs[p] == 0) continue;
    const Piece& piece = program.pieces[p];
    for (const Block* block : {&piece.forward, &piece.backward, &piece.weight_gradient})
      for (const Op& op : block->ops) add(piece, op, runs[p]);
  }
  return ranks[static_cast<std::size_t>(std::ranges::max_element(seconds) - seconds.begin())];
}

std::int64_t OpCostModel::busiest_part(const Op& op, std::span<const Tensor> tensors) const {
  if (op.parts == 1) return 0;
  if (set_.slowest_rank >= 0) return part_of_queries(op, tensors, set_.mesh, set_.slowest_rank);
  const auto [met, is_new] = busiest_parts_.try_emplace(attention_of(op, tensors), 0);
  if (is_new) {
    const DocumentLoad& load = set_.document_loads[op.documents.value()];
    double most = -1;
    for (std::int64_t part = op.parts; part-- > 0;) {
      double pairs = 0;
      for (const std::int64_t s : load.sequences[static_cast<std::size_t>(load.slowest_replica)])
        pairs += document_pairs_of_part(op, tensors, part, set_.packed->ends_of(s));
      if (pairs <= most) continue;
      most = pairs;
      met->second = part;
    }
  }
  return met->second;
}

double OpCostModel::mean_flops(const Op& op, std::span<const Tensor> tensors) const {
  if (const std::optional<DealtRows> rows = dealt_rows(op, tensors)) {
    const DealTable& table = *rows->deal.table;
    const auto filled = static_cast<double>(std::reduce(table.filled.begin(), table.filled.end()));
    return kernel_cost(op, tensors, 1, nullptr).flops * filled /
           static_cast<double>(rows_of(table.of_part.front()) * static_cast<std::int64_t>(table.filled.size()));
  }
  const auto replicas = static_cast<std::int64_t>(set_.document_loads[op.documents.value()].sequences.size());
  double pairs = 0;
  for (std::int64_t replica = 0; replica < replicas; ++replica)
    for (std::int64_t part = 0; part < op.parts; ++part) pairs += document_pairs_at(op, tensors, replica, part).counted;
  const AttentionShape shape = attention_shape(op, tensors);
  return flops_per_pair(shape, op.kind == OpKind::attention_backward) * static_cast<double>(shape.batch * shape.heads) *
         pairs / static_cast<double>(replicas * op.parts);
}

const DocumentPairs* OpCostModel::documents_charged(const Op& op, std::span<const Tensor> tensors) const {
  if (!op.documents.has_value() || set_.packed == nullptr) return nullptr;
  return &document_pairs_at(op, tensors, set_.document_loads[op.documents.value()].slowest_replica,
                            busiest_part(op, tensors));
}

double OpCostModel::document_seconds(const Op& op, std::span<const Tensor> tensors, std::int64_t replica,
                                     std::int64_t rank) const {
  if (const std::optional<DealtRows> rows = dealt_rows(op, tensors))
    return kernel_cost(op, tensors, 1, nullptr).seconds * filled_share(rows->deal, rows->over, set_.mesh, rank);
  const DocumentPairs& pairs = document_pairs_at(op, tensors, replica, part_of_queries(op, tensors, set_.mesh, rank));
  return kernel_cost(op, tensors, 1, &pairs).seconds;
}

std::shared_ptr<const FabricTraffic> OpCostModel::load_of(MeshGroup group,
                                                          std::span<const std::uint16_t> places) const {
  if (loads_met_.size() >= kMostLoads) loads_met_.clear();
  std::vector<std::int64_t> key = key_of(set_.mesh, group);
  key.push_back(0);  // a separator: no digit is 0
  key.insert(key.end(), places.begin(), places.end());
  std::shared_ptr<const FabricTraffic>& load = loads_met_[key];
  if (load) return load;
  std::vector<std::int64_t> members = members_of_groups(set_.mesh, group);
  auto ranks = static_cast<std::size_t>(set_.mesh.size(group));
  if (!places.empty()) {
    const std::vector<std::int64_t> all = std::exchange(members, {});
    for (std::size_t first = 0; first < all.size(); first += ranks)
      for (const std::uint16_t place : places) members.push_back(all[first + place]);
    ranks = places.size();
  }
  load = std::make_shared<FabricTraffic>(fabric_load(cluster_, members, static_cast<std::int64_t>(ranks)));
  return load;
}

ExchangeSkew OpCostModel::skew_under(const Load& load, const Op& op, std::int64_t ranks_per_node,
                                     const CollectiveCost& cost) const {
  if (op.group.contains(load.group)) return set_.skews->of(load, ranks_per_node, cost.algorithm, cost.token_shares);
  ExchangeSkew most{0, 0};
  for (const Load& within : loads_within(load, set_.mesh, op.group)) {
    const ExchangeSkew by = set_.skews->of(within, ranks_per_node, cost.algorithm, cost.token_shares);
    most = {std::max(most.inside, by.inside), std::max(most.between, by.between)};
  }
  return most;
}

CollectiveCost OpCostModel::collective(const Op& op, std::span<const Tensor> tensors, std::int64_t instances) const {
  const double payload = bytes(op, tensors) * static_cast<double>(instances) / op.count;
  const OpKind kind = collective_of(op);
  const Load* const load = kind == OpKind::all_to_all ? row_load(op, tensors) : nullptr;
  for (const Collective& met : collectives_met_)
    if (met.kind == kind && met.algorithm == op.algorithm && met.group == op.group && met.stages == op.stages &&
        met.bytes == payload && met.load == load)
      return met.cost;
  constexpr std::size_t kMostMet = 16;  // beyond that a search costs more than it saves
  if (collectives_met_.size() == kMostMet) collectives_met_.clear();
  const Spanned spanned = span(op);
  // The program's forced algorithm applies to collectives; a ring shift is routed only if its plan says so.
  const CollectiveAlgorithm algorithm =
      op.algorithm == CollectiveAlgorithm::automatic && op.kind != OpKind::ring_shift ? set_.algorithm : op.algorithm;
  CollectiveCost cost{.algorithm = CollectiveAlgorithm::direct};
  const auto skewed = [&] { return skew_under(*load, op, spanned.span.ranks_per_node, cost); };
  if (op.reduction == Reduction::copies) {
    cost = cost_of_rings(collectives_, payload, skewed(), *load, spanned.span, cluster_.node.devices);
  } else {
    cost = algorithm == CollectiveAlgorithm::by_token
               ? collectives_.token_exchange(payload, op.router, spanned.span)
               : collectives_.cost(kind, payload, spanned.span, algorithm, set_.protocol);
    if (load != nullptr) skew(skewed(), cost);
  }
  if (spanned.slowdown > 1) slow_network(spanned.slowdown, cost);
  collectives_met_.push_back({kind, op.algorithm, op.group, op.stages, payload, load, cost});
  return cost;
}

OpCostModel::Rate OpCostModel::rate(const Op& op, std::span<const Tensor> tensors, bool alone) const {
  const Node& node = cluster_.node;
  const auto share = [&](double of_node) { return of_node / static_cast<double>(node.devices); };
  if (op.kind != OpKind::copy) return {share(node.host_memory_bytes_per_second), "/node/host_memory_bytes_per_second"};
  const Direction way = direction_of(op, tensors);
  if (way.from == way.to) throw std::logic_error(std::string("\"") + op.name + "\" copies within one memory");
  if (way.from == Place::storage) return {share(node.nvme_read_bytes_per_second), "/node/nvme_read_bytes_per_second"};
  if (way.to == Place::storage) return {share(node.nvme_write_bytes_per_second), "/node/nvme_write_bytes_per_second"};
  double own = node.pcie_bytes_per_second > 0 ? node.pcie_bytes_per_second : cluster_.device.pcie_bytes_per_second;
  const auto sharing = static_cast<double>(std::min(node.devices_per_pcie_switch, node.devices));
  if (!alone && node.pcie_switch_bytes_per_second > 0) own = std::min(own, node.pcie_switch_bytes_per_second / sharing);
  return {own, "/device/pcie_bytes_per_second"};
}

double OpCostModel::copy_seconds_alone(const Op& copy, std::span<const Tensor> tensors, std::int64_t instances) const {
  const double one = bytes(copy, tensors) * static_cast<double>(instances) / copy.count;
  return one / rate(copy, tensors, true).bytes_per_second;
}

OpCost OpCostModel::kernel_cost(const Op& op, std::span<const Tensor> tensors, std::int64_t instances,
                                const DocumentPairs* documents) const {
  OpCost cost;
  const KernelCost kernel = kernels_.cost(op, tensors, documents);
  cost.seconds = kernel.seconds;
  if (instances > 1)  // one kernel over the tensors of all instances (a multi-tensor optimizer)
    cost.seconds = kernel.flops > 0 ? kernel.seconds * static_cast<double>(instances)
                                    : kernels_.memory_seconds(op, kernel.bytes * static_cast<double>(instances));
  cost.seconds += (op.count - 1) * calibration_.kernel_fixed_seconds;
  if (kernel.flops > 0) {
    cost.waiting = set_.slowest_loss * cost.seconds;
    cost.seconds += cost.waiting;
  }
  cost.flops = kernel.flops * static_cast<double>(instances);
  return cost;
}

OpCost OpCostModel::cost(const Op& op, std::span<const Tensor> tensors, std::int64_t instances) const {
  OpCost cost;
  if (is_communication(op.kind)) {
    if (op.is_alone()) {
      cost.absent = true;
      return cost;
    }
    const CollectiveCost& one = collective(op, tensors, instances);
    cost.last_seconds = one.seconds;
    cost.seconds = cost.last_seconds * op.count;
    const FabricWork work = fabric_work(one);
    cost.on_level[static_cast<std::size_t>(work.in_node)] = work.seconds[0] > 0;
    cost.on_level[static_cast<std::size_t>(FabricLevel::network)] = work.seconds[1] > 0;
  } else if (op.kind == OpKind::copy || row_of(op.stream).occupies == Occupies::host) {
    const Rate r = rate(op, tensors, false);
    if (!(r.bytes_per_second > 0)) {
      throw InputError(
          {.file = {}, .pointer = std::string("/cluster") + r.pointer}, "no value",
          std::string("a rate above 0 for \"") + op.name + "\", which runs on the stream " + name_of(op.stream));
    }
    cost.seconds = bytes(op, tensors) * static_cast<double>(instances) / r.bytes_per_second;
    cost.last_seconds = cost.seconds / op.count;
  } else {
    const DocumentPairs* const documents = !op.documents.has_value() ? nullptr : documents_charged(op, tensors);
    cost = kernel_cost(op, tensors, instances, documents);
    const double share = charged_share(op, tensors) * op.share;
    cost.seconds *= share, cost.waiting *= share, cost.flops *= share;
    cost.last_seconds = cost.seconds / op.count;
    if (const Load* const load = row_load(op, tensors)) cost.flops /= load->busiest_rank;
  }
  return cost;
}

CollectiveCost OpCostModel::transfer(Crossing crossing, std::int64_t from_stage) const {
  const std::int64_t stride = set_.mesh.stride(MeshAxis::pp), stages = set_.mesh.size(MeshAxis::pp),
                     per_node = cluster_.node.devices;
  if (stages == 1 || crossing.sent_bytes == 0) return {};
  const std::int64_t from = from_stage * stride, to = (from_stage + 1) % stages * stride;
  const bool leaves_node = from / per_node != to / per_node;
  const std::int64_t distance = std::abs(to - from);
  std::shared_ptr<const FabricTraffic> load;
  if (cluster_.is_scattered() && leaves_node)
    load = load_of(set_.mesh.group(MeshAxis::pp), std::array{static_cast<std::uint16_t>(from_stage),
                                                             static_cast<std::uint16_t>((from_stage + 1) % stages)});
  CollectiveCost cost = collectives_.transfer(
      crossing.sent_bytes, leaves_node ? std::max(distance, per_node) : distance, std::min(stride, per_node), load);
  if (crossing.gathered_bytes > 0) {
    Op gather;
    gather.kind = OpKind::all_gather;
    gather.group = set_.mesh.group(MeshAxis::tp);
    const double seconds =
        collectives_.cost(OpKind::all_gather, crossing.gathered_bytes, span(gather).span, set_.algorithm, set_.protocol)
            .seconds;
    for (double* part : {&cost.seconds, &cost.latency_seconds, &cost.base_seconds}) *part += seconds;
  }
  return cost;
}

std::string OpCostModel::bound(const Op& op, std::span<const Tensor> tensors, std::int64_t instances) const {
  if (is_communication(op.kind)) {
    const CollectiveCost c = collective(op, tensors, instances);
    return std::string(c.inter_bound ? "network " : "scale-up fabric ") + name_of(c.algorithm) + " " +
           nccl_name_of(c.protocol);
  }
  if (op.kind == OpKind::copy) {
    const Direction way = direction_of(op, tensors);
    return way.from == Place::storage || way.to == Place::storage ? "NVMe" : "PCIe";
  }
  if (row_of(op.stream).occupies == Occupies::host) return "host memory";
  switch (kernels_.cost(op, tensors, documents_charged(op, tensors)).bound) {
    case KernelCost::Bound::compute:
      return "compute";
    case KernelCost::Bound::memory:
      return "memory";
    case KernelCost::Bound::fixed:
      break;
  }
  return "launch";
}

}  // namespace orrery
