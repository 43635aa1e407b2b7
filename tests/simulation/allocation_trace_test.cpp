// What ranks ask their allocators for: against what their memory is predicted to be, which is computed otherwise.
#include "sim/memory/allocation_trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>

#include "strategies/read_scenario.h"
#include "study/simulation/allocator.h"
#include "study/simulation/simulation.h"
#include "tests/memory/trace_peak.h"

namespace orrery {
namespace {

void for_each_bundled(const std::function<void(const std::string&, const Simulation&)>& visit) {
  for (const BundledDocument& bundled : bundled_scenarios()) {
    ScenarioSource source;
    const nlohmann::json document = load_scenario_document(bundled.name, {}, source);
    if (has_jobs(document)) continue;
    Simulator simulator;
    visit(bundled.name, simulator.evaluate(read_scenario(document, source), {}));
  }
}

Simulation simulated(Simulator& simulator, const char* name) {
  ScenarioSource source;
  return simulator.evaluate(read_scenario(load_scenario_document(name, {}, source), source), {});
}

// Each storage is asked for once and freed at most once, behind that; what stays was asked for before the step.
TEST(AllocationTrace, FreesWhatTheStepHasAskedFor) {
  for_each_bundled([](const std::string& name, const Simulation& s) {
    for (std::size_t stage = 0; stage < s.program->stages.size(); ++stage) {
      const AllocationTrace trace = allocation_trace(*s.program, stage);
      std::vector<int> met(trace.allocations.size());
      for (const AllocationTrace::Event& e : trace.events) {
        EXPECT_EQ(met[e.allocation], e.frees ? 1 : 0) << name;
        ++met[e.allocation];
      }
      EXPECT_EQ(std::ranges::count(met, 1), static_cast<std::ptrdiff_t>(trace.step_begin)) << name << " " << stage;
      for (std::size_t i = 0; i < trace.step_begin; ++i) EXPECT_EQ(met[trace.events[i].allocation], 1) << name;
    }
  });
}

// The engine counts what is handed from block to block on both sides, and what is issued ahead as much as can be at
// once.
TEST(AllocationTrace, HasThePeakThatIsPredicted) {
  int exact = 0, stages = 0;
  for_each_bundled([&](const std::string& name, const Simulation& s) {
    for (const StageReport& stage : s.report.stages) {
      std::int64_t most = 0;  // of stages that do the same but hold unequally much
      for (std::int64_t i = stage.stage; i < stage.stage + stage.stages; ++i)
        most = std::max(most, peak_bytes(allocation_trace(*s.program, static_cast<std::size_t>(i)), 512));
      const double ratio = static_cast<double>(most) / device_bytes(stage.memory.bytes);
      EXPECT_GT(ratio, 0.95) << name << " " << stage.stage;
      EXPECT_LT(ratio, 1.03) << name << " " << stage.stage;
      exact += std::abs(ratio - 1) < 2e-4 ? 1 : 0;
      ++stages;
    }
  });
  EXPECT_GE(exact, stages / 4);
}

// Micro-batches that differ hold what is theirs.
TEST(AllocationTrace, GoesByTheClassesOfMicroBatches) {
  ScenarioSource source;
  Scenario scenario = read_scenario(load_scenario_document("mixtral-8x7b-64-h100", {}, source), source);
  scenario.workload.routing_micro_batch_noise = 0.3;
  Simulator simulator;
  const Simulation s = simulator.evaluate(scenario, {});
  ASSERT_GT(s.program->micro_batch_classes(), 1u);
  for (const StageReport& stage : s.report.stages) {
    const AllocationTrace trace = allocation_trace(*s.program, static_cast<std::size_t>(stage.stage));
    EXPECT_NEAR(static_cast<double>(peak_bytes(trace, 512)) / device_bytes(stage.memory.bytes), 1, 0.05);
  }
}

TEST(AllocationTrace, ReservesMoreThanItAllocates) {
  for (const char* name : {"llama-3-70b-512-h100", "zeropp", "slow-nic"}) {
    Simulator simulator;
    const Simulation s = simulated(simulator, name);
    const AllocationTrace trace = allocations(s);
    for (const bool expandable : {false, true}) {
      const Replay r = replay(trace, allocator_options(s, expandable));
      EXPECT_FALSE(r.out_of_memory) << name;
      EXPECT_GE(r.statistics.peak_allocated, peak_bytes(trace, CachingAllocator::kLeastBlock)) << name;
      EXPECT_GT(r.statistics.peak_reserved, r.statistics.peak_allocated) << name;
      EXPECT_LT(r.statistics.peak_reserved, 1.4 * static_cast<double>(r.statistics.peak_allocated)) << name;
      EXPECT_GE(r.events.size(), trace.events.size() - trace.step_begin) << "segments come on top";
      // What is left behind the step is what stays.
      std::int64_t left = 0, stays = 0;
      for (const CachingAllocator::Segment& segment : r.segments)
        for (const CachingAllocator::Block& block : segment.blocks) left += block.allocated ? block.requested : 0;
      for (std::size_t i = 0; i < trace.step_begin; ++i) stays += trace.allocations[trace.events[i].allocation].bytes;
      EXPECT_EQ(left, stays) << name;
    }
  }
}

// Before a trace is made.
TEST(AllocationTrace, EventsAreAboutThoseThatAreMade) {
  for (const char* name : {"llama-3-70b-512-h100", "zeropp", "mixtral-8x7b-64-h100"}) {
    Simulator simulator;
    const Simulation s = simulated(simulator, name);
    const auto stage = static_cast<std::size_t>(s.report.fullest().stage);
    const double made = static_cast<double>(allocations(s).events.size());
    EXPECT_NEAR(made / allocation_events(*s.program, stage), 1, 0.3) << name;
  }
}

TEST(AllocationTrace, EndsWhereTheDeviceIsFull) {
  Simulator simulator;
  const Simulation s = simulated(simulator, "llama-3-70b-512-h100");
  const AllocationTrace trace = allocations(s);
  const std::int64_t peak = peak_bytes(trace, 512);
  const Replay r = replay(trace, {.capacity = peak - (std::int64_t{64} << 20)});
  ASSERT_TRUE(r.out_of_memory);
  EXPECT_GT(r.statistics.retries, 0);
  EXPECT_GT(r.events.size(), trace.step_begin) << "what led there";
  EXPECT_GT(trace.allocations[r.failed].bytes, 0);
  EXPECT_LE(r.statistics.peak_reserved, peak - (std::int64_t{64} << 20));
}

// What stacks hold beside tensors, what lasts for a part of the step alone, and pairs, which go layer by layer.
TEST(AllocationTrace, HasThePeakOfWhatStacksHoldForAWhile) {
  const auto peak = [](nlohmann::json plan, const char* model = "gpt3-1.3B", std::int64_t nodes = 1,
                       std::int64_t batch = 64) {
    const nlohmann::json document{{"model", model},
                                  {"cluster", {{"node", "dgx-h100"}, {"nodes", nodes}}},
                                  {"workload", {{"sequence_length", 2048}, {"global_batch_size", batch}}},
                                  {"plan", std::move(plan)}};
    Simulator simulator;
    const Simulation s = simulator.evaluate(read_scenario(document, {}), {});
    double most = 0;
    for (const StageReport& stage : s.report.stages) {
      std::int64_t traced = 0;
      for (std::int64_t i = stage.stage; i < stage.stage + stage.stages; ++i)
        traced = std::max(traced, peak_bytes(allocation_trace(*s.program, static_cast<std::size_t>(i)), 512));
      EXPECT_NEAR(static_cast<double>(traced) / device_bytes(stage.memory.bytes), 1, 0.03) << document.at("plan");
      most = std::max(most, device_bytes(stage.memory.bytes));
    }
    return most;
  };
  // DeepSpeed: a bucket of 1 GB, twice in stage 2, whose gradients are divided: 8 ranks save 7/8 of 2 bytes.
  const nlohmann::json deepspeed{{"framework", "deepspeed"}, {"zero_stage", 1}, {"micro_batch_size", 4}};
  auto stage_2 = deepspeed, stage_3 = deepspeed, one_buffer = deepspeed, small = deepspeed;
  stage_2["zero_stage"] = one_buffer["zero_stage"] = small["zero_stage"] = 2;
  stage_3["zero_stage"] = 3;
  one_buffer["overlap_grad_reduce"] = false;
  small["bucket_bytes"] = 1 << 20;
  EXPECT_GT(peak(stage_2), peak(one_buffer));
  EXPECT_NEAR(peak(stage_2) - peak(small), 2e9, 5e7);
  EXPECT_GT(peak(stage_3), 1e9);
  // A stage's output, 16 MiB of each micro-batch in flight; of as many micro-batches as stages.
  const nlohmann::json pipeline{{"pipeline_parallel", 4},      {"micro_batch_size", 1},       {"framework", "fsdp"},
                                {"pipeline_outputs", "freed"}, {"recompute", "selective_op"}, {"data_parallel", 2}};
  auto kept = pipeline;
  kept["pipeline_outputs"] = "kept";
  EXPECT_NEAR(peak(kept) - peak(pipeline), 4 * 2048 * 2048 * 2, 3e6);
  // Whole gradients of the chunk that is in its backward alone.
  nlohmann::json whole{{"pipeline_parallel", 4}, {"virtual_pipeline", 3},      {"micro_batch_size", 1},
                       {"zero_stage", 1},        {"reduce_gradients", "once"}, {"recompute", "full"}};
  auto released = whole;
  released["zero_stage"] = 2;
  const double layer = 12 * 2048.0 * 2048 * 4;  // of 6 on a stage, 2 in a chunk; 8 replicas
  EXPECT_NEAR(peak(whole, "gpt3-1.3B", 4, 32) - peak(released, "gpt3-1.3B", 4, 32), 4 * layer * 7 / 8, layer / 4);
  whole["framework"] = "fsdp";
  whole["zero_stage"] = 1;
  released = whole;
  released["zero_stage"] = 3;
  EXPECT_LT(peak(released, "gpt3-1.3B", 4, 32), peak(whole, "gpt3-1.3B", 4, 32) - 3 * layer);
  // A pair holds little more than one micro-batch.
  nlohmann::json apart{{"expert_parallel", 8}, {"micro_batch_size", 1}, {"zero_stage", 1}, {"gradient_dtype", "bf16"}};
  auto paired = apart;
  paired["overlap_moe_expert_parallel_comm"] = true;
  EXPECT_NEAR(peak(paired, "qwen3-30b-a3b") / peak(apart, "qwen3-30b-a3b"), 1, 0.05);
}

// Llama 3 (arXiv 2407.21783, table 4, section 3.3.2): 8,192 tokens without recomputation on 80 GB. Chunks of one layer;
// optimizer states and gradients are sharded, gradients are fp32, stages' outputs are freed.
TEST(AllocationTrace, HoldsLlama3InItsPublishedLayout) {
  nlohmann::json document{{"model", "llama-3.1-405b"},
                          {"cluster", {{"node", "dgx-h100"}, {"nodes", 2048}}},
                          {"workload", {{"sequence_length", 8192}, {"global_batch_size", 2048}}},
                          {"plan",
                           {{"tensor_parallel", 8},
                            {"sequence_parallel", true},
                            {"pipeline_parallel", 16},
                            {"virtual_pipeline", 8},
                            {"micro_batch_size", 1},
                            {"account_for_embedding", true},
                            {"account_for_loss", true},
                            {"zero_stage", 2},
                            {"reduce_gradients", "once"}}}};
  const auto spare = [&] {
    Simulator simulator;
    const Report report = simulator.evaluate(read_scenario(document, {}), {}).report;
    return (report.memory_capacity_bytes - report.memory_peak_bytes) / (1 << 30);
  };
  const double freed = spare();
  EXPECT_GT(freed, 4);
  document["plan"]["pipeline_outputs"] = "kept";
  EXPECT_NEAR(freed - spare(), 3.5, 0.1) << "7 chunks of 16 micro-batches, 32 MiB each";
  document["plan"]["zero_stage"] = 1;
  EXPECT_LT(spare(), 0);
}

}  // namespace
}  // namespace orrery
