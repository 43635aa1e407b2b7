// Are the pairs (query, key) that FLOPs count those that a kernel sees, on every rank and in every step of a ring?
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "realrun/layout.h"
#include "sim/program/work.h"
#include "strategies/lower.h"
#include "strategies/read_scenario.h"
#include "tests/realrun/kernel_harness.h"

namespace orrery::cpu {
namespace {

constexpr std::int64_t kLength = 24;  // twice two, three and four ranks divide it

Scenario attention_scenario(const std::string& model, const std::string& plan) {
  nlohmann::json document = nlohmann::json::parse(R"({
    "model": {"layers": 1, "hidden": 8, "heads": 2, "vocab": 512, "max_positions": 24, "dropout": 0},
    "cluster": {"node": "dgx-h100", "nodes": 2}, "workload": {"sequence_length": 24, "global_batch_size": 1},
    "plan": {"precision": "fp32", "data_parallel": 1}})");
  document["model"].merge_patch(nlohmann::json::parse(model));
  document["plan"].merge_patch(nlohmann::json::parse(plan));
  return read_scenario(document, {});
}

std::vector<Op> attentions(const Piece& piece, const Block& block) {
  std::vector<Op> ops;
  if (std::string_view(piece.name) != "layer") return ops;
  for (const Op& op : block.ops)
    if (is_attention(op.kind)) ops.push_back(op);
  return ops;
}

// A kernel weighs equal scores alike: the log of the sum of exponentials of zeros is the log of how many keys a query
// sees.
std::int64_t seen_by_kernel(const Op& op, const Piece& piece, const realrun::Position& position) {
  const std::size_t first = op.kind == OpKind::attention_backward ? 3 : 0;
  const bool is_forward = op.kind == OpKind::attention;
  const Tensor& q = piece.tensors[op.reads[first]];
  const Tensor& context = piece.tensors[is_forward ? op.writes[0] : op.reads[1]];
  const Tensor& lse = piece.tensors[is_forward ? op.writes[1] : op.reads[2]];
  Op forward = op_of(OpKind::attention);
  forward.causal = op.causal, forward.window = op.window;
  const auto zeros = [](Tensor t) {
    t.alias_of = kNoTensor;
    return Operand{t, Values(static_cast<std::size_t>(t.elements()), 0.0f)};
  };
  std::vector<Operand> reads{zeros(q)};
  if (op.reads[first + 1] != kNoTensor) reads.push_back(zeros(piece.tensors[op.reads[first + 1]]));
  realrun::AttentionPositions at;
  KernelContext kernel;
  if (op.parts > 1) {
    at = realrun::attention_positions(op, piece, position);
    kernel.query_positions = at.queries, kernel.key_positions = at.keys;
  }
  const Values sums = call(forward, reads, {context, lse}, kernel)[1];
  std::int64_t seen = 0;
  for (const float sum : sums) seen += std::llround(std::exp(static_cast<double>(sum)));
  return seen;
}

struct Masked {
  const char* name;
  const char* model;
};
constexpr Masked kMasks[] = {
    {"causal", "{}"},
    {"causal, a window", R"({"sliding_window": 5})"},
    {"causal, a long window", R"({"sliding_window": 17})"},
    {"no mask", R"({"kind": "encoder", "token_types": 2, "pooler": false})"},
    {"a window", R"({"kind": "encoder", "token_types": 2, "pooler": false, "sliding_window": 6})"}};

void expect_counted_as_seen(const Masked& mask, const std::string& plan) {
  Program one, program;
  lower(attention_scenario(mask.model, "{}"), one);
  lower(attention_scenario(mask.model, plan), program);
  const std::string what = std::string(mask.name) + ", " + plan;
  std::int64_t whole = 0, parts = 0;
  for (const Piece& piece : one.pieces)
    for (const Op& op : attentions(piece, piece.forward)) {
      whole += seen_by_kernel(op, piece, realrun::position_of(0, one, kLength));
      EXPECT_EQ(attended_pairs(op, piece.tensors).seen * 2, whole) << what;
    }
  ASSERT_GT(whole, 0) << what;
  for (const Piece& piece : program.pieces)
    for (const Block* block : {&piece.forward, &piece.backward}) {
      std::vector<double> by_rank(static_cast<std::size_t>(program.mesh.ranks()));
      double charged = 0;  // in all steps together
      for (const Op& op : attentions(piece, *block)) {
        const AttentionShape shape = attention_shape(op, piece.tensors);
        const std::int64_t heads = shape.batch * shape.heads;
        const double counted = attended_pairs(op, piece.tensors).counted;
        charged += counted;
        for (std::int64_t rank = 0; rank < program.mesh.ranks(); ++rank) {
          const realrun::Position position = realrun::position_of(static_cast<std::size_t>(rank), program, kLength);
          const Tensor& q = piece.tensors[op.reads[op.kind == OpKind::attention ? 0 : 3]];
          const AttendedPairs pairs = attended_pairs(op, piece.tensors, position.part(q.over[1]));
          const std::int64_t seen = seen_by_kernel(op, piece, position);
          EXPECT_EQ(pairs.seen * heads, seen)
              << what << ", rank " << rank << ", keys of " << op.keys_before << " before";
          if (op.kind == OpKind::attention) parts += seen;
          by_rank[static_cast<std::size_t>(rank)] += pairs.counted;
        }
        const double products = op.kind == OpKind::attention ? 2 : 5;
        EXPECT_DOUBLE_EQ(flops(op, piece.tensors),
                         products * 2 * static_cast<double>(shape.head_dim * heads) * counted)
            << what;
      }
      EXPECT_EQ(charged, *std::max_element(by_rank.begin(), by_rank.end())) << what << ": the busiest rank's";
    }
  EXPECT_EQ(parts, whole) << what << ": every pair once";
}

TEST(AttendedPairs, AreThoseThatKernelsSeeOnEveryRankAndStepOfARing) {
  for (const Masked& mask : kMasks)
    for (const int ranks : {2, 3, 4})
      for (const char* balance : {"zigzag", "contiguous", "striped"})
        expect_counted_as_seen(mask, R"({"context_parallel": )" + std::to_string(ranks) +
                                         R"(, "context_parallel_balance": ")" + balance + "\"}");
}

