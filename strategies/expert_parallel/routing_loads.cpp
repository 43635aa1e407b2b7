#include "strategies/expert_parallel/routing_loads.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/base/error.h"
#include "strategies/expert_parallel/expert_parallel.h"
#include "traces/routing.h"
#include "traces/routing_generator.h"

namespace orrery::expert_parallel {
namespace {

[[noreturn]] void refuse(const char* field, const std::string& found, const std::string& expected) {
  throw InputError({"", std::string("/workload/") + field}, found, expected);
}

// Which have a skew and noise of their own.
bool is_preset(ExpertRouting routing) {
  return routing == ExpertRouting::trained_with_auxiliary_loss || routing == ExpertRouting::young_router ||
         routing == ExpertRouting::worst;
}

// Of a trace the last step that is no later, or its first.
std::size_t recorded_step(const Workload& workload) {
  const std::vector<std::int64_t>& steps = workload.recorded_routing->shape().steps;
  const auto behind = std::ranges::upper_bound(steps, workload.step);
  return static_cast<std::size_t>(std::max<std::ptrdiff_t>(behind - steps.begin() - 1, 0));
}

// Of an expert group's source ranks.
RoutingMatrix of_group(const RoutingMatrix& all, std::int64_t ranks, std::int64_t group) {
  if (all.source_ranks <= ranks) return all;
  const auto begin = all.tokens.begin() + static_cast<std::ptrdiff_t>(group * ranks * all.experts);
  return {ranks, all.experts, {begin, begin + static_cast<std::ptrdiff_t>(ranks * all.experts)}};
}

// What a group's busiest rank has in all layers: the step ends with the group that has the most.
std::int64_t busiest_rows(const RoutingCounts& counts, std::size_t step, std::int64_t ranks, std::int64_t group) {
  std::int64_t rows = 0;
  for (std::size_t layer = 0; layer < counts.shape().layers.size(); ++layer)
    for (std::int64_t m = 0; m < counts.shape().micro_batches; ++m) {
      const RoutingMatrix tokens = of_group(counts.matrix(step, layer, m), ranks, group);
      const std::vector<std::int64_t> of_experts = tokens.by_expert();
      const std::int64_t here = tokens.experts / ranks;
      std::int64_t most = 0;
      for (auto first = of_experts.begin(); first != of_experts.end(); first += here)
        most = std::max(most, std::accumulate(first, first + here, std::int64_t{0}));
      rows += most;
    }
  return rows;
}

// The group that all others wait for; 0 where all route together.
std::int64_t slowest_group(const RoutingCounts& counts, std::size_t step, std::int64_t ranks) {
  std::int64_t slowest = 0, most = -1;
  if (counts.shape().source_ranks <= ranks) return 0;
  for (std::int64_t group = 0; group * ranks < counts.shape().source_ranks; ++group)
    if (const std::int64_t rows = busiest_rows(counts, step, ranks, group); rows > most) most = rows, slowest = group;
  return slowest;
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
    case ExpertRouting::rotating:
      g.pattern = RoutingPattern::rotating;
      g.zipf_exponent = w.routing_skew;
      break;
    case ExpertRouting::burst:
      g.pattern = RoutingPattern::burst;
      g.hot_share = w.routing_skew;
      break;
    case ExpertRouting::ragged:
      g.pattern = RoutingPattern::ragged;
      g.raggedness = w.routing_skew;
      g.source_ranks = scenario.plan.expert.degree;
      break;
    case ExpertRouting::trained_with_auxiliary_loss:
    case ExpertRouting::young_router:
    case ExpertRouting::worst:
      g = routing_preset(kExpertRoutingNames[static_cast<std::size_t>(w.routing)]);
      break;
  }
  if (!is_preset(w.routing)) {
    g.noise = w.routing_noise;
    g.autocorrelation = w.routing_autocorrelation;
    g.period = w.routing_period;
    g.burst_steps = w.routing_burst_steps;
  }
  g.experts = scenario.model.experts;
  g.top_k = scenario.model.experts_per_token;
  g.seed = static_cast<std::uint64_t>(w.routing_seed);
  g.layers = static_cast<std::int64_t>(kDrawnLayers);
  g.tokens = std::int64_t{1} << 22;  // of which whole ones are fine enough for any popularity
  return g;
}

// A search lowers many plans of one workload, a training one plan step after step.
const std::vector<RoutingMatrix>& drawn(const Scenario& scenario) {
  const RoutingGenerator g = generator_of(scenario);
  using Key = std::tuple<RoutingPattern, double, double, double, double, std::int64_t, std::int64_t, std::int64_t,
                         std::int64_t, std::int64_t, std::int64_t, double, std::uint64_t>;
  const Key key{g.pattern, g.zipf_exponent, g.hot_share,    g.noise,        g.autocorrelation, g.period, g.burst_steps,
                g.experts, g.top_k,         g.expert_ranks, g.source_ranks, g.raggedness,      g.seed};
  thread_local Key met;
  thread_local std::optional<RoutingSteps> steps;
  if (!steps || key != met) {
    steps.emplace(g);
    met = key;
  }
  return steps->at(routing_step(scenario.workload));
}

// `rows`: of all, what goes from each rank to each other, in any unit.
Load load_of_rows(const RoutingMatrix& m, std::int64_t ranks, std::span<const double> rows) {
  Load load;
  load.ranks = ranks;
  double total = 0;
  for (const double r : rows) total += r;
  load.rows.assign(static_cast<std::size_t>(ranks * ranks), 1);
  if (!(total > 0)) return load;
  std::vector<double> of_rank(static_cast<std::size_t>(ranks), 0);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    load.rows[i] = rows[i] * static_cast<double>(ranks * ranks) / total;
    of_rank[i % static_cast<std::size_t>(ranks)] += rows[i];
  }
  load.busiest_rank = max_over_mean(of_rank);
  load.busiest_expert = max_over_mean(m.by_expert());
  return load;
}

