#include "sim/cost/exchange_skew.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <span>
#include <sstream>

#include "sim/base/error.h"
#include "sim/base/index.h"
#include "sim/cost/collective_cost.h"
#include "sim/cost/collective_flows.h"

namespace orrery {
namespace {

// The probability that none of `draws` different ones out of `all` is among `some`.
double none_of(double all, double some, double draws) {
  if (draws > all - some) return 0;
  double p = 1;
  for (double i = 0; i < draws; ++i) p *= (all - some - i) / (all - i);
  return p;
}

// The probability that a token goes to any of `some` experts that lie side by side.
double meets(const Router& router, double some) {
  const double experts = router.experts, choices = router.choices;
  if (router.groups == 0) return 1 - none_of(experts, some, choices);
  const double in_group = experts / router.groups, best = router.best_groups;
  if (some < in_group) {  // a part of one group, if that group is chosen
    return best / router.groups * (1 - none_of(best * in_group, some, choices));
  }
  // Several whole groups: j of them are among the best with hypergeometric probability.
  const double groups = some / in_group;
  double p = 0;
  for (double j = std::max(0.0, best - (router.groups - groups)); j <= std::min(best, groups); ++j) {
    double ways = 1;  // choose(groups, j) choose(rest, best - j) / choose(all, best)
    const auto choose = [](double n, double k) {
      return std::exp(std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1));
    };
    ways = choose(groups, j) * choose(router.groups - groups, best - j) / choose(router.groups, best);
    p += ways * (1 - none_of(best * in_group, j * in_group, choices));
  }
  return p;
}

}  // namespace

TokenShares token_shares(const Router& router, std::int64_t ranks, std::int64_t nodes) {
  const double experts = router.experts, choices = router.choices;
  return {meets(router, experts / static_cast<double>(ranks)) / choices,
          meets(router, experts / static_cast<double>(nodes)) / choices, choices};
}

namespace {

// The bytes of the rank that sends or receives the most, within its node and over NICs.
ExchangeSkew busiest(std::int64_t ranks, std::int64_t per_node, CollectiveAlgorithm algorithm,
                     const TokenShares& tokens, std::span<const double> rows) {
  std::vector<std::int64_t> devices(at(ranks));
  std::iota(devices.begin(), devices.end(), std::int64_t{0});
  static thread_local FlowGraph graph;  // keeps its memory: a search asks for thousands of skews
  collective_flows(OpKind::all_to_all, algorithm,
                   {.devices = devices, .devices_per_node = per_node, .tokens = tokens, .rows = rows}, {}, graph);
  std::vector<ExchangeSkew> sent(devices.size(), {0, 0}), got = sent;
  for (const FlowEdge& e : graph.edges) {
    const bool leaves = e.from.member / per_node != e.to.member / per_node;
    double ExchangeSkew::*const level = leaves ? &ExchangeSkew::between : &ExchangeSkew::inside;
    sent[at(e.from.member)].*level += e.bytes;
    got[at(e.to.member)].*level += e.bytes;
  }
  ExchangeSkew most{0, 0};
  for (const auto* way : {&sent, &got})
    for (const ExchangeSkew& rank : *way)
      most = {std::max(most.inside, rank.inside), std::max(most.between, rank.between)};
  return most;
}

}  // namespace

double share_of_tokens(double balanced, double choices, double rows) {
  const double meets = std::min(1.0, balanced * choices);
  return (1 - std::pow(1 - meets, rows)) / choices;
}

ExchangeSkew exchange_skew(const Load& load, std::int64_t per_node, CollectiveAlgorithm algorithm,
                           const TokenShares& tokens) {
  const ExchangeSkew skewed = busiest(load.ranks, per_node, algorithm, tokens, load.rows),
                     balanced = busiest(load.ranks, per_node, algorithm, tokens, {});
  // What experts' rows do at least; of documents most rows may stay where they are.
  const double mean = load.of == RowsOf::tokens ? std::accumulate(load.rows.begin(), load.rows.end(), 0.0) /
                                                      static_cast<double>(load.rows.size())
                                                : 0;
  const auto over = [mean](double most, double usual) { return usual > 0 ? std::max(mean, most / usual) : mean; };
  return {over(skewed.inside, balanced.inside), over(skewed.between, balanced.between)};
}

ExchangeSkew ExchangeSkews::of(const Load& load, std::int64_t per_node, CollectiveAlgorithm algorithm,
                               const TokenShares& tokens) {
  for (const Met& m : met_)
    if (m.of == load.of && m.per_node == per_node && m.algorithm == algorithm && m.tokens == tokens &&
        m.rows.size() == load.rows.size() &&
        std::memcmp(m.rows.data(), load.rows.data(), load.rows.size() * sizeof(double)) == 0)
      return m.skew;
  Met& m = met_[next_++ % kMost];
  m = {load.of, load.rows, per_node, algorithm, tokens, exchange_skew(load, per_node, algorithm, tokens)};
  return m.skew;
}

void skew(const ExchangeSkew& by, CollectiveCost& cost) {
  const double before = cost.moving_seconds(cost.inter_seconds);
  cost.intra_seconds *= by.inside;
  cost.inter_seconds *= by.between;
  cost.inter_bound = cost.inter_seconds > cost.intra_seconds;
  const double after = cost.moving_seconds(cost.inter_seconds);
  const double seconds =
      after < before ? cost.seconds - (before - after) : std::max(cost.seconds, cost.latency_seconds + after);
  cost.bus_bytes_per_second *= cost.seconds / seconds;
  cost.seconds = seconds;
}

std::vector<double> rows_of_text(const std::string& text, std::int64_t members) {
  std::vector<double> rows;
  std::string number;
  for (std::istringstream numbers(text); std::getline(numbers, number, ',');) {
    char* end = nullptr;
    const double value = std::strtod(number.c_str(), &end);
    if (number.empty() || *end != '\0' || !std::isfinite(value) || value < 0)
      throw InputError({"--rows", ""}, "\"" + number + "\"", "numbers of at least 0, separated by commas");
    rows.push_back(value);
  }
  if (static_cast<std::int64_t>(rows.size()) != members * members || *std::ranges::max_element(rows) == 0)
    throw InputError(
        {"--rows", ""}, std::to_string(rows.size()) + " numbers",
        std::to_string(members) + " x " + std::to_string(members) + ", one from each rank to each rank, not all 0");
  return rows;
}

}  // namespace orrery
