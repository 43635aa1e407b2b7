// ZeRO++: the bytes of the second copy and of codes, and which group each collective runs over.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/base/error.h"
#include "sim/program/check.h"
#include "sim/program/work.h"
#include "tests/strategies/support.h"

namespace orrery {
namespace {

using testing::HasSubstr;

// Two micro-batches.
Scenario zero3_on_four_nodes() { return zero3_of_deepspeed(4); }

PlacedBytes zeropp_layer_resident(const Program& p) { return piece_memory(piece_named(p, "layer"), 1).resident; }

double zeropp_layer_elements(const Program& p) {
  double n = 0;
  const Piece& layer = piece_named(p, "layer");
  for (const ParameterGradient& g : layer.parameters) n += static_cast<double>(layer.tensors[g.parameter].elements());
  return n;
}

// Wang et al. 2023, section 3.2: 2 P / p bytes on top of ZeRO-3's 16 P / N.
TEST(Zeropp, KeepsASecondCopyOfTheWeightsInTheSmallerGroup) {
  for (const std::int64_t size : {0, 2, 8, 16}) {
    Scenario s = zero3_on_four_nodes();
    s.plan.zeropp.secondary = size;
    Program p;
    lower(s, p);
    for (const Violation& v : check(p)) ADD_FAILURE() << v.text;
    const double n = zeropp_layer_elements(p), copy = size > 1 ? 2 * n / static_cast<double>(size) : 0;
    const PlacedBytes m = zeropp_layer_resident(p);
    EXPECT_NEAR(m.of(Place::device, Category::parameter) / (2 * n / 32 + copy), 1, 1e-4) << size;
    EXPECT_NEAR(m.of(Place::device, Category::gradient) / (2 * n / 32), 1, 1e-4) << size;
    EXPECT_NEAR(m.of(Place::device, Category::optimizer_state) / (12 * n / 32), 1, 1e-4) << size;
  }
}

// Section 3.2: of ZeRO-3's three volumes M that cross nodes the backward's gather does so no more.
TEST(Zeropp, GathersForTheBackwardInTheSmallerGroup) {
  for (const std::int64_t context : {1, 2}) {
    Scenario s = zero3_on_four_nodes();
    s.plan.zeropp.secondary = 8 / context;
    s.plan.context.degree = context;
    Program p;
    lower(s, p);
    const Piece& layer = piece_named(p, "layer");
    const auto gathers = [&](const Block& block) {
      std::vector<std::int64_t> ranks;
      for (const Op& op : block.ops)
        if (op.kind == OpKind::all_gather) ranks.push_back(p.mesh.size(op.group));
      return ranks;
    };
    EXPECT_THAT(gathers(layer.forward), testing::ElementsAre(32));
    EXPECT_THAT(gathers(layer.backward), testing::ElementsAre(8));
    for (const Op& op : layer.backward.ops) {
      if (op.kind == OpKind::all_gather) {  // neighbours: a node's
        for (std::size_t d = 0; d < p.mesh.digits().size(); ++d)
          EXPECT_EQ(op.group.contains(static_cast<int>(d)), p.mesh.digits()[d].stride < 8) << d;
      } else if (op.kind == OpKind::reduce_scatter) {
        EXPECT_EQ(p.mesh.size(op.group), 32);
      }
    }
    EXPECT_EQ(count_ops(layer.forward, OpKind::cast), 1) << "what keeps the part";
    EXPECT_EQ(p.mesh.size(layer.sets[0].over.secondary), 8);
  }
}

TEST(Zeropp, ComposesWithReplicasOfShardGroups) {
  Scenario s = zero3_on_four_nodes();
  s.plan.data.shard_degree = 16;
  s.plan.zeropp.secondary = 8;
  Program p;
  lower(s, p);
  EXPECT_EQ(p.mesh.size(MeshAxis::dp_shard), 16);
  EXPECT_EQ(p.mesh.size(MeshAxis::dp_replicate), 2);
  EXPECT_NEAR(zeropp_layer_resident(p).of(Place::device, Category::parameter) / (2 * zeropp_layer_elements(p)),
              1.0 / 16 + 1.0 / 8, 1e-5);
}

// Bytes that cross nodes in a micro-batch: of ZeRO-3's 3 M remain M / 2 of the weights, with a scale for 8000 of them,
// and M / 4 of the gradients (Wang et al. 2023, section 3).
TEST(Zeropp, MovesCodesInPlaceOfNumbers) {
  Scenario s = zero3_on_four_nodes();
  s.plan.zeropp = {.secondary = 8, .quantised_weights = true, .quantised_gradients = true};
  Program p;
  lower(s, p);
  for (const Violation& v : check(p)) ADD_FAILURE() << v.text;
  const Piece& layer = piece_named(p, "layer");
  const double n = zeropp_layer_elements(p), hidden = static_cast<double>(s.model.hidden);
  struct Moved {
    double in_node = 0, between = 0;
    int collectives = 0;
  };
  const auto moved = [&](OpKind kind, const Block& block) {
    Moved sum;
    for (const Op& op : block.ops) {
      if (op.kind != kind) continue;
      bool in_node = true;
      for (std::size_t d = 0; d < p.mesh.digits().size(); ++d)
        in_node = in_node && (!op.group.contains(static_cast<int>(d)) || p.mesh.digits()[d].stride < 8);
      (in_node ? sum.in_node : sum.between) += bytes(op, layer.tensors);
      ++sum.collectives;
    }
    return sum;
  };
  const Moved forward = moved(OpKind::all_gather, layer.forward), backward = moved(OpKind::all_gather, layer.backward),
              gradients = moved(OpKind::all_to_all, layer.backward);
  EXPECT_EQ(forward.collectives, 2) << "codes, and scales";
  EXPECT_NEAR(forward.between / (n * (1 + 4.0 / 8000)), 1, 1e-3);
  EXPECT_EQ(backward.collectives, 2);
  EXPECT_NEAR(backward.in_node / (n * (1 + 4.0 / 8000)), 1, 1e-3) << "codes of the second copy, as DeepSpeed's";
  EXPECT_EQ(backward.between, 0);
  EXPECT_EQ(gradients.collectives, 4);
  EXPECT_NEAR(gradients.in_node / (n * (0.5 + 4 / hidden)), 1, 1e-3);
  EXPECT_NEAR(gradients.between / (n / 8 * (0.5 + 4 / hidden)), 1, 1e-3) << "a rank sends what its node has summed";
  EXPECT_EQ(count_ops(layer.backward, OpKind::reduce_scatter), 0);

  s.plan.zeropp.quantised_secondary = true;
  lower(s, p);
  EXPECT_NEAR(moved(OpKind::all_gather, piece_named(p, "layer").backward).in_node / (n * (1 + 4.0 / 8000)), 1, 1e-3);
  EXPECT_NEAR(zeropp_layer_resident(p).of(Place::device, Category::parameter) / n, 2.0 / 32 + 1.0 / 8, 1e-3);
}

// Whatever cuts the ranks that divide gradients, and however they are ordered: what crosses nodes comes last.
// LoCo: an error for each gradient at the first hop, and for each gradient of a rank of the node at the second.
TEST(Zeropp, LocoKeepsWhatTheCodesOfBothHopsLose) {
  Scenario s = zero3_on_four_nodes();
  s.plan.zeropp.quantised_gradients = true;
  const Program plain = proven(s);
  s.plan.zeropp.feedback = true;
  const Program loco = proven(s);
  const double n = zeropp_layer_elements(loco),
               states = zeropp_layer_resident(loco).of(Place::device, Category::optimizer_state),
               before = zeropp_layer_resident(plain).of(Place::device, Category::optimizer_state);
  EXPECT_NEAR((states - before) / (2 * n * (1 + 1.0 / 8)), 1, 1e-3);
  std::vector<OpKind> fed_back;
  for (const Op& op : piece_named(loco, "layer").backward.ops)
    if (op.writes[2] != kNoTensor && is_quantiser(op.kind)) {
      EXPECT_EQ(op.writes[2], op.reads[op.kind == OpKind::quantise ? 1 : 2]);
      fed_back.push_back(op.kind);
    }
  EXPECT_THAT(fed_back, testing::ElementsAre(OpKind::quantise, OpKind::requantise));
  s.plan.zeropp.quantised_gradients = false;
  EXPECT_THAT(refusal_of(s), HasSubstr("without zero_quantized_gradients"));
  // With a pipeline DeepSpeed sums gradients once, and would exchange no codes.
  s.plan.zeropp.quantised_gradients = true;
  s.plan.pipeline.degree = 2;
  EXPECT_THAT(refusal_of(s), HasSubstr("the framework would reduce once"));
}

TEST(Zeropp, ExchangesGradientsWithinNodesFirst) {
  struct Hop {
    std::int64_t ranks;
    bool in_node;
    bool operator==(const Hop&) const = default;
  };
  const auto hops = [](auto change) {
    Scenario s = zero3_on_four_nodes();
    s.plan.zeropp.quantised_gradients = true;
    change(s);
    Program p;
    lower(s, p);
    for (const Violation& v : check(p)) ADD_FAILURE() << v.text;
    std::vector<Hop> found;
    for (const Op& op : piece_named(p, "layer").backward.ops) {
      if (op.kind != OpKind::all_to_all) continue;
      bool in_node = true;
      for (std::size_t d = 0; d < p.mesh.digits().size(); ++d)
        in_node = in_node && (!op.group.contains(static_cast<int>(d)) ||
                              p.mesh.digits()[d].stride * p.mesh.digits()[d].size <= s.cluster.node.devices);
      found.push_back({p.mesh.size(op.group), in_node});
    }
    std::vector<Hop> each;  // codes and scales travel alike
    for (std::size_t i = 0; i + 1 < found.size(); i += 2) {
      EXPECT_EQ(found[i], found[i + 1]);
      each.push_back(found[i]);
    }
    return each;
  };
  using Hops = std::vector<Hop>;
  EXPECT_EQ(hops([](Scenario&) {}), (Hops{{8, true}, {4, false}}));
  EXPECT_EQ(hops([](Scenario& s) { s.plan.zeropp.secondary = 16; }), (Hops{{8, true}, {4, false}}));
  EXPECT_EQ(hops([](Scenario& s) { s.plan.zeropp.secondary = 2; }), (Hops{{8, true}, {4, false}}));
  EXPECT_EQ(hops([](Scenario& s) {
              s.plan.context.degree = 2;
              s.plan.framework.mesh_order = "tp-dp-cp-pp";
            }),
            (Hops{{8, true}, {4, false}}));
  EXPECT_EQ(hops([](Scenario& s) { s.plan.zero_topo = {.weights = 2, .gradients = 16}; }),
            (Hops{{2, true}, {4, true}, {2, false}}));
  EXPECT_EQ(hops([](Scenario& s) { s.plan.zero_topo = {.weights = 16, .gradients = 16}; }),
            (Hops{{8, true}, {2, false}}));
  EXPECT_EQ(hops([](Scenario& s) { s.plan.zero_topo = {.weights = 2, .gradients = 8}; }), (Hops{{2, true}, {4, true}}));
}

// Without a second copy the backward gathers codes, too. Within one node there is one hop.
TEST(Zeropp, CodesNeedNoSecondCopy) {
  Scenario s = zero3_of_deepspeed(1);
  s.plan.zeropp = {.quantised_weights = true, .quantised_gradients = true};
  Program p;
  lower(s, p);
  for (const Violation& v : check(p)) ADD_FAILURE() << v.text;
  const Piece& layer = piece_named(p, "layer");
  EXPECT_EQ(count_ops(layer.backward, OpKind::all_gather), 2);
  EXPECT_EQ(count_ops(layer.backward, OpKind::all_to_all), 2);
  EXPECT_EQ(count_ops(layer.backward, OpKind::requantise), 0);
}

TEST(Zeropp, RefusesWhatItCannotLayOut) {
  const auto refusal = [](auto change) {
    Scenario s = zero3_on_four_nodes();
    s.plan.zeropp.secondary = 8;
    change(s.plan);
    return refusal_of(s);
  };
  EXPECT_THAT(refusal([](Plan& p) { p.data.zero_stage = 2; }), HasSubstr("/plan/zero_hpz_partition_size: found 8"));
  EXPECT_THAT(refusal([](Plan& p) { p.zeropp.secondary = 5; }),
              HasSubstr("/plan/zero_hpz_partition_size: found 5, expected a divisor of the 32 ranks"));
  EXPECT_THAT(refusal([](Plan& p) { p.data.shard_degree = 4; }), HasSubstr("expected a divisor of the 4 ranks"));
  EXPECT_THAT(refusal([](Plan& p) { p.data.reshard_after_forward = false; }),
              HasSubstr("/plan/reshard_after_forward: found false"));
  EXPECT_THAT(refusal([](Plan& p) {
                LayerRange range;
                range.to = 2;
                range.plan = p;
                range.plan.data.reshard_after_forward = false;
                p.layers = {range};
              }),
              HasSubstr("/plan/layers/0/reshard_after_forward: found false"));
  EXPECT_EQ(refusal([](Plan& p) { p.zeropp.secondary = 1; }), "nothing");
  EXPECT_THAT(refusal([](Plan& p) {
                p.zeropp = {.quantised_weights = true};
                p.data.zero_stage = 2;
              }),
              HasSubstr("/plan/zero_quantized_weights: found true"));
  EXPECT_THAT(refusal([](Plan& p) {
                p.zeropp.quantised_gradients = true;
                p.data.reduce_gradients = data_parallel::Reduction::once;
              }),
              HasSubstr("/plan/reduce_gradients: found \"once\""));
  EXPECT_THAT(refusal([](Plan& p) { p.zeropp = {.quantised_secondary = true}; }),
              HasSubstr("/plan/zero_quantized_secondary_weights: found true"));
  EXPECT_THAT(refusal([](Plan& p) { p.zeropp.group = 64; }), HasSubstr("/plan/zero_quantization_group_size: found 64"));
}

}  // namespace
}  // namespace orrery
