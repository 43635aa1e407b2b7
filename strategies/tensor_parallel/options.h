#pragma once

#include "sim/base/fields.h"

namespace orrery::tensor_parallel {

struct Options {
  std::int64_t degree = 1;
  bool sequence_parallel = false;
  bool overlap = false;
  bool loss_parallel = true, vocab_parallel_embedding = true;

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
    v.field("loss_parallel", loss_parallel,
            "take the loss on logits that stay divided along the vocabulary; false: every tensor-parallel rank gathers "
            "them (torchtitan's disable_loss_parallel, Hugging Face's colwise_gather_output)");
    v.field("vocab_parallel_embedding", vocab_parallel_embedding,
            "divide the embedding's table along the vocabulary over the tensor-parallel ranks; false: each keeps it "
            "whole");
  }
};

}  // namespace orrery::tensor_parallel
