// Does a step add up, and does it move the way it must? Real plans of a small model, and programs made by hand.
#include "sim/analytical/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "sim/cost/calibration.h"
#include "sim/cost/collective_calibration.h"
#include "strategies/lower.h"
#include "strategies/read_scenario.h"
#include "tests/analytical/handmade.h"

namespace orrery {
namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

Json document(const Json& plan, int nodes = 4) {
  return {{"model", "llama-2-7b"},
          {"cluster", {{"node", "dgx-a100"}, {"nodes", nodes}}},
          {"workload", {{"sequence_length", 2048}, {"global_batch_size", 64}}},
          {"plan", plan}};
}

class Evaluated {
 public:
  explicit Evaluated(const Json& doc, const AnalyticalOptions& options = {})
      : scenario(read_scenario(doc, {"test", {}})) {
    lower(scenario, program);
    kernels = find_calibration(scenario.cluster.device);
    run(options);
  }
  void run(const AnalyticalOptions& options = {}) {
    collectives = find_collective_calibration(scenario.cluster);
    AnalyticalEngine engine(scenario.cluster, kernels, collectives);
    engine.evaluate(program, Dtype::bf16, options, report);
    walked = engine.instances_walked();
  }
  const StageReport& bounding() const { return report.stages[static_cast<std::size_t>(report.bounding_stage)]; }

