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

#include "sim/base/error.h"
#include "strategies/expert_parallel/expert_parallel.h"
#include "traces/routing_generator.h"

namespace orrery::expert_parallel {
namespace {

[[noreturn]] void refuse(const char* field, const std::string& found, const std::string& expected) {
  throw InputError({"", std::string("/workload/") + field}, found, expected);
}

// Presets have their own skew and noise.
bool is_preset(ExpertRouting routing) {
  return routing == ExpertRouting::trained_with_auxiliary_loss || routing == ExpertRouting::young_router ||
         routing == ExpertRouting::worst;
}

// Returns the last step of a trace that is not later than the workload's, or its first.
std::size_t recorded_step(const Workload& workload) {
  const std::vector<std::int64_t>& steps = workload.recorded_routing->shape().steps;
  const auto behind = std::ranges::upper_bound(steps, workload.step);
  return static_cast<std::size_t>(std::max<std::ptrdiff_t>(behind - steps.begin() - 1, 0));
}

// The rows of one expert group's source ranks.
RoutingMatrix of_group(const RoutingMatrix& all, std::int64_t ranks, std::int64_t group) {
  if (all.source_ranks <= ranks) return all;
  const auto begin = all.tokens.begin() + static_cast<std::ptrdiff_t>(group * ranks * all.experts);
  return {ranks, all.experts, {begin, begin + static_cast<std::ptrdiff_t>(ranks * all.experts)}};
}

// Rows of a group's busiest rank, summed over layers: the step ends with the group that has the most.
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

// The group that all others wait for; 0 if all groups have the same routing.
std::int64_t slowest_group(const RoutingCounts& counts, std::size_t step, std::int64_t ranks) {
  std::int64_t slowest = 0, most = -1;
  if (counts.shape().source_ranks <= ranks) return 0;
  for (std::int64_t group = 0; group * ranks < counts.shape().source_ranks; ++group)
    if (const std::int64_t rows = busiest_rows(counts, step, ranks, group); rows > most) most = rows, slowest = group;
  return slowest;
}

RoutingGenerator generator_of(const Scenario& scenario) {
  const Workload& w = scenario.workload;
  RoutingGenerator g = orrery::generator_of(w.routing);
  if (!is_preset(w.routing)) {
    using Routing = ExpertRouting;
    const bool by_rank = w.routing == Routing::zipf || w.routing == Routing::rotating;
    (by_rank ? g.zipf_exponent : w.routing == Routing::ragged ? g.raggedness : g.hot_share) = w.routing_skew;
    if (w.routing == Routing::hot_rank) g.expert_ranks = scenario.plan.expert.degree;
    if (w.routing == Routing::ragged) g.source_ranks = scenario.plan.expert.degree;
    g.noise = w.routing_noise;
    g.autocorrelation = w.routing_autocorrelation;
    g.period = w.routing_period;
    g.burst_steps = w.routing_burst_steps;
  }
  g.experts = scenario.model.experts;
  g.top_k = scenario.model.experts_per_token;
  g.seed = static_cast<std::uint64_t>(w.routing_seed);
  g.layers = static_cast<std::int64_t>(kDrawnLayers);
  g.micro_batch_noise = w.routing_micro_batch_noise;
  if (g.micro_batch_noise > 0) g.micro_batches = std::min(micro_batches(scenario), kMostDrawnMicroBatches);
  g.tokens = std::int64_t{1} << 22;  // enough that whole tokens resolve any popularity
  return g;
}

// Cached: a search lowers many plans of one workload, a training one plan step after step.
RoutingSteps& drawn_steps(const Scenario& scenario) {
  const RoutingGenerator g = generator_of(scenario);
  thread_local RoutingGenerator met;
  thread_local std::optional<RoutingSteps> steps;
  if (!steps || g != met) {
    steps.emplace(g);
    met = g;
  }
  return *steps;
}

Load balanced_load(std::int64_t ranks, double rows = 1) {
  Load load;
  load.ranks = ranks;
  load.rows.assign(static_cast<std::size_t>(ranks * ranks), rows);
  return load;
}

// `rows`: rows from each rank to each other, in any unit.
Load load_of_rows(const RoutingMatrix& m, std::int64_t ranks, std::span<const double> rows) {
  Load load = balanced_load(ranks);
  double total = 0;
  for (const double r : rows) total += r;
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
  Load load = balanced_load(ranks);
  const std::int64_t here = m.experts / ranks;
  const auto total = static_cast<double>(m.total());
  if (total <= 0) return load;
  std::vector<std::int64_t> of_rank(static_cast<std::size_t>(ranks), 0);
  const auto pairs = static_cast<double>(m.source_ranks * ranks);
  for (std::int64_t from = 0; from < m.source_ranks; ++from)
    for (std::int64_t to = 0; to < ranks; ++to) {
      std::int64_t rows = 0;  // of one source rank, or of all of them
      for (std::int64_t e = to * here; e < (to + 1) * here; ++e) rows += m.at(from, e);
      load.rows[static_cast<std::size_t>(from * ranks + to)] = static_cast<double>(rows) * pairs / total;
      of_rank[static_cast<std::size_t>(to)] += rows;
    }
  for (std::int64_t from = m.source_ranks; from < ranks; ++from)  // all the same
    std::copy_n(load.rows.begin(), ranks, load.rows.begin() + static_cast<std::ptrdiff_t>(from * ranks));
  load.busiest_rank = max_over_mean(of_rank);
  load.busiest_expert = max_over_mean(m.by_expert());
  if (capacity_factor > 0) {
    const double slots = capacity_factor * total / static_cast<double>(m.source_ranks * m.experts);
    double dropped = 0;
    for (const std::int64_t rows : m.tokens) dropped += std::max(0.0, static_cast<double>(rows) - slots);
    load.dropped = dropped / total;
  }
  return load;
}

// As many slots per expert and source as the most rows that any expert has from any source.
Load padded_load(const RoutingMatrix& m, std::int64_t ranks) {
  const double slots = std::max(1.0, max_over_mean(m.tokens));
  Load load = balanced_load(ranks, slots);
  load.padded = true;
  load.busiest_expert = max_over_mean(m.by_expert());
  load.busiest_rank = slots;
  return load;
}

// Combines micro-batches of which each waits for its own busiest rank. Ranks are ordered by their rows in each
// micro-batch, and the rows at each place are averaged over micro-batches. In the result a rank has the place that it
// has in the sum of all. `weights`: rows of each micro-batch.
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

// Scales a load to this share of all rows.
void take_share(double share, Load& load) {
  for (double& rows : load.rows) rows *= share;
  load.busiest_rank *= share;
}

// Rows of one of several micro-batches over those of the mean one; a small share if it has none: no op has size 0.
double share_of(double rows, double all, std::size_t micro_batches) {
  constexpr double kLeast = 1e-3;
  return all > 0 ? std::max(kLeast, rows * static_cast<double>(micro_batches) / all) : 1;
}

bool same(const Load& a, const Load& b) {
  return a.rows == b.rows && a.busiest_expert == b.busiest_expert && a.dropped == b.dropped;
}

bool is_balanced(const Load& load) {
  return std::ranges::all_of(load.rows, [](double rows) { return rows == 1; });
}

// Orders things by value, cuts them into runs of equal length, and returns for each run the thing nearest to the run's
// mean. `chosen`: the run of each thing.
template <class Value>
std::vector<std::size_t> nearest_of_runs(std::size_t things, std::size_t runs, Value&& value,
                                         std::vector<std::size_t>& chosen) {
  std::vector<std::size_t> order(things), nearest;
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return value(a) < value(b); });
  chosen.resize(things);
  for (std::size_t run = 0; run < runs; ++run) {
    const auto begin = order.begin() + static_cast<std::ptrdiff_t>(things * run / runs),
               end = order.begin() + static_cast<std::ptrdiff_t>(things * (run + 1) / runs);
    if (begin == end) continue;
    double mean = 0;
    for (auto i = begin; i != end; ++i) mean += value(*i) / static_cast<double>(end - begin);
    for (auto i = begin; i != end; ++i) chosen[*i] = nearest.size();
    nearest.push_back(*std::min_element(begin, end, [&](std::size_t a, std::size_t b) {
      return std::abs(value(a) - mean) < std::abs(value(b) - mean);
    }));
  }
  return nearest;
}

