#include "strategies/precision/precision.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/program/rewrite.h"
#include "strategies/data_parallel/data_parallel.h"
#include "strategies/framework/framework.h"

namespace orrery::precision {

Dtype Options::storage() const { return mix == Mix::fp16 ? Dtype::fp16 : mix == Mix::fp32 ? Dtype::fp32 : Dtype::bf16; }

Dtype Options::compute() const { return mix == Mix::fp8 ? Dtype::fp8 : mix == Mix::nvfp4 ? Dtype::nvfp4 : storage(); }

Dtype peak_dtype(const Scenario& scenario) {
  const Device& device = scenario.cluster.device;
  Dtype fastest = scenario.plan.precision.compute();
  for (const LayerRange& range : scenario.plan.layers)
    if (const Dtype dtype = range.plan.precision.compute(); device.peak(dtype) > device.peak(fastest)) fastest = dtype;
  return fastest;
}

Recipe recipe_of(const Plan& plan) {
  const Recipe given = plan.precision.recipe;
  if (given != Recipe::automatic) return given;
  return framework::stack_of(plan).delays_fp8_scales ? Recipe::delayed : Recipe::tensorwise;
}

namespace {

// How the inputs of products become narrow.
struct Quantised {
  Dtype products = Dtype::fp8, tensors = Dtype::fp8;  // what the products multiply in; what they read
  std::optional<Dtype> attention = {};                // what attention reads; none: 16 bits
  // The transposed product reads another copy: its scales are of blocks along the dimension that is summed over, which
  // is another one there (NVIDIA 2025, arXiv 2509.25149, section 2), or the matrix units read operands in one order.
  bool two_copies = false;
  // The scale follows from the tensor's own largest magnitude, which a kernel before the cast finds. fuses_the_search:
  // if a compiler makes the kernel that writes the tensor, that kernel finds it.
  bool looks_first = false, fuses_the_search = false;
};

// The tensor cores of Hopper and Ada read both fp8 operands along the dimension that is summed over (cuBLAS manual,
// "cublasLtMatmul"). Transformer Engine therefore keeps transposed copies there (nvte_is_non_tn_fp8_gemm_supported).
bool reads_one_order(const Device& device) { return device.architecture == "Hopper" || device.architecture == "Ada"; }

// plan: the scenario's, which has the recipe.
Quantised quantised(const Plan& plan, const Plan& of_layer, const Device& device) {
  const Dtype products = of_layer.precision.compute();
  Quantised q{.products = products, .tensors = products};
  q.fuses_the_search = framework::stack_of(plan).kernels == framework::Kernels::compiled;
  const Recipe recipe = recipe_of(plan);
  const bool nvfp4 = products == Dtype::nvfp4;
  if (!nvfp4 && recipe == Recipe::blockwise) q.tensors = Dtype::fp8_blocks;
  if (!nvfp4 && recipe == Recipe::mxfp8) q.tensors = Dtype::mxfp8;
  if (of_layer.precision.fp8_attention) q.attention = q.tensors == Dtype::mxfp8 ? Dtype::mxfp8 : Dtype::fp8;
  q.two_copies = block_of(q.tensors) > 0 || reads_one_order(device);
  q.looks_first = nvfp4 || recipe == Recipe::tensorwise;
  return q;
}

// Quantises what the products of a block read: activations and output gradients once at each use. Where a product and
// the transposed one read two copies, one kernel writes both (join_casts).
class Quantiser {
 public:
  enum class Weights : std::uint8_t {
    stay,
    // Each block of each micro-batch gathers its weights (ZeRO-3), and quantises what it gathered.
    come_and_go,
    come_in_fp8,  // the same, but gathers them quantised
    // Quantised by rows before the step begins; the copies by columns are made once a step, unless weights are frozen.
    are_quantised
  };
  Quantiser(Piece& piece, const Quantised& how, Weights weights) : piece_(piece), how_(how), weights_(weights) {
    for (auto& quantised : quantised_) quantised.assign(piece_.tensors.size(), kNoTensor);
  }

