#include "realrun/rank/rank_results.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace orrery::realrun {
namespace {

// Recomputed losses are not counted again.
bool gives_router_losses(const OpCall& call) {
  return call.op.kind == OpKind::router_loss && call.op.phase == Phase::forward;
}

bool gives_whole_statistics(const OpCall& call) {
  if (call.op.kind == OpKind::all_reduce) return call.op.reduction == Reduction::merge;
  if (call.op.kind != OpKind::cross_entropy) return false;
  const Tensor& logits = call.read(0);
  return logits.over[logits.rank - 1].empty();
}

}  // namespace

void StepResults::note(const OpCall& call) {
  const Op& op = call.op;
  if (gives_router_losses(call)) return note_loss(call, Kind::router_losses);
  if (gives_whole_statistics(call)) return note_loss(call, Kind::statistics);
  if (op.kind != OpKind::route || !op.is_random() || op.phase != Phase::forward) return;
  const Tensor& weights = call.written(0);
  kept_.push_back({Kind::weights, memory_.share(call, op.writes[0]), memory_.slice(call, op.writes[0], Access::read),
                   static_cast<double>(weights.elements() / weights.sizes[weights.rank - 1])});
}

void StepResults::note_loss(const OpCall& call, Kind kind) {
  const Mesh& mesh = program_.mesh;
  Tensor targets = call.written(0);
  const MeshGroup parts = targets.divided_over() | mesh.group(MeshAxis::pp);
  MeshGroup same;
  for (std::size_t d = 0; d < mesh.digits().size(); ++d) same = same | MeshGroup::of_digit(static_cast<int>(d));
  if (!position_.is_first(same.without(parts))) return;
  targets.sizes[kind == Kind::router_losses ? targets.rank - 1 : 0] = 1;
  // Statistics of a chunk of the sequence are part of those of all positions.
  std::int64_t positions = targets.elements() * mesh.size(targets.divided_over()) * program_.schedule.micro_batches;
  if (const int d = targets.find(Axis::sequence); d >= 0)
    positions = positions / (targets.sizes[d] * mesh.size(targets.over[d].group())) * call.plan().sequence();
  const StoragePtr storage = memory_.share(call, call.op.writes[0]);
  kept_.push_back(
      {kind, storage, {storage->data, storage->dtype, 0, storage->elements, nullptr}, static_cast<double>(positions)});
}

StepResults::Sums StepResults::take() {
  Sums sums;
  if (!kept_.empty()) backend_.synchronize();
  for (const Kept& kept : kept_) {
    std::vector<float> values(static_cast<std::size_t>(kept.values.elements));
    backend_.read(kept.values, values);
    if (kept.kind == Kind::weights) {  // inactive experts have no weight
      sums.active_experts += std::ranges::count_if(values, [](float w) { return w > 0; });
      sums.routed_tokens += static_cast<std::int64_t>(kept.positions);
      continue;
    }
    const bool of_router = kept.kind == Kind::router_losses;
    double sum = of_router ? std::accumulate(values.begin(), values.end(), 0.0) : 0;
    const std::size_t n = values.size() / 3;
    for (std::size_t t = 0; t < n && !of_router; ++t)
      sum += static_cast<double>(values[t]) + std::log(static_cast<double>(values[n + t])) -
             static_cast<double>(values[2 * n + t]);
    sums.loss += sum / kept.positions;
  }
  kept_.clear();
  return sums;
}

void HeldParts::keep_gradients(const Instance& instance) {
  const PiecePlan& plan = *instance.plan;
  std::vector<Values>& kept = gradients_[instance.number];
  kept.clear();
  for (std::size_t s = 0; s < plan.held().size(); ++s) {
    const TensorId id = plan.held()[s].gradients;
    Values& values = kept.emplace_back();
    if (id == kNoTensor) continue;
    values.resize(static_cast<std::size_t>(plan.tensor(id).elements()));
    backend_.synchronize();
    backend_.read(memory_.slice({instance}, id, Access::read), values);
    const double factor = plan.factor_behind_norm(s);
    for (float& g : values) g = static_cast<float>(factor * g);
  }
}

void HeldParts::add_parts(const Instance& instance, std::vector<HeldPart>& parts) {
  const PiecePlan& plan = *instance.plan;
  // Other workers have other gradients.
  const bool first_worker = program_.mesh.coordinate(position_.rank, MeshAxis::worker) == 0;
  for (std::size_t s = 0; s < plan.held().size(); ++s) {
    const HeldSet& held = plan.held()[s];
    Values value(static_cast<std::size_t>(plan.tensor(held.parameters).elements()));
    backend_.read(memory_.slice({instance}, held.parameters, Access::read), value);
    const Values& gradient = gradients_[instance.number][s];
    for (const auto& [p, number, begin] : held.flat) {
      const Tensor& local = plan.tensor(p->parameter);
      const WholeParameter& whole = setup_.parameters[instance.first_parameter + number];
      HeldPart& part = parts.emplace_back();
      part.parameter = static_cast<std::size_t>(whole.values_of);
      const std::vector<std::int64_t> element = whole_elements(local, whole.tensor, position_);
      for (std::int64_t e = 0; e < local.elements(); ++e) {
        const std::int64_t at = begin + e - held.begin;
        if (at < 0 || at >= static_cast<std::int64_t>(value.size())) continue;
        part.element.push_back(element[static_cast<std::size_t>(e)]);
        if (p->gradient != kNoTensor && first_worker) part.gradient.push_back(gradient[static_cast<std::size_t>(at)]);
        part.value.push_back(value[static_cast<std::size_t>(at)]);
      }
    }
  }
}

std::vector<HeldPart> HeldParts::parts() {
  std::vector<HeldPart> parts;
  backend_.synchronize();
  model_.for_each_instance([&](const Instance& instance) { add_parts(instance, parts); });
  return parts;
}

}  // namespace orrery::realrun
