#include "strategies/precision/precision.h"

#include "sim/base/error.h"
#include "sim/program/rewrite.h"
#include "strategies/data_parallel/data_parallel.h"

namespace orrery::precision {
namespace {

// Quantises what the products of a block read: activations and output gradients at each use, once.
class Quantiser {
 public:
  enum class Weights : std::uint8_t {
    stay,
    come_and_go,  // each block of each micro-batch gathers its weights (ZeRO-3), and quantises what it gathered
    come_in_fp8   // and gathers them quantised
  };
  Quantiser(Piece& piece, Weights weights)
      : piece_(piece), weights_(weights), quantised_(piece.tensors.size(), kNoTensor) {}

  void run() {
    for (Block* block : {&piece_.forward, &piece_.backward}) {
      out_.clear();
      if (weights_ == Weights::come_and_go)
        for (std::size_t id = 0; id < quantised_.size(); ++id)
          if (piece_.tensors[id].category == Category::parameter) quantised_[id] = kNoTensor;
      for (Op op : block->ops) {
        if (op.kind == OpKind::linear || op.kind == OpKind::linear_input_gradient) {
          op.compute_dtype = Dtype::fp8;
          op.reads[0] = quantise(op.reads[0], op);
          op.reads[1] = quantise_weight(op.reads[1], op);
        } else if (op.kind == OpKind::linear_weight_gradient) {
          op.compute_dtype = Dtype::fp8;
          op.reads[0] = quantise(op.reads[0], op);
          op.reads[1] = quantise(op.reads[1], op);
        }
        out_.push_back(op);
      }
      block->ops = out_;
    }
  }

 private:
  // Weights that stay are quantised once a step and kept for its micro-batches (Transformer Engine's
  // is_first_microbatch).
  TensorId quantise_weight(TensorId id, const Op& cause) {
    if (weights_ == Weights::come_in_fp8) return id;
    if (quantised_[id] != kNoTensor) return quantised_[id];
    Tensor t = piece_.tensors[id];
    t.alias_of = kNoTensor;
    t.dtype = Dtype::fp8;
    t.category = Category::workspace;
    t.resident = weights_ == Weights::stay;
    const TensorId q = piece_.add(t);
    quantised_.resize(piece_.tensors.size(), kNoTensor);
    quantised_[id] = q;
    Op op;
    op.kind = OpKind::cast;
    op.phase = cause.phase;
    op.when = weights_ == Weights::stay ? When::first_micro_batch : When::every_micro_batch;
    op.name = "quantise_weight";
    op.reads[0] = id;
    op.writes[0] = q;
    out_.push_back(op);
    return q;
  }

  // The forward's quantised input serves the weight gradient too: it is what is kept for the backward.
  TensorId quantise(TensorId id, const Op& cause) {
    if (quantised_[id] != kNoTensor) return quantised_[id];
    Tensor t = piece_.tensors[id];
    t.alias_of = kNoTensor;
    t.dtype = Dtype::fp8;
    const TensorId q = piece_.add(t);
    quantised_.resize(piece_.tensors.size(), kNoTensor);
    quantised_[id] = q;
    Op op;
    op.kind = OpKind::cast;
    op.phase = cause.phase == Phase::weight_gradient ? Phase::input_gradient : cause.phase;
    op.name = "quantise";
    op.reads[0] = id;
    op.writes[0] = q;
    out_.push_back(op);
    return q;
  }

  Piece& piece_;
  const Weights weights_;
  std::vector<TensorId> quantised_;
  std::vector<Op> out_;
};

}  // namespace

Dtype Options::storage() const {
  switch (mix) {
    case Mix::fp16:
      return Dtype::fp16;
    case Mix::fp32:
      return Dtype::fp32;
    default:
      return Dtype::bf16;
  }
}

Dtype Options::compute() const {
  if (mix == Mix::fp4) return Dtype::nvfp4;
  return mix == Mix::fp8 ? Dtype::fp8 : storage();
}

Dtype Options::gradient() const {
  if (mix == Mix::fp32) return Dtype::fp32;
  switch (gradients) {
    case GradientDtype::bf16:
      return Dtype::bf16;
    case GradientDtype::fp16:
      return Dtype::fp16;
    default:
      return Dtype::fp32;
  }
}

void check(const Scenario& scenario) {
  const Device& device = scenario.cluster.device;
  const auto has = [&](Dtype dtype) { return device.peak_flops_per_second[static_cast<std::size_t>(dtype)] > 0; };
  for_each_plan(scenario, [&](const Plan& plan, const std::string& at) {
    const Options& options = plan.precision;
    const auto fail = [&](const std::string& expected) {
      throw InputError({"", at + "precision"},
                       "\"" + std::string(kMixNames[static_cast<std::size_t>(options.mix)]) + "\"", expected);
    };
    const std::string here = " on " + device.name;
    if (options.mix == Mix::fp4)
      fail("\"fp8\", \"bf16\" or \"fp16\": no kernel and no rate of fp4 matrix products is known" + here);
    if (options.mix == Mix::fp8 && !has(Dtype::fp8)) fail("\"bf16\" or \"fp16\": there are no fp8 matrix units" + here);
    if (options.mix == Mix::bf16 && !has(Dtype::bf16))
      fail("\"fp16\" or \"fp32\": there are no bf16 matrix units" + here);
    if (options.storage() != scenario.plan.precision.storage())
      fail(std::string("a mix that keeps activations in ") + name_of(scenario.plan.precision.storage()) +
           ", as the other layers hand them on");
  });
}

void rewrite_piece(const Scenario& scenario, const Plan& plan, const Program& program, Piece& piece) {
  if (plan.precision.mix != Mix::fp8 || !is_layer(piece)) return;
  const data_parallel::Sharding sharding = data_parallel::sharding_of(scenario, plan, program);
  using Weights = Quantiser::Weights;
  Quantiser(piece, sharding.fp8_gathers              ? Weights::come_in_fp8
                   : !sharding.over.weights.empty() ? Weights::come_and_go
                                                    : Weights::stay)
      .run();
}

Dtype peak_dtype(const Scenario& scenario) {
  const Device& device = scenario.cluster.device;
  Dtype fastest = scenario.plan.precision.compute();
  for (const LayerRange& range : scenario.plan.layers)
    if (const Dtype dtype = range.plan.precision.compute(); device.peak(dtype) > device.peak(fastest)) fastest = dtype;
  return fastest;
}

}  // namespace orrery::precision
