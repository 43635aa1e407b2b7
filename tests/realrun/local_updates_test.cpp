// Workers that train copies of the model and agree every few steps: what the ranks compute, against the numbers that
// follow from the workers' own trainings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "realrun/backend.h"
#include "realrun/executor.h"
#include "realrun/layout.h"
#include "sim/program/check.h"
#include "strategies/lower.h"
#include "strategies/read_scenario.h"
#include "strategies/strategy.h"

namespace orrery {
namespace {

using nlohmann::json;
using Values = std::vector<double>;

// A GPT of two layers in fp32, eight sequences a step; `plan` is laid over its plan.
Scenario tiny(const std::string& plan, const std::string& patch = "{}") {
  json document = json::parse(R"({
    "model": {"layers": 2, "hidden": 32, "heads": 4, "vocab": 256, "max_positions": 16, "dropout": 0},
    "cluster": {"node": "dgx-h100", "nodes": 2},
    "workload": {"sequence_length": 16, "global_batch_size": 8},
    "plan": {"precision": "fp32", "data_parallel": 4, "optimizer": "sgd", "clip_grad": 0}})");
  document.merge_patch(json::parse(patch));
  document["plan"].merge_patch(json::parse(plan));
  return read_scenario(document, {});
}

ExecutionOptions steps(std::int64_t count, double learning_rate = 0.05) {
  ExecutionOptions options;
  options.seed = 7;
  options.steps = count;
  options.learning_rate = learning_rate;
  options.epsilon = 1e-4;  // above the rounding of gradients that are zero
  return options;
}

Values numbers(const std::vector<WholeTensor>& tensors) {
  Values all;
  for (const WholeTensor& t : tensors) all.insert(all.end(), t.values.begin(), t.values.end());
  return all;
}
Values parameters(const Scenario& scenario, const ExecutionOptions& options) {
  Program program;
  lower(scenario, program);
  for (const Violation& v : check(program)) ADD_FAILURE() << v.text;
  const Execution run = execute(scenario, options);
  return numbers(run.parameters);
}
// The copy of worker `worker`, of those with one rank each.
Values copy_of(const Scenario& scenario, std::size_t worker, const ExecutionOptions& options) {
  const std::vector<RunPart> parts = parts_of(runnable(scenario), options.steps);
  std::vector<RankResult> ranks = execute_ranks(parts, options, [](std::size_t) { return make_cpu_backend(); });
  std::vector<RankResult> one{std::move(ranks.at(worker))};
  for (HeldPart& part : one.front().parts) part.gradient.assign(part.value.size(), 0);
  return numbers(assemble(parts.back().scenario, one).parameters);
}
Values combine(double a, const Values& x, double b, const Values& y) {
  Values z(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) z[i] = a * x[i] + b * y[i];
  return z;
}
// |a - b| relative to how far training has come, |b - begin|.
double distance(const Values& a, const Values& b, const Values& begin) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += (b[i] - begin[i]) * (b[i] - begin[i]);
  }
  EXPECT_GT(norm, 0);
  return std::sqrt(difference / norm);
}
constexpr double kRounding = 2e-4;  // of fp32 parameters of about 1, relative to steps of a hundredth of that

Values begin_of(const Scenario& scenario) { return parameters(scenario, steps(1, 0)); }

// Before they agree, workers train alone: the first one computes what one rank computes on its part of the batch.
TEST(Workers, WorkersTrainAlone) {
  using optimizer::Rule;
  for (const Rule rule : {Rule::sgd, Rule::adamw, Rule::adafactor}) {
    const std::string_view optimizer = optimizer::kRuleNames[static_cast<std::size_t>(rule)];
    const json of{{"optimizer", optimizer}, {"clip_grad", 0.5}};
    Scenario own = tiny(R"({"data_parallel": 1})", R"({"workload": {"global_batch_size": 2}})");
    Scenario scenario = tiny(R"({"local_steps": 10, "local_workers": 4})");
    for (Scenario* s : {&own, &scenario}) {
      s->plan.optimizer.rule = rule;
      s->plan.optimizer.clip_grad = 0.5;
    }
    const ExecutionOptions options = steps(3, 0.01);
    EXPECT_LT(distance(copy_of(scenario, 0, options), parameters(own, options), begin_of(own)), kRounding) << optimizer;
    const Values first = copy_of(scenario, 0, options), second = copy_of(scenario, 1, options);
    EXPECT_GT(distance(second, first, begin_of(own)), 0.1);  // on other sequences
  }
}

// Local SGD: the mean of the copies. After each single step of SGD it is what the mean gradient gives.
TEST(Workers, AgreeOnTheMean) {
  const Values every_step = parameters(tiny(R"({"local_steps": 1, "local_workers": 4})"), steps(3)),
               summed = parameters(tiny("{}"), steps(3)), begin = begin_of(tiny("{}"));
  EXPECT_LT(distance(every_step, summed, begin), kRounding);

  const Scenario never = tiny(R"({"local_steps": 10, "local_workers": 4})");
  Values mean(begin.size());
  for (std::size_t worker = 0; worker < 4; ++worker) mean = combine(1, mean, 0.25, copy_of(never, worker, steps(3)));
  EXPECT_LT(distance(parameters(tiny(R"({"local_steps": 3, "local_workers": 4})"), steps(3)), mean, begin), kRounding);
}

