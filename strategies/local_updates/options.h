#pragma once

#include <array>

#include "sim/base/fields.h"

namespace orrery::local_updates {

enum class OuterOptimizer : std::uint8_t { average, momentum, nesterov, pull };
inline constexpr std::array<std::string_view, 4> kOuterOptimizerNames{"average", "momentum", "nesterov", "pull"};
enum class OuterDtype : std::uint8_t { fp32, bf16, fp16, int8, int4, fp8 };
inline constexpr std::array<std::string_view, 6> kOuterDtypeNames{"fp32", "bf16", "fp16", "int8", "int4", "fp8"};
enum class Exchange : std::uint8_t { all_ranks, first_ranks };
inline constexpr std::array<std::string_view, 2> kExchangeNames{"all_ranks", "first_ranks"};

struct Options {
  std::int64_t steps = 0, workers = 0, delay = 0, fragments = 1;
  OuterOptimizer optimizer = OuterOptimizer::average;
  OuterDtype dtype = OuterDtype::fp32;
  Exchange exchange = Exchange::all_ranks;
  bool gap_norms = false;
  double learning_rate = 1, momentum = 0.9, clip = 0, gap_penalty = 1;

  static constexpr double kLeast = 1e-30, kMost = 1e30;  // of numbers that kernels have as fp32

  void visit_fields(FieldVisitor& v) {
    v.field(
        "local_steps", steps, degree(0),
        "local updates: steps that each worker trains a copy of the model by itself before the workers agree on one "
        "again (tau of CO2, H of DiLoCo); 0: gradients are summed over all replicas in every step");
    v.field(
        "local_workers", workers, degree(0),
        "local updates: number of workers, each of as many data-parallel replicas; 0: one for each node, or one for "
        "each replica where nodes do not divide them, or where workers send compressed gradients");
    v.field("outer_optimizer", optimizer, kOuterOptimizerNames,
            "local updates: how workers agree: on the mean of their parameters (local SGD), or by a step from the last "
            "agreement along the mean of their displacements, with momentum (SlowMo, CO2) or Nesterov's (DiLoCo); or "
            "not quite: each worker is pulled towards the last mean (Overlap-Local-SGD)");
    v.field("outer_learning_rate", learning_rate, NumberRange{.least = kLeast, .most = kMost},
            "local updates: learning rate of the outer optimizer; with \"pull\" the share of the way to the last mean");
    v.field("outer_momentum", momentum, NumberRange{.least = 0, .most = 1},
            "local updates: momentum of the outer optimizer");
    v.field("outer_clip", clip, or_none({.least = kLeast, .most = kMost}),
            "local updates: largest magnitude of an element of the outer momentum (CO2); 0: no limit");
    v.field(
        "outer_gap_penalty", gap_penalty, NumberRange{.least = 1, .most = kMost},
        "local updates: constant that the mean displacement is divided by before it is added to the momentum (CO2's "
        "staleness gap penalty)");
    v.field("outer_gap_norms", gap_norms,
            "local updates: the penalty is 1 plus the norm of the last outer step relative to that of the first local "
            "step since (CO2's paper), in place of a constant");
    v.field("outer_delay", delay, IntegerRange{.least = 0, .most = 1},
            "local updates: 1: the mean is taken beside the next local steps and applied after them (CO2); 0: workers "
            "wait for it");
    v.field("outer_fragments", fragments, IntegerRange{.least = 1, .most = 64},
            "local updates: parts of the model that workers agree on in turn, each every local_steps steps (streaming "
            "DiLoCo)");
    v.field(
        "outer_exchange", exchange, kExchangeNames,
        "local updates: which ranks take the mean: all, each of its own part, or the first rank of each node, which "
        "then sends it to the others (CO2's released code); every rank then keeps all outer states");
    v.field("outer_dtype", dtype, kOuterDtypeNames,
            "local updates: dtype of displacements on the wire; int8, int4 and fp8 are codes with an fp32 scale for "
            "4096 numbers, for outer_optimizer \"momentum\" or \"nesterov\" and outer_delay 0; parameters are averaged "
            "in their own");
  }
};

}  // namespace orrery::local_updates
