// Does the discrete-event engine keep the analytical engine's clock where nothing contends, does the step change by
// what a perturbation takes, and does it say so when the step cannot end?
#include "sim/des/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "sim/report/json.h"
#include "strategies/context_parallel/context_parallel.h"
#include "strategies/read_scenario.h"
#include "strategies/zeppelin/zeppelin.h"
#include "tests/des/support.h"

namespace orrery {
namespace {

using pipeline_parallel::ScheduleKind;
using testing::AllOf;
using testing::HasSubstr;

constexpr double kRounding = 1e-9;  // relative

// --- Agreement with the analytical engine

void expect_terms_add_up(const Report& r, const std::string& what) {
  for (const StageReport& stage : r.stages) {
    EXPECT_NEAR(stage.time.total() / r.step_seconds, 1, kRounding) << what;
    EXPECT_NEAR((stage.busy_seconds + stage.time.bubble) / r.step_seconds, 1, kRounding) << what;
  }
  double path = 0, unexplained = 0;
  for (const CriticalPathPart& part : r.discrete_event->critical_path) {
    EXPECT_GT(part.seconds, 0) << what << " " << part.what;
    path += part.seconds;
    if (part.what == "other waits" || part.what == "before the first event") unexplained += part.seconds;
  }
  EXPECT_NEAR(path / r.step_seconds, 1, 1e-6) << what;
  EXPECT_LT(unexplained / r.step_seconds, 0.01) << what;
}

Scenario bundled(const std::string& name) {
  ScenarioSource source;
  return read_scenario(load_scenario_document(name, {}, source), source);
}

// Relative: how much longer events take where documents are on ranks of their own. Without contention both engines take
// the same time. Ranks that wait for each other's messages make the difference, which the closed form does not know.
constexpr double kDocumentsApart = 0.055;

TEST(Agreement, EveryBundledScenarioWithoutPerturbations) {
  int compared = 0;
  for (const BundledDocument& b : bundled_scenarios()) {
    ScenarioSource source;
    const nlohmann::json document = load_scenario_document(b.name, {}, source);
    if (has_jobs(document)) continue;
    Scenario s = read_scenario(document, source);
    s.perturbations.clear();
    const Report analytical = simulate(s), des = simulate_des(s);
    // Transfers between stages meet tokens on the way to experts at NICs, slot by slot: only event by event.
    // Where routing is unequal, or documents are on ranks of their own, ranks that wait for each other layer by layer,
    // whose busiest is not always the same, too. The less attention there is beside the messages of documents, the more
    // of these waits a step shows.
    const bool documents_apart = context_parallel::has_layers_of_type(s, zeppelin::kTypes);
    const double near = documents_apart                                       ? kDocumentsApart
                        : s.workload.routes_unequally()                       ? 0.04
                        : s.model.has_experts() && s.plan.pipeline.degree > 1 ? 0.025
                                                                              : 0.02;
    EXPECT_NEAR(des.step_seconds / analytical.step_seconds, 1, near) << b.name;
    const double uncontended = des.discrete_event->uncontended_step_seconds;
    EXPECT_LE(uncontended, analytical.step_seconds * (1 + kRounding)) << b.name;
    EXPECT_EQ(uncontended, predict(PreparedAlone(s), {.shares_levels = false}).step_seconds) << b.name;
    EXPECT_NEAR(des.mfu * des.step_seconds / (analytical.mfu * analytical.step_seconds), 1, kRounding) << b.name;
    EXPECT_EQ(des.memory_peak_bytes, analytical.memory_peak_bytes) << b.name;
    expect_terms_add_up(des, b.name);
    ++compared;
  }
  EXPECT_GE(compared, 10);
}

// Batches of which something moves between nodes, within them, or among a few ranks.
TEST(Agreement, OfDocumentsOnRanksOfTheirOwn) {
  for (const std::int64_t nodes : {1, 2})
    for (const char* documents : {"paper-en", "code"})
      for (const std::int64_t seed : {1, 2, 3, 5}) {
        Scenario s = bundled("zeppelin");
        s.cluster.nodes = nodes;
        s.plan.context.degree = 8 * nodes;
        s.workload.sequence_length = 32768 * nodes;
        s.workload.documents = documents;
        s.workload.documents_seed = seed;
        for (const auto rule : {zeppelin::PartitionRule::zones, zeppelin::PartitionRule::flexsp})
          for (const bool remapping : {true, false}) {
            s.plan.zeppelin.partition = rule;
            s.plan.zeppelin.remapping = remapping;
            // Where ranks have unequal numbers of tokens, others wait for one in forward and for another in backward.
            const bool equal = remapping && rule == zeppelin::PartitionRule::zones;
            EXPECT_NEAR(simulate_des(s).step_seconds / simulate(s).step_seconds, 1, equal ? kDocumentsApart : 0.15)
                << nodes << " " << documents << " " << seed << " " << static_cast<int>(rule) << " " << remapping;
          }
      }
}

// Where gathers of one half of a pair meet what the other half has left on the fabric, both engines count it once.
TEST(Agreement, OfPairsWhoseHalvesMeetOnTheFabric) {
  Scenario s = read_scenario(nlohmann::json::parse(R"({"model": "olmoe-1b-7b", "cluster": {"node": "h100-nvl-4",
      "nodes": 4}, "workload": {"sequence_length": 2048, "global_batch_size": 64}, "plan": {"micro_batch_size": 1,
      "zero_stage": 3, "overlap_grad_reduce": true, "expert_parallel": 2}})"),
                             ScenarioSource{});
  const double apart = simulate(s).step_seconds;
  s.plan.expert.overlap_pairs = true;
  EXPECT_NEAR(simulate(s).step_seconds / apart, 1, 0.08);
  EXPECT_NEAR(simulate_des(s).step_seconds / simulate(s).step_seconds, 1, 0.08);
}

