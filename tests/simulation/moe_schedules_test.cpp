// Layers with experts in chunks (strategies/fsmoe): are all schedules proven Programs of the same work, and is more
// overlap faster, by as much as links that are shared allow?
#include <gmock/gmock.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/base/json_reader.h"
#include "sim/des/engine.h"
#include "sim/program/check.h"
#include "strategies/fsmoe/choices.h"
#include "strategies/fsmoe/pipeline_degree.h"
#include "strategies/read_scenario.h"
#include "study/simulation/simulation.h"
#include "tests/simulation/support.h"

namespace orrery {
namespace {

using testing::HasSubstr;

using fsmoe::GradientPieces;
using fsmoe::MoeSchedule;
using fsmoe::pipeline_degrees;
using fsmoe::PipelineDegrees;
using fsmoe::ProfiledTime;
using fsmoe::StepByDegrees;
using fsmoe::StepByShares;

Scenario bundled(const std::string& name) {
  ScenarioReader reader;
  ScenarioSource source;
  const nlohmann::json document = load_scenario_document(name, {}, source);
  return reader.read(document, source);
}

Scenario with(Scenario s, MoeSchedule schedule, std::int64_t forward, std::int64_t backward) {
  s.plan.fsmoe = {schedule, forward, backward};
  return s;
}

const Piece& layer_of(const Program& program) {
  for (const Piece& piece : program.pieces)
    if (count_ops(piece.forward, OpKind::permute) > 0) return piece;
  throw std::runtime_error("no layer with experts");
}

// A small model on a node of eight, experts over four ranks and their matrices over `etp`.
Scenario small(std::int64_t etp, const std::string& plan) {
  nlohmann::json document = nlohmann::json::parse(R"({
    "model": {"layers": 2, "hidden": 64, "heads": 4, "vocab": 512, "max_positions": 96, "activation": "swiglu",
              "ffn": 96, "experts": 8, "experts_per_token": 2, "expert_ffn": 48, "linear_bias": false},
    "cluster": {"node": "dgx-h100", "nodes": 1}, "workload": {"sequence_length": 96, "global_batch_size": 16}})");
  document["plan"] = nlohmann::json::parse(plan);
  document["plan"].update({{"expert_parallel", 4}, {"expert_tensor_parallel", etp}});
  return read_scenario(document, {});
}

TEST(MoeSchedules, AreProvenWhateverTheirDegrees) {
  const char* const plans[] = {R"({})", R"({"zero_stage": 3, "recompute": "full"})",
                               R"({"tensor_parallel": 2, "sequence_parallel": true, "zero_stage": 1})",
                               R"({"moe_token_dispatcher": "hierarchical", "framework": "fsdp"})",
                               R"({"moe_expert_capacity_factor": 1.25, "precision": "fp8"})"};
  Program program;
  for (const char* plan : plans)
    for (const std::int64_t etp : {1, 2})
      for (const MoeSchedule schedule : {MoeSchedule::tutel, MoeSchedule::fsmoe_no_iio, MoeSchedule::fsmoe})
        for (const std::int64_t forward : {1, 2, 4, 8})
          for (const std::int64_t backward : {1, 2, 4, 8}) {
            if (schedule == MoeSchedule::tutel && forward != backward) continue;
            lower(with(small(etp, plan), schedule, forward, backward), program);
            for (const Violation& v : check(program))
              ADD_FAILURE() << plan << ", etp " << etp << ", " << forward << " and " << backward << " chunks: rule "
                            << static_cast<int>(v.rule) << ": " << v.text;
          }
}

// Bytes of all collectives by kind, FLOPs of all products.
std::map<std::string, double> work_of(const Scenario& scenario) {
  Program program;
  lower(scenario, program);
  const Piece& layer = layer_of(program);
  std::map<std::string, double> work;
  for (const Block* block : {&layer.forward, &layer.backward})
    for (const Op& op : block->ops) {
      const std::string phase = block == &layer.forward ? "forward " : "backward ";
      if (is_communication(op.kind)) work[phase + op.name] += bytes(op, layer.tensors);
      if (is_matmul(op.kind)) work[phase + "products"] += flops(op, layer.tensors);
    }
  return work;
}

TEST(MoeSchedules, MoveAndComputeWhatTheSequentialOneDoes) {
  for (const std::int64_t etp : {1, 2}) {
    const Scenario base = small(etp, R"({"zero_stage": 1})");  // 24 slots, which all degrees divide
    const auto expected = work_of(base);
    EXPECT_EQ(expected.contains("forward dispatch.all_gather"), etp > 1);
    for (const std::int64_t forward : {2, 8})
      for (const std::int64_t backward : {1, 4})
        EXPECT_EQ(work_of(with(base, MoeSchedule::fsmoe, forward, backward)), expected) << forward << ", " << backward;
  }
}

TEST(MoeSchedules, RoundSlotsUpToWholeChunks) {
  const Scenario base = small(2, R"({"moe_expert_capacity_factor": 0.9})");
  const auto slots = [&](std::int64_t degree) {
    Program program;
    lower(with(base, MoeSchedule::fsmoe, degree, degree), program);
    const Piece& layer = layer_of(program);
    for (const Op& op : layer.forward.ops)
      if (op.kind == OpKind::permute) return layer.tensors[op.writes[0]].sizes[1];
    return std::int64_t{0};
  };
  EXPECT_EQ(slots(1), 22);  // 0.9 x 96 tokens x 2 experts a token / 8 experts = 21.6
  EXPECT_EQ(slots(2), 22);
  EXPECT_EQ(slots(4), 24);
  EXPECT_EQ(slots(8), 24);
}

// Figure 3 of the paper.
TEST(MoeSchedules, PutTheirCollectivesOnTheirStreamsAllChunksOutBeforeTheFirstComesBack) {
  for (const MoeSchedule schedule : {MoeSchedule::tutel, MoeSchedule::fsmoe}) {
    Program program;
    lower(with(bundled("fsmoe"), schedule, 4, 4), program);
    const Piece& layer = layer_of(program);
    for (const Block* block : {&layer.forward, &layer.backward}) {
      std::map<Stream, std::string> order;
      for (const Op& op : block->ops) {
        if (op.stream != Stream::expert_communication && op.stream != Stream::expert_tensor_communication) continue;
        EXPECT_TRUE(op.free_running);
        order[op.stream] += op.kind == OpKind::redistribute ? (order[op.stream].size() < 4 ? 'D' : 'C')
                            : op.kind == OpKind::all_gather ? 'G'
                                                            : 'S';
      }
      if (schedule == MoeSchedule::fsmoe) {
        EXPECT_EQ(order[Stream::expert_communication], "DDDDCCCC");
        EXPECT_EQ(order[Stream::expert_tensor_communication], "GGGGSSSS");
      } else {
        EXPECT_THAT(order[Stream::expert_communication], testing::MatchesRegex("DGDG.G.GSCSCSCSC"));
        EXPECT_FALSE(order.contains(Stream::expert_tensor_communication));
      }
    }
  }
}

TEST(MoeSchedules, AreRefusedWhereTheyHideNothingOrTheSame) {
  const Scenario base = small(2, "{}");
  const auto refused = [&](auto change) {
    Scenario s = base;
    change(s);
    return refusal_of(s);
  };
  using testing::HasSubstr;
  EXPECT_THAT(refused([](Scenario& s) { s.plan.fsmoe.forward_degree = 2; }),
              HasSubstr("/plan/moe_pipeline_degree_forward"));
  EXPECT_THAT(refused([](Scenario& s) {
                s.plan.fsmoe = {MoeSchedule::tutel, 2, 4};
              }),
              HasSubstr("2, the forward degree, with moe_schedule \"tutel\""));
  EXPECT_THAT(refused([](Scenario& s) {
                s.plan.fsmoe = {MoeSchedule::fsmoe, 3, 2};
              }),
              HasSubstr("a divisor or a multiple of moe_pipeline_degree_forward, 3"));
  EXPECT_THAT(refused([](Scenario& s) {
                s.plan.fsmoe = {MoeSchedule::fsmoe, 2, 2};
                s.plan.expert.overlap_pairs = true;
              }),
              HasSubstr("overlap_moe_expert_parallel_comm"));
  Scenario dense = scenario_of("llama-3-8b", "dgx-h100", 1);
  dense.workload.global_batch_size = 8;
  dense.plan.fsmoe.schedule = MoeSchedule::fsmoe;
  EXPECT_THAT(refusal_of(dense), HasSubstr("\"sequential\" for a model without experts"));
}

Report by_events(const Scenario& scenario) {
  const PreparedAlone p(scenario, false);
  Report report;
  const DiscreteEventJob job{.name = "",
                             .program = p.program,
                             .mfu_dtype = p.scenario.plan.precision.compute(),
                             .kernels = p.kernels,
                             .placement = {}};
  run_discrete_event(p.scenario.cluster, *p.collectives, {&job, 1}, {}, {}, {&report, 1});
  return report;
}

TEST(MoeSchedules, WithMoreOverlapAreNotSlower) {
  for (const char* name : {"fsmoe", "fsmoe-testbed-b"}) {
    const Scenario base = bundled(name);
    const auto seconds = [&](MoeSchedule schedule, std::int64_t degree) {
      return simulate(with(base, schedule, degree, degree), false).step_seconds;
    };
    const double one = seconds(MoeSchedule::sequential, 1);
    // A single chunk has nothing to run beside.
    EXPECT_NEAR(seconds(MoeSchedule::fsmoe, 1), one, 0.002 * one) << name;
    for (const std::int64_t degree : {2, 4}) {
      const double tutel = seconds(MoeSchedule::tutel, degree), fsmoe = seconds(MoeSchedule::fsmoe, degree);
      EXPECT_EQ(seconds(MoeSchedule::fsmoe_no_iio, degree), tutel) << name;
      EXPECT_LT(tutel, one) << name << ", " << degree;
      EXPECT_LT(fsmoe, tutel) << name << ", " << degree;
    }
  }
}

// Section 4.2 of the paper, with what each op of a chunk takes here: what closed form and Program say of more chunks.
TEST(MoeSchedules, TakeWhatThePapersFourCasesSayForward) {
  std::set<fsmoe::Bottleneck> met;
  for (const char* name : {"fsmoe", "fsmoe-testbed-b"}) {
    const Scenario base = bundled(name);
    const std::int64_t layers = base.model.layers;
    const auto predicted = [&](std::int64_t degree) {
      return predict(PreparedAlone(with(base, MoeSchedule::fsmoe, degree, 1), false), {.ops = true});
    };
    const auto formula = [&](const Report& report, std::int64_t degree) {
      const auto seconds = [&](const std::string& of) {
        double once = 0;
        for (const OpReport& row : report.ops)
          if (const auto at = row.name.find(".forward."); at != std::string::npos && row.name.substr(at + 9) == of)
            once = row.seconds;
        EXPECT_GT(once, 0) << of;
        return once;
      };
      double experts = 0;
      for (const OpReport& row : report.ops)
        if (row.name.find(".forward.expert_") != std::string::npos) experts += row.seconds;
      const fsmoe::LayerTimes times{{.start_up = seconds("dispatch")},
                                    {.start_up = seconds("dispatch.all_gather")},
                                    {.start_up = seconds("combine.reduce_scatter")},
                                    {.start_up = experts / static_cast<double>(degree)}};
      return fsmoe::pipelined(times, degree, 0);
    };
    const Report one = predicted(1);
    const double whole = formula(one, 1).seconds;
    for (const std::int64_t degree : {2, 4, 8}) {
      const Report report = predicted(degree);
      const fsmoe::PipelinedLayer layer = formula(report, degree);
      met.insert(layer.bottleneck);
      EXPECT_NEAR((one.step_seconds - report.step_seconds) / static_cast<double>(layers), whole - layer.seconds,
                  0.03 * whole)
          << name << ", " << degree << " chunks, case " << static_cast<int>(layer.bottleneck);
    }
  }
  EXPECT_GE(met.size(), 2u);
}

// Of the ops of table 2 that take more than a millisecond. The bound is as wide as the worst miss, the products of the
// 2080 Ti, which take twice as long here as measured: it holds what the page says, and is no proof that ops are near.
TEST(MoeSchedules, MissPublishedOpsByAFactorOfTwoAtTheWorst) {
  std::map<std::string, double> published;
  const nlohmann::json document = parse_json_file(ORRERY_SOURCE_DIR "/results/published/moe.json");
  for (const nlohmann::json& point : document.at("points")) {
    published.emplace(point.at("id").get<std::string>(), point.at("value").get<double>());
  }
  const std::vector<std::pair<std::string, std::vector<std::string>>> ops{
      {"alltoall", {"dispatch", "combine"}},
      {"allgather", {"dispatch.all_gather"}},
      {"reducescatter", {"combine.reduce_scatter"}},
      {"experts", {"expert_fc1", "expert_activation", "expert_fc2"}},
      {"attention",
       {"qkv", "attention_scores", "attention_mask", "attention_softmax", "attention_dropout", "attention_context",
        "attention_output"}},
      {"allreduce", {"gradients.all_reduce"}}};
  Calibrator calibrator;
  for (const auto& [name, testbed] : {std::pair{"fsmoe", "a"}, std::pair{"fsmoe-testbed-b", "b"}}) {
    const Report report =
        predict(calibrator.prepare(with(bundled(name), MoeSchedule::sequential, 1, 1)), {.ops = true});
    for (const char* const pass : {"forward", "backward"})
      for (const auto& [id, names] : ops) {
        double seconds = 0;
        for (const OpReport& row : report.ops)
          for (const std::string& op : names)
            if (row.name == "expert_layer." + std::string(pass) + "." + op) seconds += row.seconds * row.times_per_step;
        const double measured = 1e-3 * published.at(std::string("fsmoe-t2-") + testbed + "-gpt2-" + pass[0] + "-" + id);
        if (measured < 1e-3) continue;
        EXPECT_GT(seconds, measured / 2.1) << testbed << " " << pass << " " << id;
        EXPECT_LT(seconds, measured * 2.1) << testbed << " " << pass << " " << id;
      }
  }
}

// Three layers, their gradients in pieces: half beside experts, a quarter beside attention, a quarter at the end.
Scenario in_pieces(const char* name, MoeSchedule schedule, std::int64_t degree, double experts, double dense) {
  Scenario s = with(bundled(name), schedule, degree, degree);
  s.model.layers = 3;
  s.plan.fsmoe.share_beside_experts = experts;
  s.plan.fsmoe.share_beside_dense = dense;
  return s;
}

TEST(GradientsInPieces, GoBetweenTheLastDispatchAndTheFirstCombineAndBehindTheLast) {
  for (const auto& [schedule, expected] :
       {std::pair{MoeSchedule::fsmoe, "DDDDPCCCCP"}, std::pair{MoeSchedule::fsmoe_no_iio, "DGDG.G.GPSCSCSCSCP"}}) {
    Program program;
    lower(in_pieces("fsmoe", schedule, 4, 0.5, 0.25), program);
    for (const Violation& v : check(program)) ADD_FAILURE() << v.text;
    const Piece& layer = layer_of(program);
    std::string order;
    std::vector<double> shares;
    for (const Op& op : layer.backward.ops) {
      if (op.is_part) {
        EXPECT_EQ(op.covers, Covers::before);
        shares.push_back(op.share);
      }
      if (op.stream != Stream::expert_communication) continue;
      order += op.is_part                        ? 'P'
               : op.kind == OpKind::redistribute ? (order.find('P') == std::string::npos ? 'D' : 'C')
               : op.kind == OpKind::all_gather   ? 'G'
                                                 : 'S';
    }
    EXPECT_THAT(order, testing::MatchesRegex(expected));
    EXPECT_THAT(shares, testing::ElementsAre(0.5, 0.25));
  }
}

TEST(GradientsInPieces, AreSentOnceAndNoSoonerThanTheyAreThere) {
  const Scenario s = in_pieces("fsmoe", MoeSchedule::fsmoe, 4, 0.5, 0.25);
  const auto sent = [](const Report& report, const char* block) {
    double all = 0;
    for (const OpReport& row : report.ops)
      if (row.name == std::string("expert_layer.") + block + ".gradients.all_reduce")
        all += row.bytes * row.times_per_step;
    return all;
  };
  const Report pieces = predict(PreparedAlone(s, false), {.ops = true});
  const Report whole = predict(PreparedAlone(in_pieces("fsmoe", MoeSchedule::fsmoe, 4, 0, 0), false), {.ops = true});
  const double layer = sent(whole, "backward") / 3;
  EXPECT_GT(layer, 0);
  // Two layers have one before them; the last one sends its own.
  EXPECT_NEAR(sent(pieces, "backward"), (2 * 0.75 + 0.75) * layer, 1e-6 * layer);
  EXPECT_NEAR(sent(pieces, "update"), 3 * 0.25 * layer, 1e-6 * layer);
  // Of a single layer there is nothing to be sent beside another one.
  Scenario one = in_pieces("fsmoe", MoeSchedule::fsmoe, 4, 0.5, 0.5);
  one.model.layers = 1;
  EXPECT_NEAR(sent(predict(PreparedAlone(one, false), {.ops = true}), "backward"), layer, 1e-6 * layer);
}

// Section 4.2: an all-reduce that is longer than the link idles holds the layer up by what it is longer.
TEST(GradientsInPieces, HoldALayerUpWhereTheyAreLongerThanTheLinkIdles) {
  const auto seconds = [](double experts, double dense) {
    return simulate(in_pieces("fsmoe", MoeSchedule::fsmoe, 4, experts, dense), false).step_seconds;
  };
  const Report report = predict(PreparedAlone(in_pieces("fsmoe", MoeSchedule::fsmoe, 4, 1, 0), false), {.ops = true});
  double all_reduce = 0;
  for (const OpReport& row : report.ops)
    if (row.name == "expert_layer.backward.gradients.all_reduce") all_reduce = row.seconds;
  ASSERT_GT(all_reduce, 0);
  const double least = seconds(0.01, 0), some = seconds(0.5, 0), all = seconds(1, 0);
  // At the end what is left is sent alone: what fits into a layer is spared there.
  EXPECT_LT(some, least);
  EXPECT_GT(least - some, 0.2 * all_reduce);
  EXPECT_LT(least - some, 2 * 0.5 * all_reduce);
  // Never slower than all of it exposed, layer by layer.
  EXPECT_LT(all, least + 2 * all_reduce);
}

TEST(GradientsInPieces, AreTimedAlikeByBothEngines) {
  for (const char* name : {"fsmoe", "fsmoe-testbed-b"})
    for (const MoeSchedule schedule : {MoeSchedule::fsmoe_no_iio, MoeSchedule::fsmoe}) {
      const Scenario s = in_pieces(name, schedule, 4, 0.5, 0.5);
      const double alone = simulate(s, false).step_seconds, events = by_events(s).step_seconds;
      // On B, by events, exchanges, gathers and reductions share the up-links of a node's PCIe switches.
      const bool shares = name == std::string_view("fsmoe-testbed-b") && schedule == MoeSchedule::fsmoe;
      EXPECT_NEAR(events / alone, shares ? 1.03 : 1, 0.02) << name;
    }
}

TEST(GradientsInPieces, AreRefusedWhereTheyAreNotReducedSo) {
  const auto refused = [](const auto& change) {
    Scenario s = in_pieces("fsmoe", MoeSchedule::fsmoe, 4, 0.5, 0.5);
    change(s);
    return refusal_of(s);
  };
  using testing::HasSubstr;
  EXPECT_THAT(refused([](Scenario& s) { s.plan.fsmoe.schedule = MoeSchedule::tutel; }),
              HasSubstr("0 unless moe_schedule is \"fsmoe\""));
  EXPECT_THAT(refused([](Scenario& s) { s.plan.fsmoe.share_beside_dense = 0.6; }), HasSubstr("at most"));
  EXPECT_THAT(refused([](Scenario& s) { s.plan.data.zero_stage = 1; }), HasSubstr("zero_stage"));
  EXPECT_THAT(refused([](Scenario& s) { s.plan.data.overlap_gradients = false; }), HasSubstr("overlap_grad_reduce"));
  EXPECT_THAT(refused([](Scenario& s) { s.model.expert_period = 2; }), HasSubstr("dense layers between"));
}

// Network cards and devices of a node share PCIe: what the closed form overlaps freely the engine of events does not.
TEST(MoeSchedules, GainLessFromInterAndIntraNodeOverlapWhereTheyShareLinks) {
  const Scenario base = bundled("fsmoe-testbed-b");
  const auto gain = [&](auto engine) {
    return engine(with(base, MoeSchedule::tutel, 4, 4)) / engine(with(base, MoeSchedule::fsmoe, 4, 4));
  };
  const double ideal = gain([](const Scenario& s) { return simulate(s, false).step_seconds; });
  const double shared = gain([](const Scenario& s) { return by_events(s).step_seconds; });
  EXPECT_GT(ideal, 1.02);
  EXPECT_GT(shared, 1);
  EXPECT_LT(shared - 1, 0.65 * (ideal - 1)) << "ideal " << ideal << ", with contention " << shared;
}

PipelineDegrees degrees_of(const Scenario& scenario) {
  Simulator simulator;
  return pipeline_degrees(scenario,
                          [&](const Scenario& other) { return evaluated(simulator.evaluate(other, {.ops = true})); });
}

double op_seconds(const Report& report, const std::string& name) {
  double seconds = 0;
  for (const OpReport& op : report.ops)
    if (op.name == name) seconds += op.seconds;
  return seconds;
}

TEST(PipelineDegree, ItsProfileTakesWhatTheCostModelsTake) {
  for (const char* name : {"fsmoe", "fsmoe-testbed-b", "fsmoe-mixtral-7b"}) {
    const Scenario scenario = bundled(name);
    const PipelineDegrees degrees = degrees_of(scenario);
    Simulator simulator;
    const Report report = simulator.evaluate(with(scenario, MoeSchedule::sequential, 1, 1), {.ops = true}).report;
    const auto of = [&](const char* op) { return op_seconds(report, degrees.layer + ".forward." + op); };
    const auto close = [&](const ProfiledTime& profiled, double seconds, double tolerance) {
      EXPECT_NEAR(profiled.of_layer().of_chunk(1) / seconds, 1, tolerance) << name;
      EXPECT_GT(profiled.determination, 0.98) << name;
      EXPECT_GT(profiled.time.start_up, 0) << name;
    };
    close(degrees.all_to_all, of("dispatch"), 0.02);
    close(degrees.all_to_all, of("combine"), 0.02);
    close(degrees.all_gather, of("dispatch.all_gather"), 0.02);
    close(degrees.reduce_scatter, of("combine.reduce_scatter"), 0.02);
    close(degrees.experts, of("expert_fc1") + of("expert_fc2"), 0.25);  // kernels are no straight line
  }
}

TEST(PipelineDegree, IsThatOfTheFourCasesAndTheEnginesOwn) {
  const Scenario scenario = bundled("fsmoe-testbed-b");
  const PipelineDegrees degrees = degrees_of(scenario);
  const double one = 2 * degrees.all_to_all.of_layer().of_chunk(1) + degrees.all_gather.of_layer().of_chunk(1) +
                     degrees.reduce_scatter.of_layer().of_chunk(1);
  EXPECT_NEAR(degrees.forward[0].seconds, one + degrees.experts.of_layer().of_chunk(1), 1e-12);
  EXPECT_NEAR(degrees.backward[0].seconds, one + 2 * degrees.experts.of_layer().of_chunk(1), 1e-12);
  ASSERT_EQ(degrees.steps.size(), 16u);
  Simulator simulator;
  for (const StepByDegrees& step : degrees.steps)
    EXPECT_EQ(
        step.seconds,
        simulator.evaluate(with(scenario, MoeSchedule::fsmoe, step.forward, step.backward), {}).report.step_seconds);
  for (const StepByDegrees& step : degrees.steps) EXPECT_LE(degrees.fastest().seconds, step.seconds);
  ASSERT_NE(degrees.chosen(), nullptr);
  EXPECT_EQ(degrees.chosen()->backward, degrees.chosen_backward.degree);
  // One degree for both directions, and none for layers that are not cut.
  EXPECT_EQ(degrees_of(with(scenario, MoeSchedule::tutel, 2, 2)).steps.size(), 4u);
  EXPECT_THROW(degrees_of(with(scenario, MoeSchedule::sequential, 1, 1)), InputError);
}

// Seven equal layers of which each sends what fits into the idle times of the next one's dense part and experts.
TEST(PipelineDegree, PartitionsGradientsByThePapersStepsAndTheEnginesOwn) {
  const Scenario scenario = bundled("fsmoe-mixtral-7b");
  const PipelineDegrees degrees = degrees_of(scenario);
  const GradientPieces& g = degrees.gradients;
  EXPECT_EQ(g.refused, "");
  EXPECT_EQ(g.layers, 7);
  ASSERT_EQ(g.steps.size(), 4u);
  EXPECT_EQ(g.steps[0].partition, "none");
  EXPECT_EQ(g.steps[0].seconds, degrees.fastest().seconds);
  // Of a rank: its parts of the projections of queries, keys, values and output, its router and two norms.
  const double h = 4096, parameters = h * (h + 2 * 1024) / 4 + h * h / 4 + 8 * h + 2 * h;
  EXPECT_EQ(g.all_reduce.units, parameters);
  EXPECT_GT(g.all_reduce.determination, 0.999);
  const StepByShares &greedy = g.steps[1], &global = g.steps[2], &best = g.steps[3];
  const auto fits = [&](double idle) {
    return (idle - g.all_reduce.time.start_up) / g.all_reduce.time.per_unit / parameters;
  };
  EXPECT_NEAR(greedy.dense, fits(g.dense_seconds), 1e-9);
  EXPECT_NEAR(greedy.experts, fits(degrees.chosen_backward.idle_seconds), 1e-9);
  EXPECT_LE(g.global.seconds, g.greedy.seconds);
  EXPECT_LE(global.experts + global.dense, 1 + 1e-12);
  Simulator simulator;
  Scenario chosen = with(scenario, MoeSchedule::fsmoe, degrees.fastest().forward, degrees.fastest().backward);
  for (const StepByShares& step : {greedy, global, best}) {
    chosen.plan.fsmoe.share_beside_experts = step.experts;
    chosen.plan.fsmoe.share_beside_dense = step.dense;
    EXPECT_EQ(step.seconds, simulator.evaluate(chosen, {}).report.step_seconds) << step.partition;
  }
  EXPECT_LE(best.seconds, g.steps[0].seconds);
  EXPECT_THAT(pipeline_degree_text(degrees), HasSubstr("best of quarters"));

  EXPECT_THAT(degrees_of(bundled("fsmoe")).gradients.refused, HasSubstr("one layer with experts"));
  Scenario sharded = scenario;
  sharded.plan.data.zero_stage = 1;
  EXPECT_THAT(degrees_of(sharded).gradients.refused, HasSubstr("no layer's gradients are all-reduced"));
  EXPECT_THAT(degrees_of(with(scenario, MoeSchedule::tutel, 2, 2)).gradients.refused,
              HasSubstr("moe_gradient_share_experts"));
}

}  // namespace
}  // namespace orrery
