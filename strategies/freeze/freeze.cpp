// Frozen parameters, which a step does not train (requires_grad False): by ranges of layers, and at the model's ends. A
// frozen parameter has no gradient (ParameterGradient::gradient). It lies in a parameter set that has only weights,
// which are divided and gathered like others. The backward keeps only what gradients of trained parameters need: input
// gradients through frozen layers, and nothing before the first trained parameter, where layers run forward only.
#include "strategies/freeze/freeze.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "models/layers.h"
#include "sim/program/rewrite.h"
#include "strategies/layer_plans.h"
#include "strategies/pipeline_parallel/schedules.h"
#include "strategies/strategy.h"

namespace orrery::freeze {
namespace {

bool freezes_layers(const Plan& plan) { return plan.freeze.layers; }
bool used(const Scenario& scenario) {
  const Options& ends = scenario.plan.freeze;
  return ends.embedding || ends.head || any_plan(scenario, freezes_layers);
}

// The streams that a piece hands on which depend on trained parameters: their gradients are needed.
struct Trained {
  bool residual = false;
  std::array<bool, kSideStreams> sides{};
  bool operator==(const Trained&) const = default;
};

// A token table, which a tied model's head shares with the embedding.
bool is_vocabulary_table(const Tensor& t) { return t.rank == 2 && t.axes[0] == Axis::vocab; }

// Removes the gradients of some parameters from a piece, and from its backward everything that only they needed.
class Freezer {
 public:
  Freezer(Piece& piece, const Trained& before) : piece_(piece), before_(before) {}

  template <class Predicate>
  void run(Predicate is_frozen) {
    for (ParameterGradient& p : piece_.parameters)
      if (is_frozen(p.parameter)) p.gradient = kNoTensor;
    split_sets(piece_, orrery::is_frozen);
    find_what_is_handed_on();
    prune();
  }

  const Trained& behind() const { return behind_; }
  bool pruned() const { return pruned_; }

 private:
  void find_what_is_handed_on() {
    Storages trained(piece_);
    for (const ParameterGradient& p : piece_.parameters)
      if (p.gradient != kNoTensor) trained.add(p.parameter);
    if (before_.residual) trained.add(piece_.input);
    for (std::size_t s = 0; s < kSideStreams; ++s)
      if (before_.sides[s]) trained.add(piece_.sides[s].input);
    for (const Op& op : piece_.forward.ops)
      if (trained.has_any(op.reads)) trained.add_all(op.writes);
    behind_.residual = trained.has(piece_.output);
    behind_.sides = before_.sides;  // of streams that pass by
    for (std::size_t s = 0; s < kSideStreams; ++s)
      if (const TensorId on = piece_.sides[s].output; on != kNoTensor) behind_.sides[s] = trained.has(on);
  }

  // From the end: an op stays if one of its results is needed. An unneeded result is dropped if the kernel can omit it.
  // A rotary_backward without the shared key's gradient would be one of another form.
  void prune() {
    Storages needed(piece_);
    for (const ParameterGradient& p : piece_.parameters) needed.add(p.gradient);
    const auto hand_on = [&](TensorId& gradient, bool is_needed) {
      if (!is_needed) gradient = kNoTensor;
      needed.add(gradient);
    };
    hand_on(piece_.input_gradient, before_.residual);
    if (!behind_.residual) piece_.output_gradient = kNoTensor;
    for (std::size_t s = 0; s < kSideStreams; ++s) {
      hand_on(piece_.sides[s].input_gradient, before_.sides[s]);
      if (!behind_.sides[s]) piece_.sides[s].output_gradient = kNoTensor;
    }
    std::vector<Op>& ops = piece_.backward.ops;
    std::vector<Op> kept;  // in reverse order
    for (std::size_t i = ops.size(); i-- > 0;) {
      Op op = ops[i];
      if (!needed.has_any(op.writes)) continue;
      for (std::size_t w = 0; w < op.writes.size() && op.kind != OpKind::rotary_backward; ++w) {
        if (op.writes[w] == kNoTensor || needed.has(op.writes[w]) || (traits_of(op.kind).may_write >> w & 1u) == 0)
          continue;
        op.writes[w] = kNoTensor;
        pruned_ = true;
      }
      needed.add_all(op.reads);
      kept.push_back(op);
    }
    pruned_ = pruned_ || kept.size() < ops.size();
    ops.assign(kept.rbegin(), kept.rend());
  }

