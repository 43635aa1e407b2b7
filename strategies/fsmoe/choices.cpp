#include "strategies/fsmoe/choices.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "sim/base/error.h"

namespace orrery::fsmoe {
namespace {

using Layers = std::span<const GeneralisedLayer>;
using Degrees = std::span<const std::int64_t>;

// Relative difference by which rounding may change sums of elements.
constexpr double kRounding = 1e-9;

void check_layers(Layers layers, const LinearTime& all_reduce) {
  const auto check = [](double value, const char* what) {
    if (!(value >= 0) || !std::isfinite(value))
      throw InputError({}, fmt::format("{} of {}", what, value), "at least 0");
  };
  check(all_reduce.start_up, "the start-up of an all-reduce");
  check(all_reduce.per_unit, "the time of an all-reduce");
  if (all_reduce.per_unit == 0)
    throw InputError({}, "an all-reduce without time per element", "a time per element above 0");
  for (const GeneralisedLayer& layer : layers) {
    check(layer.dense_seconds, "the time of a dense part");
    check(layer.gradient_elements, "gradient elements");
    for (const ChunkedTime& t :
         {layer.moe.all_to_all, layer.moe.all_gather, layer.moe.reduce_scatter, layer.moe.experts}) {
      check(t.start_up, "a start-up");
      check(t.whole, "the time of an operation");
    }
  }
}

double all_reduce_seconds(const LinearTime& all_reduce, double elements) {
  return elements > 0 ? all_reduce.seconds(elements) : 0;
}

// A part of a layer in which a piece may be all-reduced.
struct Slot {
  std::size_t layer;
  bool is_moe;
};
double seconds_of(const GeneralisedLayer& layer, bool is_moe, double reduce, Degrees degrees) {
  return is_moe ? best_degree(layer.moe, reduce, degrees).seconds : std::max(layer.dense_seconds, reduce);
}
double& piece_of(GradientPartition& partition, const Slot& slot) {
  return (slot.is_moe ? partition.in_moe : partition.in_dense)[slot.layer];
}
GradientPartition no_pieces(std::size_t layers) {
  GradientPartition partition;
  partition.in_dense.resize(layers);
  partition.in_moe.resize(layers);
  return partition;
}

// Value of a slot: `transfer` seconds in it save `saved` seconds: what the end gets shorter less what the slot gets
// longer.
struct Share {
  double transfer = 0, saved = 0;
};

// The time of a slot as a function of its all-reduce is flat up to the idle time of a degree, and then grows with it.
// Only the ends of the flat parts are worth choosing, or a part of that if less is available.
std::vector<Share> points_of(const GeneralisedLayer& layer, bool is_moe, double start_up, Degrees degrees) {
  std::vector<double> ends;
  if (is_moe)
    for (const std::int64_t degree : degrees) ends.push_back(pipelined(layer.moe, degree, 0).idle_seconds);
  else
    ends.push_back(layer.dense_seconds);
  std::vector<Share> points{{}};
  const double empty = seconds_of(layer, is_moe, 0, degrees);
  for (const double end : ends) {
    if (end <= start_up) continue;
    const double transfer = end - start_up, saved = transfer - (seconds_of(layer, is_moe, end, degrees) - empty);
    if (saved > 0) points.push_back({transfer, saved});
  }
  return points;
}

// A choice of points up to a slot.
struct State {
  Share sum;
  std::size_t before = 0;  // index of the state of the previous slot that this one continues
  double own = 0;          // transfer of the slot's own point
};

// If less is available than a state's sum, the state saves that much less; more saves nothing. Keeps the states that
// are best for some amount, ascending.
void keep_best(std::vector<State>& states) {
  std::sort(states.begin(), states.end(), [](const State& a, const State& b) {
    return a.sum.transfer != b.sum.transfer ? a.sum.transfer < b.sum.transfer : a.sum.saved > b.sum.saved;
  });
  std::vector<State> kept;
  for (const State& s : states) {
    if (!kept.empty() && s.sum.saved <= kept.back().sum.saved) continue;
    while (!kept.empty() && s.sum.saved - kept.back().sum.saved >= s.sum.transfer - kept.back().sum.transfer)
      kept.pop_back();
    kept.push_back(s);
  }
  if (kept.size() > kMostStates) {
    // Keeps the best of each of as many equal ranges, which is the last of each; the largest of all among them.
    const double width = kept.back().sum.transfer / static_cast<double>(kMostStates);
    std::vector<State> fewer;
    for (std::size_t i = 0; i < kept.size(); ++i)
      if (i + 1 == kept.size() ||
          std::floor(kept[i].sum.transfer / width) < std::floor(kept[i + 1].sum.transfer / width))
        fewer.push_back(kept[i]);
    kept = std::move(fewer);
  }
  states = std::move(kept);
}

}  // namespace

LayerTimes backward(LayerTimes forward) {
  forward.experts.start_up *= 2;
  forward.experts.whole *= 2;
  return forward;
}

PipelinedLayer pipelined(const LayerTimes& times, std::int64_t degree, double all_reduce_seconds) {
  const auto r = static_cast<double>(degree);
  const double a2a = times.all_to_all.of_chunk(r), ag = times.all_gather.of_chunk(r),
               rs = times.reduce_scatter.of_chunk(r), exp = times.experts.of_chunk(r), gar = all_reduce_seconds;
  const bool q1 = a2a > ag, q2 = r * exp > 2 * (r - 1) * a2a, q3 = r * exp > (r - 1) * (ag + rs);
  // Idle time of the link between nodes: Q1 with Q2 or Q3 choose the case; Q4 to Q7 ask if the all-reduce takes longer.
  const bool experts = q1 ? q2 : q3;
  const double idle = experts ? r * exp - 2 * (r - 1) * a2a + ag + rs  // Q5, Q7
                      : q1    ? ag + rs                                // Q4
                              : r * ag + r * rs - 2 * (r - 1) * a2a;      // Q6
  PipelinedLayer layer{degree, Bottleneck::inter_node, 2 * r * a2a + gar, idle};
  if (gar > idle) return layer;
  if (experts) {
    layer.bottleneck = Bottleneck::experts;
    layer.seconds = 2 * a2a + ag + rs + r * exp;
  } else if (q1) {
    layer.bottleneck = Bottleneck::all_to_all;
    layer.seconds = 2 * r * a2a + ag + rs;
  } else {
    layer.bottleneck = Bottleneck::intra_node;
    layer.seconds = 2 * a2a + r * ag + r * rs;
  }
  return layer;
}

PipelinedLayer best_degree(const LayerTimes& times, double all_reduce_seconds, std::span<const std::int64_t> degrees) {
  PipelinedLayer best = pipelined(times, degrees.front(), all_reduce_seconds);
  for (const std::int64_t degree : degrees.subspan(1)) {
    const PipelinedLayer other = pipelined(times, degree, all_reduce_seconds);
    if (other.seconds < best.seconds) best = other;
  }
  return best;
}

void evaluate(Layers layers, const LinearTime& all_reduce, Degrees degrees, GradientPartition& partition) {
  check_layers(layers, all_reduce);
  double there = 0, left = 0;
  partition.layers.clear();
  partition.seconds = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    for (const double piece : {partition.in_dense[i], partition.in_moe[i]}) {
      if (!(piece >= 0) || piece > left + kRounding * there)
        throw InputError({}, fmt::format("{} elements all-reduced in layer {}", piece, i),
                         fmt::format("0 to the {} that are left", left));
      left = std::max(0.0, left - piece);
    }
    partition.seconds += seconds_of(layers[i], false, all_reduce_seconds(all_reduce, partition.in_dense[i]), degrees);
    partition.layers.push_back(
        best_degree(layers[i].moe, all_reduce_seconds(all_reduce, partition.in_moe[i]), degrees));
    partition.seconds += partition.layers.back().seconds;
    there += layers[i].gradient_elements;
    left += layers[i].gradient_elements;
  }
  partition.after = left;
  partition.seconds += left * all_reduce.per_unit;
}