// Local SGD agrees on x1 and x2; the displacements are d1 = x0 - x1 and d2 = x1 - x2. What outer optimizers make of
// these is known wherever they begin the second iteration where local SGD does.
class OuterSteps : public testing::Test {
 protected:
  const std::string workers = R"("local_steps": 2, "local_workers": 4)";
  const Values x0 = begin_of(tiny("{}"));
  const Values x1 = parameters(tiny("{" + workers + "}"), steps(2));
  const Values x2 = parameters(tiny("{" + workers + "}"), steps(4));
  const Values d1 = combine(1, x0, -1, x1);
  Values with(const std::string& fields, std::int64_t count) const {
    return parameters(tiny("{" + workers + ", " + fields + "}"), steps(count));
  }
};

TEST_F(OuterSteps, OfSlowMo) {
  EXPECT_LT(distance(with(R"("outer_optimizer": "momentum", "outer_momentum": 0)", 4), x2, x0), kRounding);
  const Values slowmo = with(R"("outer_optimizer": "momentum", "outer_momentum": 0.5)", 4);
  EXPECT_LT(distance(slowmo, combine(1, x2, -0.5, d1), x0), kRounding);
  const Values half = with(R"("outer_optimizer": "momentum", "outer_learning_rate": 0.5, "outer_gap_penalty": 2)", 2);
  EXPECT_LT(distance(half, combine(1, x0, -0.25, d1), x0), kRounding);
}

TEST_F(OuterSteps, OfDiLoCo) {
  const Values first = with(R"("outer_optimizer": "nesterov", "outer_momentum": 0.6, "outer_learning_rate": 0.7)", 2);
  EXPECT_LT(distance(first, combine(1, x0, -0.7 * 1.6, d1), x0), kRounding);
  // A rate of 1 / (1 + momentum) makes the first step that of local SGD.
  const Values second = with(R"("outer_optimizer": "nesterov", "outer_momentum": 0.25, "outer_learning_rate": 0.8)", 4);
  EXPECT_LT(distance(second, combine(1, x2, -0.25 * 0.25 / 1.25, d1), x0), kRounding);
}

// The mean of one iteration is applied after the next: first nothing is, and the anchor stays.
TEST_F(OuterSteps, OfCo2) {
  const std::string late = R"("outer_optimizer": "momentum", "outer_delay": 1, "outer_momentum": 0.5)";
  EXPECT_EQ(with(late, 2), x0);
  EXPECT_LT(distance(with(late, 4), x1, x0), kRounding);
  // SGD without momentum begins anew at x0, and comes as far: the second displacement is the first.
  EXPECT_LT(distance(with(late, 6), combine(1, x1, -1.5, d1), x0), kRounding);
  const Values clipped = with(late + R"(, "outer_clip": 1e-3)", 4);
  double most = 0;
  Values expected = x0;
  for (std::size_t i = 0; i < x0.size(); ++i) {
    expected[i] -= std::clamp(d1[i], -1e-3, 1e-3);
    most = std::max(most, std::abs(d1[i]));
  }
  EXPECT_GT(most, 1e-3);
  EXPECT_LT(distance(clipped, expected, x0), kRounding);
}

// CO2's penalty by norms: the third outer update, the first with a momentum, divides its mean displacement by one plus
// how many first local steps the last outer step was long. That step was d1; the first local steps begin at x1.
TEST_F(OuterSteps, OfCo2WithAPenaltyByNorms) {
  const std::string late = R"("outer_optimizer": "momentum", "outer_delay": 1, "outer_momentum": 0.5, )"
                           R"("outer_learning_rate": 0.8, "outer_gap_norms": true)";
  EXPECT_EQ(with(late, 2), x0);
  const Values anchor = combine(1, x0, -0.8, d1);
  EXPECT_LT(distance(with(late, 4), anchor, x0), kRounding);
  const auto square_of = [](const Values& v) {
    double sum = 0;
    for (const double x : v) sum += x * x;
    return sum;
  };
  double first = 0;  // mean over the workers
  for (std::size_t w = 0; w < 4; ++w)
    first += square_of(combine(1, anchor, -1, copy_of(tiny("{" + workers + ", " + late + "}"), w, steps(5)))) / 4;
  const double penalty = 1 + 0.8 * std::sqrt(square_of(d1) / first);
  EXPECT_GT(penalty, 1.5);
  EXPECT_LT(distance(with(late, 6), combine(1, anchor, -0.8 * (0.5 + 1 / penalty), d1), x0), kRounding);
}

// Fragments that are agreed on in turn: after a whole iteration each has been averaged once, at its own time.
TEST_F(OuterSteps, OfFragmentsInTurn) {
  const std::string halves = R"("outer_fragments": 2, "outer_optimizer": "nesterov", "outer_momentum": 0, )";
  const Values first = with(halves + R"("outer_learning_rate": 1)", 1),
               alone = copy_of(tiny(R"({"local_steps": 10, "local_workers": 4})"), 0, steps(1));
  Values mean(x0.size());
  for (std::size_t w = 0; w < 4; ++w)
    mean = combine(1, mean, 0.25, copy_of(tiny(R"({"local_steps": 10, "local_workers": 4})"), w, steps(1)));
  // After one of two steps every number is the mean or the worker's own, and of either there are about as many.
  std::size_t averaged = 0, own = 0, trained = 0;
  for (std::size_t i = 0; i < x0.size(); ++i) {
    if (std::abs(alone[i] - mean[i]) < 1e-5) continue;
    ++trained;
    if (std::abs(first[i] - mean[i]) < 1e-6) ++averaged;
    if (std::abs(first[i] - alone[i]) < 1e-6) ++own;
  }
  EXPECT_EQ(averaged + own, trained);
  EXPECT_NEAR(static_cast<double>(averaged) / static_cast<double>(trained), 0.5, 0.25);
}

