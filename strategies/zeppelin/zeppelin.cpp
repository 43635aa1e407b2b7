#include "strategies/zeppelin/zeppelin.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "models/layers.h"
#include "sim/base/error.h"
#include "sim/program/redistribute.h"
#include "sim/program/rewrite.h"
#include "sim/program/work.h"
#include "sim/report/format.h"
#include "strategies/context_parallel/context_parallel.h"
#include "strategies/layer_plans.h"
#include "strategies/usp/exchange.h"

namespace orrery::zeppelin {
namespace {

bool is_used(const Scenario& scenario) { return context_parallel::has_layers_of_type(scenario, kTypes); }

bool exchanges(const Scenario& scenario) { return scenario.plan.zeppelin.partition == PartitionRule::flexsp; }

// The context_parallel ranks within a node, if tensor_parallel uses ranks of it, too.
Ranks context_ranks(const Scenario& scenario) {
  const std::int64_t count = scenario.plan.context.degree,
                     of_node = scenario.cluster.node.devices / scenario.plan.tensor.degree;
  Ranks ranks = ranks_of(count, std::clamp<std::int64_t>(of_node, 1, count));
  for (const std::int64_t ring : ranks.rings)
    if (usp::heads_of(scenario).key_value % ring == 0) ranks.most_exchanging = ring;
  return ranks;
}

// Data-sheet rates: they only decide which of several capacities is chosen.
Rates rates_of(const Scenario& scenario) {
  const Model& model = scenario.model;
  const Cluster& cluster = scenario.cluster;
  const auto tp = static_cast<double>(scenario.plan.tensor.degree), nics = static_cast<double>(cluster.node.nics);
  const double head = static_cast<double>(model.head_dim), heads = static_cast<double>(model.heads) / tp * head,
               keys = std::max(head, static_cast<double>(model.effective_kv_heads()) / tp * head),
               layer = static_cast<double>(parameters(model)) / static_cast<double>(model.total_layers()) / tp,
               peak = cluster.device.peak(Dtype::bf16);
  // Attention has two products forward and five backward. A ring passes on keys and values forward, and these and their
  // gradients backward. Moved are queries, keys, values, the context and the gradients of all four. Outside attention
  // there is a multiply and an add per parameter forward, and twice as many backward. Each element has two bytes.
  const double pair = (4 + 10) * heads / peak, key = 3 * 2 * keys * 2, moved = 2 * (2 * heads + 2 * keys) * 2,
               token = 6 * layer / peak;
  const double link = cluster.node.intra_bytes_per_second, all_nics = cluster.inter_node_bytes_per_second() / tp,
               one_nic = std::min(cluster.node.nic_bytes_per_second, all_nics),
               own_nic = one_nic * std::min(1.0, nics / static_cast<double>(cluster.node.devices)),
               ring_nic = scenario.plan.zeppelin.routing ? all_nics : one_nic;
  const auto over = [](double bytes, double rate) { return rate > 0 ? bytes / rate : 0; };
  return {.seconds_per_pair = pair,
          .seconds_per_key_in_node = over(key, link),
          .seconds_per_key_between = over(key, ring_nic),
          .seconds_per_moved_in_node = over(moved, link),
          .seconds_per_moved_between = over(moved, own_nic),
          .seconds_per_token = token};
}

std::int64_t rows_of_deal(Deal deal) { return rows_of(deal.table->of_part.front()); }

// How positions lie outside attention and in each of its zones: over ranks, or over groups whose ranks share heads.
struct PositionDeals {
  Deal home = Deal::contiguous;
  struct OfZone {
    std::int64_t ring = 1;
    Deal deal = Deal::contiguous;
    std::int64_t sharing = 1;  // ranks with the same positions
    std::int64_t rows = 0;     // of the rank with the most
  };
  std::vector<OfZone> zones;
};

RunsOfParts of_groups(const Zone& zone) {
  RunsOfParts groups(zone.of_rank.size() / static_cast<std::size_t>(zone.ring));
  for (std::size_t r = 0; r < zone.of_rank.size(); ++r) {
    std::vector<IndexRange>& group = groups[r / static_cast<std::size_t>(zone.ring)];
    group.insert(group.end(), zone.of_rank[r].begin(), zone.of_rank[r].end());
  }
  return groups;
}

// What a zone's parts have of a sequence; one part has all of it.
RunsOfParts runs_of(const PositionDeals::OfZone& zone, std::int64_t whole) {
  return zone.deal.table != nullptr ? zone.deal.table->of_part : RunsOfParts{{{0, whole}}};
}

PositionDeals layout_of(const Scenario& scenario, const DealTables& tables) {
  const Partition partition = partition_of(scenario);
  const std::int64_t parts = scenario.plan.context.degree, whole = sequence_length(scenario.model, scenario.workload);
  PositionDeals layout;
  RunsOfParts home = partition.at_home;
  if (!scenario.plan.zeppelin.remapping) {
    home.assign(static_cast<std::size_t>(parts), {});
    for (const Zone& zone : partition.zones)
      for (std::size_t r = 0; r < home.size(); ++r)
        home[r].insert(home[r].end(), zone.of_rank[r].begin(), zone.of_rank[r].end());
  }
  std::int64_t rows = 0;
  for (const std::vector<IndexRange>& runs : home) rows = std::max(rows, rows_of(runs));
  // Tensor parallelism cuts what a rank has into equal parts.
  const std::int64_t tp = scenario.plan.tensor.degree;
  layout.home = tables.by_runs(std::move(home), whole, parts, (rows + tp - 1) / tp * tp);
  for (const Zone& zone : partition.zones) {
    PositionDeals::OfZone of_zone{.ring = zone.ring};
    if (exchanges(scenario)) {
      of_zone.sharing = zone.ring;
      if (zone.ring < parts) of_zone.deal = tables.by_runs(of_groups(zone), whole, 1);
    } else {
      of_zone.deal = tables.by_runs(zone.of_rank, whole, zone.ring);
    }
    of_zone.rows = of_zone.deal.table != nullptr ? rows_of_deal(of_zone.deal) : whole;
    layout.zones.push_back(of_zone);
  }
  return layout;
}

struct Moves {
  std::vector<TableIndex<Load>> to_zone;  // of each zone; none where nothing moves
  TableIndex<Load> home;                  // the way back, of all zones
};

// Adds their loads.
Moves moves_of(const PositionDeals& layout, MeshGroup ranks, std::vector<Load>& loads) {
  Moves moves;
  const std::size_t parts = layout.home.table->of_part.size();
  const auto add = [&](std::span<const RowsOfParts> from, const RowsOfParts& to) -> TableIndex<Load> {
    std::vector<double> rows = moved_rows(from, to);
    bool moved = false;
    for (std::size_t i = 0; i < rows.size(); ++i) moved = moved || (rows[i] > 0 && i / parts != i % parts);
    if (!moved) return {};
    Load load;
    load.of = RowsOf::positions;
    load.group = ranks;
    load.ranks = static_cast<std::int64_t>(parts);
    const double mean = std::reduce(rows.begin(), rows.end()) / static_cast<double>(rows.size());
    for (double& n : rows) n /= mean;
    load.rows = std::move(rows);
    loads.push_back(std::move(load));
    return TableIndex<Load>(loads.size() - 1);
  };
  const RowsOfParts home[]{{&layout.home.table->of_part, 1}};
  std::vector<RunsOfParts> runs;
  for (const PositionDeals::OfZone& zone : layout.zones) runs.push_back(runs_of(zone, layout.home.table->whole));
  std::vector<RowsOfParts> zones;
  for (std::size_t z = 0; z < runs.size(); ++z) {
    zones.push_back({&runs[z], layout.zones[z].sharing});
    moves.to_zone.push_back(add(home, zones.back()));
  }
  moves.home = add(zones, home[0]);
  return moves;
}

// A named move of tensors before or after attention.
struct Move {
  const char *remap, *exchange;
};
constexpr Move kQueries{"remap.queries", "exchange.queries"}, kKeys{"remap.keys", "exchange.keys"},
    kContext{"remap.context", "exchange.context"},
    kContextGradient{"remap.context_gradient", "exchange.context_gradient"},
    kQueryGradient{"remap.query_gradient", "exchange.query_gradient"},
    kKeyGradient{"remap.key_gradient", "exchange.key_gradient"};

// The attention of a piece, zone by zone. If heads are exchanged, one all-to-all of unequal parts does this and moves
// tokens too. strategies/usp/exchange.h cannot: there all ranks have equally many positions, and may share a head.
class ZonedAttention {
 public:
  ZonedAttention(const Scenario& scenario, bool fp32_gradients, const PositionDeals& layout, const Moves& moves,
                 const Mesh& mesh, Piece& piece)
      : routing_(scenario.plan.zeppelin.routing),
        exchanges_(exchanges(scenario)),
        fp32_gradients_(fp32_gradients),
        of_node_(context_ranks(scenario).of_node),
        layout_(layout),
        moves_(moves),
        mesh_(mesh),
        piece_(piece) {}