  void run() {
    find_needed();
    if (weights_ == Weights::are_quantised) keep_quantised();
    for (Block* block : {&piece_.forward, &piece_.backward}) {
      out_.clear();
      for (std::size_t id = 0; id < quantised_[0].size(); ++id)
        if (const auto t = static_cast<TensorId>(id);
            piece_.tensors[id].category == Category::parameter && copies_go(t))
          for (auto& quantised : quantised_)
            if (quantised[id] != t) quantised[id] = kNoTensor;
      for (Op op : block->ops) {
        if (is_product(op)) {
          op.compute_dtype = how_.products;
          for (const int read : {0, 1}) {
            TensorId& id = op.reads[static_cast<std::size_t>(read)];
            const bool weight = read == 1 && op.kind != OpKind::linear_weight_gradient;
            id = weight ? quantise_weight(id, op) : quantise(id, op, copy_of(op, read));
          }
        }
        if (how_.attention && is_attention(op.kind)) quantise_operands(op);
        out_.push_back(op);
      }
      block->ops = out_;
    }
  }

 private:
  // A copy is made for products, and elements that share a scale lie side by side in its rows or in its columns, or for
  // attention.
  enum Copy : std::uint8_t { by_rows, by_columns, of_attention };

  // Returns true if copies of a weight are made for each block and freed with it. Frozen weights that are kept
  // quantised, with a scale each, are transposed so: MLPerf's LoRA on H200 has no room for a second copy of 70B.
  bool copies_go(TensorId weight) const {
    if (weights_ == Weights::come_and_go || weights_ == Weights::come_in_fp8) return true;
    const auto is_frozen = [&](const ParameterGradient& p) {
      return p.gradient == kNoTensor && storage_of(piece_, p.parameter) == storage_of(piece_, weight);
    };
    return weights_ == Weights::are_quantised && block_of(how_.tensors) == 0 &&
           std::ranges::any_of(piece_.parameters, is_frozen);
  }
  // Excludes the products of routers, whose logits are fp32.
  bool is_product(const Op& op) const {
    if (op.plain) return false;
    const auto is_fp32 = [&](TensorId id) { return piece_.tensors[id].dtype == Dtype::fp32; };
    switch (op.kind) {
      case OpKind::linear:
        return !is_fp32(op.writes[0]);
      case OpKind::linear_input_gradient:
        return !is_fp32(op.reads[0]);
      case OpKind::linear_weight_gradient:
        return !is_fp32(op.reads[1]);
      default:
        return false;
    }
  }
  // The copy that a product reads: its weight gradient sums over tokens, its input gradient over the product's results.
  Copy copy_of(const Op& op, int read) const {
    if (!how_.two_copies) return by_rows;
    if (op.kind == OpKind::linear_weight_gradient) return by_columns;
    return op.kind == OpKind::linear_input_gradient && read == 1 ? by_columns : by_rows;
  }

  void find_needed() {
    needed_.assign(piece_.tensors.size(), {});
    for (const Block* block : {&piece_.forward, &piece_.backward})
      for (const Op& op : block->ops)
        if (is_product(op))
          for (const int read : {0, 1}) needed_[op.reads[static_cast<std::size_t>(read)]][copy_of(op, read)] = true;
  }

  // Puts the weights of products into parameter sets of their own, as Megatron-Core does with buffers of another dtype.
  // There is no other copy of them.
  void keep_quantised() {
    std::vector<bool> is_weight(piece_.tensors.size());
    for (const Block* block : {&piece_.forward, &piece_.backward})
      for (const Op& op : block->ops) {
        if (!is_product(op) || op.kind == OpKind::linear_weight_gradient) continue;
        const TensorId root = storage_of(piece_, op.reads[1]);
        if (piece_.tensors[root].category == Category::parameter) is_weight[root] = true;
      }
    for (std::size_t id = 0; id < is_weight.size(); ++id) {
      const auto t = static_cast<TensorId>(id);
      if (!is_weight[storage_of(piece_, t)]) continue;
      piece_.tensors[id].dtype = how_.tensors;
      quantised_[by_rows][id] = t;
    }
    split_sets(piece_, [&](const ParameterGradient& p) { return !is_weight[storage_of(piece_, p.parameter)]; });
  }

