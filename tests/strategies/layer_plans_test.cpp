// Does each layer get the plan that its range gives it, and does the Program add up to what its layers are?
#include "strategies/layer_plans.h"

#include <array>
#include <set>

#include "sim/base/error.h"
#include "strategies/read_scenario.h"
#include "strategies/schema.h"
#include "tests/strategies/support.h"

namespace orrery {
namespace {

using activation_recompute::Mode;

LayerRange recomputing(const Scenario& s, std::int64_t from, std::int64_t to, Mode mode = Mode::full,
                       std::int64_t step = 1) {
  LayerRange range{from, to, step, s.plan};
  range.plan.layers.clear();
  range.plan.recompute.mode = mode;
  return range;
}

double recomputed_flops(const Piece& piece) {
  double total = 0;
  for (const Op& op : piece.backward.ops)
    if (op.phase == Phase::recompute) total += flops(op, piece.tensors);
  return total;
}

struct Sums {
  double saved = 0, recomputed = 0;
  std::int64_t layers = 0;
};
// Of all layers of the model.
Sums sums_of(const Scenario& s) {
  Program p;
  lower(s, p);
  Sums sums;
  for (const auto& stage : p.stages)
    for (const Chunk& chunk : stage)
      for (const auto& run : chunk.runs) {
        const Piece& piece = p.pieces[run.piece];
        if (piece.layers == 0) continue;
        sums.saved += static_cast<double>(run.count) * saved_bytes(piece);
        sums.recomputed += static_cast<double>(run.count) * recomputed_flops(piece);
        sums.layers += run.count * piece.layers;
      }
  return sums;
}

// Of each layer, whether it is recomputed, in model order.
std::vector<bool> recomputed_layers(const Scenario& s) {
  Program p;
  lower(s, p);
  std::vector<bool> layers;
  const auto chunks = static_cast<std::size_t>(p.schedule.chunks);
  for (std::size_t q = 0; q < p.schedule.position.size(); ++q)
    for (std::size_t i = 0; i < p.schedule.position.size(); ++i) {
      if (p.schedule.position[i] != static_cast<std::int64_t>(q)) continue;
      for (const auto& run : p.stages[i / chunks][i % chunks].runs)
        for (std::int64_t n = 0; n < run.count * p.pieces[run.piece].layers; ++n)
          layers.push_back(recomputed_flops(p.pieces[run.piece]) > 0);
    }
  return layers;
}

// Bytes kept and FLOPs repeated are those of k layers recomputed and n - k that are not.
TEST(LayerRanges, KOfNLayersRecomputedLieBetweenAllAndNone) {
  Scenario s = megatron_22b();
  const Sums none = sums_of(s);
  s.plan.recompute.mode = Mode::full;
  const Sums all = sums_of(s);
  EXPECT_EQ(none.recomputed, 0);
  EXPECT_LT(all.saved, none.saved);
  s.plan.recompute.mode = Mode::none;
  for (const std::int64_t k : {0, 1, 7, 24, 47, 48}) {
    s.plan.layers.clear();
    if (k > 0) s.plan.layers = {recomputing(s, 0, k)};
    const Sums some = sums_of(s);
    const double share = static_cast<double>(k) / 48;
    EXPECT_DOUBLE_EQ(some.saved, none.saved + share * (all.saved - none.saved)) << k;
    EXPECT_DOUBLE_EQ(some.recomputed, share * all.recomputed) << k;
    EXPECT_EQ(some.layers, 48);
  }
}

TEST(LayerRanges, LayersAreCountedInModelOrderWhateverStageHasThem) {
  Scenario s = scenario_of("gpt3-1.3B", "dgx-a100", 2);  // 24 layers
  s.workload = {2048, 0, 64};
  s.plan.layers = {recomputing(s, 3, 5), recomputing(s, 10, 0, Mode::full, 4)};
  std::vector<bool> expected(24);
  for (const std::size_t layer : {3, 4, 10, 14, 18, 22}) expected[layer] = true;
  for (const auto& [stages, chunks] : {std::pair{1, 1}, {4, 1}, {4, 3}, {8, 1}}) {
    s.plan.pipeline.degree = stages;
    s.plan.pipeline.virtual_stages = chunks;
    EXPECT_EQ(recomputed_layers(s), expected) << stages << " " << chunks;
  }
  s.plan.pipeline = {};
  s.plan.pipeline.degree = 4;
  s.plan.pipeline.schedule = pipeline_parallel::ScheduleKind::zb_v;
  EXPECT_EQ(recomputed_layers(s), expected);
}

TEST(LayerRanges, AnEncodersLayersComeBeforeItsDecoders) {
  Scenario s = scenario_of("t5-large", "dgx-a100", 1);
  s.workload = {512, 0, 8};
  const std::int64_t encoder = s.model.layers, all = s.model.total_layers();
  EXPECT_EQ(all, encoder + s.model.decoder_layers);
  s.plan.layers = {recomputing(s, encoder - 1, encoder + 2)};
  Program p;
  lower(s, p);
  std::vector<std::string> recomputed;
  for (std::size_t i = 0; i < p.pieces.size(); ++i)
    if (recomputed_flops(p.pieces[i]) > 0) recomputed.push_back(piece_title(p, i));
  const auto slice = [](const char* name, std::int64_t from, std::int64_t to) {
    return std::string(name) + "[" + std::to_string(from) + ":" + std::to_string(to) + "]";
  };
  std::sort(recomputed.begin(), recomputed.end());
  EXPECT_EQ(recomputed, (std::vector<std::string>{slice("decoder_layer", encoder, encoder + 2),
                                                  slice("layer", encoder - 1, encoder)}));
}

// Swin's merging of patches goes with the layer behind it, so that all layers by ranges are all layers.
TEST(LayerRanges, WhatStandsBetweenLayersGoesWithTheLayerBehindIt) {
  Scenario s = scenario_of("swin-t", "dgx-a100", 1);
  s.workload.global_batch_size = 8;
  const auto pieces_recomputed = [&] {
    Program p;
    lower(s, p);
    int n = 0;
    for (const auto& run : p.stages[0][0].runs) n += recomputed_flops(p.pieces[run.piece]) > 0;
    return n;
  };
  s.plan.recompute.mode = Mode::full;
  const int all = pieces_recomputed();
  EXPECT_EQ(all, 4 + 3);
  s.plan.recompute.mode = Mode::none;
  s.plan.layers = {recomputing(s, 0, 0)};
  EXPECT_EQ(pieces_recomputed(), all);
  s.plan.layers = {recomputing(s, 0, s.model.stage_layers[0] + 1)};
  EXPECT_EQ(pieces_recomputed(), 3);
}

// Megatron-LM's block method is a range at the beginning of each stage's chunk.
TEST(LayerRanges, RecomputeLayersIsARangeAChunk) {
  Scenario s = scenario_of("gpt3-1.3B", "dgx-a100", 2);
  s.workload = {2048, 0, 64};
  s.plan.pipeline.degree = 4;
  s.plan.pipeline.virtual_stages = 2;
  Scenario ranges = s;
  for (std::int64_t begin = 0; begin < 24; begin += 3) ranges.plan.layers.push_back(recomputing(s, begin, begin + 2));
  s.plan.recompute.mode = Mode::full;
  s.plan.recompute.layers = 2;
  EXPECT_EQ(recomputed_layers(s), recomputed_layers(ranges));
  s.plan.recompute.layers = 3;  // as many as there are
  EXPECT_EQ(recomputed_layers(s), std::vector<bool>(24, true));
  s.plan.recompute.layers = 4;
  EXPECT_THROW(recomputed_layers(s), InputError);
}

// The pieces and runs of plans that say the same are the same, however the layers are cut.
TEST(LayerRanges, RangesOfEqualValuesLeaveNoSeam) {
  Scenario s = scenario_of("gpt3-1.3B", "dgx-a100", 2);
  s.workload = {2048, 0, 64};
  s.plan.recompute.mode = Mode::full;
  Program whole, parts;
  lower(s, whole);
  Scenario cut = s;
  cut.plan.recompute.mode = Mode::none;
  cut.plan.layers = {recomputing(s, 0, 5), recomputing(s, 5, 6), recomputing(s, 6, 0, Mode::full, 2),
                     recomputing(s, 7, 0, Mode::full, 2)};
  lower(cut, parts);
  ASSERT_EQ(whole.pieces.size(), parts.pieces.size());
  for (std::size_t p = 0; p < whole.pieces.size(); ++p)
    EXPECT_EQ(whole.pieces[p].backward.ops.size(), parts.pieces[p].backward.ops.size()) << whole.pieces[p].name;
  ASSERT_EQ(whole.stages[0][0].runs.size(), parts.stages[0][0].runs.size());
  for (std::size_t r = 0; r < whole.stages[0][0].runs.size(); ++r) {
    EXPECT_EQ(whole.stages[0][0].runs[r].piece, parts.stages[0][0].runs[r].piece);
    EXPECT_EQ(whole.stages[0][0].runs[r].count, parts.stages[0][0].runs[r].count);
  }
  EXPECT_EQ(piece_title(parts, 1), "layer");
}

TEST(LayerRanges, APieceIsMadeOnceForEachPlan) {
  Scenario s = scenario_of("gpt3-1.3B", "dgx-a100", 2);
  s.workload = {2048, 0, 64};
  s.plan.framework.flash_attention = false;
  s.plan.layers = {recomputing(s, 0, 0, Mode::full, 3), recomputing(s, 1, 0, Mode::selective, 3)};
  Program p;
  lower(s, p);
  std::set<std::string> titles;
  for (std::size_t i = 0; i < p.pieces.size(); ++i) titles.insert(piece_title(p, i));
  EXPECT_EQ(titles, (std::set<std::string>{"embedding", "layer[0:24:3]", "layer[1:24:3]", "layer[2:24:3]", "head"}));
}

// recompute_every groups layers within the range.
TEST(LayerRanges, GroupsOfLayersEndAtTheRange) {
  Scenario s = scenario_of("gpt3-1.3B", "dgx-a100", 2);
  s.workload = {2048, 0, 64};
  LayerRange range = recomputing(s, 2, 9);
  range.plan.recompute.every = 3;
  s.plan.layers = {range};
  Program p;
  lower(s, p);
  std::vector<std::pair<std::int64_t, std::int64_t>> runs;  // layers of an instance, instances
  for (const auto& run : p.stages[0][0].runs)
    if (p.pieces[run.piece].layers > 0) runs.emplace_back(p.pieces[run.piece].layers, run.count);
  EXPECT_EQ(runs, (std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 2}, {3, 2}, {1, 1}, {1, 15}}));
}