// Joins loads that are alike, at most to `most`, and renumbers `numbers`; unused loads are removed.
void join_alike(std::vector<Load>& loads, std::vector<std::size_t>& numbers, std::size_t most) {
  std::vector<Load> kept;
  std::vector<std::size_t> now(loads.size());
  for (std::size_t i = 0; i < loads.size(); ++i) {
    const auto like = std::ranges::find_if(kept, [&](const Load& other) { return same(other, loads[i]); });
    now[i] = static_cast<std::size_t>(like - kept.begin());
    if (like == kept.end()) kept.push_back(loads[i]);
  }
  for (std::size_t& number : numbers) number = now[number];
  if (kept.size() > most) {
    std::vector<std::size_t> chosen;
    std::vector<Load> few;
    for (const std::size_t nearest : nearest_of_runs(
             numbers.size(), most, [&](std::size_t i) { return kept[numbers[i]].busiest_rank; }, chosen))
      few.push_back(kept[numbers[nearest]]);
    kept = std::move(few);
    numbers = std::move(chosen);
  }
  loads = std::move(kept);
}

void set_load(Piece& piece, TableIndex<Load> load) {
  for (Tensor& t : piece.tensors)
    if (t.find(Axis::slots) >= 0) t.load = load;
}

// Variants of pieces by load: the piece itself for the first load that is met, copies for others.
class Variants {
 public:
  explicit Variants(Program& program) : program_(program) {}

