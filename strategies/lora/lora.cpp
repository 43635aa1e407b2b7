// Low-rank adapters (Hu et al. 2021, arXiv 2106.09685): beside y = x W, which is frozen, y += alpha/r (x A) B, whose A
// [k, r] and B [r, n] are trained. The pass adds adapters to the pieces before anything divides them. Parallelism then
// lays them out as any other product: the dimension of the rank is divided over nothing.
#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "models/layers.h"
#include "sim/program/rewrite.h"
#include "strategies/framework/framework.h"
#include "strategies/freeze/freeze.h"
#include "strategies/layer_plans.h"
#include "strategies/strategy.h"

namespace orrery::lora {
namespace {

bool has_adapters(const Plan& plan) { return plan.lora.rank > 0; }
bool has_no_adapters(const Plan& plan) { return !has_adapters(plan); }
bool used(const Scenario& scenario) { return any_plan(scenario, has_adapters); }

bool takes(const Options& options, Target matrix) {
  if (options.targets.empty()) return matrix == Target::qkv || matrix == Target::attention_output;
  return options.names(matrix) || (matrix == Target::attention_output && options.names(Target::o_proj)) ||
         (matrix == Target::mlp_out && options.names(Target::down_proj));
}

bool takes_mlp(const Options& options) { return takes(options, Target::mlp_in) || takes(options, Target::mlp_out); }

// The matrices that can have an adapter, with names of its factors.
struct Matrix {
  Target target;
  bool of_experts;
  const char *a, *b;
};
constexpr std::array<Matrix, 11> kMatrices{
    {{Target::qkv, false, "qkv_lora_a", "qkv_lora_b"},
     {Target::query, false, "query_lora_a", "query_lora_b"},
     {Target::query_down, false, "query_latent_lora_a", "query_latent_lora_b"},
     {Target::query_up, false, "query_lora_a", "query_lora_b"},
     {Target::key_value_down, false, "kv_latent_lora_a", "kv_latent_lora_b"},
     {Target::key_value_up, false, "kv_lora_a", "kv_lora_b"},
     {Target::attention_output, false, "attention_output_lora_a", "attention_output_lora_b"},
     {Target::mlp_in, false, "fc1_lora_a", "fc1_lora_b"},
     {Target::mlp_out, false, "fc2_lora_a", "fc2_lora_b"},
     {Target::mlp_in, true, "expert_fc1_lora_a", "expert_fc1_lora_b"},
     {Target::mlp_out, true, "expert_fc2_lora_a", "expert_fc2_lora_b"}}};

// Adds adapters to the products of a layer, in its forward and its backward.
class Adapters {
 public:
  Adapters(const Options& options, bool latent, Dtype gradient_dtype, Piece& piece)
      : options_(options), latent_(latent), gradient_dtype_(gradient_dtype), piece_(piece) {
    for (const Op& op : piece.forward.ops)
      if (op.is_random()) draws_ = std::max(draws_, op.draw + 1);
  }

  void run() {
    for (std::size_t i = 0; i < piece_.forward.ops.size(); ++i)
      if (const Op op = piece_.forward.ops[i]; op.kind == OpKind::linear)
        if (const Matrix* matrix = matrix_of(op)) i += add(*matrix, op, i);
  }

