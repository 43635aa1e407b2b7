#pragma once

#include "sim/base/fields.h"

namespace orrery::tensor_parallel {

struct Options {
  std::int64_t degree = 1;
  bool sequence_parallel = false;
  bool overlap = false;

  void visit_fields(FieldVisitor& v) {
    v.field("tensor_parallel", degree, orrery::degree(), "ranks that share each layer's matrices (Megatron-LM)",
            Scope::mesh);
    v.field("sequence_parallel", sequence_parallel,
            "shard norms, dropouts and the residual stream along the sequence over the tensor-parallel ranks",
            Scope::stream);
    v.field(
        "tensor_parallel_overlap", overlap,
        "split the products next to a collective into chunks that overlap with it (Transformer Engine's userbuffers)",
        Scope::layer);
  }
};

}  // namespace orrery::tensor_parallel
