// Does every document lie on ranks that have room for it, and does attention zone by zone meet all of it?
#include "strategies/zeppelin/zeppelin.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <string>

#include "sim/analytical/op_cost.h"
#include "sim/base/error.h"
#include "sim/cost/calibration.h"
#include "sim/cost/collective_calibration.h"
#include "sim/cost/exchange_skew.h"
#include "sim/program/check.h"
#include "sim/program/redistribute.h"
#include "sim/program/work.h"
#include "tests/strategies/divided_sequences.h"
#include "tests/strategies/support.h"

namespace orrery {
namespace {

using testing::HasSubstr;
using zeppelin::Options;
using zeppelin::Partition;
using zeppelin::PartitionRule;

std::vector<std::int64_t> ends_of(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> ends(lengths.size());
  std::partial_sum(lengths.begin(), lengths.end(), ends.begin());
  return ends;
}

// One batch of documents on 16 ranks of two nodes.
Scenario batch(PartitionRule rule = PartitionRule::zones, const char* model = "llama-2-7b") {
  Scenario s = divided(model, 16, "zeppelin");
  s.cluster.nodes = 2;
  s.workload.global_batch_size = 1;
  s.workload.documents = "paper-en";
  s.plan.zeppelin.partition = rule;
  return s;
}

void expect_each_position_once(const std::vector<RunsOfParts>& of_zones, std::int64_t whole) {
  std::vector<int> held(static_cast<std::size_t>(whole), 0);
  for (const auto& of_ranks : of_zones)
    for (const auto& runs : of_ranks)
      for (const IndexRange& run : runs)
        for (std::int64_t i = 0; i < run.count; ++i) ++held.at(static_cast<std::size_t>(run.at(i)));
  EXPECT_EQ(std::ranges::count(held, 1), whole);
}

TEST(Zeppelin, EveryPositionLiesOnOneRankWhereverItIs) {
  for (std::int64_t seed = 1; seed <= 20; ++seed)
    for (const PartitionRule rule :
         {PartitionRule::zones, PartitionRule::hybrid, PartitionRule::even, PartitionRule::flexsp}) {
      Scenario s = batch(rule);
      s.workload.documents_seed = seed;
      s.workload.documents = seed % 2 == 0 ? "code" : "paper-en";
      const Partition p = zeppelin::partition_of(s);
      std::vector<RunsOfParts> zones;
      for (const zeppelin::Zone& zone : p.zones) zones.push_back(zone.of_rank);
      expect_each_position_once(zones, 65536);
      expect_each_position_once({p.at_home}, 65536);
      for (const auto& runs : p.at_home) EXPECT_EQ(rows_of(runs), 65536 / 16);
    }
}

// Rings that go to the next size have their place in it, too.
TEST(Zeppelin, RingsOfManySizesBecomeAFew) {
  const std::vector<std::int64_t> lengths{64500, 32200, 16100, 8100, 4050, 2020, 1010, 20};  // a size of rings each
  const zeppelin::Ranks ranks = zeppelin::ranks_of(128, 8);
  const Partition p = partition({.partition = PartitionRule::hybrid}, ends_of(lengths), ranks, {});
  EXPECT_EQ(p.zones.size(), zeppelin::kMostZones);
  std::vector<RunsOfParts> zones;
  std::vector<std::int64_t> rings;
  for (const zeppelin::Zone& zone : p.zones) {
    zones.push_back(zone.of_rank);
    rings.push_back(zone.ring);
    for (const zeppelin::PlacedDocument& d : zone.documents) {
      EXPECT_EQ(d.first_rank % zone.ring, 0) << zone.ring;
      EXPECT_LE(d.first_rank + zone.ring, 128) << zone.ring;
    }
  }
  EXPECT_THAT(rings, testing::ElementsAre(128, 64, 32, 16, 8, 1));
  expect_each_position_once(zones, 128000);
  expect_each_position_once({p.at_home}, 128000);
}

// Two of three such documents fit whole into a node each. The longest goes over nodes, and not over one of them.
TEST(Zeppelin, ADocumentOverNodesIsOnMoreThanOne) {
  const Partition p = partition({.capacity = 1.25}, ends_of({2700, 2600, 2550, 150}), zeppelin::ranks_of(8, 4), {});
  std::vector<std::pair<std::int64_t, std::size_t>> zones;
  for (const zeppelin::Zone& zone : p.zones) zones.emplace_back(zone.ring, zone.documents.size());
  ASSERT_THAT(zones, testing::ElementsAre(std::pair(8, 1), std::pair(4, 2), std::pair(1, 1)));
  const zeppelin::PlacedDocument& over = p.zones[0].documents[0];
  EXPECT_EQ(over.end - over.begin, 2700);
}

// The hard limit is that of a rank; chunks are equal but for a token each.
TEST(Zeppelin, NoRankAttendsWithMoreThanItsRoom) {
  for (std::int64_t seed = 1; seed <= 20; ++seed)
    for (const double capacity : {1.0, 1.25, 2.0}) {
      Scenario s = batch();
      s.workload.documents_seed = seed;
      s.plan.zeppelin.capacity = capacity;
      const Partition p = zeppelin::partition_of(s);
      std::vector<std::int64_t> tokens(16, 0);
      std::size_t documents = 0;
      for (const zeppelin::Zone& zone : p.zones) {
        documents += zone.documents.size();
        for (std::size_t r = 0; r < tokens.size(); ++r) tokens[r] += rows_of(zone.of_rank[r]);
      }
      EXPECT_LE(*std::ranges::max_element(tokens),
                static_cast<std::int64_t>(capacity * 4096) + 2 * static_cast<std::int64_t>(documents));
    }
}

// A document that fills half of the batch goes over both nodes; equal short ones stay whole, as many on each rank.
TEST(Zeppelin, DocumentsGoWhereTheirLengthSays) {
  const zeppelin::Ranks ranks = zeppelin::ranks_of(16, 8);
  const Partition p = partition({.capacity = 1.25}, ends_of([] {
                                  std::vector<std::int64_t> lengths{49152};
                                  lengths.resize(17, 1024);
                                  return lengths;
                                }()),
                                ranks, {});
  ASSERT_EQ(p.zones.size(), 2u);
  EXPECT_EQ(p.zones[0].ring, 16);
  EXPECT_EQ(p.zones[1].ring, 1);
  for (const auto& runs : p.zones[1].of_rank) EXPECT_EQ(rows_of(runs), 1024);
  // Megatron-LM, hybrid_cp_schedule.py: the least power of two of ranks that have room.
  const Partition hybrid =
      partition({.partition = PartitionRule::hybrid},
                ends_of({20000, 9000, 4096, 4095, 8193, 65536 - 20000 - 9000 - 4096 - 4095 - 8193}), ranks, {});
  for (const zeppelin::Zone& zone : hybrid.zones)
    for (const zeppelin::PlacedDocument& d : zone.documents) {
      EXPECT_LE(d.end - d.begin, zone.ring * 4096);
      EXPECT_GT(d.end - d.begin, zone.ring / 2 * 4096);
      EXPECT_EQ(d.first_rank % zone.ring, 0);
    }
}

// What a partition is estimated to take, from where its documents lie: of the rank that takes the longest each document
// the longer of computing and sending, and what moves of the rank or the node that has the most.
double seconds_of(const Partition& p, const zeppelin::Ranks& ranks, const zeppelin::Rates& rates, bool remapping) {
  const auto count = static_cast<std::size_t>(ranks.count), of_node = static_cast<std::size_t>(ranks.of_node);
  std::vector<double> attends(count), computes(count), tokens(count), nodes(count / of_node);
  for (const zeppelin::Zone& zone : p.zones)
    for (const zeppelin::PlacedDocument& d : zone.documents) {
      const auto length = static_cast<double>(d.end - d.begin), ring = static_cast<double>(zone.ring);
      const double key = zone.ring > ranks.of_node ? rates.seconds_per_key_between : rates.seconds_per_key_in_node;
      for (std::int64_t r = d.first_rank; r < d.first_rank + zone.ring; ++r) {
        const auto rank = static_cast<std::size_t>(r);
        attends[rank] +=
            std::max(length * length / 2 / ring * rates.seconds_per_pair, length / ring * (ring - 1) * key);
        tokens[rank] += length / ring;
        nodes[rank / of_node] += length / ring;
      }
    }
  if (!remapping) {
    for (std::size_t r = 0; r < count; ++r) computes[r] = attends[r] + tokens[r] * rates.seconds_per_token;
    return std::ranges::max(computes);
  }
  const double mean = std::accumulate(tokens.begin(), tokens.end(), 0.0) / static_cast<double>(count);
  return std::ranges::max(attends) +
         std::max({0.0, (std::ranges::max(tokens) - mean) * rates.seconds_per_moved_in_node,
                   (std::ranges::max(nodes) / static_cast<double>(of_node) - mean) * rates.seconds_per_moved_between});
}

// The capacity that is chosen is the best of those that are tried; each term makes it another one on some batch.
TEST(Zeppelin, ACapacityIsChosenByWhatItCosts) {
  const zeppelin::Ranks ranks = zeppelin::ranks_of(16, 8);
  // About those of Llama 2 7B on A100 with an adapter each.
  const zeppelin::Rates slow_links{.seconds_per_pair = 1.8e-10,
                                   .seconds_per_key_in_node = 1.6e-7,
                                   .seconds_per_key_between = 2e-6,
                                   .seconds_per_moved_in_node = 2.2e-7,
                                   .seconds_per_moved_between = 2.6e-6,
                                   .seconds_per_token = 3.9e-6};
  zeppelin::Rates slow_nodes = slow_links;
  slow_nodes.seconds_per_key_in_node = slow_nodes.seconds_per_moved_in_node = 2e-6;
  struct Term {
    double zeppelin::Rates::*rate;
    bool remapping = true;
    int turns = 0;
  };
  std::vector<Term> terms{{&zeppelin::Rates::seconds_per_pair},          {&zeppelin::Rates::seconds_per_key_in_node},
                          {&zeppelin::Rates::seconds_per_key_between},   {&zeppelin::Rates::seconds_per_moved_in_node},
                          {&zeppelin::Rates::seconds_per_moved_between}, {&zeppelin::Rates::seconds_per_token, false}};
  for (std::int64_t seed = 1; seed <= 40; ++seed)
    for (const zeppelin::Rates& rates : {slow_links, slow_nodes}) {
      Scenario s = batch();
      s.workload.documents = seed % 2 == 0 ? "code" : "paper-en";
      s.workload.documents_seed = seed;
      const auto packed = packed_sequences(s);
      const auto seconds = [&](const Options& options, const zeppelin::Rates& by, bool remapping) {
        return seconds_of(partition(options, packed->ends_of(0), ranks, by), ranks, rates, remapping);
      };
      for (const bool remapping : {true, false}) {
        double least = std::numeric_limits<double>::infinity();
        for (int eighths = 8; eighths <= 16; ++eighths)
          least = std::min(least, seconds({.capacity = eighths / 8.0}, {}, remapping));
        EXPECT_NEAR(seconds({.remapping = remapping}, rates, remapping), least, 1e-9 * least) << seed;
        for (Term& term : terms) {
          if (term.remapping != remapping) continue;
          zeppelin::Rates without = rates;
          without.*term.rate = 0;
          term.turns += seconds({.remapping = remapping}, without, remapping) > 1.001 * least ? 1 : 0;
        }
      }
    }
  for (const Term& term : terms) EXPECT_GT(term.turns, 0) << &term - terms.data();
}

// What a node lacks all its ranks get that lack anything, each over its NIC, whatever comes from their own node.
TEST(Zeppelin, WhatMovesBetweenNodesIsSpreadOverRanks) {
  const zeppelin::Ranks ranks = zeppelin::ranks_of(16, 8);
  // On the first node 16,748 tokens on all ranks and 11,462 on four of them, which then have more than the mean.
  const Partition p = partition({.capacity = 1.25}, ends_of({16748, 8787, 11462, 14909, 13630}), ranks, {});
  std::vector<RowsOfParts> zones;
  for (const zeppelin::Zone& zone : p.zones) zones.push_back({&zone.of_rank});
  const std::vector<double> moved = moved_rows(zones, {&p.at_home});
  std::vector<double> in_node(8, 0), between(8, 0);
  for (std::size_t to = 0; to < 8; ++to)
    for (std::size_t from = 0; from < 16; ++from)
      if (from != to) (from < 8 ? in_node : between)[to] += moved[from * 16 + to];
  constexpr std::int64_t kLacks = 65536 / 2 - 16748 - 11462;
  for (std::size_t rank = 0; rank < 8; ++rank) {
    EXPECT_NEAR(between[rank], rank < 4 ? 0 : kLacks / 4.0, 1) << rank;
    EXPECT_EQ(in_node[rank] > 0, rank >= 4) << rank;
  }
}

// What ops of a Program take, with the bundled calibrations.
class Costs {
 public:
  Costs(const Scenario& s, const Program& p)
      : kernels_(find_calibration(s.cluster.device)),
        collectives_(find_collective_calibration(s.cluster)),
        costs_(s.cluster, kernels_, collectives_) {
    costs_.set_program(p);
  }
  const OpCostModel* operator->() const { return &costs_; }

