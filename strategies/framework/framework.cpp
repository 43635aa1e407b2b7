#include "strategies/framework/framework.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "sim/base/input_file.h"
#include "sim/base/json_reader.h"
#include "strategies/strategy.h"

namespace orrery::framework {
namespace {

std::array<StackPreset, kStackNames.size()> read_stacks() {
  constexpr const char* kFile = "strategies/framework/stacks.json";
  const nlohmann::json document = parse_embedded(kFile);
  std::array<StackPreset, kStackNames.size()> stacks;
  for (std::size_t i = 0; i < kStackNames.size(); ++i) {
    const nlohmann::json& j = document.at(std::string(kStackNames[i]));
    StackPreset& s = stacks[i];
    const std::string kernels = j.at("kernels");
    s.kernels = kernels == "eager" ? Kernels::eager : kernels == "compiled" ? Kernels::compiled : Kernels::fused;
    s.choices.fused_kernels = s.kernels != Kernels::eager;
    s.attention_kernel = j.at("attention_kernel");
    s.attention_kernel_on_blackwell = j.value("attention_kernel_on_blackwell", s.attention_kernel);
    s.runtime.host_seconds_per_op = j.at("host_seconds_per_op");
    s.runtime.host_seconds_per_collective = s.runtime.host_seconds_per_update_op = s.runtime.host_seconds_per_op;
    s.runtime.context_bytes = j.at("context_bytes");
    s.runtime.buffer_bytes_per_communicator = j.at("buffer_bytes_per_communicator");
    s.runtime.granularity = j.at("allocator_granularity_bytes").get<double>();
    s.runtime.placeholder_gradients = j.at("placeholder_gradients");
    s.bucket_elements = j.at("gradient_bucket_elements");
    s.bucket_elements_per_data_rank = j.at("gradient_bucket_elements_per_data_rank");
    s.gathers.live = j.at("stage3_max_live_parameters");
    s.gathers.reuse = j.at("stage3_max_reuse_distance");
    s.gathers.prefetch = j.at("stage3_prefetch_bucket_size");
    const auto from_stage = [&](const char* dtype) -> std::int64_t {
      const nlohmann::json& stage = j.at("gradients_as_parameters_from_zero_stage").at(dtype);
      return stage.is_null() ? StackPreset::kNoStage : stage.get<std::int64_t>();
    };
    s.fp16_gradients_from_zero = from_stage("fp16");
    s.bf16_gradients_from_zero = from_stage("bf16");
    s.flat_reduction_buffers = j.at("reduction_buffers") == "flat";
    s.copies_gradients_for_update = j.at("update_gradients") == "copied";
    s.sub_group_elements = j.at("stage3_sub_group_size");
    const std::string sent = j.at("sent_outputs");
    s.sent_outputs = sent == "kept" ? SentOutputs::kept : sent == "part" ? SentOutputs::part : SentOutputs::freed;
    s.runtime.host_bytes_per_rank = j.at("host_bytes_per_rank");
    const std::string scaling = j.at("gradient_scaling");
    s.gradient_scaling = scaling == "fused"      ? GradientScaling::fused
                         : scaling == "one_pass" ? GradientScaling::one_pass
                                                 : GradientScaling::passes;
    s.accumulates_separately = j.at("gradient_accumulation") == "separate";
    s.scatters_transfers = j.at("pipeline_transfers") == "scattered";
    const std::string loss = j.at("cross_entropy");
    s.choices.loss = loss == "unfused" ? LossKernels::unfused : loss == "fp32" ? LossKernels::fp32 : LossKernels::fused;
    s.shards_in_fp32 = j.at("sharded_parameters") == "fp32";
    s.keeps_ends_gathered = j.at("gathered_ends") == "kept";
    s.keeps_gathered_inputs = j.at("gathered_inputs") == "kept";
    s.reduces_in_every_micro_batch = j.at("reduce_sharded_gradients") == "every_micro_batch";
    s.reduces_in_every_micro_batch_of_pipeline = j.at("reduce_sharded_gradients_in_pipeline") == "every_micro_batch";
    s.can_gather_quantised_weights = j.at("quantised_weights") == "gathered";
    s.runtime.launches_each_expert = j.at("expert_kernels") == "each";
    s.runtime.reads_row_counts = j.at("row_counts") == "host";
    s.choices.weighs_activations = j.at("expert_weights") == "activation";
    s.choices.fused_scaled_rotary = j.at("scaled_rotary") == "fused";
    s.choices.fused_clamps = j.at("clamps") == "fused";
    s.choices.fused_expert_biases = j.at("expert_biases") == "fused";
    s.delays_fp8_scales = j.at("fp8_recipe") == "delayed";
    s.deals_uneven_chunks = j.at("uneven_chunks") == "dealt";
    for (const auto& [field, values] : j.at("searched").items()) {
      SearchedValues& of_field = s.searched.emplace_back();
      of_field.field = field;
      for (const nlohmann::json& value : values) of_field.values.push_back(value.dump());
    }
  }
  return stacks;
}

const StackPreset& preset(Stack stack) {
  static const auto stacks = read_stacks();
  return stacks[static_cast<std::size_t>(stack)];
}

bool is_megatron(Stack stack) {
  return stack == Stack::megatron_core || stack == Stack::megatron_2021 || stack == Stack::megatron_deepspeed;
}

}  // namespace

const StackPreset& stack_of(const Plan& plan) { return preset(plan.framework.stack); }

const StackPreset& stack_named(std::string_view name) {
  return preset(static_cast<Stack>(std::ranges::find(kStackNames, name) - kStackNames.begin()));
}

std::string_view stack_name(const Plan& plan) { return kStackNames[static_cast<std::size_t>(plan.framework.stack)]; }

KernelChoices kernel_choices(const Scenario& scenario, const Plan& layers) {
  const Plan& plan = scenario.plan;
  KernelChoices k = stack_of(plan).choices;
  k.flash_attention = layers.framework.flash_attention;
  if (const CrossEntropy loss = plan.framework.cross_entropy; loss != CrossEntropy::automatic)
    k.loss = static_cast<LossKernels>(static_cast<std::uint8_t>(loss) - 1);
  // Graphs hold experts only where these are one fused op of Transformer Engine.
  if (plan.framework.graphs_hold_experts) k.fused_clamps = k.fused_expert_biases = true;
  k.activation = k.parameter = plan.precision.storage();
  k.gradient = gradient_dtype(plan);
  // Megatron-LM's make-vocab-size-divisible-by; elsewhere the tensor-parallel ranks need equal parts.
  k.vocab_multiple = (is_megatron(plan.framework.stack) ? 128 : 1) * plan.tensor.degree;
  return k;
}

std::string_view attention_kernel(const Plan& plan, const Device& device) {
  if (plan.framework.attention_kernel != AttentionKernel::automatic)
    return kAttentionKernelNames[static_cast<std::size_t>(plan.framework.attention_kernel)];
  const StackPreset& stack = stack_of(plan);
  return device.architecture.starts_with("Blackwell") ? stack.attention_kernel_on_blackwell : stack.attention_kernel;
}

Dtype gradient_dtype(const Plan& plan) {
  using precision::GradientDtype;
  const Dtype parameters = plan.precision.storage();
  const GradientDtype given = plan.precision.gradients;
  if (parameters == Dtype::fp32 || given == GradientDtype::fp32) return Dtype::fp32;
  if (given != GradientDtype::automatic) return given == GradientDtype::bf16 ? Dtype::bf16 : Dtype::fp16;
  const StackPreset& s = stack_of(plan);
  const std::int64_t least = parameters == Dtype::fp16 ? s.fp16_gradients_from_zero : s.bf16_gradients_from_zero;
  return plan.data.zero_stage >= least ? parameters : Dtype::fp32;
}

bool reduces_shards_in_every_micro_batch(const Plan& plan) {
  const StackPreset& s = stack_of(plan);
  // The stack's own rule. For example, DeepSpeed reduces once under a pipeline (stacks.json).
  return plan.pipeline.degree > 1 ? s.reduces_in_every_micro_batch_of_pipeline : s.reduces_in_every_micro_batch;
}

GatherLimits gather_limits(const Plan& plan) {
  GatherLimits limits = stack_of(plan).gathers;
  if (plan.data.max_live_parameters > 0) limits.live = plan.data.max_live_parameters;
  if (plan.data.max_reuse_distance > 0) limits.reuse = plan.data.max_reuse_distance;
  if (plan.data.prefetch_bucket_size > 0) limits.prefetch = plan.data.prefetch_bucket_size;
  return limits;
}

double gradient_bucket_bytes(const Plan& plan, std::int64_t data_ranks) {
  const StackPreset& s = stack_of(plan);
  const double elements =
      std::max(s.bucket_elements, s.bucket_elements_per_data_rank * static_cast<double>(data_ranks));
  return elements * static_cast<double>(bytes_of(gradient_dtype(plan), 1));
}

std::array<MeshAxis, kMeshAxes> mesh_order(const Plan& plan) {
  const std::string& text = plan.framework.mesh_order;
  std::array<MeshAxis, kMeshAxes> order{};
  std::size_t count = 0;
  const auto add = [&](MeshAxis axis) { order[count++] = axis; };
  const auto fail = [&] {
    refuse(plan, "mesh_order",
           "tp, cp, dp and pp once each, from neighbouring ranks outwards, and ep if there are experts: "
           "\"tp-cp-ep-dp-pp\"");
  };
  constexpr std::array<std::string_view, 5> kWords{"tp", "cp", "ep", "dp", "pp"};
  std::array<bool, kWords.size()> seen{};
  for (std::string_view rest = text;;) {
    const std::size_t dash = rest.find('-');
    const auto word =
        static_cast<std::size_t>(std::find(kWords.begin(), kWords.end(), rest.substr(0, dash)) - kWords.begin());
    if (word == kWords.size() || seen[word]) fail();
    seen[word] = true;
    constexpr std::array kAxes{MeshAxis::tp, MeshAxis::cp, MeshAxis::ep, MeshAxis::dp_shard, MeshAxis::pp};
    add(kAxes[word]);
    if (kAxes[word] == MeshAxis::dp_shard)
      for (const MeshAxis axis : {MeshAxis::dp_replicate, MeshAxis::worker}) add(axis);
    if (dash == std::string_view::npos) break;
    rest.remove_prefix(dash + 1);
  }
  if (!seen[2]) add(MeshAxis::ep);
  add(MeshAxis::etp);
  if (count < order.size()) fail();
  return order;
}

std::int64_t data_ranks_in_node(const Scenario& scenario) {
  const Plan& plan = scenario.plan;
  const std::int64_t devices = scenario.cluster.node.devices;
  std::int64_t inner = 1;  // ranks of the axes before data parallelism, which lie between its ranks
  for (const MeshAxis axis : mesh_order(plan)) {
    if (axis == MeshAxis::dp_shard) break;
    inner *= axis == MeshAxis::tp   ? plan.tensor.degree
             : axis == MeshAxis::cp ? plan.context.degree
             : axis == MeshAxis::pp ? plan.pipeline.degree
                                    : 1;
  }
  return devices % inner == 0 ? devices / inner : 0;
}

std::string_view stack_known_as(std::string_view name) {
  // Other names of stacks, by what they run: see "summary" in stacks.json.
  static constexpr std::pair<std::string_view, std::string_view> kOtherNames[]{
      {"torchtitan", "fsdp"},        {"pytorch", "fsdp"},       {"ddp", "fsdp"},
      {"llm-foundry", "fsdp"},       {"nemo", "megatron-core"}, {"megatron-lm", "megatron-core"},
      {"megatron", "megatron-core"}, {"zero", "deepspeed"},     {"maxtext", "jax"},
  };
  for (const auto& [other, stack] : kOtherNames)
    if (name == other) return stack;
  return {};
}

namespace {

void check(const Scenario& scenario) {
  mesh_order(scenario.plan);
  if (scenario.plan.framework.collective_algorithm == CollectiveAlgorithm::collnet &&
      !scenario.cluster.fabric.in_network_reduction)
    refuse(scenario.plan, "collective_algorithm",
           "another algorithm without cluster.fabric.in_network_reduction: CollNet needs switches that reduce");
}

// Adds the buffers into which DeepSpeed's ZeRO copies gradients to reduce them: always of the bucket's size.
void add_reduction_buffers(const Scenario& scenario, Runtime& runtime) {
  const Plan& plan = scenario.plan;
  const std::int64_t stage = plan.data.zero_stage;
  const StackPreset& s = stack_of(plan);
  const std::int64_t ranks = data_parallel_degree(scenario) * plan.context.degree;
  if (!s.flat_reduction_buffers || ranks == 1 || stage == 0 || (stage == 1 && scenario.model.experts == 0)) return;
  const double bytes = plan.data.bucket_bytes > 0
                           ? static_cast<double>(plan.data.bucket_bytes)
                           : s.bucket_elements * static_cast<double>(bytes_of(plan.precision.storage(), 1));
  runtime.keeps_reduction_buffers = stage == 3;
  // With overlap there are two: one fills while the other is reduced.
  runtime.reduction_buffer_bytes = stage == 2 && plan.data.overlap_gradients ? 2 * bytes : bytes;
}

void rewrite(const Scenario& scenario, Program& program) {
  const StackPreset& stack = stack_of(scenario.plan);
  program.runtime = stack.runtime;
  add_reduction_buffers(scenario, program.runtime);
  const std::int64_t zero_stage = scenario.plan.data.zero_stage;
  program.runtime.copies_gradients_for_update = stack.copies_gradients_for_update;
  program.runtime.update_copy_elements = zero_stage == 3 ? stack.sub_group_elements : 0;
  const auto chosen = scenario.plan.pipeline.sent_outputs;
  program.runtime.sent_outputs = chosen == pipeline_parallel::SentOutputs::automatic ? stack.sent_outputs
                                 : chosen == pipeline_parallel::SentOutputs::freed   ? SentOutputs::freed
                                                                                     : SentOutputs::kept;
  // Where parameters are sharded, products do not add to a buffer of the stack's own (Megatron FSDP).
  if (scenario.plan.data.zero_stage == 3) program.runtime.placeholder_gradients = false;
  program.runtime.cuda_graphs = scenario.plan.framework.cuda_graphs;
  program.runtime.graphs_leave_experts =
      scenario.plan.expert.capacity_factor == 0 && !scenario.plan.framework.graphs_hold_experts;
  // Sizes of messages and of separate kernels are arguments of calls. Where experts have fixed slots they are known,
  // and one kernel for all experts of a rank without exchanges reads them on the device.
  if (!scenario.model.has_experts() || scenario.plan.expert.capacity_factor > 0 ||
      (scenario.plan.expert.degree == 1 && !program.runtime.launches_each_expert))
    program.runtime.reads_row_counts = false;
  program.runtime.collective_algorithm = scenario.plan.framework.collective_algorithm;
  program.runtime.collective_protocol = scenario.plan.framework.collective_protocol;
}

// Megatron-LM's orders: the stages farthest apart, or the replicas (its --use-tp-pp-dp-mapping).
constexpr std::array<const char*, 2> kOrders{kMeshOrder, "tp-cp-ep-pp-dp"};
constexpr SearchAxis kAxes[]{
    {.field = "mesh_order",
     .label = "order",
     .chosen_with = ChosenWith::replicas,
     .set = [](Plan& plan,
               std::int64_t value) { plan.framework.mesh_order = kOrders[static_cast<std::size_t>(value)]; },
     .values = [](const Scenario& s) { return flags(s.plan.pipeline.degree > 1 && data_parallel_degree(s) > 1); },
     .acts =
         [](const Scenario& chosen) { return chosen.plan.pipeline.degree > 1 && data_parallel_degree(chosen) > 1; }}};

}  // namespace

Strategy describe() {
  return {.name = "framework",
          .summary = "the training stack: fused kernels, host issue rate, memory overheads",
          .paper = "-",
          .check = check,
          .rewrite = rewrite,
          .search_axes = kAxes};
}

}  // namespace orrery::framework