  std::uint16_t of(std::uint16_t piece, TableIndex<Load> load) {
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
  std::map<std::uint16_t, TableIndex<Load>> first_;
  std::map<std::pair<std::uint16_t, TableIndex<Load>>, std::uint16_t> copies_;
};

// Returns "3 to 60" or "1, 3, 5 to 23": the first and the last layer, and their period.
std::string expert_layers_text(const Model& model) {
  const std::int64_t first = model.dense_layers + model.expert_period - 1,
                     last = first + (model.expert_layers() - 1) * model.expert_period;
  if (model.expert_period == 1) return fmt::format("{} to {}", first, last);
  return fmt::format("{} to {} in steps of {}", first, last, model.expert_period);
}

}  // namespace

std::int64_t routing_step(const Workload& workload) {
  return workload.step - workload.step % workload.routing_interval;
}

std::vector<RoutingMatrix> routing_of(const Scenario& scenario) {
  const Workload& workload = scenario.workload;
  if (!workload.routes_unequally()) return {};
  if (!workload.recorded_routing) return drawn_steps(scenario).at(routing_step(workload));
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
  if (g.noise > 0 || g.micro_batch_noise > 0 || g.pattern == ExpertRouting::ragged) return step;
  if (g.pattern == ExpertRouting::rotating) return step / g.period % g.experts;
  if (g.pattern == ExpertRouting::burst) return place < g.period - g.burst_steps ? 0 : step / g.period + 1;
  return 0;
}

bool has_experts(const Piece& piece) {
  return std::ranges::any_of(piece.forward.ops, [](const Op& op) { return op.kind == OpKind::permute; });
}

