// Does check() accept what is right, and say what is wrong with the smallest Program that breaks each rule?
#include "sim/program/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "sim/program/rewrite.h"

namespace orrery {

void PrintTo(const Violation& v, std::ostream* out) { *out << "rule " << static_cast<int>(v.rule) << ": " << v.text; }

namespace {

using testing::Each;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

struct Part {
  std::int64_t size;  // of one rank
  Axis axis = Axis::none;
  MeshGroup over = {};
};

// A piece on tp 2 x cp 2 x dp_shard 2, filled op by op.
struct Small {
  Small() {
    program.mesh.add(MeshAxis::tp, 2);
    program.mesh.add(MeshAxis::cp, 2);
    program.mesh.add(MeshAxis::dp_shard, 2);
    program.pieces.resize(1);
    piece().name = "piece";
  }
  Piece& piece() { return program.pieces[0]; }
  MeshGroup tp() const { return program.mesh.group(MeshAxis::tp); }
  MeshGroup cp() const { return program.mesh.group(MeshAxis::cp); }
  MeshGroup dp() const { return program.mesh.group(MeshAxis::dp_shard); }

  TensorId tensor(const char* name, std::initializer_list<Part> parts, Category category = Category::activation) {
    Tensor t;
    t.name = name;
    t.category = category;
    for (const Part& part : parts) {
      t.sizes[t.rank] = part.size;
      t.axes[t.rank] = part.axis;
      t.over[t.rank].append(part.over);
      ++t.rank;
    }
    return piece().add(t);
  }
  // Given from outside.
  TensorId input(const char* name, std::initializer_list<Part> parts) {
    const TensorId id = tensor(name, parts);
    piece().tensors[id].input = Input::patches;
    return id;
  }
  TensorId buffer(const char* name, std::int64_t elements, Category category, MeshGroup over = {}) {
    const TensorId id = tensor(name, {{elements, Axis::none, over}}, category);
    piece().tensors[id].resident = true;
    return id;
  }
  Op& op(OpKind kind, std::initializer_list<TensorId> reads, std::initializer_list<TensorId> writes,
         Block Piece::*block = &Piece::forward) {
    Op op;
    op.kind = kind;
    op.name = "op";
    std::copy(reads.begin(), reads.end(), op.reads.begin());
    std::copy(writes.begin(), writes.end(), op.writes.begin());
    (piece().*block).ops.push_back(op);
    return (piece().*block).ops.back();
  }
  Op& collective(OpKind kind, MeshGroup group, TensorId read, TensorId write, Block Piece::*block = &Piece::forward) {
    Op& o = op(kind, {read}, {write}, block);
    o.group = group;
    return o;
  }
  // A product over a width that tensor-parallel ranks divide: a sum that they owe each other.
  TensorId owed(const char* name) {
    const TensorId x = input("x", {{4, Axis::batch}, {8, Axis::ffn, tp()}}),
                   w = tensor("w", {{8, Axis::ffn, tp()}, {6, Axis::hidden}}, Category::parameter),
                   y = tensor(name, {{4, Axis::batch}, {6, Axis::hidden}});
    op(OpKind::linear, {x, w}, {y});
    return y;
  }
  // A parameter w and its gradient in flat buffers; a batch divided over dp leaves it owed.
  struct Trained {
    TensorId parameters, gradients;
  };
  Trained trained(std::int64_t width = 6) {
    const TensorId parameters = buffer("parameters", width, Category::parameter),
                   gradients = buffer("gradients", width, Category::gradient),
                   w = tensor("w", {{width, Axis::hidden}}, Category::parameter),
                   dw = tensor("w", {{width, Axis::hidden}}, Category::gradient),
                   dy = input("dy", {{4, Axis::batch, dp()}, {width, Axis::hidden}});
    piece().tensors[w].alias_of = parameters;
    piece().tensors[dw].alias_of = gradients;
    piece().parameters.push_back({w, dw});
    ParameterSet& set = piece().sets.emplace_back();
    set.parameters = set.own_parameters = parameters;
    set.gradients = set.own_gradients = gradients;
    op(OpKind::bias_gradient, {dy}, {dw}, &Piece::backward);
    return {parameters, gradients};
  }
  void adam(TensorId gradients, TensorId parameters) {
    op(OpKind::sgd, {gradients, parameters}, {parameters}, &Piece::update);
  }

