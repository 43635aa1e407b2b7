// The CUDA backend against the CPU: on a GPU (orrery-cuda-tests), or its host code over a stand-in of the CUDA runtime
// that runs nothing before it must (stand_in.h).

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "realrun/agreement.h"
#include "realrun/cpu/kernels.h"
#include "realrun/executor.h"
#include "strategies/lower.h"
#include "strategies/read_scenario.h"
#include "strategies/strategy.h"
#include "tests/realrun/cuda_runtime/support.h"

namespace orrery {
namespace {

constexpr bool kTf32 = false;  // numbers are compared to fp32's last digits

TEST(CudaBackend, HoldsNumbersInTheirDtypes) {
  const std::unique_ptr<Backend> owned = make_cuda_backend(0, kTf32);
  Backend& backend = *owned;
  const Values values{0, 1, -2.5f, 448, 3, 1e-3f};
  for (const Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16, Dtype::fp8}) {
    const Held held(backend, of({{6}}, dtype), values);
    const Values back = held.values();
    for (std::size_t i = 0; i < values.size(); ++i)
      EXPECT_NEAR(back[i], values[i], std::abs(values[i]) * 0.07 + 1e-3) << name_of(dtype);
    EXPECT_EQ(backend.stored_bytes(dtype), bytes_of(dtype, 1));
  }
  const Held ids(backend, of({{3}}, Dtype::int64), {0, 7, 50256});
  EXPECT_EQ(ids.values(), (Values{0, 7, 50256}));
}

TEST(CudaBackend, WritesReadsAndFillsPartsByOffsetAndByIndex) {
  const std::unique_ptr<Backend> owned = make_cuda_backend(0, kTf32);
  Backend& backend = *owned;
  Values zero_to_nine(10);
  std::iota(zero_to_nine.begin(), zero_to_nine.end(), 0.0f);
  const Held held(backend, of({{10}}, Dtype::bf16), zero_to_nine);
  const std::vector<std::int64_t> odd{1, 3, 5, 7, 9};
  const Slice indexed{held.data, Dtype::bf16, 0, 5, &odd};
  Values five(5);
  backend.read(indexed, five);
  EXPECT_EQ(five, (Values{1, 3, 5, 7, 9}));
  backend.write(indexed, Values{10, 30, 50, 70, 90});
  backend.fill(Stream::compute, {held.data, Dtype::bf16, 0, 1}, -1);
  EXPECT_EQ(held.values(), (Values{-1, 10, 2, 30, 4, 50, 6, 70, 8, 90}));
  const Held dense(backend, of({{5}}, Dtype::bf16), Values(5, 1.0f));
  backend.scatter(Stream::compute, dense.data, indexed, true);
  backend.gather(Stream::compute, indexed, dense.data);
  EXPECT_EQ(dense.values(), (Values{11, 31, 51, 71, 91}));
  EXPECT_FALSE(backend.has_nan(held.slice()));
  backend.fill(Stream::compute, {held.data, Dtype::bf16, 4, 1}, std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(backend.has_nan(held.slice()));
  EXPECT_FALSE(backend.has_nan({held.data, Dtype::bf16, 0, 4}));
}

TEST(CudaBackend, ProductsAreTheCpusInEveryDtype) {
  const std::unique_ptr<Backend> owned = make_cuda_backend(0, kTf32);
  Backend& backend = *owned;
  for (const auto& [dtype, tolerance] : {std::pair{Dtype::fp32, kFp32}, {Dtype::bf16, kBf16}, {Dtype::fp16, kBf16}})
    for (const bool transposed : {false, true}) {
      Op op = op_of(OpKind::linear);
      op.transposed_weight = transposed;
      const Tensor x = of({{3}, {5}}, dtype), y = of({{3}, {7}}, dtype), bias = of({{7}}, dtype);
      const Tensor w = transposed ? of({{7}, {5}}, dtype) : of({{5}, {7}}, dtype);
      EXPECT_LT(difference(backend, op, {x, w}, y), tolerance) << name_of(dtype);
      EXPECT_LT(difference(backend, op, {x, w, bias}, y), tolerance) << name_of(dtype);
      EXPECT_LT(difference(backend, op, {x, w, bias}, of({{3}, {7}})), tolerance) << "into fp32: the bias apart";
      op.kind = OpKind::linear_input_gradient;
      EXPECT_LT(difference(backend, op, {y, w}, x), tolerance) << name_of(dtype);
      op.kind = OpKind::linear_weight_gradient;
      op.accumulate = true;
      Tensor main_gradient = w;
      main_gradient.dtype = Dtype::fp32;
      EXPECT_LT(difference(backend, op, {x, y}, main_gradient), tolerance) << name_of(dtype);
    }
  Op op = op_of(OpKind::batched_matmul);
  op.transpose_b = true;
  EXPECT_LT(difference(backend, op, {of({{2}, {3}, {4}, {5}, {8}}), of({{2}, {3}, {1}, {7}, {8}})},
                       of({{2}, {3}, {4}, {5}, {7}})),
            kFp32);
  EXPECT_THROW(
      difference(backend, op_of(OpKind::linear), {of({{3}, {5}}, Dtype::bf16), of({{5}, {7}})}, of({{3}, {7}})),
      std::logic_error)
      << "of two dtypes";
}

TEST(CudaBackend, ProductsOfExpertsAreTheCpusInEveryDtype) {
  const std::unique_ptr<Backend> owned = make_cuda_backend(0, kTf32);
  Backend& backend = *owned;
  for (const auto& [dtype, tolerance] : {std::pair{Dtype::fp32, kFp32}, {Dtype::bf16, kBf16}, {Dtype::fp16, kBf16}})
    for (const bool transposed : {false, true}) {
      Op op = op_of(OpKind::linear);
      op.group_dims = 1;
      op.transposed_weight = transposed;
      const Tensor x = of({{4}, {3}, {5}}, dtype), y = of({{4}, {3}, {7}}, dtype), bias = of({{4}, {7}}, dtype);
      const Tensor w = transposed ? of({{4}, {7}, {5}}, dtype) : of({{4}, {5}, {7}}, dtype);
      EXPECT_LT(difference(backend, op, {x, w}, y), tolerance) << name_of(dtype);
      EXPECT_LT(difference(backend, op, {x, w, bias}, y), tolerance) << name_of(dtype);
      EXPECT_LT(difference(backend, op, {x, w, bias}, of({{4}, {3}, {7}})), tolerance) << "into fp32: biases apart";
      op.kind = OpKind::linear_input_gradient;
      EXPECT_LT(difference(backend, op, {y, w}, x), tolerance) << name_of(dtype);
      op.kind = OpKind::linear_weight_gradient;
      op.accumulate = true;
      Tensor main_gradient = w;
      main_gradient.dtype = Dtype::fp32;
      EXPECT_LT(difference(backend, op, {x, y}, main_gradient), tolerance) << name_of(dtype);
    }
}

// Whose logits are fp32, and so are their gradients.
TEST(CudaBackend, GradientsOfARouterAreTheCpus) {
  const std::unique_ptr<Backend> owned = make_cuda_backend(0, kTf32);
  Backend& backend = *owned;
  const Tensor x = of({{6}, {16}}, Dtype::bf16), w = of({{16}, {8}}, Dtype::bf16), logits = of({{6}, {8}});
  EXPECT_LT(difference(backend, op_of(OpKind::linear), {x, w}, logits), kBf16);
  EXPECT_LT(difference(backend, op_of(OpKind::linear_input_gradient), {logits, w}, x), kBf16);
  EXPECT_LT(difference(backend, op_of(OpKind::linear_weight_gradient), {x, logits}, of({{16}, {8}})), kBf16);
}

// Quantised operands, as strategies/precision writes them: cast, multiply.
TEST(CudaBackend, Fp8ProductsCarryTheirScalesAlongAllThreeProducts) {
  const std::unique_ptr<Backend> owned = make_cuda_backend(0, kTf32);
  Backend& backend = *owned;
  for (const std::int64_t size : {32, 20})  // matrix units take the first; the second is widened
    for (const bool transposed : {false, true})
      for (const OpKind kind : {OpKind::linear, OpKind::linear_input_gradient, OpKind::linear_weight_gradient}) {
        const std::int64_t t = 48, k = size, n = 2 * size;
        const Tensor x = of({{t}, {k}}, Dtype::bf16), y = of({{t}, {n}}, Dtype::bf16);
        const Tensor w = transposed ? of({{n}, {k}}, Dtype::bf16) : of({{k}, {n}}, Dtype::bf16);
        const bool forward = kind == OpKind::linear, weight = kind == OpKind::linear_weight_gradient;
        const Tensor &first = forward || weight ? x : y, &second = weight ? y : w,
                     &third = forward  ? y
                              : weight ? w
                                       : x;
        // Gradients are small: without a scale they would be zero in e4m3.
        const Values a = random_values(first.elements(), 1, 1e-5), b = random_values(second.elements(), 2, 30);
        const Held source_a(backend, first, a), source_b(backend, second, b);
        const auto fp8 = [](Tensor tensor) {
          tensor.dtype = Dtype::fp8;
          return tensor;
        };
        const Held quantised_a(backend, fp8(first), {}), quantised_b(backend, fp8(second), {});
        const Operand from_a = source_a.operand(), from_b = source_b.operand(), to_a = quantised_a.operand(),
                      to_b = quantised_b.operand();
        backend.run(op_of(OpKind::cast), {&from_a, 1}, {&to_a, 1}, {});
        backend.run(op_of(OpKind::cast), {&from_b, 1}, {&to_b, 1}, {});
        Op op = op_of(kind);
        op.transposed_weight = transposed;
        op.compute_dtype = Dtype::fp8;
        const Held result(backend, third, {});
        const std::array<Operand, 2> reads{to_a, to_b};
        const Operand out = result.operand();
        backend.run(op, reads, {&out, 1}, {});

        Values expected(static_cast<std::size_t>(third.elements())), in_a = a, in_b = b;
        const std::array<Operand, 2> buffers{Operand{in_a.data(), &first}, Operand{in_b.data(), &second}};
        const Operand expected_buffer{expected.data(), &third};
        cpu::run_kernel(op, buffers, {&expected_buffer, 1}, {});
        double error = 0, norm = 0;
        const Values actual = result.values();
        for (std::size_t i = 0; i < actual.size(); ++i) {
          error += std::pow(actual[i] - expected[i], 2.0);
          norm += std::pow(expected[i], 2.0);
        }
        EXPECT_LT(std::sqrt(error / norm), kFp8) << name_of(kind) << (transposed ? ", transposed, " : ", ") << size;
        EXPECT_GT(std::sqrt(error / norm), 1e-3) << "three bits of mantissa must show";
      }
}

TEST(CudaBackend, MarksMeasureUntilTheyAreForgotten) {
  const std::unique_ptr<Backend> owned = make_cuda_backend(0, kTf32);
  Backend& backend = *owned;
  const Backend::Mark begin = backend.mark(Stream::compute), end = backend.mark(Stream::compute);
  backend.synchronize();
  EXPECT_GE(backend.seconds(begin, end), 0);
  backend.forget_marks();
  EXPECT_THROW(backend.seconds(begin, end), std::logic_error);
}

TEST(CudaBackend, OffloadedAdamWaitsForItsGradientsAndIsTheCpus) {
  const std::unique_ptr<Backend> owned = make_cuda_backend(0, kTf32);
  Backend& backend = *owned;
  const std::int64_t n = 10000;
  const Tensor bf16 = of({{n}}, Dtype::bf16), fp32 = of({{n}});
  const Values gradient = random_values(n, 1), weights = random_values(n, 2), first = random_values(n, 3, 0.1);
  Values second = random_values(n, 4, 0.1);
  for (float& v : second) v = std::abs(v);
  const Held on_device(backend, fp32, gradient);
  const Held host_gradient(backend, fp32, Values(static_cast<std::size_t>(n), 0.0f), Place::host);
  const Held master(backend, fp32, weights, Place::host), m(backend, fp32, first, Place::host),
      v(backend, fp32, second, Place::host), parameters(backend, bf16, weights, Place::host);
  const Held updated(backend, bf16, Values(static_cast<std::size_t>(n), 0.0f));

  backend.copy(Stream::device_to_host, host_gradient.data, on_device.data, fp32.bytes());
  backend.wait(Stream::host, backend.record(Stream::device_to_host));
  const std::array<Operand, 4> reads{host_gradient.operand(), master.operand(), m.operand(), v.operand()};
  const std::array<Operand, 4> writes{parameters.operand(), master.operand(), m.operand(), v.operand()};
  KernelContext context;
  context.step = 3;
  context.weight_decay = 0.1;
  Op adam = op_of(OpKind::adam, Stream::host);
  adam.scale = 0.5;
  {
    std::vector<Operand> gone(reads.begin(), reads.end());  // operands need not outlive the call
    backend.run(adam, gone, writes, context);
    gone.assign(4, {});
  }
  backend.wait(Stream::host_to_device, backend.record(Stream::host));
  backend.copy(Stream::host_to_device, updated.data, parameters.data, bf16.bytes());
  backend.synchronize();

  Values w = weights, mm = first, vv = second, g = gradient, p(static_cast<std::size_t>(n));
  const std::array<Operand, 4> in{Operand{g.data(), &fp32}, {w.data(), &fp32}, {mm.data(), &fp32}, {vv.data(), &fp32}};
  const std::array<Operand, 4> out{Operand{p.data(), &bf16}, {w.data(), &fp32}, {mm.data(), &fp32}, {vv.data(), &fp32}};
  cpu::run_kernel(adam, in, out, context);
  const Values new_master = master.values(), new_m = m.values(), new_v = v.values(), new_parameters = updated.values();
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    ASSERT_NEAR(new_master[i], w[i], 1e-6 * (1 + std::abs(w[i])));
    ASSERT_NEAR(new_m[i], mm[i], 1e-6);
    ASSERT_NEAR(new_v[i], vv[i], 1e-6);
    ASSERT_NEAR(new_parameters[i], w[i], std::abs(w[i]) / 200);
  }
}

TEST(CudaBackend, AFailureOnTheHostComesOutAtTheNextSynchronisation) {
  const std::unique_ptr<Backend> owned = make_cuda_backend(0, kTf32);
  Backend& backend = *owned;
  const Held held(backend, of({{4}}), Values(4, 1.0f), Place::host);
  const Operand operand = held.operand();
  backend.run(op_of(OpKind::adam, Stream::host), {&operand, 1}, {&operand, 1}, {});
  EXPECT_THROW(backend.synchronize(), std::logic_error);
  EXPECT_NO_THROW(backend.synchronize());
}

TEST(CudaBackend, AViewThatIsNotAlignedGetsAKernelThatTakesIt) {
  const std::unique_ptr<Backend> owned = make_cuda_backend(0, kTf32);
  Backend& backend = *owned;
  const Held whole(backend, of({{36}}, Dtype::bf16), random_values(36, 1)),
      x(backend, of({{3}, {5}}, Dtype::bf16), random_values(15, 2));
  const Tensor w = of({{5}, {7}}, Dtype::bf16), y = of({{3}, {7}}, Dtype::bf16);
  const Held result(backend, y, {});
  const Operand out = result.operand();
  const std::array<Operand, 2> reads{x.operand(), Operand{static_cast<char*>(whole.data) + 2, &w}};
  ASSERT_NO_THROW(backend.run(op_of(OpKind::linear), reads, {&out, 1}, {}));
  Values all = whole.values(), in = x.values(), expected(21);
  const std::array<Operand, 2> buffers{Operand{in.data(), &x.tensor}, {all.data() + 1, &w}};
  const Operand buffer{expected.data(), &y};
  cpu::run_kernel(op_of(OpKind::linear), buffers, {&buffer, 1}, {});
  const Values actual = result.values();
  for (std::size_t i = 0; i < actual.size(); ++i)
    EXPECT_NEAR(actual[i], expected[i], kBf16 * (1 + std::abs(expected[i])));
}

// --- Whole training steps: the executor over this backend, against the CPU's

Scenario tiny(const std::string& patch) {
  nlohmann::json document = nlohmann::json::parse(R"({
    "model": {"layers": 2, "hidden": 32, "heads": 4, "vocab": 256, "max_positions": 16, "dropout": 0},
    "cluster": {"node": "dgx-h100", "nodes": 1},
    "workload": {"sequence_length": 16, "global_batch_size": 4},
    "plan": {"precision": "fp32", "data_parallel": 1}})");
  document.merge_patch(nlohmann::json::parse(patch));
  return read_scenario(document, {});
}