  Piece& piece_;
  const Trained before_;
  Trained behind_;
  bool pruned_ = false;
};

// Products that the backward no longer has; there are two for each product of the forward.
ProductFlops spared(const Piece& piece, double expert_rows, const PackedSequences* packed) {
  ProductFlops flops;
  for (const Op& op : piece.forward.ops) flops.add(product_flops(op, piece.tensors, expert_rows, packed), 2);
  for (const Op& op : piece.backward.ops) {
    if (op.kind != OpKind::attention_backward) {
      flops.add(product_flops(op, piece.tensors, expert_rows, packed), -1);
      continue;
    }
    for (const Op& forward : piece.forward.ops)  // four products, one kernel
      if (forward.kind == OpKind::attention && forward.writes[0] == op.reads[1])
        flops.add(product_flops(forward, piece.tensors, 0, packed), -2);
  }
  return flops;
}

// Cuts the line where the trained parameters change, and builds the pieces anew.
class Line {
 public:
  Line(const Scenario& scenario, const IsFrozen& is_frozen, Program& program)
      : scenario_(scenario), is_frozen_(is_frozen), program_(program), from_(program.pieces) {}

  ProductFlops run() {
    program_.pieces.clear();
    std::vector<PieceRun> runs;
    Trained before;
    for (const PieceRun& run : program_.line)
      for (std::int64_t left = run.count; left > 0; left -= runs.back().count) {
        const Made made = piece(run.piece, before);
        // Once an instance hands on what it takes, all that follow are like it.
        const std::int64_t count = made.behind == before ? left : 1;
        runs.push_back({made.piece, count});
        spared_.add(made.spared, static_cast<double>(count));
        before = made.behind;
      }
    program_.line = std::move(runs);
    return spared_;
  }

 private:
  struct Made {
    std::uint16_t of = 0, piece = 0;
    Trained before, behind;
    ProductFlops spared;
  };

  Made piece(std::uint16_t of, const Trained& before) {
    for (const Made& m : made_)
      if (m.of == of && m.before == before) return m;
    Piece piece = from_[of];
    Freezer freezer(piece, before);
    freezer.run([&](TensorId parameter) { return is_frozen_(of, from_[of], parameter); });
    Made made{of, static_cast<std::uint16_t>(program_.pieces.size()), before, freezer.behind(), {}};
    if (freezer.pruned()) {
      made.spared =
          spared(piece, expert_rows(scenario_.model, scenario_.workload, scenario_.plan.batch.micro_batch_size),
                 program_.packed.get());
      piece.variant_of = kNoPiece;  // its gradient buckets, if any, are its own
    } else if (piece.variant_of != kNoPiece) {
      piece.variant_of = family(piece.variant_of, made.piece);
    }
    program_.pieces.push_back(std::move(piece));
    made_.push_back(made);
    return made;
  }

  // Keeps variants without frozen parameters as variants.
  std::uint16_t family(std::uint16_t before, std::uint16_t first) {
    for (const auto& [from, to] : families_)
      if (from == before) return to;
    families_.emplace_back(before, first);
    return first;
  }