 private:
  // The matrix of a product, if it gets an adapter; which it is follows from the axes that it maps from and to.
  const Matrix* matrix_of(const Op& op) const {
    const Tensor& weight = piece_.tensors[op.reads[1]];
    const auto has = [&](Axis axis, int from, int to) {
      return std::find(weight.axes.begin() + from, weight.axes.begin() + to, axis) != weight.axes.begin() + to;
    };
    const int inner = op.group_dims, outer = inner + op.inner_dims;
    const auto maps_from = [&](Axis axis) { return has(axis, inner, outer); };
    const auto maps_to = [&](Axis axis) { return has(axis, outer, weight.rank); };
    std::optional<Target> target;
    if (maps_to(Axis::group_qkv)) {
      target = Target::qkv;
    } else if (maps_from(Axis::groups)) {
      target = Target::attention_output;
    } else if (maps_to(Axis::ffn) || maps_to(Axis::expert_ffn)) {
      target = Target::mlp_in;
    } else if (maps_from(Axis::ffn) || maps_from(Axis::expert_ffn)) {
      target = Target::mlp_out;
    } else if (latent_) {
      target = latent_target(op, maps_from(Axis::hidden), maps_to(Axis::groups));
    }
    if (!target || !takes(options_, *target)) return nullptr;
    const auto is_it = [&](const Matrix& m) { return m.target == *target && m.of_experts == (op.group_dims > 0); };
    return std::ranges::find_if(kMatrices, is_it);
  }
  // Latent attention has two matrices to latents, whose norms follow, and two from them. Only keys and values get a
  // part that all heads share: the norm leaves it out, and a rotary kernel puts it in.
  std::optional<Target> latent_target(const Op& product, bool from_hidden, bool to_heads) const {
    const std::vector<Op>& ops = piece_.forward.ops;
    TensorId y = product.writes[0];
    auto reader = ops.end();
    do {
      reader = std::ranges::find_if(ops, [&](const Op& op) { return op.reads[0] == y; });
      if (reader == ops.end()) return std::nullopt;
      y = reader->writes[0];
    } while (reader->kind == OpKind::cast);
    if (to_heads) {
      if (reader->kind == OpKind::rotary && reader->reads[1] != kNoTensor) return Target::key_value_up;
      return from_hidden ? Target::query : Target::query_up;
    }
    if (reader->kind != OpKind::norm) return std::nullopt;  // a router
    const Tensor& x = piece_.tensors[reader->reads[0]];
    const bool whole = piece_.tensors[reader->reads[1]].elements() == x.sizes[x.rank - 1];
    return whole ? Target::query_down : Target::key_value_down;
  }

  // Returns the number of ops that it has inserted behind the product.
  std::size_t add(const Matrix& matrix, const Op& product, std::size_t at) {
    const TensorId x = product.reads[0], y = product.writes[0];
    const TensorId own = clone_tensor(piece_, y);
    piece_.forward.ops[at].writes[0] = own;
    std::vector<Op> ops;

    const int inner = product.inner_dims, outer = product.group_dims + inner;
    const Dim rank{options_.rank, Axis::none};
    const Tensor weight = piece_.tensors[product.reads[1]];
    Tensor a = weight, b = weight, low = piece_.tensors[y];
    a.truncate(outer);
    a.append(rank);
    b.truncate(product.group_dims);
    b.append(rank);
    for (int d = outer; d < weight.rank; ++d) b.append({weight.sizes[d], weight.axes[d]});
    low.truncate(low.rank - (weight.rank - outer));
    low.append(rank);
    const TensorId down = add_parameter(a, matrix.a), up = add_parameter(b, matrix.b);

    TensorId in = x, mask = kNoTensor;
    if (options_.dropout > 0) {
      in = clone_tensor(piece_, x);
      mask = clone_tensor(piece_, x, "lora_dropout", Category::activation, Dtype::uint8);
      Op& drop = ops.emplace_back(computation(OpKind::dropout, "lora_dropout", Phase::forward, {x}, {in, mask}));
      drop.probability = static_cast<float>(options_.dropout);
      drop.draw = static_cast<std::uint8_t>(draws_++);
    }
    const TensorId narrow = piece_.add(tensor_like(low, matrix.a, Category::activation, low.dtype)),
                   wide = clone_tensor(piece_, y), scaled = clone_tensor(piece_, y);
    ops.push_back(like(product, OpKind::linear, matrix.a, Phase::forward, inner, {in, down}, narrow));
    ops.push_back(like(product, OpKind::linear, matrix.b, Phase::forward, 1, {narrow, up}, wide));
    ops.push_back(scale(Phase::forward, wide, scaled));
    ops.push_back(computation(OpKind::add, "lora_add", Phase::forward, {own, scaled}, {y}));
    piece_.forward.ops.insert(piece_.forward.ops.begin() + static_cast<std::ptrdiff_t>(at) + 1, ops.begin(), ops.end());
    reverse(product, inner, {in, mask, narrow, down, up});
    return ops.size();
  }