  void run() { context_parallel::replace_attention(piece_, out_, *this); }

  void forward(const Op& whole) {
    Attentions all{.context = whole.writes[0], .zones = {}};
    for (std::size_t z = 0; z < layout_.zones.size(); ++z)
      all.zones.push_back({.first = enter(kQueries, whole.reads[0], z, whole),
                           .second = enter(kKeys, whole.reads[1], z, whole),
                           .context = in_zone(whole.writes[0], z),
                           .log_sum_exp = in_zone(whole.writes[1], z)});
    std::vector<TensorId> contexts;
    for (std::size_t z = 0; z < all.zones.size(); ++z) {
      const Attention& a = all.zones[z];
      Op op = whole;
      op.reads[0] = a.first;
      op.reads[1] = a.second;
      op.writes = {a.context, a.log_sum_exp, kNoTensor, kNoTensor};
      attend(op, z);
      contexts.push_back(a.context);
    }
    remap(kContext, contexts, whole.writes[0], moves_.home, whole);
    attentions_.push_back(std::move(all));
  }

  void backward(const Op& whole) {
    const auto found = std::ranges::find(attentions_, whole.reads[1], &Attentions::context);
    if (found == attentions_.end()) throw std::logic_error("a backward of an attention that no forward has");
    const Attentions all = *found;
    std::vector<TensorId> context_gradients, first, second;
    for (std::size_t z = 0; z < all.zones.size(); ++z)
      context_gradients.push_back(enter(kContextGradient, whole.reads[0], z, whole));
    for (std::size_t z = 0; z < all.zones.size(); ++z) {
      const Attention& a = all.zones[z];
      first.push_back(in_zone(whole.writes[0], z));
      if (whole.writes[1] != kNoTensor) second.push_back(in_zone(whole.writes[1], z));
      Op op = whole;
      op.reads = {context_gradients[z], a.context, a.log_sum_exp, a.first, a.second, kNoTensor};
      op.writes = {first.back(), second.empty() ? kNoTensor : second.back(), kNoTensor, kNoTensor};
      attend(op, z);
    }
    remap(kQueryGradient, first, whole.writes[0], moves_.home, whole);
    if (!second.empty()) remap(kKeyGradient, second, whole.writes[1], moves_.home, whole);
  }