TEST(AttendedPairs, AreThoseThatKernelsSeeOfGatheredKeys) {
  for (const Masked& mask : kMasks)
    for (const int ranks : {2, 3, 4})
      for (const char* balance : {"zigzag", "contiguous", "striped"})
        expect_counted_as_seen(mask, R"({"context_parallel_type": "all_gather", "context_parallel": )" +
                                         std::to_string(ranks) + R"(, "context_parallel_balance": ")" + balance +
                                         "\"}");
}

// Ranks that exchange heads see the same pairs of other heads.
TEST(AttendedPairs, AreThoseThatKernelsSeeOfExchangedHeads) {
  for (const Masked& mask : kMasks)
    for (const char* inner : {"true", "false"})
      for (const int ranks : {2, 4, 8})
        for (const char* balance : {"zigzag", "striped"})
          expect_counted_as_seen(mask, R"({"context_parallel_type": "usp", "ulysses_degree": 2, "context_parallel": )" +
                                           std::to_string(ranks) + R"(, "ulysses_inner": )" + inner +
                                           R"(, "context_parallel_balance": ")" + balance + "\"}");
}

// Blocks of two positions, of which ranks have any.
TEST(AttendedPairs, AreThoseThatKernelsSeeOfBlocksByATable) {
  for (const Masked& mask : kMasks)
    for (const char* blocks : {"2, [0, 1, 1, 1, 0, 1, 0, 0, 1, 0, 0, 1]", "3, [2, 2, 0, 1, 0, 1, 1, 2, 0, 0, 2, 1]",
                               "4, [3, 0, 0, 2, 1, 3, 1, 2, 2, 1, 3, 0]"})
      for (const char* type : {"ring", "all_gather"}) {
        const std::string text(blocks);
        expect_counted_as_seen(mask, R"({"context_parallel_type": ")" + std::string(type) +
                                         R"(", "context_parallel": )" + text.substr(0, 1) +
                                         R"(, "context_parallel_balance": "table",
                                         "context_parallel_blocks": )" +
                                         text.substr(3) + "}");
      }
}

// Documents of 24 positions: long ones, ones shorter than any part, one that ends where parts do.
constexpr std::array<std::int64_t, 6> kEnds{5, 6, 12, 13, 22, 24};

struct SeenWithinDocuments {
  double counted = 0;
  std::int64_t queries = 0;  // that see any key
};
// One pair after the other.
SeenWithinDocuments seen_within_documents(const Op& op, const Piece& piece, const realrun::Position& position) {
  const Tensor& q = piece.tensors[op.reads[op.kind == OpKind::attention_backward ? 3 : 0]];
  realrun::AttentionPositions at;
  if (op.parts > 1) {
    at = realrun::attention_positions(op, piece, position);
  } else {
    for (std::int64_t i = 0; i < q.sizes[1]; ++i) at.queries.push_back(i), at.keys.push_back(i);
  }
  const auto document = [](std::int64_t p) { return std::ranges::upper_bound(kEnds, p) - kEnds.begin(); };
  SeenWithinDocuments seen;
  for (const std::int64_t i : at.queries) {
    bool any = false;
    for (const std::int64_t j : at.keys) {
      if (j > i || document(i) != document(j)) continue;
      const bool inside = op.window == 0 || j > i - op.window;
      any = any || inside;
      if (inside) seen.counted += j == i ? 0.5 : 1;
      if (op.window > 0 && j == i - op.window) seen.counted += 0.5;
    }
    seen.queries += any;
  }
  return seen;
}

