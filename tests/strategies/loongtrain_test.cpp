// Do rings of rings move what one ring does, each part over its own links, and meet all keys?
#include <gmock/gmock.h>

#include <string>

#include "sim/base/error.h"
#include "sim/program/check.h"
#include "tests/strategies/divided_sequences.h"

namespace orrery {
namespace {

using testing::HasSubstr;

Scenario double_ring(const char* model, std::int64_t ranks, std::int64_t inner, std::int64_t ulysses = 1) {
  Scenario s = divided(model, ranks, "usp", ulysses);
  s.cluster.nodes = 8;
  s.plan.loongtrain.inner_ring_degree = inner;
  return s;
}

// Calls and elements, each rank's, of ring shifts with this name, over digits of `ranks` ranks.
struct Shifts {
  std::int64_t calls = 0, ranks = 0;
  double elements = 0;
};
Shifts shifts(const Program& program, const Block& block, const Piece& piece, std::string_view name) {
  Shifts found;
  for (const Op& op : block.ops) {
    if (op.kind != OpKind::ring_shift || op.name != name) continue;
    ++found.calls;
    found.ranks = program.mesh.size(op.group);
    found.elements += bytes(op, piece.tensors) / 2;
  }
  return found;
}

// Gu et al. 2024, section 4.3: of C ranks in rings of w, keys go w - 1 places within each of C / w rounds, and C / w -
// 1 times from ring to ring; C - 1 in all, as in one ring. Gradients go home within a ring, and from ring to ring.
TEST(LoongTrain, KeysMoveAsOftenAsInOneRing) {
  constexpr std::int64_t kRanks = 16;
  const Program one = lowered_of(double_ring("llama-2-7b", kRanks, 1));
  const Piece& single = piece_named(one, "layer");
  const double keys = shifts(one, single.forward, single, "ring.keys").elements,
               gradients = shifts(one, single.backward, single, "ring.key_gradients").elements;
  for (const std::int64_t w : {2, 4, 8}) {
    const Program p = lowered_of(double_ring("llama-2-7b", kRanks, w));
    EXPECT_TRUE(check(p).empty());
    const Piece& layer = piece_named(p, "layer");
    const std::int64_t rounds = kRanks / w;
    for (const Block* block : {&layer.forward, &layer.backward}) {
      const Shifts inner = shifts(p, *block, layer, "ring.keys"), outer = shifts(p, *block, layer, "ring.outer_keys");
      EXPECT_EQ(inner.calls, rounds * (w - 1));
      EXPECT_EQ(inner.ranks, w);
      EXPECT_EQ(outer.calls, rounds - 1);
      EXPECT_EQ(outer.ranks, rounds);
      EXPECT_DOUBLE_EQ(inner.elements + outer.elements, keys);
    }
    const Shifts inner = shifts(p, layer.backward, layer, "ring.key_gradients"),
                 outer = shifts(p, layer.backward, layer, "ring.outer_key_gradients");
    EXPECT_EQ(inner.calls, rounds * w);
    EXPECT_EQ(outer.calls, rounds);
    EXPECT_DOUBLE_EQ(inner.elements, gradients);
    EXPECT_DOUBLE_EQ(outer.elements, gradients / static_cast<double>(w));
  }
}

// The paper's Size(kv), elements: max(H_kv, d_hp) / H x 2 S D / d_sp; key heads are replicated where there are fewer
// than ranks that exchange.
TEST(LoongTrain, PassesKeysOfTheHeadsOfARank) {
  for (const std::int64_t hp : {1, 2, 8, 16}) {
    const Program p = lowered_of(double_ring("llama-3-8b", 64, 2, hp));
    const Piece& layer = piece_named(p, "layer");
    const Shifts outer = shifts(p, layer.forward, layer, "ring.outer_keys");
    const double size = static_cast<double>(std::max<std::int64_t>(8, hp)) / 32 * 2 * kBsh / 64;
    EXPECT_DOUBLE_EQ(outer.elements / static_cast<double>(outer.calls), size) << hp;
  }
}

TEST(LoongTrain, WorkIsDividedEqually) {
  const double whole = layer_attention_flops(lowered_of(divided("llama-2-7b", 1, "ring")));
  using context_parallel::Balance;
  for (const auto balance : {Balance::zigzag, Balance::striped}) {
    Scenario s = double_ring("llama-2-7b", 16, 4, 2);
    s.plan.context.balance = balance;
    EXPECT_NEAR(layer_attention_flops(lowered_of(s)) / whole, 1.0 / 16, balance == Balance::zigzag ? 1e-12 : 2e-3);
  }
}

// What goes from ring to ring has the time of a round: it does not wait for, or hold up, what goes round within.
TEST(LoongTrain, RingsOfRingsHaveStreamsOfTheirOwn) {
  const Program p = lowered_of(double_ring("llama-2-7b", 16, 8));
  std::size_t outer = 0;
  for (const Op& op : piece_named(p, "layer").forward.ops)
    if (op.kind == OpKind::ring_shift) {
      const bool within = p.mesh.size(op.group) == 8;
      EXPECT_EQ(op.stream, within ? Stream::context_communication : Stream::outer_ring_communication);
      outer += within ? 0 : 1;
    }
  EXPECT_EQ(outer, 1U);
  EXPECT_EQ(row_of(Stream::outer_ring_communication).account, Stream::context_communication);
}

TEST(LoongTrain, TheInnerRingLiesInside) {
  for (const bool head_first : {true, false}) {
    Scenario s = double_ring("llama-2-7b", 16, 2, 4);
    s.plan.usp.ulysses_inner = head_first;
    const Mesh mesh = lowered_of(s).mesh;
    std::string order;
    for (const Digit& digit : mesh.digits()) order += std::string(digit.name) + " " + std::to_string(digit.size) + ", ";
    EXPECT_EQ(order.substr(0, order.find("dp")),
              head_first ? "cp.ulysses 4, cp.ring 2, cp.ring 2, " : "cp.ring 2, cp.ring 2, cp.ulysses 4, ");
  }
}

// A step that states other keys than have come, by either ring, is found.
TEST(LoongTrain, TheCheckerFollowsBothRings) {
  const auto rules = [](const auto& change) {
    Program p = lowered_of(double_ring("llama-2-7b", 8, 2));
    for (Piece& piece : p.pieces)
      for (Op& op : piece.forward.ops) change(op);
    return check(p).size();
  };
  EXPECT_EQ(rules([](Op&) {}), 0U);
  EXPECT_GT(rules([](Op& op) {
              if (op.kind == OpKind::attention && op.keys_before == 3) op.keys_before = 5;
            }),
            0U);
  EXPECT_GT(rules([](Op& op) {
              if (op.kind == OpKind::attention) op.inner_parts = 4;
            }),
            0U);
  EXPECT_GT(rules([](Op& op) {
              if (op.name == std::string_view("ring.outer_keys")) op.distance = 2;
            }),
            0U);
}

TEST(LoongTrain, RefusesRingsThatAreNone) {
  const auto refusal = [](const Scenario& s) -> std::string {
    try {
      Program p;
      check(s);
      lower(s, p);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(refusal(double_ring("llama-2-7b", 1, 2)), HasSubstr("1 with context_parallel 1, which has no rings"));
  EXPECT_THAT(refusal(double_ring("llama-2-7b", 16, 3)),
              HasSubstr("found 3, expected 1, or a proper divisor of the 16 ranks of a ring"));
  EXPECT_THAT(refusal(double_ring("llama-2-7b", 16, 4, 4)), HasSubstr("a proper divisor of the 4 ranks of a ring"));
  Scenario gathered = divided("llama-2-7b", 8, "all_gather");
  gathered.plan.loongtrain.inner_ring_degree = 2;
  EXPECT_THAT(refusal(gathered), HasSubstr("1 unless all layers have context_parallel_type"));
}

}  // namespace
}  // namespace orrery