// Transformer Engine's first and last layers in bf16.
TEST(LayerRanges, PrecisionMayDifferFromLayerToLayer) {
  Scenario s = scenario_of("llama-3-8b", "dgx-h100", 1);
  s.workload = {8192, 0, 8};
  s.plan.precision.mix = precision::Mix::fp8;
  LayerRange first{0, 1, 1, s.plan}, last{31, 0, 1, s.plan};
  first.plan.precision.mix = last.plan.precision.mix = precision::Mix::bf16;
  s.plan.layers = {first, last};
  Program p;
  lower(s, p);
  std::vector<std::pair<std::int64_t, bool>> runs;
  for (const auto& run : p.stages[0][0].runs) {
    const Piece& piece = p.pieces[run.piece];
    const bool fp8 = std::any_of(piece.forward.ops.begin(), piece.forward.ops.end(),
                                 [](const Op& op) { return op.compute_dtype == Dtype::fp8; });
    runs.emplace_back(run.count, fp8);
  }
  EXPECT_EQ(runs,
            (std::vector<std::pair<std::int64_t, bool>>{{1, false}, {1, false}, {30, true}, {1, false}, {1, false}}));
}

TEST(LayerRanges, ParametersMayBeKeptOrGatheredAgainLayerByLayer) {
  Scenario s = scenario_of("llama-3-8b", "dgx-h100", 1);
  s.workload = {8192, 0, 8};
  s.plan.data.zero_stage = 3;
  LayerRange range{0, 4, 1, s.plan};
  range.plan.data.reshard_after_forward = false;
  range.plan.data.prefetch = 3;
  s.plan.layers = {range};
  Program p;
  lower(s, p);
  for (const auto& run : p.stages[0][0].runs) {
    const Piece& piece = p.pieces[run.piece];
    if (piece.layers == 0) continue;
    EXPECT_EQ(count_ops(piece.backward, OpKind::all_gather), run.count == 4 ? 0 : 1);
    EXPECT_EQ(piece.forward.ops[0].prefetch, run.count == 4 ? 3 : 1);
  }
}