 private:
  // Tensors of a forward in a zone.
  struct Attention {
    TensorId first, second, context, log_sum_exp;  // queries; keys and values; or both in the first
  };
  struct Attentions {
    TensorId context;  // by which the backward finds them
    std::vector<Attention> zones;
  };

  TensorId in_zone(TensorId id, std::size_t zone) {
    const PositionDeals::OfZone& layout = layout_.zones[zone];
    const TensorId clone = clone_tensor(piece_, id);
    Tensor& t = piece_.tensors[clone];
    const int d = t.find(Axis::sequence);
    t.sizes[d] = layout.rows;
    if (layout.sharing > 1) {
      const MeshGroup all = mesh_.group(MeshAxis::cp), group = mesh_.innermost(all, layout.sharing);
      t.over[d] = {all.without(group)};
      const int heads = t.find(Axis::groups);
      t.sizes[heads] /= layout.sharing;
      t.over[heads].append(group);
    }
    t.set_deal(d, layout.deal);
    return clone;
  }

  // Where heads are exchanged that is what moves tokens, too.
  void remap(const Move& move, std::vector<TensorId> from, TensorId to, TableIndex<Load> load, const Op& cause) {
    std::vector<const Tensor*> parts;
    for (const TensorId id : from) parts.push_back(&piece_.tensors[id]);
    const auto by = redistribution(mesh_, parts, piece_.tensors[to]);
    const char* const name = exchanges_ ? move.exchange : move.remap;
    if (!by) throw std::logic_error(std::string("\"") + name + "\" cannot be remapped");
    Op op =
        communication(OpKind::redistribute, name, cause.phase, Stream::context_communication, by->group, from[0], to);
    std::ranges::copy(from, op.reads.begin());
    op.share = by->share;
    op.load = load;
    out_.push_back(op);
  }

