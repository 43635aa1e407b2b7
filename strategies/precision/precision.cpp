#include "strategies/precision/precision.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "sim/program/rewrite.h"
#include "strategies/data_parallel/data_parallel.h"

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

namespace {

// Quantises what the products of a block read: activations and output gradients once at each use. nvfp4 has two copies
// of each tensor, because scales are of blocks along the dimension that is summed over, which is another one in the
// transposed product (NVIDIA 2025, arXiv 2509.25149, section 2). The two casts read the 16-bit tensor twice, as much as
// a pass for its maximum and one that writes both copies.
class Quantiser {
 public:
  enum class Weights : std::uint8_t {
    stay,
    // Each block of each micro-batch gathers its weights (ZeRO-3), and quantises what it gathered.
    come_and_go,
    come_in_fp8,  // the same, but gathers them quantised
    // Quantised by rows before the step begins; the copies by columns are made once a step.
    are_quantised
  };
  Quantiser(Piece& piece, Dtype dtype, Weights weights)
      : piece_(piece), dtype_(dtype), copies_(block_of(dtype) > 0 ? 2 : 1), weights_(weights) {
    for (auto& quantised : quantised_) quantised.assign(piece_.tensors.size(), kNoTensor);
  }

  void run() {
    find_needed();
    if (weights_ == Weights::are_quantised) keep_quantised();
    for (Block* block : {&piece_.forward, &piece_.backward}) {
      out_.clear();
      if (weights_ == Weights::come_and_go)
        for (std::size_t id = 0; id < quantised_[0].size(); ++id)
          if (piece_.tensors[id].category == Category::parameter)
            for (auto& quantised : quantised_) quantised[id] = kNoTensor;
      for (Op op : block->ops) {
        if (is_product(op)) {
          op.compute_dtype = dtype_;
          for (const int read : {0, 1}) {
            TensorId& id = op.reads[static_cast<std::size_t>(read)];
            const bool weight = read == 1 && op.kind != OpKind::linear_weight_gradient;
            id = weight ? quantise_weight(id, op) : quantise(id, op, copy_of(op, read));
          }
        }
        out_.push_back(op);
      }
      block->ops = out_;
    }
  }

 private:
  // Whether blocks of scales lie along a row of the tensor, or along a column.
  enum Copy : std::uint8_t { by_rows, by_columns };

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
    if (copies_ == 1) return by_rows;
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
      piece_.tensors[id].dtype = dtype_;
      quantised_[by_rows][id] = t;
    }
    split_sets(piece_, [&](const ParameterGradient& p) { return !is_weight[storage_of(piece_, p.parameter)]; });
  }

  // Weights that stay are quantised once a step and kept for its micro-batches (Transformer Engine's
  // is_first_microbatch).
  TensorId quantise_weight(TensorId id, const Op& cause) {
    if (weights_ == Weights::come_in_fp8) return id;
    const Copy wanted = copy_of(cause, 1);
    for (const Copy copy : {by_columns, by_rows}) {
      if (quantised_[copy][id] != kNoTensor) continue;
      if (copy != wanted && (weights_ == Weights::come_and_go || !needed_[id][copy])) continue;
      const bool stays = weights_ != Weights::come_and_go;
      Tensor t = piece_.tensors[id];
      t.category = Category::workspace;
      t.resident = stays;
      Op op;
      op.phase = cause.phase;
      op.when = stays ? When::first_micro_batch : When::every_micro_batch;
      op.name = weights_ == Weights::are_quantised   ? "transpose_weight"
                : copies_ == 2 && copy == by_columns ? "quantise_weight_columns"
                                                     : "quantise_weight";
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
      op.name = copies_ == 2 && copy == by_columns ? "quantise_columns" : "quantise";
      cast(id, piece_.tensors[id], copy, op);
    }
    return quantised_[wanted][id];
  }

  void cast(TensorId id, Tensor t, Copy copy, Op op) {
    t.alias_of = kNoTensor;
    t.dtype = dtype_;
    const TensorId q = piece_.add(t);
    for (auto& quantised : quantised_) quantised.resize(piece_.tensors.size(), kNoTensor);
    quantised_[copy][id] = q;
    op.kind = OpKind::cast;
    op.reads[0] = id;
    op.writes[0] = q;
    out_.push_back(op);
  }

  Piece& piece_;
  const Dtype dtype_;
  const int copies_;
  const Weights weights_;
  std::array<std::vector<TensorId>, 2> quantised_;  // by Copy
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
    if (options.mix == Mix::fp8 && !has(Dtype::fp8)) fail("\"bf16\" or \"fp16\": there are no fp8 matrix units" + here);
    if (options.mix == Mix::bf16 && !has(Dtype::bf16))
      fail("\"fp16\" or \"fp32\": there are no bf16 matrix units" + here);
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
  Quantiser(piece, products,
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

constexpr FieldRule kExcludes[]{
    keep({"activation_func_fp8_input_store"}, "unless the model's activation function is swiglu",
         [](const AskedOf& a) { return a.model.activation != ActivationFunction::swiglu; })};

void check_runnable(const Scenario& scenario) {
  for_each_plan(scenario, [](const Plan& plan, const std::string& at) {
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
          .check = check,
          .rewrite = rewrite,
          .rewrite_piece = rewrite_piece,
          .check_runnable = check_runnable};
}

}  // namespace orrery::precision
