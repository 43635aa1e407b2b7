// Does memory follow from first definition and last use? Small handmade pieces, counted by hand.
#include <gtest/gtest.h>

#include "sim/memory/memory.h"

namespace orrery {
namespace {

struct Maker {
  Piece piece;
  TensorId tensor(std::int64_t bytes, Category category = Category::activation) {
    Tensor t;
    t.rank = 1;
    t.sizes[0] = bytes;
    t.dtype = Dtype::uint8;
    t.category = category;
    return piece.add(t);
  }
  TensorId resident(std::int64_t bytes, Category category) {
    const TensorId id = tensor(bytes, category);
    piece.tensors[id].resident = true;
    return id;
  }
  TensorId view(TensorId base, std::int64_t bytes) {
    Tensor t = piece.tensors[base];
    t.sizes[0] = bytes;
    t.alias_of = base;
    t.resident = false;
    return piece.add(t);
  }
  const ParameterSet& set(TensorId parameters, TensorId gradients) {
    ParameterSet& set = piece.sets.emplace_back();
    set.parameters = parameters, set.gradients = gradients;
    return set;
  }
  Op& op(Block& block, std::initializer_list<TensorId> reads, std::initializer_list<TensorId> writes,
         OpKind kind = OpKind::cast) {
    Op o;
    o.kind = kind;
    std::copy(reads.begin(), reads.end(), o.reads.begin());
    std::copy(writes.begin(), writes.end(), o.writes.begin());
    block.ops.push_back(o);
    return block.ops.back();
  }
};

double of(const PlacedBytes& bytes, Category category) { return bytes.of(Place::device, category); }

TEST(PieceMemory, SavesWhatTheForwardDefinesAndTheBackwardUses) {
  Maker m;
  const TensorId x = m.piece.input = m.tensor(10), kept = m.tensor(20), gone = m.tensor(40),
                 y = m.piece.output = m.tensor(80);
  m.op(m.piece.forward, {x}, {kept});
  m.op(m.piece.forward, {kept}, {gone});
  m.op(m.piece.forward, {gone}, {y});
  m.op(m.piece.backward, {kept}, {m.tensor(1)});
  const PieceMemory memory = piece_memory(m.piece, 1);
  EXPECT_EQ(of(memory.saved, Category::activation), 20);
  // The forward's worst instant is its last op: kept, gone and y; x is read by then.
  EXPECT_EQ(device_bytes(memory.saved) + device_bytes(memory.forward_transient), 20 + 40 + 80);
  EXPECT_EQ(device_bytes(memory.resident), 0);
}

TEST(PieceMemory, TheInputIsTheConsumersAndTheOutputIsNobodysUntilThen) {
  Maker m;
  const TensorId x = m.piece.input = m.tensor(10), y = m.piece.output = m.tensor(80);
  m.op(m.piece.forward, {x}, {y});
  m.op(m.piece.backward, {x}, {m.tensor(1)});
  EXPECT_EQ(device_bytes(piece_memory(m.piece, 1).saved), 10);
  m.op(m.piece.backward, {y}, {m.tensor(1)});  // as after a normalised output
  EXPECT_EQ(device_bytes(piece_memory(m.piece, 1).saved), 90);
}

TEST(PieceMemory, WhatTheBackwardDefinesAnewIsNotSaved) {
  Maker m;
  const TensorId x = m.piece.input = m.tensor(10), h = m.tensor(100);
  m.op(m.piece.forward, {x}, {h});
  m.op(m.piece.backward, {x}, {h});  // recomputed
  m.op(m.piece.backward, {h}, {m.tensor(7)});
  const PieceMemory memory = piece_memory(m.piece, 1);
  EXPECT_EQ(device_bytes(memory.saved), 10);
  // At the second op: h and the new tensor; x has been freed, which the transient says as -10.
  EXPECT_EQ(device_bytes(memory.saved) + device_bytes(memory.backward_transient), 110);
}

// Also for weight gradients that run apart: they read what the backward has made.
TEST(PieceMemory, WhatTheBackwardDefinesAnewForWeightGradientsIsNotSaved) {
  Maker m;
  const TensorId x = m.piece.input = m.tensor(10), h = m.tensor(100);
  m.op(m.piece.forward, {x}, {h});
  m.op(m.piece.backward, {x}, {h});
  m.op(m.piece.weight_gradient, {h}, {m.tensor(7)});
  const PieceMemory memory = piece_memory(m.piece, 1);
  EXPECT_EQ(device_bytes(memory.saved), 10);
  EXPECT_EQ(device_bytes(memory.saved_weight_gradient), 100);
}

TEST(PieceMemory, TheBackwardFreesWhatItHasUsed) {
  Maker m;
  const TensorId a = m.tensor(100), b = m.tensor(50), big = m.tensor(120);
  m.op(m.piece.forward, {}, {a});
  m.op(m.piece.forward, {}, {b});
  m.op(m.piece.backward, {a}, {m.tensor(1)});
  m.op(m.piece.backward, {b}, {big});
  const PieceMemory memory = piece_memory(m.piece, 1);
  EXPECT_EQ(device_bytes(memory.saved), 150);
  EXPECT_EQ(device_bytes(memory.backward_transient), 20);  // 50 + 120 against the 150 held
}

TEST(PieceMemory, ViewsShareTheirStorageAndKeepItAlive) {
  Maker m;
  const TensorId base = m.tensor(30), view = m.view(base, 30), unused = m.tensor(1);
  m.op(m.piece.forward, {}, {base});
  m.op(m.piece.backward, {view}, {unused});
  EXPECT_EQ(device_bytes(piece_memory(m.piece, 1).saved), 30);
}

TEST(PieceMemory, SlicesOfFlatBuffersAddNothing) {
  Maker m;
  const ParameterSet& set = m.set(m.resident(100, Category::parameter), m.resident(200, Category::gradient));
  const TensorId w = m.view(set.parameters, 60), dw = m.view(set.gradients, 120);
  m.op(m.piece.forward, {w}, {m.tensor(1)});
  m.op(m.piece.backward, {w}, {dw}).accumulate = true;
  const PieceMemory memory = piece_memory(m.piece, 1);
  EXPECT_EQ(of(memory.resident, Category::parameter), 100);
  EXPECT_EQ(of(memory.resident, Category::gradient), 200);
  EXPECT_EQ(device_bytes(memory.saved), 0);
  EXPECT_EQ(device_bytes(memory.backward_transient), 0);
}

TEST(PieceMemory, WithoutFlatBuffersParametersAndGradientsCountThemselves) {
  Maker m;
  const TensorId w = m.tensor(60, Category::parameter), dw = m.tensor(120, Category::gradient);
  m.op(m.piece.forward, {w}, {m.tensor(1)});
  m.op(m.piece.backward, {w}, {dw}).accumulate = true;
  const PieceMemory memory = piece_memory(m.piece, 1);
  EXPECT_EQ(of(memory.resident, Category::parameter), 60);
  EXPECT_EQ(of(memory.resident, Category::gradient), 120);
}

TEST(PieceMemory, ATensorOfAnotherPieceCountsThere) {
  Maker m;
  const TensorId table = m.tensor(60, Category::parameter);
  m.piece.tensors[table].shared = true;
  m.op(m.piece.forward, {table}, {m.tensor(1)});
  m.op(m.piece.backward, {table}, {m.tensor(1)});
  EXPECT_EQ(device_bytes(piece_memory(m.piece, 1).resident), 0);
}

// A ZeRO-3 layer: a resident shard, gathered for each block.
Maker gathered_layer(std::uint16_t prefetch) {
  Maker m;
  const TensorId shard = m.set(m.resident(10, Category::parameter), kNoTensor).parameters;
  for (Block* block : {&m.piece.forward, &m.piece.backward}) {
    const TensorId whole = m.tensor(80, Category::parameter), slice = m.view(whole, 80);
    m.op(*block, {shard}, {whole}, OpKind::all_gather).prefetch = prefetch;
    m.op(*block, {slice}, {m.tensor(5)});
  }
  return m;
}

TEST(PieceMemory, GatheredParametersComeAndGoWithTheBlock) {
  const PieceMemory memory = piece_memory(gathered_layer(0).piece, 1, 24);
  EXPECT_EQ(of(memory.resident, Category::parameter), 10);
  EXPECT_EQ(device_bytes(memory.saved), 0);
  EXPECT_EQ(of(memory.forward_transient, Category::parameter), 80);
  EXPECT_EQ(of(memory.backward_transient, Category::parameter), 80);
}

TEST(PieceMemory, PrefetchHoldsTheNextLayersToo) {
  EXPECT_EQ(of(piece_memory(gathered_layer(2).piece, 1, 24).forward_transient, Category::parameter), 3 * 80);
  EXPECT_EQ(of(piece_memory(gathered_layer(2).piece, 1, 2).forward_transient, Category::parameter), 2 * 80);
}

// Gathered with another kernel than the first: until then only what is issued by nearer layers is there.
TEST(PieceMemory, PrefetchHoldsTheFurthestLayerFromTheKernelThatIssuesIt) {
  for (const int prefetch : {1, 2}) {
    Maker m;
    const TensorId shard = m.set(m.resident(10, Category::parameter), kNoTensor).parameters;
    const TensorId first = m.tensor(80, Category::parameter), second = m.tensor(30, Category::parameter);
    m.op(m.piece.forward, {shard}, {first}, OpKind::all_gather).prefetch = static_cast<std::uint16_t>(prefetch);
    m.op(m.piece.forward, {first}, {m.tensor(5)});
    m.op(m.piece.forward, {shard}, {second}, OpKind::all_gather);
    m.op(m.piece.forward, {second}, {m.tensor(5)}).issues_ahead = true;
    const double nearer = 80 * (prefetch - 1);
    EXPECT_EQ(of(piece_memory(m.piece, 1, 24).forward_transient, Category::parameter), nearer + 30 + 80) << prefetch;
    m.op(m.piece.forward, {first}, {m.tensor(5)});
    EXPECT_EQ(of(piece_memory(m.piece, 1, 24).forward_transient, Category::parameter), nearer + 80 + 30 + 80);
    m.piece.forward.ops.pop_back();
    m.piece.tensors[first].sizes[0] = 20;  // the furthest is no more than what it takes the place of
    EXPECT_EQ(of(piece_memory(m.piece, 1, 24).forward_transient, Category::parameter), 20 * (prefetch - 1) + 30 + 20);
  }
}

TEST(PieceMemory, ParametersKeptForTheBackwardAreHeldOnce) {
  Maker m;
  const TensorId shard = m.set(m.resident(10, Category::parameter), kNoTensor).parameters;
  const TensorId whole = m.tensor(80, Category::parameter);
  m.op(m.piece.forward, {shard}, {whole}, OpKind::all_gather);
  m.op(m.piece.backward, {whole}, {m.tensor(1)});
  const PieceMemory memory = piece_memory(m.piece, 1);
  EXPECT_EQ(of(memory.resident, Category::parameter), 90);
  EXPECT_EQ(device_bytes(memory.saved), 0);
}

// A table that the head shares, gathered in the embedding's forward, and its gradient, which the head begins.
TEST(PieceMemory, WhatIsLentStaysUntilTheLastPieceHasUsedIt) {
  Maker lender;
  const ParameterSet& set =
      lender.set(lender.resident(10, Category::parameter), lender.resident(10, Category::gradient));
  const TensorId whole = lender.tensor(80, Category::parameter), table = lender.view(whole, 60),
                 gradients = lender.tensor(70, Category::gradient), of_table = lender.view(gradients, 60);
  lender.op(lender.piece.forward, {set.parameters}, {whole}, OpKind::all_gather);
  lender.op(lender.piece.forward, {table}, {lender.tensor(5)});
  lender.op(lender.piece.backward, {}, {of_table}).accumulate = true;
  lender.op(lender.piece.backward, {gradients}, {set.gradients}, OpKind::reduce_scatter).accumulate = true;
  const PieceMemory alone = piece_memory(lender.piece, 1);
  EXPECT_EQ(device_bytes(alone.saved), 0);
  EXPECT_FALSE(alone.lends_gradients);
  for (const TensorId id : {table, of_table}) lender.piece.tensors[id].lent = true;
  const PieceMemory lent = piece_memory(lender.piece, 1);
  EXPECT_EQ(device_bytes(lent.saved), 80) << "all that is gathered with it";
  EXPECT_EQ(device_bytes(lent.saved) + device_bytes(lent.forward_transient), 80 + 5);
  EXPECT_TRUE(lent.lends_gradients);
  EXPECT_EQ(device_bytes(lent.lent_gradients), 70);
  EXPECT_EQ(device_bytes(lent.saved) + device_bytes(lent.backward_transient), 80 + 70);
  EXPECT_EQ(device_bytes(lent.resident), 20);

  Maker borrower;  // which adds to it between a large temporary and a small one
  const TensorId shared = borrower.tensor(60, Category::gradient), large = borrower.tensor(100),
                 small = borrower.tensor(30);
  borrower.piece.tensors[shared].shared = true;
  borrower.op(borrower.piece.backward, {}, {large});
  borrower.op(borrower.piece.backward, {large}, {small});
  borrower.op(borrower.piece.backward, {small}, {shared}).accumulate = true;
  const PieceMemory borrowed = piece_memory(borrower.piece, 1);
  EXPECT_TRUE(borrowed.shares_gradients);
  EXPECT_EQ(device_bytes(borrowed.backward_transient), 130);
  EXPECT_EQ(device_bytes(borrowed.backward_before_shared), 130);
  EXPECT_EQ(device_bytes(borrowed.backward_from_shared), 30);
}

TEST(PieceMemory, UnreducedGradientsWaitForTheirBucket) {
  Maker m;
  const TensorId shard = m.set(kNoTensor, m.resident(10, Category::gradient)).gradients;
  const TensorId whole = m.tensor(80, Category::gradient);
  m.op(m.piece.backward, {m.tensor(1)}, {whole}).accumulate = true;
  m.op(m.piece.backward, {whole}, {shard}, OpKind::reduce_scatter).every = 4;
  EXPECT_EQ(of(piece_memory(m.piece, 1, 24).resident, Category::gradient), 10);
  EXPECT_EQ(of(piece_memory(m.piece, 1, 24).backward_transient, Category::gradient), 4 * 80);
  EXPECT_EQ(of(piece_memory(m.piece, 1, 2).backward_transient, Category::gradient), 2 * 80);
}

TEST(PieceMemory, SplitBackwardsHoldWhatTheirWeightGradientsNeed) {
  Maker m;
  const TensorId x = m.piece.input = m.tensor(10), other = m.tensor(20), dy = m.piece.output_gradient = m.tensor(40);
  m.op(m.piece.forward, {x}, {other});
  const TensorId dx = m.piece.input_gradient = m.tensor(80);
  m.op(m.piece.backward, {dy, other}, {dx});
  m.op(m.piece.weight_gradient, {x, dy}, {m.tensor(5)});
  const PieceMemory memory = piece_memory(m.piece, 1);
  EXPECT_EQ(device_bytes(memory.saved), 30);
  EXPECT_EQ(device_bytes(memory.saved_weight_gradient), 10 + 40);
  EXPECT_EQ(device_bytes(memory.saved) + device_bytes(memory.backward_transient), 10 + 20 + 40 + 80);
  EXPECT_EQ(device_bytes(memory.weight_gradient_transient), 5);
}

// A gibibyte for the host is none for the device, and none for storage; each keeps what its bytes are for.
TEST(PieceMemory, PlacesAreCountedApart) {
  Maker m;
  const TensorId states = m.resident(100, Category::optimizer_state), offloaded = m.tensor(30), a = m.tensor(30),
                 table = m.tensor(200, Category::parameter);
  m.piece.tensors[states].place = m.piece.tensors[offloaded].place = Place::host;
  m.piece.tensors[table].place = Place::storage;
  m.op(m.piece.forward, {table}, {a}, OpKind::copy);
  m.op(m.piece.forward, {a}, {offloaded}, OpKind::copy);
  m.op(m.piece.backward, {offloaded}, {m.tensor(30)}, OpKind::copy);
  m.op(m.piece.update, {}, {states}).accumulate = true;
  const PieceMemory memory = piece_memory(m.piece, 1);
  EXPECT_EQ(memory.resident.of(Place::host, Category::optimizer_state), 100);
  EXPECT_EQ(memory.saved.of(Place::host, Category::activation), 30);
  EXPECT_EQ(memory.resident.of(Place::storage, Category::parameter), 200);
  EXPECT_EQ(memory.resident.in(Place::host), 100);
  EXPECT_EQ(device_bytes(memory.resident), 0);
  EXPECT_EQ(device_bytes(memory.saved), 0);
}

// The host is fullest at an instant at which the device is not.
TEST(PieceMemory, EachPlaceHasItsOwnWorstInstant) {
  Maker m;
  const TensorId large = m.tensor(100), small = m.tensor(1), down = m.tensor(40), up = m.tensor(7);
  m.piece.tensors[down].place = m.piece.tensors[up].place = Place::host;
  m.op(m.piece.forward, {}, {large});
  m.op(m.piece.forward, {large}, {up}, OpKind::copy);
  m.op(m.piece.forward, {up}, {small});
  m.op(m.piece.forward, {small}, {down}, OpKind::copy);
  const PlacedBytes worst = piece_memory(m.piece, 1).forward_transient;
  EXPECT_EQ(device_bytes(worst), 100);
  EXPECT_EQ(worst.in(Place::host), 40);
}

TEST(Fullest, KeepsTheMostOfEachPlace) {
  PlacedBytes a, b;
  a.of(Place::device, Category::gradient) = 5, a.of(Place::host, Category::gradient) = 1;
  b.of(Place::device, Category::parameter) = 4, b.of(Place::host, Category::parameter) = 2;
  Fullest fullest;
  fullest.consider(a);
  fullest.consider(b);
  EXPECT_EQ(fullest.bytes().of(Place::device, Category::gradient), 5);
  EXPECT_EQ(fullest.bytes().of(Place::device, Category::parameter), 0);
  EXPECT_EQ(fullest.bytes().of(Place::host, Category::parameter), 2);
}

TEST(PieceMemory, ASideInputIsHeldOnceForAllInstances) {
  Maker m;
  const TensorId memory_of_encoder = m.piece.sides[kEncoderOutput].input = m.tensor(70);
  m.op(m.piece.forward, {memory_of_encoder}, {m.tensor(1)});
  m.op(m.piece.backward, {memory_of_encoder}, {m.tensor(1)});
  const PieceMemory memory = piece_memory(m.piece, 1);
  EXPECT_EQ(device_bytes(memory.saved), 0);
  EXPECT_EQ(device_bytes(memory.saved_side_input), 70);
}

// What a piece hands on beside the residual stream (an encoder's output) lives until the block ends, as its output
// does.
TEST(PieceMemory, ASideOutputOutlivesItsBlock) {
  Maker m;
  const TensorId x = m.piece.input = m.tensor(10),
                 memory_of_encoder = m.piece.sides[kEncoderOutput].output = m.tensor(70), inner = m.tensor(20),
                 y = m.piece.output = m.tensor(5);
  m.op(m.piece.forward, {x}, {memory_of_encoder});
  m.op(m.piece.forward, {}, {inner});
  m.op(m.piece.forward, {inner}, {y});
  const PieceMemory memory = piece_memory(m.piece, 1);
  EXPECT_EQ(device_bytes(memory.saved), 0) << "it is its readers'";
  EXPECT_EQ(device_bytes(memory.forward_transient), 70 + 20 + 5);
}

TEST(PieceMemory, TheAllocatorRoundsEveryStorageUp) {
  Maker m;
  const TensorId a = m.tensor(513), b = m.tensor(512), c = m.view(a, 1);
  m.op(m.piece.forward, {}, {a, b});
  m.op(m.piece.backward, {c, b}, {m.tensor(1)});
  EXPECT_EQ(device_bytes(piece_memory(m.piece, 512).saved), 1024 + 512);
  m.piece.tensors[a].place = Place::host;
  Granularity by_place = 512;
  by_place.bytes[static_cast<std::size_t>(Place::host)] = 4096;
  EXPECT_EQ(device_bytes(piece_memory(m.piece, by_place).saved), 512);
  EXPECT_EQ(piece_memory(m.piece, by_place).saved.in(Place::host), 4096);
}

TEST(PieceMemory, TemporariesOfTheUpdateAreItsOwn) {
  Maker m;
  const TensorId gradients = m.set(kNoTensor, m.resident(8, Category::gradient)).gradients;
  const TensorId unscaled = m.tensor(16, Category::workspace);
  m.op(m.piece.update, {gradients}, {unscaled});
  m.op(m.piece.update, {unscaled}, {gradients}, OpKind::adam);
  const PieceMemory memory = piece_memory(m.piece, 1);
  EXPECT_EQ(device_bytes(memory.update_transient), 16);
  EXPECT_EQ(device_bytes(memory.resident), 8);
  // Once for all instances: a block that does so waits with its operands, an update has no instance that waits.
  for (Op& op : m.piece.update.ops) op.every = 3;
  EXPECT_EQ(device_bytes(piece_memory(m.piece, 1, 6).update_transient), 16);
}

}  // namespace
}  // namespace orrery