struct Variant {
  const char* name;
  std::function<void(Scenario&)> change;
};
const std::vector<Variant>& variants() {
  static const std::vector<Variant> all{
      {"tensor parallel", [](Scenario& s) { s.plan.tensor.degree = 8; }},
      {"sequence parallel",
       [](Scenario& s) {
         s.plan.tensor.degree = 8;
         s.plan.tensor.sequence_parallel = true;
       }},
      {"tensor-parallel overlap",
       [](Scenario& s) {
         s.plan.tensor.degree = 4;
         s.plan.tensor.sequence_parallel = s.plan.tensor.overlap = true;
       }},
      {"context-parallel ring", [](Scenario& s) { s.plan.context.degree = 4; }},
      {"ZeRO 1", [](Scenario& s) { s.plan.data.zero_stage = 1; }},
      {"ZeRO 2", [](Scenario& s) { s.plan.data.zero_stage = 2; }},
      {"ZeRO 3", [](Scenario& s) { s.plan.data.zero_stage = 3; }},
      {"hybrid sharding",
       [](Scenario& s) {
         s.plan.data.zero_stage = 3;
         s.plan.data.shard_degree = 8;
       }},
      {"ZeRO 1 without overlap",
       [](Scenario& s) {
         s.plan.data.zero_stage = 1;
         s.plan.data.overlap_gradients = s.plan.data.overlap_parameters = false;
       }},
      {"offload",
       [](Scenario& s) {
         s.plan.offload.optimizer = true;
         s.plan.data.zero_stage = 1;
       }},
      {"MEMO",
       [](Scenario& s) {
         s.plan.tensor.degree = 4;
         s.plan.tensor.sequence_parallel = true;
         s.plan.pipeline.degree = 2;
         s.plan.memo = {.swap = true, .alpha = 0.5};
       }},
      {"GPipe",
       [](Scenario& s) {
         s.plan.pipeline.degree = 4;
         s.plan.pipeline.schedule = ScheduleKind::gpipe;
       }},
      {"1F1B", [](Scenario& s) { s.plan.pipeline.degree = 4; }},
      {"1F1B with blocking transfers",
       [](Scenario& s) {
         s.plan.pipeline.degree = 4;
         s.plan.pipeline.overlap_transfers = false;
       }},
      {"uneven stages with blocking transfers",
       [](Scenario& s) {
         s.plan.pipeline.degree = 2;
         s.plan.pipeline.stage_layers = {s.model.layers * 3 / 4, s.model.layers / 4};
         s.plan.pipeline.overlap_transfers = false;
       }},
      {"interleaved",
       [](Scenario& s) {
         s.plan.pipeline.degree = 4;
         s.plan.pipeline.virtual_stages = 2;
         s.plan.pipeline.schedule = ScheduleKind::interleaved;
       }},
      {"ZB-H1",
       [](Scenario& s) {
         s.plan.pipeline.degree = 4;
         s.plan.pipeline.schedule = ScheduleKind::zb_h1;
       }},
      {"ZB-V",
       [](Scenario& s) {
         s.plan.pipeline.degree = 4;
         s.plan.pipeline.schedule = ScheduleKind::zb_v;
       }},
      {"full recomputation", [](Scenario& s) { s.plan.recompute.mode = activation_recompute::Mode::full; }},
      {"recomputation by ranges of layers",
       [](Scenario& s) {
         LayerRange some{1, 4, 1, s.plan}, others{4, 0, 2, s.plan};
         some.plan.recompute.mode = activation_recompute::Mode::full;
         others.plan.recompute = some.plan.recompute;
         others.plan.recompute.every = 2;
         s.plan.layers = {some, others};
       }},
      {"fp8 in every second layer",
       [](Scenario& s) {
         LayerRange range{0, 0, 2, s.plan};
         range.plan.precision.mix = precision::Mix::fp8;
         s.plan.layers = {range};
       }},
      {"CUDA graphs", [](Scenario& s) { s.plan.framework.cuda_graphs = true; }},
      {"tensor, pipeline, ZeRO 1",
       [](Scenario& s) {
         s.plan.tensor.degree = 4;
         s.plan.tensor.sequence_parallel = true;
         s.plan.pipeline.degree = 2;
         s.plan.data.zero_stage = 1;
       }},
      {"tensor, context, pipeline, interleaved",
       [](Scenario& s) {
         s.plan.tensor.degree = 2;
         s.plan.context.degree = 2;
         s.plan.pipeline.degree = 2;
         s.plan.pipeline.virtual_stages = 4;
         s.plan.pipeline.schedule = ScheduleKind::interleaved;
       }},
  };
  return all;
}

TEST(Agreement, PlansOfEveryKind) {
  for (const Variant& v : variants()) {
    Scenario s = scenario_of("llama-3-8b", "dgx-h100", 4);
    s.workload = {8192, 0, 128};
    v.change(s);
    const Report analytical = simulate(s), des = simulate_des(s);
    EXPECT_NEAR(des.step_seconds / analytical.step_seconds, 1, 0.02) << v.name;
    expect_terms_add_up(des, v.name);
  }
}

// Two devices a switch, whose up-link carries both their copies: kernels wait for the buffers that are copied from.
TEST(Agreement, CopiesShareTheUpLinkOfTheirSwitch) {
  double before = 0;
  for (const double alpha : {0.0, 0.5, 1.0})
    for (const double up_link : {0.0, 2e9}) {
      Scenario s = scenario_of("gpt3-6.7b", "hgx-a800", 1);
      s.model.max_positions = 16384;
      s.model.positions = Positions::rotary;
      s.workload = {16384, 0, 1};
      s.plan.data.degree = 1;
      s.plan.tensor.degree = 8;
      s.plan.tensor.sequence_parallel = true;
      s.plan.memo = {.swap = true, .alpha = alpha};
      s.cluster.node.pcie_switch_bytes_per_second = up_link;
      const Report analytical = simulate(s), des = simulate_des(s);
      const std::string what = std::to_string(alpha) + " " + std::to_string(up_link);
      EXPECT_NEAR(des.step_seconds / analytical.step_seconds, 1, 0.005) << what;
      expect_terms_add_up(des, what);
      const double waits =
          analytical.stages[0].time.exposed[static_cast<std::size_t>(Stream::device_to_host)] / analytical.step_seconds;
      if (up_link == 0) {
        EXPECT_LT(waits, 0.02 + 0.6 * alpha) << what;
      } else {
        EXPECT_GT(waits, 0.2) << what;
        EXPECT_GT(analytical.step_seconds, before) << what;
      }
      before = analytical.step_seconds;
    }
}

// Where seams lie between layers that compute the same: buckets, fused updates and gathering ahead pass over them.
TEST(LayerRanges, SeamsBetweenPlansThatComputeTheSameChangeNothing) {
  for (const auto& [zero, stages] : {std::pair{0, 1}, {1, 2}, {3, 1}}) {
    Scenario whole = scenario_of("gpt3-1.3B", "dgx-h100", 4);
    whole.workload = {2048, 0, 64};
    whole.plan.data.zero_stage = zero;
    whole.plan.data.prefetch = 2;
    whole.plan.pipeline.degree = stages;
    if (zero == 0) whole.plan.data.bucket_bytes = 600'000'000;  // of three layers
    Scenario parts = whole;
    LayerRange range{1, 0, 2, whole.plan};
    range.plan.recompute.mode = activation_recompute::Mode::selective;  // nothing, with flash attention
    parts.plan.layers = {range};
    const Report a = simulate_des(parts), b = simulate_des(whole);
    EXPECT_NEAR(a.step_seconds / b.step_seconds, 1, kRounding) << zero;
    EXPECT_NEAR(a.memory_peak_bytes / b.memory_peak_bytes, 1, kRounding) << zero;
  }
}

// Each second stands under the same name in both, to that part of the step.
void expect_same_terms(const Report& des, const Report& analytical, const std::string& what,
                       double tolerance = kRounding) {
  ASSERT_EQ(des.stages.size(), analytical.stages.size()) << what;
  EXPECT_NEAR(des.step_seconds / analytical.step_seconds, 1, tolerance) << what;
  for (std::size_t i = 0; i < des.stages.size(); ++i) {
    const TimeBreakdown &d = des.stages[i].time, &a = analytical.stages[i].time;
    const auto same = [&](double in_des, double in_analytical, const char* term) {
      EXPECT_NEAR(in_des, in_analytical, tolerance * analytical.step_seconds)
          << what << ", stages " << i << ", " << term;
    };
    same(d.matmul, a.matmul, "matmul");
    same(d.attention, a.attention, "attention");
    same(d.memory_bound, a.memory_bound, "memory_bound");
    same(d.recompute, a.recompute, "recompute");
    same(d.optimizer, a.optimizer, "optimizer");
    same(d.host_issue, a.host_issue, "host_issue");
    same(d.bubble, a.bubble, "bubble");
    for (std::size_t stream = 0; stream < kStreams; ++stream)
      same(d.exposed[stream], a.exposed[stream], name_of(static_cast<Stream>(stream)));
  }
}

// Links without end and collectives of latency alone: nothing can contend, and both engines keep the same clock.
struct Uncontended {
  Report analytical, des;
};
Uncontended run_uncontended(Scenario s) {
  constexpr double kEndless = 1e18;
  s.cluster.node.intra_bytes_per_second = s.cluster.node.nic_bytes_per_second = kEndless;
  s.cluster.node.pcie_bytes_per_second = kEndless;
  s.cluster.node.host_memory_bytes_per_second = 1e3 * kEndless;  // which all devices share
  s.cluster.fabric.kind = FabricKind::single_switch;
  s.cluster.fabric.latency_seconds = s.cluster.fabric.hop_latency_seconds = 0;
  Program program;
  lower(s, program);
  Calibration kernels = find_calibration(s.cluster.device);
  kernels.overlap_slowdown = 0;
  CollectiveCalibration collectives = ideal_collectives();
  collectives.intra.base_seconds = collectives.intra.all_to_all_base_seconds = {300e-6, 300e-6, 300e-6};
  collectives.intra.send_base_seconds = {200e-6, 200e-6, 200e-6};
  const Dtype dtype = s.plan.precision.compute();
  Uncontended both;
  AnalyticalEngine(s.cluster, kernels, collectives).evaluate(program, dtype, {}, both.analytical);
  const DiscreteEventJob job{.name = "", .program = &program, .mfu_dtype = dtype, .kernels = &kernels, .placement = {}};
  run_discrete_event(s.cluster, collectives, {&job, 1}, {}, {}, {&both.des, 1});
  return both;
}

