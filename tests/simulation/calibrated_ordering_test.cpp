// What no fit to published steps may break: orders that follow from what the numbers stand for.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <utility>

#include "sim/base/error.h"
#include "sim/cost/step_calibration.h"
#include "sim/hardware/cluster.h"
#include "sim/hardware/presets.h"
#include "strategies/framework/framework.h"
#include "study/prediction/planning_notes.h"
#include "study/simulation/simulation.h"
#include "tests/simulation/support.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

Report fitted(const Json& scenario) {
  static Simulator simulator;
  return simulator.evaluate(scenario, {"test", {}}, {.ops = true}).report;
}

Json with_plan(Json scenario, const Json& plan) {
  scenario["plan"].update(plan);
  return scenario;
}

// Dense models of all sizes under plans of all kinds, on measured and on borrowed devices.
std::vector<Json> scenarios() {
  std::vector<Json> all;
  for (const char* node : {"dgx-a100", "dgx-h100", "gb200-nvl72", "dgx-1v"})
    for (const auto& [model, plan] : std::vector<std::pair<const char*, Json>>{
             {"gpt2-124m", Json::object()},
             {"llama-3-8b", {{"zero_stage", 3}}},
             {"llama-3-8b", {{"tensor_parallel", 4}, {"sequence_parallel", true}}},
             {"llama-3-8b", {{"zero_stage", 3}, {"recompute", "full"}, {"micro_batch_size", 2}}},
             {"gpt3-175b", {{"tensor_parallel", 4}, {"pipeline_parallel", 4}}}})
      all.push_back({{"model", model},
                     {"cluster", {{"node", node}, {"nodes", 4}}},
                     {"workload", {{"sequence_length", 1024}, {"global_batch_size", 576}}},
                     {"plan", plan}});
  for (Json& s : all) s["plan"]["precision"] = s["cluster"]["node"] == "dgx-1v" ? "fp16" : "bf16";
  return all;
}

TEST(FittedOrder, CompilingIsNeverSlower) {
  for (const Json& s : scenarios()) {
    const Report eager = fitted(with_plan(s, {{"framework", "fsdp"}}));
    const Report compiled = fitted(with_plan(s, {{"framework", "fsdp-compiled"}}));
    EXPECT_LE(compiled.step_seconds, eager.step_seconds) << s;
    EXPECT_LE(compiled.memory_peak_bytes, eager.memory_peak_bytes) << s;
  }
}

