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

// Fang & Zhao 2024, table 2, row by row, for a layer on N ranks.
TEST(Usp, Table2IsThatOfThePrograms) {
  constexpr std::int64_t kN = 8;
  constexpr double kU = 4, kR = kN / kU, kShare = 1.0 / kN;
  // In b s h elements; the paper's 4 of a ring without the step that sends nothing, and 8 / N of exchanges.
  constexpr double kRing = 4 * (kN - 1) * kShare, kExchanged = 8 * kShare, kUsp = kExchanged + 4 / kU * (kR - 1) / kR;
  struct Row {
    const char* name;
    std::function<void(Plan&)> plan;
    // Of a layer's parameters, by the factors of the paper's caption (all-reduce 2, others 1): 24 and 36 h^2 are 2
    // and 3. Its column has half of that, 12 and 18 h^2, in every row.
    double states;
    double activations;
    double parameters, gradients, optimizer_states;  // kept, over those of one rank alone
  };
  const auto sequence = [](const char* type, std::int64_t zero_stage) {
    return [=](Plan& plan) {
      plan.context.degree = kN, plan.context.type = context_parallel::type_named(type);
      if (std::string_view(type) == "usp") plan.usp.ulysses_degree = static_cast<std::int64_t>(kU);
      plan.data.zero_stage = zero_stage;
    };
  };
  const auto replicas = [](std::int64_t zero_stage) {
    return [=](Plan& plan) { plan.data.degree = kN, plan.data.zero_stage = zero_stage; };
  };
  const auto tensor = [](bool sequence_parallel) {
    return [=](Plan& plan) { plan.tensor.degree = kN, plan.tensor.sequence_parallel = sequence_parallel; };
  };
  const std::vector<Row> table{
      {"SP-Ulysses", sequence("ulysses", 0), 2, kExchanged, 1, 1, 1},
      {"SP-Ring", sequence("ring", 0), 2, kRing, 1, 1, 1},
      {"DP", replicas(0), 2, 0, 1, 1, 1},
      {"ZeRO-1", replicas(1), 2, 0, 1, 1, kShare},
      {"USP + ZeRO-1", sequence("usp", 1), 2, kUsp, 1, 1, kShare},
      {"USP + ZeRO-2", sequence("usp", 2), 2, kUsp, 1, kShare, kShare},
      {"USP + ZeRO-3", sequence("usp", 3), 3, kUsp, kShare, kShare, kShare},
      {"TP", tensor(false), 0, 8, kShare, kShare, kShare},
      {"TP-sp", tensor(true), 0, 10, kShare, kShare, kShare},
  };
  const auto layer_of = [](std::int64_t devices, std::int64_t batch, const std::function<void(Plan&)>& change) {
    Scenario s = scenario_of("llama-2-7b", "dgx-a100", 1);
    s.cluster.node.devices = devices;
    s.workload = {65536, 0, batch};
    s.plan.batch.micro_batch_size = 1;
    change(s.plan);
    return running_layer(lowered_of(s));
  };
  const auto kept = [](const Piece& layer, Category c) { return piece_memory(layer, 1).resident.of(Place::device, c); };
  const auto calls_of = [](OpKind kind) {
    return kind == OpKind::all_reduce ? 2.0
           : kind == OpKind::all_gather || kind == OpKind::reduce_scatter || kind == OpKind::redistribute ||
                   kind == OpKind::ring_shift
               ? 1.0
               : 0.0;
  };
  const Piece whole = layer_of(1, 1, [](Plan&) {});
  const double parameters = kept(whole, Category::parameter) / 2, activations = saved_bytes(whole);
  for (const Row& row : table) {
    const std::string_view name = row.name;
    const bool by_sequences = name == "DP" || name == "ZeRO-1";
    const Piece layer = layer_of(kN, by_sequences ? kN : 1, row.plan);
    double of_states = 0, of_activations = 0;
    for (const Block* block : {&layer.forward, &layer.backward, &layer.update})
      for (const Op& op : block->ops) {
        const std::string_view op_name = op.name;
        if (calls_of(op.kind) == 0 || op_name == "ring.key_gradients") continue;  // which the table leaves out
        const double elements = calls_of(op.kind) * bytes(op, layer.tensors) /
                                static_cast<double>(bytes_of(layer.tensors[op.reads[0]].dtype, 1));
        const bool states = op_name.starts_with("parameters.") || op_name.starts_with("gradients.");
        if (op_name != "replicated_gradients.all_reduce")  // of TP-sp, the norms', which are no h^2
          (states ? of_states : of_activations) += elements;
      }
    EXPECT_DOUBLE_EQ(of_states / parameters, row.states) << name;
    EXPECT_NEAR(of_activations / kBsh, row.activations, 1e-6) << name;
    const auto share = [&](Category c) { return kept(layer, c) / kept(whole, c); };
    constexpr double kNorms = 1e-4;  // which tensor parallelism does not divide
    EXPECT_NEAR(share(Category::parameter), row.parameters, kNorms) << name;
    EXPECT_NEAR(share(Category::gradient), row.gradients, kNorms) << name;
    EXPECT_NEAR(share(Category::optimizer_state), row.optimizer_states, kNorms) << name;

    // A / N, but for what attention has anew behind an exchange (the context, twice), and for TP, whose ranks have
    // inputs and outputs of norms whole: alpha A of Korthikanti et al. 2022, equation 2, without dropout.
    const bool exchanged = name == "SP-Ulysses" || name.starts_with("USP");
    const double own = by_sequences ? activations : activations * kShare;
    const double beyond = exchanged ? 2 * kBsh * kShare : name == "TP" ? 4 * 2 * kBsh * (1 - kShare) : 0;
    EXPECT_NEAR(saved_bytes(layer), own + beyond, 1e-3 * own) << name;
  }
}

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