  Scenario scenario;
  Program program;
  Calibration kernels;
  CollectiveCalibration collectives;
  Report report;
  std::int64_t walked = 0;
};

// Every mechanism of the plans, alone and together.
const std::vector<Json> kPlans{
    {{"tensor_parallel", 1}},
    {{"tensor_parallel", 8}, {"sequence_parallel", true}},
    {{"pipeline_parallel", 4}, {"micro_batch_size", 2}},
    {{"pipeline_parallel", 4}, {"overlap_p2p_communication", false}},
    {{"pipeline_parallel", 4}, {"pipeline_schedule", "gpipe"}, {"recompute", "full"}},
    {{"pipeline_parallel", 4}, {"pipeline_schedule", "interleaved"}, {"virtual_pipeline", 4}, {"tensor_parallel", 2}},
    {{"pipeline_parallel", 4}, {"pipeline_schedule", "zb-h1"}},
    {{"zero_stage", 1}, {"tensor_parallel", 4}},
    {{"zero_stage", 1}, {"overlap_grad_reduce", false}, {"overlap_param_gather", false}},
    {{"zero_stage", 2}, {"framework", "deepspeed"}},
    {{"zero_stage", 3}, {"framework", "fsdp"}},
    {{"zero_stage", 3}, {"framework", "fsdp-compiled"}, {"zero_shard_degree", 8}, {"prefetch", 2}},
    {{"zero_stage", 3}, {"reshard_after_forward", false}, {"framework", "fsdp"}},
    {{"context_parallel", 4}, {"tensor_parallel", 2}},
    {{"optimizer_offload", true}, {"zero_stage", 1}},
    {{"flash_attention", false}, {"recompute", "selective"}, {"tensor_parallel", 8}, {"sequence_parallel", true}},
    {{"cuda_graphs", true}},
    {{"zero_stage", 1}, {"layers", Json::array({{{"from", 3}, {"to", 9}, {"recompute", "full"}}})}},
    {{"bucket_bytes", 2000000000}, {"layers", Json::array({{{"from", 1}, {"step", 2}, {"recompute", "full"}}})}},
};

TEST(Step, TermsOfEveryStageAddUpToTheStep) {
  for (const Json& plan : kPlans) {
    SCOPED_TRACE(plan.dump());
    const Evaluated e(document(plan));
    ASSERT_GT(e.report.step_seconds, 0);
    for (const StageReport& stage : e.report.stages) {
      EXPECT_NEAR(stage.time.total() / e.report.step_seconds, 1, 1e-12);
      EXPECT_NEAR(stage.busy_seconds + stage.time.bubble, e.report.step_seconds, 1e-12 * e.report.step_seconds);
      EXPECT_GE(stage.time.bubble, -1e-12 * e.report.step_seconds);
      EXPECT_GE(stage.time.bubble, e.bounding().time.bubble - 1e-12 * e.report.step_seconds);
      for (double seconds : stage.time.exposed) EXPECT_GE(seconds, 0);
    }
    EXPECT_GE(e.report.step_seconds, e.report.pipeline_seconds);
    EXPECT_GT(e.report.mfu, 0.01);
    EXPECT_LT(e.report.hfu, 1);
    EXPECT_GE(e.report.hfu, e.report.mfu);
  }
}

// Graphs hold forwards and backwards: what the optimizer issues takes as long with them as without.
TEST(Step, GraphsMakeNoStepSlower) {
  for (const Json& plan : {Json{{"tensor_parallel", 8}, {"micro_batch_size", 2}}, Json{{"zero_stage", 1}}}) {
    Json graphs = plan;
    graphs["cuda_graphs"] = true;
    EXPECT_LE(Evaluated(document(graphs)).report.step_seconds,
              Evaluated(document(plan)).report.step_seconds * (1 + 1e-9))
        << plan;
  }
}

// Huang et al. 2019: (p - 1) of m + p - 1 slots, however many micro-batches; and none where nobody is waited for.
TEST(Step, ASmallBubbleIsNoRounding) {
  for (const int stages : {1, 2, 4}) {
    Json doc = document({{"pipeline_parallel", stages}, {"micro_batch_size", 1}}, 1);
    const int micro_batches = 2048, replicas = 8 / stages;
    doc["workload"]["global_batch_size"] = micro_batches * replicas;
    const Evaluated e(doc);
    const TimeBreakdown& time = e.bounding().time;
    EXPECT_NEAR(time.total() / e.report.step_seconds, 1, 1e-12) << stages;
    const double share = (stages - 1.0) / (micro_batches + stages - 1);
    if (stages == 1)
      EXPECT_EQ(time.bubble, 0);
    else
      EXPECT_NEAR(time.bubble / e.report.step_seconds, share, 0.2 * share) << stages;
  }
}

// Full recomputation runs each layer's forward once more: a fourth product beside three, but for the head's.
TEST(Step, HardwareFlopsAreThoseOfAllDevices) {
  for (const Json& parallel : {Json::object(), Json{{"tensor_parallel", 2}}, Json{{"pipeline_parallel", 4}}}) {
    Json plan = parallel;
    plan["recompute"] = "full";
    const Evaluated e(document(plan));
    const double tokens = 64.0 * 2048, head = 2 * tokens * 4096 * 32000,
                 executed = e.report.hfu * e.report.step_seconds * 32 * e.scenario.cluster.device.peak(Dtype::bf16),
                 model = e.program.model.executed_flops_per_step;
    EXPECT_NEAR(executed / (model + model / 3 - head), 1, 1e-12) << plan;
  }
}

// Of the pipeline, and of the stages that sum what they have in common.
TEST(Step, EveryCommunicatorHasItsBuffers) {
  for (const char* model : {"llama-2-7b", "gpt2-1.5b"}) {  // without a table in common, and with one
    Json doc = document({{"pipeline_parallel", 8}}, 1);
    doc["model"] = model;
    doc["workload"]["sequence_length"] = 1024;
    Evaluated e(doc);
    e.program.runtime.context_bytes = 5000;
    e.program.runtime.buffer_bytes_per_communicator = 1000;
    e.run();
    EXPECT_EQ(e.report.stages[0].memory.framework_bytes, model[0] == 'l' ? 6000 : 7000) << model;
  }
}

TEST(Step, OpsInTheTableAddUpToTheComputeOfTheBoundingStage) {
  for (const Json& plan : kPlans) {
    SCOPED_TRACE(plan.dump());
    Evaluated e(document(plan));
    e.kernels.overlap_slowdown = 0;  // else kernels take longer in the step than the table says
    e.run({.ops = true});
    double kernels = 0;
    for (const OpReport& op : e.report.ops)
      if (op.stream == Stream::compute && op.bound.find("ring") == std::string::npos &&
          op.bound.find("NVLS") == std::string::npos && op.bound.find("tree") == std::string::npos &&
          op.bound.find("hierarchical") == std::string::npos)
        kernels += op.seconds * op.times_per_step;
    const TimeBreakdown& t = e.bounding().time;
    EXPECT_NEAR(kernels, t.matmul + t.attention + t.memory_bound + t.recompute + t.optimizer, 1e-9 * kernels);
  }
}

TEST(Step, ATraceConservesMemory) {
  for (const Json& plan : kPlans) {
    SCOPED_TRACE(plan.dump());
    const Evaluated e(document(plan), {.timeline = true});
    std::map<std::int32_t, std::vector<const MemorySample*>> by_stage;
    for (const MemorySample& sample : e.report.timeline.memory) by_stage[sample.stage].push_back(&sample);
    ASSERT_EQ(by_stage.size(), e.program.stages.size());
    double fullest = 0;
    for (const auto& [stage, samples] : by_stage) {
      for (std::size_t p = 0; p < kPlaces; ++p)  // all that was taken is given back
        for (std::size_t c = 0; c < kCategories; ++c)
          EXPECT_NEAR(samples.front()->bytes.places[p][c], samples.back()->bytes.places[p][c], 1) << "stage " << stage;
      double time = 0;
      for (const MemorySample* sample : samples) {
        EXPECT_GE(sample->seconds, time - 1e-9);
        time = sample->seconds;
        for (const CategoryBytes& place : sample->bytes.places)
          for (double bytes : place) EXPECT_GE(bytes, -1);
        fullest = std::max(fullest, device_bytes(sample->bytes));
      }
    }
    const MemoryBreakdown& m = e.report.stages[static_cast<std::size_t>(e.report.memory_stage)].memory;
    EXPECT_NEAR(fullest, m.peak_bytes - m.framework_bytes, 1e-9 * fullest);
    EXPECT_NEAR(device_bytes(m.bytes) + m.framework_bytes, m.peak_bytes, 1);
    EXPECT_EQ(e.report.memory_fits, e.report.memory_peak_bytes <= e.report.memory_capacity_bytes);
  }
}

TEST(Step, ATraceHasEverySlotWithinTheStep) {
  const Evaluated e(document({{"pipeline_parallel", 4}, {"pipeline_schedule", "zb-h1"}}), {.timeline = true});
  std::size_t slots = 0;
  std::map<std::pair<std::int32_t, Stream>, double> busy_until;
  for (const TimelineSpan& i : e.report.timeline.intervals) {
    slots += i.kind < kSlotKinds;
    EXPECT_LE(i.end_seconds, e.report.step_seconds * (1 + 1e-12));
    double& until = busy_until[{i.stage, i.stream}];
    EXPECT_GE(i.begin_seconds, until - 1e-9);
    until = i.end_seconds;
  }
  EXPECT_EQ(slots, 3u * 4u * static_cast<std::size_t>(e.program.schedule.micro_batches));
  for (const Arrow& a : e.report.timeline.arrows) EXPECT_LE(a.from_seconds, a.to_seconds);
}

// Of one stage and stream, by time.
std::vector<OpSlice> op_slices(const Timeline& timeline, std::int32_t stage, Stream stream) {
  std::vector<OpSlice> found;
  for (const OpSlice& slice : timeline.op_slices)
    if (slice.stage == stage && slice.stream == stream) found.push_back(slice);
  return found;
}

TEST(Step, ATraceFillsSlotsWithTheirOps) {
  for (const Json& plan : kPlans) {
    SCOPED_TRACE(plan.dump());
    const Evaluated e(document(plan), {.timeline = true});
    const Timeline& timeline = e.report.timeline;
    ASSERT_EQ(timeline.op_stages.size(), e.report.stages.size());
    EXPECT_EQ(e.report.step_seconds, Evaluated(document(plan)).report.step_seconds) << "looking changes nothing";
    const double rounding = 1e-9 * e.report.step_seconds;
    std::int64_t filled = 0;
    for (const std::int32_t stage : timeline.op_stages) {
      for (int s = 0; s < kStreams; ++s) {
        double until = 0;
        for (const OpSlice& slice : op_slices(timeline, stage, static_cast<Stream>(s))) {
          EXPECT_GE(slice.begin_seconds, until - rounding) << timeline.ops[slice.op].name;
          EXPECT_GE(slice.end_seconds, slice.begin_seconds - rounding);
          EXPECT_LE(slice.end_seconds, e.report.step_seconds + rounding);
          until = slice.end_seconds;
        }
      }
      const std::vector<OpSlice> compute = op_slices(timeline, stage, Stream::compute);
      for (const TimelineSpan& slot : timeline.intervals) {
        if (slot.stage != stage || slot.stream != Stream::compute) continue;
        double time = slot.begin_seconds, work = 0;
        for (const OpSlice& slice : compute) {
          const double middle = (slice.begin_seconds + slice.end_seconds) / 2;
          if (middle < slot.begin_seconds || middle > slot.end_seconds) continue;
          EXPECT_NEAR(slice.begin_seconds, time, rounding) << timeline.ops[slice.op].name << ": what it waited for?";
          time = slice.end_seconds;
          if (timeline.ops[slice.op].kind != "wait") work += slice.end_seconds - slice.begin_seconds;
        }
        if (time == slot.begin_seconds) continue;  // one that does not show its ops
        EXPECT_NEAR(time, slot.end_seconds, rounding);
        if (slot.kind >= kSlotKinds) continue;
        EXPECT_GT(work, 0);
        ++filled;
      }
    }
    EXPECT_EQ(filled, timeline.slots_with_ops);
    EXPECT_GT(filled, 0);
  }
}

TEST(Step, ATraceHasCollectivesOnTheirStreams) {
  const Evaluated e(document({{"zero_stage", 1}, {"tensor_parallel", 4}}), {.timeline = true, .ops = true});
  std::map<std::string, Stream> stream_of;
  for (const OpReport& op : e.report.ops) stream_of[op.name] = op.stream;
  std::set<std::string> shown;
  const Timeline& timeline = e.report.timeline;
  for (const OpSlice& slice : timeline.op_slices) {
    const TimelineOp& op = timeline.ops[slice.op];
    if (op.kind == "wait") {
      EXPECT_EQ(slice.stream, Stream::compute);
      continue;
    }
    ASSERT_TRUE(stream_of.contains(op.name)) << op.name;
    EXPECT_EQ(slice.stream, stream_of.at(op.name)) << op.name;
    EXPECT_FALSE(op.bound.empty()) << op.name;
    shown.insert(op.name);
  }
  for (const auto& [name, stream] : stream_of) EXPECT_TRUE(shown.contains(name)) << name;
}

TEST(Step, ATraceOfManyMicroBatchesShowsTheOpsOfAFew) {
  const Json plan{{"pipeline_parallel", 4}, {"micro_batch_size", 1}};
  const Evaluated e(document(plan), {.timeline = true}), again(document(plan), {.timeline = true});
  const Timeline& a = e.report.timeline;
  const Timeline& b = again.report.timeline;
  EXPECT_LE(a.op_slices.size(), 24'000u);
  EXPECT_LE(a.slots_with_ops, static_cast<std::int64_t>(3 * 2 * a.op_stages.size())) << "first, middle and last";
  ASSERT_EQ(a.op_slices.size(), b.op_slices.size());
  for (std::size_t i = 0; i < a.op_slices.size(); ++i) {
    EXPECT_EQ(a.op_slices[i].begin_seconds, b.op_slices[i].begin_seconds);
    EXPECT_EQ(a.op_slices[i].end_seconds, b.op_slices[i].end_seconds);
    EXPECT_EQ(a.op_slices[i].op, b.op_slices[i].op);
  }
}

TEST(Step, MoreBandwidthIsNeverSlower) {
  for (const Json& plan : kPlans) {
    SCOPED_TRACE(plan.dump());
    Evaluated e(document(plan));
    const double before = e.report.step_seconds;
    const Cluster cluster = e.scenario.cluster;
    const auto faster = [&](auto&& change) {
      e.scenario.cluster = cluster;
      change(e.scenario.cluster);
      e.run();
      EXPECT_LE(e.report.step_seconds, before * (1 + 1e-12));
    };
    faster([](Cluster& c) { c.node.intra_bytes_per_second *= 2; });
    faster([](Cluster& c) { c.node.nic_bytes_per_second *= 2; });
    faster([](Cluster& c) { c.device.memory_bytes_per_second *= 2; });
    faster([](Cluster& c) { c.node.host_memory_bytes_per_second *= 2; });
    faster([](Cluster& c) { c.node.pcie_bytes_per_second *= 2, c.device.pcie_bytes_per_second *= 2; });
  }
}

// One of each shape for as long as the run, and none where the stack's products do not add to its own buffers.
TEST(Memory, HoldsAGradientForEachShapeOfMatrix) {
  const auto held = [](const Json& plan) {
    Evaluated e(document(plan));
    const double with = e.report.memory_peak_bytes;
    e.program.runtime.placeholder_gradients = false;
    e.run();
    return with - e.report.memory_peak_bytes;
  };
  // Llama 2 7B: queries, keys and values; the attention's output; the MLP's two; the logits.
  constexpr double kHidden = 4096, kFfn = 11008, kVocab = 32000, kBytes = 2;
  const double layers = kHidden * (3 * kHidden + kHidden + 2 * kFfn + kFfn) * kBytes;
  const double logits = kHidden * kVocab * kBytes;
  EXPECT_DOUBLE_EQ(held({{"tensor_parallel", 1}}), layers + logits);
  EXPECT_DOUBLE_EQ(held({{"tensor_parallel", 2}, {"recompute", "full"}}), (layers + logits) / 2);
  EXPECT_DOUBLE_EQ(held({{"pipeline_parallel", 4}}), layers);  // the first stage is the fullest
  EXPECT_DOUBLE_EQ(held({{"zero_stage", 3}}), 0);
  EXPECT_DOUBLE_EQ(held({{"zero_stage", 1}, {"framework", "deepspeed"}}), 0);
}

TEST(Step, TheSameInputGivesTheSameBits) {
  for (const Json& plan : kPlans) {
    SCOPED_TRACE(plan.dump());
    const Evaluated a(document(plan)), b(document(plan));
    EXPECT_EQ(a.report.step_seconds, b.report.step_seconds);
    EXPECT_EQ(a.report.memory_peak_bytes, b.report.memory_peak_bytes);
  }
}

TEST(Step, AnEngineRemembersNothingOfOtherPrograms) {
  std::vector<double> fresh, used;
  for (const Json& plan : kPlans) fresh.push_back(Evaluated(document(plan)).report.step_seconds);
  const Evaluated first(document(kPlans[0]));
  AnalyticalEngine engine(first.scenario.cluster, first.kernels, first.collectives);
  Program program;
  Report report;
  for (const Json& plan : kPlans) {
    lower(read_scenario(document(plan), {"test", {}}), program);
    engine.evaluate(program, Dtype::bf16, {.timeline = true, .ops = true}, report);
    engine.evaluate(program, Dtype::bf16, {}, report);
    used.push_back(report.step_seconds);
    EXPECT_TRUE(report.ops.empty() && report.timeline.intervals.empty());
  }
  EXPECT_EQ(fresh, used);
}

TEST(Cost, DoesNotGrowWithLayersOrReplicas) {
  const auto walked = [](int layers, int nodes) {
    Json doc = document({{"zero_stage", 3}, {"framework", "fsdp"}, {"prefetch", 1}}, nodes);
    doc["model"] = {{"preset", "llama-2-7b"}, {"layers", layers}};
    doc["workload"]["global_batch_size"] = 16 * nodes;
    return Evaluated(doc).walked;
  };
  const std::int64_t instances = walked(32, 4);
  EXPECT_EQ(walked(320, 4), instances);
  EXPECT_LT(walked(32, 400), 60);  // not the same: other collectives are the longer ones
  EXPECT_LT(instances, 60);
}

TEST(Step, LayersBehindEachOtherCostWhatTheyCostOneByOne) {
  // The same chunk as one run of 12 and as runs of 5, 1 and 6.
  Evaluated whole(document({{"tensor_parallel", 8}})), parts(document({{"tensor_parallel", 8}}));
  auto& runs = parts.program.stages[0][0].runs;
  ASSERT_EQ(runs.size(), 3u);
  const PieceRun layers = runs[1];
  runs.erase(runs.begin() + 1);
  runs.insert(runs.begin() + 1,
              {orrery::PieceRun{layers.piece, 5}, {layers.piece, 1}, {layers.piece, layers.count - 6}});
  parts.run();
  EXPECT_NEAR(whole.report.step_seconds, parts.report.step_seconds, 1e-12 * whole.report.step_seconds);
  EXPECT_EQ(whole.report.memory_peak_bytes, parts.report.memory_peak_bytes);
}

// 32 layers, two to a bucket: sixteen buckets, whatever the plans of the layers that one holds.
TEST(Ops, BucketsAreFilledAcrossLayersOfSeveralPlans) {
  const auto reductions = [](const Json& layers) {
    Json plan{{"bucket_bytes", 2000000000}};  // a layer's gradients in fp32 are 0.81e9 bytes
    if (!layers.is_null()) plan["layers"] = layers;
    Evaluated e(document(plan));
    e.run({.ops = true});
    std::map<double, double> times;  // by bytes, of layers
    for (const OpReport& op : e.report.ops)
      if (op.name.starts_with("layer") && op.name.ends_with("gradients.all_reduce"))
        times[op.bytes] += op.times_per_step;
    return times;
  };
  const auto whole = reductions(nullptr);
  ASSERT_EQ(whole.size(), 1u);
  EXPECT_EQ(whole.begin()->second, 16);
  EXPECT_EQ(reductions(Json::array({{{"from", 0}, {"to", 13}, {"recompute", "full"}}})), whole);
  EXPECT_EQ(reductions(Json::array({{{"step", 2}, {"recompute", "full"}}})), whole);
}

TEST(Ops, AreListedByLayersWherePlansDiffer) {
  Evaluated e(
      document({{"tensor_parallel", 8}, {"layers", Json::array({{{"from", 3}, {"to", 9}, {"recompute", "full"}}})}}));
  e.run({.ops = true});
  std::map<std::string, double> times;
  for (const OpReport& op : e.report.ops)
    if (op.name.ends_with("backward.fc1")) times[op.name] += op.times_per_step;
  const double micro_batches = static_cast<double>(e.program.schedule.micro_batches);
  ASSERT_TRUE(times.contains("layer[3:9].backward.fc1"));
  // Two products of the backward, and the repeated forward's.
  EXPECT_EQ(times["layer[3:9].backward.fc1"], 3 * 6 * micro_batches);
  EXPECT_EQ(times["layer[0:3,9:32].backward.fc1"], 2 * 26 * micro_batches);
  EXPECT_EQ(times.size(), 2u);
}

// Groups are of digits: what a digit is called says nothing about its ranks.
void swap_axes(Program& program, MeshAxis a, MeshAxis b) {
  Mesh renamed;
  for (const Digit& digit : program.mesh.digits())
    renamed.add(digit.axis == a ? b : digit.axis == b ? a : digit.axis, digit.size, digit.name);
  program.mesh = renamed;
}

TEST(Step, ARenamingOfAxesChangesNothing) {
  Evaluated e(document({{"tensor_parallel", 4}, {"zero_stage", 3}, {"zero_shard_degree", 2}}));
  const double before = e.report.step_seconds;
  for (const auto& [a, b] : {std::pair{MeshAxis::tp, MeshAxis::ep}, {MeshAxis::dp_shard, MeshAxis::dp_replicate}}) {
    swap_axes(e.program, a, b);
    e.run();
    EXPECT_EQ(e.report.step_seconds, before);
  }
}

// One stage of `layers` kernels of a second each way, by hand.
Program handmade_program(const Piece& piece, std::int64_t layers, std::int64_t micro_batches) {
  Program p;
  p.pieces.push_back(piece);
  p.stages = {{Chunk{{{0, layers}}}}};
  p.schedule.micro_batches = micro_batches;
  p.schedule.position = {0};
  const auto n = static_cast<std::uint32_t>(micro_batches);
  p.schedule.segments = {{{{{SlotKind::forward, 0, 0}, {SlotKind::backward, 0, 0}}}, 2, n}};
  p.schedule.stages = {{0, 1, 1, 1, 0, 0}};
  p.runtime.granularity = 1;
  p.model.flops_per_step = 1;
  p.model.tokens_per_step = 24;
  return p;
}

Report evaluate(const SlowCluster& world, const Program& program) {
  AnalyticalEngine engine(world.cluster, world.kernels, world.collectives);
  Report report;
  engine.evaluate(program, Dtype::bf16, {}, report);
  return report;
}

TEST(HandmadeStep, IsItsSlotsTheDrainAndTheUpdate) {
  Handmade h;
  h.kernel(h.piece.forward, 1);
  const TensorId g = h.kernel(h.piece.backward, 2).writes[0];
  h.copy(h.piece.backward, Stream::data_communication, 5, {g}).when = When::last_micro_batch;
  h.kernel(h.piece.update, 3);
  const Report r = evaluate(SlowCluster(), handmade_program(h.piece, 4, 6));
  // Slots 6 x 4 x 3. In the last backward gradients are there at 2, 4, 6, 8; the copies end at 7, 12, 17, 22: 14 later.
  EXPECT_DOUBLE_EQ(r.pipeline_seconds, 72);
  EXPECT_DOUBLE_EQ(r.step_seconds, 72 + 14 + 12);
  const TimeBreakdown& t = r.stages[0].time;
  EXPECT_DOUBLE_EQ(t.memory_bound, 72);
  EXPECT_DOUBLE_EQ(t.exposed[static_cast<std::size_t>(Stream::data_communication)], 14);
  EXPECT_DOUBLE_EQ(t.optimizer, 12);
  EXPECT_DOUBLE_EQ(t.bubble, 0);
  EXPECT_DOUBLE_EQ(r.tokens_per_second, 24.0 / 98);
}

TEST(HandmadeStep, ReductionsOfEveryMicroBatchPileUp) {
  Handmade h;
  h.kernel(h.piece.forward, 1);
  const TensorId g = h.kernel(h.piece.backward, 1).writes[0];
  h.copy(h.piece.backward, Stream::data_communication, 3, {g});
  // Slots 0-1-2, ...: gradients at 2, 4, 6, 8; reductions 2-5, 5-8, 8-11, 11-14; slots end at 8.
  const Report r = evaluate(SlowCluster(), handmade_program(h.piece, 1, 4));
  EXPECT_DOUBLE_EQ(r.step_seconds, 14);
  EXPECT_DOUBLE_EQ(r.stages[0].time.exposed[static_cast<std::size_t>(Stream::data_communication)], 6);
}

TEST(HandmadeStep, PeakMemoryIsWhatIsInFlightAtItsWorst) {
  Handmade h;
  const TensorId a = h.kernel(h.piece.forward, 100).writes[0];
  const TensorId weights = h.tensor(1000, Category::parameter, true);
  h.kernel(h.piece.forward, 7, {weights});
  h.kernel(h.piece.backward, 1, {a});
  Program p = handmade_program(h.piece, 3, 2);
  p.runtime.context_bytes = 10000;
  const Report r = evaluate(SlowCluster(), p);
  const MemoryBreakdown& m = r.stages[0].memory;
  EXPECT_DOUBLE_EQ(m.bytes.of(Place::device, Category::parameter), 3000);
  EXPECT_DOUBLE_EQ(m.bytes.of(Place::device, Category::activation), 307);  // the third forward
  EXPECT_DOUBLE_EQ(m.peak_bytes, 3000 + 307 + 10000);
}

// The gradient of a table that head and embedding share lies there from the head's backward to the embedding's, also
// while the layers between them need the most.
TEST(HandmadeStep, LentGradientsLieBetweenThePiecesThatUseThem) {
  Handmade lender, layer, borrower;
  for (Handmade* h : {&lender, &layer, &borrower}) h->kernel(h->piece.forward, 1);
  layer.kernel(layer.piece.backward, 300);
  const TensorId lent = lender.tensor(500, Category::gradient);
  lender.piece.tensors[lent].lent = true;
  const auto add_to = [](Handmade& h, TensorId gradient) {
    Op& op = h.kernel(h.piece.backward, 1);
    op.writes[0] = gradient;
    op.accumulate = true;
  };
  add_to(lender, lent);
  lender.kernel(lender.piece.backward, 1, {lent});
  const TensorId shared = borrower.tensor(500, Category::gradient);
  borrower.piece.tensors[shared].shared = true;
  add_to(borrower, shared);
  Program p = handmade_program(lender.piece, 1, 1);
  p.pieces.push_back(layer.piece);
  p.pieces.push_back(borrower.piece);
  p.stages = {{Chunk{{{0, 1}, {1, 2}, {2, 1}}}}};
  const MemoryBreakdown m = evaluate(SlowCluster(), p).stages[0].memory;
  EXPECT_DOUBLE_EQ(m.bytes.of(Place::device, Category::gradient), 500);
  EXPECT_DOUBLE_EQ(m.peak_bytes, 500 + 300);
}

// What three layers put on the host in two micro-batches, one at a time, beside what stays there; eight devices a node.
TEST(HandmadeStep, TheHostIsFullAtAnInstantOfItsOwn) {
  Handmade h;
  const TensorId a = h.kernel(h.piece.forward, 100).writes[0],
                 down = h.copy(h.piece.forward, Stream::device_to_host, 100, {a}).writes[0];
  h.kernel(h.piece.backward, 1, {down});
  const TensorId states = h.tensor(1000, Category::optimizer_state, true);
  h.piece.tensors[states].place = Place::host;
  h.kernel(h.piece.update, 5, {states});
  SlowCluster world;
  world.cluster.node.host_memory_bytes = 0;
  Program p = handmade_program(h.piece, 3, 2);
  p.mesh.add(MeshAxis::dp_shard, 2);
  const Report unknown = evaluate(world, p);
  EXPECT_DOUBLE_EQ(unknown.host_memory.peak_bytes, 3 * 1000 + 3 * 100);
  EXPECT_DOUBLE_EQ(unknown.host_memory.node_bytes, 2 * 3300) << "of two ranks on one node";
  EXPECT_TRUE(unknown.memory_fits);
  EXPECT_THAT(unknown.notes, Contains(HasSubstr("host memory is not checked")));
  EXPECT_DOUBLE_EQ(unknown.stages[0].memory.bytes.of(Place::host, Category::optimizer_state), 3000);
  world.cluster.node.host_memory_bytes = 6600;
  EXPECT_TRUE(evaluate(world, p).memory_fits);
  p.runtime.host_bytes_per_rank = 50;
  EXPECT_DOUBLE_EQ(evaluate(world, p).host_memory.node_bytes, 6700) << "with the two ranks' processes";
  EXPECT_DOUBLE_EQ(evaluate(world, p).host_memory.process_bytes, 100);
  EXPECT_FALSE(evaluate(world, p).memory_fits);
  p.runtime.host_bytes_per_rank = 0;
  world.cluster.node.host_memory_bytes = 6599;
  const Report r = evaluate(world, p);
  EXPECT_FALSE(r.memory_fits);
  EXPECT_THAT(r.notes,
              Contains(AllOf(HasSubstr("does not fit in host memory"), HasSubstr("/cluster/node/host_memory_bytes"))));
}

// NVMe or PCIe follows from where the bytes lie, whatever the stream.
TEST(HandmadeStep, ACopyRunsAtTheRateOfItsWay) {
  SlowCluster world;
  world.cluster.node.nvme_read_bytes_per_second = 2 * static_cast<double>(world.cluster.node.devices);
  world.cluster.node.nvme_write_bytes_per_second = 4 * static_cast<double>(world.cluster.node.devices);
  world.cluster.node.nvme_bytes = 1;
  const auto seconds = [&](Place from, Place to, Stream stream) {
    Handmade h;
    h.kernel(h.piece.forward, 1);
    const Op& op = h.copy(h.piece.update, stream, 8);
    h.piece.tensors[op.reads[0]].place = from, h.piece.tensors[op.writes[0]].place = to;
    return evaluate(world, handmade_program(h.piece, 1, 1)).step_seconds - 1;
  };
  for (const Stream stream : {Stream::storage, Stream::host_to_device, Stream::device_to_host}) {
    EXPECT_DOUBLE_EQ(seconds(Place::device, Place::host, stream), 8);
    EXPECT_DOUBLE_EQ(seconds(Place::host, Place::device, stream), 8);
    EXPECT_DOUBLE_EQ(seconds(Place::storage, Place::device, stream), 4);
    EXPECT_DOUBLE_EQ(seconds(Place::storage, Place::host, stream), 4);
    EXPECT_DOUBLE_EQ(seconds(Place::host, Place::storage, stream), 2);
  }
}

TEST(HandmadeStep, AHostKernelNeedsAHostMemoryRate) {
  Handmade h;
  h.kernel(h.piece.forward, 1);
  h.kernel(h.piece.update, 1).stream = Stream::host;
  SlowCluster world;
  world.cluster.node.host_memory_bytes_per_second = 0;
  try {
    evaluate(world, handmade_program(h.piece, 1, 1));
    FAIL();
  } catch (const InputError& error) {
    EXPECT_EQ(error.where().pointer, "/cluster/node/host_memory_bytes_per_second");
  }
}

}  // namespace
}  // namespace orrery
