// Frozen parameters: FLOPs, memory by category and reduced bytes with a part of the model frozen, in closed forms.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/program/check.h"
#include "tests/strategies/support.h"

namespace orrery {
namespace {

using testing::HasSubstr;

LayerRange frozen_range(const Scenario& s, std::int64_t from, std::int64_t to) {
  LayerRange range;
  range.from = from;
  range.to = to;
  range.plan = s.plan;
  range.plan.layers.clear();
  range.plan.freeze.layers = true;
  return range;
}

// GPT-2 of 48 layers on one device, scores stored: every product is an op.
Scenario gpt2_to_freeze() {
  Scenario s = scenario_of("gpt2-1.5b", "dgx-a100", 1);
  s.workload = {1024, 0, 8};
  s.plan.data.degree = 1;
  s.plan.framework.flash_attention = false;
  s.model.tied_embeddings = false;
  return s;
}

Program lowered_and_proven(const Scenario& s) {
  Program p;
  lower(s, p);
  for (const Violation& v : check(p)) ADD_FAILURE() << v.text;
  return p;
}

double product_flops_of(const Block& block, const Piece& piece) {
  double all = 0;
  for (const Op& op : block.ops)
    if (is_matmul(op.kind)) all += flops(op, piece.tensors);
  return all;
}

double elements_of(const Piece& piece) {
  double n = 0;
  for (const ParameterGradient& p : piece.parameters) n += static_cast<double>(piece.tensors[p.parameter].elements());
  return n;
}

template <class Visit>
void for_each_run(const Program& p, Visit visit) {
  for (const auto& stage : p.stages)
    for (const Chunk& chunk : stage)
      for (const PieceRun& run : chunk.runs) visit(p.pieces[run.piece], static_cast<double>(run.count));
}

double executed_products(const Program& p) {
  double all = 0;
  for_each_run(p, [&](const Piece& piece, double n) {
    all += n * (product_flops_of(piece.forward, piece) + product_flops_of(piece.backward, piece));
  });
  return all * static_cast<double>(p.schedule.micro_batches);
}

// Of a linear layer 2 FLOPs a parameter and token forward, 2 for each gradient of the backward.
TEST(Freeze, SparesWeightGradientsAndTheBackwardBelowWhatIsTrained) {
  Scenario s = gpt2_to_freeze();
  const Program all = lowered_and_proven(s);
  const Piece& layer = piece_named(all, "layer");
  double linear = 0, attention = 0;
  for (const Op& op : layer.forward.ops)
    (op.kind == OpKind::linear ? linear : attention) += is_matmul(op.kind) ? flops(op, layer.tensors) : 0;
  EXPECT_DOUBLE_EQ(product_flops_of(layer.backward, layer), 2 * (linear + attention));
  const double n = 24 * static_cast<double>(all.schedule.micro_batches), before = executed_products(all);
  EXPECT_DOUBLE_EQ(before, all.model.executed_flops_per_step);

  // The lower half with the embedding: forward only.
  s.plan.layers = {frozen_range(s, 0, 24)};
  s.plan.freeze.embedding = true;
  const Program lower_half = lowered_and_proven(s);
  EXPECT_NEAR((before - executed_products(lower_half)) / (n * 2 * (linear + attention)), 1, 1e-12);
  EXPECT_NEAR(lower_half.model.executed_flops_per_step / executed_products(lower_half), 1, 1e-12);
  const auto is = [](const Piece& piece, const char* name) { return std::string_view(piece.name) == name; };
  double without = 0, trained = 0;
  for_each_run(lower_half, [&](const Piece& piece, double count) {
    if (!is(piece, "layer")) return;
    (piece.backward.ops.empty() ? without : trained) += count;
  });
  EXPECT_EQ(without, 24);
  EXPECT_EQ(trained, 24);

  // The upper half: gradients pass through its inputs, 4 P instead of 6 P; attention has no weights to spare.
  s.plan.layers = {frozen_range(s, 24, 0)};
  s.plan.freeze.embedding = false;
  const Program upper_half = lowered_and_proven(s);
  EXPECT_NEAR((before - executed_products(upper_half)) / (n * linear), 1, 1e-12);
  EXPECT_NEAR(upper_half.model.executed_flops_per_step / executed_products(upper_half), 1, 1e-12);
  // With the mask halved and in full what is spared is the same: all of it is linear.
  EXPECT_DOUBLE_EQ(all.model.flops_per_step - upper_half.model.flops_per_step, n * linear);
  EXPECT_DOUBLE_EQ(all.model.flops_per_step_full_attention - upper_half.model.flops_per_step_full_attention,
                   n * linear);

  // One kernel instead of stored scores counts alike.
  s.plan.framework.flash_attention = true;
  s.plan.layers = {frozen_range(s, 0, 24)};
  s.plan.freeze.embedding = true;
  const Program flash = lowered_and_proven(s);
  s.plan.layers.clear();
  s.plan.freeze.embedding = false;
  const Program flash_all = lowered_and_proven(s);
  for (const auto member : {&ModelWork::flops_per_step, &ModelWork::flops_per_step_full_attention})
    EXPECT_NEAR((flash_all.model.*member - flash.model.*member) / (all.model.*member - lower_half.model.*member), 1,
                1e-12);
}

// A layer's backward is twice its forward: 4 FLOPs for each parameter of a matrix that a token meets, and attention's.
// In slots that no token takes (1001 tokens and 8 of 64 experts each) kernels are spared, too, but no work of the
// model.
TEST(Freeze, OfExpertsSparesThoseThatATokenGoesTo) {
  Scenario s = scenario_of("olmoe-1b-7b", "dgx-a100", 1);
  s.workload = {1001, 0, 8};
  s.plan.data.degree = 1;
  s.plan.framework.flash_attention = false;
  const Program all = lowered_and_proven(s);
  EXPECT_NEAR(all.model.executed_flops_per_step / executed_products(all), 1, 1e-12);
  EXPECT_GT(all.model.executed_flops_per_step, all.model.flops_per_step_full_attention);

  s.plan.layers = {frozen_range(s, 0, 12)};
  s.plan.freeze.embedding = true;
  const Program part = lowered_and_proven(s);
  EXPECT_NEAR(part.model.executed_flops_per_step / executed_products(part), 1, 1e-12);
  const double layers = 16, h = 2048, tokens = 8 * 1001, norms = 4 * h;
  const double matrices = (static_cast<double>(active_parameters(s.model)) - 2 * 50304 * h - h) / layers - norms;
  EXPECT_NEAR(
      (all.model.flops_per_step - part.model.flops_per_step) / (12 * (4 * matrices * tokens + 4 * h * 1001 * tokens)),
      1, 1e-12);
}

// 2 bytes a frozen parameter; 18 of a trained one (bf16, gradients and states in fp32). No activations are kept where
// there is no backward, and fewer where gradients only pass through.
TEST(Freeze, KeepsWeightsAlone) {
  Scenario s = gpt2_to_freeze();
  s.plan.freeze.embedding = true;
  s.plan.layers = {frozen_range(s, 0, 24), frozen_range(s, 36, 0)};
  const Program p = lowered_and_proven(s);
  double through = 0, saved_of_trained = 0;
  for_each_run(p, [&](const Piece& piece, double) {
    const PieceMemory m = piece_memory(piece, 1);
    const double n = elements_of(piece);
    const bool trained = piece.parameters.front().gradient != kNoTensor;
    ASSERT_EQ(piece.sets.size(), 1u);
    EXPECT_EQ(piece.sets[0].frozen(), !trained);
    EXPECT_EQ(m.resident.of(Place::device, Category::parameter), 2 * n) << piece.name;
    EXPECT_EQ(m.resident.of(Place::device, Category::gradient), trained ? 4 * n : 0) << piece.name;
    EXPECT_EQ(m.resident.of(Place::device, Category::optimizer_state), trained ? 12 * n : 0) << piece.name;
    if (!trained) {
      EXPECT_TRUE(piece.update.ops.empty());
    }
    if (piece.backward.ops.empty()) {
      EXPECT_EQ(device_bytes(m.saved), 0) << piece.name;
    }
    if (std::string_view(piece.name) != "layer" || piece.backward.ops.empty()) return;
    (trained ? saved_of_trained : through) = device_bytes(m.saved);
  });
  // Less the inputs of the four products, of h, h, h and 4 h a token in 16 bits.
  EXPECT_EQ(saved_of_trained - through, 2.0 * 7 * 1600 * 1024);

  // Below what is trained there is nothing to repeat either.
  s.plan.recompute.mode = activation_recompute::Mode::full;
  for (LayerRange& range : s.plan.layers) range.plan.recompute = s.plan.recompute;
  const Program recomputed = lowered_and_proven(s);
  for_each_run(recomputed, [&](const Piece& piece, double) {
    if (std::string_view(piece.name) != "layer") return;
    const bool repeats =
        std::ranges::any_of(piece.backward.ops, [](const Op& op) { return op.phase == Phase::recompute; });
    EXPECT_EQ(repeats, !piece.backward.ops.empty());
  });
}

// What is trained alone is reduced; weights are gathered where they are read, before a backward if there is one.
TEST(Freeze, ReducesWhatIsTrainedAndGathersWhatIsRead) {
  for (const int stage : {0, 1, 2, 3}) {
    Scenario s = zero3_of_deepspeed(2);
    s.model.tied_embeddings = false;
    s.plan.data.zero_stage = stage;
    const auto moved = [&](const Program& p) {
      double reduced = 0, gathered_forward = 0, gathered_backward = 0;
      for_each_run(p, [&](const Piece& piece, double n) {
        for (const Block* block : {&piece.forward, &piece.backward, &piece.update})
          for (const Op& op : block->ops) {
            if (!is_communication(op.kind) || op.reads[0] == kNoTensor) continue;
            const double bytes_moved = n * bytes(op, piece.tensors);
            if (op.stream == Stream::data_communication && op.kind != OpKind::all_gather &&
                piece.tensors[op.reads[0]].category == Category::gradient)
              reduced += bytes_moved;
            if (op.kind == OpKind::all_gather)
              (block == &piece.backward ? gathered_backward : gathered_forward) += bytes_moved;
          }
      });
      return std::array{reduced, gathered_forward, gathered_backward};
    };
    const Program whole = lowered_and_proven(s);
    const double layer = elements_of(piece_named(whole, "layer")),
                 embedding = elements_of(piece_named(whole, "embedding"));
    const auto all = moved(whole);
    s.plan.freeze.embedding = true;
    s.plan.layers = {frozen_range(s, 0, 24)};
    const auto half = moved(lowered_and_proven(s));
    EXPECT_NEAR((all[0] - half[0]) / (2 * (24 * layer + embedding)), 1, 1e-3) << stage;
    if (stage == 1 || stage == 2) {  // what was not updated is not gathered
      EXPECT_NEAR((all[1] + all[2] - half[1] - half[2]) / (2 * (24 * layer + embedding)), 1, 1e-3);
    } else if (stage == 3) {
      EXPECT_EQ(half[1], all[1]);
      EXPECT_NEAR((all[2] - half[2]) / (2 * (24 * layer + embedding)), 1, 1e-3);
    }
    s.plan.freeze.embedding = false;
    s.plan.layers = {frozen_range(s, 24, 0)};
    const auto upper = moved(lowered_and_proven(s));
    EXPECT_NEAR((all[0] - upper[0]) / (2 * 24 * layer), 1, 1e-3) << stage;
    if (stage == 3) {
      EXPECT_EQ(upper[2], all[2]);
    }
  }
}

// One stage of two chunks is no pipeline: its schedule makes the chunks.
TEST(Freeze, OfRelativePositionsBlamesWhatDividesTheLayers) {
  const auto refusal = [](int stages, pipeline_parallel::ScheduleKind schedule) {
    Scenario s = scenario_of("t5-11b", "dgx-h100", 1);
    s.workload = {512, 0, 64};
    s.plan.pipeline.degree = stages;
    s.plan.pipeline.schedule = schedule;
    s.plan.freeze.embedding = true;
    return refusal_of(s);
  };
  using pipeline_parallel::ScheduleKind;
  EXPECT_THAT(refusal(1, ScheduleKind::zb_v),
              HasSubstr("/plan/pipeline_schedule: found \"zb-v\", expected one without"));
  EXPECT_THAT(refusal(2, ScheduleKind::one_f_one_b), HasSubstr("/plan/pipeline_parallel: found 2, expected 1"));
}

// Frozen weights are divided as others are, whatever else is divided.
TEST(Freeze, DividesFrozenWeightsAsOthers) {
  Scenario s = zero3_of_deepspeed(2);
  s.plan.freeze.embedding = true;
  s.plan.layers = {frozen_range(s, 24, 0)};
  s.plan.zeropp.secondary = 8;
  const Program p = lowered_and_proven(s);
  for_each_run(p, [&](const Piece& piece, double) {
    for (const ParameterSet& set : piece.sets) {
      EXPECT_EQ(p.mesh.size(set.over.weights), 16);
      EXPECT_EQ(set.over.states, set.over.weights);
      EXPECT_EQ(set.over.gradients, set.frozen() ? MeshGroup{} : set.over.weights);
      EXPECT_EQ(set.own_gradients == kNoTensor, set.frozen());
    }
  });
  const PieceMemory m = piece_memory(p.pieces[p.line.end()[-2].piece], 1);  // the last layers
  const double n = elements_of(p.pieces[p.line.end()[-2].piece]);
  EXPECT_NEAR(m.resident.of(Place::device, Category::parameter) / (2 * n / 16 + 2 * n / 8), 1, 1e-4);
  EXPECT_EQ(m.resident.of(Place::device, Category::gradient), 0);
}

// A tied table is one parameter: frozen in the head, whose norm is trained. Two sets, where the head holds a copy.
TEST(Freeze, FreezesATiedTableInTheHeadAsWell) {
  Scenario s = gpt2_to_freeze();
  s.model.tied_embeddings = true;
  s.plan.freeze.embedding = true;
  for (const std::int64_t stages : {1, 2}) {
    s.plan.pipeline.degree = stages;
    const Program p = lowered_and_proven(s);
    EXPECT_TRUE(p.stage_groups.empty());
    const Piece& head = p.pieces[p.line.back().piece];
    ASSERT_EQ(head.sets.size(), stages == 1 ? 1u : 2u);
    EXPECT_FALSE(head.sets[0].frozen());
    EXPECT_EQ(head.tensors[head.sets[0].parameters].elements(), 2 * s.model.hidden);
    if (stages == 2) {
      EXPECT_TRUE(head.sets[1].frozen());
    }
    EXPECT_EQ(count_ops(head.backward, OpKind::linear_weight_gradient), 0);
    EXPECT_EQ(count_ops(head.backward, OpKind::linear_input_gradient), 1);
  }
}

// The first trained layer computes what its own parameters need and hands no gradient on.
TEST(Freeze, EndsTheBackwardAtTheFirstTrainedLayer) {
  Scenario s = gpt2_to_freeze();
  s.plan.freeze.embedding = true;
  s.plan.layers = {frozen_range(s, 0, 4)};
  const Program p = lowered_and_proven(s);
  ASSERT_EQ(p.line.size(), 5u);  // embedding, frozen, first, others, head
  EXPECT_EQ(p.line[1].count, 4);
  EXPECT_EQ(p.line[2].count, 1);
  EXPECT_EQ(p.line[3].count, 43);
  const Piece &embedding = p.pieces[p.line[0].piece], &frozen = p.pieces[p.line[1].piece],
              &first = p.pieces[p.line[2].piece], &other = p.pieces[p.line[3].piece];
  EXPECT_TRUE(embedding.backward.ops.empty());
  EXPECT_EQ(frozen.output_gradient, kNoTensor);
  EXPECT_EQ(first.input_gradient, kNoTensor);
  EXPECT_NE(first.output_gradient, kNoTensor);
  EXPECT_NE(other.input_gradient, kNoTensor);
  EXPECT_LT(first.backward.ops.size(), other.backward.ops.size());
  EXPECT_EQ(count_ops(first.backward, OpKind::linear_weight_gradient),
            count_ops(other.backward, OpKind::linear_weight_gradient));
}

TEST(Freeze, RefusesWhatIsNoStep) {
  const auto refusal = [](auto change) {
    Scenario s = scenario_of("gpt2-1.5b", "dgx-a100", 1);
    s.workload = {1024, 0, 8};
    s.plan.freeze.embedding = true;
    change(s);
    return refusal_of(s);
  };
  EXPECT_EQ(refusal([](Scenario&) {}), "nothing");
  EXPECT_THAT(refusal([](Scenario& s) { s.plan.freeze = {.layers = true, .embedding = true, .head = true}; }),
              HasSubstr("/plan/freeze_head: found true, expected false, or something that is trained"));
  EXPECT_THAT(refusal([](Scenario& s) { s.plan.freeze = {.layers = false, .embedding = false, .head = true}; }),
              HasSubstr("/plan/freeze_head: found true, expected false, or freeze_embedding too"));
  // Half of the layers on each of two stages.
  const auto staged = [&](std::int64_t to) {
    return refusal([&](Scenario& s) {
      s.plan.pipeline.degree = 2;
      s.plan.layers = {frozen_range(s, 0, to)};
    });
  };
  EXPECT_EQ(staged(23), "nothing");
  EXPECT_THAT(staged(24), HasSubstr("/plan/freeze_embedding: found true, expected false, or a trained layer in the "
                                    "first model chunk (layers 0 to 23)"));
  const auto last_of_four = [&](bool head, double clip_grad = 1) {
    return refusal([&](Scenario& s) {
      s.plan.optimizer.clip_grad = clip_grad;
      s.model.tied_embeddings = false;
      s.plan.pipeline.degree = 4;
      s.plan.freeze = {.layers = false, .embedding = false, .head = head};
      s.plan.layers = {frozen_range(s, 36, 48)};
    });
  };
  EXPECT_EQ(last_of_four(false), "nothing");
  EXPECT_THAT(last_of_four(true), HasSubstr("/plan/pipeline_parallel: found 4, expected stages that each train "
                                            "something, or clip_grad 0: stage 3 is frozen"));
  EXPECT_EQ(last_of_four(true, 0), "nothing") << "no norm, no stage that it needs";
}

}  // namespace
}  // namespace orrery
