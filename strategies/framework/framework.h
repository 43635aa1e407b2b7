// The training framework ("stack") and its version: which kernels it fuses, how fast its host issues them, how much
// memory it holds and how large its gradient buckets are. Values and sources: strategies/framework/stacks.json.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "models/layers.h"
#include "sim/program/program.h"
#include "strategies/scenario.h"

namespace orrery::framework {

// How element-wise chains become one kernel: fused by hand by the stack's authors, not at all, or by a compiler.
enum class Kernels : std::uint8_t { fused, eager, compiled };
// What a stack does with gradients between their reduction and the update: unscaling and clipping.
enum class GradientScaling : std::uint8_t {
  passes,    // one kernel over all gradients divides by the loss scale, another one clips
  one_pass,  // one kernel does both
  fused,     // the optimizer's kernel does both
};
// DeepSpeed's limits on gathered parameters (zero_stage 3). They count a rank's elements before data-parallel sharding
// and after all other sharding.
struct GatherLimits {
  // Nothing is gathered ahead beyond this. A layer with more than half of it is gathered matrix by matrix. 0: no limit,
  // and layers are gathered whole.
  std::int64_t live = 0;
  std::int64_t reuse = 0;     // a gathered set stays for its next use if fewer elements are used in between
  std::int64_t prefetch = 0;  // least number of elements per gather
};
// A field of the plan and the values, as JSON, that a stack supports. A search uses only these for the field.
struct SearchedValues {
  std::string field;
  std::vector<std::string> values;
};

// A stack as stacks.json has it.
struct StackPreset {
  Kernels kernels = Kernels::fused;
  std::string attention_kernel;  // the generation of the fused kernels, as calibration files name it
  std::string attention_kernel_on_blackwell;  // the same there
  Runtime runtime;  // its seconds are from the literature, before any fit to steps (sim/cost/step_calibration.h)
  // Elements of a gradient bucket: the larger of the first, and the second times the number of data-parallel ranks.
  double bucket_elements = 0, bucket_elements_per_data_rank = 0;
  GatherLimits gathers;
  GradientScaling gradient_scaling = GradientScaling::passes;
  bool accumulates_separately = false;  // separate kernels add a micro-batch's gradients to those of earlier ones
  // Tensors that all tensor-parallel ranks hold cross pipeline stages in parts, one from each rank.
  bool scatters_transfers = false;
  // Sharded weights (zero_stage 3) are in fp32 and are their own master copy: FSDP casts what it gathers.
  bool shards_in_fp32 = false;
  // The embedding and the head stay gathered from a forward to the end of its backward (FSDP's root unit).
  bool keeps_ends_gathered = false;
  // Tensor parallelism keeps inputs gathered along the sequence for weight gradients. False: it gathers them again.
  bool keeps_gathered_inputs = false;
  // Sharded gradients (zero_stage 2 and 3) are reduced in every micro-batch; otherwise once a step. The second one is
  // for plans with several pipeline stages.
  bool reduces_in_every_micro_batch = false, reduces_in_every_micro_batch_of_pipeline = false;
  // The stack can keep weights in quantised form only, and gather them so after the update: the plan's fp8_param_gather
  // and fp4_param_gather, with zero_stage 1 and 2. Other stacks refuse these fields.
  bool can_gather_quantised_weights = false;
  KernelChoices choices;  // before the plan's own (kernel_choices)
  bool delays_fp8_scales = false;   // unless the plan says (fp8_recipe): scales are of earlier steps' maxima
  // The stack itself distributes layers that do not divide evenly into the pipeline's chunks. Other stacks refuse such
  // layers unless the plan gives the layers of each chunk.
  bool deals_uneven_chunks = false;
  // For 16-bit parameters: the least zero_stage at which gradients have the parameters' dtype; kNoStage: never.
  static constexpr std::int64_t kNoStage = 4;
  std::int64_t fp16_gradients_from_zero = kNoStage, bf16_gradients_from_zero = kNoStage;
  // Gradients are copied into flat buffers of a bucket's size to be reduced (DeepSpeed's ZeRO).
  bool flat_reduction_buffers = false;
  // Runtime::copies_gradients_for_update, and with zero_stage 3 Runtime::update_copy_elements, take these values.
  bool copies_gradients_for_update = false;
  double sub_group_elements = 0;
  SentOutputs sent_outputs = SentOutputs::freed;  // unless the plan says (pipeline_outputs)
  std::vector<SearchedValues> searched;           // fields not listed: any value
};
const StackPreset& stack_of(const Plan& plan);
const StackPreset& stack_named(std::string_view name);  // REQUIRES: one of kStackNames
std::string_view stack_name(const Plan& plan);
// Returns the stack that a well-known library or method uses ("torchtitan": fsdp); empty: not known.
std::string_view stack_known_as(std::string_view name);

// Returns the kernels of layers that follow `layers`, the plan of a range of layers. Only flash_attention is taken from
// it; everything else is taken from scenario.plan.
KernelChoices kernel_choices(const Scenario& scenario, const Plan& layers);
// Returns the generation of fused attention kernels that the plan runs on the device, as calibration files name it;
// empty: the device's default.
std::string_view attention_kernel(const Plan& plan, const Device& device);
// Returns the dtype in which gradients are accumulated and reduced: the plan's, or the stack's if that is automatic.
Dtype gradient_dtype(const Plan& plan);
// Returns the axes from neighbouring ranks outwards, as the plan's mesh_order says. "dp" stands for dp_shard,
// dp_replicate and worker, in this order. An ep that is not named, and then etp, are outermost. Throws InputError if
// mesh_order is not a valid order.
std::array<MeshAxis, kMeshAxes> mesh_order(const Plan& plan);
// Returns how many ranks a node holds for each coordinate of the axes inside dp: its data-parallel ranks, if dp fills
// the node. It may exceed the data-parallel degree. 0: the axes inside dp do not divide the node evenly.
std::int64_t data_ranks_in_node(const Scenario& scenario);
// Whether sharded gradients (zero_stage 2 and 3) are reduced in every micro-batch; otherwise once a step.
bool reduces_shards_in_every_micro_batch(const Plan& plan);
// Returns the stack's limits, or the plan's where it sets them.
GatherLimits gather_limits(const Plan& plan);
// Returns the bytes of the stack's gradient bucket, in gradient_dtype(); 0: one bucket per layer.
double gradient_bucket_bytes(const Plan& plan, std::int64_t data_ranks);

}  // namespace orrery::framework