// A device multiplies as fast for one stack as for another.
TEST(FittedOrder, StacksDoNotChangeProducts) {
  std::size_t checked = 0;
  for (const Json& s : scenarios()) {
    // A backward product is two of the same name: of the input's gradient and the weight's.
    const auto in_turn = [](const std::vector<OpReport>& ops, std::size_t i) {
      return std::pair(ops[i].name, std::count_if(ops.begin(), ops.begin() + static_cast<std::ptrdiff_t>(i),
                                                  [&](const OpReport& op) { return op.name == ops[i].name; }));
    };
    std::map<std::pair<std::string, std::ptrdiff_t>, OpReport> compiled;
    const std::vector<OpReport> of_compiled = fitted(with_plan(s, {{"framework", "fsdp-compiled"}})).ops;
    for (std::size_t i = 0; i < of_compiled.size(); ++i) compiled[in_turn(of_compiled, i)] = of_compiled[i];
    for (const char* stack : {"fsdp", "deepspeed", "nanotron", "jax", "megatron-core", "megatron-deepspeed"}) {
      const std::vector<OpReport> ops = fitted(with_plan(s, {{"framework", stack}})).ops;
      for (std::size_t i = 0; i < ops.size(); ++i) {
        const OpReport& op = ops[i];
        const bool fused = op.name.find("attention") != std::string::npos;  // of different generations
        const auto same = compiled.find(in_turn(ops, i));
        if (op.flops == 0 || fused || same == compiled.end()) continue;
        if (same->second.flops != op.flops || same->second.bytes != op.bytes) continue;  // a bias or a padding apart
        EXPECT_DOUBLE_EQ(op.seconds, same->second.seconds) << op.name << " " << stack << s;
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, 500u);
}

TEST(FittedOrder, AFasterDeviceLinkOrMemoryIsNeverSlower) {
  for (const Json& s : scenarios())
    for (const char* stack : {"fsdp", "megatron-core"}) {
      Scenario slow = read_scenario(with_plan(s, {{"framework", stack}}), {});
      Simulator simulator;
      const double before = simulator.evaluate(slow, {}).report.step_seconds;
      const auto after = [&](const auto& change) {
        Scenario fast = slow;
        change(fast.cluster);
        return simulator.evaluate(fast, {}).report.step_seconds;
      };
      // An exchange that starts or ends sooner meets others that it then slows. The engine of events agrees to every
      // digit: ZeRO-3 over four racks, bound by its gathers, takes 3.7 % longer with faster matrix units.
      const bool gathers = slow.plan.data.zero_stage == 3 && slow.cluster.nodes > 1;
      constexpr double kFaster = 1.25;
      const double kRounding = gathers ? 1.04 : 1.006;
      EXPECT_LE(after([](Cluster& c) {
                  for (double& peak : c.device.peak_flops_per_second) peak *= kFaster;
                }),
                before * kRounding)
          << stack << s;
      EXPECT_LE(after([](Cluster& c) { c.device.memory_bytes_per_second *= kFaster; }), before * kRounding)
          << stack << s;
      EXPECT_LE(after([](Cluster& c) { c.node.intra_bytes_per_second *= kFaster; }), before * kRounding) << stack << s;
      EXPECT_LE(after([](Cluster& c) { c.node.nic_bytes_per_second *= kFaster; }), before * kRounding) << stack << s;
    }
}

// Random plans in one and the same host, of every pair of presets of which one is at least as good in every rate.
TEST(FittedOrder, ADeviceThatIsAtLeastAsGoodInEveryRateIsNeverSlower) {
  std::vector<Device> devices;
  for (const std::string& name : device_names()) devices.push_back(find_device(name));
  std::vector<std::pair<std::size_t, std::size_t>> pairs;  // no slower, other
  for (std::size_t a = 0; a < devices.size(); ++a)
    for (std::size_t b = 0; b < devices.size(); ++b) {
      // More multiprocessors, each a little slower, may be slower in a kernel of few tiles; in a step they are not.
      Device other = devices[b];
      other.multiprocessors = std::max(other.multiprocessors, devices[a].multiprocessors);
      if (a != b && devices[a].multiprocessors >= devices[b].multiprocessors && is_no_slower(devices[a], other))
        pairs.emplace_back(a, b);
    }
  ASSERT_GT(pairs.size(), 50u);
  std::mt19937 random(7);
  const auto one_of = [&](const Json& choices) { return choices[random() % choices.size()]; };
  Simulator simulator;
  int plans = 0;
  while (plans < 16) {
    const Json json{
        {"model", one_of({"gpt2-124m", "gpt3-1.3B", "llama-3-8b", "mixtral-8x7b", "gpt3-175b"})},
        {"cluster", {{"node", "dgx-h100"}, {"nodes", one_of({1, 2, 4})}}},
        {"workload", {{"sequence_length", one_of({512, 1024, 2048})}, {"global_batch_size", one_of({32, 64, 256})}}},
        {"plan",
         {{"framework", one_of({"megatron-core", "megatron-2021", "deepspeed", "fsdp", "fsdp-compiled"})},
          {"tensor_parallel", one_of({1, 1, 2, 4, 8})},
          {"pipeline_parallel", one_of({1, 1, 2, 4})},
          {"zero_stage", one_of({0, 1, 2, 3})},
          {"micro_batch_size", one_of({1, 2, 4})},
          {"recompute", one_of({"none", "full"})},
          {"precision", one_of({"bf16", "bf16", "fp8"})}}}};
    std::optional<Scenario> scenario;
    try {
      scenario = read_scenario(json, {});
      simulator.evaluate(*scenario, {});
    } catch (const InputError&) {
      continue;
    }
    ++plans;
    scenario->cluster.node.pcie_bytes_per_second = 63e9;  // the host's, as its other links
    std::vector<double> seconds(devices.size());
    for (std::size_t d = 0; d < devices.size(); ++d) {
      Scenario on = *scenario;
      on.cluster.device = devices[d];
      if (on.cluster.device.peak_flops_per_second[static_cast<std::size_t>(Dtype::bf16)] == 0)
        on.plan.precision.mix = precision::Mix::fp16;
      else if (on.cluster.device.peak_flops_per_second[static_cast<std::size_t>(Dtype::fp8)] == 0)
        on.plan.precision.mix = precision::Mix::bf16;
      seconds[d] = simulator.evaluate(std::move(on), {}).report.step_seconds;
    }
    // As above: what starts sooner may meet other traffic.
    constexpr double kRounding = 1.013;
    for (const auto& [a, b] : pairs)
      EXPECT_LE(seconds[a], seconds[b] * kRounding) << devices[a].name << " against " << devices[b].name << json;
  }
}

// A step in fp8 gains no more than the product that gains most.
TEST(FittedOrder, Fp8GainsNoMoreThanItsKernels) {
  std::size_t checked = 0;
  for (const char* node : {"dgx-h100", "gb200-nvl72", "mi300x-8"})
    for (const char* stack : {"megatron-core", "fsdp", "fsdp-compiled", "jax"})
      for (const int micro_batch : {1, 4}) {
        const Json s{{"model", "llama-3-8b"},
                     {"cluster", {{"node", node}, {"nodes", 1}}},
                     {"workload", {{"sequence_length", 4096}, {"global_batch_size", 288}}},
                     {"plan", {{"framework", stack}, {"zero_stage", 3}, {"micro_batch_size", micro_batch}}}};
        const Report half = fitted(with_plan(s, {{"precision", "bf16"}})),
                     quarter = fitted(with_plan(s, {{"precision", "fp8"}}));
        double most = 0;
        for (const OpReport& a : half.ops)
          for (const OpReport& b : quarter.ops)
            if (a.name == b.name && a.flops > 0 && b.seconds > 0)
              most = std::max(most, a.seconds / b.seconds), ++checked;
        EXPECT_LE(half.step_seconds / quarter.step_seconds, most) << s;
      }
  EXPECT_GT(checked, 100u);
}

// Of what is multiplied in nvfp4 the same, against fp8 and bf16.
TEST(FittedOrder, Nvfp4GainsNoMoreThanItsKernels) {
  for (const char* node : {"gb200-nvl72", "dgx-b200", "gb300-nvl72"})
    for (const char* wider : {"bf16", "fp8"})
      for (const int tensor : {1, 4}) {
        const Json s{{"model", "llama-3-70b"},
                     {"cluster", {{"node", node}, {"nodes", 1}, {"devices_per_node", 8}}},
                     {"workload", {{"sequence_length", 8192}, {"global_batch_size", 64}}},
                     {"plan",
                      {{"framework", "megatron-core"},
                       {"tensor_parallel", tensor},
                       {"sequence_parallel", tensor > 1},
                       {"zero_stage", 1}}}};
        const Report wide = fitted(with_plan(s, {{"precision", wider}}));
        const Report narrow = fitted(with_plan(s, {{"precision", "nvfp4"}}));
        double most = 0;
        for (const OpReport& a : wide.ops)
          for (const OpReport& b : narrow.ops)
            if (a.name == b.name && a.flops > 0 && b.seconds > 0) most = std::max(most, a.seconds / b.seconds);
        EXPECT_LT(narrow.step_seconds, wide.step_seconds) << s << wider;
        EXPECT_LE(wide.step_seconds / narrow.step_seconds, most) << s << wider;
        EXPECT_LT(narrow.mfu, wide.mfu) << "of a peak that is twice as high and more";
      }
}

// Weights that are kept and gathered quantised cost no time: fewer bytes are gathered, and the cast from fp32 in the
// update is of a rank's part alone. Only where the host bounds a step, what the forward saves is hidden, and the update's
// cast is not. Memory is less, too.
TEST(FittedOrder, GatheringQuantisedWeightsIsNeverSlower) {
  for (const auto& [node, precision, field] : {std::array{"dgx-h100", "fp8", "fp8_param_gather"},
                                               {"gb200-nvl72", "fp8", "fp8_param_gather"},
                                               {"gb200-nvl72", "nvfp4", "fp4_param_gather"}})
    for (const int devices : {2, 4, 8})
      for (const int accumulated : {1, 8})
        for (const bool overlap : {true, false})
          for (const int tensor : {1, 4}) {
            if (devices <= tensor) continue;  // one rank gathers nothing
            const Json s{
                {"model", "llama-3-8b"},
                {"cluster", {{"node", node}, {"nodes", 1}, {"devices_per_node", devices}}},
                {"workload", {{"sequence_length", 2048}, {"global_batch_size", accumulated * devices / tensor}}},
                {"plan",
                 {{"framework", "megatron-core"},
                  {"precision", precision},
                  {"zero_stage", 1},
                  {"micro_batch_size", 1},
                  {"overlap_param_gather", overlap},
                  {"tensor_parallel", tensor}}}};
            const Report wide = fitted(s), narrow = fitted(with_plan(s, {{field, true}}));
            const bool by_host = wide.bound_by == "the host's launches";
            EXPECT_LE(narrow.step_seconds, wide.step_seconds * (by_host ? 1.01 : 1)) << s;
            EXPECT_LT(narrow.memory_peak_bytes, wide.memory_peak_bytes) << s;
          }
}

// No step is shorter than its products and attention measured alone.
TEST(FittedOrder, MfuIsBelowWhatProductsReachAlone) {
  Simulator alone;
  static const StepCalibration kNone;
  alone.use(kNone);
  for (const BundledDocument& bundled : bundled_scenarios()) {
    const Json json = Json::parse(bundled.text, nullptr, true, true);
    if (json.contains("jobs")) continue;
    const Report step = fitted(json);
    const Report kernels = alone.evaluate(json, {bundled.name, {}}, {}).report;
    const TimeBreakdown& time = kernels.stages[static_cast<std::size_t>(kernels.bounding_stage)].time;
    const double products = time.matmul + time.attention;
    EXPECT_GE(step.step_seconds, products) << bundled.name;
    EXPECT_LE(step.mfu, kernels.mfu * kernels.step_seconds / products) << bundled.name;
  }
}

// Each of them by the one number that is fitted for all.
TEST(FittedOrder, CollectivesOfAStepAreSlowedAlike) {
  const Json s{{"model", "llama-3-8b"},
               {"cluster", {{"node", "dgx-h100"}, {"nodes", 2}}},
               {"workload", {{"sequence_length", 4096}, {"global_batch_size", 16}}},
               {"plan", {{"tensor_parallel", 8}, {"zero_stage", 1}}}};
  Simulator simulator;
  const StepCalibration none;
  simulator.use(none);
  const Report alone = simulator.evaluate(s, {"test", {}}, {.ops = true}).report, step = fitted(s);
  ASSERT_EQ(alone.ops.size(), step.ops.size());
  std::size_t collectives = 0;
  for (std::size_t i = 0; i < step.ops.size(); ++i) {
    if (step.ops[i].stream == Stream::compute || !(alone.ops[i].seconds > 0)) continue;
    ++collectives;
    EXPECT_NEAR(step.ops[i].seconds / alone.ops[i].seconds, step_calibration().collective_slowdown, 1e-9)
        << step.ops[i].name;
  }
  EXPECT_GT(collectives, 3u);
}

TEST(FittedOrder, NumbersOfTheFileAreThoseOfTheirKind) {
  const StepCalibration& c = step_calibration();
  EXPECT_GE(c.collective_slowdown, 1);
  for (const auto& [device, slowdown] : c.device_slowdown) EXPECT_GE(slowdown, 1) << device;
  for (const auto& [stack, s] : c.stacks) {
    EXPECT_GE(s.memory_bound_slowdown, 1) << stack;
    EXPECT_GE(s.host_seconds_per_op, framework::stack_named(stack).runtime.host_seconds_per_op) << stack;
  }
  for (const auto& [device, slowdown] : c.device_slowdown)
    for (const auto& [other, of_other] : c.device_slowdown)
      if (const Device a = find_device(device), b = find_device(other); is_no_slower(a, b)) {
        EXPECT_LE(slowdown, of_other * allowed_slowdown(a, b) * 1.001) << device << " against " << other;  // rounded
      }
  EXPECT_LE(c.stacks.at("fsdp-compiled").memory_bound_slowdown, c.stacks.at("fsdp").memory_bound_slowdown);
  EXPECT_LE(c.stacks.at("fsdp-compiled").host_seconds_per_op, c.stacks.at("fsdp").host_seconds_per_op);
}

// ---- what scale costs

TEST(ScaleCost, TheLargestOfManyIsAsIntegralsSay) {
  // Harter 1961 (Biometrika 48), table 1; 1 / sqrt(pi) for two.
  EXPECT_DOUBLE_EQ(expected_largest(1), 0);
  EXPECT_NEAR(expected_largest(2), 0.56419, 1e-4);
  EXPECT_NEAR(expected_largest(8), 1.42360, 1e-4);
  EXPECT_NEAR(expected_largest(100), 2.50759, 1e-4);
  EXPECT_GT(expected_largest(131072), expected_largest(16384));
}

// At constant work a replica the products' time is equal; what the slowest of more devices costs is a term of its own.
TEST(ScaleCost, WaitingForTheSlowestGrowsWithTheJob) {
  const auto at = [](int nodes, int replicas) {
    return fitted({{"model", "llama-3-8b"},
                   {"cluster", {{"node", "dgx-h100"}, {"nodes", nodes}}},
                   {"workload", {{"sequence_length", 4096}, {"global_batch_size", 8 * replicas}}},
                   {"plan", {{"tensor_parallel", 8}, {"data_parallel", replicas}, {"overlap_grad_reduce", false}}}});
  };
  const Report one = at(1, 1), many = at(2048, 2048);
  EXPECT_EQ(one.stages[0].time.slowest_device, 0);
  EXPECT_EQ(at(2048, 1).stages[0].time.slowest_device, 0) << "of the job's devices, not of the cluster's";
  // Of what collectives slow kernels by, the waiting has its part.
  EXPECT_NEAR(many.stages[0].time.matmul / one.stages[0].time.matmul, 1, 1e-4);
  EXPECT_EQ(many.stages[0].time.memory_bound, one.stages[0].time.memory_bound);
  const double products = many.stages[0].time.matmul + many.stages[0].time.attention;
  EXPECT_NEAR(many.stages[0].time.slowest_device / products,
              scale_figures().device_spread * (expected_largest(16384) - expected_largest(8)), 1e-9);
  EXPECT_NEAR(many.stages[0].time.total() / many.step_seconds, 1, 1e-12);
}

TEST(ScaleCost, ProductionIsATermThatNothingElseFeels) {
  Json s{{"model", "llama-3-8b"},
         {"cluster", {{"node", "dgx-h100"}, {"nodes", 16}}},
         {"workload", {{"sequence_length", 4096}, {"global_batch_size", 128}}},
         {"plan", {{"tensor_parallel", 8}, {"pipeline_parallel", 2}}}};
  const Report tuned = fitted(s);
  s["cluster"]["production"] = true;
  const Report production = fitted(s);
  const ProductionSlowdown& slowdown = scale_figures().production;
  EXPECT_NEAR(production.step_seconds / tuned.step_seconds, 1 + slowdown.median, 1e-12);
  EXPECT_NEAR(production.mfu * (1 + slowdown.median) / tuned.mfu, 1, 1e-12);
  for (std::size_t i = 0; i < tuned.stages.size(); ++i) {
    EXPECT_EQ(production.stages[i].time.matmul, tuned.stages[i].time.matmul);
    EXPECT_NEAR(production.stages[i].time.production, slowdown.median * tuned.step_seconds, 1e-12);
    EXPECT_NEAR(production.stages[i].time.total() / production.step_seconds, 1, 1e-9);
  }
  EXPECT_NEAR(production.tokens_per_second * (1 + slowdown.median) / tuned.tokens_per_second, 1, 1e-12);
  EXPECT_NEAR(production.expected->low_seconds / tuned.expected->low_seconds, 1 + slowdown.better_tenth(), 1e-12);
  EXPECT_NEAR(production.expected->high_seconds / tuned.expected->high_seconds, 1 + slowdown.worse_tenth(), 1e-12);
  EXPECT_THAT(production.notes, testing::Contains(testing::HasSubstr("shared production cluster")));
}

// Four published figures from two numbers (results/calibration/scale.json).
TEST(ScaleCost, ProductionSlowdownsAreThosePublished) {
  const ProductionSlowdown& s = scale_figures().production;
  const auto slower_than = [&](double loss) {
    return std::erfc(std::log(loss / s.median) / s.sigma_of_logarithm / std::sqrt(2.0)) / 2;
  };
  EXPECT_NEAR(slower_than(0.10), 0.425, 0.005);
  const auto lost = [](double slowdown) { return slowdown / (1 + slowdown); };
  EXPECT_NEAR(lost(s.worse_tenth()), 0.213, 0.015);
  EXPECT_NEAR(s.better_tenth() * s.worse_tenth(), s.median * s.median, 1e-12);
}

// Causal kernels skip what full attention counts; that a device does more than it can is a mistake somewhere.
TEST(UtilisationNote, TellsACountedShareFromAnImpossibleOne) {
  Report report;
  report.mfu = 0.6;
  report.hfu = 0.9;
  report.mfu_full_attention = 1;
  EXPECT_EQ(utilisation_note(report), "");
  report.mfu_full_attention = 1.2;
  EXPECT_THAT(utilisation_note(report), testing::HasSubstr("120.0 %, is above the device's peak: it counts the FLOPs"));
  report.hfu = 1.1;
  EXPECT_THAT(utilisation_note(report), testing::StartsWith("110.0 % of the device's peak is impossible"));
  report.mfu = 1.15;
  EXPECT_THAT(utilisation_note(report), testing::StartsWith("115.0 % of the device's peak is impossible"));
}

}  // namespace
}  // namespace orrery
