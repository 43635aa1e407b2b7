// Where layers are laid out differently, is what they hand on redistributed between them, and does that cost what
// moves?
#include <gmock/gmock.h>

#include "sim/base/error.h"
#include "sim/program/check.h"
#include "sim/program/redistribute.h"
#include "sim/program/rewrite.h"
#include "strategies/read_scenario.h"
#include "strategies/schema.h"
#include "tests/strategies/divided_sequences.h"

namespace orrery {
namespace {

using context_parallel::Balance;
using testing::ElementsAre;
using testing::HasSubstr;

LayerRange typed(const Scenario& s, std::int64_t from, std::int64_t to, const char* type) {
  LayerRange range{from, to, 1, s.plan};
  range.plan.layers.clear();
  range.plan.context.type = context_parallel::type_named(type);
  return range;
}

LayerRange dealt(const Scenario& s, std::int64_t from, std::int64_t to, Balance balance) {
  LayerRange range{from, to, 1, s.plan};
  range.plan.layers.clear();
  range.plan.context.balance = balance;
  return range;
}

// The line as letters: j for a joint, and the first letter of any other piece, with how many instances there are.
std::vector<std::string> line_of(const Program& p) {
  std::vector<std::string> line;
  for (const PieceRun& run : p.line)
    line.push_back(std::string(p.pieces[run.piece].name).substr(0, 1) + std::to_string(run.count));
  return line;
}

TEST(Joints, StandWhereNeighboursAreLaidOutDifferently) {
  Scenario s = divided("llama-3-8b", 4, "ring");  // 32 layers
  EXPECT_THAT(line_of(lowered_of(s)), ElementsAre("e1", "l32", "h1"));
  s.plan.layers = {dealt(s, 0, 0, Balance::zigzag)};
  EXPECT_THAT(line_of(lowered_of(s)), ElementsAre("e1", "l32", "h1"));
  s.plan.layers = {dealt(s, 2, 5, Balance::contiguous), dealt(s, 5, 6, Balance::striped)};
  EXPECT_THAT(line_of(lowered_of(s)), ElementsAre("e1", "l2", "j1", "l3", "j1", "l1", "j1", "l26", "h1"));
  s.plan.layers = {dealt(s, 0, 0, Balance::contiguous)};
  EXPECT_THAT(line_of(lowered_of(s)), ElementsAre("e1", "j1", "l32", "j1", "h1"));
  EXPECT_TRUE(check(lowered_of(s)).empty());
  s.plan.context.degree = 1;
  EXPECT_THAT(line_of(lowered_of(s)), ElementsAre("e1", "l32", "h1")) << "one rank has all positions";
}

// Of one group of ranks some layers make a ring, some exchange heads, some gather keys. Ulysses deals contiguously; the
// others as the plan says.
TEST(Joints, StandBetweenTypesOfAttentionWhereTheyDealDifferently) {
  Scenario s = divided("llama-3-8b", 4, "ring");
  s.plan.layers = {typed(s, 2, 5, "ulysses"), typed(s, 5, 9, "all_gather")};
  const Program p = lowered_of(s);
  EXPECT_THAT(line_of(p), ElementsAre("e1", "l2", "j1", "l3", "j1", "l4", "l23", "h1"));
  EXPECT_TRUE(check(p).empty());
  const auto calls = [&](std::size_t place, OpKind kind) {
    int n = 0;
    for (const Op& op : p.pieces[p.line[place].piece].forward.ops) n += op.kind == kind ? op.count : 0;
    return n;
  };
  EXPECT_EQ(calls(1, OpKind::ring_shift), 3);
  EXPECT_EQ(calls(3, OpKind::redistribute), 4);
  EXPECT_EQ(calls(5, OpKind::all_gather), 2);
  EXPECT_EQ(calls(6, OpKind::ring_shift), 3);
  s.plan.context.balance = Balance::contiguous;
  s.plan.layers = {typed(s, 2, 5, "ulysses"), typed(s, 5, 9, "all_gather")};
  EXPECT_THAT(line_of(lowered_of(s)), ElementsAre("e1", "l2", "l3", "l4", "l23", "h1"));
}

// Each layer moves what it moves where all are of its type.
TEST(Joints, LayersOfATypeAreThoseOfAPlanOfIt) {
  for (const char* base : {"ring", "ulysses", "all_gather"})
    for (const char* other : {"ring", "ulysses", "all_gather"}) {
      Scenario s = divided("llama-3-8b", 4, base);
      s.plan.layers = {typed(s, 31, 0, other)};
      const Program mixed = lowered_of(s), all = lowered_of(divided("llama-3-8b", 4, other));
      const Piece& a = piece_named(all, "layer");
      const auto last = std::find_if(mixed.line.rbegin(), mixed.line.rend(),
                                     [&](const auto& run) { return mixed.pieces[run.piece].layers > 0; });
      const Piece& b = mixed.pieces[last->piece];
      ASSERT_EQ(a.forward.ops.size(), b.forward.ops.size()) << base << other;
      for (std::size_t i = 0; i < a.forward.ops.size(); ++i) {
        EXPECT_EQ(a.forward.ops[i].kind, b.forward.ops[i].kind);
        EXPECT_EQ(bytes(a.forward.ops[i], a.tensors), bytes(b.forward.ops[i], b.tensors));
      }
      EXPECT_EQ(mixed.mesh.digits().size(), all.mesh.digits().size());
      EXPECT_EQ(saved_bytes(a), saved_bytes(b));
    }
}

TEST(Joints, TypesOfSeveralGroupsAreRefusedBesideOthers) {
  const auto refusal = [](std::int64_t ranks, const char* base, std::int64_t degree, const char* other) {
    Scenario s = divided("llama-3-8b", ranks, base, degree);
    s.plan.layers = {typed(s, 3, 4, other)};
    return refusal_of(s);
  };
  EXPECT_THAT(refusal(8, "ring", 2, "usp"),
              HasSubstr("/plan/layers/0/context_parallel_type: found \"usp\", expected the type of the other layers, "
                        "where all 8 ranks form one group"));
  EXPECT_THAT(refusal(16, "ring", 0, "ulysses"), HasSubstr("ranks that share a key/value head"));
  EXPECT_THAT(refusal(8, "usp", 2, "ring"), HasSubstr("/plan/context_parallel_type: found \"usp\""));
  EXPECT_THAT(
      refusal(8, "usp", 2, "ulysses"),
      HasSubstr("/plan/context_parallel_type: found \"usp\", expected a type with 8 ranks that exchange heads"));
  EXPECT_EQ(refusal(8, "usp", 2, "a2a+p2p"), "nothing");
  EXPECT_EQ(refusal(8, "usp", 8, "ring"), "nothing") << "one group";
  EXPECT_EQ(refusal(8, "all_gather", 1, "usp"), "nothing") << "one ring";
  EXPECT_EQ(refusal(8, "ulysses", 0, "ring"), "nothing");
}

// One rank has all positions: nothing meets, whatever the type.
TEST(Joints, OneRankIsOfNoType) {
  const Program none = lowered_of(divided("llama-3-8b", 1, "ring"));
  for (const std::string_view type : context_parallel::type_names()) {
    Scenario s = divided("llama-3-8b", 1, std::string(type).c_str());
    s.plan.layers = {typed(s, 3, 4, "ulysses"), typed(s, 4, 8, "ring")};
    const Program p = lowered_of(s);
    EXPECT_THAT(line_of(p).front(), "e1");
    EXPECT_THAT(line_of(p).back(), "h1");
    const Piece &a = piece_named(none, "layer"), &b = piece_named(p, "layer");
    EXPECT_EQ(a.forward.ops.size(), b.forward.ops.size()) << type;
    EXPECT_EQ(a.backward.ops.size(), b.backward.ops.size()) << type;
  }
}

TEST(Joints, ScoresOfDividedSequencesAreNotStoredInAnyRange) {
  Scenario s = divided("llama-3-8b", 4, "ring");
  LayerRange range{2, 5, 1, s.plan};
  range.plan.framework.flash_attention = false;
  s.plan.layers = {range};
  EXPECT_THAT(refusal_of(s), HasSubstr("/plan/layers/0/flash_attention: found false, expected true with"));
}

TEST(Joints, OfTwoEqualChangesAreOnePiece) {
  Scenario s = divided("llama-3-8b", 4, "ring");
  s.plan.layers = {dealt(s, 4, 8, Balance::striped), dealt(s, 12, 16, Balance::striped)};
  const Program p = lowered_of(s);
  EXPECT_EQ(std::count_if(p.pieces.begin(), p.pieces.end(), is_joint), 2) << "there and back";
  EXPECT_EQ(p.line.size(), 1u + 5 + 4 + 1);
}

// Of 65,536 tokens and a width of 4,096, in two bytes.
TEST(Joints, MoveForwardWhatTheTwoDealsDoNotShareAndItsGradientBack) {
  for (const std::int64_t c : {2, 4, 8}) {
    Scenario s = divided("llama-3-8b", c, "ring");
    s.plan.layers = {dealt(s, 16, 0, Balance::striped)};
    Program p = lowered_of(s);
    const auto bytes_of_joint = [&] {
      const auto joint = std::find_if(p.pieces.begin(), p.pieces.end(), is_joint);
      EXPECT_EQ(joint->backward.ops.size(), 1u);
      const double forward = bytes(joint->forward.ops[0], joint->tensors),
                   backward = bytes(joint->backward.ops[0], joint->tensors);
      EXPECT_EQ(forward, backward);
      return forward;
    };
    const double held = 65536.0 / static_cast<double>(c) * 4096 * 2;
    EXPECT_DOUBLE_EQ(bytes_of_joint(), held) << "every rank gives each other as much";
    s.plan.layers = {dealt(s, 16, 0, Balance::contiguous)};
    p = lowered_of(s);
    // Rank 0 of two keeps its first chunk. Of more ranks there is one both of whose chunks are others': all it has,
    // of which an all-to-all of equal parts would leave 1/c.
    const auto ranks = static_cast<double>(c);
    EXPECT_DOUBLE_EQ(bytes_of_joint(), c == 2 ? held : held * ranks / (ranks - 1));
  }
}

TEST(Joints, ADealOfSomeLayersThatDoesNotDivideIsRefusedAtItsField) {
  Scenario s = divided("llama-3-8b", 4, "ring");
  s.workload.sequence_length = 65540;  // four ranks divide it, eight blocks do not
  s.plan.context.balance = Balance::striped;
  EXPECT_TRUE(check(lowered_of(s)).empty());
  s.plan.layers = {dealt(s, 3, 4, Balance::zigzag)};
  try {
    lowered_of(s);
    ADD_FAILURE();
  } catch (const InputError& error) {
    EXPECT_EQ(error.where().pointer, "/plan/layers/0/context_parallel_balance");
    EXPECT_THAT(error.what(), HasSubstr("a degree whose zigzag deal of 8 blocks divides the sequence of 65540 tokens"));
  }
}

TEST(ContextDeals, TablesThatDoNotFitAreRefusedAtTheirField) {
  struct Bad {
    std::vector<std::int64_t> blocks;
    const char* sentence;
  };
  for (const Bad& bad :
       {Bad{{}, "found none, expected the rank of each block"},
        Bad{{0, 1, 2}, "found 3 blocks, expected a divisor of the sequence of 65536 tokens"},
        Bad{{0, 1, 2, 4}, "found 4, expected one of the ranks 0 to 3"},
        Bad{{1, 1, 2, 3}, "found 0 of 4 blocks for rank 0, expected equally many for each of the 4 ranks"}}) {
    for (const bool of_range : {false, true}) {
      Scenario s = divided("llama-3-8b", 4, "ring");
      if (of_range) s.plan.layers = {dealt(s, 3, 4, Balance::table)};
      Plan& plan = of_range ? s.plan.layers[0].plan : s.plan;
      plan.context.balance = Balance::table;
      plan.context.blocks = bad.blocks;
      try {
        lowered_of(s);
        ADD_FAILURE() << bad.sentence;
      } catch (const InputError& error) {
        EXPECT_EQ(error.where().pointer,
                  std::string(of_range ? "/plan/layers/0/" : "/plan/") + "context_parallel_blocks");
        EXPECT_THAT(error.what(), HasSubstr(bad.sentence));
      }
    }
  }
  Scenario unused = divided("llama-3-8b", 4, "ring");
  unused.plan.context.blocks = {0, 1, 2, 3};
  EXPECT_THROW(lowered_of(unused), InputError);
  // Of a range that does not say "table" as well.
  unused.plan.context.blocks = {};
  unused.plan.layers = {dealt(unused, 3, 4, Balance::striped)};
  unused.plan.layers[0].plan.context.blocks = {0, 1, 2, 3};
  try {
    lowered_of(unused);
    ADD_FAILURE();
  } catch (const InputError& error) {
    EXPECT_EQ(error.where().pointer, "/plan/layers/0/context_parallel_blocks");
    EXPECT_THAT(error.what(), HasSubstr("none unless context_parallel_balance is \"table\""));
  }
}

// A table of the zigzag deal's blocks is the zigzag deal: the same pairs in every step, the same time.
TEST(ContextDeals, ATableOfZigzagBlocksIsTheZigzagDeal) {
  Scenario s = divided("llama-3-8b", 4, "ring");
  const Program zigzag = lowered_of(s);
  s.plan.context.balance = Balance::table;
  s.plan.context.blocks = {0, 1, 2, 3, 3, 2, 1, 0};
  const Program table = lowered_of(s);
  EXPECT_TRUE(check(table).empty());
  const Piece &a = piece_named(zigzag, "layer"), &b = piece_named(table, "layer");
  ASSERT_EQ(a.forward.ops.size(), b.forward.ops.size());
  for (std::size_t i = 0; i < a.forward.ops.size(); ++i) {
    if (a.forward.ops[i].kind != OpKind::attention) continue;
    for (std::int64_t part = 0; part < 4; ++part)
      EXPECT_EQ(attended_pairs(a.forward.ops[i], a.tensors, part).counted,
                attended_pairs(b.forward.ops[i], b.tensors, part).counted);
  }
}

// Layouts that are not of one whole over the same digits.
TEST(Redistribution, IsBetweenLayoutsOfOneWholeOverTheSameDigits) {
  Mesh mesh;
  mesh.add(MeshAxis::tp, 2);
  mesh.add(MeshAxis::cp, 4);
  const MeshGroup tp = mesh.group(MeshAxis::tp), cp = mesh.group(MeshAxis::cp);
  const auto tensor = [](std::int64_t sequence, MeshGroup by, Deal deal, std::int64_t heads, MeshGroup of_heads) {
    Tensor t;
    t.append({sequence, Axis::sequence});
    t.append({heads, Axis::groups});
    t.over[0].append(by);
    t.over[1].append(of_heads);
    t.set_deal(0, deal);
    return t;
  };
  const Tensor zigzag = tensor(8, cp, Deal::zigzag, 8, {}), heads = tensor(32, {}, Deal::contiguous, 2, cp);
  for (const auto& [from, to] : {std::pair{zigzag, heads}, {heads, zigzag}}) {
    const auto r = redistribution(mesh, from, to);
    ASSERT_TRUE(r.has_value());
    EXPECT_EQ(r->group, cp);
    EXPECT_EQ(r->share, 1);
  }
  EXPECT_TRUE(redistribution(mesh, zigzag, zigzag)->group.empty());
  // What the first digit deals is cut by the second: all of it moves when the deal changes.
  EXPECT_EQ(
      redistribution(mesh, tensor(4, cp | tp, Deal::zigzag, 8, {}), tensor(4, cp | tp, Deal::striped, 8, {}))->group,
      cp | tp);
  EXPECT_EQ(redistribution(mesh, tensor(4, cp | tp, Deal::zigzag, 8, {}), tensor(8, cp, Deal::zigzag, 4, tp))->group,
            tp);
  // Digits of one name deal together: without one of them the other deals otherwise, and moves too.
  Mesh rings;
  rings.add(MeshAxis::cp, 2);
  rings.add(MeshAxis::cp, 2);
  const MeshGroup inner = MeshGroup::of_digit(0), outer = MeshGroup::of_digit(1);
  for (const auto& [deal, moved] : {std::pair{Deal::zigzag, inner | outer}, {Deal::contiguous, inner}}) {
    const auto r = redistribution(rings, tensor(8, inner | outer, deal, 8, {}), tensor(16, outer, deal, 4, inner));
    ASSERT_TRUE(r.has_value());
    EXPECT_EQ(r->group, moved);
  }
  EXPECT_FALSE(redistribution(mesh, zigzag, tensor(32, {}, Deal::contiguous, 8, {})));
  EXPECT_FALSE(redistribution(mesh, zigzag, tensor(16, tp, Deal::contiguous, 8, {})));
  EXPECT_FALSE(redistribution(mesh, zigzag, tensor(4, cp, Deal::zigzag, 8, {}))) << "another whole";
  EXPECT_FALSE(redistribution(mesh, tensor(3, cp, Deal::striped, 8, {}), tensor(3, cp, Deal::zigzag, 8, {})))
      << "eight blocks of twelve positions";
}

}  // namespace
}  // namespace orrery