TEST(LayerRanges, ProductsMayOverlapTheirCollectivesLayerByLayer) {
  Scenario s = scenario_of("llama-3-8b", "dgx-h100", 1);
  s.workload = {8192, 0, 8};
  s.plan.tensor.degree = 4;
  s.plan.tensor.sequence_parallel = true;
  LayerRange range{0, 4, 1, s.plan};
  range.plan.tensor.overlap = true;
  s.plan.layers = {range};
  Program p;
  lower(s, p);
  for (const auto& run : p.stages[0][0].runs)
    if (p.pieces[run.piece].layers > 0) {
      EXPECT_EQ(count_ops(p.pieces[run.piece].forward, OpKind::reduce_scatter), run.count == 4 ? 2 * 4 : 2);
    }
}

// Layers in no range have the plan's own values.
TEST(LayerRanges, LeaveLayersBetweenThemAsThePlanHasThem) {
  Scenario s = scenario_of("gpt3-1.3B", "dgx-a100", 2);  // 24 layers
  s.workload = {2048, 0, 64};
  s.plan.recompute.mode = Mode::full;
  s.plan.layers = {recomputing(s, 4, 8, Mode::none), recomputing(s, 12, 20, Mode::none)};
  std::vector<bool> expected(24, true);
  for (const auto& [from, to] : {std::pair{4, 8}, {12, 20}})
    std::fill(expected.begin() + from, expected.begin() + to, false);
  EXPECT_EQ(recomputed_layers(s), expected);
}