 private:
  const Calibration kernels_;
  const CollectiveCalibration collectives_;
  OpCostModel costs_;
};

std::int64_t slowest_rank(const Scenario& s, const Program& p) { return Costs(s, p)->slowest_rank(); }

// Of all zones together, not of each the one with the most.
TEST(Zeppelin, TheRankWithTheMostPairsIsTheSlowest) {
  for (std::int64_t seed = 1; seed <= 6; ++seed) {
    Scenario s = batch();
    s.workload.documents_seed = seed;
    s.plan.zeppelin.capacity = 2;
    std::vector<double> pairs(16, 0);
    for (const zeppelin::Zone& zone : zeppelin::partition_of(s).zones)
      for (const zeppelin::PlacedDocument& d : zone.documents)
        for (std::int64_t r = d.first_rank; r < d.first_rank + zone.ring; ++r)
          pairs[static_cast<std::size_t>(r)] +=
              static_cast<double>((d.end - d.begin) * (d.end - d.begin)) / 2 / static_cast<double>(zone.ring);
    const Program p = lowered_of(s);
    const std::int64_t slowest = slowest_rank(s, p);
    ASSERT_GE(slowest, 0);
    EXPECT_GE(pairs[static_cast<std::size_t>(slowest)], 0.999 * std::ranges::max(pairs)) << seed;
  }
  Scenario ring = batch();
  ring.plan.context.type = context_parallel::type_named("ring");
  EXPECT_EQ(slowest_rank(ring, lowered_of(ring)), -1);
}

// What ranks give each other is unequal, and between ranks of a node takes the time of its links.
TEST(Zeppelin, ExchangesTakeTheTimeOfTheirLoads) {
  for (const PartitionRule rule : {PartitionRule::zones, PartitionRule::flexsp}) {
    Scenario s = batch(rule);
    s.cluster.nodes = 1;
    s.cluster.node.devices = 16;
    s.plan.zeppelin.remapping = rule == PartitionRule::zones;
    int unequal = 0;
    const auto seconds = [&](double times) {
      Scenario at = s;
      at.cluster.node.intra_bytes_per_second *= times;
      const Program p = lowered_of(at);
      const Costs costs(at, p);
      const Piece& layer = piece_named(p, "layer");
      double sum = 0;
      for (const Op& op : layer.forward.ops)
        if (op.kind == OpKind::redistribute) {
          unequal += op.load.has_value() ? 1 : 0;
          sum += costs->cost(op, layer.tensors, 1).seconds;
        }
      return sum;
    };
    EXPECT_GT(seconds(0.25), 2 * seconds(1));
    EXPECT_GT(unequal, 0);
  }
}

// Each step of a training lays other documents: as many steps as one likes, as none leaves its tables behind.
TEST(Zeppelin, TablesOfAStepDieWithItsProgram) {
  Scenario s = divided("llama-2-7b", 8, "zeppelin");
  s.cluster.nodes = 1;
  s.workload.global_batch_size = 1;
  s.workload.sequence_length = 2048;
  s.workload.documents = "log-normal:4:1";
  Program p;
  constexpr std::size_t kMoreThanNumbers = 1 << 14;  // of fourteen bits
  for (std::size_t tables = 0; tables <= kMoreThanNumbers; tables += p.tables.count()) {
    ++s.workload.documents_seed;
    ASSERT_NO_THROW(lower(s, p)) << tables;
    ASSERT_LE(p.tables.count(), 5u);
  }
}

// Rows that stay on their rank are no part of an exchange, however many; of experts' an exchange has the mean at least.
TEST(Zeppelin, WhatStaysIsNotExchanged) {
  Load load{.of = RowsOf::positions, .group = {}, .ranks = 4, .rows = {}};
  for (int from = 0; from < 4; ++from)
    for (int to = 0; to < 4; ++to) load.rows.push_back(from == to ? 3.7 : 0.1);
  EXPECT_NEAR(exchange_skew(load, 4, CollectiveAlgorithm::direct, {}).inside, 0.1, 1e-9);
  load.of = RowsOf::tokens;
  EXPECT_NEAR(exchange_skew(load, 4, CollectiveAlgorithm::direct, {}).inside, 1, 1e-9);
}

// A rank takes its share of kernels over rows that it lacks, but waits for the whole of what a ring adds up.
TEST(Zeppelin, SumsOfARingWaitForItsFullestRank) {
  int merges = 0, shares = 0;
  for (std::int64_t seed = 1; seed <= 6; ++seed) {
    Scenario s = batch();
    s.workload.documents = "code";
    s.workload.documents_seed = seed;
    s.plan.zeppelin.remapping = false;
    const Program p = lowered_of(s);
    const Costs costs(s, p);
    const Piece& layer = piece_named(p, "layer");
    for (const Op& op : layer.forward.ops) {
      const auto rows = costs->dealt_rows(op, layer.tensors);
      if (!rows || filled_share(rows->deal, rows->over, p.mesh, costs->slowest_rank()) == 1) continue;
      const double charged = costs->charged_share(op, layer.tensors);
      if (op.kind == OpKind::merge_attention) {
        EXPECT_EQ(charged, 1);
        ++merges;
      } else {
        EXPECT_LT(charged, 1);
        ++shares;
      }
    }
  }
  EXPECT_GT(merges, 0);
  EXPECT_GT(shares, 0);
}

TEST(Zeppelin, IsProvenForEveryRuleAndPlan) {
  for (const PartitionRule rule :
       {PartitionRule::zones, PartitionRule::hybrid, PartitionRule::even, PartitionRule::flexsp})
    for (const char* model : {"llama-2-7b", "llama-3-8b"})
      for (const std::int64_t tensor : {1, 2})
        for (const bool remapping : {true, false}) {
          Scenario s = batch(rule, model);
          s.plan.tensor.degree = tensor;
          s.plan.context.degree = 16 / tensor;
          s.plan.tensor.sequence_parallel = tensor > 1;
          s.plan.zeppelin.remapping = remapping;
          const auto found = check(lowered_of(s));
          EXPECT_TRUE(found.empty()) << found.front().text;
        }
}

// Transformer Engine's context parallelism: every rank passes on its part of all keys, whatever the documents are.
TEST(Zeppelin, EvenMovesWhatOneRingDoes) {
  const Program even = lowered_of(batch(PartitionRule::even));
  const Piece& layer = piece_named(even, "layer");
  double elements = 0;
  for (const Op& op : layer.forward.ops)
    if (op.kind == OpKind::ring_shift) elements += bytes(op, layer.tensors) / 2;
  EXPECT_DOUBLE_EQ(elements, 2 * kBsh / 16 * 15);
  for (const Op& op : layer.forward.ops) EXPECT_TRUE(op.kind != OpKind::redistribute || op.is_alone()) << op.name;
}

TEST(Zeppelin, RingsAreOfAsManyRanksAsDocumentsNeed) {
  const Program p = lowered_of(batch());
  const Partition partition = zeppelin::partition_of(batch());
  const Piece& layer = piece_named(p, "layer");
  std::size_t calls = 0, expected = 0;
  for (const Op& op : layer.forward.ops)
    if (op.kind == OpKind::ring_shift) {
      ++calls;
      EXPECT_EQ(op.algorithm == CollectiveAlgorithm::hierarchical, p.mesh.size(op.group) > 8);
    }
  for (const zeppelin::Zone& zone : partition.zones) expected += static_cast<std::size_t>(zone.ring - 1);
  EXPECT_EQ(calls, expected);
  // The mean of a rank's rows, as wide as the tensor that moves.
  for (const Op& op : layer.forward.ops)
    if (op.name == std::string_view("remap.context") && !op.is_alone()) {
      EXPECT_DOUBLE_EQ(bytes(op, layer.tensors), 65536.0 / 16 * 4096 * 2);
    }
  double most = 0;
  for (const Load& load : p.loads) {
    EXPECT_EQ(load.ranks, 16);
    most = std::max(most, *std::ranges::max_element(load.rows));
  }
  EXPECT_GT(most, 1);
}

// What a group of ranks that exchange has to do: attention, other layers and exchanges of its documents.
double seconds_of_group(const std::vector<std::int64_t>& lengths, std::int64_t ring, const zeppelin::Ranks& ranks,
                        const zeppelin::Rates& rates) {
  const double n = static_cast<double>(ring), in_node = static_cast<double>(std::min(ring, ranks.of_node));
  double seconds = 0;
  for (const std::int64_t length : lengths) {
    const auto s = static_cast<double>(length);
    seconds += (s * s / 2 * rates.seconds_per_pair + s * rates.seconds_per_token +
                s * std::max((in_node - 1) / n * rates.seconds_per_moved_in_node,
                             (n - in_node) / n * rates.seconds_per_moved_between)) /
               n;
  }
  return seconds;
}

// The least that the slowest group can take, of all sizes of groups and all documents in them.
double best_of_all(const std::vector<std::int64_t>& lengths, const zeppelin::Ranks& ranks, const zeppelin::Rates& rates,
                   double capacity) {
  double best = std::numeric_limits<double>::infinity();
  std::vector<std::pair<std::int64_t, std::vector<std::int64_t>>> groups;
  const std::function<void(std::size_t, std::int64_t)> place = [&](std::size_t d, std::int64_t left) {
    if (d == lengths.size()) {
      double slowest = 0;
      for (const auto& [ring, of_group] : groups)
        slowest = std::max(slowest, seconds_of_group(of_group, ring, ranks, rates));
      best = std::min(best, slowest);
      return;
    }
    for (std::size_t g = 0; g < groups.size(); ++g) {
      groups[g].second.push_back(lengths[d]);
      const std::int64_t tokens = std::accumulate(groups[g].second.begin(), groups[g].second.end(), std::int64_t{0});
      if (static_cast<double>(tokens) <= capacity * static_cast<double>(groups[g].first)) place(d + 1, left);
      groups[g].second.pop_back();
    }
    for (const std::int64_t ring : ranks.rings) {
      if (ring > ranks.most_exchanging || ring > left) break;
      if (static_cast<double>(lengths[d]) > capacity * static_cast<double>(ring)) continue;
      groups.push_back({ring, {lengths[d]}});
      place(d + 1, left - ring);
      groups.pop_back();
    }
  };
  place(0, ranks.count);
  return best;
}

// FlexSP's program, solved by trying everything; and what its groups have to obey.
TEST(Zeppelin, GroupsOfFlexspAreNearlyTheBest) {
  zeppelin::Ranks ranks = zeppelin::ranks_of(8, 4);
  ranks.most_exchanging = 8;
  const zeppelin::Rates rates{.seconds_per_pair = 1.8e-10,
                              .seconds_per_key_in_node = 0,
                              .seconds_per_key_between = 0,
                              .seconds_per_moved_in_node = 2.2e-7,
                              .seconds_per_moved_between = 2.6e-6,
                              .seconds_per_token = 3.9e-6};
  double gaps = 0, most = 0;
  const std::vector<std::vector<std::int64_t>> batches{
      {20000, 6000, 3000, 2000, 1000, 768}, {9000, 8000, 7000, 5000, 2000, 1768},   {30000, 1000, 900, 868},
      {5000, 5000, 5000, 5000, 5000, 7768}, {12000, 12000, 4000, 2000, 1500, 1268}, {16384, 8192, 4096, 2048, 2048}};
  for (const std::vector<std::int64_t>& lengths : batches) {
    const Partition p = partition({.partition = PartitionRule::flexsp}, ends_of(lengths), ranks, rates);
    double slowest = 0;
    std::vector<int> zones_of_rank(8, 0);
    for (const zeppelin::Zone& zone : p.zones) {
      std::map<std::int64_t, std::vector<std::int64_t>> groups;
      for (const zeppelin::PlacedDocument& d : zone.documents) {
        EXPECT_EQ(d.first_rank % zone.ring, 0);
        groups[d.first_rank].push_back(d.end - d.begin);
      }
      for (const auto& [first, of_group] : groups) {
        const std::int64_t tokens = std::accumulate(of_group.begin(), of_group.end(), std::int64_t{0});
        EXPECT_LE(tokens, 2 * 4096 * zone.ring);
        slowest = std::max(slowest, seconds_of_group(of_group, zone.ring, ranks, rates));
        for (std::int64_t r = first; r < first + zone.ring; ++r) {
          ++zones_of_rank[static_cast<std::size_t>(r)];
          EXPECT_NEAR(static_cast<double>(rows_of(zone.of_rank[static_cast<std::size_t>(r)])),
                      static_cast<double>(tokens) / static_cast<double>(zone.ring), 1);
        }
      }
    }
    EXPECT_LE(std::ranges::max(zones_of_rank), 1) << "a rank is in one group";
    const double gap = slowest / best_of_all(lengths, ranks, rates, 2 * 4096) - 1;
    EXPECT_GE(gap, -1e-9);
    most = std::max(most, gap);
    gaps += gap;
  }
  EXPECT_LT(most, 0.25);
  EXPECT_LT(gaps / static_cast<double>(batches.size()), 0.1);
}

TEST(Zeppelin, ShiftsBetweenNodesAreRoutedAndNoOthers) {
  for (const bool routing : {true, false}) {
    Scenario s = batch(PartitionRule::even);
    s.plan.zeppelin.routing = routing;
    const Program between = lowered_of(s);
    s.cluster.nodes = 1;
    s.cluster.node.devices = 16;
    const Program within = lowered_of(s);
    const auto shifts_of = [](const Program& program) {
      int shifts = 0, routed = 0;
      const Piece& layer = piece_named(program, "layer");
      for (const Block* block : {&layer.forward, &layer.backward})
        for (const Op& op : block->ops)
          if (op.kind == OpKind::ring_shift) {
            ++shifts;
            routed += op.algorithm == CollectiveAlgorithm::hierarchical ? 1 : 0;
          }
      EXPECT_GT(shifts, 0);
      return std::pair{routed, shifts};
    };
    EXPECT_EQ(shifts_of(between).first, routing ? shifts_of(between).second : 0);
    EXPECT_EQ(shifts_of(within).first, 0);
  }
}

// Three groups of two have no room for less, and leave two ranks.
TEST(Zeppelin, RanksThatAreLeftJoinAGroupOfFlexsp) {
  zeppelin::Ranks ranks = zeppelin::ranks_of(8, 8);
  ranks.most_exchanging = 8;
  const zeppelin::Rates rates{.seconds_per_pair = 1e-9, .seconds_per_token = 1e-6};
  const Partition p = partition({.partition = PartitionRule::flexsp}, ends_of({4096, 4096, 4096}), ranks, rates);
  std::int64_t used = 0;
  for (const zeppelin::Zone& zone : p.zones) used += zone.ring * static_cast<std::int64_t>(zone.documents.size());
  EXPECT_EQ(used, 8);
}

// Twice the ranks halve a document's work, but for what then crosses from node to node.
TEST(Zeppelin, GroupsOfFlexspCrossNodesWhereTheirLinksAreFastEnough) {
  zeppelin::Ranks ranks = zeppelin::ranks_of(8, 4);
  ranks.most_exchanging = 8;
  const auto ring = [&](double seconds_per_moved_between) {
    const zeppelin::Rates rates{.seconds_per_pair = 1.8e-10,
                                .seconds_per_key_in_node = 0,
                                .seconds_per_key_between = 0,
                                .seconds_per_moved_in_node = 2.2e-7,
                                .seconds_per_moved_between = seconds_per_moved_between,
                                .seconds_per_token = 3.9e-6};
    const Partition p = partition({.partition = PartitionRule::flexsp}, ends_of({8192}), ranks, rates);
    return p.zones.empty() ? 0 : p.zones[0].ring;
  };
  EXPECT_EQ(ring(2.2e-7), 8);
  EXPECT_EQ(ring(1e-4), 4);
}

// The ranks that positions give up are those that heads take, and no others.
TEST(Zeppelin, HeadsTakeTheRanksOfPositionsAlone) {
  Scenario s = batch(PartitionRule::flexsp);
  s.workload.documents = "code";
  s.plan.zeppelin.remapping = false;
  const Program p = lowered_of(s);
  const Piece& layer = piece_named(p, "layer");
  int changed = 0;
  for (const Op& op : layer.forward.ops) {
    if (op.name != std::string_view("exchange.queries") || op.is_alone()) continue;
    const Tensor* const from = &layer.tensors[op.reads[0]];
    const Tensor& to = layer.tensors[op.writes[0]];
    EXPECT_TRUE(redistribution(p.mesh, std::span(&from, 1), to));
    const int positions = to.find(Axis::sequence);
    for (int d = 0; d < to.rank; ++d) {
      if (d == positions || to.over[d] == from->over[d] || to.over[positions].empty()) continue;
      Tensor other = to;
      other.over[d] = to.over[positions];
      EXPECT_FALSE(redistribution(p.mesh, std::span(&from, 1), other));
      ++changed;
    }
  }
  EXPECT_GT(changed, 0);
}

// Each rank has all of its group's positions in attention, of its own heads, and sends of each tensor what the others
// of its group are to have.
TEST(Zeppelin, GroupsOfFlexspExchangeHeads) {
  Scenario s = batch(PartitionRule::flexsp);
  s.workload.documents = "code";
  s.plan.zeppelin.remapping = false;
  const Program p = lowered_of(s);
  const Partition partition = zeppelin::partition_of(s);
  const Piece& layer = piece_named(p, "layer");
  std::size_t attentions = 0;
  for (const Op& op : layer.forward.ops) {
    EXPECT_NE(op.kind, OpKind::ring_shift);
    if (op.kind != OpKind::attention) continue;
    const std::int64_t ring = partition.zones.at(attentions++).ring;
    EXPECT_EQ(op.parts, 16 / ring);
    EXPECT_EQ(attention_shape(op, layer.tensors).heads, 32 / ring);
  }
  EXPECT_EQ(attentions, partition.zones.size());
  ASSERT_GT(attentions, 1u);
  std::vector<std::int64_t> exchanging, groups;
  for (const zeppelin::Zone& zone : partition.zones)
    if (zone.ring > 1) exchanging.push_back(zone.ring);
  for (const Op& op : layer.forward.ops)
    if (op.name == std::string_view("exchange.queries") && !op.is_alone()) groups.push_back(p.mesh.size(op.group));
  EXPECT_EQ(groups, exchanging) << "no more ranks than exchange";
  for (std::size_t z = 0; z < partition.zones.size(); ++z) {
    const zeppelin::Zone& zone = partition.zones[z];
    const auto load = std::ranges::find_if(p.loads, [&](const Load& l) {
      for (std::int64_t a = 0; a < 16; ++a)
        for (std::int64_t b = 0; b < 16; ++b)
          if ((l.at(a, b) > 0) !=
              (a / zone.ring == b / zone.ring && rows_of(zone.of_rank[static_cast<std::size_t>(a)]) > 0))
            return false;
      return true;
    });
    EXPECT_EQ(load == p.loads.end(), zone.ring == 1) << "what stays where it is is no load";
    if (load == p.loads.end()) continue;
    for (std::int64_t a = 0; a < 16; ++a)
      for (std::int64_t b = 0; b < 16; ++b)
        if (load->at(a, b) > 0) {
          EXPECT_DOUBLE_EQ(load->at(a, b), load->at(a, a)) << "of each tensor as much to each of the group";
        }
  }
}

// One group of all ranks, whose parts tensor parallelism pads: positions are then divided over no rank.
TEST(Zeppelin, AGroupOfAllRanksHasAllPositions) {
  Scenario s = batch(PartitionRule::flexsp);
  s.plan.tensor.degree = 2;
  s.plan.context.degree = 8;
  s.workload.sequence_length = 32776;
  s.workload.documents = "log-normal:12:0.1";
  const Program p = lowered_of(s);
  ASSERT_EQ(zeppelin::partition_of(s).zones.front().ring, 8);
  EXPECT_TRUE(check(p).empty());
  const Piece& layer = piece_named(p, "layer");
  for (const Op& op : layer.forward.ops)
    if (op.kind == OpKind::attention) {
      EXPECT_EQ(op.parts, 1);
      EXPECT_EQ(layer.tensors[op.reads[0]].sizes[1], 32776);
    }
}

// Of layers with a window and without the rank is the slowest of all, and no kernel is above the device's peak.
TEST(Zeppelin, TheSlowestRankIsThatOfAllLayers) {
  for (const std::int64_t seed : {3, 4}) {
    Scenario s = batch(PartitionRule::hybrid);
    s.plan.zeppelin.remapping = false;
    s.model.sliding_window = 512;
    s.model.max_positions = s.workload.sequence_length = 262144;
    s.workload.documents = "code";
    s.workload.documents_seed = seed;
    const std::int64_t windowed = slowest_rank(s, lowered_of(s));
    s.model.full_attention_period = 2;
    const Program p = lowered_of(s);
    const std::int64_t of_both = slowest_rank(s, p);
    std::vector<double> pairs(16, 0);
    for (const zeppelin::Zone& zone : zeppelin::partition_of(s).zones)
      for (const zeppelin::PlacedDocument& d : zone.documents)
        for (std::int64_t r = d.first_rank; r < d.first_rank + zone.ring; ++r)
          pairs[static_cast<std::size_t>(r)] +=
              static_cast<double>((d.end - d.begin) * (d.end - d.begin)) / 2 / static_cast<double>(zone.ring);
    EXPECT_GE(pairs[static_cast<std::size_t>(of_both)], 0.999 * std::ranges::max(pairs)) << seed;
    EXPECT_LT(pairs[static_cast<std::size_t>(windowed)], 0.9 * std::ranges::max(pairs)) << seed;
    const Costs costs(s, p);
    const Piece& layer = piece_named(p, "layer");
    for (const Op& op : layer.forward.ops)
      if (is_matmul(op.kind)) {
        const OpCost cost = costs->cost(op, layer.tensors, 1);
        EXPECT_LT(cost.flops / cost.seconds, s.cluster.device.peak(Dtype::bf16));
      }
  }
}

// Layers have a load of their experts beside those of their documents, each over its own ranks.
TEST(Zeppelin, ExpertsHaveLoadsBesideDocuments) {
  Scenario s = batch(PartitionRule::zones, "mixtral-8x7b");
  s.workload.documents = "code";
  s.plan.expert.degree = 8;
  Program p = lowered_of(s);
  const std::size_t of_documents = p.loads.size();
  EXPECT_GT(of_documents, 0u);
  s.workload.routing = ExpertRouting::zipf;
  s.workload.routing_skew = 1;
  p = lowered_of(s);
  ASSERT_GT(p.loads.size(), of_documents);
  for (std::size_t load = 0; load < p.loads.size(); ++load) {
    EXPECT_EQ(p.loads[load].of, load < of_documents ? RowsOf::positions : RowsOf::tokens);
    EXPECT_EQ(p.mesh.size(p.loads[load].group), load < of_documents ? 16 : 8);
  }
  const Costs costs(s, p);
  for (const Piece& piece : p.pieces)
    for (const Op& op : piece.forward.ops)
      if (const Load* const load = costs->row_load(op, piece.tensors)) {
        const bool moves_documents = op.kind == OpKind::redistribute && op.load.has_value();
        EXPECT_EQ(load->of, moves_documents ? RowsOf::positions : RowsOf::tokens) << op.name;
      }
  s.plan.zeppelin.remapping = false;
  EXPECT_THROW(check(s), InputError);
}

// What ranks of a part give each other is what they give each other among all.
TEST(Zeppelin, LoadsOfPartsAreThoseBetweenTheirRanks) {
  Mesh mesh;
  mesh.add(MeshAxis::cp, 2);
  mesh.add(MeshAxis::cp, 2);
  Load load;
  load.of = RowsOf::positions;
  load.group = mesh.group(MeshAxis::cp);
  load.ranks = 4;
  for (int i = 0; i < 16; ++i) load.rows.push_back(i);
  const std::vector<Load> within = loads_within(load, mesh, MeshGroup::of_digit(0));
  ASSERT_EQ(within.size(), 2u);
  EXPECT_EQ(within[0].rows, (std::vector<double>{0, 0.5, 2, 2.5}));
  EXPECT_EQ(within[1].rows, (std::vector<double>{5, 5.5, 7, 7.5}));
  EXPECT_EQ(loads_within(load, mesh, MeshGroup::of_digit(1)).front().rows, (std::vector<double>{0, 1, 4, 5}));
}

// Without remapping a rank with fewer tokens takes less outside attention, and the slowest is that of all work
// together.
TEST(Zeppelin, RanksWithFewerTokensTakeLess) {
  int told_apart = 0;  // from the rank with the most tokens
  for (std::int64_t seed = 1; seed <= 8; ++seed) {
    Scenario s = batch(PartitionRule::flexsp);
    s.workload.documents = "code";
    s.workload.documents_seed = seed;
    s.plan.zeppelin.remapping = false;
    const Program p = lowered_of(s);
    std::vector<double> tokens(16, 0), pairs(16, 0);
    for (const zeppelin::Zone& zone : zeppelin::partition_of(s).zones)
      for (const zeppelin::PlacedDocument& d : zone.documents)
        for (std::int64_t r = d.first_rank; r < d.first_rank + zone.ring; ++r) {
          const auto length = static_cast<double>(d.end - d.begin), ring = static_cast<double>(zone.ring);
          tokens[static_cast<std::size_t>(r)] += length / ring;
          pairs[static_cast<std::size_t>(r)] += length * length / 2 / ring;
        }
    // Forward and backward of Llama 2 7B's layer, of 4096 and 11008: products of two, attention of 3.5 times its
    // forward, at the rate of products or less.
    const auto work = [&](std::size_t r, double slower) {
      return tokens[r] * 6 * (4 * 4096.0 * 4096 + 3 * 4096.0 * 11008) + pairs[r] * 3.5 * 4 * 4096 * slower;
    };
    if (slowest_rank(s, p) < 0) continue;  // one group of all ranks
    const auto slowest = static_cast<std::size_t>(slowest_rank(s, p));
    bool is_slowest = false;
    for (double slower = 1; slower < 2.5; slower += 0.1) {
      double most = 0;
      for (std::size_t r = 0; r < 16; ++r) most = std::max(most, work(r, slower));
      is_slowest = is_slowest || work(slowest, slower) >= 0.999 * most;
    }
    EXPECT_TRUE(is_slowest) << seed;
    told_apart += tokens[slowest] < 0.99 * std::ranges::max(tokens) ? 1 : 0;
    const Piece& layer = piece_named(p, "layer");
    const Op& product = *std::ranges::find_if(layer.forward.ops, [](const Op& op) { return is_matmul(op.kind); });
    const Tensor& x = layer.tensors[product.reads[0]];
    const int d = x.find(Axis::sequence);
    for (std::size_t r = 0; r < 16; ++r)
      EXPECT_NEAR(filled_share(x.deal(d), x.over[d], p.mesh, static_cast<std::int64_t>(r)),
                  tokens[r] / std::ranges::max(tokens), 2e-3);
  }
  EXPECT_GT(told_apart, 0);
}

// What a checker is for: a ring that goes over more ranks than meet, or that ends early.
TEST(Zeppelin, BrokenRingsAreFound) {
  const auto broken = [](auto&& how) {
    Program p = lowered_of(batch());
    for (Piece& piece : p.pieces)
      for (Op& op : piece.forward.ops) how(op);
    return check(p).size();
  };
  EXPECT_EQ(broken([](Op&) {}), 0u);
  EXPECT_GT(broken([](Op& op) {
              if (op.kind == OpKind::attention && op.inner_parts > 1) op.inner_parts *= 2;
            }),
            0u);
  EXPECT_GT(broken([](Op& op) {
              if (op.kind == OpKind::redistribute && !op.is_alone()) op.share *= 0.5;
            }),
            0u);
  EXPECT_GT(broken([](Op& op) {
              if (op.kind == OpKind::attention && op.keys_before > 0) op.keys_before -= 1;
            }),
            0u);
}

TEST(Zeppelin, UnequalTokensOutsideAttentionAreNotRun) {
  Scenario s = batch();
  s.plan.zeppelin.remapping = false;
  const Strategy& strategy = *std::ranges::find(all_strategies(), "zeppelin", &Strategy::name);
  EXPECT_THROW(strategy.check_runnable(s), InputError);
  s.plan.zeppelin.partition = PartitionRule::even;
  EXPECT_NO_THROW(strategy.check_runnable(s));
}

TEST(Zeppelin, RefusesWhatItCannotLay) {
  const auto refusal = [](auto&& change) {
    Scenario s = batch();
    change(s);
    return refusal_of(s);
  };
  EXPECT_THAT(refusal([](Scenario& s) { s.workload.documents.clear(); }), HasSubstr("places each on its own ranks"));
  EXPECT_THAT(refusal([](Scenario& s) { s.workload.global_batch_size = 2; }), HasSubstr("is one sequence"));
  EXPECT_THAT(refusal([](Scenario& s) {
                s.plan.zeppelin.partition = PartitionRule::even;
                s.plan.zeppelin.capacity = 2;
              }),
              HasSubstr("0 with zeppelin_partition \"even\""));
  EXPECT_THAT(refusal([](Scenario& s) {
                s.plan.zeppelin.partition = PartitionRule::flexsp;
                s.plan.zeppelin.routing = false;
              }),
              HasSubstr("no rings to route"));
  EXPECT_THAT(refusal([](Scenario& s) {
                s.plan.zeppelin.partition = PartitionRule::flexsp;
                s.model.kv_heads = 2;
              }),
              HasSubstr("groups of up to 2 ranks, which key/value heads limit"));
  EXPECT_THAT(refusal([](Scenario& s) {
                s.plan.context.type = context_parallel::type_named("ring");
                s.plan.zeppelin.routing = false;
              }),
              HasSubstr("found false, expected true without context_parallel_type \"zeppelin\""));
  EXPECT_THAT(refusal([](Scenario& s) {
                s.cluster.nodes = 3;
                s.workload.sequence_length = 12 * 4096;
                s.plan.context.degree = 12;
                s.plan.pipeline.degree = 2;
              }),
              HasSubstr("a multiple of the 8 ranks of a node"));
}

}  // namespace
}  // namespace orrery