constexpr const char* kLlama = R"({"model": {"activation": "swiglu", "ffn": 64, "kv_heads": 2, "positions": "rotary",
    "norm": "rmsnorm", "tied_embeddings": false, "linear_bias": false}})";

// DeepSeek's: queries and keys of 8 elements of content and 4 that turn, values of 6.
constexpr const char* kLatent = R"({"model": {"attention": "latent", "query_lora_rank": 12, "kv_lora_rank": 16,
    "nope_head_dim": 8, "rope_head_dim": 4, "value_head_dim": 6, "positions": "rotary", "norm": "rmsnorm",
    "activation": "swiglu", "ffn": 64, "linear_bias": false, "tied_embeddings": false}})";

// With a router, a shared expert behind a gate and biases.
constexpr const char* kExperts = R"({"model": {"activation": "swiglu", "ffn": 48, "positions": "rotary",
    "experts": 4, "experts_per_token": 2, "expert_ffn": 24, "router_score": "sigmoid_of_top", "router_bias": true,
    "expert_bias": true, "shared_expert_ffn": 16, "shared_expert_gate": true}})";

Agreement against_cpu(const std::string& patch, const std::string& model = "{}") {
  nlohmann::json both = nlohmann::json::parse(model);
  both.merge_patch(nlohmann::json::parse(patch));
  const Scenario scenario = runnable(tiny(both.dump()));
  ExecutionOptions options;
  options.steps = 2;
  options.epsilon = 1e-4;
  Program program;
  lower(scenario, program);
  const auto factory = [](std::size_t) -> std::unique_ptr<Backend> { return make_cuda_backend(0, kTf32); };
  return agreement(execute(on_one_rank(scenario), options),
                   assemble(scenario, execute_ranks(scenario, program, options, factory)));
}

