// Do loads of documents give every rank its own pairs, and as few classes of micro-batches as are said?
#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "sim/program/check.h"
#include "tests/strategies/support.h"
#include "traces/packing/packed_workload.h"

namespace orrery {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::int64_t kPackLength = 4096;

Scenario packed_llama(std::int64_t batch = 32) {
  Scenario s = scenario_of("llama-3-8b", "dgx-h100", 1);
  s.workload = {kPackLength, 0, batch};
  s.plan.data.zero_stage = 1;
  s.workload.documents = "wikipedia";
  return s;
}
// Sequences of these documents, in turn.
void record(std::vector<std::vector<std::int64_t>> sequences, Scenario& s) {
  auto documents = std::make_shared<RecordedDocuments>();
  documents->sequences = std::move(sequences);
  s.workload.documents.clear();
  s.workload.recorded_documents = documents;
}
Program lowered_packs(const Scenario& s) {
  Program program;
  lower(s, program);
  EXPECT_TRUE(check(program).empty()) << check(program).front().text;
  return program;
}
std::multiset<std::int64_t> all_sequences(const Program& p) {
  std::multiset<std::int64_t> all;
  for (const DocumentLoad& load : p.document_loads)
    for (const auto& of_replica : load.sequences) all.insert(of_replica.begin(), of_replica.end());
  return all;
}
double pairs_of(const Program& p, const DocumentLoad& load, std::int64_t replica) {
  double pairs = 0;
  for (const std::int64_t s : load.sequences[static_cast<std::size_t>(replica)])
    pairs += whole_pairs(p.packed->ends_of(s));
  return pairs;
}

TEST(PackedDocuments, EverySequenceIsOfOneLoad) {
  for (const std::int64_t batch : {8, 32, 256}) {
    const Program p = lowered_packs(packed_llama(batch));
    std::multiset<std::int64_t> numbers;
    for (std::int64_t s = 0; s < batch; ++s) numbers.insert(s);
    EXPECT_EQ(all_sequences(p), numbers);
    EXPECT_EQ(p.document_loads.size(), std::min<std::size_t>(static_cast<std::size_t>(batch / 8), 8));
    EXPECT_EQ(p.micro_batch_classes(), p.document_loads.size());
    std::int64_t micro_batches = 0;
    for (const DocumentLoad& load : p.document_loads) micro_batches += load.micro_batches;
    EXPECT_EQ(micro_batches, batch / 8);
  }
}

// Replicas meet at the end of the step only: each has what it has, and the slowest most of all.
TEST(PackedDocuments, ReplicasHaveTheirOwnSequences) {
  const Program p = lowered_packs(packed_llama(64));
  std::vector<double> pairs(8, 0);
  for (const DocumentLoad& load : p.document_loads)
    for (std::int64_t r = 0; r < 8; ++r) {
      for (const std::int64_t s : load.sequences[static_cast<std::size_t>(r)]) EXPECT_EQ(s / 8, r);
      pairs[static_cast<std::size_t>(r)] += pairs_of(p, load, r);
    }
  EXPECT_EQ(std::ranges::max_element(pairs) - pairs.begin(), p.document_loads.front().slowest_replica);
}

// With ZeRO-3 they meet in each micro-batch: in each load the slowest has the most of every micro-batch.
TEST(PackedDocuments, ReplicasThatMeetInEveryMicroBatchAreInTheOrderOfTheirWork) {
  Scenario s = packed_llama(256);
  s.plan.data.zero_stage = 3;
  const Program p = lowered_packs(s);
  double most = 0;
  for (const DocumentLoad& load : p.document_loads) most += pairs_of(p, load, load.slowest_replica);
  double expected = 0;
  for (std::int64_t m = 0; m < 32; ++m) {
    double here = 0;
    for (std::int64_t r = 0; r < 8; ++r) here = std::max(here, whole_pairs(p.packed->ends_of(r * 32 + m)));
    expected += here;
  }
  EXPECT_DOUBLE_EQ(most, expected);
  // Sharded over half of them only, those meet: the slower half is waited for.
  s.plan.data.shard_degree = 4;
  const Program halves = lowered_packs(s);
  double slower = 0;
  for (const DocumentLoad& load : halves.document_loads) slower += pairs_of(halves, load, load.slowest_replica);
  EXPECT_LT(slower, most);
  EXPECT_GT(slower, 0.5 * most);
}

TEST(PackedDocuments, EqualMicroBatchesAreOneClass) {
  Scenario s = packed_llama(64);
  record({{1000, 3096}}, s);
  const Program p = lowered_packs(s);
  EXPECT_EQ(p.document_loads.size(), 1u);
  EXPECT_TRUE(p.micro_batch_class.empty());
  record({{1000, 3096}, {kPackLength}}, s);
  EXPECT_EQ(lowered_packs(s).document_loads.size(), 2u);
}

TEST(PackedDocuments, NoDocumentsLeaveTheProgramAsItIs) {
  Scenario s = packed_llama();
  s.workload.documents.clear();
  const Program p = lowered_packs(s);
  EXPECT_EQ(p.packed, nullptr);
  for (const Piece& piece : p.pieces)
    for (const Op& op : piece.forward.ops) EXPECT_FALSE(op.documents.has_value());
}

// sum l^2 / 2 pairs of a query and a key, or sum l^2 without the causal mask; the rest as ever.
TEST(PackedDocuments, ModelFlopsAreOfThePairsWithinDocuments) {
  Scenario s = packed_llama(8);
  record({{1024, 3072}}, s);
  const ModelWork within = lowered_packs(s).model;
  record({{kPackLength}}, s);
  const ModelWork whole = lowered_packs(s).model;
  s.workload.recorded_documents = nullptr;
  const ModelWork dense = lowered_packs(s).model;
  EXPECT_DOUBLE_EQ(whole.flops_per_step, dense.flops_per_step);
  EXPECT_DOUBLE_EQ(whole.flops_per_step_full_attention, dense.flops_per_step_full_attention);
  EXPECT_DOUBLE_EQ(whole.executed_flops_per_step, dense.executed_flops_per_step);
  // 32 layers, 32 heads of 128, two products of two FLOPs, three passes, 8 sequences.
  const double per_pair = 3.0 * 8 * 32 * 32 * 4 * 128, squares = 4096.0 * 4096 - 1024.0 * 1024 - 3072.0 * 3072;
  EXPECT_NEAR(dense.flops_per_step - within.flops_per_step, per_pair * squares / 2, 1e-9 * dense.flops_per_step);
  EXPECT_NEAR(dense.flops_per_step_full_attention - within.flops_per_step_full_attention, per_pair * squares,
              1e-9 * dense.flops_per_step);
}

// Attention of frozen layers has no backward: a third of what documents spare of the pairs otherwise.
TEST(PackedDocuments, FrozenLayersSpareWhatTheirDocumentsTake) {
  Scenario s = packed_llama(8);
  const auto spared = [](Scenario here) {
    record({{kPackLength}}, here);
    const double whole = lowered_packs(here).model.flops_per_step;
    record({{1024, 3072}}, here);
    return whole - lowered_packs(here).model.flops_per_step;
  };
  const double trained = spared(s);
  s.plan.freeze.layers = s.plan.freeze.embedding = true;
  EXPECT_NEAR(spared(s), trained / 3, 1e-9 * trained);
}

TEST(PackedDocuments, RefusesByName) {
  const auto refused = [](auto change) {
    Scenario s = packed_llama();
    change(s);
    return refusal_of(s);
  };
  EXPECT_THAT(refused([](Scenario& s) { s.plan.framework.flash_attention = false; }),
              HasSubstr("/plan/flash_attention"));
  EXPECT_THAT(refused([](Scenario& s) { s.model.kind = ModelKind::encoder; }), HasSubstr("/workload/documents"));
  EXPECT_THAT(refused([](Scenario& s) { s.workload.packing = PackingPolicy::datasculpt; }),
              HasSubstr("/workload/packing"));
  EXPECT_THAT(refused([](Scenario& s) { s.workload.documents = "nothing-of-the-kind"; }),
              HasSubstr("/workload/documents"));
  EXPECT_THAT(refused([](Scenario& s) {
                record({{kPackLength}}, s);
                s.workload.documents = "wikipedia";
              }),
              AllOf(HasSubstr("/workload/documents"), HasSubstr("documents_file")));
  EXPECT_THAT(refused([](Scenario& s) {
                record({{kPackLength}}, s);
                s.workload.packing = PackingPolicy::best_fit;
              }),
              HasSubstr("/workload/packing"));
  Scenario s = scenario_of("mixtral-8x7b", "dgx-h100", 1);
  s.workload = {kPackLength, 0, 32};
  s.workload.documents = "wikipedia";
  s.workload.routing = ExpertRouting::zipf;
  s.workload.routing_skew = 1;
  s.plan.expert.degree = 8;
  EXPECT_EQ(refusal_of(s), "nothing");
  s.workload.routing_micro_batch_noise = 0.3;
  EXPECT_THAT(refusal_of(s), HasSubstr("/workload/routing"));
}

}  // namespace
}  // namespace orrery
