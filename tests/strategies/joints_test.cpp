// Where layers are laid out differently, is what they hand on redistributed between them, and does that cost what
// moves?
#include "strategies/joints.h"

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

LayerRange dealt(const Scenario& s, std::int64_t from, std::int64_t to, Balance balance) {
  LayerRange range{from, to, 1, s.plan};
  range.plan.layers.clear();
  range.plan.context.balance = balance;
  return range;
}

// The line as letters: j for a joint, and the first letter of any other piece, with how many instances there are.
std::vector<std::string> line_of(const Program& p) {
  std::vector<std::string> line;
  for (const Run& run : p.line)
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
        Bad{{1, 1, 2, 3}, "found 0 of 4 blocks for rank 0, expected as many for each of the 4 ranks"}}) {
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
  EXPECT_FALSE(redistribution(mesh, zigzag, tensor(32, {}, Deal::contiguous, 8, {})));
  EXPECT_FALSE(redistribution(mesh, zigzag, tensor(16, tp, Deal::contiguous, 8, {})));
  EXPECT_FALSE(redistribution(mesh, zigzag, tensor(4, cp, Deal::zigzag, 8, {}))) << "another whole";
  EXPECT_FALSE(redistribution(mesh, tensor(3, cp, Deal::striped, 8, {}), tensor(3, cp, Deal::zigzag, 8, {})))
      << "eight blocks of twelve positions";
}

}  // namespace
}  // namespace orrery
