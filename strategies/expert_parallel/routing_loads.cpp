#include "strategies/expert_parallel/routing_loads.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/base/error.h"
#include "traces/routing.h"
#include "traces/routing_generator.h"

namespace orrery::expert_parallel {
namespace {

[[noreturn]] void refuse(const char* field, const std::string& found, const std::string& expected) {
  throw InputError({"", std::string("/workload/") + field}, found, expected);
}

RoutingGenerator generator_of(const Scenario& scenario) {
  const Workload& w = scenario.workload;
  RoutingGenerator g;
  switch (w.routing) {
    case ExpertRouting::balanced:
      g.pattern = RoutingPattern::balanced;
      break;
    case ExpertRouting::zipf:
      g.zipf_exponent = w.routing_skew;
      break;
    case ExpertRouting::hot_expert:
      g.pattern = RoutingPattern::hot_expert;
      g.hot_share = w.routing_skew;
      break;
    case ExpertRouting::hot_rank:
      g.pattern = RoutingPattern::hot_rank;
      g.hot_share = w.routing_skew;
      g.expert_ranks = scenario.plan.expert.degree;
      break;
    case ExpertRouting::trained_with_auxiliary_loss:
    case ExpertRouting::young_router:
    case ExpertRouting::worst:
      g = routing_preset(kExpertRoutingNames[static_cast<std::size_t>(w.routing)]);
      break;
  }
  g.experts = scenario.model.experts;
  g.top_k = scenario.model.experts_per_token;
  g.seed = static_cast<std::uint64_t>(w.routing_seed);
  g.layers = static_cast<std::int64_t>(kDrawnLayers);
  g.tokens = std::int64_t{1} << 22;  // counts are within some thousandths of what is popular
  return g;
}

// The first step's, all micro-batches together, by layer.
std::vector<RoutingMatrix> matrices_of(const RoutingCounts& counts) {
  std::vector<RoutingMatrix> all;
  for (std::size_t layer = 0; layer < counts.shape().layers.size(); ++layer) all.push_back(counts.matrix(0, layer));
  return all;
}

// A search lowers many plans of one workload.
const std::vector<RoutingMatrix>& drawn(const Scenario& scenario) {
  using Key = std::tuple<ExpertRouting, double, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
  const Workload& w = scenario.workload;
  const Model& m = scenario.model;
  const Key key{w.routing, w.routing_skew,      w.routing_seed,
                m.experts, m.experts_per_token, w.routing == ExpertRouting::hot_rank ? scenario.plan.expert.degree : 0};
  thread_local Key met;
  thread_local std::vector<RoutingMatrix> matrices;
  if (matrices.empty() || key != met) {
    matrices = matrices_of(generate_routing(generator_of(scenario)));
    met = key;
  }
  return matrices;
}

Load load_of(const RoutingMatrix& m, std::int64_t ranks, double capacity_factor) {
  Load load;
  load.ranks = ranks;
  const std::int64_t here = m.experts / ranks;
  const auto total = static_cast<double>(m.total());
  load.rows.assign(static_cast<std::size_t>(ranks * ranks), 1);
  if (total <= 0) return load;
  std::vector<std::int64_t> of_rank(static_cast<std::size_t>(ranks), 0);
  for (std::int64_t to = 0; to < ranks; ++to)
    for (std::int64_t from = 0; from < ranks; ++from) {
      std::int64_t rows = 0;  // of the source, or of all of them
      const std::int64_t source = m.source_ranks == 1 ? 0 : from;
      for (std::int64_t e = to * here; e < (to + 1) * here; ++e) rows += m.at(source, e);
      const auto pairs = static_cast<double>(m.source_ranks * ranks);
      load.rows[static_cast<std::size_t>(from * ranks + to)] = static_cast<double>(rows) * pairs / total;
      if (from < m.source_ranks) of_rank[static_cast<std::size_t>(to)] += rows;
    }
  load.busiest_rank = max_over_mean(of_rank);
  const std::vector<std::int64_t> by_expert = m.by_expert();
  load.busiest_expert = max_over_mean(by_expert);
  if (capacity_factor > 0) {
    const double slots = capacity_factor * total / static_cast<double>(m.source_ranks * m.experts);
    double dropped = 0;
    for (const std::int64_t rows : m.tokens) dropped += std::max(0.0, static_cast<double>(rows) - slots);
    load.dropped = dropped / total;
  }
  return load;
}

bool same(const Load& a, const Load& b) {
  return a.rows == b.rows && a.busiest_expert == b.busiest_expert && a.dropped == b.dropped;
}

bool is_balanced(const Load& load) {
  return std::ranges::all_of(load.rows, [](double rows) { return rows == 1; });
}

// Of each of `numbers` the load that it has in the end; what nobody has is gone.
void join_alike(std::vector<Load>& loads, std::vector<std::size_t>& numbers) {
  std::vector<Load> kept;
  std::vector<std::size_t> now(loads.size());
  for (std::size_t i = 0; i < loads.size(); ++i) {
    const auto like = std::ranges::find_if(kept, [&](const Load& other) { return same(other, loads[i]); });
    now[i] = static_cast<std::size_t>(like - kept.begin());
    if (like == kept.end()) kept.push_back(loads[i]);
  }
  for (std::size_t& number : numbers) number = now[number];
  if (kept.size() > kMostLoads) {
    std::vector<std::size_t> order(numbers.size());  // of layers
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    const auto busiest = [&](std::size_t layer) { return kept[numbers[layer]].busiest_rank; };
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return busiest(a) < busiest(b); });
    std::vector<Load> few;
    std::vector<std::size_t> chosen(numbers.size());
    for (std::size_t run = 0; run < kMostLoads; ++run) {
      const std::size_t begin = order.size() * run / kMostLoads, end = order.size() * (run + 1) / kMostLoads;
      if (begin == end) continue;
      double mean = 0;
      for (std::size_t i = begin; i < end; ++i) mean += busiest(order[i]) / static_cast<double>(end - begin);
      const auto nearest = *std::min_element(
          order.begin() + static_cast<std::ptrdiff_t>(begin), order.begin() + static_cast<std::ptrdiff_t>(end),
          [&](std::size_t a, std::size_t b) { return std::abs(busiest(a) - mean) < std::abs(busiest(b) - mean); });
      for (std::size_t i = begin; i < end; ++i) chosen[order[i]] = few.size();
      few.push_back(kept[numbers[nearest]]);
    }
    kept = std::move(few);
    numbers = std::move(chosen);
  }
  loads = std::move(kept);
  for (const std::size_t number : numbers) ++loads[number].layers;
}