// FLOPs that are executed and bytes that are kept are those of k layers that store scores and n - k that do not.
TEST(LayerRanges, ScoresMayBeStoredLayerByLayer) {
  Scenario s = scenario_of("gpt3-1.3B", "dgx-a100", 2);
  s.workload = {2048, 0, 64};
  const auto executed = [&] {
    Program p;
    lower(s, p);
    return p.model.executed_flops_per_step;
  };
  const Sums fused = sums_of(s);
  const double flops_fused = executed();
  s.plan.framework.flash_attention = false;
  const Sums stored = sums_of(s);
  const double flops_stored = executed();
  EXPECT_GT(stored.saved, fused.saved);
  EXPECT_GT(flops_stored, flops_fused) << "the masked half is computed";
  for (const bool base : {true, false})
    for (const std::int64_t k : {1, 7, 24}) {
      s.plan.layers.clear();
      s.plan.framework.flash_attention = base;
      LayerRange range{24 - k, 0, 1, s.plan};
      range.plan.framework.flash_attention = !base;
      s.plan.layers = {range};
      const double share = static_cast<double>(base ? k : 24 - k) / 24;
      EXPECT_DOUBLE_EQ(sums_of(s).saved, fused.saved + share * (stored.saved - fused.saved)) << k;
      EXPECT_DOUBLE_EQ(executed(), flops_fused + share * (flops_stored - flops_fused)) << k;
    }
}

// Selective recomputation repeats the attention of layers that store its scores, and of those alone.
TEST(LayerRanges, SelectiveRecomputationFollowsTheLayersOwnAttention) {
  Scenario s = scenario_of("gpt3-1.3B", "dgx-a100", 2);
  s.workload = {2048, 0, 64};
  s.plan.recompute.mode = Mode::selective;
  LayerRange range{6, 9, 1, s.plan};
  range.plan.framework.flash_attention = false;
  s.plan.layers = {range};
  std::vector<bool> expected(24);
  for (const std::size_t layer : {6, 7, 8}) expected[layer] = true;
  EXPECT_EQ(recomputed_layers(s), expected);
}

// What a range does not give is as in the plan around it, wherever in the text that stands.
TEST(LayerRanges, ARangeTakesWhatItDoesNotGiveFromThePlan) {
  const nlohmann::json document = nlohmann::json::parse(R"({
      "model": "gpt3-1.3B", "cluster": {"node": "dgx-h100", "nodes": 1},
      "workload": {"sequence_length": 2048, "global_batch_size": 8},
      "plan": {"layers": [{"to": 4, "precision": "bf16"}, {"from": 8, "to": 10, "step": 2, "recompute": "none"}],
               "recompute": "full", "recompute_every": 2, "precision": "fp8"}})");
  const Scenario s = read_scenario(document, {});
  ASSERT_EQ(s.plan.layers.size(), 2u);
  const LayerRange &first = s.plan.layers[0], &second = s.plan.layers[1];
  EXPECT_EQ(first.from, 0);
  EXPECT_EQ(first.to, 4);
  EXPECT_EQ(first.step, 1);
  EXPECT_EQ(second.step, 2);
  EXPECT_EQ(first.plan.precision.mix, precision::Mix::bf16);
  EXPECT_EQ(first.plan.recompute.mode, Mode::full);
  EXPECT_EQ(first.plan.recompute.every, 2);
  EXPECT_EQ(second.plan.precision.mix, precision::Mix::fp8);
  EXPECT_EQ(second.plan.recompute.mode, Mode::none);
  EXPECT_NO_THROW(check(s));
}

}  // namespace
}  // namespace orrery