  // Weights that stay are quantised once a step and kept for its micro-batches (Transformer Engine's
  // is_first_microbatch).
  TensorId quantise_weight(TensorId id, const Op& cause) {
    const Copy wanted = copy_of(cause, 1);
    const bool goes = copies_go(id);
    const bool comes_narrow = weights_ == Weights::come_in_fp8 || weights_ == Weights::are_quantised;
    if (weights_ == Weights::come_in_fp8 && wanted == by_rows) return id;
    for (const Copy copy : {by_columns, by_rows}) {
      if (quantised_[copy][id] != kNoTensor || (copy != wanted && (goes || !needed_[id][copy]))) continue;
      Tensor t = piece_.tensors[id];
      t.category = Category::workspace;
      t.resident = !goes;
      Op op;
      op.phase = cause.phase;
      op.when = goes ? When::every_micro_batch : When::first_micro_batch;
      op.name = comes_narrow ? "transpose_weight" : copy == by_columns ? "quantise_weight_columns" : "quantise_weight";
      if (how_.looks_first && !comes_narrow) op.passes = 2;
      cast(id, t, copy, op);
    }
    return quantised_[wanted][id];
  }

  // The forward's quantised input also serves the weight gradient. It is kept for that; of two copies, that by columns.
  TensorId quantise(TensorId id, const Op& cause, Copy wanted) {
    if (quantised_[wanted][id] != kNoTensor) return quantised_[wanted][id];
    for (const Copy copy : {by_columns, by_rows}) {
      if (quantised_[copy][id] != kNoTensor || (copy != wanted && !needed_[id][copy])) continue;
      Op op;
      op.phase = cause.phase == Phase::weight_gradient ? Phase::input_gradient : cause.phase;
      op.name = copy == by_columns ? "quantise_columns" : "quantise";
      cast_activation(id, copy, op);
    }
    return quantised_[wanted][id];
  }

  // Attention reads queries, keys and values in fp8, and its backward the gradient of its result, too. The forward's
  // copies are kept for the backward.
  void quantise_operands(Op& attention) {
    const std::size_t queries = queries_operand(attention.kind);
    std::vector<std::size_t> operands{queries, queries + 1};
    if (attention.kind == OpKind::attention_backward) operands.push_back(0);
    for (const std::size_t operand : operands) {
      TensorId& id = attention.reads[operand];
      if (id == kNoTensor) continue;
      if (quantised_[of_attention][id] == kNoTensor) {
        Op op;
        op.phase = attention.phase;
        op.name = "quantise_attention";
        cast_activation(id, of_attention, op);
      }
      id = quantised_[of_attention][id];
    }
  }

  // Returns true if a compiler makes the kernel that writes the tensor in this block. It makes no products or
  // attention.
  bool is_written_by_compiled(TensorId id) const {
    const auto writer =
        std::find_if(out_.rbegin(), out_.rend(), [&](const Op& op) { return std::ranges::count(op.writes, id) > 0; });
    return writer != out_.rend() && traits_of(writer->kind).op_class == OpClass::memory_bound;
  }

  void cast_activation(TensorId id, Copy copy, Op op) {
    if (how_.looks_first && !(how_.fuses_the_search && is_written_by_compiled(id))) op.passes = 2;
    cast(id, piece_.tensors[id], copy, op);
  }

  void cast(TensorId id, Tensor t, Copy copy, Op op) {
    t.alias_of = kNoTensor;
    t.dtype = copy == of_attention ? *how_.attention : how_.tensors;
    const TensorId q = piece_.add(t);
    for (auto& quantised : quantised_) quantised.resize(piece_.tensors.size(), kNoTensor);
    quantised_[copy][id] = q;
    op.kind = OpKind::cast;
    op.reads[0] = id;
    op.writes[0] = q;
    out_.push_back(op);
  }