TEST(Agreement, BothClocksAreOneWhereNothingContends) {
  for (const Variant& v : variants())
    for (const std::int64_t micro_batches : {1, 8})
      for (const std::int64_t zero : {0, 2, 3}) {
        Scenario s = scenario_of("gpt3-1.3B", "dgx-h100", 4);
        s.model.layers = 8;
        v.change(s);
        if (s.plan.pipeline.schedule == ScheduleKind::interleaved && micro_batches < 8) continue;  // not laid out
        s.plan.data.zero_stage = zero;
        if (zero < 3) s.plan.data.shard_degree = 0;
        s.workload = {2048, 0, data_parallel_degree(s) * micro_batches};
        // What a pipeline gathers and reduces beside its slots the analytical engine only bounds.
        if (s.plan.pipeline.degree > 1) {
          if (zero == 3) continue;
          s.plan.data.overlap_gradients = s.plan.data.overlap_parameters = false;
        }
        const std::string what = fmt::format("{}, {} micro-batches, ZeRO {}", v.name, micro_batches, zero);
        const auto [analytical, des] = run_uncontended(s);
        expect_same_terms(des, analytical, what);
      }
}

// Four kernels of a second that the host issues three seconds apart: it waits for the first launch, and then each
// kernel for its own.
TEST(Agreement, ALateHostIsTheHostsTime) {
  HandmadeProgram p{Mesh{}};
  for (int i = 0; i < 4; ++i) p.pieces[0].kernel(p.pieces[0].piece.forward, 1);
  p.finish();
  p.program.runtime.host_seconds_per_op = 3;
  const Report r = run_program(ideal_cluster(1), p.program);
  EXPECT_NEAR(r.step_seconds, 4 * 3 + 1, 1e-8);
  EXPECT_NEAR(r.stages[0].time.memory_bound, 4, 1e-8);
  EXPECT_NEAR(r.stages[0].time.host_issue, 3 + 3 * (3 - 1), 1e-8);
  EXPECT_NEAR(r.stages[0].time.bubble, 0, 1e-8);
  EXPECT_NEAR(r.discrete_event->uncontended_step_seconds, r.step_seconds, 1e-8);
}

// Twice in each of three layers the host waits for the device before it puts tokens into rows. The second time a gather
// runs on a stream of its own, which the host issues behind the rows.
TEST(Agreement, AHostThatReadsRowCountsWaitsForThem) {
  HandmadeProgram p(mesh_of({{MeshAxis::dp_shard, 2}}));
  Handmade& layer = p.pieces[0];
  for (const int seconds : {4, 7}) {
    layer.kernel(layer.piece.forward, seconds);
    layer.kernel(layer.piece.forward, 1).kind = OpKind::permute;
    layer.kernel(layer.piece.forward, 1);
  }
  const TensorId whole = p.collective(0, OpKind::all_gather, Stream::parameter_communication, MeshAxis::dp_shard,
                                      2 * 5 * kNicRate, "gather")
                             .writes[0];
  layer.kernel(layer.piece.forward, 2, {whole});
  p.finish();
  p.program.stages[0][0].runs[0].count = 3;
  p.program.runtime.host_seconds_per_op = p.program.runtime.host_seconds_per_collective = 2;
  double without = 0;
  for (const bool waits : {false, true}) {
    p.program.runtime.reads_row_counts = waits;
    const Report r = run_program(ideal_cluster(2), p.program);
    EXPECT_NEAR(r.discrete_event->uncontended_step_seconds, r.step_seconds, 1e-8) << waits;
    if (waits) {
      EXPECT_GT(r.step_seconds, without + 3 * (2 + 2));
    }
    without = r.step_seconds;
  }
}

// A gather of four seconds in four parts, and a kernel of two in as many that follow it: it waits a second for the
// first part, and half of one for each other.
TEST(Agreement, AWaitForAPartIsTheCollectives) {
  HandmadeProgram p(mesh_of({{MeshAxis::dp_shard, 2}}));
  Op& gather = p.collective(0, OpKind::all_gather, Stream::parameter_communication, MeshAxis::dp_shard,
                            2 * 4 * kNicRate, "gather");
  gather.free_running = true;
  gather.count = 4;
  const TensorId whole = gather.writes[0];
  p.pieces[0].kernel(p.pieces[0].piece.forward, 2, {whole}).count = 4;
  p.finish();
  const Report r = run_program(ideal_cluster(2), p.program);
  const TimeBreakdown& time = r.stages[0].time;
  EXPECT_NEAR(r.step_seconds, 4.5, 1e-8);
  EXPECT_NEAR(time.memory_bound, 2, 1e-8);
  EXPECT_NEAR(time.exposed[static_cast<std::size_t>(Stream::parameter_communication)], 1 + 3 * 0.5, 1e-8);
  EXPECT_NEAR(time.bubble, 0, 1e-8);
  EXPECT_NEAR(r.discrete_event->uncontended_step_seconds, r.step_seconds, 1e-8);
}

// The host hands a later stage's kernels over once the stage has its input, in the first micro-batch as in any other.
TEST(Agreement, TheHostWaitsForTheInputToo) {
  HandmadeProgram p(mesh_of({{MeshAxis::pp, 2}}));
  for (Handmade& piece : p.pieces)
    for (int i = 0; i < 2; ++i) {
      piece.kernel(piece.piece.forward, 1);
      piece.kernel(piece.piece.backward, 1);
    }
  p.finish();
  p.program.runtime.host_seconds_per_op = p.program.runtime.host_seconds_per_collective = 3;
  const Report r = run_program(ideal_cluster(2), p.program);
  EXPECT_NEAR(r.step_seconds, 4 * (2 * 3 + 1), 1e-8);
  EXPECT_NEAR(r.discrete_event->uncontended_step_seconds, r.step_seconds, 1e-8);
}

// But for what is issued ahead: three gathers, while the stage before computes.
TEST(Agreement, TheHostIssuesGathersBeforeTheInput) {
  constexpr int kLayers = 3, kIssue = 3;
  for (const int fill : {10, 1}) {
    HandmadeProgram p(mesh_of({{MeshAxis::pp, 2}, {MeshAxis::dp_shard, 2}}));
    p.pieces[0].kernel(p.pieces[0].piece.forward, fill);
    p.pieces[0].kernel(p.pieces[0].piece.backward, 1);
    Handmade& layer = p.pieces[1];
    Op& gather = p.collective(1, OpKind::all_gather, Stream::parameter_communication, MeshAxis::dp_shard,
                              2 * 0.5 * kNicRate, "gather");
    gather.free_running = true;
    gather.prefetch = 1;
    layer.kernel(layer.piece.forward, 1, {gather.writes[0]});
    layer.kernel(layer.piece.backward, 1);
    p.finish();
    p.program.stages[1][0].runs[0].count = kLayers;
    p.program.runtime.host_seconds_per_op = p.program.runtime.host_seconds_per_collective = kIssue;
    const Report r = run_program(ideal_cluster(4), p.program);
    const int input = kIssue + fill, ahead = kLayers * kIssue;
    EXPECT_NEAR(r.step_seconds, std::max(input, ahead) + 2 * (kLayers * kIssue + 1) + kIssue + 1, 1e-8) << fill;
    EXPECT_NEAR(r.discrete_event->uncontended_step_seconds, r.step_seconds, 1e-8) << fill;
  }
}

