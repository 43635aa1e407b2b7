#include "sim/cost/exchange_skew.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <span>
#include <sstream>
#include <vector>

#include "sim/base/error.h"

namespace orrery {
namespace {

// By rank: the bytes that it sends and receives on one level.
class Level {
 public:
  explicit Level(std::int64_t ranks) : sent_(static_cast<std::size_t>(ranks)), got_(sent_.size()) {}
  void add(std::int64_t from, std::int64_t to, double rows) {
    sent_[static_cast<std::size_t>(from)] += rows;
    got_[static_cast<std::size_t>(to)] += rows;
  }
  // The largest bytes over the largest with balanced routing, but at least `mean`: the mean over all rows. `mean` if
  // balanced routing sends nothing here.
  double busiest_over(const Level& balanced, double mean) const {
    const double most = std::max(largest(sent_), largest(got_)),
                 usual = std::max(largest(balanced.sent_), largest(balanced.got_));
    return usual > 0 ? std::max(mean, most / usual) : mean;
  }

 private:
  static double largest(std::span<const double> all) { return *std::ranges::max_element(all); }
  std::vector<double> sent_, got_;
};

struct Levels {
  explicit Levels(std::int64_t ranks) : inside(ranks), between(ranks) {}
  Level inside, between;
};

// Caches share_of_tokens() by place, for one source after the other: most sources send the same, and powers are slow.
class Shares {
 public:
  Shares(double balanced, double choices, std::int64_t places)
      : balanced_(balanced), choices_(choices), rows_(static_cast<std::size_t>(places), -1), shares_(rows_.size()) {}
  double of(std::int64_t place, double rows) {
    const auto i = static_cast<std::size_t>(place);
    if (rows != rows_[i]) {
      rows_[i] = rows;
      shares_[i] = share_of_tokens(balanced_, choices_, rows);
    }
    return shares_[i];
  }

 private:
  double balanced_, choices_;
  std::vector<double> rows_, shares_;
};

// `rows(from, to)`: as in Load::rows.
template <class Rows>
void lay(std::int64_t ranks, std::int64_t per_node, CollectiveAlgorithm algorithm, const TokenShares& tokens,
         Rows&& rows, Levels& levels) {
  const auto node_of = [&](std::int64_t rank) { return rank / per_node; };
  const std::int64_t nodes = (ranks + per_node - 1) / per_node;
  if (algorithm == CollectiveAlgorithm::by_token) {
    Shares to_rank(tokens.to_rank, tokens.choices, ranks), to_nodes(tokens.to_node, tokens.choices, nodes);
    for (std::int64_t from = 0; from < ranks; ++from)
      for (std::int64_t node = 0; node < nodes; ++node) {
        const std::int64_t first = node * per_node, end = std::min(ranks, first + per_node);
        const std::int64_t door = std::min(first + from % per_node, end - 1);  // where the tokens enter
        double to_node = 0;
        for (std::int64_t to = first; to < end; ++to) {
          to_node += rows(from, to) / static_cast<double>(end - first);
          if (to != door) levels.inside.add(door, to, to_rank.of(to, rows(from, to)));
        }
        if (node != node_of(from)) levels.between.add(from, door, to_nodes.of(node, to_node));
      }
    return;
  }
  for (std::int64_t from = 0; from < ranks; ++from)
    for (std::int64_t to = 0; to < ranks; ++to) {
      if (algorithm == CollectiveAlgorithm::hierarchical) {
        // First to the local rank at the destination's place, then over that rank's NIC.
        const std::int64_t first = node_of(from) * per_node, here = std::min(per_node, ranks - first);
        const std::int64_t by = first + to % per_node % here;
        if (by != from) levels.inside.add(from, by, rows(from, to));
        if (node_of(from) != node_of(to)) levels.between.add(by, to, rows(from, to));
      } else if (from != to) {
        (node_of(from) == node_of(to) ? levels.inside : levels.between).add(from, to, rows(from, to));
      }
    }
}

}  // namespace

double share_of_tokens(double balanced, double choices, double rows) {
  const double meets = std::min(1.0, balanced * choices);
  return (1 - std::pow(1 - meets, rows)) / choices;
}

ExchangeSkew exchange_skew(const Load& load, std::int64_t per_node, CollectiveAlgorithm algorithm,
                           const TokenShares& tokens) {
  Levels skewed(load.ranks), balanced(load.ranks);
  lay(
      load.ranks, per_node, algorithm, tokens, [&](std::int64_t from, std::int64_t to) { return load.at(from, to); },
      skewed);
  lay(
      load.ranks, per_node, algorithm, tokens, [](std::int64_t, std::int64_t) { return 1.0; }, balanced);
  // What experts' rows do at least; of documents most rows may stay where they are.
  const double mean = load.of == RowsOf::tokens ? std::accumulate(load.rows.begin(), load.rows.end(), 0.0) /
                                                      static_cast<double>(load.rows.size())
                                                : 0;
  return {skewed.inside.busiest_over(balanced.inside, mean), skewed.between.busiest_over(balanced.between, mean)};
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
  const auto moving = [&] {
    return cost.in_sequence ? cost.intra_seconds + cost.inter_seconds
                            : std::max(cost.intra_seconds, cost.inter_seconds);
  };
  const double before = moving();
  cost.intra_seconds *= by.inside;
  cost.inter_seconds *= by.between;
  cost.inter_bound = cost.inter_seconds > cost.intra_seconds;
  const double after = moving();
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
