// Does every bundled model run on every bundled cluster, and every plan on a model, with sane numbers?
#include <array>
#include <cmath>

#include "sim/hardware/presets.h"
#include "sim/program/check.h"
#include "strategies/context_parallel/context_parallel.h"
#include "tests/simulation/support.h"

namespace orrery {
namespace {

void expect_sane(const Report& r, const std::string& what) {
  for (double x :
       {r.step_seconds, r.tokens_per_second, r.mfu, r.hfu, r.memory_peak_bytes, r.model_flops_per_second_per_device}) {
    ASSERT_TRUE(std::isfinite(x)) << what;
    ASSERT_GT(x, 0) << what;
  }
  ASSERT_LT(r.mfu, 1) << what;
  ASSERT_LE(r.mfu, r.hfu * (1 + 1e-12)) << what;
  for (const StageReport& stage : r.stages) {
    ASSERT_NEAR(stage.time.total() / r.step_seconds, 1, 1e-9) << what;
    const double bytes = device_bytes(stage.memory.bytes) + stage.memory.framework_bytes;
    ASSERT_NEAR(bytes / stage.memory.peak_bytes, 1, 1e-9) << what;
  }
}

Scenario data_parallel_only(const Model& model, const Cluster& cluster) {
  Scenario s;
  s.model = model;
  s.cluster = cluster;
  s.workload.sequence_length =
      model.vision() ? 0 : std::min<std::int64_t>(model.max_positions > 0 ? model.max_positions : 2048, 2048);
  s.workload.global_batch_size = cluster.devices();
  s.plan.precision.mix = cluster.device.peak_flops_per_second[static_cast<std::size_t>(Dtype::bf16)] > 0
                             ? precision::Mix::bf16
                             : precision::Mix::fp16;
  return s;
}

// Two nodes of a kind, one where it has no network. Boxes that take any device get the first that fits.
Cluster cluster_of(const std::string& node) {
  std::vector<std::string> devices = device_names();
  devices.insert(devices.begin(), "");
  for (int nodes : {2, 1})
    for (const std::string& device : devices) {
      nlohmann::json json = {{"node", node}, {"nodes", nodes}};
      if (!device.empty()) json["device"] = device;
      try {
        return read_cluster(json, {});
      } catch (const InputError&) {
      }
    }
  return {};
}

TEST(Sweep, EveryModelRunsOnEveryCluster) {
  std::vector<Cluster> clusters;
  for (const std::string& name : cluster_names()) clusters.push_back(find_cluster(name));
  for (const std::string& name : node_names()) {
    clusters.push_back(cluster_of(name));
    ASSERT_GT(clusters.back().device.memory_bytes, 0) << name;
  }
  for (const std::string& model_name : model_names()) {
    const Model model = read_model(model_name, {});
    for (const Cluster& cluster : clusters) {
      const std::string what = model_name + " on " + cluster.name + " " + cluster.node.name;
      try {
        expect_sane(simulate(data_parallel_only(model, cluster)), what);
      } catch (const std::exception& e) {
        FAIL() << what << ": " << e.what();
      }
      if (HasFatalFailure()) return;
    }
  }
}

// The product of the strategies' choices on one small model: nothing throws but refused combinations, and every Program
// is proven.
TEST(Sweep, PlansComposeFreely) {
  Scenario s = scenario_of("gpt3-1.3B", "dgx-h100", 8);
  s.workload = {2048, 0, 256};
  Program program;
  int runs = 0;
  for (std::int64_t t : {1, 2, 4})
    for (bool sp : {false, true})
      for (std::int64_t c : {1, 2})
        for (std::int64_t p : {1, 4})
          for (int schedule = 0; schedule < 5; ++schedule)
            for (int zero = 0; zero <= 3; ++zero)
              for (int recompute = 0; recompute < 3; ++recompute)
                for (bool flash : {true, false})
                  for (auto mix : {precision::Mix::bf16, precision::Mix::fp8})
                    for (bool offload : {false, true})
                      for (bool ranges : {false, true}) {
                        if ((c > 1 && !flash) || (p == 1 && schedule != 1)) continue;
                        s.plan = {};
                        s.plan.tensor.degree = t;
                        s.plan.tensor.sequence_parallel = sp;
                        s.plan.tensor.overlap = sp && t > 1;
                        s.plan.context.degree = c;
                        if (c > 1) {  // one after another
                          static constexpr std::array<const char*, 4> kTypes{"ring", "ulysses", "usp", "all_gather"};
                          const auto type = static_cast<std::size_t>(runs / 3 % 4);
                          s.plan.context.type = context_parallel::type_named(kTypes[type]);
                          if (type == 2) s.plan.context.degree = 4, s.plan.usp.ulysses_degree = 2;
                          s.plan.usp.ulysses_inner = type != 2 || runs / 12 % 2 == 0;
                          s.plan.context.balance = static_cast<context_parallel::Balance>(runs / 24 % 3);
                        }
                        s.plan.pipeline.degree = p;
                        s.plan.pipeline.schedule = static_cast<pipeline_parallel::ScheduleKind>(schedule);
                        s.plan.pipeline.virtual_stages =
                            s.plan.pipeline.schedule == pipeline_parallel::ScheduleKind::interleaved ? 3 : 1;
                        s.plan.data.zero_stage = zero;
                        s.plan.data.reduce_gradients =
                            static_cast<data_parallel::Reduction>(runs % 3);               // one after another
                        const bool pairs = zero == 3 && data_parallel_degree(s) % 2 == 0;  // of replicas
                        if (pairs && !ranges && runs / 3 % 3 == 1) s.plan.zeropp.secondary = 2;
                        if (pairs && runs / 3 % 3 == 2 &&
                            s.plan.data.reduce_gradients != data_parallel::Reduction::once)
                          s.plan.mics.shard_size = 2;
                        s.plan.recompute.mode = static_cast<activation_recompute::Mode>(recompute);
                        s.plan.framework.flash_attention = flash;
                        s.plan.precision.mix = mix;
                        s.plan.offload.optimizer = offload;
                        if (ranges) {  // some layers under one other plan, some under another
                          const auto range = [&](std::int64_t from, std::int64_t to, std::int64_t step, int mode) {
                            LayerRange r{from, to, step, s.plan};
                            r.plan.layers.clear();
                            r.plan.recompute.mode = static_cast<activation_recompute::Mode>(mode % 3);
                            return r;
                          };
                          s.plan.layers = {range(1, 7, 1, recompute + 1), range(8, 0, 3, recompute + 2)};
                          s.plan.layers[0].plan.tensor.overlap = false;
                          s.plan.layers[0].plan.data.prefetch = 2;
                          s.plan.layers[0].plan.context.balance =
                              static_cast<context_parallel::Balance>((runs / 24 + 1) % 3);
                          s.plan.layers[1].plan.data.reshard_after_forward = zero < 3;
                          s.plan.layers[1].plan.precision.mix =
                              mix == precision::Mix::fp8 ? precision::Mix::bf16 : precision::Mix::fp8;
                          s.plan.layers[1].plan.framework.flash_attention = c > 1 || !flash;
                          if (c > 1 && s.plan.usp.ulysses_degree == 0) {  // of one group of ranks
                            static constexpr std::array<const char*, 3> kTypes{"ring", "ulysses", "all_gather"};
                            s.plan.layers[0].plan.context.type =
                                context_parallel::type_named(kTypes[static_cast<std::size_t>(runs / 2 % 3)]);
                          }
                        }
                        // Layers that are not trained, some of them in front of all that are.
                        const bool ends = p == 1 && runs % 7 == 1;
                        s.plan.freeze = {.layers = false, .embedding = ends, .head = ends};
                        if (runs % 5 == 1 && !ranges) {
                          s.plan.layers = {{ends ? 0 : 2, 8, 1 + runs % 2, s.plan}};
                          s.plan.layers[0].plan.layers.clear();
                        }
                        if (!s.plan.layers.empty()) s.plan.layers[0].plan.freeze.layers = runs % 5 < 3;
                        if (runs % 11 == 5) {  // or adapters, in some layers others or none
                          s.plan.freeze = {};
                          s.plan.lora = {.rank = 4, .dropout = runs % 2 == 0 ? 0.1 : 0.0, .targets = {0, 1, 2, 3}};
                          for (LayerRange& range : s.plan.layers) {
                            range.plan.freeze = {};
                            range.plan.lora = s.plan.lora;
                          }
                          if (!s.plan.layers.empty()) s.plan.layers[0].plan.lora.rank = p == 1 ? 0 : 2;
                        }
                        const std::string what = "t" + std::to_string(t) + " c" + std::to_string(c) + " p" +
                                                 std::to_string(p) + " schedule " + std::to_string(schedule) +
                                                 " zero " + std::to_string(zero) + " recompute " +
                                                 std::to_string(recompute) + (ranges ? " ranges" : "");
                        try {
                          expect_sane(simulate(s), what);
                          lower(s, program);
                          for (const Violation& v : check(program)) FAIL() << what << ": " << v.text;
                          for (const Piece& piece : program.pieces)
                            for (const Tensor& tensor : piece.tensors)
                              for (std::size_t d = tensor.rank; d < tensor.sizes.size(); ++d)
                                ASSERT_EQ(tensor.sizes[d], 1) << what << ": " << piece.name << "." << tensor.name;
                        } catch (const std::exception& e) {
                          FAIL() << what << ": " << e.what();
                        }
                        if (HasFatalFailure()) return;
                        ++runs;
                      }
  EXPECT_GT(runs, 8000);
}

}  // namespace
}  // namespace orrery