// A small model under a stack's fitted host.
TEST(Agreement, APipelineThatWaitsForTheHost) {
  const Scenario s = read_scenario({{"model", "t5-large"},
                                    {"cluster", {{"node", "dgx-a100"}}},
                                    {"workload", {{"sequence_length", 512}, {"global_batch_size", 32}}},
                                    {"plan", {{"pipeline_parallel", 4}, {"zero_stage", 1}}}},
                                   {});
  Calibrator calibrator;
  const Prepared p = calibrator.prepare(s);
  const Report analytical = predict(p);
  const DiscreteEventJob job{
      .name = "", .program = p.program, .mfu_dtype = s.plan.precision.compute(), .kernels = p.kernels, .placement = {}};
  Report des;
  run_discrete_event(p.scenario.cluster, *p.collectives, {&job, 1}, {}, {}, {&des, 1});
  const auto& bounding = analytical.stages[static_cast<std::size_t>(analytical.bounding_stage)];
  EXPECT_GT(bounding.time.host_issue, 0.5 * analytical.step_seconds);
  expect_same_terms(des, analytical, "t5-large", 1e-4);
}

// A stage gathers its layers' parameters while it waits for its first input: each as soon as the one before it is
// there, whatever `prefetch` says. Later ones wait for the layer that issues them.
TEST(Agreement, ParametersAreGatheredWhileThePipelineFills) {
  constexpr std::int64_t kLayers = 3;
  for (const std::int64_t fill : {10, 1}) {
    HandmadeProgram p(mesh_of({{MeshAxis::pp, 2}, {MeshAxis::dp_shard, 2}}));
    p.pieces[0].kernel(p.pieces[0].piece.forward, fill);
    p.pieces[0].kernel(p.pieces[0].piece.backward, 1);
    Handmade& layer = p.pieces[1];
    Op& gather = p.collective(1, OpKind::all_gather, Stream::parameter_communication, MeshAxis::dp_shard,
                              2 * 2 * kNicRate, "gather");  // 2 s
    gather.free_running = true;
    gather.prefetch = 1;
    gather.when = When::first_micro_batch;
    layer.kernel(layer.piece.forward, 1, {gather.writes[0]});
    layer.kernel(layer.piece.backward, 1);
    p.finish();
    p.program.stages[1][0].runs[0].count = kLayers;
    const Report r = run_program(ideal_cluster(4), p.program);
    // Three gathers of 2 s from the beginning, a kernel of 1 s behind each and behind the input; the backwards.
    const double forward = fill == 10 ? 10 + kLayers : 2 * kLayers + 1;
    EXPECT_NEAR(r.step_seconds, forward + kLayers + 1, 1e-8) << fill;
  }
}

// A later chunk's parameters are gathered beside the first forwards of the chunk before; and what a chunk reduces slows
// the backwards behind it. Both take long in a large cluster.
TEST(Agreement, InterleavedChunksOfALargeCluster) {
  for (const std::int64_t nodes : {64, 1024}) {
    Scenario s = bundled("llama-3-70b-512-h100");
    s.cluster.nodes = nodes;
    s.plan.data.degree = 0;
    s.workload.global_batch_size = 2 * nodes;
    const Report analytical = simulate(s), des = simulate_des(s);
    EXPECT_NEAR(des.step_seconds / analytical.step_seconds, 1, 0.01) << nodes;
  }
}

// A layer is gathered when the one before it starts, not all of them at once.
TEST(Agreement, ParametersAreGatheredOneLayerAhead) {
  Scenario s = scenario_of("llama-3-8b", "dgx-h100", 1);
  s.model.layers = 6;
  s.workload = {8192, 0, 8};
  s.plan.data.zero_stage = 3;
  const Report r = simulate_des(s, {.timeline = true});
  double forward_end = 0;
  for (const TimelineSpan& i : r.timeline.intervals)
    if (i.stream == Stream::compute && i.kind == static_cast<std::uint8_t>(SlotKind::forward))
      forward_end = i.end_seconds;
  std::vector<const TimelineSpan*> gathers;
  for (const TimelineSpan& i : r.timeline.intervals)
    if (i.stream == Stream::parameter_communication && i.begin_seconds < forward_end) gathers.push_back(&i);
  ASSERT_EQ(gathers.size(), 6u + 2) << "the layers, embedding and head";
  for (std::size_t i = 3; i + 1 < gathers.size(); ++i)  // between layers
    EXPECT_GT(gathers[i]->begin_seconds, gathers[i - 1]->end_seconds) << "their kernels take longer";
}

// All stages meet at the gradient norm: the second one's long update waits for the first one's backward.
TEST(Agreement, UpdatesWaitForTheNormOfAllStages) {
  HandmadeProgram p(mesh_of({{MeshAxis::pp, 2}}));
  for (const std::size_t stage : {0, 1}) {
    Handmade& piece = p.pieces[stage];
    piece.kernel(piece.piece.forward, 1);
    piece.kernel(piece.piece.backward, stage == 0 ? 5 : 1);
    Op& norm = piece.kernel(piece.piece.update, 1);
    norm.kind = OpKind::gradient_norm;
    norm.phase = Phase::update;
    piece.kernel(piece.piece.update, stage == 0 ? 2 : 10).phase = Phase::update;
  }
  // Forwards 1 + 1, backwards 1 + 5, the first stage's norm, the second one's update.
  EXPECT_NEAR(run_program(ideal_cluster(2), p.finish()).step_seconds, 2 + 6 + 1 + 10, 1e-8);
}

// Reductions of two seconds behind each backward of one: they end while the stage waits for the next gradients.
TEST(Agreement, ReductionsGoOnWhileAStageWaits) {
  HandmadeProgram p(mesh_of({{MeshAxis::pp, 2}, {MeshAxis::dp_shard, 2}}));
  for (const std::size_t stage : {0, 1}) {
    Handmade& piece = p.pieces[stage];
    piece.kernel(piece.piece.forward, 1);
    piece.kernel(piece.piece.backward, stage == 0 ? 1 : 3);
  }
  p.collective(0, OpKind::reduce_scatter, Stream::data_communication, MeshAxis::dp_shard, 2 * 2 * kNicRate);
  auto& forward = p.pieces[0].piece.forward.ops;
  p.pieces[0].piece.backward.ops.push_back(forward.back());
  forward.pop_back();
  pipeline_parallel::build_schedule(ScheduleKind::one_f_one_b, 2, 1, 3, p.program.schedule);
  const Report r = run_program(ideal_cluster(4), p.finish());
  // The first forward, three rounds of the second stage, the last backward, and its reduction.
  EXPECT_NEAR(r.step_seconds, 1 + 3 * (1 + 3) + 1 + 2, 1e-8);
  EXPECT_NEAR(r.discrete_event->uncontended_step_seconds, r.step_seconds, 1e-8);
}

// The first stage computes ten times as long as the second, whose messages of a second it waits for.
HandmadeProgram three_blocking_micro_batches() {
  HandmadeProgram p(mesh_of({{MeshAxis::pp, 2}}));
  for (const std::size_t stage : {0, 1}) {
    p.pieces[stage].kernel(p.pieces[stage].piece.forward, stage == 0 ? 10 : 1);
    p.pieces[stage].kernel(p.pieces[stage].piece.backward, stage == 0 ? 10 : 1);
  }
  p.hand_on(kNicRate);
  pipeline_parallel::build_schedule(ScheduleKind::one_f_one_b, 2, 1, 3, p.program.schedule);
  p.program.schedule.blocking_transfers = true;
  p.finish();
  return p;
}

TEST(Agreement, BlockingTransfersOccupyTheStage) {
  HandmadeProgram p = three_blocking_micro_batches();
  // F0, its send, F1 (whose send is one exchange with B0's receipt), and a receipt before each backward.
  const Report r = run_program(ideal_cluster(2), p.program);
  EXPECT_NEAR(r.step_seconds, 3 * 20 + 1 + 3, 1e-8);
  EXPECT_NEAR(r.discrete_event->uncontended_step_seconds, r.step_seconds, 1e-8);
  EXPECT_NEAR(r.stages[0].time.exposed[static_cast<std::size_t>(Stream::pipeline_communication)], 1 + 3, 1e-8);
  p.program.schedule.blocking_transfers = false;
  EXPECT_NEAR(run_program(ideal_cluster(2), p.program).step_seconds, 3 * 20, 1e-8) << "in the shadow of the kernels";
}