  TensorId enter(const Move& move, TensorId id, std::size_t zone, const Op& cause) {
    if (id == kNoTensor) return kNoTensor;
    const TensorId there = in_zone(id, zone);
    remap(move, {id}, there, moves_.to_zone[zone], cause);
    return there;
  }

  void attend(const Op& whole, std::size_t zone) {
    const PositionDeals::OfZone& layout = layout_.zones[zone];
    if (exchanges_) {
      const std::size_t first = queries_operand(whole.kind);
      const auto [q, kv] = context_parallel::queries_and_keys(piece_, whole.reads[first], whole.reads[first + 1]);
      Op op = context_parallel::attention_of_parts(whole, q, kv, mesh_.size(MeshAxis::cp) / layout.sharing);
      if (whole.kind == OpKind::attention_backward) {
        const auto [dq, dkv] = context_parallel::queries_and_keys(piece_, whole.writes[0], whole.writes[1]);
        op.writes = {dq, dkv, kNoTensor, kNoTensor};
      }
      out_.push_back(op);
      return;
    }
    context_parallel::RingGroups ring;
    ring.inner = mesh_.innermost(mesh_.group(MeshAxis::cp), layout.ring);
    if (layout.ring > of_node_) {
      ring.stream = Stream::outer_ring_communication;  // concurrent with the rings within nodes
      if (routing_) ring.algorithm = CollectiveAlgorithm::hierarchical;
    }
    context_parallel::append_ring(piece_, mesh_, ring, fp32_gradients_, whole, out_);
  }

