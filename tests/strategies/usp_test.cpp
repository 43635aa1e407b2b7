// Do exchanges of heads, alone and in rings, move what their papers say?
#include <gmock/gmock.h>

#include <functional>
#include <string>

#include "sim/base/error.h"
#include "sim/program/check.h"
#include "tests/strategies/divided_sequences.h"

namespace orrery {
namespace {

using testing::HasSubstr;

// Fang & Zhao 2024, table 2: 8 all-to-alls of 8/N b s h elements together, forward and backward.
TEST(Usp, UlyssesExchangesEightTensorsALayer) {
  for (const std::int64_t n : {2, 8, 32}) {
    const Program p = lowered_of(divided("llama-2-7b", n, "ulysses"));
    const LayerTraffic t = traffic(p, OpKind::redistribute);
    EXPECT_EQ(t.calls, 8);
    EXPECT_DOUBLE_EQ(t.elements, 8 * kBsh / static_cast<double>(n));
    EXPECT_EQ(traffic(p, OpKind::ring_shift).calls, 0);
    EXPECT_EQ(traffic(p, OpKind::all_gather).calls, 0);
  }
}

// The same: 4 b s h of keys and values from rank to rank, of which each leaves a rank R - 1 times out of R.
TEST(Usp, TheRingPassesFourTensorsALayerAndGradientsBeside) {
  for (const std::int64_t n : {2, 8}) {
    const Program p = lowered_of(divided("llama-2-7b", n, "p2p"));
    const auto ranks = static_cast<double>(n);
    EXPECT_DOUBLE_EQ(traffic(p, OpKind::ring_shift, "ring.keys").elements, 4 * kBsh * (ranks - 1) / ranks);
    EXPECT_DOUBLE_EQ(traffic(p, OpKind::ring_shift, "ring.key_gradients").elements, 2 * kBsh);
  }
}

// In fp32 twice the bytes of gradients travel, of keys and values as many.
TEST(Usp, GradientsTravelInTheDtypeThatTheyAreSummedIn) {
  const auto bytes = [](bool fp32, const char* name) {
    Scenario s = divided("llama-2-7b", 8, "usp", 2);
    s.plan.context.fp32_gradients = fp32;
    const Program p = lowered_of(s);
    EXPECT_TRUE(check(p).empty());
    double sum = 0;
    for (const Piece& piece : p.pieces)
      for (const Op& op : piece.backward.ops)
        if (std::string_view(op.name) == name) sum += static_cast<double>(piece.tensors[op.reads[0]].bytes());
    return sum;
  };
  EXPECT_GT(bytes(false, "ring.key_gradients"), 0);
  EXPECT_EQ(bytes(true, "ring.key_gradients"), 2 * bytes(false, "ring.key_gradients"));
  EXPECT_EQ(bytes(true, "ring.keys"), bytes(false, "ring.keys"));
  EXPECT_EQ(bytes(false, "ring.gradient_cast"), 0);
}

// A ring of groups carries the heads of a rank only: 4 b s h / U, never more than the ring alone.
TEST(Usp, RingsOfGroupsCarryTheHeadsOfARank) {
  for (const std::int64_t u : {1, 2, 4, 8}) {
    const std::int64_t n = 8, r = n / u;
    const Program p = lowered_of(divided("llama-2-7b", n, "usp", u));
    EXPECT_EQ(traffic(p, OpKind::redistribute).calls, u > 1 ? 8 : 0);
    EXPECT_DOUBLE_EQ(traffic(p, OpKind::redistribute).elements, u > 1 ? 8 * kBsh / static_cast<double>(n) : 0);
    EXPECT_DOUBLE_EQ(traffic(p, OpKind::ring_shift, "ring.keys").elements,
                     4 * kBsh / static_cast<double>(u) * static_cast<double>(r - 1) / static_cast<double>(r));
  }
}

// Table 2's lines for grouped-query attention: of Llama 3 8B four query heads share a key head.
TEST(Usp, GroupedKeysMakeExchangesAndRingsSmaller) {
  constexpr double kRanks = 8, kShare = 4;
  EXPECT_DOUBLE_EQ(traffic(lowered_of(divided("llama-3-8b", 8, "ulysses")), OpKind::redistribute).elements,
                   4 * kBsh / kRanks + 4 * kBsh / kRanks / kShare);
  EXPECT_DOUBLE_EQ(traffic(lowered_of(divided("llama-3-8b", 8, "ring")), OpKind::ring_shift, "ring.keys").elements,
                   4 * kBsh / kShare * (kRanks - 1) / kRanks);
}

// More ranks than key heads: a rank ends with one key head of all positions, which four ranks have, and receives no
// more than if the head had been sent to each of them.
TEST(Usp, KeyHeadsAreReplicatedWhereRanksOutnumberThem) {
  constexpr double kRanks = 32, kKeyHeads = 8, kSharing = 4;
  const Program p = lowered_of(divided("llama-3-8b", 32, "ulysses"));
  const double keys = 2 * 65536.0 * 128;  // key and value of one head
  const Piece& layer = piece_named(p, "layer");
  double received = 0;
  for (const Op& op : layer.forward.ops) {
    const double elements = bytes(op, layer.tensors) / 2;
    if (op.name == std::string_view("ulysses.keys")) received += elements * (kKeyHeads - 1) / kKeyHeads;
    if (op.name == std::string_view("ulysses.shared_keys")) {
      EXPECT_DOUBLE_EQ(elements, keys);
      received += elements * (kSharing - 1) / kSharing;
    }
    if (op.kind == OpKind::attention) {
      const AttentionShape shape = attention_shape(op, layer.tensors);
      EXPECT_EQ(shape.heads, 1);
      EXPECT_EQ(shape.kv_heads, 1);
      EXPECT_EQ(shape.queries, 65536);
    }
  }
  EXPECT_DOUBLE_EQ(received, keys * (kRanks - 1) / kRanks);
  EXPECT_DOUBLE_EQ(traffic(p, OpKind::reduce_scatter).elements, keys) << "and their gradients are summed";
  for (const OpKind kind : {OpKind::all_gather, OpKind::reduce_scatter})
    EXPECT_EQ(traffic(p, kind, "ulysses.shared").calls, 2) << "keys and values apart";
}

// Exchanged heads see all positions: a causal mask is balanced however positions are dealt. Rings need the zigzag deal.
TEST(Usp, WorkIsDividedEqually) {
  const double whole = layer_attention_flops(lowered_of(divided("llama-2-7b", 1, "ring")));
  using context_parallel::Balance;
  const auto share = [&](const char* type, std::int64_t u, Balance balance) {
    Scenario s = divided("llama-2-7b", 8, type, u);
    s.plan.context.balance = balance;
    return layer_attention_flops(lowered_of(s)) / whole;
  };
  for (const Balance balance : {Balance::zigzag, Balance::contiguous})
    EXPECT_DOUBLE_EQ(share("ulysses", 0, balance), 1.0 / 8);
  EXPECT_DOUBLE_EQ(share("usp", 2, Balance::zigzag), 1.0 / 8);
  EXPECT_DOUBLE_EQ(share("usp", 2, Balance::contiguous), 7.0 / 4 / 8) << "(2 R - 1) / R of a ring of four";
}

TEST(Usp, LaysExchangingRanksOrTheRingNextToEachOther) {
  for (const bool inner : {true, false}) {
    Scenario s = divided("llama-2-7b", 8, "usp", 4);
    s.plan.tensor.degree = 2;
    s.plan.usp.ulysses_inner = inner;
    const Mesh mesh = lowered_of(s).mesh;
    const auto stride = [&](const char* name) {
      for (const Digit& digit : mesh.digits())
        if (mesh.group(name) == mesh.group(digit.name)) return digit.stride;
      return std::int64_t{0};
    };
    EXPECT_EQ(mesh.size(mesh.group("cp.ulysses")), 4);
    EXPECT_EQ(mesh.size(mesh.group("cp.ring")), 2);
    EXPECT_EQ(stride("cp.ulysses"), inner ? 2 : 2 * 2);
    EXPECT_EQ(stride("cp.ring"), inner ? 2 * 4 : 2);
  }
}

// With nothing said, as many ranks exchange as there are key heads for.
TEST(Usp, TheDefaultDegreeFollowsFromTheKeyHeads) {
  Scenario s = divided("llama-3-8b", 32, "usp");
  const auto size = [&](const char* digit) {
    const Mesh mesh = lowered_of(s).mesh;
    return mesh.size(mesh.group(digit));
  };
  EXPECT_EQ(size("cp.ulysses"), 8);
  EXPECT_EQ(size("cp.shared"), 1) << "of 32 query heads each key head has four";
  EXPECT_EQ(size("cp.ring"), 4);
  s.plan.context.degree = 4;
  s.plan.tensor.degree = 4;
  EXPECT_EQ(size("cp.ulysses"), 2);
  EXPECT_EQ(size("cp.ring"), 2);
}

TEST(Usp, OneExchangingRankIsARing) {
  for (const char* model : {"llama-3-8b", "falcon-7b"}) {
    Scenario alone = divided(model, 4, "usp", 1), ring = divided(model, 4, "ring");
    const Program p = lowered_of(alone), q = lowered_of(ring);
    EXPECT_TRUE(check(p).empty()) << model;
    ASSERT_EQ(p.pieces.size(), q.pieces.size());
    for (std::size_t i = 0; i < p.pieces.size(); ++i) {
      EXPECT_EQ(p.pieces[i].tensors.size(), q.pieces[i].tensors.size()) << model;
      EXPECT_EQ(p.pieces[i].forward.ops.size(), q.pieces[i].forward.ops.size()) << model;
      EXPECT_EQ(p.pieces[i].backward.ops.size(), q.pieces[i].backward.ops.size()) << model;
    }
  }
  Scenario automatic = divided("falcon-7b", 4, "usp");  // one key head: nothing to exchange it for
  EXPECT_TRUE(check(lowered_of(automatic)).empty());
}

TEST(Usp, GroupsThatDoNotDivideAreRefusedInOneSentence) {
  struct Bad {
    const char* pointer;
    const char* sentence;
    std::function<void(Scenario&)> change;
  };
  const std::vector<Bad> all{
      {"/plan/ulysses_degree", "found 3, expected a divisor of context_parallel, 8",
       [](Scenario& s) { s.plan.usp.ulysses_degree = 3; }},
      {"/plan/ulysses_degree", "found 8, expected a divisor of the 4 attention heads of a rank",
       [](Scenario& s) {
         s.plan.usp.ulysses_degree = 8;
         s.plan.tensor.degree = 8;
         s.cluster = read_cluster({{"node", "dgx-a100"}, {"nodes", 8}}, {});
       }},
      {"/plan/context_parallel", "found 8, expected a divisor of the 4 attention heads of a rank",
       [](Scenario& s) {
         s.plan.context.type = context_parallel::type_named("a2a");
         s.plan.tensor.degree = 8;
         s.cluster = read_cluster({{"node", "dgx-a100"}, {"nodes", 8}}, {});
       }},
      {"/plan/ulysses_degree", "expected 0 without context_parallel_type \"usp\"",
       [](Scenario& s) {
         s.plan.context.type = context_parallel::type_named("ring");
         s.plan.usp.ulysses_degree = 2;
       }},
      {"/plan/context_parallel", "zigzag deal of 16 blocks divides the sequence of 65544 tokens",
       [](Scenario& s) {  // which eight ranks divide
         s.plan.usp.ulysses_degree = 1;
         s.workload.sequence_length = 65544;
       }},
      {"/plan/ulysses_inner", "found false, expected true without context_parallel_type \"usp\"",
       [](Scenario& s) {
         s.plan.context.type = context_parallel::type_named("ring");
         s.plan.usp = {.ulysses_degree = 0, .ulysses_inner = false};
       }},
      {"/plan/ulysses_degree", "expected 0 or 1 with context_parallel 1",
       [](Scenario& s) {
         s.plan.context.degree = 1;
         s.plan.usp.ulysses_degree = 2;
       }},
      {"/plan/context_parallel", "expected 1 for a model with a pooler", [](Scenario& s) { s.model.pooler = true; }},
      {"/plan/context_parallel", "expected 1 without flash_attention",
       [](Scenario& s) { s.plan.framework.flash_attention = false; }},
      {"/plan/context_parallel", "expected 1 for a model with projected relative positions",
       [](Scenario& s) { s.model.relative_projection = true; }},
      {"/plan/context_parallel", "expected 1 for a model with a table of relative positions",
       [](Scenario& s) { s.model.relative_buckets = 32; }},
  };
  for (const Bad& bad : all) {
    Scenario s = divided("llama-2-7b", 8, "usp");
    bad.change(s);
    try {
      lowered_of(s);
      ADD_FAILURE() << bad.sentence;
    } catch (const InputError& error) {
      EXPECT_EQ(error.where().pointer, bad.pointer);
      EXPECT_THAT(error.what(), HasSubstr(bad.sentence));
    }
  }
}

}  // namespace
}  // namespace orrery