void check_routing(const Scenario& scenario) {
  const Workload& w = scenario.workload;
  const Model& model = scenario.model;
  const auto ranks = scenario.plan.expert.degree;
  const bool by_rank = w.routing == ExpertRouting::zipf || w.routing == ExpertRouting::rotating,
             has_skew = w.routing != ExpertRouting::balanced && !is_preset(w.routing);
  const std::string skew = fmt::format("{}", w.routing_skew),
                    name(kExpertRoutingNames[static_cast<std::size_t>(w.routing)]);
  const std::string with = w.recorded_routing ? std::string(" with \"routing_file\", which sets the routing")
                                              : " with \"routing\": \"" + name + "\"";
  if (!has_skew && w.routing_skew != 0) refuse("routing_skew", skew, "0" + with);
  if (!has_skew && w.routing_noise != 0) refuse("routing_noise", fmt::format("{}", w.routing_noise), "0" + with);
  if (w.routing == ExpertRouting::balanced && w.routing_micro_batch_noise != 0)
    refuse("routing_micro_batch_noise", fmt::format("{}", w.routing_micro_batch_noise), "0" + with);
  if (w.routing_micro_batch_noise != 0 && scenario.plan.expert.capacity_factor > 0)
    refuse("routing_micro_batch_noise", fmt::format("{}", w.routing_micro_batch_noise),
           "0 with moe_expert_capacity_factor: all micro-batches have equally many slots");
  if (w.routing_noise == 0 && w.routing_autocorrelation != 0)
    refuse("routing_autocorrelation", fmt::format("{}", w.routing_autocorrelation), "0 without routing_noise");
  const bool has_period = w.routing == ExpertRouting::rotating || w.routing == ExpertRouting::burst;
  if (!has_period && w.routing_period != 1) refuse("routing_period", std::to_string(w.routing_period), "1" + with);
  const std::int64_t most_burst = w.routing == ExpertRouting::burst ? w.routing_period : 1;
  if (w.routing_burst_steps > most_burst)
    refuse("routing_burst_steps", std::to_string(w.routing_burst_steps),
           w.routing == ExpertRouting::burst ? fmt::format("at most routing_period, {}", most_burst) : "1" + with);
  if (!w.routes_unequally()) return;
  const char* const field = w.recorded_routing ? "routing_file" : "routing";
  const std::string said = w.recorded_routing ? w.routing_file : "\"" + name + "\"";
  if (!model.has_experts()) refuse(field, said, "none for a model without experts");
  if (model.router_type == RouterType::expert_choice || model.router_type == RouterType::base)
    refuse(field, said,
           fmt::format("{} with router_type \"{}\", which gives all experts equally many tokens",
                       w.recorded_routing ? "none" : "\"balanced\"", name_of(model.router_type)));
  if (w.recorded_routing) {
    if (w.routing != ExpertRouting::balanced)
      refuse("routing", "\"" + name + "\"", "\"balanced\" with \"routing_file\", which sets the routing");
    const RoutingShape& shape = w.recorded_routing->shape();
    if (shape.experts != model.experts)
      refuse(field, fmt::format("{} with counts of {} experts", said, shape.experts),
             fmt::format("counts of the model's {} experts", model.experts));
    if (shape.top_k != model.experts_per_token)
      refuse(field, fmt::format("{} with {} experts per token", said, shape.top_k),
             fmt::format("the model's {} experts per token", model.experts_per_token));
    const std::int64_t groups =
        orrery::ranks(scenario) / (scenario.plan.pipeline.degree * ranks * expert_tensor_ranks(scenario.plan));
    if (shape.source_ranks != 1 && shape.source_ranks != ranks && shape.source_ranks != ranks * groups)
      refuse(
          field, fmt::format("{} with counts of {} source ranks", said, shape.source_ranks),
          fmt::format("source ranks of one expert group ({}), of all {} groups, or all ranks together", ranks, groups));
    for (const std::int64_t layer : shape.layers)
      if (layer >= model.layers || !model.is_expert_layer(layer))
        refuse(field, fmt::format("{} with layer {}", said, layer),
               fmt::format("layers with experts, numbered from 0: {}", expert_layers_text(model)));
    return;
  }
  if ((w.routing == ExpertRouting::hot_rank || w.routing == ExpertRouting::ragged) && ranks == 1)
    refuse(field, said, "another one with expert_parallel 1, where one rank has all experts");
  if ((w.routing == ExpertRouting::hot_expert || w.routing == ExpertRouting::burst) && model.experts < 2)
    refuse(field, said, "another one for a single expert");
  if (model.experts_per_token > RoutingGenerator::kMostTopK)
    refuse(field, said, fmt::format("another one with more than {} experts per token", RoutingGenerator::kMostTopK));
  if (by_rank && w.routing_skew == 0 && w.routing_noise == 0 && w.routing_micro_batch_noise == 0)
    refuse("routing_skew", "0", "an exponent above 0" + with + ", or routing_noise, or \"routing\": \"balanced\"");
  if (has_skew && !by_rank && !(w.routing_skew > 0 && w.routing_skew < 1))
    refuse("routing_skew", skew, "a share above 0 and below 1" + with);
}

