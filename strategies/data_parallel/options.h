#pragma once

#include <array>

#include "sim/base/fields.h"

namespace orrery::data_parallel {

// When gradients are reduced over data-parallel ranks. automatic: as the training framework does.
enum class Reduction : std::uint8_t { automatic, every_micro_batch, once };
inline constexpr std::array<std::string_view, 3> kReductionNames{"automatic", "every_micro_batch", "once"};

struct Options {
  std::int64_t degree = 0;
  std::int64_t zero_stage = 0;
  std::int64_t shard_degree = 0;
  Reduction reduce_gradients = Reduction::automatic;
  bool overlap_gradients = true;
  bool overlap_parameters = true;
  bool reshard_after_forward = true;
  std::int64_t prefetch = 1;
  bool float8_all_gather = false;
  std::int64_t max_live_parameters = 0;
  std::int64_t max_reuse_distance = 0;
  std::int64_t prefetch_bucket_size = 0;
  bool fp8_param_gather = false, fp4_param_gather = false;
  std::int64_t bucket_bytes = 0;

  void visit_fields(FieldVisitor& v) {
    v.field("data_parallel", degree, orrery::degree(0), "replicas; 0: what remains of the devices");
    v.field("zero_stage", zero_stage, IntegerRange{0, 3},
            "what is sharded over data-parallel ranks: 0 nothing, 1 optimizer states, 2 and gradients, 3 and "
            "parameters (FSDP)",
            Scope::buckets);
    v.field("zero_shard_degree", shard_degree, orrery::degree(0),
            "ranks in a shard group, replicated over the others (HSDP); 0: all data-parallel ranks");
    v.field("reduce_gradients", reduce_gradients, kReductionNames,
            "when gradients are reduced: in every micro-batch, or once a step, being whole until then (zero_stage 2 "
            "and 3: from a chunk's first backward on); automatic: the framework's choice");
    v.field("overlap_grad_reduce", overlap_gradients, "reduce gradients bucket by bucket while the backward still runs",
            Scope::buckets);
    v.field("overlap_param_gather", overlap_parameters,
            "gather updated parameters layer by layer under the next forward (zero_stage 1 and 2)");
    v.field("reshard_after_forward", reshard_after_forward,
            "zero_stage 3: free a layer's parameters after its forward and gather them again for its backward; false: "
            "keep them until the backward, or all step long if gradients are reduced once",
            Scope::layer);
    v.field("prefetch", prefetch, IntegerRange{.least = 0, .most = 1000},
            "zero_stage 3: number of layers ahead at which a layer's parameters are gathered", Scope::layer);
    v.field("enable_fsdp_float8_all_gather", float8_all_gather,
            "zero_stage 3 with precision fp8: cast the layers' parameters to fp8 before they are gathered, which "
            "halves the bytes of 16 bits (torchao)");
    v.field("stage3_max_live_parameters", max_live_parameters, at_least(0),
            "zero_stage 3: no gathers ahead beyond this many gathered elements; if a layer and the next have more, "
            "each matrix is gathered separately (DeepSpeed); 0: the framework's");
    v.field("stage3_max_reuse_distance", max_reuse_distance, at_least(0),
            "matrices gathered separately: a matrix stays gathered if fewer elements are used before its next use; 0: "
            "the framework's");
    v.field("stage3_prefetch_bucket_size", prefetch_bucket_size, at_least(0),
            "matrices gathered separately: least number of elements per gather; 0: the framework's");
    v.field("fp8_param_gather", fp8_param_gather,
            "zero_stage 1 and 2 with precision fp8: keep the layers' matrices in fp8 alone and gather updated ones in "
            "fp8 (Megatron-Core)");
    v.field("fp4_param_gather", fp4_param_gather, "like fp8_param_gather, in NVFP4 with precision nvfp4");
    v.field("bucket_bytes", bucket_bytes, at_least(0), "size of a gradient bucket; 0: the framework's default",
            Scope::buckets);
  }
};

}  // namespace orrery::data_parallel
