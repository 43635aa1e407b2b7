#pragma once

#include "sim/base/fields.h"

namespace orrery::zeropp {

struct Options {
  std::int64_t secondary = 0;
  bool quantised_weights = false, quantised_secondary = false, quantised_gradients = false, feedback = false;
  std::int64_t group = 0;  // 0: DeepSpeed's

  void visit_fields(FieldVisitor& v) {
    v.field("zero_hpz_partition_size", secondary, orrery::degree(0),
            "ZeRO++ (zero_stage 3): ranks of a shard group that divide a second copy of the weights, from which the "
            "backward gathers; 0 and 1: none");
    v.field("zero_quantized_weights", quantised_weights,
            "ZeRO++: weights are gathered as INT8 codes (qwZ), also from a second copy");
    v.field("zero_quantized_secondary_weights", quantised_secondary,
            "ZeRO++: the second copy of the weights is kept as INT8 codes, and gathered so");
    v.field("zero_quantized_gradients", quantised_gradients,
            "ZeRO++: every micro-batch exchanges gradients as INT4 codes, within nodes and then between them (qgZ)");
    v.field("zeropp_loco", feedback,
            "ZeRO++: what codes of gradients lose is added to the next gradients, at both hops (LoCo)");
    v.field("zero_quantization_group_size", group, orrery::degree(0),
            "numbers that share a scale in codes of weights and gradients; 0: 8000 weights, as DeepSpeed aims at, and "
            "as many gradients as the model is wide");
  }
};

}  // namespace orrery::zeropp