namespace {

// Indices of the model's layers with experts.
std::vector<std::int64_t> layers_with_experts(const Program& program) {
  std::vector<std::int64_t> layers;
  std::int64_t at = 0;
  for (const PieceRun& run : program.line) {
    const std::int64_t end = at + program.pieces[run.piece].layers * run.count;
    if (has_experts(program.pieces[run.piece]))
      for (std::int64_t layer = at; layer < end; ++layer) layers.push_back(layer);
    at = end;
  }
  return layers;
}

// Loads by micro-batch and layer of the source; with one entry all micro-batches are alike.
using LoadsByMicroBatch = std::vector<std::vector<Load>>;

bool same(const std::vector<Load>& a, const std::vector<Load>& b) {
  return std::ranges::equal(a, b, [](const Load& x, const Load& y) { return same(x, y); });
}

// Loads of a recorded trace, for `micro_batches` of the step; each combines its micro-batches of the trace.
template <class LoadOf>
LoadsByMicroBatch recorded_loads(const Scenario& scenario, std::int64_t micro_batches, LoadOf&& load_of_tokens) {
  const RoutingCounts& counts = *scenario.workload.recorded_routing;
  const RoutingShape& shape = counts.shape();
  const std::int64_t ranks = scenario.plan.expert.degree;
  const std::size_t step = recorded_step(scenario.workload);
  const std::int64_t group = slowest_group(counts, step, ranks);
  const auto parts = static_cast<std::size_t>(micro_batches);
  LoadsByMicroBatch all(parts);
  for (std::size_t layer = 0; layer < shape.layers.size(); ++layer) {
    std::vector<double> rows_of(parts);
    double rows_of_all = 0;
    for (std::size_t part = 0; part < parts; ++part) {
      const auto begin = static_cast<std::int64_t>(part) * shape.micro_batches / micro_batches,
                 end = static_cast<std::int64_t>(part + 1) * shape.micro_batches / micro_batches;
      std::vector<Load> of_each;
      std::vector<double> rows;
      for (std::int64_t m = begin; m < end; ++m) {
        const RoutingMatrix tokens = of_group(counts.matrix(step, layer, m), ranks, group);
        of_each.push_back(load_of_tokens(tokens));
        rows.push_back(static_cast<double>(tokens.total()));
        rows_of[part] += rows.back();
      }
      const bool alike = std::ranges::all_of(of_each, [&](const Load& other) { return same(other, of_each.front()); });
      all[part].push_back(alike || rows_of[part] == 0 ? of_each.front() : load_of_places(of_each, rows));
      rows_of_all += rows_of[part];
    }
    // Relative to the mean micro-batch's rows, as tensors have them.
    for (std::size_t part = 0; part < parts && parts > 1; ++part)
      if (const double share = share_of(rows_of[part], rows_of_all, parts); share != 1)
        take_share(share, all[part].back());
    // Likewise relative to the mean over expert groups.
    const RoutingMatrix of_all_groups = counts.matrix(step, layer);
    const std::int64_t groups = std::max<std::int64_t>(1, of_all_groups.source_ranks / ranks);
    if (groups > 1 && of_all_groups.total() > 0)
      for (std::vector<Load>& of_layers : all)
        take_share(rows_of_all * static_cast<double>(groups) / static_cast<double>(of_all_groups.total()),
                   of_layers.back());
  }
  return all;
}

LoadsByMicroBatch loads_of(const Scenario& scenario) {
  const Workload& workload = scenario.workload;
  const std::int64_t ranks = scenario.plan.expert.degree;
  const double capacity = scenario.plan.expert.capacity_factor;
  const auto load_of_tokens = [&](const RoutingMatrix& tokens) {
    return scenario.plan.expert.pad_to_busiest ? padded_load(tokens, ranks) : load_of(tokens, ranks, capacity);
  };
  LoadsByMicroBatch all;
  if (scenario.situation.expert_rows) {
    const std::vector<RoutingMatrix> routing = routing_of(scenario);
    all.emplace_back();
    for (std::size_t layer = 0; layer < routing.size(); ++layer)
      all.front().push_back(load_of_rows(routing[layer], ranks, (*scenario.situation.expert_rows)[layer]));
  } else if (workload.recorded_routing) {
    const std::int64_t recorded = workload.recorded_routing->shape().micro_batches;
    all = recorded_loads(scenario, capacity > 0 ? 1 : std::min(recorded, micro_batches(scenario)), load_of_tokens);
  } else if (workload.routes_unequally()) {
    RoutingSteps& steps = drawn_steps(scenario);
    const std::int64_t step = routing_step(workload);
    if (workload.routing_micro_batch_noise > 0) {
      for (const std::vector<RoutingMatrix>& of_layers : steps.by_micro_batch(step)) {
        all.emplace_back();
        for (const RoutingMatrix& tokens : of_layers) all.back().push_back(load_of_tokens(tokens));
      }
    } else {
      all.emplace_back();
      for (const RoutingMatrix& tokens : steps.at(step)) all.back().push_back(load_of_tokens(tokens));
    }
  } else {
    all.push_back({balanced_load(ranks)});
    if (capacity > 0 && capacity < 1) all.front().front().dropped = 1 - capacity;
  }
  if (std::ranges::all_of(all, [&](const std::vector<Load>& other) { return same(other, all.front()); })) all.resize(1);
  return all;
}

// The source's layer that each of `layers` uses.
std::vector<std::size_t> layers_of_source(const Workload& workload, std::span<const std::int64_t> layers,
                                          std::size_t of_source) {
  std::vector<std::size_t> numbers;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (!workload.recorded_routing) {
      numbers.push_back(i % of_source);
      continue;
    }
    const std::vector<std::int64_t>& recorded = workload.recorded_routing->shape().layers;
    const auto behind = std::ranges::upper_bound(recorded, layers[i]);
    numbers.push_back(static_cast<std::size_t>(std::max<std::ptrdiff_t>(behind - recorded.begin() - 1, 0)));
  }
  return numbers;
}