  struct Adapter {
    TensorId in, mask, narrow, down, up;
  };
  // Inserts the adapter's backward before the product's own input gradient. Autograd does so, because it begins with
  // what ran last.
  void reverse(const Op& product, int inner, const Adapter& of) {
    std::vector<Op>& ops = piece_.backward.ops;
    const auto at = std::ranges::find_if(
        ops, [&](const Op& op) { return op.kind == OpKind::linear_input_gradient && op.reads[1] == product.reads[1]; });
    const TensorId dy = at->reads[0], dx = at->writes[0];
    const TensorId own = at->writes[0] = clone_tensor(piece_, dx);
    const TensorId scaled = clone_tensor(piece_, dy), narrow = clone_tensor(piece_, of.narrow),
                   in = clone_tensor(piece_, dx);
    std::vector<Op> before;
    before.push_back(scale(Phase::input_gradient, dy, scaled));
    const auto products = [&](int dims, TensorId x, TensorId weight, TensorId of_y, TensorId of_x) {
      before.push_back(like(product, OpKind::linear_input_gradient, piece_.tensors[weight].name, Phase::input_gradient,
                            dims, {of_y, weight}, of_x));
      before.push_back(like(product, OpKind::linear_weight_gradient, piece_.tensors[weight].name,
                            Phase::weight_gradient, dims, {x, of_y}, gradient_of(weight)));
      before.back().accumulate = true;
    };
    products(1, of.narrow, of.up, scaled, narrow);
    products(inner, of.in, of.down, narrow, in);
    TensorId added = in;
    if (of.mask != kNoTensor) {
      added = clone_tensor(piece_, dx);
      before.push_back(
          computation(OpKind::dropout_backward, "lora_dropout", Phase::input_gradient, {in, of.mask}, {added}));
      before.back().probability = static_cast<float>(options_.dropout);
    }
    const auto behind =
        ops.insert(at + 1, computation(OpKind::add, "lora_add", Phase::input_gradient, {own, added}, {dx}));
    ops.insert(behind - 1, before.begin(), before.end());
  }

  // Returns a product that runs as that of the frozen matrix does, but is left alone by quantisers and fused modules.
  Op like(const Op& product, OpKind kind, const char* name, Phase phase, int inner_dims,
          std::initializer_list<TensorId> reads, TensorId write) const {
    Op op = computation(kind, name, phase, reads, {write});
    op.compute_dtype = product.compute_dtype;
    op.inner_dims = static_cast<std::uint8_t>(inner_dims);
    op.group_dims = product.group_dims;
    op.plain = true;
    return op;
  }
  Op scale(Phase phase, TensorId from, TensorId to) const {
    Op op = computation(OpKind::scale, "lora_scale", phase, {from}, {to});
    op.scale = options_.alpha / static_cast<double>(options_.rank);
    return op;
  }

  TensorId add_parameter(const Tensor& like, const char* name) {
    const TensorId id = piece_.add(tensor_like(like, name, Category::parameter, like.dtype));
    const TensorId gradient = clone_tensor(piece_, id, name, Category::gradient, gradient_dtype_);
    piece_.parameters.push_back({id, gradient});
    return id;
  }
  TensorId gradient_of(TensorId parameter) const {
    return std::ranges::find(piece_.parameters, parameter, &ParameterGradient::parameter)->gradient;
  }

