// Does every document lie on ranks that have room for it, and does attention zone by zone meet all of it?
#include "strategies/zeppelin/zeppelin.h"

#include <gmock/gmock.h>

#include <limits>
#include <numeric>
#include <string>

#include "sim/base/error.h"
#include "sim/program/check.h"
#include "sim/program/redistribute.h"
#include "strategies/packed_documents/packed_documents.h"
#include "tests/strategies/divided_sequences.h"

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
      for (const IndexRun& run : runs)
        for (std::int64_t i = 0; i < run.count; ++i) ++held.at(static_cast<std::size_t>(run.at(i)));
  EXPECT_EQ(std::ranges::count(held, 1), whole);
}

TEST(Zeppelin, EveryPositionLiesOnOneRankWhereverItIs) {
  for (std::int64_t seed = 1; seed <= 20; ++seed)
    for (const PartitionRule rule : {PartitionRule::zones, PartitionRule::hybrid, PartitionRule::even}) {
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
      const auto packed = packed_documents::sequences_of(s);
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
  std::vector<const RunsOfParts*> zones;
  for (const zeppelin::Zone& zone : p.zones) zones.push_back(&zone.of_rank);
  const std::vector<std::int64_t> moved = moved_rows(zones, p.at_home);
  std::vector<std::int64_t> in_node(8, 0), between(8, 0);
  for (std::size_t to = 0; to < 8; ++to)
    for (std::size_t from = 0; from < 16; ++from)
      if (from != to) (from < 8 ? in_node : between)[to] += moved[from * 16 + to];
  constexpr std::int64_t kLacks = 65536 / 2 - 16748 - 11462;
  for (std::size_t rank = 0; rank < 8; ++rank) {
    EXPECT_NEAR(static_cast<double>(between[rank]), rank < 4 ? 0 : kLacks / 4.0, 1) << rank;
    EXPECT_EQ(in_node[rank] > 0, rank >= 4) << rank;
  }
}

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
    const std::int64_t slowest = p.document_loads.front().slowest_part;
    ASSERT_GE(slowest, 0);
    EXPECT_GE(pairs[static_cast<std::size_t>(slowest)], 0.999 * std::ranges::max(pairs)) << seed;
  }
  EXPECT_EQ(lowered_of([] {
              Scenario s = batch();
              s.plan.context.type = context_parallel::type_named("ring");
              return s;
            }())
                .document_loads.front()
                .slowest_part,
            -1);
}

TEST(Zeppelin, IsProvenForEveryRuleAndPlan) {
  for (const PartitionRule rule : {PartitionRule::zones, PartitionRule::hybrid, PartitionRule::even})
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
              if (op.kind == OpKind::redistribute && !op.is_alone()) op.factor *= 0.5;
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
  EXPECT_THROW(zeppelin::check_runnable(s), InputError);
  s.plan.zeppelin.partition = PartitionRule::even;
  EXPECT_NO_THROW(zeppelin::check_runnable(s));
}

TEST(Zeppelin, RefusesWhatItCannotLay) {
  const auto refusal = [](auto&& change) -> std::string {
    Scenario s = batch();
    change(s);
    try {
      Program p;
      lower(s, p);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(refusal([](Scenario& s) { s.workload.documents.clear(); }), HasSubstr("lays each on ranks of its own"));
  EXPECT_THAT(refusal([](Scenario& s) { s.workload.global_batch_size = 2; }), HasSubstr("is one sequence"));
  EXPECT_THAT(refusal([](Scenario& s) {
                s.plan.zeppelin.partition = PartitionRule::even;
                s.plan.zeppelin.capacity = 2;
              }),
              HasSubstr("0 where documents are cut evenly"));
  EXPECT_THAT(refusal([](Scenario& s) {
                s.plan.context.type = context_parallel::type_named("ring");
                s.plan.zeppelin.routing = false;
              }),
              HasSubstr("nothing without context_parallel_type \"zeppelin\""));
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