// The line with each layer's load, and that of modules of multi-token prediction, which are not layers.
std::vector<PieceRun> line_with(const Program& program, Variants& variants, std::span<const PieceRun> of,
                                std::span<const std::size_t> numbers, std::size_t of_modules) {
  std::vector<PieceRun> line;
  auto number = numbers.begin();
  for (const PieceRun& run : of) {
    if (!has_experts(program.pieces[run.piece])) {
      line.push_back(run);
      continue;
    }
    const auto layers_of_one = static_cast<std::ptrdiff_t>(program.pieces[run.piece].layers);
    for (std::int64_t i = 0; i < run.count; ++i, number += layers_of_one) {
      const std::size_t load = layers_of_one > 0 ? *number : of_modules;
      const bool balanced = is_balanced(program.loads[load]);
      const std::uint16_t piece = variants.of(run.piece, balanced ? TableIndex<Load>() : TableIndex<Load>(load));
      if (i > 0 && line.back().piece == piece) {
        ++line.back().count;
      } else {
        line.push_back({piece, 1});
      }
    }
  }
  return line;
}

// The loads that are kept, and the load of each layer in each micro-batch.
struct JoinedLoads {
  std::vector<Load> loads;
  std::vector<std::size_t> numbers;
  std::size_t parts = 1;  // micro-batches
};

JoinedLoads joined_loads(const Scenario& scenario, std::span<const std::int64_t> layers, double given) {
  LoadsByMicroBatch sources = loads_of(scenario);
  JoinedLoads joined;
  joined.parts = sources.size();
  const std::vector<std::size_t> source_layers = layers_of_source(scenario.workload, layers, sources.front().size());
  for (std::vector<Load>& of_layers : sources) {
    for (const std::size_t layer : source_layers) joined.numbers.push_back(joined.loads.size() + layer);
    for (Load& load : of_layers) {
      take_share(given, load);
      joined.loads.push_back(std::move(load));
    }
  }
  join_alike(joined.loads, joined.numbers, joined.parts > 1 ? kMostLoadsByMicroBatch : kMostLoads);
  return joined;
}

// Cached: routing is drawn once for all plans that divide it in the same way.
const JoinedLoads& loads_to_lay(const Scenario& scenario, const std::vector<std::int64_t>& layers, double given) {
  using Key = std::tuple<RoutingGenerator, std::int64_t, std::int64_t, double, bool, double, std::vector<std::int64_t>>;
  thread_local std::optional<Key> met;
  thread_local JoinedLoads joined;
  const Workload& workload = scenario.workload;
  const bool drawn = workload.routes_unequally() && !workload.recorded_routing && !scenario.situation.expert_rows;
  std::optional<Key> key;
  if (drawn)
    key.emplace(generator_of(scenario), routing_step(workload), scenario.plan.expert.degree,
                scenario.plan.expert.capacity_factor, scenario.plan.expert.pad_to_busiest, given, layers);
  if (!drawn || key != met) {
    met.reset();  // in case it throws
    joined = joined_loads(scenario, layers, given);
    met = std::move(key);
  }
  return joined;
}

}  // namespace