Load load_of(const RoutingMatrix& m, std::int64_t ranks, double capacity_factor) {
  Load load;
  load.ranks = ranks;
  const std::int64_t here = m.experts / ranks;
  const auto total = static_cast<double>(m.total());
  load.rows.assign(static_cast<std::size_t>(ranks * ranks), 1);
  if (total <= 0) return load;
  std::vector<std::int64_t> of_rank(static_cast<std::size_t>(ranks), 0);
  const auto pairs = static_cast<double>(m.source_ranks * ranks);
  for (std::int64_t from = 0; from < m.source_ranks; ++from)
    for (std::int64_t to = 0; to < ranks; ++to) {
      std::int64_t rows = 0;  // of the source, or of all of them
      for (std::int64_t e = to * here; e < (to + 1) * here; ++e) rows += m.at(from, e);
      load.rows[static_cast<std::size_t>(from * ranks + to)] = static_cast<double>(rows) * pairs / total;
      of_rank[static_cast<std::size_t>(to)] += rows;
    }
  for (std::int64_t from = m.source_ranks; from < ranks; ++from)  // all alike
    std::copy_n(load.rows.begin(), ranks, load.rows.begin() + static_cast<std::ptrdiff_t>(from * ranks));
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

// Slots of every expert for each source's rows, of the most rows that any expert has from any.
Load padded_load(const RoutingMatrix& m, std::int64_t ranks) {
  Load load;
  load.ranks = ranks;
  load.padded = true;
  load.busiest_expert = max_over_mean(m.by_expert());
  load.busiest_rank = std::max(1.0, max_over_mean(m.tokens));
  load.rows.assign(static_cast<std::size_t>(ranks * ranks), load.busiest_rank);
  return load;
}

Load balanced_load(std::int64_t ranks) {
  Load load;
  load.ranks = ranks;
  load.rows.assign(static_cast<std::size_t>(ranks * ranks), 1);
  return load;
}

// Micro-batches of which each waits for its own busiest rank: ranks in the order of their rows, each place with the
// mean of all micro-batches. Whoever has a place in all of them together stands for it. `weights`: rows of each.
Load load_of_places(std::span<const Load> of_micro_batches, std::span<const double> weights) {
  const auto ranks = static_cast<std::size_t>(of_micro_batches.front().ranks);
  const auto in_order = [&](std::span<const double> of_ranks) {
    std::vector<std::size_t> order(ranks);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return of_ranks[a] > of_ranks[b]; });
    return order;
  };
  double all = 0;
  for (const double weight : weights) all += weight;
  std::vector<std::vector<double>> of_ranks;
  std::vector<double> together(ranks);
  Load load = of_micro_batches.front();
  load.rows.assign(ranks * ranks, 0);
  load.busiest_rank = load.busiest_expert = load.dropped = 0;
  for (std::size_t m = 0; m < of_micro_batches.size(); ++m) {
    of_ranks.emplace_back();
    for (std::size_t r = 0; r < ranks; ++r) {
      of_ranks.back().push_back(of_micro_batches[m].of_rank(static_cast<std::int64_t>(r)));
      together[r] += weights[m] * of_ranks.back()[r];
    }
  }
  const std::vector<std::size_t> place = in_order(together);
  for (std::size_t m = 0; m < of_micro_batches.size(); ++m) {
    const Load& one = of_micro_batches[m];
    const double part = weights[m] / all;
    const std::vector<std::size_t> order = in_order(of_ranks[m]);
    for (std::size_t k = 0; k < ranks; ++k)
      for (std::size_t from = 0; from < ranks; ++from)
        load.rows[from * ranks + place[k]] += part * one.rows[from * ranks + order[k]];
    load.busiest_rank += part * one.busiest_rank;
    load.busiest_expert += part * one.busiest_expert;
    load.dropped += part * one.dropped;
  }
  return load;
}