// A worker is pulled a share of the way to the mean of the iteration before; first to where all began.
TEST_F(OuterSteps, OfOverlapLocalSgd) {
  const std::string pull = "{" + workers + R"(, "outer_optimizer": "pull", "outer_delay": 1, "outer_learning_rate": )";
  const Scenario never = tiny(R"({"local_steps": 10, "local_workers": 4})");
  for (const std::size_t worker : {0u, 3u}) {
    const Values alone = copy_of(never, worker, steps(2));
    EXPECT_LT(distance(copy_of(tiny(pull + "0.25}"), worker, steps(2)), combine(0.75, alone, 0.25, x0), x0), kRounding);
  }
  // All the way, to a mean that has not moved.
  const Values pulled = parameters(tiny(pull + "1}"), steps(6));
  for (std::size_t i = 0; i < x0.size(); ++i) ASSERT_NEAR(pulled[i], x0[i], 1e-6);
  // Then to the mean of what has been sent: from there SGD goes on as it did, were it not for what the copies lack.
  Values sent(x0.size());
  for (std::size_t w = 0; w < 4; ++w) sent = combine(1, sent, 0.25, copy_of(tiny(pull + "0.25}"), w, steps(2)));
  const Values before = copy_of(tiny(pull + "1e-9}"), 1, steps(4)), after = copy_of(never, 1, steps(4));
  EXPECT_LT(distance(before, after, x0), kRounding);
  EXPECT_LT(distance(sent, combine(1, x0, -0.75, d1), x0), kRounding);
}

// Displacements as INT8 codes: each is off by at most half a 127th of its group's largest, on both ways.
TEST_F(OuterSteps, OfCodes) {
  const std::string nesterov = R"("outer_optimizer": "nesterov", "outer_momentum": 0.6, "outer_learning_rate": 0.7)";
  for (const char* layout :
       {R"("data_parallel": 4)", R"("data_parallel": 8, "zero_stage": 1)", R"("data_parallel": 8, "zero_stage": 3)"}) {
    const std::string divided = nesterov + ", " + layout;
    const Values plain = with(divided, 2);
    const double eight = distance(with(divided + R"(, "outer_dtype": "int8")", 2), plain, x0),
                 fp8 = distance(with(divided + R"(, "outer_dtype": "fp8")", 2), plain, x0),
                 four = distance(with(divided + R"(, "outer_dtype": "int4")", 2), plain, x0);
    EXPECT_GT(eight, 1e-4) << layout;
    EXPECT_LT(eight, 0.04) << layout;
    EXPECT_GT(fp8, 1e-4) << layout;
    EXPECT_LT(fp8, 0.04) << layout;  // of each number, not of the largest of 4096
    EXPECT_GT(four, 5 * eight) << layout;
  }
}

// However a worker divides its copy, the numbers are those of undivided workers.
TEST(Workers, AreTheSameInEveryLayout) {
  const std::string adam = R"("optimizer": "adamw", "clip_grad": 1, "local_steps": 2, "local_workers": 2)";
  for (const std::string outer :
       {R"("outer_optimizer": "average")", R"("outer_optimizer": "nesterov", "outer_learning_rate": 0.7)",
        R"("outer_optimizer": "momentum", "outer_delay": 1, "outer_momentum": 0.5)",
        R"("outer_optimizer": "pull", "outer_delay": 1, "outer_learning_rate": 0.6)"}) {
    const auto run = [&](const std::string& layout, const std::string& patch = "{}") {
      return parameters(tiny("{" + adam + ", " + outer + ", " + layout + "}", patch), steps(5, 0.01));
    };
    const Values begin = begin_of(tiny("{}")), expected = run(R"("data_parallel": 2)");
    for (const char* layout :
         {R"("data_parallel": 4)", R"("data_parallel": 4, "zero_stage": 1)",
          R"("data_parallel": 4, "zero_stage": 1, "overlap_param_gather": false)",
          R"("data_parallel": 8, "zero_stage": 2)", R"("data_parallel": 4, "zero_stage": 3)",
          R"("data_parallel": 8, "zero_stage": 3, "zero_shard_degree": 2)",
          R"("data_parallel": 2, "tensor_parallel": 2, "sequence_parallel": true)",
          R"("data_parallel": 4, "pipeline_parallel": 2, "zero_stage": 1)",
          R"("data_parallel": 4, "context_parallel": 2, "zero_stage": 1)",
          R"("data_parallel": 4, "zero_stage": 3, "mesh_order": "dp-tp-cp-pp", "tensor_parallel": 2)"})
      EXPECT_LT(distance(run(layout), expected, begin), kRounding) << outer << " " << layout;
  }
}

// Norms count each number once: of parts, of what tensor-parallel ranks hold in common, of tied parameters in a set of
// their own.
TEST(Workers, TakeTheSameNormsInEveryLayout) {
  const auto run = [](const std::string& layout) {
    return parameters(tiny(R"({"optimizer": "adamw", "clip_grad": 1, "local_steps": 2, "local_workers": 2,
                               "outer_optimizer": "momentum", "outer_delay": 1, "outer_momentum": 0.5,
                               "outer_gap_norms": true, )" +
                           layout + "}"),
                      steps(6, 0.01));
  };
  const Values begin = begin_of(tiny("{}")), expected = run(R"("data_parallel": 2)");
  for (const char* layout :
       {R"("data_parallel": 4, "tensor_parallel": 2)", R"("data_parallel": 4, "pipeline_parallel": 2, "zero_stage": 1)",
        R"("data_parallel": 8, "zero_stage": 3, "zero_shard_degree": 2)"})
    EXPECT_LT(distance(run(layout), expected, begin), kRounding) << layout;
}