  const Scenario& scenario_;
  const IsFrozen& is_frozen_;
  Program& program_;
  const std::vector<Piece> from_;
  std::vector<Made> made_;
  std::vector<std::pair<std::uint16_t, std::uint16_t>> families_;
  ProductFlops spared_;
};

}  // namespace

std::vector<bool> frozen_layers(const Scenario& scenario, bool (*is_frozen)(const Plan&)) {
  const std::int64_t layers = scenario.model.total_layers();
  std::vector<bool> frozen(static_cast<std::size_t>(layers), is_frozen(scenario.plan));
  for (const LayerRange& range : scenario.plan.layers)
    for (std::int64_t l = range.from; l < (range.to > 0 ? range.to : layers); l += range.step)
      frozen[static_cast<std::size_t>(l)] = is_frozen(range.plan);
  return frozen;
}

void check_pipeline(const Scenario& scenario, const Frozen& frozen, std::string_view field, const std::string& cure) {
  const pipeline_parallel::Options& pipeline = scenario.plan.pipeline;
  const Model& model = scenario.model;
  // pipeline_parallel reports an impossible split.
  if (pipeline_parallel::options_limit(pipeline, model.total_layers())) return;
  const std::vector<std::int64_t> layers = pipeline_parallel::split_layers(model.total_layers(), pipeline);
  if (layers.size() == 1) return;
  if (frozen.embedding && model.relative_buckets > 0) {
    const std::string reason = " where tables of relative positions are frozen: stages pass on their gradients";
    if (pipeline.degree == 1) refuse(scenario.plan, "pipeline_schedule", "one without model chunks" + reason);
    refuse(scenario.plan, "pipeline_parallel", "1" + reason);
  }
  std::vector<bool> trains(static_cast<std::size_t>(pipeline.degree));  // by stage
  std::int64_t begin = 0;
  for (std::size_t q = 0; q < layers.size(); begin += layers[q++]) {
    const std::int64_t end = begin + layers[q];
    bool any = q == 0 ? !frozen.embedding : q + 1 == layers.size() && !frozen.head;
    for (std::int64_t l = begin; l < end; ++l) {
      const bool behind_seam = model.kind == ModelKind::encoder_decoder && l == model.layers;
      any = any || !frozen.layers[static_cast<std::size_t>(l)] || (behind_seam && !frozen.embedding);
    }
    if (q == 0 && !any)
      refuse(scenario.plan, field,
             cure + " the first model chunk (layers 0 to " + std::to_string(layers[0] - 1) +
                 "): every stage needs a backward");
    const std::size_t stage = pipeline_parallel::stage_of_position(pipeline, q);
    trains[stage] = trains[stage] || any;
  }
  if (!(scenario.plan.optimizer.clip_grad > 0)) return;
  for (std::size_t s = 0; s < trains.size(); ++s)
    if (!trains[s])
      refuse(scenario.plan, "pipeline_parallel",
             "stages that each train something, or clip_grad 0: stage " + std::to_string(s) +
                 " is frozen, but the norm needs all stages");
}

// Takes what the backward spares off Program::model.
void freeze(const Scenario& scenario, const IsFrozen& is_frozen, Program& program) {
  const ProductFlops spared = Line(scenario, is_frozen, program).run();
  const double micro_batches = static_cast<double>(scenario.workload.global_batch_size) /
                               static_cast<double>(scenario.plan.batch.micro_batch_size);
  program.model.flops_per_step -= micro_batches * (spared.linear + spared.attention_masked);
  program.model.executed_flops_per_step -= micro_batches * (spared.linear_executed + spared.attention_executed);
  program.model.flops_per_step_full_attention -= micro_batches * (spared.linear + spared.attention_full);
}

namespace {

void check(const Scenario& scenario) {
  if (!used(scenario)) return;
  const Options& ends = scenario.plan.freeze;
  if (ends.head && !ends.embedding && scenario.model.tied_embeddings && !scenario.model.vision())
    refuse(scenario.plan, "freeze_head", "false, or freeze_embedding too: this model's head is its embedding table");
  const Frozen frozen{frozen_layers(scenario, freezes_layers), ends.embedding, ends.head};
  const bool layers = std::ranges::find(frozen.layers, false) == frozen.layers.end();
  if (layers && ends.embedding && ends.head)
    refuse(scenario.plan, "freeze_head", "false, or something that is trained");
  check_pipeline(scenario, frozen, "freeze_embedding", "false, or a trained layer in");
}

void rewrite(const Scenario& scenario, Program& program) {
  if (!used(scenario)) return;
  const Options& ends = scenario.plan.freeze;
  const LayerPlans plans = layer_plans(scenario);
  const bool tied = scenario.model.tied_embeddings && !scenario.model.vision();
  const auto is_frozen = [&](std::size_t, const Piece& piece, TensorId parameter) {
    if (is_layer(piece)) return plans.of(piece).freeze.layers;
    if (piece.output != kNoTensor) return ends.embedding;
    return ends.head || (tied && ends.embedding && is_vocabulary_table(piece.tensors[parameter]));
  };
  freeze(scenario, is_frozen, program);
}

constexpr PlanWord kWords[]{{"freeze", used}};

}  // namespace

Strategy describe() {
  return {.name = "freeze",
          .summary = "parameters that are not trained: layers, embedding, head",
          .paper = "-",
          .check = check,
          .rewrite = rewrite,
          .words = kWords};
}

}  // namespace orrery::freeze