TEST(SlowLink, BlockingTransfersTakeItsTimeOnBothSides) {
  const HandmadeProgram p = three_blocking_micro_batches();
  EXPECT_NEAR(run_program(ideal_cluster(2), p.program, {slow_link("node*.nic0", 0.5)}).step_seconds,
              3 * 20 + 2 * (1 + 3), 1e-8);
}

// Where the engines differ on real links, collectives have shared them.
TEST(Agreement, WhatIsLostIsContention) {
  Scenario s = scenario_of("gpt3-13b", "dgx-a100", 4);
  s.workload = {2048, 0, 64};
  s.plan.tensor.degree = 8;
  s.plan.data.zero_stage = 3;  // gathers and reduces whole layers in every micro-batch over the same NICs
  const Report des = simulate_des(s);
  const double lost = des.step_seconds - des.discrete_event->uncontended_step_seconds;
  EXPECT_GT(lost, 0.5 * des.discrete_event->uncontended_step_seconds);
  double found = 0, gathering_and_reducing = 0;
  for (const ContentionReport& row : des.discrete_event->contention) {
    found += row.seconds - row.seconds_alone;
    if (row.op.starts_with("layer.")) gathering_and_reducing += row.seconds_alone;
  }
  EXPECT_LE(lost, found * (1 + 1e-3));
  EXPECT_GE(des.step_seconds, 0.99 * gathering_and_reducing) << "on a NIC they take the sum of their times";
}

// --- Slow devices

// A kernel of ten seconds and a ring of two over two nodes.
HandmadeProgram kernel_and_ring(std::int64_t kernel_seconds = 10, Stream stream = Stream::tensor_communication) {
  HandmadeProgram p(mesh_of({{MeshAxis::dp_shard, 2}}));
  p.pieces[0].kernel(p.pieces[0].piece.forward, kernel_seconds);
  p.collective(0, OpKind::all_gather, stream, MeshAxis::dp_shard, 2 * 2 * kNicRate, "ring");
  p.finish();
  return p;
}

// Tensor-parallel groups of a pipeline run ahead of the transfers that reach them: what had come in time is no wait,
// and the path goes on through who ran.
TEST(CriticalPath, LeadsThroughThePipelineWithoutGaps) {
  for (const bool jitters : {false, true}) {
    Scenario s = bundled("llama-3-70b-512-h100");
    s.cluster.nodes = 8;
    s.workload.global_batch_size = 16;
    if (jitters) s.perturbations = {jitter(0.05, 1)};
    const Report r = simulate_des(s);
    double path = 0, idle = 0;
    for (const CriticalPathPart& part : r.discrete_event->critical_path) {
      path += part.seconds;
      if (part.what == "other waits" || part.what == "host issue") idle += part.seconds;
    }
    EXPECT_NEAR(path / r.step_seconds, 1, 1e-6);
    EXPECT_LT(idle / r.step_seconds, 0.02);
  }
}

TEST(SlowDevice, TheOthersWaitForIt) {
  const Cluster c = ideal_cluster(2);
  const HandmadeProgram p = kernel_and_ring();
  EXPECT_NEAR(run_program(c, p.program).step_seconds, 10 + 2, 1e-8);
  for (const double factor : {0.9, 0.5, 0.2}) {
    const Report r = run_program(c, p.program, {slow_device(1, factor)});
    EXPECT_NEAR(r.step_seconds, 10 / factor + 2, 1e-8);
    const auto& waits = r.discrete_event->waits;
    ASSERT_EQ(waits.size(), 1u);
    EXPECT_THAT(waits[0].who, HasSubstr("rank 0"));
    EXPECT_THAT(waits[0].for_whom, HasSubstr("rank 1"));
    EXPECT_THAT(waits[0].op, HasSubstr("ring"));
    EXPECT_EQ(waits[0].times, 1);
    EXPECT_NEAR(waits[0].seconds, 10 / factor - 10, 1e-8);
    // The chain that ends the step: the slow kernel, then the ring.
    const auto& path = r.discrete_event->critical_path;
    ASSERT_EQ(path.size(), 2u);
    EXPECT_THAT(path[0].who, HasSubstr("rank 1"));
    EXPECT_NEAR(path[0].seconds, 10 / factor, 1e-8);
    EXPECT_NEAR(path[1].seconds, 2, 1e-8);
  }
}

// The timeline is of the ranks that others wait for: here of the second replica, in both stages.
TEST(SlowDevice, TheTimelineIsOfTheSlowOne) {
  HandmadeProgram p(mesh_of({{MeshAxis::dp_shard, 2}, {MeshAxis::pp, 2}}));
  for (const std::size_t stage : {0, 1}) p.pieces[stage].kernel(p.pieces[stage].piece.forward, 10);
  p.hand_on(1);
  p.finish();
  for (const std::int64_t slow : {1, 3}) {
    const Report r = run_program(ideal_cluster(4), p.program, {slow_device(slow, 0.5)}, {.timeline = true});
    std::array<double, 2> seconds{};
    for (const TimelineSpan& i : r.timeline.intervals)
      if (i.stream == Stream::compute && i.kind == static_cast<std::uint8_t>(SlotKind::forward))
        seconds[static_cast<std::size_t>(i.stage)] += i.end_seconds - i.begin_seconds;
    EXPECT_NEAR(seconds[0], slow == 1 ? 20 : 10, 1e-8);
    EXPECT_NEAR(seconds[1], slow == 3 ? 20 : 10, 1e-8);
  }
}

// Ranks of the next stage that nothing but the order tells apart.
TEST(SlowDevice, DelaysWhoeverFollowsEvenIfNothingIsHandedOn) {
  HandmadeProgram p(mesh_of({{MeshAxis::dp_shard, 2}, {MeshAxis::pp, 2}}));
  for (const std::size_t stage : {0, 1}) p.pieces[stage].kernel(p.pieces[stage].piece.forward, 10);
  p.finish();
  for (const std::int64_t slow : {0, 1, 2, 3})
    EXPECT_NEAR(run_program(ideal_cluster(4), p.program, {slow_device(slow, 0.5)}).step_seconds, 10 + 20, 1e-8) << slow;
}

// Stages send what crosses between them: here nothing to the second, ten seconds' worth to the third.
TEST(Agreement, EachBorderTakesTheTimeOfWhatCrossesIt) {
  HandmadeProgram p(mesh_of({{MeshAxis::pp, 3}}));
  for (Handmade& piece : p.pieces) piece.kernel(piece.piece.forward, 1);
  p.hand_on(10 * kNicRate);
  p.pieces[1].piece.input = p.pieces[1].piece.input_gradient = kNoTensor;
  const Report r = run_program(ideal_cluster(3), p.finish());
  EXPECT_NEAR(r.step_seconds, 3 + 10 + 10, 1e-8) << "and the gradient's way back";
  EXPECT_NEAR(r.discrete_event->uncontended_step_seconds, r.step_seconds, 1e-8);
}

