#include "strategies/optimizer/optimizer.h"

#include <algorithm>
#include <array>
#include <stdexcept>

#include "sim/program/rewrite.h"
#include "strategies/adafactor/adafactor.h"
#include "strategies/data_parallel/data_parallel.h"
#include "strategies/framework/framework.h"
#include "strategies/layer_plans.h"
#include "strategies/muon/muon.h"

namespace orrery::optimizer {
namespace {

Dtype moment_dtype(MomentDtype moments) {
  constexpr std::array<Dtype, kMomentDtypeNames.size()> kDtypes{Dtype::fp32, Dtype::bf16, Dtype::fp16, Dtype::fp8,
                                                                Dtype::int4};
  return kDtypes[static_cast<std::size_t>(moments)];
}

TensorId flat(Piece& piece, const char* name, Category category, Dtype dtype, std::int64_t elements) {
  const TensorId id = piece.add({});
  Tensor& t = piece.tensors[id];
  t.name = name;
  t.category = category;
  t.dtype = dtype;
  t.rank = 1;
  t.sizes[0] = elements;
  t.resident = true;
  return id;
}

bool is_adam(const Options& options) { return options.rule == Rule::adam || options.rule == Rule::adamw; }

// Muon's matrices have a momentum, and sets of their own; what it leaves has AdamW's moments.
bool is_matrix(const Piece& piece, const ParameterGradient& p) { return muon::matrices_of(piece, p.parameter).any; }
Rule rule_of(const Options& options, const Piece& piece, const ParameterSet& set) {
  if (options.rule == Rule::adafactor) return Rule::sgd;  // until its own states are added, matrix by matrix
  if (options.rule != Rule::muon) return options.rule;
  const auto number = static_cast<std::size_t>(&set - piece.sets.data());
  const bool matrices = std::ranges::any_of(piece.parameters, [&](const ParameterGradient& p) {
    return p.set == number && !piece.tensors[p.parameter].shared && is_matrix(piece, p);
  });
  return matrices ? Rule::sgd_momentum : Rule::adamw;
}

struct Gradients {
  Dtype dtype;
  double loss_scale;
  framework::GradientScaling scaling;
};

Op scale(const char* name, TensorId gradients, double factor) {
  Op op = over_buffers(OpKind::scale, name, {gradients}, {gradients});
  op.scale = factor;
  return op;
}

// Puts the parameters of a set side by side into flat buffers; a frozen set has one buffer, of weights.
void lay_out(Piece& piece, std::size_t number, Dtype gradient_dtype) {
  const auto each = [&](auto visit) {
    for (const ParameterGradient& p : piece.parameters)
      if (p.set == number && !piece.tensors[p.parameter].shared) visit(p);
  };
  std::int64_t elements = 0;
  Dtype storage = Dtype::fp32;
  bool trained = false, frozen = false;
  each([&](const ParameterGradient& p) {
    (p.gradient != kNoTensor ? trained : frozen) = true;
    const Dtype own = piece.tensors[p.parameter].dtype;
    if (elements > 0 && own != storage) throw std::logic_error("a parameter set of two dtypes");
    storage = own;
    elements += piece.tensors[p.parameter].elements();
  });
  if (elements == 0) return;
  ParameterSet& set = piece.sets[number];
  set.parameters = set.own_parameters = flat(piece, "parameters", Category::parameter, storage, elements);
  if (trained && frozen) throw std::logic_error("a parameter set that is trained in part");
  if (trained)
    set.gradients = set.own_gradients = flat(piece, "gradients", Category::gradient, gradient_dtype, elements);
  std::int64_t begin = 0;
  each([&](const ParameterGradient& p) {
    Tensor& parameter = piece.tensors[p.parameter];
    parameter.alias_of = set.parameters;
    parameter.alias_begin = begin;
    begin += parameter.elements();
    if (p.gradient == kNoTensor) return;
    piece.tensors[p.gradient].alias_of = set.gradients;
    piece.tensors[p.gradient].alias_begin = parameter.alias_begin;
  });
}

// The factor that gradients are divided by, and their clipping: in a separate pass, or within the update.
struct Scaling {
  double factor = 1;
  TensorId norm = kNoTensor;  // none: gradients are not clipped
  float clip = 0;