  Program program;
};

void expect_breaks(Rule rule, const Small& bad, const char* words) {
  const std::vector<Violation> found = check(bad.program);
  EXPECT_THAT(found, Not(IsEmpty()));
  EXPECT_THAT(found, Each(Field("rule", &Violation::rule, rule)));
  if (!found.empty()) {
    EXPECT_THAT(found.front().text, HasSubstr(words));
  }
}
void expect_proven(const Small& good) { EXPECT_THAT(check(good.program), IsEmpty()); }

TEST(Check, OperandsAreDividedAlike) {
  for (const bool good : {true, false}) {
    Small s;
    const TensorId a = s.input("a", {{4, Axis::batch, s.dp()}}),
                   b = s.input("b", {{4, Axis::batch, good ? s.dp() : MeshGroup{}}}),
                   y = s.tensor("y", {{4, Axis::batch, s.dp()}});
    s.op(OpKind::add, {a, b}, {y});
    if (good) {
      expect_proven(s);
    } else {
      expect_breaks(Rule::operands_agree, s,
                    R"(piece "piece", forward, add "op": "b" [-] and "a" [dp_shard] are divided differently )"
                    R"(along batch: over nothing and over dp_shard, expected the same)");
    }
  }
}

TEST(Check, WhatAnOpNormalisesOrMasksOverIsWhole) {
  for (const bool good : {true, false}) {
    Small s;
    const TensorId x = s.input("x", {{4, Axis::batch}, {8, Axis::sequence, good ? MeshGroup{} : s.tp()}}),
                   y = s.tensor("y", {{4, Axis::batch}});
    s.op(OpKind::pool, {x}, {y});
    good ? expect_proven(s)
         : expect_breaks(Rule::whole_for_op, s,
                         R"("y" [-] is made of parts over tp of "x" [- | tp] along sequence, )"
                         R"(expected "x" [- | -])");
  }
}

TEST(Check, KeysThatNoRingBringsAreMissed) {
  Small s;
  const TensorId qkv = s.input("qkv", {{1, Axis::batch},
                                       {8, Axis::sequence, s.cp()},
                                       {1, Axis::groups},
                                       {3, Axis::group_qkv},
                                       {4, Axis::head_dim}}),
                 y = s.tensor("y", {{1, Axis::batch},
                                    {8, Axis::sequence, s.cp()},
                                    {1, Axis::groups},
                                    {1, Axis::group_heads},
                                    {4, Axis::head_dim}});
  s.op(OpKind::attention, {qkv}, {y});
  expect_breaks(Rule::whole_for_op, s,
                R"("qkv" [- | cp | - | - | -] has the keys of one part over cp, and no ring brings the others, )"
                R"(expected "qkv" [- | - | - | - | -])");
}

TEST(Check, OnlyLinearOpsReadWhatIsOwed) {
  for (const bool good : {true, false}) {
    Small s;
    TensorId x = s.owed("y");
    const TensorId sum = s.tensor("sum", {{4, Axis::batch}, {6, Axis::hidden}}),
                   z = s.tensor("z", {{4, Axis::batch}, {6, Axis::hidden}});
    if (good) s.collective(OpKind::all_reduce, s.tp(), x, sum), x = sum;
    s.op(OpKind::activation, {x}, {z});
    good ? expect_proven(s)
         : expect_breaks(Rule::owed_refused, s, R"("y" [- | -] owes the sum over tp, which has to be)");
  }
}

TEST(Check, WhatIsAddedOwesTheSame) {
  for (const bool good : {true, false}) {
    Small s;
    const TensorId a = s.owed("a"), b = good ? s.owed("b") : s.input("b", {{4, Axis::batch}, {6, Axis::hidden}}),
                   sum = s.tensor("sum", {{4, Axis::batch}, {6, Axis::hidden}}),
                   z = s.tensor("z", {{4, Axis::batch}, {6, Axis::hidden}});
    s.op(OpKind::add, {a, b}, {z});
    s.collective(OpKind::all_reduce, s.tp(), z, sum);
    good ? expect_proven(s)
         : expect_breaks(Rule::owed_alike, s, R"("a" [- | -] owes the sum over tp, the other operand does not)");
  }
}

TEST(Check, ABiasIsNotAddedToAPartOfASum) {
  Small s;
  s.owed("y");
  s.piece().forward.ops.back().reads[2] = s.tensor("bias", {{6, Axis::hidden}}, Category::parameter);
  expect_breaks(Rule::owed_alike, s,
                R"("bias" [-] is added on every rank to a partial sum over tp, expected after the sum)");
}

TEST(Check, TensorsAreWrittenBeforeTheyAreRead) {
  for (const bool good : {true, false}) {
    Small s;
    const TensorId x = good ? s.input("x", {{4}}) : s.tensor("x", {{4}}), y = s.tensor("y", {{4}});
    s.op(OpKind::cast, {x}, {y});
    good ? expect_proven(s)
         : expect_breaks(Rule::written_first, s, R"("x" [-] is read before anything has written it)");
  }
}

TEST(Check, ViewsOfWhatIsPartlyWrittenAreNotThere) {
  for (const bool good : {true, false}) {
    Small s;
    const TensorId x = s.input("x", {{2}}), whole = s.tensor("whole", {{4}}), first = s.tensor("first", {{2}}),
                   second = s.tensor("second", {{2}}), y = s.tensor("y", {{4}});
    s.piece().tensors[first].alias_of = s.piece().tensors[second].alias_of = whole;
    s.piece().tensors[second].alias_begin = 2;
    s.op(OpKind::cast, {x}, {first});
    if (good) s.op(OpKind::cast, {x}, {second});
    s.op(OpKind::cast, {whole}, {y});
    good ? expect_proven(s) : expect_breaks(Rule::written_first, s, R"("whole" [-] is read before)");
  }
}

TEST(Check, ACollectiveIsNotRepeated) {
  for (const bool good : {true, false}) {
    Small s;
    const TensorId x = s.owed("y"), sum = s.tensor("sum", {{4, Axis::batch}, {6, Axis::hidden}});
    s.collective(OpKind::all_reduce, s.tp(), x, sum);
    if (!good) s.collective(OpKind::all_reduce, s.tp(), x, sum);
    good ? expect_proven(s) : expect_breaks(Rule::written_once, s, R"("sum" has been written in this block before)");
  }
}

TEST(Check, AGatherTakesTheMinorDigits) {
  for (const int how : {0, 1, 2}) {  // the minor digit, the major one, none
    Small s;
    const TensorId x = s.input("x", {{4, Axis::sequence, s.cp() | s.tp()}});  // cp is the major one
    const TensorId y = s.tensor("y", {{how == 2 ? 4 : 8, Axis::sequence,
                                       how == 0   ? s.cp()
                                       : how == 1 ? s.tp()
                                                  : s.cp() | s.tp()}});
    s.collective(OpKind::all_gather, how == 1 ? s.cp() : s.tp(), x, y);
    if (how == 0) expect_proven(s);
    if (how == 1)
      expect_breaks(Rule::gathers, s,
                    R"("x" [cp x tp] does not become "y" [tp] by gathering over cp, )"
                    R"(expected an operand with cp as the minor digits of one dimension)");
    if (how == 2)
      expect_breaks(Rule::gathers, s,
                    R"("x" [cp x tp] does not become "y" [cp x tp] by gathering over tp, expected "x" [cp])");
  }
}

TEST(Check, AScatterTakesASumThatIsOwed) {
  for (const bool good : {true, false}) {
    Small s;
    const TensorId x = good ? s.owed("y") : s.input("y", {{4, Axis::batch}, {6, Axis::hidden}}),
                   part = s.tensor("part", {{2, Axis::batch, s.tp()}, {6, Axis::hidden}});
    s.collective(OpKind::reduce_scatter, s.tp(), x, part);
    good ? expect_proven(s)
         : expect_breaks(Rule::scatters, s, R"("y" [- | -] owes the sum over nothing, the sum is taken over tp)");
  }
}

TEST(Check, AScatterDividesItsResult) {
  for (const int how : {0, 1, 2}) {  // right, by another digit as well, not at all
    Small s;
    const TensorId x = s.owed("y"), part = s.tensor("part", {{how == 2 ? 4 : 2, Axis::batch,
                                                              how == 0   ? s.tp()
                                                              : how == 1 ? s.tp() | s.cp()
                                                                         : MeshGroup{}},
                                                             {6, Axis::hidden}});
    s.collective(OpKind::reduce_scatter, s.tp(), x, part);
    if (how == 0) expect_proven(s);
    if (how == 1)
      expect_breaks(Rule::scatters, s,
                    R"("y" [- | -] does not become "part" [cp x tp | -] by scattering over tp, expected "y" [tp | -])");
    if (how == 2)
      expect_breaks(Rule::scatters, s,
                    R"("y" [- | -] does not become "part" [- | -] by scattering over tp, expected a result with one )"
                    "dimension divided over tp as well");
  }
}

TEST(Check, AReductionKeepsTheLayout) {
  Small s;
  const TensorId x = s.owed("y"), sum = s.tensor("sum", {{4, Axis::batch, s.dp()}, {6, Axis::hidden}});
  s.collective(OpKind::all_reduce, s.tp(), x, sum);
  expect_breaks(Rule::reduces, s,
                R"("y" [- | -] of 24 elements and its sum "sum" [dp_shard | -] of 24 have )"
                "different layouts, expected the same");
}

// The axis along which an op normalises stands in its sentence.
TEST(Check, WhatASoftmaxNormalisesOverIsNamed) {
  Small s;
  const TensorId x = s.input("scores", {{4, Axis::sequence}, {8, Axis::key_sequence, s.cp()}}),
                 y = s.tensor("y", {{4, Axis::sequence}, {8, Axis::key_sequence, s.cp()}});
  s.op(OpKind::softmax, {x}, {y});
  expect_breaks(Rule::whole_for_op, s,
                R"("scores" [- | cp] is divided over cp along key_sequence, expected "scores" [- | -])");
}

TEST(Check, AReductionTakesASumThatIsOwed) {
  for (const bool good : {true, false}) {
    Small s;
    const TensorId x = s.owed("y"), sum = s.tensor("sum", {{4, Axis::batch}, {6, Axis::hidden}});
    s.collective(OpKind::all_reduce, good ? s.tp() : s.dp(), x, sum);
    good ? expect_proven(s)
         : expect_breaks(Rule::reduces, s, R"("y" [- | -] owes the sum over tp, the sum is taken over dp_shard)");
  }
}

TEST(Check, ASumOverSomeOfTheRanksLeavesTheRestOwed) {
  for (const bool good : {true, false}) {
    Small s;
    const MeshGroup both = s.cp() | s.tp();
    const TensorId x = s.input("x", {{4, Axis::batch}, {8, Axis::ffn, both}}),
                   w = s.tensor("w", {{8, Axis::ffn, both}, {6, Axis::hidden}}, Category::parameter),
                   y = s.tensor("y", {{4, Axis::batch}, {6, Axis::hidden}}),
                   part = s.tensor("part", {{4, Axis::batch}, {6, Axis::hidden}}),
                   sum = s.tensor("sum", {{4, Axis::batch}, {6, Axis::hidden}});
    s.op(OpKind::linear, {x, w}, {y});
    s.collective(OpKind::all_reduce, s.tp(), y, part);
    if (good) s.collective(OpKind::all_reduce, s.cp(), part, sum);
    s.piece().output = good ? sum : part;
    good ? expect_proven(s) : expect_breaks(Rule::pieces_fit, s, R"(the output "part" owes the sum over cp)");
  }
}

TEST(Check, AnExchangeMovesDigitsBetweenDimensions) {
  for (const bool good : {true, false}) {
    Small s;
    const TensorId x = s.input("x", {{4, Axis::sequence, s.cp()}, {8, Axis::groups}}),
                   y = good ? s.tensor("y", {{8, Axis::sequence}, {4, Axis::groups, s.cp()}})
                            : s.tensor("y", {{8, Axis::sequence}, {8, Axis::groups}});
    s.collective(OpKind::redistribute, s.cp(), x, y);
    good ? expect_proven(s) : expect_breaks(Rule::exchanges, s, R"("x" [cp | -] does not become "y" [- | -])");
  }
}

// Of two digits one may go to key/value groups and one to the query heads within them, or both change places.
TEST(Check, AnExchangeIsOverTheDigitsThatDiffer) {
  for (const int how : {0, 1, 2, 3, 4}) {  // right twice; one digit left behind; a digit too many; another whole
    Small s;
    const MeshGroup both = s.cp() | s.tp();
    const TensorId x = s.input("x", {{2, Axis::sequence, both}, {8, Axis::groups}, {6, Axis::group_heads}});
    TensorId y = s.tensor("y", {{8, Axis::sequence}, {4, Axis::groups, s.cp()}, {3, Axis::group_heads, s.tp()}});
    if (how == 1) y = s.tensor("y", {{4, Axis::sequence, s.tp()}, {4, Axis::groups, s.cp()}, {6, Axis::group_heads}});
    if (how == 3) y = s.tensor("y", {{4, Axis::sequence, s.cp()}, {4, Axis::groups, s.tp()}, {6, Axis::group_heads}});
    if (how == 4) s.piece().tensors[y].sizes[2] = 6;
    Op& op = s.collective(OpKind::redistribute, how == 2 ? s.cp() : both, x, y);
    if (how == 1) op.share = 4.0 / 3;  // a rank of four has none of its elements in the other layout
    if (how < 2) expect_proven(s);
    if (how == 2) expect_breaks(Rule::exchanges, s, "by an exchange over cp: what differs is over cp x tp");
    if (how == 3) expect_breaks(Rule::exchanges, s, "by an exchange over cp x tp: what differs is over tp");
    if (how == 4) expect_breaks(Rule::exchanges, s, "they do not belong to one whole over the same digits");
  }
}

TEST(Check, ARedistributionMovesWhatTwoDealsDoNotShare) {
  for (const int how : {0, 1, 2}) {  // right; none of it said to move; a deal that does not fit
    Small s;
    const std::int64_t size = how == 2 ? 5 : 6;
    const TensorId x = s.input("x", {{size, Axis::sequence, s.cp()}}),
                   y = s.tensor("y", {{size, Axis::sequence, s.cp()}});
    s.piece().tensors[x].set_deal(0, Deal::zigzag);
    // Of zigzag blocks 0 and 3 of three positions rank 0 keeps the first.
    s.collective(OpKind::redistribute, s.cp(), x, y).share = how == 1 ? 0 : 1;
    if (how == 0) expect_proven(s);
    if (how == 1) expect_breaks(Rule::sizes, s, R"("x" [cp zigzag]: a share of 1.000000 becomes "y" [cp])");
    if (how == 2) expect_breaks(Rule::sizes, s, R"("x" [cp zigzag] has no whole blocks of its deal for every part)");
  }
}

TEST(Check, ATableHasBlocksForEveryPart) {
  for (const int how : {0, 1, 2}) {  // right; of three parts; of blocks that do not divide
    Small s;
    const std::vector<std::int64_t> two{1, 0, 0, 1}, three{1, 0, 2}, six{1, 0, 0, 1, 1, 0};
    const TensorId x = s.input("x", {{4, Axis::sequence, s.cp()}}), y = s.tensor("y", {{4, Axis::sequence, s.cp()}});
    s.piece().tensors[x].set_deal(0, s.program.tables.by_blocks(how == 0 ? two : how == 1 ? three : six));
    s.piece().tensors[y].set_deal(0, s.piece().tensors[x].deal(0));
    s.op(OpKind::cast, {x}, {y});
    how == 0 ? expect_proven(s)
             : expect_breaks(Rule::sizes, s, R"("x" [cp table] has no whole blocks of its deal for every part)");
  }
}

TEST(Check, WhatIsGatheredKeepsItsDeal) {
  for (const bool good : {true, false}) {
    Small s;
    const TensorId x = s.input("x", {{2, Axis::sequence, s.cp() | s.tp()}}),
                   y = s.tensor("y", {{4, Axis::sequence, s.cp()}});
    s.piece().tensors[x].set_deal(0, Deal::zigzag);
    if (good) s.piece().tensors[y].set_deal(0, Deal::zigzag);
    s.collective(OpKind::all_gather, s.tp(), x, y);
    good ? expect_proven(s) : expect_breaks(Rule::gathers, s, R"("x" [cp x tp zigzag] does not become "y" [cp])");
  }
}

TEST(Check, ARingIsOfTheDigitsThatDivideTheSequence) {
  for (const bool good : {true, false}) {
    Small s;
    const TensorId x = s.input("x", {{4, Axis::sequence, s.cp()}}), y = s.tensor("y", {{4, Axis::sequence, s.cp()}});
    s.collective(OpKind::ring_shift, good ? s.cp() : s.tp(), x, y);
    good ? expect_proven(s) : expect_breaks(Rule::shifts, s, R"("x" [cp] is shifted over tp)");
  }
}

TEST(Check, SizesAreThoseOfTheLayouts) {
  for (const bool good : {true, false}) {
    Small s;
    const TensorId x = s.input("x", {{4, Axis::sequence, s.tp()}, {2}}),
                   y = s.tensor("y", {{good ? 8 : 4, Axis::sequence}, {2}});
    s.collective(OpKind::all_gather, s.tp(), x, y);
    good ? expect_proven(s)
         : expect_breaks(Rule::sizes, s, R"("x" [tp | -] has 8 elements, 2 parts of "y" [- | -] have 8)");
  }
}

// By less than an element for each part.
TEST(Check, FlatBuffersArePadded) {
  for (const std::int64_t part : {3, 4}) {
    Small s;
    const TensorId x = s.input("x", {{part, Axis::none, s.dp()}}), y = s.tensor("y", {{5}});
    s.collective(OpKind::all_gather, s.dp(), x, y);
    part == 3 ? expect_proven(s)
              : expect_breaks(Rule::sizes, s, R"("x" [dp_shard] has 4 elements, 2 parts of "y" [-] have 5)");
  }
}

TEST(Check, SumsInPlaceAreTakenInTheLastMicroBatch) {
  for (const bool good : {true, false}) {
    Small s;
    s.program.schedule.micro_batches = 2;
    const auto [parameters, gradients] = s.trained();
    s.collective(OpKind::all_reduce, s.dp(), gradients, gradients, &Piece::backward).when =
        good ? When::last_micro_batch : When::every_micro_batch;
    s.adam(gradients, parameters);
    good ? expect_proven(s)
         : expect_breaks(Rule::last_micro_batch, s, R"("gradients" is summed in place in every micro-batch)");
  }
}

// Programs as they should be: UnlikeMicroBatches (tests/simulation). One micro-batch too few; a class that is not
// there; other layers; a piece that is no variant.
TEST(Check, ClassesOfMicroBatchesHaveTheSameLayers) {
  for (const int how : {1, 2, 3, 4}) {
    Small s;
    const TensorId x = s.input("x", {{4, Axis::batch}, {8, Axis::hidden}});
    s.op(OpKind::cast, {x}, {s.tensor("y", {{4, Axis::batch}, {8, Axis::hidden}})});
    Program& p = s.program;
    s.piece().layers = 1;
    p.pieces.push_back(s.piece());
    if (how != 4) p.pieces[0].variant_of = p.pieces[1].variant_of = 0;
    const auto one_chunk = [](const std::vector<orrery::PieceRun>& runs) {
      std::vector<std::vector<Chunk>> stages(1);
      stages[0].resize(1);
      stages[0][0].runs = runs;
      return stages;
    };
    p.line = {{0, 2}};
    p.stages = one_chunk(p.line);
    p.schedule.micro_batches = 3;
    p.micro_batch_class = {0, 1, 0};
    const std::vector<orrery::PieceRun> others =
        how == 3 ? std::vector<orrery::PieceRun>{{0, 1}} : std::vector<orrery::PieceRun>{{0, 1}, {1, 1}};
    MicroBatchClass& other = p.other_classes.emplace_back();
    other.line = others;
    other.stages = one_chunk(others);
    if (how == 1) p.micro_batch_class.pop_back();
    if (how == 2) p.micro_batch_class[2] = 2;
    if (how == 1) expect_breaks(Rule::classes_alike, s, "classes of 2 micro-batches, the schedule has 3");
    if (how == 2) expect_breaks(Rule::classes_alike, s, "micro-batch 2 is of class 2, there are 2");
    if (how >= 3) expect_breaks(Rule::classes_alike, s, "micro-batches of class 1 have other layers");
  }
}

TEST(Check, ARingBringsAllKeysOnce) {
  // All; not the other rank's; the same twice; others than the op states; of other parts than the op states; keys that
  // have gone round to where they came from.
  for (const int how : {0, 1, 2, 3, 4, 5}) {
    Small s;
    const auto tensor = [&](const char* name, std::int64_t heads, Category category = Category::activation) {
      return s.tensor(name,
                      {{1, Axis::batch}, {8, Axis::sequence, s.cp()}, {1, Axis::groups}, {heads}, {4, Axis::head_dim}},
                      category);
    };
    const TensorId q = tensor("q", 1), keys = tensor("keys", 2),
                   next = tensor("next", 2, Category::communication_buffer), first = tensor("first", 1),
                   second = tensor("second", 1), merged = tensor("merged", 1), y = tensor("y", 1);
    std::vector<TensorId> lse;
    for (int i = 0; i < 3; ++i)
      lse.push_back(s.tensor("lse", {{1, Axis::batch}, {1, Axis::groups}, {8, Axis::sequence, s.cp()}}));
    for (const TensorId id : {q, keys}) s.piece().tensors[id].input = Input::patches;
    s.collective(OpKind::ring_shift, s.cp(), keys, next).distance = how == 5 ? 2 : 1;
    s.op(OpKind::attention, {q, keys}, {first, lse[0]});
    s.op(OpKind::attention, {q, how == 2 ? keys : next}, {second, lse[1]}).keys_before = how == 2 || how == 3 ? 0 : 1;
    s.op(OpKind::merge_attention, {first, lse[0], second, lse[1]}, {merged, lse[2]});
    for (Op& op : s.piece().forward.ops)
      if (op.kind == OpKind::attention) op.causal = true, op.parts = how == 4 ? 4 : 2;
    s.op(OpKind::cast, {how == 1 ? first : merged}, {y});
    if (how == 0) expect_proven(s);
    if (how == 1) expect_breaks(Rule::sees_all_keys, s, R"("first" lacks the keys of 1 ranks before)");
    if (how == 2) expect_breaks(Rule::sees_all_keys, s, R"("first" and "second" have both met the keys of 0 ranks)");
    if (how == 3) expect_breaks(Rule::sees_all_keys, s, R"("next" has the keys of 1 ranks before, the op states 0)");
    if (how == 4) expect_breaks(Rule::sizes, s, "has one of 2 parts of the positions, the op states 4");
    if (how == 5) expect_breaks(Rule::sees_all_keys, s, R"("next" has the keys of 0 ranks before, the op states 1)");
  }
}

// Tensor-parallel ranks that hold a part of the tokens owe each other the gradient of a weight that all have.
TEST(Check, PackedBuffersHoldTheOwedElements) {
  for (const int how : {0, 1, 2}) {  // right, too small, not packed at all
    Small s;
    const auto [parameters, gradients] = s.trained();
    const ParameterGradient p = s.piece().parameters[0];
    const TensorId dy = s.input("dy", {{4, Axis::batch, s.dp()}, {2, Axis::sequence, s.tp()}, {6, Axis::hidden}});
    s.piece().backward.ops.clear();
    s.op(OpKind::bias_gradient, {dy}, {p.gradient}, &Piece::backward);
    s.collective(OpKind::all_reduce, s.dp(), gradients, gradients, &Piece::update);
    const TensorId packed = s.tensor("packed", {{how == 1 ? 5 : 6}}, Category::communication_buffer);
    s.piece().packed.push_back({});
    s.piece().packed.back().buffer = packed;
    s.piece().packed.back().gradients = {p.gradient};
    if (how != 2) s.collective(OpKind::all_reduce, s.tp(), packed, packed, &Piece::update);
    s.adam(gradients, parameters);
    if (how == 0) expect_proven(s);
    if (how == 1)
      expect_breaks(Rule::packed_gradients, s, R"("packed" has 5 elements, its gradients owe the sums of 6)");
    if (how == 2)
      expect_breaks(Rule::gradient_meets_state, s, R"(the gradient of "w" in "gradients" still owes the sum over tp)");
  }
}

TEST(Check, GradientsMeetTheStateThatTheyBelongTo) {
  for (const bool good : {true, false}) {
    Small s;
    const auto [parameters, gradients] = s.trained();
    s.collective(OpKind::all_reduce, s.dp(), gradients, gradients, &Piece::update);
    TensorId of = parameters;
    if (!good) of = s.buffer("shard", 3, Category::parameter, s.dp());
    s.adam(gradients, of);
    good ? expect_proven(s)
         : expect_breaks(Rule::gradient_meets_state, s,
                         R"(gradients "gradients" [-] of 6 elements meet "shard" [dp_shard] of 3, expected the same)");
  }
}

TEST(Check, SetsAreDividedAsTheySay) {
  for (const int how : {0, 1, 2, 3}) {  // right, whole where the set says parts (twice), parts in two orders
    Small s;
    const auto [parameters, gradients] = s.trained();
    s.collective(OpKind::all_reduce, s.dp(), gradients, gradients, &Piece::update);
    s.adam(gradients, parameters);
    ParameterSet& set = s.piece().sets[0];
    if (how == 1) set.over.weights = s.dp();
    if (how == 3) set.secondary = s.tensor("copy", {{6}}, Category::parameter), set.over.secondary = s.dp();
    if (how == 2) {
      const TensorId a = set.own_parameters = s.tensor("a", {{2, Axis::none, s.dp()}}, Category::parameter),
                     b = set.own_gradients = s.tensor("b", {{2, Axis::none, s.tp()}}, Category::gradient);
      s.piece().tensors[a].over[0].append(s.tp());
      s.piece().tensors[b].over[0].append(s.dp());
      set.over.states = s.tp() | s.dp();
    }
    if (how == 0) expect_proven(s);
    if (how == 1)
      expect_breaks(Rule::sets_divided, s,
                    R"("parameters" [-] are the weights of a parameter set that divides them over dp_shard)");
    if (how == 2) expect_breaks(Rule::sets_divided, s, R"("a" [dp_shard x tp] are updated with "b" [tp x dp_shard])");
    if (how == 3)
      expect_breaks(
          Rule::sets_divided, s,
          R"("copy" [-] are the second copy of the weights of a parameter set that divides them over dp_shard)");
  }
}

TEST(Check, AParameterOfSeveralStagesIsSummedOverThem) {
  enum How { kRight, kMissing, kTwice, kOfOtherStages, kOfOthersToo, kBehindAKernel, kOfAnotherSize };
  for (const How how : {kRight, kMissing, kTwice, kOfOtherStages, kOfOthersToo, kBehindAKernel, kOfAnotherSize}) {
    Small s;
    const auto [parameters, gradients] = s.trained();
    s.piece().parameters[0].tied = 1;
    s.collective(OpKind::all_reduce, s.dp(), gradients, gradients, &Piece::update);
    if (how == kBehindAKernel) s.op(OpKind::scale, {gradients}, {gradients}, &Piece::update);
    for (int times = how == kMissing ? 0 : how == kTwice ? 2 : 1; times > 0; --times)
      s.collective(OpKind::all_reduce, how == kOfOthersToo ? s.tp() : MeshGroup{}, gradients, gradients, &Piece::update)
          .stages = TableIndex<StageGroup>(how == kOfOtherStages ? 1 : 0);
    s.adam(gradients, parameters);
    Program& p = s.program;
    p.pieces.push_back(p.pieces[0]);
    if (how == kOfAnotherSize)  // and all that belongs to it
      for (const TensorId id :
           {parameters, gradients, s.piece().parameters[0].parameter, s.piece().parameters[0].gradient})
        p.pieces[1].tensors[id].sizes[0] = 8;
    p.pieces.emplace_back().name = "between";
    p.stages = {{{{{0, 1}}}}, {{{{2, 1}}}}, {{{{1, 1}}}}};
    p.schedule.position = {0, 1, 2};
    p.schedule.chunks = 1;
    p.stage_groups = {{0, 2}, {0, 1, 2}};
    const auto breaks = [&](const char* words) { expect_breaks(Rule::summed_over_holders, s, words); };
    if (how == kRight) expect_proven(s);
    if (how == kMissing) breaks(R"(the gradient of "w" is not summed over the stages that hold it)");
    if (how == kTwice) breaks(R"(the gradient of "w" owes no sum over stages)");
    if (how == kOfOtherStages)
      breaks(R"(the gradient of "w" is summed over stages 0, 1, 2, expected those that hold it, 0, 2)");
    if (how == kOfOthersToo || how == kBehindAKernel) breaks("after the update's reductions");
    if (how == kOfAnotherSize)
      breaks(R"("gradients" [-] is summed with [-] of 6 elements of another stage, expected the same)");
  }
}

// Two ranks with two slots each: expert 1 lies on both.
TEST(Check, ExpertsWithCopiesAreSummedOverThem) {
  enum How { kRight, kMissing, kTwice, kBeforeOthers, kOverOthers, kBehindTheNorm, kWithoutLoad, kLoadOnly, kLoadAlone };
  for (const How how :
       {kRight, kMissing, kTwice, kBeforeOthers, kOverOthers, kBehindTheNorm, kWithoutLoad, kLoadOnly, kLoadAlone}) {
    Small s;
    const auto [parameters, gradients] = s.trained(12);
    const TensorId w = s.piece().parameters[0].parameter, dw = s.piece().parameters[0].gradient,
                   dy = s.input("dy", {{2, Axis::experts, s.tp()}, {4, Axis::slots, s.dp()}, {6, Axis::hidden}});
    for (const TensorId id : {w, dw}) {
      Tensor& t = s.piece().tensors[id];
      t.rank = 2;
      t.sizes = {2, 6}, t.axes = {Axis::experts, Axis::hidden};
      t.over[0].append(s.tp());
    }
    s.piece().backward.ops[0].reads[0] = dy;
    if (how != kLoadOnly && how != kLoadAlone) s.program.expert_of_slot = {0, 1, 1, 2};
    s.program.loads.emplace_back().of = RowsOf::gradients;
    const auto sum_ranks = [&] { s.collective(OpKind::all_reduce, s.dp(), gradients, gradients, &Piece::update); };
    const TensorId norm = s.tensor("norm", {});
    const auto take_norm = [&] {
      s.op(OpKind::gradient_norm, {gradients}, {norm}, &Piece::update);
      s.collective(OpKind::all_reduce, s.tp(), norm, norm, &Piece::update);
    };
    if (how != kBeforeOthers) sum_ranks();
    if (how == kBehindTheNorm) take_norm();
    for (int times = how == kMissing || how == kLoadAlone ? 0 : how == kTwice ? 2 : 1; times > 0; --times) {
      Op& sum = s.collective(OpKind::all_reduce, how == kOverOthers ? s.cp() : s.tp(), gradients, gradients,
                             &Piece::update);
      sum.reduction = Reduction::copies;
      if (how != kWithoutLoad) sum.load = TableIndex<Load>(0);
    }
    if (how == kBeforeOthers) sum_ranks();
    s.adam(gradients, parameters);
    const auto breaks = [&](const char* words, Rule rule = Rule::summed_over_holders) {
      const std::vector<Violation> found = check(s.program);
      ASSERT_FALSE(found.empty()) << words;
      EXPECT_EQ(found.front().rule, rule) << words;
      EXPECT_THAT(found.front().text, HasSubstr(words));
    };
    if (how == kRight || how == kLoadOnly) expect_proven(s);
    if (how == kMissing || how == kLoadAlone) breaks(R"(the gradient of "w" is not summed over the copies of its experts)");
    if (how == kTwice) breaks(R"(the gradient of "w" is summed over copies for the second time)");
    if (how == kBeforeOthers) breaks("still owes the sum over dp_shard", Rule::gradient_meets_state);
    if (how == kOverOthers) breaks(R"("w" [tp | -] is summed over the copies of experts on ranks of cp)");
    if (how == kBehindTheNorm) breaks(R"(the gradient of "w" is not summed over the copies of its experts)");
    if (how == kWithoutLoad) breaks("with a load that says what ranks send");
  }
}

// Codes travel, and what ranks contribute to a sum is added once, by the quantiser behind the exchange.
TEST(Check, CodesAreExchangedAndSummedOnce) {
  enum How { good, reduced, kept_as_numbers, sum_of_nothing, other_group, misfit };
  for (const How how : {good, reduced, kept_as_numbers, sum_of_nothing, other_group, misfit}) {
    Small s;
    const MeshGroup over = how == other_group ? s.cp() : s.tp();
    const TensorId x = how == sum_of_nothing ? s.input("x", {{24}}) : s.owed("x"),
                   codes = s.tensor("codes", {{2}, {12}}), scales = s.tensor("scales", {{2}, {3}}),
                   part = s.tensor("part", {{2, Axis::contributions}, {1, Axis::none, over}, {12}}),
                   part_scales = s.tensor("part_scales", {{2, Axis::contributions}, {1, Axis::none, over}, {3}}),
                   sum = s.tensor("sum", {{how == misfit ? 13 : 12, Axis::none, over}}),
                   whole = s.tensor("whole", {{24}});
    s.op(OpKind::quantise, {x}, {codes, scales});
    if (how == reduced) s.collective(OpKind::all_reduce, s.tp(), codes, s.tensor("reduced", {{2}, {12}}));
    if (how == kept_as_numbers) s.op(OpKind::cast, {codes}, {s.tensor("cast", {{2}, {12}})});
    s.collective(OpKind::all_to_all, over, codes, part);
    s.collective(OpKind::all_to_all, over, scales, part_scales);
    s.op(OpKind::dequantise, {part, part_scales}, {sum});
    if (how == good) s.collective(OpKind::all_gather, s.tp(), sum, whole);
    switch (how) {
      case good:
        expect_proven(s);
        break;
      case reduced:
        expect_breaks(Rule::codes, s, R"("codes" [- | -] has codes, which can only be gathered or exchanged)");
        break;
      case kept_as_numbers:
        expect_breaks(Rule::codes, s, R"("codes" [- | -] has codes or contributions, which only a quantiser reads)");
        break;
      case sum_of_nothing:
        expect_breaks(Rule::scatters, s, R"("codes" [- | -] owes the sum over nothing, contributions come from tp)");
        break;
      case other_group:
        expect_breaks(Rule::scatters, s, R"("codes" [- | -] owes the sum over tp, contributions come from cp)");
        break;
      case misfit:
        expect_breaks(Rule::sizes, s, R"("sum" [tp] of 13 numbers has 12 codes)");
    }
  }
}

// Contributions that no quantiser has written cannot be summed by one.
TEST(Check, ContributionsAreSummedFromCodes) {
  Small s;
  const TensorId y = s.owed("y"), part = s.tensor("part", {{2, Axis::contributions}, {4}, {3, Axis::none, s.tp()}}),
                 codes = s.tensor("codes", {{4}, {3, Axis::none, s.tp()}}),
                 scales = s.tensor("scales", {{4}, {1, Axis::none, s.tp()}});
  s.collective(OpKind::all_to_all, s.tp(), y, part);
  s.op(OpKind::quantise, {part}, {codes, scales});
  expect_breaks(Rule::codes, s, "quantise reads \"part\" [- | - | tp], expected plain numbers");
}

// Codes behind the last number of a rank's part stay there: they would come between the parts of two ranks.
TEST(Check, CodesOfNoNumberAreNotPutBetweenParts) {
  for (const std::int64_t numbers : {6, 5}) {
    Small s;
    const TensorId x = s.input("x", {{numbers, Axis::none, s.dp()}}),
                   codes = s.tensor("codes", {{1}, {6, Axis::none, s.dp()}}),
                   scales = s.tensor("scales", {{1}, {2, Axis::none, s.dp()}}), all = s.tensor("all", {{1}, {12}}),
                   all_scales = s.tensor("all_scales", {{1}, {4}});
    s.op(OpKind::quantise, {x}, {codes, scales});
    s.collective(OpKind::all_gather, s.dp(), codes, all);
    s.collective(OpKind::all_gather, s.dp(), scales, all_scales);
    s.op(OpKind::dequantise, {all, all_scales}, {s.tensor("y", {{12}})});
    numbers == 6 ? expect_proven(s)
                 : expect_breaks(Rule::codes, s, "ends with codes of no number on each rank of dp_shard");
  }
}

// Whatever kernel of the update makes something of gradients, it finds them summed.
TEST(Check, KernelsOfTheUpdateReadWholeGradients) {
  for (const bool good : {true, false}) {
    Small s;
    const auto [parameters, gradients] = s.trained();
    const TensorId momentum = s.buffer("momentum", 6, Category::optimizer_state);
    if (good) s.collective(OpKind::all_reduce, s.dp(), gradients, gradients, &Piece::update);
    s.op(OpKind::add, {gradients, momentum}, {momentum}, &Piece::update);
    s.adam(momentum, parameters);
    good ? expect_proven(s) : expect_breaks(Rule::gradient_meets_state, s, "still owes the sum over dp_shard");
  }
}

// The same whatever the kernel: products and differences of gradients, and what is added to them.
TEST(Check, KernelsOfTheUpdateReadEqualParts) {
  {
    Small s;
    const auto [parameters, gradients] = s.trained();
    s.op(OpKind::multiply, {gradients, gradients}, {s.buffer("squares", 6, Category::optimizer_state)}, &Piece::update);
    s.collective(OpKind::all_reduce, s.dp(), gradients, gradients, &Piece::update);
    s.adam(gradients, parameters);
    expect_breaks(Rule::gradient_meets_state, s, "still owes the sum over dp_shard");
  }
  for (const bool owed : {true, false}) {
    Small s;
    const auto [parameters, gradients] = s.trained();
    const TensorId partial = s.owed("partial"), row = s.tensor("row", {{owed ? 6 : 5, Axis::hidden}});
    if (owed) s.op(OpKind::bias_gradient, {partial}, {row}, &Piece::backward);
    s.collective(OpKind::all_reduce, s.dp(), gradients, gradients, &Piece::update);
    if (!owed) s.op(OpKind::zero_fill, {}, {row}, &Piece::update);
    s.op(OpKind::add, {gradients, row}, {gradients}, &Piece::update);
    s.adam(gradients, parameters);
    const Rule rule = owed ? Rule::owed_refused : Rule::sizes;
    EXPECT_THAT(check(s.program), testing::Contains(Field("rule", &Violation::rule, rule))) << owed;
  }
}

// A copy moves what it has: a sum that is owed before it is owed after it.
TEST(Check, CopiesPassOnWhatIsOwed) {
  for (const bool summed : {true, false}) {
    Small s;
    const TensorId partial = s.owed("partial"), copied = s.tensor("copied", {{4, Axis::batch}, {6, Axis::hidden}}),
                   sum = s.tensor("sum", {{4, Axis::batch}, {6, Axis::hidden}});
    s.op(OpKind::copy, {partial}, {copied});
    if (summed) s.collective(OpKind::all_reduce, s.tp(), copied, sum);
    s.piece().output = summed ? sum : copied;
    summed ? expect_proven(s) : expect_breaks(Rule::pieces_fit, s, "owes the sum over tp");
  }
}

// A quotient is linear in what is divided, not in what divides.
TEST(Check, OnlyWhatIsDividedMayOweASum) {
  for (const bool divided : {true, false}) {
    Small s;
    const TensorId partial = s.owed("partial"), x = s.input("x", {{4, Axis::batch}, {6, Axis::hidden}}),
                   y = s.tensor("y", {{4, Axis::batch}, {6, Axis::hidden}}),
                   sum = s.tensor("sum", {{4, Axis::batch}, {6, Axis::hidden}});
    s.op(OpKind::multiply, {divided ? partial : x, divided ? x : partial}, {y}).divides = true;
    s.collective(OpKind::all_reduce, s.tp(), y, sum);
    s.piece().output = sum;
    if (divided)
      expect_proven(s);
    else
      EXPECT_THAT(check(s.program), testing::Contains(Field("rule", &Violation::rule, Rule::owed_refused)));
  }
}

TEST(Check, SlotsAreDividedAsTokensAre) {
  for (const bool good : {true, false}) {
    Small s;
    const TensorId x = s.input("x", {{2, Axis::batch, s.dp()}, {4, Axis::sequence, s.cp()}, {8, Axis::hidden}});
    const TensorId choices = s.input("choices", {{2, Axis::batch, s.dp()}, {4, Axis::sequence, s.cp()}, {2}});
    const TensorId rows =
        s.tensor("rows", {{4, Axis::experts}, {4, Axis::slots, good ? s.dp() | s.cp() : s.dp()}, {8, Axis::hidden}});
    s.op(OpKind::permute, {x, choices}, {rows});
    good ? expect_proven(s)
         : expect_breaks(
               Rule::own_rows, s,
               R"("x" [dp_shard | cp | -] has tokens of one part over dp_shard x cp, "rows" [- | dp_shard | -])");
  }
}

TEST(Check, TheNormIsOfAllGradients) {
  for (const bool good : {true, false}) {
    Small s;
    const auto [parameters, gradients] = s.trained();
    s.piece().tensors[s.piece().parameters[0].parameter].over[0].append(s.tp());  // each rank has other parameters
    s.piece().tensors[s.piece().parameters[0].gradient].over[0].append(s.tp());
    s.piece().tensors[s.piece().backward.ops[0].reads[0]].over[1].append(s.tp());
    s.collective(OpKind::all_reduce, s.dp(), gradients, gradients, &Piece::update);
    const TensorId local = s.tensor("local", {{1}}, Category::workspace),
                   all = s.tensor("all", {{1}}, Category::workspace);
    s.op(OpKind::gradient_norm, {gradients}, {local}, &Piece::update);
    if (good) s.collective(OpKind::all_reduce, s.tp(), local, all, &Piece::update);
    s.adam(gradients, parameters);
    good ? expect_proven(s) : expect_breaks(Rule::norm_of_all, s, R"(the norm "local" still owes the sum over tp)");
  }
}

// Each rank would clip by the norm of what it has.
TEST(Check, GradientsAreClippedByTheNormOfAll) {
  for (const OpKind kind : {OpKind::scale, OpKind::sgd})
    for (const bool good : {true, false}) {
      Small s;
      const auto [parameters, gradients] = s.trained();
      s.piece().tensors[s.piece().parameters[0].parameter].over[0].append(s.tp());  // each rank has other parameters
      s.piece().tensors[s.piece().parameters[0].gradient].over[0].append(s.tp());
      s.piece().tensors[s.piece().backward.ops[0].reads[0]].over[1].append(s.tp());
      s.collective(OpKind::all_reduce, s.dp(), gradients, gradients, &Piece::update);
      const TensorId local = s.tensor("local", {{1}}, Category::workspace),
                     all = s.tensor("all", {{1}}, Category::workspace);
      s.op(OpKind::gradient_norm, {gradients}, {local}, &Piece::update);
      s.collective(OpKind::all_reduce, s.tp(), local, all, &Piece::update);
      const TensorId norm = good ? all : local;
      if (kind == OpKind::scale) {
        s.op(OpKind::scale, {gradients, norm}, {gradients}, &Piece::update);
        s.adam(gradients, parameters);
      } else {
        s.op(OpKind::sgd, {gradients, parameters, kNoTensor, norm}, {parameters}, &Piece::update);
      }
      good ? expect_proven(s)
           : expect_breaks(Rule::norm_of_all, s,
                           R"(gradients are clipped by "local", which still owes the sum over tp)");
    }
}

TEST(Check, UpdatedPartsAreGatheredBeforeTheyAreRead) {
  for (const bool good : {true, false}) {
    Small s;
    const auto [parameters, gradients] = s.trained();
    const TensorId shard = s.tensor("shard", {{3, Axis::none, s.dp()}}, Category::parameter),
                   part = s.tensor("part", {{3, Axis::none, s.dp()}}, Category::gradient),
                   x = s.input("x", {{4, Axis::batch, s.dp()}, {6, Axis::hidden}}),
                   y = s.tensor("y", {{4, Axis::batch, s.dp()}, {6, Axis::hidden}});
    s.piece().tensors[shard].alias_of = parameters;
    s.piece().tensors[part].alias_of = gradients;
    s.op(OpKind::add, {x, kNoTensor, s.piece().parameters[0].parameter}, {y});
    s.collective(OpKind::reduce_scatter, s.dp(), gradients, part, &Piece::update);
    s.adam(part, shard);
    if (good) s.collective(OpKind::all_gather, s.dp(), shard, parameters, &Piece::update);
    good ? expect_proven(s)
         : expect_breaks(Rule::parameters_gathered, s,
                         R"("w" has been updated in parts over dp_shard and not gathered)");
  }
}

// Those who share one part are not all that it takes.
TEST(Check, UpdatedPartsAreGatheredOverAllOfTheirDigits) {
  for (const bool good : {true, false}) {
    Small s;
    const auto [parameters, gradients] = s.trained(8);
    const MeshGroup both = s.dp() | s.tp();
    const TensorId shard = s.tensor("shard", {{2, Axis::none, both}}, Category::parameter),
                   half = s.tensor("half", {{4, Axis::none, s.dp()}}, Category::parameter),
                   part = s.tensor("part", {{2, Axis::none, both}}, Category::gradient),
                   x = s.input("x", {{4, Axis::batch, s.dp()}, {8, Axis::hidden}}),
                   y = s.tensor("y", {{4, Axis::batch, s.dp()}, {8, Axis::hidden}});
    s.piece().tensors[shard].alias_of = s.piece().tensors[half].alias_of = parameters;
    s.piece().tensors[part].alias_of = gradients;
    s.op(OpKind::add, {x, kNoTensor, s.piece().parameters[0].parameter}, {y});
    s.collective(OpKind::all_reduce, s.dp(), gradients, gradients, &Piece::update);
    s.adam(part, shard);
    s.collective(OpKind::all_gather, s.tp(), shard, half, &Piece::update);
    if (good) s.collective(OpKind::all_gather, s.dp(), half, parameters, &Piece::update);
    good ? expect_proven(s)
         : expect_breaks(Rule::parameters_gathered, s,
                         R"("w" has been updated in parts over dp_shard and not gathered)");
  }
}

// The gradient of a table that all layers read is summed over the batch where it was made.
TEST(Check, SideGradientsOweTheSumOverTheBatch) {
  for (const bool good : {true, false}) {
    Small s;
    SideStream& side = s.piece().sides[kPositionTable];
    side.input = s.tensor("table", {{6, Axis::hidden}});
    const TensorId x = s.input("x", {{4, Axis::batch, s.dp()}, {6, Axis::hidden}}),
                   y = s.tensor("y", {{4, Axis::batch, s.dp()}, {6, Axis::hidden}}),
                   dy = s.input("dy", {{4, Axis::batch, s.dp()}, {6, Axis::hidden}}),
                   dtable = s.tensor("dtable", {{6, Axis::hidden}}), sum = s.tensor("sum", {{6, Axis::hidden}});
    s.op(OpKind::add, {x, kNoTensor, side.input}, {y});
    s.op(OpKind::bias_gradient, {dy}, {dtable}, &Piece::backward);
    if (!good) s.collective(OpKind::all_reduce, s.dp(), dtable, sum, &Piece::backward);
    side.input_gradient = good ? dtable : sum;
    good ? expect_proven(s)
         : expect_breaks(Rule::pieces_fit, s,
                         R"(the side gradient "sum" owes the sum over nothing, the piece before expects dp_shard)");
  }
}

TEST(Check, WhatIsHandedOnOwesNothing) {
  for (const bool good : {true, false}) {
    Small s;
    s.piece().output = s.owed("y");
    if (good) {
      const TensorId sum = s.tensor("sum", {{4, Axis::batch}, {6, Axis::hidden}});
      s.collective(OpKind::all_reduce, s.tp(), s.piece().output, sum);
      s.piece().output = sum;
    }
    good ? expect_proven(s) : expect_breaks(Rule::pieces_fit, s, R"(the output "y" owes the sum over tp)");
  }
}

TEST(Check, PiecesTakeWhatIsHandedOn) {
  for (const bool good : {true, false}) {
    Small s;
    s.piece().input = s.tensor("x", {{4, Axis::batch, s.dp()}});
    s.piece().output = s.tensor("y", {{good ? 4 : 2, Axis::batch, s.dp()}});
    s.op(OpKind::cast, {s.piece().input}, {s.piece().output});
    s.program.schedule.position = {0};
    s.program.stages = {{Chunk{{{0, 2}}}}};
    good ? expect_proven(s)
         : expect_breaks(
               Rule::pieces_fit, s,
               R"(piece "piece" takes "x" [dp_shard] of 4 elements, piece "piece" hands on "y" [dp_shard] of 2)");
  }
}

TEST(Check, PiecesTakeBackWhatIsHandedBack) {
  for (const bool good : {true, false}) {
    Small s;
    s.piece().input = s.tensor("x", {{4, Axis::batch, s.dp()}});
    s.piece().output = s.tensor("y", {{4, Axis::batch, s.dp()}});
    s.piece().output_gradient = s.tensor("dy", {{4, Axis::batch, s.dp()}});
    s.piece().input_gradient = s.tensor("dx", {{good ? 4 : 2, Axis::batch, s.dp()}});
    s.op(OpKind::cast, {s.piece().input}, {s.piece().output});
    s.op(OpKind::cast, {s.piece().output_gradient}, {s.piece().input_gradient}, &Piece::backward);
    s.program.schedule.position = {0};
    s.program.stages = {{Chunk{{{0, 2}}}}};
    good ? expect_proven(s)
         : expect_breaks(
               Rule::pieces_fit, s,
               R"(piece "piece" takes "dx" [dp_shard] of 2 elements, piece "piece" hands on "dy" [dp_shard] of 4)");
  }
}

// What one piece leaves of a gradient that lies in another is reduced with what the other leaves.
TEST(Check, AGradientOfTwoPiecesOwesTheSameInBoth) {
  for (const bool good : {true, false}) {
    Small s;
    const auto [parameters, gradients] = s.trained();
    s.collective(OpKind::all_reduce, s.dp(), gradients, gradients, &Piece::update);
    s.adam(gradients, parameters);
    Small other;
    other.piece().name = "other";
    const TensorId w = other.tensor("w", {{6, Axis::hidden}}, Category::parameter),
                   dw = other.tensor("w", {{6, Axis::hidden}}, Category::gradient),
                   dy = other.input("dy", {{4, Axis::batch, good ? s.dp() : s.cp()}, {6, Axis::hidden}});
    other.piece().tensors[w].shared = other.piece().tensors[dw].shared = true;
    other.piece().parameters.push_back({w, dw});
    other.op(OpKind::bias_gradient, {dy}, {dw}, &Piece::backward);
    s.program.pieces.push_back(other.piece());
    good ? expect_proven(s)
         : expect_breaks(Rule::owed_alike, s,
                         R"(piece "other": the gradient of "w", which lies in piece "piece", owes the sum over cp, )"
                         R"(there it owes dp_shard)");
  }
}

// Each rank writes its own part of what all hold whole.
TEST(Check, PartsOfWhatIsWholeOweTheirSum) {
  for (const bool good : {true, false}) {
    Small s;
    const TensorId dy = s.input("dy", {{4, Axis::sequence, s.tp()}}),
                   whole = s.tensor("whole", {{8, Axis::sequence}}, Category::gradient),
                   part = s.tensor("part", {{4, Axis::sequence, s.tp()}}, Category::gradient),
                   sum = s.tensor("sum", {{8, Axis::sequence}});
    s.piece().tensors[part].alias_of = whole;
    s.op(OpKind::cast, {dy}, {part});
    if (good) s.collective(OpKind::all_reduce, s.tp(), whole, sum);
    s.piece().output = good ? sum : whole;
    good ? expect_proven(s) : expect_breaks(Rule::pieces_fit, s, R"(the output "whole" owes the sum over tp)");
  }
}

// ---- frozen parameters ----

TEST(Check, AFrozenSetIsNotUpdated) {
  for (const bool good : {true, false}) {
    Small s;
    const auto [parameters, gradients] = s.trained();
    s.collective(OpKind::all_reduce, s.dp(), gradients, gradients, &Piece::backward);
    const TensorId frozen = s.buffer("frozen", 6, Category::parameter),
                   w = s.tensor("v", {{6, Axis::hidden}}, Category::parameter);
    s.piece().tensors[w].alias_of = frozen;
    s.piece().parameters.push_back({w, kNoTensor, 1});
    ParameterSet& set = s.piece().sets.emplace_back();
    set.parameters = set.own_parameters = frozen;
    s.op(OpKind::sgd, {gradients, good ? parameters : frozen}, {good ? parameters : frozen}, &Piece::update);
    good ? expect_proven(s)
         : expect_breaks(Rule::frozen_stays, s, R"("frozen" is updated, and has the parameters of a frozen set)");
  }
}

TEST(Check, AParameterWithoutAGradientLiesInAFrozenSet) {
  for (const bool good : {true, false}) {
    Small s;
    const auto [parameters, gradients] = s.trained();
    s.collective(OpKind::all_reduce, s.dp(), gradients, gradients, &Piece::backward);
    if (!good) s.piece().parameters[0].gradient = kNoTensor;
    good ? expect_proven(s)
         : expect_breaks(Rule::frozen_stays, s, R"("w" is frozen and lies in a parameter set that is not)");
  }
}

// What is frozen up to here needs no gradient, and hands none on; what is trained does.
TEST(Check, APieceHandsOnTheGradientThatTheOneBeforeTakes) {
  for (const bool good : {true, false}) {
    Small s;
    s.piece().input = s.tensor("x", {{4, Axis::batch, s.dp()}});
    s.piece().output = s.tensor("y", {{4, Axis::batch, s.dp()}});
    s.op(OpKind::cast, {s.piece().input}, {s.piece().output});
    if (!good) s.piece().output_gradient = s.tensor("dy", {{4, Axis::batch, s.dp()}});
    s.program.schedule.position = {0};
    s.program.stages = {{Chunk{{{0, 2}}}}};
    good ? expect_proven(s)
         : expect_breaks(Rule::pieces_fit, s,
                         R"(piece "piece" takes "dy" for its backward, which piece "piece" does not hand on)");
  }
}

// ---- layouts ----

TEST(Division, ListsDigitsFromMajorToMinor) {
  Mesh mesh;
  mesh.add(MeshAxis::tp, 2);
  mesh.add(MeshAxis::cp, 3);
  Division d;
  EXPECT_TRUE(d.empty());
  d.append(mesh.group(MeshAxis::cp));
  d.append(mesh.group(MeshAxis::tp));
  EXPECT_EQ(d.count(), 2);
  EXPECT_EQ(d.digit(0), 1);
  EXPECT_EQ(d.digit(1), 0);
  Division both, major;
  both.append(mesh.group({MeshAxis::tp, MeshAxis::cp}));  // the outermost digit is the major one
  major.append(mesh.group(MeshAxis::cp));
  EXPECT_EQ(d, both);
  EXPECT_TRUE(d.begins_with(major));
  EXPECT_FALSE(major.begins_with(d));
  EXPECT_FALSE(d.has_room_for(mesh.group(MeshAxis::tp)));
}

// Every index is on one rank, but for what all have.
TEST(Division, DealsEveryIndex) {
  Mesh mesh;
  mesh.add(MeshAxis::tp, 2);
  mesh.add(MeshAxis::cp, 3);
  Division over;
  over.append(mesh.group({MeshAxis::tp, MeshAxis::cp}));
  DealTables tables;
  for (const Deal deal : {Deal(Deal::contiguous), Deal(Deal::zigzag), Deal(Deal::striped),
                          tables.by_blocks(std::vector<std::int64_t>{2, 0, 1, 1, 2, 0})}) {
    std::vector<std::int64_t> all;
    for (std::int64_t rank = 0; rank < mesh.ranks(); ++rank)
      for (const std::int64_t i : dealt_indices(deal, over, 24, 4, mesh, rank)) all.push_back(i);
    std::sort(all.begin(), all.end());
    for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], static_cast<std::int64_t>(i)) << name_of(deal);
  }
  // Of context rank 1 blocks 1 and 4 of 6, of which tensor ranks have a half each.
  EXPECT_THAT(dealt_indices(Deal::zigzag, over, 24, 4, mesh, 2), testing::ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(dealt_indices(Deal::zigzag, over, 24, 4, mesh, 3), testing::ElementsAre(16, 17, 18, 19));
  EXPECT_THAT(dealt_indices(Deal::contiguous, over, 24, 4, mesh, 3), testing::ElementsAre(12, 13, 14, 15));
  // Every third index, of which tensor ranks have the first and the second half.
  EXPECT_THAT(dealt_indices(Deal::striped, over, 24, 4, mesh, 2), testing::ElementsAre(1, 4, 7, 10));
  EXPECT_THAT(dealt_indices(Deal::striped, over, 24, 4, mesh, 3), testing::ElementsAre(13, 16, 19, 22));
  // Of context rank 1 of three blocks 2 and 3 of six, of which tensor ranks have one each.
  const std::vector<std::int64_t> owners{0, 2, 1, 1, 0, 2};
  const Deal table = tables.by_blocks(owners);
  EXPECT_EQ(table, tables.by_blocks(owners));
  EXPECT_NE(table, tables.by_blocks(std::vector<std::int64_t>{0, 2, 1, 1, 2, 0}));
  EXPECT_THAT(dealt_indices(table, over, 24, 4, mesh, 2), testing::ElementsAre(8, 9, 10, 11));
  EXPECT_THAT(dealt_indices(table, over, 24, 4, mesh, 3), testing::ElementsAre(12, 13, 14, 15));
  EXPECT_THAT(dealt_indices(table, over, 24, 4, mesh, 5), testing::ElementsAre(20, 21, 22, 23));
  EXPECT_THROW(tables.by_blocks(std::vector<std::int64_t>{0, 0, 1}), std::logic_error);
  // Six query heads over two ranks, a key and a value that both have.
  Division heads;
  heads.append(mesh.group(MeshAxis::tp));
  EXPECT_THAT(dealt_indices(Deal::query_heads, heads, 8, 5, mesh, 1), testing::ElementsAre(3, 4, 5, 6, 7));
}

// Two workers, each of two data-parallel replicas, and a task that makes what all have alike of their parameters.
struct Workers : Small {
  Workers() {
    program.mesh.add(MeshAxis::worker, 2);
    parameters = trained().parameters;
    collective(OpKind::all_reduce, dp(), piece().sets[0].gradients, piece().sets[0].gradients, &Piece::update);
    adam(piece().sets[0].gradients, parameters);
    average = buffer("average", 6, Category::optimizer_state);
    piece().tensors[average].common = true;
    piece().tasks.resize(2);
    program.tasks = {{.name = "steps", .repeats = 3}, {.name = "agree", .block = 1}};
  }
  MeshGroup workers() const { return program.mesh.group(MeshAxis::worker); }
  Op& in_task(std::uint16_t block, OpKind kind, TensorId read, TensorId write, MeshGroup group = {}) {
    Op o;
    o.kind = kind;
    o.name = "op";
    o.phase = Phase::update;
    o.group = group;
    o.reads[0] = read;
    o.writes[0] = write;
    piece().tasks[block - 1u].ops.push_back(o);
    return piece().tasks[block - 1u].ops.back();
  }
  void mean(std::uint16_t block, MeshGroup group) {
    in_task(block, OpKind::all_reduce, parameters, average, group).reduction = Reduction::mean;
  }
  TensorId parameters, average;
};

TEST(Check, WorkersOweNoSumToEachOther) {
  Workers good;
  good.mean(1, good.workers());
  expect_proven(good);
  // A sum of gradients over the workers is a sum that nobody owes.
  Workers bad;
  bad.mean(1, bad.workers());
  bad.piece().update.ops[0].group = bad.dp() | bad.workers();
  expect_breaks(Rule::reduces, bad, "worker");
}

// Ranks of a worker may take part in a mean of what they have alike, not of parts.
TEST(Check, AMeanMayTakeInWhatRanksOfAWorkerHaveAlike) {
  Workers good;
  good.mean(1, good.workers() | good.dp());
  expect_proven(good);
  Workers parts;
  for (const TensorId id : {parts.parameters, parts.average}) parts.piece().tensors[id].over[0].append(parts.dp());
  parts.mean(1, parts.workers() | parts.dp());
  EXPECT_THAT(check(parts.program), testing::Contains(Field("rule", &Violation::rule, Rule::common_to_workers)));
}

// The norm of a buffer that lies as parameters do is of all that hold other parts of it.
TEST(Check, TheNormOfAnotherBufferIsOfAllParts) {
  for (const bool good : {true, false}) {
    Workers w;
    w.piece().tensors[w.piece().parameters[0].parameter].over[0].append(w.tp());  // each rank has other parameters
    w.piece().tensors[w.piece().parameters[0].gradient].over[0].append(w.tp());
    w.piece().tensors[w.piece().backward.ops[0].reads[0]].over[1].append(w.tp());
    w.mean(1, w.workers());
    const TensorId local = w.tensor("local", {{1}}, Category::workspace),
                   all = w.tensor("all", {{1}}, Category::workspace);
    w.program.tasks.push_back({.name = "norm", .block = 2});
    w.in_task(2, OpKind::gradient_norm, w.average, local);
    if (good) w.in_task(2, OpKind::all_reduce, local, all, w.tp());
    good ? expect_proven(w) : expect_breaks(Rule::norm_of_all, w, R"(the norm "local" still owes the sum over tp)");
  }
}

TEST(Check, WhatAllWorkersHaveAlikeComesFromTheirMean) {
  Workers copied;  // each worker's own parameters
  copied.in_task(1, OpKind::cast, copied.parameters, copied.average);
  expect_breaks(Rule::common_to_workers, copied, "no mean over worker");
  for (const bool adds : {true, false}) {
    Workers partly;
    const TensorId own = partly.buffer("own", 6, Category::workspace), half = partly.tensor("half", {{3}}),
                   third = partly.buffer("third", 3, Category::optimizer_state);
    partly.piece().tensors[half].alias_of = own;
    partly.piece().tensors[third].common = true;
    partly.collective(OpKind::all_reduce, partly.workers(), partly.parameters, partly.average, &Piece::update)
        .reduction = Reduction::mean;
    partly.op(OpKind::subtract, {partly.parameters, partly.parameters}, {own}, &Piece::update);
    if (adds)  // to what each worker has for itself
      partly.op(OpKind::cast, {partly.average}, {own}, &Piece::update).accumulate = true;
    else  // in one half of it
      partly.op(OpKind::activation, {third}, {half}, &Piece::update);
    const TensorId again = partly.buffer("again", 6, Category::optimizer_state);
    partly.piece().tensors[again].common = true;
    partly.op(OpKind::scale, {own}, {again}, &Piece::update);
    expect_breaks(Rule::common_to_workers, partly, "no mean over worker");
  }
  Workers narrow;
  narrow.mean(1, narrow.dp());
  EXPECT_THAT(check(narrow.program), testing::Contains(Field("rule", &Violation::rule, Rule::common_to_workers)));
}

// Codes of what each worker has for itself give the mean of all workers, which all have alike.
TEST(Check, CodesOfWorkersGiveTheirMean) {
  enum How { good, sum, owed, misfit, own, lost };
  for (const How how : {good, sum, owed, misfit, own, lost}) {
    Workers w;
    const MeshGroup workers = w.workers();
    const TensorId codes = w.tensor("codes", {{2}, {3}}), scales = w.tensor("scales", {{2}, {1}}),
                   error = w.buffer("error", how == misfit ? 5 : 6, Category::optimizer_state),
                   part = w.tensor("part", {{2, Axis::contributions}, {1, Axis::none, workers}, {3}}),
                   part_scales = w.tensor("part_scales", {{2, Axis::contributions}, {1, Axis::none, workers}, {1}}),
                   mean = w.tensor("mean", {{1, Axis::none, workers}, {3}}),
                   mean_scales = w.tensor("mean_scales", {{1, Axis::none, workers}, {1}}),
                   all = w.tensor("all", {{2}, {3}}), all_scales = w.tensor("all_scales", {{2}, {1}});
    w.op(OpKind::quantise, {w.parameters, error}, {codes, scales, how == lost ? kNoTensor : error}, &Piece::update);
    for (const auto& [from, to] : {std::pair(codes, part), std::pair(scales, part_scales)})
      w.collective(OpKind::all_to_all, workers, from, to, &Piece::update).reduction =
          how == owed ? Reduction::sum : Reduction::mean;
    w.op(OpKind::requantise, {part, part_scales}, {mean, mean_scales}, &Piece::update).scale = how == sum ? 1 : 0.5;
    for (const auto& [from, to] : {std::pair(mean, all), std::pair(mean_scales, all_scales)})
      w.collective(OpKind::all_gather, workers, from, to, &Piece::update);
    if (how == own)
      w.op(OpKind::dequantise, {codes, scales}, {w.average}, &Piece::update);
    else
      w.op(OpKind::dequantise, {all, all_scales}, {w.average}, &Piece::update);
    if (how == good) expect_proven(w);
    if (how == sum)
      expect_breaks(Rule::codes, w, "is summed over workers and multiplied by 1.000000, expected their mean");
    if (how == owed) {
      EXPECT_THAT(check(w.program), testing::Contains(Field("rule", &Violation::rule, Rule::scatters)));
    }
    if (how == misfit) expect_breaks(Rule::sizes, w, "has errors of other numbers than");
    if (how == own) expect_breaks(Rule::common_to_workers, w, "no mean over worker");
    if (how == lost) expect_breaks(Rule::codes, w, "has an error that is not both read and written");
  }
}

// The largest numbers of all workers, with their places, give a mean that all have alike.
TEST(Check, SparseNumbersOfWorkersGiveTheirMean) {
  enum How { good, sum, alone, mixed, added, misfit, groups, swapped, divided };
  for (const How how : {good, sum, alone, mixed, added, misfit, groups, swapped, divided}) {
    Workers w;
    const MeshGroup workers = w.workers();
    const auto places = [&](const char* name, MeshGroup over, std::int64_t size) {
      // How `groups`: groups of one contribution are gathered.
      const MeshGroup of_groups = how == divided ? w.dp() : MeshGroup{};
      const TensorId id = how == groups
                              ? w.tensor(name, {{1, Axis::contributions}, {2 * size, Axis::none, over}, {1}})
                              : w.tensor(name, {{size, Axis::contributions, over}, {2, Axis::none, of_groups}, {1}});
      w.piece().tensors[id].dtype = std::string_view(name).ends_with("indices") ? Dtype::int32 : Dtype::fp32;
      return id;
    };
    const TensorId values = places("values", workers, 1), indices = places("indices", workers, 1),
                   all = places("all", {}, 2), all_indices = places("all_indices", {}, 2),
                   error = w.buffer("error", how == misfit ? 5 : 6, Category::optimizer_state);
    w.op(OpKind::sparsify, {w.parameters, error}, {values, indices, error}, &Piece::update);
    w.collective(OpKind::all_gather, workers, values, all, &Piece::update);
    w.collective(OpKind::all_gather, workers, indices, all_indices, &Piece::update);
    if (how == added) w.op(OpKind::add, {all, all}, {w.tensor("twice", {{2}, {2}, {1}})}, &Piece::update);
    Op& densify = w.op(OpKind::densify, {how == alone ? values : all, how == mixed ? indices : all_indices},
                       {w.average}, &Piece::update);
    densify.scale = how == sum ? 1 : 0.5;
    if (how == swapped) std::swap(densify.reads[0], densify.reads[1]);
    if (how == good)
      expect_proven(w);
    else if (how == added)
      expect_breaks(Rule::codes, w, "has codes or contributions");
    else if (how == misfit)
      expect_breaks(Rule::sizes, w, "has errors of other numbers than");
    else if (how == swapped)
      expect_breaks(Rule::sizes, w, "are not fp32 numbers and as many int32 indices");
    else if (how == divided)
      expect_breaks(Rule::operands_agree, w, "are divided differently, expected alike");
    else if (how == sum)
      expect_breaks(Rule::codes, w, "expected the mean of numbers and their indices from all workers");
    else
      EXPECT_THAT(check(w.program), testing::Contains(Field("rule", &Violation::rule, Rule::codes)));
  }
}

TEST(Check, TasksWaitForWhatTheyTouch) {
  // The mean is taken beside the next steps: these change what it reads.
  Workers racing;
  racing.mean(1, racing.workers());
  racing.program.tasks[1].beside = true;
  expect_breaks(Rule::tasks_in_order, racing, "while \"agree\", which it does not wait for, reads it");
  racing.program.tasks[0].after = {{.task = 1, .lag = 1}};
  expect_proven(racing);
  racing.program.tasks[0].after = {{.task = 1, .lag = 2}};  // that of the iteration before
  expect_breaks(Rule::tasks_in_order, racing, "which it does not wait for");

  // Parameters are sent from a copy, and come back before they are used.
  Workers late;
  const TensorId sent = late.buffer("sent", 6, Category::communication_buffer);
  late.in_task(1, OpKind::cast, late.average, late.parameters);
  late.in_task(1, OpKind::cast, late.parameters, sent);
  late.in_task(2, OpKind::all_reduce, sent, late.average, late.workers()).reduction = Reduction::mean;
  late.program.tasks = {{.name = "steps", .repeats = 3},
                        {.name = "apply", .block = 1, .after = {{.task = 2, .lag = 1}}},
                        {.name = "exchange", .block = 2, .beside = true}};
  expect_breaks(Rule::tasks_in_order, late, "reads \"average\" before anything has written it");
  late.piece().tasks.resize(3);
  late.program.begin = 3;
  late.in_task(3, OpKind::zero_fill, kNoTensor, late.average);
  expect_proven(late);
  late.program.tasks[1].after = {};
  expect_breaks(Rule::tasks_in_order, late, "which it does not wait for");
}

TEST(Check, TasksWaitForEarlierOnes) {
  for (const After& after : {After{.task = 1, .lag = 0}, After{.task = 2, .lag = 0}, After{.task = 3, .lag = 1}}) {
    Workers waiting;
    waiting.mean(1, waiting.workers());
    waiting.program.tasks[1].after = {after};
    expect_breaks(Rule::tasks_in_order, waiting, "it would wait forever");
  }
}

TEST(Check, OnlyCollectivesRunBesideOtherTasks) {
  Workers computing;
  computing.mean(1, computing.workers());
  computing.in_task(1, OpKind::zero_fill, kNoTensor, computing.buffer("scratch", 6, Category::optimizer_state));
  computing.program.tasks[1].beside = true;
  computing.program.tasks[0].after = {{.task = 1, .lag = 1}};
  expect_breaks(Rule::tasks_in_order, computing, "has more than collectives");
}

}  // namespace
}  // namespace orrery
