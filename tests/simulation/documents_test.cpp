// Sequences packed from documents of unequal length: what it does to times, in both engines.
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "strategies/context_parallel/context_parallel.h"
#include "tests/des/support.h"
#include "traces/packing/packed_workload.h"

namespace orrery {
namespace {

constexpr std::int64_t kPackedLength = 8192;

Scenario packed_llama(std::int64_t batch = 8) {
  Scenario s = scenario_of("llama-3-8b", "dgx-h100", 1);
  s.workload = {kPackedLength, 0, batch};
  s.plan.data.zero_stage = 1;
  s.plan.recompute.mode = activation_recompute::Mode::full;
  return s;
}
using Sequences = std::vector<std::vector<std::int64_t>>;
Scenario packed_from(Scenario s, Sequences sequences) {
  auto documents = std::make_shared<RecordedDocuments>();
  documents->sequences = std::move(sequences);
  s.workload.recorded_documents = documents;
  return s;
}
std::vector<std::int64_t> equal_documents(std::int64_t tokens) {
  return std::vector<std::int64_t>(static_cast<std::size_t>(kPackedLength / tokens), tokens);
}
double seconds_of_attention(const Report& r) { return r.stages.front().time.attention; }

TEST(Documents, ASequenceOfOneTakesWhatItTakesWithoutThem) {
  for (const std::int64_t batch : {8, 32})
    for (const char* type : {"ring", "all_gather", "ulysses"}) {
      Scenario s = packed_llama(batch);
      s.plan.context.degree = 4;
      s.plan.context.type = context_parallel::type_named(type);
      const Report dense = simulate(s), whole = simulate(packed_from(s, {{kPackedLength}}));
      EXPECT_NEAR(whole.step_seconds, dense.step_seconds, 1e-9 * dense.step_seconds) << type;
      EXPECT_NEAR(whole.mfu, dense.mfu, 1e-9) << type;
      EXPECT_NEAR(whole.hfu, dense.hfu, 1e-9) << type;
      EXPECT_EQ(whole.memory_peak_bytes, dense.memory_peak_bytes) << type;
    }
}

TEST(Documents, OfOtherSeedsAreOthers) {
  std::vector<double> steps;
  for (const std::int64_t seed : {1, 2, 3}) {
    Scenario s = packed_llama(32);
    s.workload.documents = "wikipedia";
    s.workload.documents_seed = seed;
    steps.push_back(simulate(s).step_seconds);
    EXPECT_EQ(std::count(steps.begin(), steps.end(), steps.back()), 1) << seed;
  }
}

// Pairs fall as the documents' lengths do, but the time of attention by less: tiles of 128 queries are not full, and
// each query's beginning and end count as much as ever.
TEST(Documents, ShortOnesTakeLessTimeThanWholeSequencesAndMoreThanTheirPairs) {
  double before = seconds_of_attention(simulate(packed_from(packed_llama(), {{kPackedLength}})));
  for (const std::int64_t tokens : {4096, 1024, 256}) {
    const double here = seconds_of_attention(simulate(packed_from(packed_llama(), {equal_documents(tokens)})));
    EXPECT_LT(here, before) << tokens;
    before = here;
  }
  const double whole = seconds_of_attention(simulate(packed_from(packed_llama(), {{kPackedLength}})));
  for (const std::int64_t tokens : {4096, 1024, 256, 32}) {
    const double share = static_cast<double>(tokens) / kPackedLength;
    EXPECT_GT(seconds_of_attention(simulate(packed_from(packed_llama(), {equal_documents(tokens)}))), share * whole)
        << tokens;
  }
  // Of 32 tokens three quarters of each tile are idle: as if documents of 128 had a quarter of the tokens.
  EXPECT_GT(seconds_of_attention(simulate(packed_from(packed_llama(), {equal_documents(32)}))),
            seconds_of_attention(simulate(packed_from(packed_llama(), {equal_documents(128)}))));
}

// In closed form: a document after the other as sequences of a batch, but for what is once a kernel.
TEST(Documents, TakeTheTimeOfABatchOfSequencesAsLong) {
  Scenario packed = packed_from(packed_llama(), {equal_documents(1024)}), batch = packed_llama(64);
  batch.workload.sequence_length = 1024;
  batch.plan.batch.micro_batch_size = 8;
  EXPECT_NEAR(seconds_of_attention(simulate(packed)), seconds_of_attention(simulate(batch)),
              0.01 * seconds_of_attention(simulate(batch)));
}

// github.com/zhuzilin/ring-flash-attention, README: FlashAttention on one device, iterations a second over whole
// sequences and over four packings.
TEST(Documents, AttentionIsAsMuchShorterAsPublished) {
  struct Published {
    const char* node;
    double whole, packed;
  };
  for (const Published& p : {Published{"dgx-a100", 11.8, 16.7}, Published{"dgx-h100", 19.3, 28.2}}) {
    Scenario s = packed_llama(32);  // each replica has all four
    s.cluster = read_cluster({{"node", p.node}, {"nodes", 1}}, {});
    s.model.max_positions = s.workload.sequence_length = 65536;
    const double whole = seconds_of_attention(simulate(s)),
                 packed = seconds_of_attention(simulate(packed_from(
                     s, {{65536}, {2048, 59136, 4352}, {32768, 32768}, {24832, 25600, 12800, 1280, 1024}})));
    EXPECT_NEAR(packed / whole, p.whole / p.packed, 0.07 * p.whole / p.packed) << p.node;
  }
}

// Replicas wait for the one with the most work, once a step; it is charged for, whoever it is.
TEST(Documents, TheStepIsThatOfTheSlowestReplica) {
  Sequences unlike;
  for (int r = 0; r < 8; ++r)
    unlike.push_back(r == 5 ? std::vector<std::int64_t>{kPackedLength} : equal_documents(512));
  const double some = simulate(packed_from(packed_llama(), unlike)).step_seconds,
               all = simulate(packed_from(packed_llama(), {{kPackedLength}})).step_seconds,
               none = simulate(packed_from(packed_llama(), {equal_documents(512)})).step_seconds;
  EXPECT_NEAR(some, all, 1e-9 * all);
  EXPECT_LT(none, 0.99 * all);
  // Two micro-batches each: no replica has the long document in both.
  Sequences in_turn;
  for (int r = 0; r < 8; ++r)
    for (int m = 0; m < 2; ++m)
      in_turn.push_back((r + m) % 2 == 0 ? std::vector<std::int64_t>{kPackedLength} : equal_documents(512));
  const double once = simulate(packed_from(packed_llama(16), in_turn)).step_seconds,
               twice = simulate(packed_from(packed_llama(16), {{kPackedLength}})).step_seconds;
  EXPECT_LT(once, twice);
  Scenario meeting = packed_llama(16);
  meeting.plan.data.zero_stage = 3;
  EXPECT_NEAR(simulate(packed_from(meeting, in_turn)).step_seconds,
              simulate(packed_from(meeting, {{kPackedLength}})).step_seconds, 1e-6 * twice)
      << "where they wait for each other in every micro-batch the long one counts in both";
}

TEST(Documents, ReportSaysHowUnlikeTheyAre) {
  Sequences unlike;
  for (int r = 0; r < 8; ++r)
    unlike.push_back(r == 5 ? std::vector<std::int64_t>{kPackedLength}
                            : std::vector<std::int64_t>{kPackedLength / 2, kPackedLength / 2});
  const Report r = simulate(packed_from(packed_llama(), unlike));
  ASSERT_NE(r.figure("documents"), nullptr);
  EXPECT_DOUBLE_EQ(r.figure("documents", "documents_per_sequence")->value, 15.0 / 8);
  EXPECT_EQ(r.figure("documents", "longest_document")->value, kPackedLength);
  EXPECT_DOUBLE_EQ(r.figure("documents", "attention_share")->value, (7 * 0.5 + 1) / 8);
  EXPECT_DOUBLE_EQ(r.figure("documents", "busiest_replica_over_mean")->value, 1 / ((7 * 0.5 + 1) / 8));
  EXPECT_DOUBLE_EQ(r.figure("documents", "busiest_micro_batch_over_mean")->value,
                   r.figure("documents", "busiest_replica_over_mean")->value);
  EXPECT_EQ(simulate(packed_llama()).figure("documents"), nullptr);
}

// A quarter of a dealt pack may be one document, and the others' ranks see less. Whoever divides heads sees all.
TEST(Documents, RanksOfASequenceSeeUnlikePairs) {
  Scenario s = packed_llama();
  s.plan.context.degree = 4;
  const std::vector<std::int64_t> skewed{kPackedLength / 2, kPackedLength / 8, kPackedLength / 8, kPackedLength / 8,
                                         kPackedLength / 8};
  const auto step = [&](const char* type, context_parallel::Balance balance, const Sequences& sequences) {
    Scenario here = packed_from(s, sequences);
    here.plan.context.type = context_parallel::type_named(type);
    here.plan.context.balance = balance;
    return seconds_of_attention(simulate(here));
  };
  using context_parallel::Balance;
  const double zigzag = step("all_gather", Balance::zigzag, {skewed}),
               striped = step("all_gather", Balance::striped, {skewed}),
               whole = step("all_gather", Balance::zigzag, {{kPackedLength}});
  EXPECT_GT(zigzag, 1.05 * striped) << "a zigzag deal is equal for the whole sequence's mask only";
  EXPECT_LT(zigzag, whole);
  EXPECT_LT(step("ulysses", Balance::zigzag, {skewed}), step("ulysses", Balance::zigzag, {{kPackedLength}}));
}

// More micro-batches than classes: the sum over micro-batches stays what it is (no collective slows any).
TEST(Documents, JoinedClassesKeepTheSumOfAttention) {
  Sequences sequences;
  for (std::int64_t s = 0; s < 8 * 12; ++s) {
    const std::int64_t first = 256 * (1 + s * 7 % 31);
    sequences.push_back({first, kPackedLength - first});
  }
  const Scenario joined = packed_from(packed_llama(8 * 12), sequences);
  double by_step = 0;  // of the replica that is slowest in all: micro-batch by micro-batch
  Program program;
  lower(joined, program);
  EXPECT_EQ(program.document_loads.size(), 8u);
  const std::int64_t slowest = program.document_loads.front().slowest_replica;
  for (std::int64_t m = 0; m < 12; ++m)
    by_step += seconds_of_attention(
        simulate(packed_from(packed_llama(), {sequences[static_cast<std::size_t>(slowest * 12 + m)]}), false));
  EXPECT_NEAR(seconds_of_attention(simulate(joined, false)), by_step, 1e-6 * by_step);
}

// ---- event by event

TEST(Documents, EnginesAgreeWhereNothingContends) {
  for (const int zero : {0, 1, 3})
    for (const char* documents : {"wikipedia", "log-normal:7:1", "magi-attention"}) {
      Scenario s = packed_llama(32);
      s.workload.documents = documents;
      s.plan.data.zero_stage = zero;
      const double analytical = simulate(s).step_seconds, events = simulate_des(s).step_seconds;
      EXPECT_NEAR(events, analytical, 0.01 * analytical) << documents << ", ZeRO-" << zero;
    }
}

TEST(Documents, EnginesAgreeOnPipelines) {
  Scenario s = packed_llama(64);
  s.plan.pipeline.degree = 4;
  s.workload.documents = "wikipedia";
  const double analytical = simulate(s).step_seconds, events = simulate_des(s).step_seconds;
  EXPECT_NEAR(events, analytical, 0.03 * analytical);
}

TEST(Documents, EnginesAgreeOnDividedSequences) {
  for (const char* type : {"ring", "all_gather", "ulysses"}) {
    Scenario s = packed_llama(16);
    s.plan.context.degree = 4;
    s.plan.context.type = context_parallel::type_named(type);
    s.workload.documents = "magi-attention";
    const double analytical = simulate(s).step_seconds, events = simulate_des(s).step_seconds;
    EXPECT_NEAR(events, analytical, 0.03 * analytical) << type;
  }
}

// Too many to simulate each: all take what the slowest takes, whose step is the same.
TEST(Documents, EventByEventManyReplicasTakeWhatTheSlowestTakes) {
  Scenario s = packed_llama(64);
  s.cluster.nodes = 4;
  s.workload.documents = "wikipedia";
  DiscreteEventOptions folded;
  folded.most_exact_works = 0;
  const double exact = simulate_des(s).step_seconds, alike = simulate_des(s, folded).step_seconds;
  EXPECT_NEAR(alike, exact, 0.01 * exact);
  EXPECT_NEAR(alike, simulate(s).step_seconds, 0.01 * exact);
}

// Event by event every replica has its own: others than the slowest wait.
TEST(Documents, EventByEventOthersWaitForTheSlowest) {
  Sequences unlike;
  for (int r = 0; r < 8; ++r)
    unlike.push_back(r == 5 ? std::vector<std::int64_t>{kPackedLength} : equal_documents(512));
  const Report some = simulate_des(packed_from(packed_llama(), unlike)),
               all = simulate_des(packed_from(packed_llama(), {{kPackedLength}}));
  EXPECT_NEAR(some.step_seconds, all.step_seconds, 0.01 * all.step_seconds);
  const Report none = simulate_des(packed_from(packed_llama(), {equal_documents(512)}));
  EXPECT_LT(none.step_seconds, 0.99 * some.step_seconds);
}

}  // namespace
}  // namespace orrery
