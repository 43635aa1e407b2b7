#include "strategies/optimizer/optimizer.h"

#include "sim/base/error.h"
#include "sim/program/rewrite.h"
#include "strategies/framework/framework.h"

namespace orrery::optimizer {
namespace {

Dtype moment_dtype(MomentDtype moments) {
  switch (moments) {
    case MomentDtype::bf16: return Dtype::bf16;
    case MomentDtype::fp16: return Dtype::fp16;
    case MomentDtype::fp8: return Dtype::fp8;
    case MomentDtype::int4:
      return Dtype::int4;
    default: return Dtype::fp32;
  }
}

TensorId flat(Piece& piece, const char* name, Category category, Dtype dtype, std::int64_t elements) {
  Tensor t;
  t.name = name;
  t.category = category;
  t.dtype = dtype;
  t.rank = 1;
  t.sizes[0] = elements;
  t.resident = true;
  return piece.add(t);
}

// An op over a whole flat buffer, once a step.
Op over_buffer(OpKind kind, const char* name) {
  Op op;
  op.kind = kind;
  op.name = name;
  op.phase = Phase::update;
  op.every = kAllInstances;
  return op;
}

struct Gradients {
  Dtype dtype;
  double loss_scale;
  framework::GradientScaling scaling;
};

Op scale(const char* name, TensorId gradients, double factor) {
  Op op = over_buffer(OpKind::scale, name);
  op.reads[0] = op.writes[0] = gradients;
  op.factor = factor;
  return op;
}

void lay_out(Piece& piece, const Mesh& mesh, const Options& options, const Gradients& gradients) {
  std::int64_t elements = 0;
  Dtype storage = Dtype::fp32;
  for (const ParameterGradient& p : piece.parameters) {
    const Tensor& parameter = piece.tensors[p.parameter];
    if (parameter.shared) continue;
    storage = parameter.dtype;
    elements += parameter.elements();
  }
  if (elements == 0) return;

  piece.flat_parameters = flat(piece, "parameters", Category::parameter, storage, elements);
  piece.flat_gradients = flat(piece, "gradients", Category::gradient, gradients.dtype, elements);
  std::int64_t begin = 0;
  for (const ParameterGradient& p : piece.parameters) {
    Tensor& parameter = piece.tensors[p.parameter];
    if (parameter.shared) continue;
    parameter.alias_of = piece.flat_parameters;
    parameter.alias_begin = begin;
    piece.tensors[p.gradient].alias_of = piece.flat_gradients;
    piece.tensors[p.gradient].alias_begin = begin;
    begin += parameter.elements();
  }

  using framework::GradientScaling;
  // Dynamic loss scaling: what divides by the scale searches for overflows as well.
  double unscale = 1 / gradients.loss_scale;
  if (unscale != 1 && gradients.scaling == GradientScaling::passes) {
    piece.update.ops.push_back(scale("unscale", piece.flat_gradients, unscale));
    unscale = 1;
  }

  TensorId norm_of_all = kNoTensor;
  if (options.clip_grad > 0) {
    Tensor scalar;
    scalar.name = "gradient_norm";
    scalar.category = Category::workspace;
    scalar.dtype = Dtype::fp32;
    scalar.rank = 1;
    const TensorId local = piece.add(scalar), global = piece.add(scalar);
    Op norm = over_buffer(OpKind::gradient_norm, "gradient_norm");
    norm.reads[0] = piece.flat_gradients;
    norm.writes[0] = local;
    piece.update.ops.push_back(norm);
    // Each stage and tensor-parallel rank holds other parameters; data parallelism adds its digits where it shards.
    // Without tensor parallelism the sum goes where gradients do.
    const Stream stream =
        mesh.size(MeshAxis::tp) > 1 ? Stream::tensor_communication : Stream::data_communication;
    Op reduce = communication(OpKind::all_reduce, "gradient_norm.all_reduce", stream,
                              mesh.group({MeshAxis::tp, MeshAxis::pp}), local, global);
    reduce.phase = Phase::update;
    reduce.every = kAllInstances;
    piece.update.ops.push_back(reduce);
    norm_of_all = global;
  }
  const auto clip = [&](Op& op) {
    if (norm_of_all == kNoTensor) return;
    op.reads[static_cast<std::size_t>(norm_operand(op.kind))] = norm_of_all;
    op.scalar = static_cast<float>(options.clip_grad);
  };
  if (gradients.scaling != GradientScaling::fused && (norm_of_all != kNoTensor || unscale != 1)) {
    const bool clips = norm_of_all != kNoTensor;
    Op pass = scale(!clips ? "unscale" : unscale == 1 ? "clip" : "unscale_and_clip", piece.flat_gradients, unscale);
    clip(pass);
    piece.update.ops.push_back(pass);
  }

  const bool adam = options.rule == Rule::adam || options.rule == Rule::adamw;
  Op update = over_buffer(adam ? OpKind::adam : OpKind::sgd, adam ? "adam" : "sgd");
  update.reads[0] = piece.flat_gradients;
  std::size_t w = 0;
  update.writes[w++] = piece.flat_parameters;
  if (options.master_parameters && storage != Dtype::fp32)
    update.writes[w++] = flat(piece, "master_parameters", Category::optimizer_state, Dtype::fp32, elements);
  const Dtype moments = moment_dtype(options.moments);
  if (adam || options.rule == Rule::sgd_momentum)
    update.writes[w++] = flat(piece, "first_moment", Category::optimizer_state, moments, elements);
  if (adam) update.writes[w++] = flat(piece, "second_moment", Category::optimizer_state, moments, elements);
  // States are read and written; so is the parameter itself where no master copy stands for it.
  for (std::size_t i = 0, r = 1; i < w; ++i)
    if (i > 0 || !(options.master_parameters && storage != Dtype::fp32)) update.reads[r++] = update.writes[i];
  if (gradients.scaling == GradientScaling::fused) {
    update.factor = unscale;
    clip(update);
  }
  piece.update.ops.push_back(update);

  // The next step accumulates into cleared gradients.
  Op clear = over_buffer(OpKind::zero_fill, "zero_gradients");
  clear.writes[0] = piece.flat_gradients;
  piece.update.ops.push_back(clear);
}

// The loss is the mean over all positions of the step: of ranks and micro-batches, whose gradients are summed.
void scale_loss(Piece& piece, const Program& program, double loss_scale) {
  for (Op& op : piece.backward.ops) {
    if (op.kind != OpKind::cross_entropy_backward) continue;
    const Tensor& targets = piece.tensors[op.reads[1]];
    op.factor = loss_scale / static_cast<double>(targets.elements() * program.mesh.size(targets.divided_over()) *
                                                 program.schedule.micro_batches);
  }
}

}  // namespace

void check(const Scenario& scenario) {
  const Options& options = scenario.plan.optimizer;
  const bool coded = options.moments == MomentDtype::fp8 || options.moments == MomentDtype::int4;
  if (coded && options.rule != Rule::adam && options.rule != Rule::adamw)
    throw InputError({"", "/plan/optimizer_dtype"},
                     "\"" + std::string(kMomentDtypeNames[static_cast<std::size_t>(options.moments)]) + "\"",
                     "\"fp32\", \"bf16\" or \"fp16\" for this optimizer");
}

void rewrite(const Scenario& scenario, Program& program) {
  const precision::Options& precision = scenario.plan.precision;
  const Gradients gradients{precision.gradient(), precision.gradient_factor(),
                            framework::gradient_scaling(scenario.plan)};
  for (Piece& piece : program.pieces) {
    scale_loss(piece, program, gradients.loss_scale);
    lay_out(piece, program.mesh, scenario.plan.optimizer, gradients);
  }
}

void check_runnable(const Scenario& scenario) {
  if (scenario.plan.optimizer.moments == MomentDtype::int4)
    throw InputError({"", "/plan/optimizer_dtype"}, "\"int4\"", "\"fp8\" or wider: no kernel keeps 4-bit moments yet");
}

}  // namespace orrery::optimizer