void set_load(Piece& piece, std::uint8_t load) {
  for (Tensor& t : piece.tensors)
    if (t.find(Axis::slots) >= 0) t.load = load;
}

// The piece itself for the load that is met first, copies for others.
class Variants {
 public:
  explicit Variants(Program& program) : program_(program) {}

  std::uint16_t of(std::uint16_t piece, std::uint8_t load) {
    const auto [first, is_first] = first_.try_emplace(piece, load);
    if (is_first) set_load(program_.pieces[piece], load);
    if (first->second == load) return piece;
    const auto [copy, is_new] = copies_.try_emplace({piece, load}, static_cast<std::uint16_t>(program_.pieces.size()));
    if (is_new) {
      if (program_.pieces[piece].variant_of == kNoPiece) program_.pieces[piece].variant_of = piece;
      Piece variant = program_.pieces[piece];
      set_load(variant, load);
      program_.pieces.push_back(std::move(variant));
    }
    return copy->second;
  }

 private:
  Program& program_;
  std::map<std::uint16_t, std::uint8_t> first_;
  std::map<std::pair<std::uint16_t, std::uint8_t>, std::uint16_t> copies_;
};

}  // namespace

bool has_experts(const Piece& piece) {
  return std::ranges::any_of(piece.forward.ops, [](const Op& op) { return op.kind == OpKind::permute; });
}