// As many rows of all that there would be.
void take_share(double share, Load& load) {
  for (double& rows : load.rows) rows *= share;
  load.busiest_rank *= share;
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

std::int64_t routing_step(const Workload& workload) {
  return workload.step - workload.step % workload.routing_interval;
}

std::vector<RoutingMatrix> routing_of(const Scenario& scenario) {
  const Workload& workload = scenario.workload;
  if (!workload.routes_unequally()) return {};
  if (!workload.recorded_routing) return drawn(scenario);
  const RoutingCounts& counts = *workload.recorded_routing;
  const std::int64_t ranks = scenario.plan.expert.degree;
  const std::size_t step = recorded_step(workload);
  const std::int64_t group = slowest_group(counts, step, ranks);
  std::vector<RoutingMatrix> all;
  for (std::size_t layer = 0; layer < counts.shape().layers.size(); ++layer)
    all.push_back(of_group(counts.matrix(step, layer), ranks, group));
  return all;
}

std::int64_t routing_state(const Scenario& scenario) {
  const Workload& w = scenario.workload;
  if (!w.routes_unequally()) return 0;
  if (w.recorded_routing) return static_cast<std::int64_t>(recorded_step(w));
  const RoutingGenerator g = generator_of(scenario);
  const std::int64_t step = routing_step(w), place = step % g.period;
  if (g.noise > 0 || g.pattern == RoutingPattern::ragged) return step;
  if (g.pattern == RoutingPattern::rotating) return step / g.period % g.experts;
  if (g.pattern == RoutingPattern::burst) return place < g.period - g.burst_steps ? 0 : step / g.period + 1;
  return 0;
}

bool has_experts(const Piece& piece) {
  return std::ranges::any_of(piece.forward.ops, [](const Op& op) { return op.kind == OpKind::permute; });
}

namespace {

// "3 to 60", "1, 3, 5 to 23": the first and the last, and how far they are apart.
std::string expert_layers_text(const Model& model) {
  const std::int64_t first = model.dense_layers + model.expert_period - 1,
                     last = first + (model.expert_layers() - 1) * model.expert_period;
  if (model.expert_period == 1) return fmt::format("{} to {}", first, last);
  return fmt::format("every {}. from {} to {}", model.expert_period, first, last);
}

}  // namespace

void check_routing(const Scenario& scenario) {
  const Workload& w = scenario.workload;
  const Model& model = scenario.model;
  const auto ranks = scenario.plan.expert.degree;
  const bool by_rank = w.routing == ExpertRouting::zipf || w.routing == ExpertRouting::rotating,
             has_skew = w.routing != ExpertRouting::balanced && !is_preset(w.routing);
  const std::string skew = fmt::format("{}", w.routing_skew),
                    name(kExpertRoutingNames[static_cast<std::size_t>(w.routing)]);
  const std::string with = " with \"routing\": \"" + name + "\"";
  if (!has_skew && w.routing_skew != 0) refuse("routing_skew", skew, "0" + with);
  if (!has_skew && w.routing_noise != 0) refuse("routing_noise", fmt::format("{}", w.routing_noise), "0" + with);
  if (w.routing_noise == 0 && w.routing_autocorrelation != 0)
    refuse("routing_autocorrelation", fmt::format("{}", w.routing_autocorrelation), "0 without routing_noise");
  const bool has_period = w.routing == ExpertRouting::rotating || w.routing == ExpertRouting::burst;
  if (!has_period && w.routing_period != 1) refuse("routing_period", std::to_string(w.routing_period), "1" + with);
  const std::int64_t most_burst = w.routing == ExpertRouting::burst ? w.routing_period : 1;
  if (w.routing_burst_steps > most_burst)
    refuse("routing_burst_steps", std::to_string(w.routing_burst_steps),
           w.routing == ExpertRouting::burst ? fmt::format("at most the period, {}", most_burst) : "1" + with);
  if (!w.routes_unequally()) return;
  const char* const field = w.recorded_routing ? "routing_file" : "routing";
  const std::string said = w.recorded_routing ? w.routing_file : "\"" + name + "\"";
  if (!model.has_experts()) refuse(field, said, "none for a model without experts");
  if (model.router_type == RouterType::expert_choice || model.router_type == RouterType::base)
    refuse(field, said,
           fmt::format("{} with router_type \"{}\", which gives all experts as many tokens",
                       w.recorded_routing ? "none" : "\"balanced\"", name_of(model.router_type)));
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
    const std::int64_t groups =
        orrery::ranks(scenario) / (scenario.plan.pipeline.degree * ranks * expert_tensor_ranks(scenario.plan));
    if (shape.source_ranks != 1 && shape.source_ranks != ranks && shape.source_ranks != ranks * groups)
      refuse(
          field, fmt::format("{} of {} source ranks", said, shape.source_ranks),
          fmt::format("counts of as many source ranks as expert_parallel, {}, or those of all {} expert groups, or of "
                      "all together",
                      ranks, groups));
    for (const std::int64_t layer : shape.layers)
      if (layer >= model.layers || !model.is_expert_layer(layer))
        refuse(field, fmt::format("{} with layer {}", said, layer),
               fmt::format("layers with experts as the model numbers them from 0, {}", expert_layers_text(model)));
    return;
  }
  if ((w.routing == ExpertRouting::hot_rank || w.routing == ExpertRouting::ragged) && ranks == 1)
    refuse(field, said, "another one with expert_parallel 1, where one rank has all experts");
  if ((w.routing == ExpertRouting::hot_expert || w.routing == ExpertRouting::burst) && model.experts < 2)
    refuse(field, said, "another one for a single expert");
  if (by_rank && w.routing_skew == 0 && w.routing_noise == 0)
    refuse("routing_skew", "0", "an exponent above 0" + with + ", or routing_noise, or \"routing\": \"balanced\"");
  if (has_skew && !by_rank && !(w.routing_skew > 0 && w.routing_skew < 1))
    refuse("routing_skew", skew, "a share above 0 and below 1" + with);
}