  const Options& options_;
  const bool latent_;
  const Dtype gradient_dtype_;
  Piece& piece_;
  int draws_ = 0;
};

void rewrite(const Scenario& scenario, Program& program) {
  if (!used(scenario)) return;
  const LayerPlans plans = layer_plans(scenario);
  std::vector<TensorId> first_of_adapters;  // by piece
  for (Piece& piece : program.pieces) {
    first_of_adapters.push_back(static_cast<TensorId>(piece.tensors.size()));
    if (const Plan& plan = plans.of(piece); is_layer(piece) && has_adapters(plan))
      Adapters(plan.lora, scenario.model.attention == AttentionKind::latent, framework::gradient_dtype(scenario.plan),
               piece)
          .run();
  }
  program.model = model_work(scenario.model, scenario.workload, scenario.plan.batch.micro_batch_size, program.pieces,
                             program.line, program.packed.get());
  freeze::freeze(
      scenario,
      [&](std::size_t number, const Piece&, TensorId parameter) { return parameter < first_of_adapters[number]; },
      program);
}

// The matrices that give latent attention its queries, keys and values.
constexpr std::array kFromLatents{Target::query, Target::query_up, Target::key_value_up};

// Refuses matrices that only the other kind of attention has.
template <class Fail>
void check_latent_attention(const Model& model, const Options& options, const Fail& fail) {
  const bool latent = model.attention == AttentionKind::latent, narrow = model.query_lora_rank > 0;
  if (takes(options, Target::qkv) && latent)
    fail(
        "no linear_qkv: latent attention has linear_q_down_proj, linear_q_up_proj, linear_kv_down_proj and "
        "linear_kv_up_proj");
  constexpr std::array kOfLatents{Target::query, Target::query_down, Target::query_up, Target::key_value_down,
                                  Target::key_value_up};
  for (const Target target : kOfLatents) {
    if (!options.names(target)) continue;
    const std::string name(kTargetNames[static_cast<std::size_t>(target)]);
    if (!latent) fail("no " + name + ", which latent attention has");
    if (target == Target::query && narrow) fail("no " + name + ": this model computes queries from latents");
    if ((target == Target::query_down || target == Target::query_up) && !narrow)
      fail("no " + name + ": this model computes queries without latents (linear_q_proj)");
  }
}

void check(const Scenario& scenario) {
  if (!used(scenario)) return;
  for_each_plan(scenario, [&](const Plan& plan, const std::string& at) {
    if (!has_adapters(plan)) return;
    const Options& options = plan.lora;
    const auto fail = [&](const std::string& expected) { refuse(plan, "lora_targets", expected, at); };
    for (const Target part : {Target::q_proj, Target::k_proj, Target::v_proj})
      if (options.names(part)) fail("linear_qkv: queries, keys and values come from one matrix, which has one adapter");
    for (const Target part : {Target::gate_proj, Target::up_proj})
      if (options.names(part)) fail("linear_fc1: gate and up projection are one matrix, which has one adapter");
    check_latent_attention(scenario.model, options, fail);
    // FPDT runs the projection to queries, keys and values chunk by chunk, and so the gather of x A over ranks that
    // divide the sequence: a chunk would gather other tokens than those that it multiplies. And chunks of an adapter's
    // dropout would draw the numbers of other tokens.
    if (context_parallel::type_names()[static_cast<std::size_t>(plan.context.type)] == "fpdt") {
      if (plan.tensor.sequence_parallel && takes(options, Target::qkv))
        refuse(plan, "sequence_parallel", "false for an adapter of linear_qkv with context_parallel_type \"fpdt\"", at);
      if (options.dropout > 0 && takes(options, Target::mlp_out))
        refuse(plan, "lora_dropout", "0 for an adapter of linear_fc2 with context_parallel_type \"fpdt\"", at);
    }
    using activation_recompute::Module;
    if (takes_mlp(options) && plan.recompute.repeats(Module::mlp))
      fail("linear_qkv and linear_proj alone with recompute_modules \"mlp\", which repeats no adapters");
    if (std::ranges::any_of(kFromLatents, [&](Target t) { return takes(options, t); }) &&
        plan.recompute.repeats(Module::latent_projections))
      fail("other matrices with recompute_modules \"mla_up_proj\", which repeats no adapters");
  });
  const freeze::Frozen frozen{freeze::frozen_layers(scenario, has_no_adapters), true, true};
  if (std::ranges::find(frozen.layers, false) == frozen.layers.end())
    refuse(scenario.plan, "lora_rank", "adapters in some layer: all ranges of layers have rank 0");
  freeze::check_pipeline(scenario, frozen, "lora_rank", "adapters in a layer of");
}

constexpr FieldRule kExcludes[]{keep({"freeze", "freeze_embedding", "freeze_head"},
                                     "with lora_rank: all but the adapters is frozen",
                                     [](const AskedOf& a) { return used(a.scenario); })};
constexpr FieldRule kIdle[]{keep({"lora_alpha", "lora_dropout", "lora_targets"}, "without lora_rank",
                                 [](const AskedOf& a) { return has_adapters(a.layers); })};

// Rows of experts lie in other slots on one rank.
void check_runnable(const Scenario& scenario) {
  for_each_plan(scenario, [&](const Plan& plan, const std::string& at) {
    if (has_adapters(plan) && plan.lora.dropout > 0 && scenario.model.has_experts() && takes_mlp(plan.lora))
      refuse(plan, "lora_dropout", "0 in a real run with adapters of experts, whose rows would draw other numbers", at);
  });
}

constexpr PlanWord kWords[]{{"lora", used}};

}  // namespace

Strategy describe() {
  return {.name = "lora",
          .summary = "low-rank adapters of frozen matrices",
          .paper = "Hu et al. 2021, arXiv 2106.09685",
          .excludes = kExcludes,
          .idle = kIdle,
          .check = check,
          .rewrite = rewrite,
          .words = kWords,
          .check_runnable = check_runnable};
}

}  // namespace orrery::lora