GradientPartition greedy_partition(Layers layers, const LinearTime& all_reduce, Degrees degrees) {
  check_layers(layers, all_reduce);
  GradientPartition partition = no_pieces(layers.size());
  double left = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const double idle_moe = best_degree(layers[i].moe, 0, degrees).idle_seconds;
    for (const auto& [is_moe, idle] : {std::pair{false, layers[i].dense_seconds}, std::pair{true, idle_moe}}) {
      const double fits = std::max(0.0, (idle - all_reduce.start_up) / all_reduce.per_unit),
                   piece = std::min(left, fits);
      piece_of(partition, {i, is_moe}) = piece;
      left -= piece;
    }
    left += layers[i].gradient_elements;
  }
  evaluate(layers, all_reduce, degrees, partition);
  return partition;
}

GradientPartition best_partition(Layers layers, const LinearTime& all_reduce, Degrees degrees) {
  GradientPartition best = greedy_partition(layers, all_reduce, degrees);
  // States of each slot, in order; transfer in seconds.
  std::vector<Slot> slots;
  std::vector<double> there;  // by slot: all transfer available up to it
  std::vector<std::vector<State>> states{{State{}}};
  double sum = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    for (const bool is_moe : {false, true}) {
      const std::vector<Share> points = points_of(layers[i], is_moe, all_reduce.start_up, degrees);
      std::vector<State> next;
      for (std::size_t s = 0; s < states.back().size(); ++s)
        for (const Share& p : points) {
          const Share& before = states.back()[s].sum;
          Share both{before.transfer + p.transfer, before.saved + p.saved};
          const double lacking = std::max(0.0, both.transfer - sum);  // no more is available
          both.transfer -= lacking;
          both.saved -= lacking;
          next.push_back({both, s, p.transfer});
        }
      keep_best(next);
      slots.push_back({i, is_moe});
      there.push_back(sum);
      states.push_back(std::move(next));
    }
    sum += layers[i].gradient_elements * all_reduce.per_unit;
  }
  const auto last = std::max_element(states.back().begin(), states.back().end(),
                                     [](const State& a, const State& b) { return a.sum.saved < b.sum.saved; });
  if (slots.empty()) return best;
  std::vector<double> transfer(slots.size());
  for (std::size_t n = slots.size(), state = static_cast<std::size_t>(last - states.back().begin()); n-- > 0;) {
    transfer[n] = states[n + 1][state].own;
    state = states[n + 1][state].before;
  }
  // If less is available than was chosen, the last pieces shrink.
  GradientPartition partition = no_pieces(layers.size());
  double used = 0;
  for (std::size_t n = 0; n < slots.size(); ++n) {
    used += transfer[n];
    for (std::size_t m = n + 1; m-- > 0 && used > there[n];) {
      const double given = std::min(transfer[m], used - there[n]);
      transfer[m] -= given;
      used -= given;
    }
  }
  for (std::size_t n = 0; n < slots.size(); ++n) piece_of(partition, slots[n]) = transfer[n] / all_reduce.per_unit;
  evaluate(layers, all_reduce, degrees, partition);
  return partition.seconds < best.seconds ? partition : best;
}

}  // namespace orrery::fsmoe