// A sum over three of four stages: their ranks wait for the last of them, the fourth stage does not.
TEST(Agreement, StagesThatHoldOneParameterSumItTogether) {
  HandmadeProgram p(mesh_of({{MeshAxis::pp, 4}}));
  p.program.stage_groups = {{0, 1, 3}};
  for (std::size_t s = 0; s < 4; ++s) {
    Handmade& piece = p.pieces[s];
    piece.kernel(piece.piece.forward, 1);
    piece.kernel(piece.piece.backward, 1);
    if (s == 2) continue;
    Op sum;
    sum.kind = OpKind::all_reduce;
    sum.name = "sum";
    sum.stream = Stream::pipeline_communication;
    sum.phase = Phase::update;
    sum.reads[0] = sum.writes[0] = piece.tensor(static_cast<std::int64_t>(3 * kNicRate), Category::gradient, true);
    sum.stages = TableIndex<StageGroup>(0);
    piece.piece.update.ops.push_back(sum);
    piece.kernel(piece.piece.update, s == 3 ? 10 : 1).phase = Phase::update;
  }
  // A ring of three sends 2 x 2/3 of the bytes over each NIC.
  const Report r = run_program(ideal_cluster(4), p.finish());
  EXPECT_NEAR(r.step_seconds, 4 + 4 + 4 + 10, 1e-8);
  EXPECT_NEAR(r.discrete_event->uncontended_step_seconds, r.step_seconds, 1e-8);
  EXPECT_NEAR(r.stages[0].time.exposed[static_cast<std::size_t>(Stream::pipeline_communication)], 4, 1e-8);
}

TEST(SlowDevice, OnlyWhileItLasts) {
  const Cluster c = ideal_cluster(2);
  const HandmadeProgram p = kernel_and_ring();
  const auto took = [&](const std::vector<Perturbation>& all) { return run_program(c, p.program, all).step_seconds; };
  EXPECT_NEAR(took({slow_device(0, 0.5, 2, 5)}), 10 + 1.5 + 2, 1e-8);
  EXPECT_NEAR(took({slow_device(0, 0.5, 0, 4)}), 10 + 2 + 2, 1e-8);
  EXPECT_NEAR(took({slow_device(0, 0.5, 4)}), 4 + 12 + 2, 1e-8);
  EXPECT_NEAR(took({slow_device(0, 0.5, 11)}), 12, 1e-8);
  EXPECT_NEAR(took({slow_device(0, 0.5, 2, 6), slow_device(0, 0.5, 4, 8)}), 10 + (1 + 1.5 + 1) + 2, 1e-8);
  EXPECT_NEAR(took({slow_device(0, 0.5, 0, 4), slow_device(1, 0.25, 0, 4)}), 10 + 3 + 2, 1e-8);
}

TEST(SlowDevice, OneDeviceAloneIsSlowerByItsFactor) {
  Scenario s = scenario_of("gpt3-1.3B", "dgx-a100", 1);
  s.cluster.node.devices = 1;
  s.workload = {2048, 0, 8};
  s.plan.framework.cuda_graphs = true;
  const double usual = simulate_des(s).step_seconds;
  s.perturbations = {slow_device(0, 0.5)};
  EXPECT_NEAR(simulate_des(s).step_seconds / (2 * usual), 1, 1e-3) << "the host's launches alone stay";
}

// Compute-bound replicas: all of the step but its exposed communication is kernels.
TEST(SlowDevice, ACompoundStepGrowsByItsKernels) {
  Scenario s = bundled("straggler");
  const double factor = s.perturbations.at(0).factor;
  Scenario usual = s;
  usual.perturbations.clear();
  const Report before = simulate_des(usual, {}, false), after = simulate_des(s, {}, false);
  const double kernels = before.step_seconds - before.exposed_communication_seconds;
  EXPECT_NEAR(after.step_seconds / (before.step_seconds + (1 / factor - 1) * kernels), 1, 0.01);
  ASSERT_FALSE(after.discrete_event->waits.empty());
  EXPECT_THAT(after.discrete_event->waits[0].for_whom, HasSubstr("13"));
  EXPECT_EQ(after.discrete_event->rank_classes, 2);
}

TEST(SlowDevice, KernelsBesideCollectivesAreSlowed) {
  // overlap_slowdown 0.25: while the ring runs, kernels take 1.25 of their time.
  HandmadeProgram p(mesh_of({{MeshAxis::dp_shard, 2}}));
  p.collective(0, OpKind::all_gather, Stream::data_communication, MeshAxis::dp_shard, 2 * 5 * kNicRate, "ring");
  p.pieces[0].kernel(p.pieces[0].piece.forward, 10);
  p.finish();
  Calibration kernels = SlowCluster().kernels;
  kernels.overlap_slowdown = 0.25;
  Cluster c = ideal_cluster(2);
  c.device.memory_bytes_per_second = 1;
  const CollectiveCalibration collectives = ideal_collectives();
  const DiscreteEventJob job{
      .name = "", .program = &p.program, .mfu_dtype = Dtype::bf16, .kernels = &kernels, .placement = {}};
  Report r;
  run_discrete_event(c, collectives, {&job, 1}, {}, {}, {&r, 1});
  EXPECT_NEAR(r.step_seconds, 5 + (10 - 5 / 1.25), 1e-8);
}

// --- Jitter

// A forward of one kernel of a second in each of many micro-batches.
HandmadeProgram many_kernels(std::int64_t micro_batches) {
  HandmadeProgram p{Mesh{}};
  p.pieces[0].kernel(p.pieces[0].piece.forward, 1);
  pipeline_parallel::build_schedule(ScheduleKind::one_f_one_b, 1, 1, micro_batches, p.program.schedule);
  p.finish();
  return p;
}

TEST(Jitter, TimesHaveTheMeanAndTheVariationAskedFor) {
  constexpr int kKernels = 2000;
  const HandmadeProgram p = many_kernels(kKernels);
  for (const JitterDistribution distribution :
       {JitterDistribution::lognormal, JitterDistribution::gamma, JitterDistribution::uniform})
    for (const double cv : {0.05, 0.3}) {
      const Report r = run_program(ideal_cluster(1), p.program, {jitter(cv, 5, distribution)}, {.timeline = true});
      double sum = 0, squares = 0;
      int kernels = 0;
      for (const TimelineSpan& i : r.timeline.intervals) {
        if (i.kind != static_cast<std::uint8_t>(SlotKind::forward)) continue;
        const double seconds = i.end_seconds - i.begin_seconds;
        sum += seconds;
        squares += (seconds - 1) * (seconds - 1);
        ++kernels;
      }
      ASSERT_EQ(kernels, kKernels);
      const double of_the_mean = cv / std::sqrt(kKernels);  // its standard deviation
      EXPECT_NEAR(sum / kKernels, 1, 4 * of_the_mean);
      EXPECT_NEAR(std::sqrt(squares / kKernels) / cv, 1, 0.15);
      EXPECT_NEAR(r.step_seconds, sum, 1e-6);
    }
}

TEST(Jitter, TheSameSeedGivesTheSameBitsAndAnotherDoesNot) {
  Scenario s = bundled("straggler");
  s.model.layers = 4;
  s.plan.recompute.layers = 4;
  s.workload.global_batch_size = 64;
  const auto step = [&](double cv, std::int64_t seed) {
    s.perturbations = {jitter(cv, seed)};
    return simulate_des(s).step_seconds;
  };
  s.perturbations.clear();
  const double usual = simulate_des(s).step_seconds;
  EXPECT_EQ(step(0.1, 3), step(0.1, 3));
  EXPECT_NE(step(0.1, 3), step(0.1, 4));
  // Everybody waits for the slowest of 32.
  EXPECT_GT(step(0.1, 3), usual);
  EXPECT_GT(step(0.3, 3), step(0.1, 3));
  s.perturbations = {jitter(0.1, 3)};
  EXPECT_EQ(simulate_des(s).discrete_event->rank_classes, 32) << "each draws its own";
}

TEST(Jitter, EachDeviceDrawsItsOwn) {
  const HandmadeProgram p = kernel_and_ring();
  for (const std::int64_t seed : {1, 2, 3}) {
    const Report r = run_program(ideal_cluster(2), p.program, {jitter(0.2, seed)});
    ASSERT_EQ(r.discrete_event->waits.size(), 1u) << "one of the two is earlier";
    EXPECT_GT(r.discrete_event->waits[0].seconds, 0);
  }
}