  bool any() const { return norm != kNoTensor || factor != 1; }
  void put(Op& op) const {
    op.scale = factor;
    if (norm == kNoTensor) return;
    op.reads[static_cast<std::size_t>(norm_operand(op.kind))] = norm;
    op.clip_limit = clip;
  }
};

template <class Visit>
void for_each_trained(const Piece& piece, Visit&& visit) {
  for (const ParameterSet& set : piece.sets)
    if (!set.frozen()) visit(set);
}

// The norm over the gradients of all sets.
TensorId add_norm(Piece& piece, const Mesh& mesh) {
  std::vector<TensorId> gradients;
  for_each_trained(piece, [&](const ParameterSet& set) { gradients.push_back(set.gradients); });
  // Each stage and tensor-parallel rank holds other parameters; data parallelism adds its digits where it shards.
  // Without tensor parallelism the sum goes where gradients do.
  const Stream stream = mesh.size(MeshAxis::tp) > 1 ? Stream::tensor_communication : Stream::data_communication;
  const Op sum =
      communication(OpKind::all_reduce, "gradient_norm.all_reduce", Phase::update, stream,
                    mesh.group({MeshAxis::tp, MeshAxis::pp, MeshAxis::ep, MeshAxis::etp}), kNoTensor, kNoTensor);
  return orrery::add_norm(piece, gradients, "gradient_norm", sum, piece.update.ops);
}

// Tensors with fewer bits than gradients are computed in are not parameters that a rule updates, but casts of them.
bool is_quantised(Dtype dtype) { return bits_of(dtype) < 16; }

// `master_copy`: in fp32, beside parameters of another dtype; of Options::parameter_remainders what the parameter
// lacks.
void add_update(Piece& piece, const ParameterSet& set, const Options& options, bool master_copy,
                const Scaling& scaling) {
  const std::int64_t elements = piece.tensors[set.parameters].elements();
  const Rule rule = rule_of(options, piece, set);
  const bool adam = rule == Rule::adam || rule == Rule::adamw;
  const char* const name = adam ? "adam" : rule == Rule::lion ? "lion" : "sgd";
  Op update = over_buffers(adam ? OpKind::adam : OpKind::sgd, name, {set.gradients}, {});
  update.decoupled_weight_decay = rule != Rule::adam;
  update.sign = rule == Rule::lion;
  std::size_t w = 0;
  const Dtype storage = piece.tensors[set.parameters].dtype;
  const bool quantised = is_quantised(storage);
  if (quantised && !master_copy) throw std::logic_error("quantised parameters of which no wider copy is kept");
  update.writes[w++] =
      quantised ? flat(piece, "master_parameters", Category::optimizer_state, Dtype::fp32, elements) : set.parameters;
  const bool master = master_copy && !quantised && storage != Dtype::fp32;
  if (master && options.parameter_remainders)  // 16 bits, whose dtype does not matter
    update.writes[w++] = flat(piece, "parameter_remainders", Category::optimizer_state, Dtype::bf16, elements);
  else if (master)
    update.writes[w++] = flat(piece, "master_parameters", Category::optimizer_state, Dtype::fp32, elements);
  const Dtype moments = moment_dtype(options.moments);
  if (rule != Rule::sgd) update.writes[w++] = flat(piece, "first_moment", Category::optimizer_state, moments, elements);
  if (adam) update.writes[w++] = flat(piece, "second_moment", Category::optimizer_state, moments, elements);
  // States are read and written, and so is the parameter itself if it has no master copy.
  for (std::size_t i = 0, r = 1; i < w; ++i)
    if (i > 0 || !master) update.reads[r++] = update.writes[i];
  scaling.put(update);
  piece.update.ops.push_back(update);
  if (quantised) {
    piece.update.ops.push_back(over_buffers(OpKind::cast, "quantise_parameters", {update.writes[0]}, {set.parameters}));
  }

  // The next step accumulates into cleared gradients.
  piece.update.ops.push_back(over_buffers(OpKind::zero_fill, "zero_gradients", {}, {set.gradients}));
}

void lay_out(Piece& piece, const Mesh& mesh, const Options& options, bool master_copy, const Gradients& gradients) {
  std::size_t sets = 0;
  for (const ParameterGradient& p : piece.parameters)
    if (!piece.tensors[p.parameter].shared) sets = std::max<std::size_t>(sets, p.set + 1u);
  piece.sets.resize(sets);
  for (std::size_t s = 0; s < sets; ++s) {
    lay_out(piece, s, gradients.dtype);
    if (piece.sets[s].parameters == kNoTensor) throw std::logic_error("a parameter set without parameters");
  }
  if (std::ranges::all_of(piece.sets, &ParameterSet::frozen)) return;

  using framework::GradientScaling;
  // Dynamic loss scaling: the op that divides by the scale also searches for overflows.
  Scaling scaling{1 / gradients.loss_scale, kNoTensor, 0};
  if (scaling.factor != 1 && gradients.scaling == GradientScaling::passes) {
    for_each_trained(piece, [&](const ParameterSet& set) {
      piece.update.ops.push_back(scale("unscale", set.gradients, scaling.factor));
    });
    scaling.factor = 1;
  }
  if (options.clip_grad > 0) {
    scaling.norm = add_norm(piece, mesh);
    scaling.clip = static_cast<float>(options.clip_grad);
  }
  if (gradients.scaling != GradientScaling::fused && scaling.any()) {
    const bool clips = scaling.norm != kNoTensor;
    const char* name = !clips ? "unscale" : scaling.factor == 1 ? "clip" : "unscale_and_clip";
    for_each_trained(piece, [&](const ParameterSet& set) {
      Op pass = scale(name, set.gradients, scaling.factor);
      scaling.put(pass);
      piece.update.ops.push_back(pass);
    });
    scaling = {};
  }
  for_each_trained(piece, [&](const ParameterSet& set) { add_update(piece, set, options, master_copy, scaling); });
}

// The loss is the mean over all positions of a worker's step: over ranks and micro-batches, whose gradients are summed.
void scale_loss(Piece& piece, const Program& program, double loss_scale) {
  for (Op& op : piece.backward.ops) {
    const bool of_router = op.kind == OpKind::router_loss_backward;
    if (op.kind != OpKind::cross_entropy_backward && !of_router) continue;
    // Logits of each position, or targets. An op on a chunk of them counts the whole tensor.
    const Tensor& t = piece.tensors[storage_of(piece, op.reads[of_router ? 0 : 1])];
    const std::int64_t positions = of_router ? t.elements() / t.sizes[t.rank - 1] : t.elements();
    const MeshGroup summed = t.divided_over().without(program.mesh.group(MeshAxis::worker));
    op.scale = loss_scale / static_cast<double>(positions * program.mesh.size(summed) * program.schedule.micro_batches);
  }
}

constexpr FieldRule kExcludes[]{
    keep({"optimizer_dtype"}, ", \"bf16\" or \"fp16\" for this optimizer",
         [](const AskedOf& a) {
           const Options& options = a.plan.optimizer;
           return !is_adam(options) && (options.moments == MomentDtype::fp8 || options.moments == MomentDtype::int4);
         }),
    keep({"store_param_remainders"}, "with fp4_param_gather",
         [](const AskedOf& a) { return a.plan.data.fp4_param_gather; }),
    keep({"store_param_remainders"}, "with fp8_param_gather",
         [](const AskedOf& a) { return a.plan.data.fp8_param_gather; }),
    keep({"store_param_remainders"}, "unless parameters are in bf16",
         [](const AskedOf& a) { return a.plan.precision.storage() != Dtype::bf16; }),
    keep({"store_param_remainders"}, "where shards of parameters are kept in fp32",
         [](const AskedOf& a) { return a.plan.data.zero_stage == 3 && framework::stack_of(a.plan).shards_in_fp32; }),
    keep({"store_param_remainders"}, "without master_parameters",
         [](const AskedOf& a) { return !a.plan.optimizer.master_parameters; }),
    keep({"store_param_remainders"}, "unless the optimizer is adam or adamw",
         [](const AskedOf& a) { return !is_adam(a.plan.optimizer); })};

void rewrite(const Scenario& scenario, Program& program) {
  const precision::Options& precision = scenario.plan.precision;
  const Gradients gradients{framework::gradient_dtype(scenario.plan), precision.gradient_factor(),
                            framework::stack_of(scenario.plan).gradient_scaling};
  const LayerPlans plans = layer_plans(scenario);
  for (Piece& piece : program.pieces) {
    scale_loss(piece, program, gradients.loss_scale);
    const data_parallel::Sharding sharding = data_parallel::sharding_of(scenario, plans.of(piece), program);
    const bool own_masters = sharding.fp32_weights;
    data_parallel::divide_into_sets(scenario, sharding, piece);
    if (scenario.plan.optimizer.rule == Rule::muon)
      split_sets(piece, [&](const ParameterGradient& p) { return is_matrix(piece, p); });
    lay_out(piece, program.mesh, scenario.plan.optimizer, scenario.plan.optimizer.master_parameters && !own_masters,
            gradients);
  }
}

void check_runnable(const Scenario& scenario) {
  keep_defaults(scenario.plan, {"store_param_remainders"}, "in real runs: no kernel joins the halves yet");
  if (scenario.plan.optimizer.moments == MomentDtype::int4)
    refuse(scenario.plan, "optimizer_dtype", "\"fp8\" or wider: no kernel keeps 4-bit moments yet");
}

}  // namespace

double bytes_kept_per_parameter(const Plan& plan) {
  const Options& options = plan.optimizer;
  const auto bytes = [](Dtype dtype) { return static_cast<double>(bits_of(dtype)) / 8; };
  const bool narrow = plan.precision.storage() != Dtype::fp32;
  const bool masters = options.master_parameters && narrow;
  // fp32 shards are parameter and master copy in one.
  const bool fp32_shards = masters && plan.data.zero_stage == 3 && framework::stack_of(plan).shards_in_fp32;
  double kept = fp32_shards ? bytes(Dtype::fp32) : bytes(plan.precision.storage());
  if (masters && !fp32_shards) kept += bytes(options.parameter_remainders ? Dtype::bf16 : Dtype::fp32);
  const int moments = is_adam(options)                  ? 2
                      : options.rule == Rule::sgd       ? 0
                      : options.rule == Rule::adafactor ? adafactor::kMomentsPerParameter
                                                        : 1;
  return kept + moments * bytes(moment_dtype(options.moments));
}

Strategy describe() {
  return {.name = "optimizer",
          .summary = "Adam, SGD and Lion with their states",
          .paper = "Kingma & Ba 2014, arXiv 1412.6980; Chen et al. 2023, arXiv 2302.06675",
          .excludes = kExcludes,
          .rewrite = rewrite,
          .check_runnable = check_runnable};
}

}  // namespace orrery::optimizer
