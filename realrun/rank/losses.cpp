#include "realrun/rank/losses.h"

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

void Losses::note(const OpCall& call) {
  const bool of_router = gives_router_losses(call);
  if (!of_router && !gives_whole_statistics(call)) return;
  const Mesh& mesh = program_.mesh;
  Tensor targets = call.written(0);
  const MeshGroup parts = targets.divided_over() | mesh.group(MeshAxis::pp);
  MeshGroup same;
  for (std::size_t d = 0; d < mesh.digits().size(); ++d) same = same | MeshGroup::of_digit(static_cast<int>(d));
  if (!position_.is_first(same.without(parts))) return;
  targets.sizes[of_router ? targets.rank - 1 : 0] = 1;
  // Statistics of a chunk of the sequence are part of those of all positions.
  std::int64_t positions = targets.elements() * mesh.size(targets.divided_over()) * program_.schedule.micro_batches;
  if (const int d = targets.find(Axis::sequence); d >= 0)
    positions = positions / (targets.sizes[d] * mesh.size(targets.over[d].group())) * call.plan().sequence();
  kept_.push_back({memory_.share(call, call.op.writes[0]), static_cast<double>(positions), of_router});
}

double Losses::take() {
  double loss = 0;
  for (const auto& [storage, positions, of_router] : kept_) {
    std::vector<float> statistics(static_cast<std::size_t>(storage->elements));
    const std::size_t n = statistics.size() / 3;
    memory_.backend().synchronize();
    memory_.backend().read({storage->data, storage->dtype, 0, storage->elements, nullptr}, statistics);
    double sum = of_router ? std::accumulate(statistics.begin(), statistics.end(), 0.0) : 0;
    for (std::size_t t = 0; t < n && !of_router; ++t)
      sum += static_cast<double>(statistics[t]) + std::log(static_cast<double>(statistics[n + t])) -
             static_cast<double>(statistics[2 * n + t]);
    loss += sum / positions;
  }
  kept_.clear();
  return loss;
}

}  // namespace orrery::realrun