// If the first rank of each node takes the mean for all, the numbers are the same.
TEST(Workers, AreTheSameIfFirstRanksExchange) {
  const std::string adam = R"("optimizer": "adamw", "clip_grad": 1, "local_steps": 2)";
  for (const std::string outer :
       {R"("outer_optimizer": "average")", R"("outer_optimizer": "momentum", "outer_delay": 1, "outer_momentum": 0.5)",
        R"("outer_optimizer": "nesterov", "outer_learning_rate": 0.7)",
        R"("outer_optimizer": "pull", "outer_delay": 1, "outer_learning_rate": 0.6)"}) {
    const auto run = [&](const std::string& layout, const std::string& patch = "{}") {
      return parameters(tiny("{" + adam + ", " + outer + ", " + layout + "}", patch), steps(5, 0.01));
    };
    const Values begin = begin_of(tiny("{}")), expected = run(R"("data_parallel": 2, "local_workers": 2)");
    for (const char* layout : {R"("data_parallel": 8)", R"("data_parallel": 4, "tensor_parallel": 2)",
                               R"("data_parallel": 4, "context_parallel": 2)"})
      EXPECT_LT(distance(run(std::string(layout) + R"(, "outer_exchange": "first_ranks")",
                             R"({"cluster": {"node": "v100-sxm2-4"}})"),
                         expected, begin),
                kRounding)
          << outer << " " << layout;
  }
}

// Parameters of 16 bits have fp32 copies, which workers agree on. Without rounding the numbers are those of fp32.
TEST(Workers, AgreeOnFp32Copies) {
  for (const char* outer : {R"("outer_optimizer": "average")", R"("outer_optimizer": "momentum", "outer_delay": 1)"})
    for (const char* layout : {R"("zero_stage": 0)", R"("zero_stage": 1)", R"("zero_stage": 3)"}) {
      const auto run = [&](const char* precision, const ExecutionOptions& options) {
        return parameters(
            tiny(std::string(R"({"optimizer": "adamw", "local_steps": 2, "local_workers": 2, "precision": ")") +
                 precision + R"(", )" + outer + ", " + layout + "}"),
            options);
      };
      const Values begin = run("fp32", steps(1, 0)), narrow = run("bf16", steps(5, 0.01));
      EXPECT_LT(distance(narrow, run("fp32", steps(5, 0.01)), begin), kRounding) << outer << layout;
    }
}

TEST(Workers, ExpertsAreOfAWorker) {
  const std::string experts =
      R"({"model": {"activation": "swiglu", "ffn": 48, "positions": "rotary", "norm": "rmsnorm", "tied_embeddings": false,
          "linear_bias": false, "experts": 4, "experts_per_token": 2, "expert_ffn": 24}})";
  const std::string plan =
      R"("optimizer": "adamw", "local_steps": 2, "local_workers": 2, "outer_optimizer": "nesterov")";
  const Values begin = parameters(tiny("{" + plan + R"(, "data_parallel": 2})", experts), steps(1, 0));
  const Values expected = parameters(tiny("{" + plan + R"(, "data_parallel": 2})", experts), steps(4, 0.01));
  for (const char* layout :
       {R"("data_parallel": 4, "expert_parallel": 2)", R"("data_parallel": 8, "expert_parallel": 2, "zero_stage": 1)"})
    EXPECT_LT(distance(parameters(tiny("{" + plan + ", " + layout + "}", experts), steps(4, 0.01)), expected, begin),
              kRounding)
        << layout;
}

// 1-bit Adam behind its warm-up. With a scale for each number signs lose nothing: what remains is SGD on the mean
// gradient with Adam's momentum, as no second moment changes (the executor's preconditioner is one).
TEST(OneBitAdam, WithoutLossIsMomentum) {
  const auto compressed = [](const std::string& plan) {
    return tiny(R"({"optimizer": "adamw", "clip_grad": 0, "gradient_compression": "onebit_adam", )" + plan + "}");
  };
  ExecutionOptions options = steps(4, 0.05), momentum = steps(4, 0.005);
  options.weight_decay = momentum.weight_decay = 0;
  momentum.momentum = 0.9;
  const Values begin = begin_of(tiny("{}")), expected = parameters(tiny(R"({"optimizer": "sgd_momentum"})"), momentum);
  for (const char* layout : {R"("compression_group_size": 1)", R"("compression_group_size": 1, "local_workers": 2)",
                             R"("compression_group_size": 1, "tensor_parallel": 2, "sequence_parallel": true)",
                             R"("compression_group_size": 1, "pipeline_parallel": 2)"})
    EXPECT_LT(distance(parameters(compressed(layout), options), expected, begin), kRounding) << layout;
}

// Each worker clips its own gradients, and takes off the scale of the loss, in whichever way its framework does.
TEST(OneBitAdam, WorkersClipTheirOwnGradients) {
  for (const std::string framework : {R"("framework": "orrery")", R"("framework": "megatron-core")"})
    for (const std::string precision : {R"("precision": "fp32")", R"("precision": "fp16")"}) {
      const std::string plan = R"({"clip_grad": 0.05, )" + framework + ", " + precision;
      const Scenario never = tiny(plan + R"(, "local_steps": 10, "local_workers": 4})");
      const Values begin = begin_of(never);
      Values mean(begin.size());
      for (std::size_t worker = 0; worker < 4; ++worker)
        mean = combine(1, mean, 0.25, copy_of(never, worker, steps(1)));
      const std::string onebit = R"(, "optimizer": "adamw", "gradient_compression": "onebit_adam")";
      ExecutionOptions options = steps(1, 0.5);  // a tenth of the gradient enters the momentum
      options.weight_decay = 0;
      const Values clipped = parameters(tiny(plan + onebit + R"(, "compression_group_size": 1})"), options);
      EXPECT_LT(distance(clipped, mean, begin), 5 * kRounding) << framework << precision;
    }
}