TEST(DocumentPairs, AreThoseThatKernelsSeeOnEveryRankAndStep) {
  for (const char* model : {"{}", R"({"sliding_window": 4})"})
    for (const char* plan :
         {"{}", R"({"context_parallel": 2})", R"({"context_parallel": 4})",
          R"({"context_parallel": 3, "context_parallel_balance": "contiguous"})",
          R"({"context_parallel": 4, "context_parallel_balance": "striped"})",
          R"({"context_parallel": 4, "context_parallel_type": "all_gather"})",
          R"({"context_parallel": 3, "context_parallel_type": "all_gather", "context_parallel_balance": "striped"})",
          R"({"context_parallel": 2, "context_parallel_type": "ulysses"})",
          R"({"context_parallel": 4, "context_parallel_type": "usp", "ulysses_degree": 2})"}) {
      Program program;
      lower(attention_scenario(model, plan), program);
      double all = 0, of_parts = 0;  // of two heads
      std::int64_t ops = 0;
      for (const Piece& piece : program.pieces)
        for (const Block* block : {&piece.forward, &piece.backward})
          for (const Op& op : attentions(piece, *block)) {
            const Tensor& q = piece.tensors[op.reads[op.kind == OpKind::attention ? 0 : 3]];
            const AttentionShape shape = attention_shape(op, piece.tensors);
            for (std::int64_t rank = 0; rank < program.mesh.ranks(); ++rank) {
              const realrun::Position position = realrun::position_of(static_cast<std::size_t>(rank), program, kLength);
              const std::int64_t part = op.parts == 1 ? 0 : position.part(q.over[1]);
              const SeenWithinDocuments seen = seen_within_documents(op, piece, position);
              const DocumentPairs pairs = document_pairs(op, piece.tensors, part, kEnds, 4);
              EXPECT_DOUBLE_EQ(pairs.counted, seen.counted) << plan << ", rank " << rank;
              if (op.window == 0) {
                EXPECT_EQ(pairs.queries, static_cast<double>(seen.queries)) << plan;
              }
              EXPECT_GE(pairs.rectangle, pairs.counted);
              EXPECT_EQ(std::fmod(pairs.queries + pairs.idle_queries, 4), 0) << "whole tiles";
              ++ops;
              if (op.kind != OpKind::attention) continue;
              all += seen.counted * static_cast<double>(shape.heads);
              if (op.keys_before == 0)
                of_parts += document_pairs_of_part(op, piece.tensors, part, kEnds) * static_cast<double>(shape.heads);
            }
          }
      EXPECT_GT(ops, 0);
      if (std::string_view(model) != "{}") continue;  // half pairs behind a window are not those of any step
      EXPECT_DOUBLE_EQ(of_parts, all) << plan << ": of all steps together";
      double expected = 0;  // of one rank
      std::int64_t begin = 0;
      for (const std::int64_t end : kEnds) {
        const auto n = static_cast<double>(end - std::exchange(begin, end));
        expected += n * n / 2;
      }
      EXPECT_DOUBLE_EQ(all, 2 * expected) << plan << ": every pair of two heads once";
    }
}

// In a later step of a zigzag ring all queries see the first half of the keys, or the second half sees all.
TEST(AttendedPairs, AZigzagStepIsHalfOfTheSquareOnEveryRank) {
  Program program;
  lower(attention_scenario("{}", R"({"context_parallel": 4})"), program);
  for (const Piece& piece : program.pieces)
    for (const Op& op : attentions(piece, piece.forward))
      for (std::int64_t part = 0; part < 4; ++part) {
        const AttendedPairs pairs = attended_pairs(op, piece.tensors, part);
        EXPECT_EQ(pairs.counted, 6 * 6 / 2);
        EXPECT_EQ(pairs.keys, op.keys_before == 0 || op.keys_before > part ? 6 : 3);
      }
}

// Striped Attention, section 3: in every step a rank sees a triangle of its square, with its diagonal where its queries
// lie behind the keys' rank and without it where that rank lies behind.
TEST(AttendedPairs, AStripedStepIsATriangleOnEveryRankWithOrWithoutItsDiagonal) {
  Program program;
  lower(attention_scenario("{}", R"({"context_parallel": 4, "context_parallel_balance": "striped"})"), program);
  int steps = 0;
  for (const Piece& piece : program.pieces)
    for (const Op& op : attentions(piece, piece.forward)) {
      ++steps;
      for (std::int64_t part = 0; part < 4; ++part)
        EXPECT_EQ(attended_pairs(op, piece.tensors, part).seen, op.keys_before <= part ? 6 * 7 / 2 : 6 * 5 / 2);
      // Of the slowest rank's pairs only a query's own key counts half.
      EXPECT_EQ(attended_pairs(op, piece.tensors).counted, op.keys_before == 0 ? 6 * 6 / 2 : 6 * 7 / 2);
    }
  EXPECT_EQ(steps, 4);
}

}  // namespace
}  // namespace orrery::cpu