TEST(Jitter, OnlyOfTheDevicesNamed) {
  const Cluster c = ideal_cluster(2);
  const HandmadeProgram p = kernel_and_ring();
  int later = 0;
  for (const std::int64_t seed : {1, 2, 3, 4, 5, 6, 7, 8}) {
    Perturbation one = jitter(0.2, seed);
    one.devices = {1};
    const double step = run_program(c, p.program, {one}).step_seconds;
    EXPECT_GE(step, 12 * (1 - kRounding)) << "the other one takes its ten seconds";
    later += step > 12 * (1 + kRounding);
  }
  EXPECT_GT(later, 0);
  EXPECT_LT(later, 8);
}

// --- Jobs

TEST(Jobs, WithoutCommonLinksTheyRunAsAlone) {
  Scenario s = scenario_of("gpt3-1.3B", "dgx-a100", 2);
  s.model.layers = 4;
  s.workload = {2048, 0, 32};
  s.plan.data.zero_stage = 3;
  Scenario other = s;
  other.plan.tensor.degree = 2;
  other.plan.data.zero_stage = 1;
  Cluster all = s.cluster;
  all.nodes = 4;
  const double alone = simulate_des(s).step_seconds, other_alone = simulate_des(other).step_seconds;
  const auto together = simulate_jobs(all, {{s, {0, 1}}, {other, {2, 1}}});
  EXPECT_NEAR(together[0].step_seconds / alone, 1, 1e-12);
  EXPECT_NEAR(together[1].step_seconds / other_alone, 1, 1e-12);
  for (const Report& r : together) expect_terms_add_up(r, "a job");
  // On alternating nodes too: NICs and leaves block nothing.
  const auto apart = simulate_jobs(all, {{s, {0, 2}}, {other, {1, 2}}});
  EXPECT_NEAR(apart[0].step_seconds / alone, 1, 1e-12);
  EXPECT_NEAR(apart[1].step_seconds / other_alone, 1, 1e-12);
}

TEST(Jobs, ThatShareAnOversubscribedSpineAreSlower) {
  ScenarioSource source;
  const nlohmann::json json = load_scenario_document("two-jobs-one-spine", {}, source);
  const JobsDocument document = ScenarioReader().read_jobs(json, source);
  std::vector<std::pair<Scenario, JobNodes>> jobs;
  for (const Job& job : document.jobs) jobs.emplace_back(job.scenario, job.placement);
  const auto together = simulate_jobs(document.cluster, jobs);
  for (std::size_t j = 0; j < jobs.size(); ++j) {
    const Report alone = simulate_jobs(document.cluster, {jobs[j]}).front();
    EXPECT_GT(together[j].step_seconds, 1.001 * alone.step_seconds) << j;
    bool over_a_leaf = false;
    for (const ContentionReport& row : together[j].discrete_event->contention)
      over_a_leaf |= row.link.starts_with("leaf");
    EXPECT_TRUE(over_a_leaf) << j;
    expect_terms_add_up(together[j], "a job");
  }
}

// --- Steps that do not end

template <class Act>
std::string why_stalled(Act&& act) {
  try {
    act();
  } catch (const StalledError& e) {
    return e.what();
  }
  return "it ended";
}

// Two stages of a rank each, whose forwards issue a collective over both.
HandmadeProgram two_stages(Stream stream, std::vector<std::pair<OpKind, double>> first,
                           std::vector<std::pair<OpKind, double>> second) {
  HandmadeProgram p(mesh_of({{MeshAxis::pp, 2}}));
  for (const auto& [kind, bytes] : first) p.collective(0, kind, stream, MeshAxis::pp, bytes, "of_the_first");
  for (const auto& [kind, bytes] : second) p.collective(1, kind, stream, MeshAxis::pp, bytes, "of_the_second");
  p.finish();
  return p;
}

TEST(Stalled, StagesThatIssueCollectivesInAnotherOrder) {
  const Cluster c = ideal_cluster(2);
  const std::pair gather{OpKind::all_gather, 1e9}, scatter{OpKind::reduce_scatter, 1e9};
  EXPECT_EQ(why_stalled([&] {
              run_program(c, two_stages(Stream::data_communication, {gather, scatter}, {gather, scatter}).program);
            }),
            "it ended");
  EXPECT_THAT(why_stalled([&] {
                run_program(c, two_stages(Stream::data_communication, {gather, scatter}, {scatter, gather}).program);
              }),
              AllOf(HasSubstr("stage 0"), HasSubstr("stage 1"), HasSubstr("rank 0"), HasSubstr("rank 1"),
                    HasSubstr("all_gather"), HasSubstr("reduce_scatter")));
}

TEST(Stalled, StagesThatDisagreeOnTheSize) {
  const auto why = why_stalled([&] {
    run_program(
        ideal_cluster(2),
        two_stages(Stream::data_communication, {{OpKind::all_reduce, 1e9}}, {{OpKind::all_reduce, 2e9}}).program);
  });
  EXPECT_THAT(why, AllOf(HasSubstr("stage 0"), HasSubstr("stage 1"), HasSubstr("all_reduce of 1e+09 bytes"),
                         HasSubstr("all_reduce of 2e+09 bytes")));
}

// The second stage's forward, and so its collective, waits for the first's, which waits for the collective.
TEST(Stalled, StagesThatWaitForEachOther) {
  const std::pair gather{OpKind::all_gather, 1e9};
  const auto why = why_stalled(
      [&] { run_program(ideal_cluster(2), two_stages(Stream::tensor_communication, {gather}, {gather}).program); });
  EXPECT_THAT(why, AllOf(HasSubstr("stage 0, rank 0 has waited"), HasSubstr("piece.forward.of_the_first"),
                         HasSubstr("all_gather of 1e+09 bytes"), HasSubstr("for stage 1, rank 1")));
  EXPECT_THAT(why, HasSubstr("stage 1, rank 1 waits for the activations of micro-batch 0 from stage 0"));
}

TEST(Stalled, OneStageWithoutTheCollective) {
  const auto why = why_stalled([&] {
    run_program(ideal_cluster(2), two_stages(Stream::data_communication, {{OpKind::all_gather, 1e9}}, {}).program);
  });
  EXPECT_THAT(why,
              AllOf(HasSubstr("stage 0, rank 0 has waited"), HasSubstr("of_the_first"), HasSubstr("stage 1, rank 1")));
}

TEST(Stalled, ALinkThatFailsUnderTraffic) {
  const Cluster c = ideal_cluster(3);  // the third node is idle
  const HandmadeProgram p = kernel_and_ring();
  for (const Fidelity fidelity : {Fidelity::steady_flow, Fidelity::step_exact}) {
    const auto why = [&](const Perturbation& failure) {
      return why_stalled([&] { run_program(c, p.program, {failure}, {.fidelity = fidelity}); });
    };
    for (const double when : {0.0, 3.0, 11.0})
      EXPECT_THAT(why(failing_link("node1.nic0.out", when)), HasSubstr("node1.nic0.out failed")) << when;
    EXPECT_EQ(why(failing_link("node1.nic0.out", 13)), "it ended");
    EXPECT_EQ(why(failing_link("node2.nic0", 1)), "it ended");
  }
}

TEST(Stalled, ALinkThatWouldNeverBindFailsAllTheSame) {
  const Cluster c = ideal_fat_tree(FabricKind::fat_tree, 2, 1, 1, 1);
  const HandmadeProgram p = kernel_and_ring();
  EXPECT_THAT(why_stalled([&] { run_program(c, p.program, {failing_link("leaf0.*.up", 11)}); }),
              HasSubstr("leaf0.spine0.up failed"));
  EXPECT_THAT(why_stalled([&] {
                run_collective(c, ideal_collectives(), over_all(c, OpKind::all_gather),
                               std::vector{failing_link("leaf1.*.up", 1e-3)}, {});
              }),
              HasSubstr("leaf1.spine0.up failed"));
}