// Signs of many numbers with one scale lose most of one step. Error feedback makes up for it in the steps that follow.
TEST(OneBitAdam, ErrorsAreMadeUpFor) {
  const Scenario signs = tiny(R"({"optimizer": "adamw", "clip_grad": 0, "gradient_compression": "onebit_adam"})");
  const Values begin = begin_of(tiny("{}"));
  const auto apart = [&](std::int64_t count) {
    ExecutionOptions options = steps(count, 1e-3), momentum = steps(count, 1e-4);
    options.weight_decay = momentum.weight_decay = 0;
    momentum.momentum = 0.9;
    return distance(parameters(signs, options), parameters(tiny(R"({"optimizer": "sgd_momentum"})"), momentum), begin);
  };
  EXPECT_GT(apart(5), 0.5);
  EXPECT_LT(apart(40), 0.5);
}

// 0/1 Adam behind its frozen variance, which is one here.
class ZeroOneAdamSteps : public testing::Test {
 protected:
  static constexpr const char* kExact = R"("compression_group_size": 1, "local_steps": )";  // signs lose nothing
  static Scenario agreeing(const std::string& plan) {
    return tiny(R"({"optimizer": "adamw", "clip_grad": 0, "gradient_compression": "zero_one_adam", )" + plan + "}");
  }
  static ExecutionOptions undecayed(std::int64_t count, double learning_rate) {
    ExecutionOptions options = steps(count, learning_rate);
    options.weight_decay = 0;
    options.momentum = 0.9;
    return options;
  }
  const Values begin = begin_of(tiny("{}"));
};

// If workers agree after every step, what remains is SGD on the mean gradient with Adam's momentum.
TEST_F(ZeroOneAdamSteps, AfterEachStepIsMomentumOnTheSum) {
  const Values expected = parameters(tiny(R"({"optimizer": "sgd_momentum"})"), undecayed(4, 0.005));
  for (const char* layout :
       {"", R"(, "local_workers": 2)", R"(, "tensor_parallel": 2, "sequence_parallel": true)",
        R"(, "pipeline_parallel": 2)", R"(, "framework": "deepspeed")", R"(, "precision": "bf16")"})
    EXPECT_LT(distance(parameters(agreeing(kExact + std::string("1") + layout), undecayed(4, 0.05)), expected, begin),
              kRounding)
        << layout;
}

// Workers take steps by themselves, and end where these have led on average. The weights decay in these steps only.
TEST_F(ZeroOneAdamSteps, AgreesOnTheMeanOfWhereWorkersAre) {
  const Scenario never = agreeing(kExact + std::string("10")), momentum = tiny(R"({"optimizer": "sgd_momentum",
      "local_steps": 10, "local_workers": 4})");
  for (const std::size_t worker : {0u, 3u})
    EXPECT_LT(
        distance(copy_of(never, worker, undecayed(3, 0.05)), copy_of(momentum, worker, undecayed(3, 0.005)), begin),
        kRounding);
  ExecutionOptions options = undecayed(3, 0.05);
  options.weight_decay = 0.01;
  Values mean(begin.size());
  for (std::size_t worker = 0; worker < 4; ++worker) mean = combine(1, mean, 0.25, copy_of(never, worker, options));
  EXPECT_LT(distance(parameters(agreeing(kExact + std::string("3")), options), mean, begin), kRounding);
}

// A serial program of all workers, for steps so small that each worker's gradients stay as they are: after each
// agreement all go on with the mean of what has moved them.
TEST_F(ZeroOneAdamSteps, IsTheSerialAlgorithm) {
  constexpr std::size_t kWorkers = 4, kSteps = 3;
  constexpr double kRate = 1e-3, kDecay = 1e-3;
  const Scenario never = tiny(R"({"local_steps": 10, "local_workers": 4})");
  std::vector<Values> gradients;
  for (std::size_t w = 0; w < kWorkers; ++w)
    gradients.push_back(combine(1 / kRate, begin, -1 / kRate, copy_of(never, w, steps(1, kRate))));
  Values anchor = begin, momentum(begin.size());
  for (int iteration = 0; iteration < 3; ++iteration) {
    Values sum(begin.size());
    for (std::size_t w = 0; w < kWorkers; ++w) {
      Values x = anchor, m = momentum;
      for (std::size_t step = 0; step < kSteps; ++step) {
        m = combine(0.9, m, 0.1, gradients[w]);
        x = combine(1 - kRate * kDecay, x, -kRate, m);
      }
      sum = combine(1, sum, 1.0 / kWorkers, combine(1, anchor, -1, x));
    }
    anchor = combine(1, anchor, -1, sum);
    momentum = combine(1 / (kSteps * kRate), sum, 0, sum);
  }
  ExecutionOptions options = undecayed(9, kRate);
  options.weight_decay = kDecay;
  EXPECT_LT(distance(parameters(agreeing(kExact + std::string("3")), options), anchor, begin), 0.01);
}

// With one scale for many numbers, errors make up for what signs lose, as 1-bit Adam's do.
TEST_F(ZeroOneAdamSteps, ErrorsAreMadeUpFor) {
  const auto apart = [&](std::int64_t count) {
    return distance(parameters(agreeing(R"("local_steps": 2)"), undecayed(count, 1e-3)),
                    parameters(agreeing(kExact + std::string("2")), undecayed(count, 1e-3)), begin);
  };
  EXPECT_GT(apart(6), 0.5);
  EXPECT_LT(apart(80), 0.5);
}