TEST(CudaBackendRuns, TrainingStepsComputeWhatTheCpuComputes) {
  for (const char* patch : {
           "{}",
           kLlama,
           kLatent,
           R"({"plan": {"recompute": "full"}})",
           R"({"plan": {"tensor_parallel": 2, "sequence_parallel": true}})",
           R"({"plan": {"data_parallel": 2, "zero_stage": 3}})",
           R"({"plan": {"pipeline_parallel": 2}})",
           R"({"plan": {"context_parallel": 2}})",
           R"({"plan": {"optimizer_offload": true}})",
       }) {
    SCOPED_TRACE(patch);
    const Agreement found = against_cpu(patch);
    EXPECT_TRUE(found.within(1e-4)) << "gradients " << found.gradients << " parameters " << found.parameters;
  }
}

// One backend for all Programs of a run: what it has placed of the first ones stays where it is.
TEST(CudaBackendRuns, WhoseStepsDifferComputeWhatTheCpuComputes) {
  for (
      const char* plan :
      {R"({"moe_gate": "dense_to_sparse", "moe_gate_seed_steps": 1, "moe_gate_hard_step": 3, "moe_gate_decay_steps": 2,
            "moe_gate_threshold": 0.05})",
       R"({"moe_balancer": "given", "moe_slots_per_rank": 3, "moe_expert_placement": [0,1,3, 2,1,0, 2,2,0, 1,3,2]})"}) {
    SCOPED_TRACE(plan);
    nlohmann::json patch = nlohmann::json::parse(R"({"model": {"ffn": 48, "experts": 4, "experts_per_token": 1,
        "expert_ffn": 48, "expert_period": 2, "expert_bias": true}, "plan": {"data_parallel": 2, "expert_parallel": 2}})");
    patch["plan"].merge_patch(nlohmann::json::parse(plan));
    const Scenario scenario = runnable(tiny(patch.dump()));
    ExecutionOptions options;
    options.steps = 4;
    options.epsilon = 1e-4;
    const std::vector<RunPart> parts = parts_of(scenario, options.steps);
    EXPECT_GT(parts.size(), 1u);
    const auto factory = [](std::size_t) -> std::unique_ptr<Backend> { return make_cuda_backend(0, kTf32); };
    const Agreement found = agreement(execute(on_one_rank(scenario), options),
                                      assemble(parts.back().scenario, execute_ranks(parts, options, factory)));
    EXPECT_TRUE(found.within(1e-4)) << "gradients " << found.gradients << " parameters " << found.parameters;
  }
}