void check_routing(const Scenario& scenario) {
  const Workload& w = scenario.workload;
  const Model& model = scenario.model;
  const auto ranks = scenario.plan.expert.degree;
  const bool has_skew = w.routing == ExpertRouting::zipf || w.routing == ExpertRouting::hot_expert ||
                        w.routing == ExpertRouting::hot_rank;
  const std::string skew = fmt::format("{}", w.routing_skew),
                    name(kExpertRoutingNames[static_cast<std::size_t>(w.routing)]);
  if (!has_skew && w.routing_skew != 0) refuse("routing_skew", skew, "0 with \"routing\": \"" + name + "\"");
  if (!w.routes_unequally()) return;
  const char* const field = w.recorded_routing ? "routing_file" : "routing";
  const std::string said = w.recorded_routing ? w.routing_file : "\"" + name + "\"";
  if (!model.has_experts()) refuse(field, said, "none for a model without experts");
  if (w.recorded_routing) {
    if (w.routing != ExpertRouting::balanced)
      refuse("routing", "\"" + name + "\"", "\"balanced\" beside \"routing_file\", which says how tokens are routed");
    const RoutingShape& shape = w.recorded_routing->shape();
    if (shape.experts != model.experts)
      refuse(field, fmt::format("{} of {} experts", said, shape.experts),
             fmt::format("counts of the model's {} experts", model.experts));
    if (shape.top_k != model.experts_per_token)
      refuse(field, fmt::format("{} of {} experts a token", said, shape.top_k),
             fmt::format("counts of {} experts a token, as the model has", model.experts_per_token));
    if (shape.source_ranks != 1 && shape.source_ranks != ranks)
      refuse(field, fmt::format("{} of {} source ranks", said, shape.source_ranks),
             fmt::format("counts of as many source ranks as expert_parallel, {}, or of all together", ranks));
    return;
  }
  if (w.routing == ExpertRouting::hot_rank && ranks == 1)
    refuse(field, said, "another one with expert_parallel 1, where one rank has all experts");
  if (w.routing == ExpertRouting::hot_expert && model.experts < 2)
    refuse(field, said, "another one for a single expert");
  if (w.routing != ExpertRouting::zipf && has_skew && !(w.routing_skew > 0 && w.routing_skew < 1))
    refuse("routing_skew", skew, "a share above 0 and below 1 with \"routing\": \"" + name + "\"");
}

void lay_loads(const Scenario& scenario, Program& program) {
  const Workload& workload = scenario.workload;
  if (!workload.routes_unequally()) return;
  const std::int64_t ranks = scenario.plan.expert.degree;
  const double capacity = scenario.plan.expert.capacity_factor;

  std::vector<std::int64_t> layers;  // with experts
  std::int64_t at = 0;
  for (const Run& run : program.line) {
    const std::int64_t end = at + program.pieces[run.piece].layers * run.count;
    if (has_experts(program.pieces[run.piece]))
      for (std::int64_t layer = at; layer < end; ++layer) layers.push_back(layer);
    at = end;
  }

  std::vector<Load> loads;
  std::vector<std::size_t> numbers;  // of each of `layers`
  if (workload.recorded_routing) {
    const std::vector<std::int64_t>& recorded = workload.recorded_routing->shape().layers;
    for (const RoutingMatrix& m : matrices_of(*workload.recorded_routing)) loads.push_back(load_of(m, ranks, capacity));
    for (const std::int64_t layer : layers) {
      const auto behind = std::ranges::upper_bound(recorded, layer);
      numbers.push_back(static_cast<std::size_t>(std::max<std::ptrdiff_t>(behind - recorded.begin() - 1, 0)));
    }
  } else {
    for (const RoutingMatrix& m : drawn(scenario)) loads.push_back(load_of(m, ranks, capacity));
    for (std::size_t i = 0; i < layers.size(); ++i) numbers.push_back(i % loads.size());
  }
  join_alike(loads, numbers);
  program.loads = std::move(loads);
  if (capacity > 0) return;

  Variants variants(program);
  std::vector<Run> line;
  auto number = numbers.begin();
  for (const Run& run : program.line) {
    if (!has_experts(program.pieces[run.piece])) {
      line.push_back(run);
      continue;
    }
    const auto layers_of_one = static_cast<std::ptrdiff_t>(program.pieces[run.piece].layers);
    for (std::int64_t i = 0; i < run.count; ++i, number += layers_of_one) {
      const bool balanced = is_balanced(program.loads[*number]);
      const std::uint16_t piece = variants.of(run.piece, static_cast<std::uint8_t>(balanced ? 0 : *number + 1));
      if (i > 0 && line.back().piece == piece) {
        ++line.back().count;
      } else {
        line.push_back({piece, 1});
      }
    }
  }
  program.line = std::move(line);
}

}  // namespace orrery::expert_parallel