// Whatever codes lose, ranks lose the same of what they hold in common: weights of norms and biases under tensor
// parallelism, tied embeddings on two stages.
TEST(CompressedGradients, WhatRanksHoldInCommonStaysEqual) {
  // The head has other matrices, too: those of the pooler.
  const std::string few =
      R"({"model": {"kind": "encoder", "token_types": 2, "pooler": true}, "workload": {"sequence_length": 8}})";
  for (const char* method : {R"("onebit_adam")", R"("zero_one_adam", "local_steps": 2)", R"("powersgd")",
                             R"("topk", "compression_group_size": 40, "compression_kept": 3)"})
    for (const char* layout : {R"("tensor_parallel": 2, "sequence_parallel": true)", R"("pipeline_parallel": 2)",
                               R"("tensor_parallel": 2, "pipeline_parallel": 2)"}) {
      const Scenario scenario =
          tiny(std::string(R"({"optimizer": "adamw", "gradient_compression": )") + method + ", " + layout + "}", few);
      EXPECT_LT(execute(scenario, steps(4, 0.01)).parameter_disagreement, 1e-5) << method << layout;
    }
}

// Top-k. If workers send all that they have, training is that on summed gradients.
TEST(TopK, LosesNothingIfAllIsSent) {
  const ExecutionOptions options = steps(3, 0.01);
  for (const char* optimizer : {R"("optimizer": "sgd_momentum", "clip_grad": 0.1)", R"("optimizer": "adamw")"}) {
    const std::string all =
        R"({"gradient_compression": "topk", "compression_group_size": 50, "compression_kept": 50, )" +
        std::string(optimizer);
    const Values begin = begin_of(tiny("{}")), expected = parameters(tiny(std::string("{") + optimizer + "}"), options);
    for (const char* layout : {"", R"(, "local_workers": 2)", R"(, "tensor_parallel": 2, "sequence_parallel": true)",
                               R"(, "pipeline_parallel": 2)", R"(, "framework": "deepspeed")"})
      EXPECT_LT(distance(parameters(tiny(all + layout + "}"), options), expected, begin), 10 * kRounding)
          << optimizer << layout;
  }
}

// Steps so small that gradients stay as they are: a serial program that knows each worker's gradients sends the same.
TEST(TopK, IsTheSerialAlgorithm) {
  constexpr std::size_t kWorkers = 4, kGroup = 40, kKept = 3;
  constexpr double kRate = 5e-4;
  const Scenario scenario =
      tiny(R"({"gradient_compression": "topk", "compression_group_size": 40, "compression_kept": 3})");
  const Execution begin = execute(scenario, steps(1, 0));
  const Scenario never = tiny(R"({"local_steps": 10, "local_workers": 4})");
  std::vector<Values> gradients, errors;
  for (std::size_t w = 0; w < kWorkers; ++w) {
    gradients.push_back(combine(20, numbers(begin.parameters), -20, copy_of(never, w, steps(1, 0.05))));
    errors.emplace_back(gradients.back().size());
  }
  Values expected(gradients.front().size());
  for (int step = 0; step < 4; ++step)
    for (std::size_t w = 0; w < kWorkers; ++w) {
      Values& own = errors[w] = combine(1, errors[w], 1, gradients[w]);
      std::size_t at = 0;  // of the part of a buffer
      for (std::size_t t = 0; t < begin.parameters.size();) {
        const auto piece_of = [&](std::size_t i) {
          const std::string& name = begin.parameters[i].name;
          return name == "embedding embedding" ? name : name.substr(0, name.rfind(' '));  // a tied one is by itself
        };
        std::size_t size = 0;
        const std::string piece = piece_of(t);
        for (; t < begin.parameters.size() && piece_of(t) == piece; ++t) size += begin.parameters[t].values.size();
        const std::size_t groups = (size + kGroup - 1) / kGroup, group = (size + groups - 1) / groups;
        for (std::size_t g = 0; g * group < size; ++g) {
          std::vector<std::size_t> order;
          for (std::size_t i = g * group; i < std::min(size, (g + 1) * group); ++i) order.push_back(at + i);
          std::ranges::stable_sort(order, std::greater(), [&](std::size_t i) { return std::abs(own[i]); });
          order.resize(std::min(order.size(), kKept));
          for (const std::size_t i : order) expected[i] += std::exchange(own[i], 0) / kWorkers;
        }
        at += size;
      }
    }
  const Values moved = combine(1 / kRate, numbers(begin.parameters), -1 / kRate, parameters(scenario, steps(4, kRate)));
  EXPECT_LT(distance(moved, expected, Values(expected.size())), 0.05);  // near ties fall either way
}

// PowerSGD. A product of rank 8 loses nothing of the gradients of eight tokens: training is that on their sum, in
// whatever layout.
TEST(PowerSgd, LosesNothingOfGradientsOfItsRank) {
  const std::string few =
      R"({"model": {"hidden": 64, "tied_embeddings": false}, "workload": {"sequence_length": 2, "global_batch_size": 4}})";
  const std::string rank8 = R"({"gradient_compression": "powersgd", "compression_rank": 8)";
  const auto in = [&](const std::string& plan) { return tiny(plan, few); };
  for (const char* optimizer : {R"("optimizer": "sgd_momentum", "clip_grad": 0.1)", R"("optimizer": "adamw")"}) {
    const ExecutionOptions options = steps(3, 0.01);
    const Values begin = begin_of(in("{}")), expected = parameters(in(std::string("{") + optimizer + "}"), options);
    for (const char* layout : {"", R"(, "local_workers": 2)", R"(, "tensor_parallel": 2, "sequence_parallel": true)",
                               R"(, "pipeline_parallel": 2)", R"(, "framework": "deepspeed")"})
      EXPECT_LT(distance(parameters(in(rank8 + ", " + optimizer + layout + "}"), options), expected, begin),
                10 * kRounding)
          << optimizer << layout;
  }
}