TEST(CudaBackendRuns, LatentAttentionIsTheCpusInParallelAndNarrow) {
  for (const auto& [patch, tolerance] :
       {std::pair{R"({"plan": {"tensor_parallel": 2, "sequence_parallel": true}})", 1e-4},
        {R"({"plan": {"context_parallel": 2}})", 1e-4},
        {R"({"plan": {"precision": "bf16"}})", 5e-2}}) {
    SCOPED_TRACE(patch);
    const Agreement found = against_cpu(patch, kLatent);
    EXPECT_LT(std::max(found.gradients, found.parameters), tolerance) << found.worst_gradient;
  }
}

TEST(CudaBackendRuns, ExpertsAreTheCpusInParallelAndNarrow) {
  for (const auto& [patch, tolerance] :
       {std::pair{"{}", 1e-4},
        {R"({"plan": {"data_parallel": 2, "expert_parallel": 2}})", 1e-4},
        {R"({"plan": {"data_parallel": 4, "expert_parallel": 2, "zero_stage": 3}})", 1e-4},
        {R"({"model": {"expert_bias": false}, "plan": {"data_parallel": 4, "expert_parallel": 2,
             "expert_tensor_parallel": 2, "moe_schedule": "fsmoe", "moe_pipeline_degree_forward": 2}})",
         1e-4},
        // Rounding changes choices, and with them everything, but where a token goes to all.
        {R"({"model": {"experts_per_token": 4}, "plan": {"precision": "bf16"}})", 1e-1},
        {R"({"model": {"experts_per_token": 4}, "plan": {"precision": "fp8"}})", 0.5}}) {
    SCOPED_TRACE(patch);
    const Agreement found = against_cpu(patch, kExperts);
    EXPECT_LT(std::max(found.gradients, found.parameters), tolerance) << found.worst_gradient;
  }
}

TEST(CudaBackendRuns, NarrowStorageIsItsRoundingAway) {
  for (const auto& [patch, tolerance] : {std::pair{R"({"plan": {"precision": "bf16"}})", 5e-2},
                                         {R"({"plan": {"precision": "fp16"}})", 5e-2},
                                         {R"({"plan": {"precision": "fp8"}})", 0.5}}) {
    SCOPED_TRACE(patch);
    const Agreement found = against_cpu(patch, kLlama);
    EXPECT_LT(found.loss, tolerance) << found.worst_gradient;
    EXPECT_LT(found.gradients, tolerance) << found.worst_gradient;
    EXPECT_GT(found.gradients, 1e-4) << "the rounding must show";
  }
}

}  // namespace
}  // namespace orrery