TEST(Stalled, ANodeThatFailsUnderARank) {
  const Cluster c = ideal_cluster(3);
  const HandmadeProgram p = kernel_and_ring();
  for (const double when : {0.0, 3.0, 11.0})
    EXPECT_THAT(why_stalled([&] { run_program(c, p.program, {failing_node(1, when)}); }),
                AllOf(HasSubstr("node"), HasSubstr("rank 1"), HasSubstr("failed at")))
        << when;
  EXPECT_EQ(why_stalled([&] { run_program(c, p.program, {failing_node(2, 1)}); }), "it ended");
  EXPECT_EQ(why_stalled([&] { run_program(c, p.program, {failing_node(1, 13)}); }), "it ended");
  // Also where no link would miss it.
  HandmadeProgram kernel{Mesh{}};
  kernel.pieces[0].kernel(kernel.pieces[0].piece.forward, 10);
  EXPECT_THAT(why_stalled([&] { run_program(c, kernel.finish(), {failing_node(0, 3)}); }), HasSubstr("failed at 3 s"));
  EXPECT_EQ(why_stalled([&] { run_program(c, kernel.program, {failing_node(1, 3)}); }), "it ended");
}

// --- Bad input

template <class Act>
std::string complaint(Act&& act) {
  try {
    act();
  } catch (const InputError& e) {
    return e.where().pointer + ": " + e.what();
  }
  return "nothing thrown";
}

TEST(BadInput, PlacementsBeyondTheClusterOrOnEachOther) {
  const Cluster c = ideal_cluster(4);
  const HandmadeProgram p = kernel_and_ring();
  const auto with = [&](const std::vector<PlacedProgram>& placed) {
    return complaint([&] { run_programs(c, placed); });
  };
  EXPECT_EQ(with({{&p.program, {2, 1}}}), "nothing thrown");
  EXPECT_THAT(with({{&p.program, {3, 1}}}), HasSubstr("4 devices"));
  EXPECT_THAT(with({{&p.program, {0, 4}}}), HasSubstr("4 devices"));
  EXPECT_EQ(with({{&p.program, {0, 2}}, {&p.program, {1, 2}}}), "nothing thrown");
  EXPECT_THAT(with({{&p.program, {0, 1}}, {&p.program, {3, 1}}}), HasSubstr("/jobs/1"));
  EXPECT_THAT(with({{&p.program, {0, 2}}, {&p.program, {1, 1}}}), AllOf(HasSubstr("/jobs/1"), HasSubstr("job 0")));
  EXPECT_THAT(complaint([&] { seconds(c, over_all(ideal_cluster(5), OpKind::all_gather)); }), HasSubstr("5 ranks"));
}

TEST(BadInput, PerturbationsThatNameNothing) {
  const Cluster c = ideal_cluster(2);
  const HandmadeProgram p = kernel_and_ring();
  const auto with = [&](const Perturbation& second) {
    return complaint([&] { run_program(c, p.program, {slow_device(0, 0.9), second}); });
  };
  EXPECT_THAT(with(slow_link("node0.nick0.out", 0.5)),
              AllOf(HasSubstr("/perturbations/1/link"), HasSubstr("node0.nic0.out")));
  EXPECT_THAT(with(failing_link("node7.*")), HasSubstr("/perturbations/1/link"));
  EXPECT_THAT(with(background("leaf0.up", 1e9)), HasSubstr("/perturbations/1/link"));
  EXPECT_THAT(with(slow_device(2, 0.5)), HasSubstr("/perturbations/1/devices"));
  EXPECT_THAT(with(failing_node(2)), HasSubstr("/perturbations/1/nodes"));
  EXPECT_THAT(with(slow_link("node0.nic0.out", 1.5)), HasSubstr("/perturbations/1/factor"));
}

// --- Determinism

TEST(Determinism, TheSameInputGivesTheSameReport) {
  Scenario s = scenario_of("gpt3-1.3B", "dgx-h100", 4);
  s.model.layers = 4;
  s.workload = {2048, 0, 64};
  s.plan.tensor.degree = 2;
  s.plan.pipeline.degree = 2;
  s.plan.data.zero_stage = 1;
  s.perturbations = {slow_link("node*.nic*", 0.5), slow_device(3, 0.8), jitter(0.05, 1)};
  s.perturbations[0].count = 2;
  const DiscreteEventOptions options{.timeline = true, .ops = true};
  const Report first = simulate_des(s, options), second = simulate_des(s, options);
  EXPECT_EQ(report_json(first).dump(), report_json(second).dump());
  ASSERT_EQ(first.timeline.intervals.size(), second.timeline.intervals.size());
  for (std::size_t i = 0; i < first.timeline.intervals.size(); ++i)
    EXPECT_EQ(first.timeline.intervals[i].end_seconds, second.timeline.intervals[i].end_seconds);
}

// Streams but for the kernels': what runs on them, by kind, way and bytes, is the same in both engines' timelines. In
// closed form gathers that the filling of the pipeline hides are not shown.
TEST(Timelines, SayOfCollectivesTheSame) {
  for (const char* name : {"llama-3-70b-512-h100", "mixtral-8x7b-64-h100"}) {
    struct Said {
      std::set<std::pair<std::string, std::string>> kinds;  // by stream
      std::set<std::tuple<std::string, std::string, std::string, double>> all;
    };
    Said analytical, des;
    const auto say = [](const Timeline& timeline, Stream stream, std::uint32_t op, Said& said) {
      if (stream == Stream::compute || op == kNoOp) return;
      const TimelineOp& of = timeline.ops[op];
      constexpr double kLeast = 1024;  // beside them scalars of the norm, which one says for all layers at once
      if (of.kind == "drain" || of.bytes <= kLeast) return;
      said.kinds.insert({name_of(stream), of.kind});
      said.all.insert({name_of(stream), of.kind, of.bound, std::round(of.bytes)});
    };
    const Scenario s = bundled(name);
    const Timeline slices = predict(PreparedAlone(s), {.timeline = true}).timeline,
                   events = simulate_des(s, {.timeline = true}).timeline;
    for (const OpSlice& slice : slices.op_slices) say(slices, slice.stream, slice.op, analytical);
    for (const TimelineSpan& i : slices.intervals) {
      say(slices, i.stream, i.op, analytical);
      EXPECT_EQ(i.op == kNoOp, i.stream == Stream::compute) << name;
    }
    for (const TimelineSpan& i : events.intervals) {
      say(events, i.stream, i.op, des);
      EXPECT_EQ(i.op == kNoOp, i.stream == Stream::compute) << name;
    }
    EXPECT_GE(des.kinds.size(), 3u) << name;
    EXPECT_EQ(analytical.kinds, des.kinds) << name;
    EXPECT_TRUE(std::ranges::includes(des.all, analytical.all)) << name;
  }
}

// What folds is counted folded: a ring of 4,096 ranks has some 2.7e8 messages, of few kinds.
TEST(CollectiveWorks, AreOfWhatIsLeftWhenFlowsAreFolded) {
  const auto run_ring = [](const Cluster& c, double most_works) {
    return run_collective(c, ideal_collectives(), over_all(c, OpKind::all_reduce, CollectiveAlgorithm::ring), {},
                          {.fidelity = Fidelity::step_exact, .most_works = most_works})
        .seconds;
  };
  EXPECT_GT(run_ring(ideal_cluster(512, 8, 8), kMostWorks), 0);
  EXPECT_GT(run_ring(ideal_cluster(4096), 10'000), 0) << "4,096 flows, of which one stays with 8,190 messages";
  EXPECT_THROW(run_ring(ideal_cluster(4096), 6'000), InputError);
}

TEST(CollectiveWorks, AreThoseOfAllGroups) {
  const auto works = [](const Cluster& c, std::int64_t groups) {
    const CollectiveRequest request = over_strided(c, groups, OpKind::all_gather, CollectiveAlgorithm::ring);
    return collective_works(c, ideal_collectives(), request, {});
  };
  const double one = works(ideal_cluster(2), 1);
  EXPECT_GT(one, 0);
  EXPECT_DOUBLE_EQ(works(ideal_cluster(2, 4, 4), 4), 4 * one);
}

}  // namespace
}  // namespace orrery