  const bool routing_, exchanges_, fp32_gradients_;
  const std::int64_t of_node_;
  const PositionDeals& layout_;
  const Moves& moves_;
  const Mesh& mesh_;
  Piece& piece_;
  std::vector<Op> out_;
  std::vector<Attentions> attentions_;
};

// Replaces positions by the rows of a rank, which may be more than its part of the positions.
void divide_positions(Deal home, std::int64_t whole, const Mesh& mesh, Piece& piece) {
  for (const Tensor& t : piece.tensors)
    if (const int d = t.find(Axis::sequence); d >= 0 && t.sizes[d] * mesh.size(t.over[d].group()) != whole)
      throw InputError({"", "/plan/context_parallel_type"}, "\"zeppelin\"",
                       "another type where layers take the sequence in chunks");
  const MeshGroup ranks = mesh.group(MeshAxis::cp);
  context_parallel::divide_sequence(piece, mesh, {ranks}, home);
  for (Tensor& t : piece.tensors)
    for (int d = 0; d < t.rank; ++d)
      if (t.axes[d] == Axis::sequence) t.sizes[d] = t.sizes[d] * rows_of_deal(home) / (whole / mesh.size(ranks));
}

// Where documents attend, and what that asks of each rank.
std::string zones_text(const Evaluated& here, const Evaluate&) {
  const Scenario& scenario = here.scenario();
  if (!context_parallel::has_layers_of_type(scenario, kTypes))
    return "zones: none, context_parallel_type is not \"zeppelin\"\n";
  const Partition partition = partition_of(scenario);
  const auto ranks = static_cast<std::size_t>(scenario.plan.context.degree);
  std::vector<double> pairs(ranks, 0);
  std::vector<RowsOfParts> zones;
  std::vector<std::vector<std::string>> documents;
  double mean = 0;
  for (const Zone& zone : partition.zones) {
    zones.push_back({&zone.of_rank});
    for (const PlacedDocument& d : zone.documents) {
      const std::int64_t length = d.end - d.begin;
      documents.push_back({std::to_string(length), std::to_string(zone.ring),
                           zone.ring == 1 ? std::to_string(d.first_rank)
                                          : fmt::format("{} to {}", d.first_rank, d.first_rank + zone.ring - 1)});
      const double all = static_cast<double>(length) * static_cast<double>(length) / 2;
      for (std::int64_t r = d.first_rank; r < d.first_rank + zone.ring; ++r)
        pairs[static_cast<std::size_t>(r)] += all / static_cast<double>(zone.ring);
      mean += all / static_cast<double>(ranks);
    }
  }
  const std::vector<double> moved = moved_rows(zones, {&partition.at_home});
  std::vector<std::vector<std::string>> rows;
  for (std::size_t r = 0; r < ranks; ++r) {
    std::int64_t attends = 0;
    for (const Zone& zone : partition.zones) attends += rows_of(zone.of_rank[r]);
    const auto kept = static_cast<std::int64_t>(moved[r * ranks + r]);
    const bool moves = scenario.plan.zeppelin.remapping;
    rows.push_back({std::to_string(r), std::to_string(attends), fmt::format("{:.3f}x", pairs[r] / mean),
                    std::to_string(moves ? attends - kept : 0),
                    std::to_string(moves ? rows_of(partition.at_home[r]) - kept : 0)});
  }
  constexpr std::string_view kDocuments = "tokens|ranks|of context_parallel";
  constexpr std::string_view kRanks = "rank|tokens in attention|pairs, over the mean|from other ranks|at other ranks";
  return fmt::format("zones: \"{}\", step {}; a rank has at most {:.3f} times the mean tokens in attention\n",
                     kPartitionRuleNames[static_cast<std::size_t>(scenario.plan.zeppelin.partition)],
                     scenario.workload.step, partition.capacity) +
         grid(kDocuments, documents) + "\n" + grid(kRanks, rows);
}

}  // namespace

Partition partition_of(const Scenario& scenario) {
  const auto packed = packed_sequences(scenario);
  return partition(scenario.plan.zeppelin, packed->ends_of(0), context_ranks(scenario), rates_of(scenario));
}

namespace {

constexpr FieldRule kIdle[]{keep({"zeppelin_partition", "zeppelin_capacity", "zeppelin_routing", "zeppelin_remapping"},
                                 "without context_parallel_type \"zeppelin\"",
                                 [](const AskedOf& a) { return is_used(a.scenario); })};
constexpr FieldRule kExcludes[]{
    keep({"zeppelin_routing"}, "with zeppelin_partition \"flexsp\", which has no rings to route",
         [](const AskedOf& a) { return exchanges(a.scenario); }),
    keep({"zeppelin_capacity"}, "with zeppelin_partition \"even\", which divides documents over all ranks",
         [](const AskedOf& a) { return a.plan.zeppelin.partition == PartitionRule::even; }),
    keep({"zeppelin_remapping"}, "for a model with experts, to which all ranks send as many tokens",
         [](const AskedOf& a) { return a.model.experts > 0; })};

void check(const Scenario& scenario) {
  if (!is_used(scenario)) return;
  if (!context_parallel::is_all_of_type(scenario, kTypes))
    throw InputError({"", "/plan/context_parallel_type"}, "\"zeppelin\"", "the same type in all layers");
  if (!scenario.workload.has_documents())
    throw InputError({"", "/workload/documents"}, "no documents",
                     "documents with context_parallel_type \"zeppelin\", which places each on its own ranks");
  if (scenario.workload.global_batch_size != 1)
    throw InputError(
        {"", "/workload/global_batch_size"}, std::to_string(scenario.workload.global_batch_size),
        "1 with context_parallel_type \"zeppelin\": the global batch is one sequence, divided over context_parallel");
  if (scenario.model.attention == AttentionKind::latent)
    refuse(scenario.plan, "context_parallel_type",
           "another type for latent attention, whose queries and keys are computed separately");
  const std::int64_t devices = scenario.cluster.node.devices, tp = scenario.plan.tensor.degree,
                     cp = scenario.plan.context.degree, of_node = devices / tp;
  if (tp > devices || devices % tp != 0 || (cp > of_node && cp % of_node != 0))
    refuse(scenario.plan, "context_parallel",
           fmt::format("a multiple of the {} ranks of a node, or fewer, and a tensor_parallel that divides a node",
                       std::max<std::int64_t>(1, of_node)));
  constexpr std::size_t kMostDigits = 7;  // a rank's part of the sequence may be divided once more
  if (context_ranks(scenario).rings.size() > kMostDigits + 1)
    refuse(scenario.plan, "context_parallel", "a degree with at most 7 prime factors");
}

void add_digits(const Scenario& scenario, Mesh& mesh) {
  if (!is_used(scenario)) return;
  const Ranks ranks = context_ranks(scenario);
  for (std::size_t i = 1; i < ranks.rings.size(); ++i) mesh.add(MeshAxis::cp, ranks.rings[i] / ranks.rings[i - 1]);
}

void rewrite(const Scenario& scenario, Program& program) {
  if (!is_used(scenario)) return;
  const PositionDeals layout = layout_of(scenario, program.tables);
  const Moves moves = moves_of(layout, program.mesh.group(MeshAxis::cp), program.loads);
  const LayerPlans plans = layer_plans(scenario);
  for (Piece& piece : program.pieces) {
    divide_positions(layout.home, sequence_length(scenario.model, scenario.workload), program.mesh, piece);
    ZonedAttention(scenario, plans.of(piece).context.fp32_gradients, layout, moves, program.mesh, piece).run();
  }
}

constexpr PlanWord kWords[]{{"zeppelin", is_used}};

void check_runnable(const Scenario& scenario) {
  if (!is_used(scenario) || scenario.plan.zeppelin.remapping) return;
  DealTables tables;
  if (rows_of_deal(layout_of(scenario, tables).home) * scenario.plan.context.degree !=
      sequence_length(scenario.model, scenario.workload))
    refuse(scenario.plan, "zeppelin_remapping",
           "true in a real run that gives ranks unequal numbers of tokens: outside attention they must be equal");
}

constexpr std::string_view kNames[]{"zones"};
constexpr Topic kTopics[]{
    {.names = kNames, .summary = "the ranks on which Zeppelin lets each document attend", .text = zones_text}};

}  // namespace

Strategy describe() {
  return {.name = "zeppelin",
          .summary = "documents on one rank, the ranks of a node or several nodes, depending on their length",
          .paper = "arXiv 2509.21841",
          .excludes = kExcludes,
          .idle = kIdle,
          .check = check,
          .rewrite = rewrite,
          .add_digits = add_digits,
          .disable = reset<&Plan::zeppelin>,
          .words = kWords,
          .context_types = kTypes,
          .check_runnable = check_runnable,
          .topics = kTopics};
}

}  // namespace orrery::zeppelin