void lay_loads(const Scenario& scenario, Program& program) {
  const Workload& workload = scenario.workload;
  const Model& model = scenario.model;
  // What a gate gives each token in the mean, of the experts that there is room for.
  const double given = model.has_experts() && model.mean_experts_per_token > 0
                           ? model.mean_experts_per_token / static_cast<double>(model.experts_per_token)
                           : 1;
  const double capacity = scenario.plan.expert.capacity_factor;
  const bool too_few_slots = capacity > 0 && capacity < 1;  // of balanced rows, too, some find none
  if (!model.has_experts() || (!workload.routes_unequally() && given == 1 && !too_few_slots)) return;
  const std::int64_t ranks = scenario.plan.expert.degree;

  std::vector<std::int64_t> layers;  // with experts
  std::int64_t at = 0;
  for (const Run& run : program.line) {
    const std::int64_t end = at + program.pieces[run.piece].layers * run.count;
    if (has_experts(program.pieces[run.piece]))
      for (std::int64_t layer = at; layer < end; ++layer) layers.push_back(layer);
    at = end;
  }

  std::vector<Load> loads;
  const std::vector<RoutingMatrix> routing = routing_of(scenario);
  const auto load_of_tokens = [&](const RoutingMatrix& tokens) {
    return scenario.plan.expert.pad_to_busiest ? padded_load(tokens, ranks) : load_of(tokens, ranks, capacity);
  };
  const std::int64_t group =
      workload.recorded_routing ? slowest_group(*workload.recorded_routing, recorded_step(workload), ranks) : 0;
  const bool by_micro_batch =
      workload.recorded_routing && workload.recorded_routing->shape().micro_batches > 1 && !scenario.expert_rows;
  for (std::size_t layer = 0; layer < routing.size() && by_micro_batch; ++layer) {
    std::vector<Load> of_micro_batches;
    std::vector<double> rows;
    for (std::int64_t m = 0; m < workload.recorded_routing->shape().micro_batches; ++m) {
      const RoutingMatrix tokens =
          of_group(workload.recorded_routing->matrix(recorded_step(workload), layer, m), ranks, group);
      of_micro_batches.push_back(load_of_tokens(tokens));
      rows.push_back(static_cast<double>(tokens.total()));
    }
    loads.push_back(routing[layer].total() > 0 ? load_of_places(of_micro_batches, rows) : of_micro_batches.front());
  }
  for (std::size_t layer = 0; layer < routing.size() && !by_micro_batch; ++layer)
    loads.push_back(scenario.expert_rows ? load_of_rows(routing[layer], ranks, (*scenario.expert_rows)[layer])
                                         : load_of_tokens(routing[layer]));
  // Of what a group has in the mean, as tensors have it.
  for (std::size_t layer = 0; layer < loads.size() && workload.recorded_routing; ++layer) {
    const RoutingMatrix all = workload.recorded_routing->matrix(recorded_step(workload), layer);
    const std::int64_t groups = std::max<std::int64_t>(1, all.source_ranks / ranks);
    if (groups > 1 && all.total() > 0)
      take_share(static_cast<double>(routing[layer].total() * groups) / static_cast<double>(all.total()), loads[layer]);
  }
  if (loads.empty()) {
    loads.push_back(balanced_load(ranks));
    if (too_few_slots) loads.back().dropped = 1 - capacity;
  }
  for (Load& load : loads) take_share(given, load);
  std::vector<std::size_t> numbers;  // of each of `layers`
  if (workload.recorded_routing) {
    const std::vector<std::int64_t>& recorded = workload.recorded_routing->shape().layers;
    for (const std::int64_t layer : layers) {
      const auto behind = std::ranges::upper_bound(recorded, layer);
      numbers.push_back(static_cast<std::size_t>(std::max<std::ptrdiff_t>(behind - recorded.begin() - 1, 0)));
    }
  } else {
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
      // A module of multi-token prediction is no layer, and routes as the last one.
      const std::size_t load = layers_of_one > 0 ? *number : numbers.back();
      const bool balanced = is_balanced(program.loads[load]);
      const std::uint16_t piece = variants.of(run.piece, static_cast<std::uint8_t>(balanced ? 0 : load + 1));
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
