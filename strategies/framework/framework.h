// The training stack's generation: which kernels it fuses, how fast its host issues them, what memory it holds and how
// large its gradient buckets are. Numbers and sources: strategies/framework/stacks.json.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/layers.h"
#include "sim/program/program.h"
#include "strategies/scenario.h"
#include "strategies/search_axis.h"

namespace orrery::framework {

// Of layers of this plan.
KernelChoices kernel_choices(const Scenario& scenario, const Plan& plan);
// The generation of fused attention kernels, by its name in the calibration files; empty: the device's default.
std::string_view attention_kernel(const Plan& plan);
std::string_view stack_name(const Plan& plan);
// The stack that a well-known library or method runs ("torchtitan": fsdp); empty: none that is known.
std::string_view stack_known_as(std::string_view name);
// Who joins element-wise chains into one kernel: the stack's authors by hand, nobody, a compiler.
enum class Kernels : std::uint8_t { fused, eager, compiled };
// Of a field of the plan the values that the stack has, as JSON: of those alone a search makes plans for it.
struct SearchedValues {
  std::string field;
  std::vector<std::string> values;
};
std::span<const SearchedValues> searched_values(const Plan& plan);  // of all other fields any
// Of stacks.json, before any fit to steps (sim/cost/step_calibration.h). REQUIRES: one of kStackNames.
double literature_host_seconds_per_op(std::string_view stack);
Kernels kernels_of(std::string_view stack);
// What a stack does with gradients between their reduction and the update.
enum class GradientScaling : std::uint8_t {
  passes,    // one over all of them divides by the loss scale, another clips
  one_pass,  // does both
  fused,     // the optimizer's kernel does
};
GradientScaling gradient_scaling(const Plan& plan);
// Returns the dtype in which gradients are accumulated and reduced: the plan's, or, where that is automatic, the
// stack's.
Dtype gradient_dtype(const Plan& plan);
// Kernels of their own add a micro-batch's gradients to those of earlier ones.
bool accumulates_separately(const Plan& plan);
// Returns whether the stack itself deals layers that do not divide evenly into the pipeline's chunks. Other stacks
// refuse such layers unless they are told each chunk's.
bool deals_uneven_chunks(const Plan& plan);
// What tensor-parallel ranks hold alike crosses pipeline stages in parts.
bool scatters_transfers(const Plan& plan);
// Axes from neighbouring ranks outwards, as the plan's mesh_order says; "dp" are both of data parallelism. Throws
// InputError where it is no such order.
std::array<MeshAxis, kMeshAxes> mesh_order(const Plan& plan);
// Gradients that are sharded (zero_stage 2 and 3): else once a step.
bool reduces_shards_in_every_micro_batch(const Plan& plan);
// Divided weights (zero_stage 3) are fp32, their own master copy: FSDP casts what it gathers.
bool shards_in_fp32(const Plan& plan);
// The embedding and the head, once gathered in a forward, are whole until its backward has ended (FSDP's root unit).
bool keeps_ends_gathered(const Plan& plan);
// How much of sharded parameters is gathered, in elements that are whole on one rank (zero_stage 3).
struct GatherLimits {
  std::int64_t live = 0;      // beyond which none are gathered ahead; 0: no limit, and layers are gathered whole
  std::int64_t reuse = 0;     // used in between, below which what is gathered stays so for its next use
  std::int64_t prefetch = 0;  // gathered at once, at least
};
// DeepSpeed's; the plan's, where it says so.
GatherLimits gather_limits(const Plan& plan);
// Tensor parallelism: inputs of products that are gathered along the sequence are kept for the weight gradients, not
// gathered again.
bool keeps_gathered_inputs(const Plan& plan);
// Weights that are kept quantised alone, and gathered so after the update (zero_stage 1 and 2).
bool gathers_quantised_weights(const Plan& plan);
double gradient_bucket_bytes(const Plan& plan, std::int64_t data_ranks);

}  // namespace orrery::framework