void lay_loads(const Scenario& scenario, Program& program) {
  const Workload& workload = scenario.workload;
  const Model& model = scenario.model;
  // Mean experts per token that a gate gives, out of the slots for them.
  const double given = model.has_experts() && model.mean_experts_per_token > 0
                           ? model.mean_experts_per_token / static_cast<double>(model.experts_per_token)
                           : 1;
  const double capacity = scenario.plan.expert.capacity_factor;
  const bool too_few_slots = capacity > 0 && capacity < 1;  // even balanced routing lacks slots then
  if (!model.has_experts() || (!workload.routes_unequally() && given == 1 && !too_few_slots)) return;

  const std::vector<std::int64_t> layers = layers_with_experts(program);
  const JoinedLoads& joined = loads_to_lay(scenario, layers, given);
  std::vector<std::size_t> numbers = joined.numbers;  // behind the loads that are there
  for (std::size_t& number : numbers) number += program.loads.size();
  const std::size_t parts = joined.parts;
  std::vector<Load>& loads = program.loads;
  for (const Load& load : joined.loads) {
    loads.push_back(load);
    loads.back().group = program.mesh.group(MeshAxis::ep);
  }
  const auto numbers_of = [&](std::size_t part) {
    return std::span<const std::size_t>(numbers).subspan(part * layers.size(), layers.size());
  };

  // Micro-batches with the same loads form one class.
  std::vector<std::size_t> classes, class_of(parts);  // one micro-batch of each class; the class of each
  for (std::size_t part = 0; part < parts; ++part) {
    const auto like = std::ranges::find_if(
        classes, [&](std::size_t other) { return std::ranges::equal(numbers_of(other), numbers_of(part)); });
    class_of[part] = static_cast<std::size_t>(like - classes.begin());
    if (like == classes.end()) classes.push_back(part);
  }
  if (classes.size() > kMostMicroBatchClasses) {
    classes = nearest_of_runs(
        parts, kMostMicroBatchClasses,
        [&](std::size_t part) {
          double rows = 0;
          for (const std::size_t number : numbers_of(part)) rows += loads[number].busiest_rank;
          return rows;
        },
        class_of);
  }
  const auto n = static_cast<std::size_t>(micro_batches(scenario));
  if (classes.size() == 1) {
    for (const std::size_t number : numbers_of(classes.front())) ++loads[number].layers;
  } else {
    for (std::size_t m = 0; m < n; ++m)
      for (const std::size_t number : numbers_of(classes[class_of[m % parts]])) ++loads[number].layers;
  }
  if (capacity > 0) return;

  // A module of multi-token prediction routes as the last layer, averaged over micro-batches.
  double mean = 0;
  const auto of_last = [&](std::size_t part) { return numbers_of(classes[class_of[part]]).back(); };
  for (std::size_t part = 0; part < parts; ++part)
    mean += program.loads[of_last(part)].busiest_rank / static_cast<double>(parts);
  std::size_t of_modules = of_last(0);
  const auto distance = [&](std::size_t load) { return std::abs(program.loads[load].busiest_rank - mean); };
  for (std::size_t part = 1; part < parts; ++part)
    if (distance(of_last(part)) < distance(of_modules)) of_modules = of_last(part);

  Variants variants(program);
  const std::vector<PieceRun> line = std::move(program.line);
  // The first micro-batch has class 0.
  const std::size_t of_first = class_of.front();
  program.line = line_with(program, variants, line, numbers_of(classes[of_first]), of_modules);
  if (classes.size() == 1) return;
  std::swap(classes[0], classes[of_first]);
  for (std::size_t& of_class : class_of) of_class = of_class == of_first ? 0 : of_class == 0 ? of_first : of_class;
  for (std::size_t c = 1; c < classes.size(); ++c)
    program.other_classes.push_back({line_with(program, variants, line, numbers_of(classes[c]), of_modules), {}});
  for (std::size_t m = 0; m < n; ++m)
    program.micro_batch_class.push_back(static_cast<std::uint8_t>(class_of[m % parts]));
}

}  // namespace orrery::expert_parallel