  Piece& piece_;
  const Quantised how_;
  const Weights weights_;
  std::array<std::vector<TensorId>, 3> quantised_;  // by Copy
  std::vector<std::array<bool, 2>> needed_;         // by tensor and Copy: some product reads it
  std::vector<Op> out_;
};

// The input of the MLP's activation function waits for the backward in fp8, where it is cast back (Megatron-LM,
// megatron/core/fusions/fused_bias_swiglu.py, fp8_input_store).
void store_activation_inputs_in_fp8(Piece& piece) {
  std::vector<Op> forward;
  for (const Op& op : piece.forward.ops) {
    forward.push_back(op);
    if (op.kind != OpKind::activation) continue;
    const TensorId x = op.reads[0];
    const auto reader = std::ranges::find_if(
        piece.backward.ops, [&](const Op& b) { return b.kind == OpKind::activation_backward && b.reads[1] == x; });
    if (reader == piece.backward.ops.end()) continue;
    const TensorId kept = clone_tensor(piece, x, "activation_input", Category::activation, Dtype::fp8),
                   wide = clone_tensor(piece, x, "activation_input", Category::workspace, piece.tensors[x].dtype);
    forward.push_back(computation(OpKind::cast, "store_activation_input", Phase::forward, {x}, {kept}));
    reader->reads[1] = wide;
    piece.backward.ops.insert(
        reader, computation(OpKind::cast, "load_activation_input", Phase::input_gradient, {kept}, {wide}));
  }
  piece.forward.ops = std::move(forward);
}

// Returns true if the device's fp8 matrix units are older than MXFP8, whose blocks of 32 have scales of 8 bits.
bool lacks_mx(const Device& device) { return reads_one_order(device) || device.architecture == "CDNA3"; }

bool multiplies_narrow(const Plan& plan) { return plan.precision.mix == Mix::fp8 || plan.precision.mix == Mix::nvfp4; }

void check(const Scenario& scenario) {
  const Device& device = scenario.cluster.device;
  const auto has = [&](Dtype dtype) { return device.peak_flops_per_second[static_cast<std::size_t>(dtype)] > 0; };
  for_each_plan(scenario, [&](const Plan& plan, const std::string& at) {
    const Options& options = plan.precision;
    const auto fail = [&](const std::string& expected) { refuse(plan, "precision", expected, at); };
    const std::string here = " on " + device.name;
    if (options.mix == Mix::nvfp4 && !has(Dtype::nvfp4))
      fail((has(Dtype::fp8) ? "\"fp8\" or \"bf16\"" : "\"bf16\" or \"fp16\"") +
           std::string(": there are no NVFP4 matrix units") + here);
    if (options.mix == Mix::fp8 && recipe_of(scenario.plan) == Recipe::mxfp8 && lacks_mx(device))
      refuse(scenario.plan, "fp8_recipe",
             "\"delayed\", \"tensorwise\" or \"blockwise\": no matrix units scale MXFP8" + here);
    if (options.mix == Mix::fp8 && !has(Dtype::fp8)) fail("\"bf16\" or \"fp16\": there are no fp8 matrix units" + here);
    if (options.mix == Mix::bf16 && !has(Dtype::bf16))
      fail("\"fp16\" or \"fp32\": there are no bf16 matrix units" + here);
    if (options.fp8_attention && multiplies_narrow(plan)) {
      if (!plan.framework.flash_attention)
        refuse(plan, "flash_attention", "true with fp8_dot_product_attention: only fused kernels attend in fp8", at);
      using framework::AttentionKernel;
      const AttentionKernel kernel = scenario.plan.framework.attention_kernel;
      if (kernel != AttentionKernel::automatic && kernel != AttentionKernel::cudnn)
        refuse(scenario.plan, "attention_kernel",
               "\"cudnn\" with fp8_dot_product_attention: no other kernel attends in fp8");
    }
    if (options.storage() != scenario.plan.precision.storage())
      fail(std::string("a mix that keeps activations in ") + name_of(scenario.plan.precision.storage()) +
           ", the dtype that the other layers pass on");
  });
}

void rewrite_piece(const Scenario& scenario, const Plan& plan, const Program& program, Piece& piece) {
  if (!is_layer(piece)) return;
  if (plan.precision.fp8_activation_inputs) store_activation_inputs_in_fp8(piece);
  const Dtype products = plan.precision.compute();
  if (products == plan.precision.storage()) return;
  const data_parallel::Sharding sharding = data_parallel::sharding_of(scenario, plan, program);
  using Weights = Quantiser::Weights;
  Quantiser(piece, quantised(scenario.plan, plan, scenario.cluster.device),
            data_parallel::keeps_weights_quantised(scenario, plan) ? Weights::are_quantised
            : sharding.fp8_gathers                                 ? Weights::come_in_fp8
            : !sharding.over.weights.empty()                       ? Weights::come_and_go
                                                                   : Weights::stay)
      .run();
}

// Layers with quantised weights have other parameters than other layers, and separate buckets.
void rewrite(const Scenario& scenario, Program& program) {
  if (!scenario.plan.data.fp8_param_gather && !scenario.plan.data.fp4_param_gather) return;
  const LayerPlans plans = layer_plans(scenario);
  std::vector<std::pair<std::uint16_t, Dtype>> families;
  for (const Piece& piece : program.pieces) {
    const Plan& plan = plans.of(piece);
    families.emplace_back(piece.variant_of, data_parallel::keeps_weights_quantised(scenario, plan)
                                                ? plan.precision.compute()
                                                : plan.precision.storage());
  }
  for (std::size_t p = 0; p < families.size(); ++p)
    if (families[p].first != kNoPiece)
      program.pieces[p].variant_of =
          static_cast<std::uint16_t>(std::find(families.begin(), families.end(), families[p]) - families.begin());
}

bool scales_blocks(const Plan& plan) {
  const Recipe recipe = recipe_of(plan);
  return recipe == Recipe::blockwise || recipe == Recipe::mxfp8;
}
constexpr FieldRule kExcludes[]{
    keep({"enable_fsdp_float8_all_gather"}, "with an fp8_recipe that scales blocks",
         [](const AskedOf& a) { return scales_blocks(a.plan); }),
    keep({"fp8_param_gather"}, "with fp8_recipe \"mxfp8\", whose rows and columns are rounded apart",
         [](const AskedOf& a) { return recipe_of(a.plan) == Recipe::mxfp8; }),
    keep({"activation_func_fp8_input_store"}, "unless the model's activation function is swiglu",
         [](const AskedOf& a) { return a.model.activation != ActivationFunction::swiglu; }),
    keep({"fp8_dot_product_attention"}, "for a model whose attention has a bias of positions",
         [](const AskedOf& a) {
           return a.model.positions == Positions::relative || a.model.positions == Positions::alibi;
         }),
    keep({"fp8_dot_product_attention"},
         "for a model whose attention has windows, except on Blackwell and without packed documents",
         [](const AskedOf& a) {
           const bool windows = a.model.sliding_window > 0 || a.model.window > 0;
           return windows && (!a.scenario.cluster.device.architecture.starts_with("Blackwell") ||
                              a.scenario.workload.has_documents() || a.model.window > 0);
         }),
    keep({"fp8_dot_product_attention"},
         "on devices without a fused kernel for it (data centers' Hopper and Blackwell have one)",
         [](const AskedOf& a) {
           const Device& device = a.scenario.cluster.device;
           return device.name.starts_with("RTX") ||
                  (device.architecture != "Hopper" && !device.architecture.starts_with("Blackwell"));
         })};

constexpr FieldRule kIdle[]{keep({"fp8_recipe"}, ": no layer has precision \"fp8\"",
                                 [](const AskedOf& a) { return a.layers.precision.mix == Mix::fp8; }),
                            keep({"fp8_dot_product_attention"}, ": no layer has precision \"fp8\" or \"nvfp4\"",
                                 [](const AskedOf& a) { return multiplies_narrow(a.layers); })};

void check_runnable(const Scenario& scenario) {
  for_each_plan(scenario, [&](const Plan& plan, const std::string& at) {
    if (plan.precision.mix == Mix::fp8 && scales_blocks(scenario.plan))
      refuse(scenario.plan, "fp8_recipe", "\"tensorwise\" in real runs: no kernel scales blocks yet");
    if (plan.precision.mix == Mix::nvfp4)
      refuse(plan, "precision", "\"fp8\" or \"bf16\" in real runs: no kernel quantises to NVFP4 yet", at);
  });
}

}  // namespace

Strategy describe() {
  return {.name = "precision",
          .summary = "bf16, fp16, fp32, fp8 and nvfp4 mixes",
          .paper = "Micikevicius et al. 2017, arXiv 1710.03740",
          .excludes = kExcludes,
          .idle = kIdle,
          .check = check,
          .rewrite = rewrite,
          .rewrite_piece = rewrite_piece,
          .check_runnable = check_runnable};
}

}  // namespace orrery::precision
