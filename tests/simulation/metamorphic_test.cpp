// Does the prediction move the right way when one thing changes?
#include <tuple>

#include "strategies/context_parallel/context_parallel.h"
#include "strategies/lower.h"
#include "strategies/read_scenario.h"
#include "tests/simulation/support.h"

namespace orrery {
namespace {

std::size_t pieces_of(const Scenario& scenario) {
  Program program;
  lower(scenario, program);
  return program.pieces.size();
}

TEST(Metamorphic, FasterHardwareIsNeverSlower) {
  const Scenario base = gpt3_175b();
  const double before = simulate(base).step_seconds;
  const auto with = [&](auto change) {
    Scenario s = base;
    change(s.cluster);
    return simulate(s).step_seconds;
  };
  EXPECT_LT(with([](Cluster& c) { c.node.intra_bytes_per_second *= 2; }), before);
  EXPECT_LT(with([](Cluster& c) { c.node.nic_bytes_per_second *= 2; }), before);
  EXPECT_LT(with([](Cluster& c) { c.device.memory_bytes_per_second *= 2; }), before);
  EXPECT_LT(with([](Cluster& c) {
              for (double& peak : c.device.peak_flops_per_second) peak *= 2;
            }),
            before);
}

TEST(Metamorphic, MoreWorkIsNeverFaster) {
  Scenario s = gpt3_175b();
  double last = simulate(s).step_seconds;
  for (std::int64_t batch : {1540, 1544, 1600, 2048, 3072}) {
    s.workload.global_batch_size = batch;
    const double now = simulate(s).step_seconds;
    EXPECT_GT(now, last) << batch;
    last = now;
  }
}

// A further micro-batch costs at least what the stage computes for it.
TEST(Metamorphic, ASecondMicroBatchIsNotFree) {
  Scenario s = scenario_of("llama-3-8b", "dgx-h100", 1);
  s.workload = {8192, 0, 1};
  s.plan.tensor.degree = 8;
  const Report one = simulate(s);
  s.workload.global_batch_size = 2;
  const Report two = simulate(s);
  const TimeBreakdown& t = one.stages[0].time;
  EXPECT_GE(two.step_seconds - one.step_seconds, t.matmul + t.attention);
}

// Ranks slow each other down on their own host.
TEST(Metamorphic, AnotherHostSlowsNoProcessorDown) {
  Scenario s = scenario_of("gpt2-small", "cpu-host", 1);
  s.cluster.node.devices = 2;
  s.plan.precision.mix = precision::Mix::fp32;
  s.plan.framework.stack = framework::Stack::orrery;
  s.workload = {64, 0, 4};
  Calibrator calibrator;
  const Report one = predict(calibrator.prepare(s));
  s.cluster.nodes = 2;
  s.workload.global_batch_size = 8;
  const Report two = predict(calibrator.prepare(s));
  const auto kernels = [](const Report& r) { return r.stages.front().time.matmul; };
  EXPECT_GT(kernels(one), 0);
  EXPECT_EQ(kernels(two), kernels(one));
}

TEST(Metamorphic, RecomputationTradesTimeForMemory) {
  Scenario s = gpt3_175b();
  s.plan.framework.flash_attention = false;
  using activation_recompute::Mode;
  std::vector<Report> reports;
  for (Mode mode : {Mode::none, Mode::selective, Mode::full}) {
    s.plan.recompute.mode = mode;
    reports.push_back(simulate(s));
  }
  EXPECT_LT(reports[0].step_seconds, reports[1].step_seconds);
  EXPECT_LT(reports[1].step_seconds, reports[2].step_seconds);
  EXPECT_GT(reports[0].memory_peak_bytes, reports[1].memory_peak_bytes);
  EXPECT_GT(reports[1].memory_peak_bytes, reports[2].memory_peak_bytes);
  EXPECT_DOUBLE_EQ(reports[0].hfu, reports[0].mfu_full_attention);  // stored scores are computed without the mask
  EXPECT_GT(reports[2].hfu, reports[2].mfu * 1.25);
}

// Sixteen ranks share a sequence over two nodes: exchanges belong inside a node, where they do not, a step is slower;
// who exchanges alone is balanced whatever the deal, who has a ring is not.
TEST(Metamorphic, ExchangesBelongInsideANodeAndNeedNoDeal) {
  Scenario s = scenario_of("llama-3-8b", "hgx-a800", 2);
  s.workload = {81920, 0, 1};
  s.plan.context.degree = 16;
  s.plan.context.type = context_parallel::type_named("usp");
  s.plan.usp.ulysses_degree = 4;
  const double inside = simulate(s).step_seconds;
  s.plan.context.balance = context_parallel::Balance::contiguous;
  EXPECT_GT(simulate(s).step_seconds, 1.2 * inside);
  s.plan.context.balance = context_parallel::Balance::zigzag;
  s.plan.usp.ulysses_inner = false;
  EXPECT_GT(simulate(s).step_seconds, inside);
  s.plan.usp = {};
  s.plan.context.type = context_parallel::type_named("ulysses");
  const double exchanged = simulate(s).step_seconds;
  s.plan.context.balance = context_parallel::Balance::contiguous;
  EXPECT_DOUBLE_EQ(simulate(s).step_seconds, exchanged);
}

// Plans in which something runs over several layers: buckets, fused updates, gathering ahead, pipelines.
std::vector<Scenario> plans_over_layers() {
  std::vector<Scenario> scenarios;
  const auto add = [&](const Scenario& base, auto change) {
    scenarios.push_back(base);
    change(scenarios.back().plan);
  };
  Scenario small = scenario_of("gpt3-1.3B", "dgx-a100", 2);  // several layers a bucket
  small.workload = {2048, 0, 64};
  using pipeline_parallel::ScheduleKind;
  add(small, [](Plan&) {});
  add(small, [](Plan& p) { p.data.bucket_bytes = 1'000'000'000; });
  add(small, [](Plan& p) { p.data.overlap_gradients = false; });
  add(small, [](Plan& p) { p.data.zero_stage = 1; });
  add(small, [](Plan& p) { p.data.zero_stage = 2; });
  add(small, [](Plan& p) { p.data.zero_stage = 3, p.data.prefetch = 2; });
  add(small, [](Plan& p) { p.data.zero_stage = 3, p.data.reshard_after_forward = false; });
  add(small, [](Plan& p) { p.offload.optimizer = true, p.data.zero_stage = 1; });
  add(small, [](Plan& p) { p.pipeline.degree = 4; });
  add(small, [](Plan& p) { p.pipeline.degree = 4, p.pipeline.virtual_stages = 2; });
  add(small, [](Plan& p) { p.pipeline.degree = 4, p.pipeline.schedule = ScheduleKind::zb_h1; });
  // Stages with equal chunks are clocked as one, with the reductions that its first stage has left when its slots end:
  // in ZB-V the others have less. A seam in some stages' chunks tells them apart, so nothing is left over here.
  add(small, [](Plan& p) {
    p.pipeline.degree = 4, p.pipeline.schedule = ScheduleKind::zb_v;
    p.data.overlap_gradients = false;
  });
  add(gpt3_175b(), [](Plan&) {});
  return scenarios;
}

LayerRange range_of(const Scenario& s, std::int64_t from, std::int64_t to, std::int64_t step = 1) {
  LayerRange range{from, to, step, s.plan};
  range.plan.layers.clear();
  return range;
}

void expect_equal(const Scenario& a, const Scenario& b, const std::string& what) {
  const Report x = simulate(a), y = simulate(b);
  EXPECT_NEAR(x.step_seconds / y.step_seconds, 1, 1e-12) << what;
  EXPECT_NEAR(x.memory_peak_bytes / y.memory_peak_bytes, 1, 1e-12) << what;
  EXPECT_NEAR(x.hfu / y.hfu, 1, 1e-12) << what;
}

// However the layers are cut into ranges: where all say the same, it is the plan without ranges.
TEST(Metamorphic, RangesOfEqualValuesAreThePlanWithoutThem) {
  using activation_recompute::Mode;
  const auto scenarios = plans_over_layers();
  for (std::size_t i = 0; i < scenarios.size(); ++i) {
    Scenario whole = scenarios[i];
    whole.plan.recompute.mode = Mode::full;
    Scenario parts = whole;
    parts.plan.recompute.mode = Mode::none;
    const std::int64_t layers = whole.model.layers;
    parts.plan.layers = {range_of(whole, 0, 3), range_of(whole, 3, layers, 2), range_of(whole, 4, 0, 2)};
    expect_equal(parts, whole, "plan " + std::to_string(i));
  }
}

// Selective recomputation has nothing to do under flash attention: a seam between layers of which only some have it
// must change nothing, not even where a bucket, a fused update or a gathering lies across it.
TEST(Metamorphic, SeamsBetweenPlansThatComputeTheSameChangeNothing) {
  using activation_recompute::Mode;
  const auto scenarios = plans_over_layers();
  for (std::size_t i = 0; i < scenarios.size(); ++i) {
    const Scenario& whole = scenarios[i];
    for (const auto& [from, to, step] : {std::tuple{2, 7, 1}, {0, 0, 2}, {1, 0, 3}}) {
      Scenario parts = whole;
      parts.plan.layers = {range_of(whole, from, to, step)};
      parts.plan.layers[0].plan.recompute.mode = Mode::selective;
      ASSERT_GT(pieces_of(parts), pieces_of(whole));
      expect_equal(parts, whole, "plan " + std::to_string(i) + ", every " + std::to_string(step));
    }
  }
}

TEST(Metamorphic, RecomputingMoreLayersTradesTimeForMemory) {
  using activation_recompute::Mode;
  Scenario s = gpt3_175b();
  double seconds = 0, bytes = 1e18;
  for (const std::int64_t layers : {0, 2, 5, 8}) {  // of each stage's 8
    s.plan.layers.clear();
    for (std::int64_t begin = 0; begin < 96 && layers > 0; begin += 8) {
      s.plan.layers.push_back(range_of(s, begin, begin + layers));
      s.plan.layers.back().plan.recompute.mode = Mode::full;
    }
    const Report r = simulate(s);
    EXPECT_GT(r.step_seconds, seconds) << layers;
    EXPECT_LT(r.memory_peak_bytes, bytes) << layers;
    seconds = r.step_seconds, bytes = r.memory_peak_bytes;
  }
}

TEST(Metamorphic, ShardingStatesSavesMemory) {
  Scenario s = scenario_of("gpt2-1.5b", "dgx-a100", 2);
  s.workload = {1024, 0, 64};
  double last = 1e18;
  for (int stage = 0; stage <= 3; ++stage) {
    s.plan.data.zero_stage = stage;
    const double now = simulate(s).memory_peak_bytes;
    EXPECT_LT(now, last) << stage;
    last = now;
  }
}

// From below each frozen layer saves its backward and its activations; from above less than that.
TEST(Metamorphic, FreezingSavesTimeAndMemory) {
  for (const int stage : {0, 1, 3}) {
    Scenario s = scenario_of("llama-3-8b", "dgx-h100", 1);
    s.workload = {2048, 0, 64};
    s.plan.data.zero_stage = stage;
    const auto frozen = [&](bool lower, std::int64_t layers) {
      Scenario f = s;
      (lower ? f.plan.freeze.embedding : f.plan.freeze.head) = true;
      f.plan.layers = {{lower ? 0 : 32 - layers, lower ? layers : 32, 1, s.plan}};
      f.plan.layers[0].plan.freeze.layers = true;
      return simulate(f);
    };
    Report last_lower = simulate(s), last_upper = last_lower;
    for (const std::int64_t layers : {1, 8, 31, 32}) {
      const Report lower = frozen(true, layers), upper = frozen(false, layers);
      EXPECT_LT(lower.step_seconds, last_lower.step_seconds) << stage << " " << layers;
      EXPECT_LT(lower.memory_peak_bytes, last_lower.memory_peak_bytes) << stage << " " << layers;
      EXPECT_LT(upper.step_seconds, last_upper.step_seconds) << stage << " " << layers;
      EXPECT_LT(upper.memory_peak_bytes, last_upper.memory_peak_bytes) << stage << " " << layers;
      EXPECT_GT(lower.mfu, 0.8 * last_lower.mfu);
      EXPECT_LT(lower.mfu, 1.1 * last_lower.mfu);
      last_lower = lower, last_upper = upper;
    }
    EXPECT_LT(last_lower.step_seconds, last_upper.step_seconds);
  }
}

// Nodes of eight joined by 100 Gbit/s: groups of a node save time, and cost memory.
TEST(Metamorphic, SmallerShardGroupsCostMemoryAndSaveTime) {
  Scenario s = scenario_of("gpt3-13b-5120", "aws-p3dn", 8);
  s.workload = {1024, 0, 1024};
  s.plan.batch.micro_batch_size = 2;
  s.plan.precision.mix = precision::Mix::fp16;
  s.plan.framework.stack = framework::Stack::deepspeed;
  s.plan.data.zero_stage = 3;
  const Report zero3 = simulate(s);
  double bytes = 1e18;
  for (const std::int64_t size : {4, 8, 16, 64}) {  // hpZ: the second copy
    s.plan.zeropp.secondary = size;
    const Report r = simulate(s);
    EXPECT_LT(r.memory_peak_bytes, bytes) << size;
    EXPECT_GT(r.memory_peak_bytes, zero3.memory_peak_bytes) << size;
    if (size <= 8) {
      EXPECT_LT(r.step_seconds, zero3.step_seconds) << size;
    }
    bytes = r.memory_peak_bytes;
  }
  s.plan.zeropp.secondary = 0;
  s.plan.mics.shard_size = 8;
  const Report node = simulate(s);
  EXPECT_LT(node.step_seconds, 0.6 * zero3.step_seconds);
  bytes = node.memory_peak_bytes;
  for (const std::int64_t size : {16, 32, 64}) {
    s.plan.mics.shard_size = size;
    s.plan.mics.hierarchical = false;
    const Report r = simulate(s);
    EXPECT_LT(r.memory_peak_bytes, bytes) << size;
    EXPECT_GT(r.step_seconds, node.step_seconds) << size;
    bytes = r.memory_peak_bytes;
    s.plan.mics.hierarchical = true;
    EXPECT_LT(simulate(s).step_seconds, r.step_seconds) << size;
    if (size == 64) {
      EXPECT_DOUBLE_EQ(r.step_seconds, zero3.step_seconds) << "one partition group of all ranks is ZeRO-3";
      EXPECT_DOUBLE_EQ(r.memory_peak_bytes, zero3.memory_peak_bytes);
    }
  }
}

// Norm weights' gradients are summed over tensor-parallel ranks; that must not keep the whole gradients alive.
TEST(Metamorphic, ShardingGradientsSavesMemoryWithSequenceParallelismToo) {
  Scenario s = scenario_of("llama-3-8b", "dgx-h100", 8);
  s.workload = {8192, 0, 64};
  s.plan.tensor.degree = 2;
  s.plan.tensor.sequence_parallel = true;
  double last = 1e18;
  for (int stage = 1; stage <= 3; ++stage) {
    s.plan.data.zero_stage = stage;
    const Report r = simulate(s);
    const double gradients = r.stages[0].memory.bytes.of(Place::device, Category::gradient);
    EXPECT_LT(gradients, last * (stage == 2 ? 0.5 : 1.001)) << stage;
    last = gradients;
  }
}

TEST(Metamorphic, ShardedMemoryDoesNotGrowWithTheCluster) {
  Scenario s = scenario_of("llama-3-70b", "dgx-h100", 64);
  s.plan.data.zero_stage = 3;
  s.plan.recompute.mode = activation_recompute::Mode::full;
  double last = 1e18;
  for (std::int64_t nodes : {64, 512, 2048}) {
    s.cluster.nodes = nodes;
    s.workload = {8192, 0, nodes * 8};
    const double now = simulate(s).memory_peak_bytes;
    EXPECT_LE(now, last) << nodes;
    last = now;
  }
}

// Qi et al. 2023 (arXiv 2401.10241): ZB-H1 needs no more activation memory than 1F1B. Here the output gradients that
// wait for their weight gradients come on top.
TEST(Metamorphic, ZeroBubbleHoldsLittleMoreThanOneForwardOneBackward) {
  Scenario s = gpt3_175b();
  const double plain = simulate(s).memory_peak_bytes;
  s.plan.pipeline.schedule = pipeline_parallel::ScheduleKind::zb_h1;
  EXPECT_LT(simulate(s).memory_peak_bytes, plain * 1.1);
}

TEST(Metamorphic, OverlapNeverSlowsTheStepWhereKernelsDoNotInterfere) {
  Scenario s = gpt3_175b();
  s.cluster = read_cluster({{"node", "dgx-h100"}, {"nodes", 48}}, {});
  for (bool* flag :
       {&s.plan.data.overlap_gradients, &s.plan.data.overlap_parameters, &s.plan.pipeline.overlap_transfers}) {
    *flag = true;
    const double with = simulate(s, false).step_seconds;
    *flag = false;
    EXPECT_GE(simulate(s, false).step_seconds, with * (1 - 1e-12));
    *flag = true;
  }
}

TEST(Metamorphic, OffloadMovesStatesToHostMemoryWhichMustHoldThem) {
  Scenario s = scenario_of("llama-2-13b", "dgx-a100", 1);
  s.workload = {2048, 0, 8};
  s.plan.data.zero_stage = 2;
  const Report on_device = simulate(s);
  s.plan.offload.optimizer = true;
  const Report offloaded = simulate(s);
  EXPECT_LT(offloaded.memory_peak_bytes, on_device.memory_peak_bytes);
  EXPECT_GT(offloaded.step_seconds, on_device.step_seconds);
  EXPECT_TRUE(offloaded.memory_fits);
  s.cluster.node.host_memory_bytes = 64e9;  // of 13e9 x 12 bytes
  EXPECT_FALSE(simulate(s).memory_fits);
}

TEST(Metamorphic, TheSameInputGivesTheSameBits) {
  const Report a = simulate(gpt3_175b()), b = simulate(gpt3_175b());
  EXPECT_EQ(a.step_seconds, b.step_seconds);
  EXPECT_EQ(a.memory_peak_bytes, b.memory_peak_bytes);
}

// Replicas change the gradient reduction only; equal work per replica keeps compute as it is.
TEST(Metamorphic, ReplicasDoNotChangeCompute) {
  Scenario s = gpt3_175b();
  const Report few = simulate(s);
  s.cluster.nodes *= 4;
  s.workload.global_batch_size *= 4;
  const Report many = simulate(s);
  EXPECT_DOUBLE_EQ(few.stages[0].time.matmul, many.stages[0].time.matmul);
  EXPECT_GE(many.step_seconds, few.step_seconds);
  EXPECT_LT(many.step_seconds, few.step_seconds * 1.1);
}

// As much work on each device: replicas have more to reduce and to gather, and further.
TEST(Metamorphic, MoreReplicasNeverShortenAStep) {
  double last = 0;
  for (std::int64_t nodes = 16; nodes <= 16384; nodes *= 2) {
    ScenarioSource source;
    Scenario s = read_scenario(load_scenario_document("llama-3-70b-512-h100", {}, source), source);
    s.cluster.nodes = nodes;
    s.plan.data.degree = 0;
    s.workload.global_batch_size = 2 * nodes;
    const double now = simulate(s).step_seconds;
    EXPECT_GE(now, last) << nodes;
    last = now;
  }
}

TEST(Metamorphic, ReportedRatesFollowFromTheStep) {
  const Scenario s = gpt3_175b();
  const Report r = simulate(s);
  EXPECT_DOUBLE_EQ(r.tokens_per_second, 1536.0 * 2048 / r.step_seconds);
  EXPECT_DOUBLE_EQ(r.tokens_per_second_per_device, r.tokens_per_second / 384);
  EXPECT_DOUBLE_EQ(r.mfu, r.model_flops_per_second_per_device / 312e12);
  EXPECT_GT(r.mfu_full_attention, r.mfu);
}

}  // namespace
}  // namespace orrery