// PowerSGD of one matrix, by its definition, on the mean gradient of all workers: errors and means are linear in it.
struct SerialPowerSgd {
  std::size_t rows, columns, rank;
  Values q, error;

  Values agree(const Values& gradient) {
    const Values m = combine(1, gradient, 1, error);
    Values p(rows * rank), product(rows * columns);
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t c = 0; c < columns; ++c)
        for (std::size_t k = 0; k < rank; ++k) p[r * rank + k] += m[r * columns + c] * q[c * rank + k];
    for (std::size_t k = 0; k < rank; ++k) {
      for (std::size_t j = 0; j < k; ++j) {
        double along = 0;
        for (std::size_t r = 0; r < rows; ++r) along += p[r * rank + k] * p[r * rank + j];
        for (std::size_t r = 0; r < rows; ++r) p[r * rank + k] -= along * p[r * rank + j];
      }
      double squares = 0;
      for (std::size_t r = 0; r < rows; ++r) squares += p[r * rank + k] * p[r * rank + k];
      for (std::size_t r = 0; r < rows; ++r) p[r * rank + k] /= std::sqrt(squares);
    }
    std::ranges::fill(q, 0.0);
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t c = 0; c < columns; ++c)
        for (std::size_t k = 0; k < rank; ++k) q[c * rank + k] += m[r * columns + c] * p[r * rank + k];
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t c = 0; c < columns; ++c)
        for (std::size_t k = 0; k < rank; ++k) product[r * columns + c] += p[r * rank + k] * q[c * rank + k];
    error = combine(1, m, -1, product);
    return product;
  }
};

// Steps so small that gradients stay as they are, with rank 2: what matrices lose in a step comes back in later ones.
TEST(PowerSgd, IsTheSerialAlgorithm) {
  constexpr std::size_t kRank = 2, kHidden = 32;
  constexpr double kRate = 5e-4;
  const Scenario scenario = tiny(R"({"gradient_compression": "powersgd", "compression_rank": 2})");
  const Execution begin = execute(scenario, steps(1, 0)), summed = execute(tiny("{}"), steps(1, 0.05));
  for (const std::int64_t count : {1, 5}) {
    const Execution run = execute(scenario, steps(count, kRate));
    std::size_t direction = 0;
    std::string piece;
    for (std::size_t t = 0; t < run.parameters.size(); ++t) {
      const WholeTensor &from = begin.parameters[t], &to = run.parameters[t], &one = summed.parameters[t];
      Values gradient, moved;
      for (std::size_t i = 0; i < from.values.size(); ++i) {
        gradient.push_back((from.values[i] - one.values[i]) / 0.05);
        moved.push_back((from.values[i] - to.values[i]) / kRate);
      }
      if (const std::string of = from.name.substr(0, from.name.rfind(' ')); of != piece) piece = of, direction = 0;
      Values expected(gradient.size());
      if (gradient.size() < kHidden * kHidden / 2) {  // a vector, sent as it is
        for (double& x : expected) x = static_cast<double>(count);
        std::ranges::transform(expected, gradient, expected.begin(), std::multiplies());
      } else {
        std::size_t rows = from.sizes.size() == 2 ? static_cast<std::size_t>(from.sizes[0]) : 1;
        for (std::size_t d = 0; from.sizes.size() > 2 && rows < kHidden; ++d)
          rows *= static_cast<std::size_t>(from.sizes[d]);
        SerialPowerSgd serial{rows, gradient.size() / rows, kRank, {}, Values(gradient.size())};
        for (std::size_t i = 0; i < serial.columns * kRank; ++i)
          serial.q.push_back(realrun::counter_uniform(7, (std::uint64_t{1} << 40) + 7, direction++));
        for (std::int64_t step = 0; step < count; ++step) expected = combine(1, expected, 1, serial.agree(gradient));
      }
      EXPECT_LT(distance(moved, expected, Values(expected.size())), 0.01) << count << " steps: " << from.name;
    }
  }
}

// Muon's iteration on one matrix, by its definition (Jordan et al. 2024).
Values orthogonalised(Values x, std::size_t rows, std::size_t columns) {
  const auto product = [](const Values& a, const Values& b, std::size_t m, std::size_t k, std::size_t n) {
    Values c(m * n);
    for (std::size_t i = 0; i < m; ++i)
      for (std::size_t j = 0; j < n; ++j)
        for (std::size_t l = 0; l < k; ++l) c[i * n + j] += a[i * k + l] * b[l * n + j];
    return c;
  };
  const auto transposed = [](const Values& a, std::size_t m, std::size_t n) {
    Values t(a.size());
    for (std::size_t i = 0; i < m; ++i)
      for (std::size_t j = 0; j < n; ++j) t[j * m + i] = a[i * n + j];
    return t;
  };
  if (rows > columns) return transposed(orthogonalised(transposed(x, rows, columns), columns, rows), columns, rows);
  double squares = 0;
  for (const double value : x) squares += value * value;
  for (double& value : x) value /= std::sqrt(squares);
  for (int i = 0; i < 5; ++i) {
    const Values a = product(x, transposed(x, rows, columns), rows, columns, rows);
    const Values b = combine(-4.7750, a, 2.0315, product(a, a, rows, rows, rows));
    x = combine(3.4445, x, 1, product(b, x, rows, rows, columns));
  }
  return x;
}

// Three steps that change the gradients: a run of n steps ends with those of its last one.
TEST(Muon, IsTheSerialAlgorithm) {
  constexpr double kRate = 0.05, kMomentum = 0.95;
  constexpr std::size_t kHidden = 32;
  for (const char* layout : {"", R"(, "zero_stage": 1)"}) {
    const Scenario scenario = tiny(std::string(R"({"optimizer": "muon", "clip_grad": 0)") + layout + "}");
    Execution before = execute(scenario, steps(1, 0));
    std::vector<Values> momenta(before.parameters.size());
    for (const std::int64_t step : {1, 2, 3}) {
      const Execution run = execute(scenario, steps(step, kRate));
      std::size_t matrices = 0;
      for (std::size_t t = 0; t < run.parameters.size(); ++t) {
        const WholeTensor &from = before.parameters[t], &to = run.parameters[t];
        if (!from.name.starts_with("layer") || from.values.size() < kHidden * kHidden) continue;  // no matrix
        const Values gradient(run.gradients[t].values.begin(), run.gradients[t].values.end());
        Values &momentum = momenta[t], moved;
        momentum.resize(gradient.size());
        momentum = combine(kMomentum, momentum, 1, gradient);
        for (std::size_t i = 0; i < gradient.size(); ++i) moved.push_back((from.values[i] - to.values[i]) / kRate);
        // Every matrix of a layer has the hidden width as its first or as its last dimensions.
        auto rows = static_cast<std::size_t>(from.sizes[0]);
        for (std::size_t d = 1; rows != kHidden && d + 1 < from.sizes.size(); ++d)
          rows *= static_cast<std::size_t>(from.sizes[d]);
        const std::size_t columns = gradient.size() / rows;
        Values expected = orthogonalised(combine(1, gradient, kMomentum, momentum), rows, columns);
        for (double& value : expected) value *= 0.2 * std::sqrt(static_cast<double>(std::max(rows, columns)));
        EXPECT_LT(distance(moved, expected, Values(expected.size())), 1e-3) << layout << " step " << step << from.name;
        ++matrices;
      }
      EXPECT_GT(matrices, 4u);
      before = run;
    }
  }
}

// Algorithms 4 and 5 of Shazeer & Stern 2018 (arXiv 1804.04235), with sums in place of their products with ones. Three
// steps that change the gradients.
TEST(Adafactor, IsTheSerialAlgorithm) {
  constexpr double kRate = 0.05, kDecay = 0.01, kLeastSize = 1e-3;
  const auto root_mean_square = [](const Values& x) {
    double sum = 0;
    for (const double value : x) sum += value * value;
    return std::sqrt(sum / static_cast<double>(x.size()));
  };
  for (const char* layout : {R"({"optimizer": "adafactor"})", R"({"optimizer": "adafactor", "tensor_parallel": 2})"}) {
    const Scenario scenario = tiny(layout);
    Execution before = execute(scenario, steps(1, 0));
    std::vector<Values> rows_of(before.parameters.size()), columns_of(before.parameters.size());
    for (const std::int64_t step : {1, 2, 3}) {
      ExecutionOptions options = steps(step, kRate);
      options.weight_decay = kDecay;
      const Execution run = execute(scenario, options);
      const double weight = std::pow(static_cast<double>(step), -0.8);  // 1 - beta 2 of this step
      std::size_t matrices = 0, clipped = 0;
      for (std::size_t t = 0; t < run.parameters.size(); ++t) {
        const WholeTensor &from = before.parameters[t], &to = run.parameters[t];
        const Values x(from.values.begin(), from.values.end()),
            gradient(run.gradients[t].values.begin(), run.gradients[t].values.end());
        // The matrices have the hidden width, 32, as their first or as their last dimensions; 16 positions or more.
        constexpr std::size_t kHidden = 32;
        const bool matrix = gradient.size() >= 16 * kHidden;
        auto rows = static_cast<std::size_t>(from.sizes[0]);
        for (std::size_t d = 1; matrix && rows != kHidden && d + 1 < from.sizes.size(); ++d)
          rows *= static_cast<std::size_t>(from.sizes[d]);
        if (!matrix) rows = gradient.size();
        const std::size_t columns = gradient.size() / rows;
        Values row(rows), column(columns), update = gradient;
        for (std::size_t i = 0; i < gradient.size(); ++i) {
          row[i / columns] += gradient[i] * gradient[i];
          column[i % columns] += gradient[i] * gradient[i];
        }
        rows_of[t].resize(rows), columns_of[t].resize(columns);
        row = rows_of[t] = combine(1 - weight, rows_of[t], weight, row);
        column = columns_of[t] = combine(1 - weight, columns_of[t], weight, column);
        double sum = 0;
        for (const double value : row) sum += value;
        for (std::size_t i = 0; i < update.size(); ++i)
          update[i] /=
              std::max(options.epsilon, std::sqrt(matrix ? row[i / columns] * column[i % columns] / sum : row[i]));
        const double clip = std::max(1.0, root_mean_square(update));
        clipped += clip > 1;
        const double size = std::max(kLeastSize, root_mean_square(x));
        const Values expected = combine(kDecay, x, size / clip, update);
        Values moved(x.size());
        for (std::size_t i = 0; i < x.size(); ++i) moved[i] = (x[i] - to.values[i]) / kRate;
        EXPECT_LT(distance(moved, expected, Values(expected.size())), 2e-3) << layout << " step " << step << from.name;
        matrices += matrix;
      }
      EXPECT_EQ(matrices, 2 * 4 + 2u);
      EXPECT_GT(clipped, 0u);
      before = run;
    }
  }
}

}  // namespace
}  // namespace orrery
