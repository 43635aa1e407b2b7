#include "strategies/usp/exchange.h"

#include <algorithm>
#include <numeric>

#include "sim/program/rewrite.h"

namespace orrery::usp {
namespace {

constexpr const char *kHeads = "cp.ulysses", *kSharing = "cp.shared";

}  // namespace

Heads heads_of(const Scenario& scenario) {
  const Model& model = scenario.model;
  const std::int64_t t = scenario.plan.tensor.degree;
  return {std::max<std::int64_t>(1, model.effective_kv_heads() / t), model.heads / t};
}

void add_exchange_digits(const Scenario& scenario, std::int64_t ranks, Mesh& mesh) {
  const std::int64_t heads = std::gcd(ranks, heads_of(scenario).key_value);
  mesh.add(MeshAxis::cp, heads, kHeads);
  mesh.add(MeshAxis::cp, ranks / heads, kSharing);
}

MeshGroup exchanging_ranks(const Mesh& mesh) { return mesh.group(kHeads) | mesh.group(kSharing); }

Exchange::Exchange(const Mesh& mesh, Division outer, Piece& piece, std::vector<Op>& out)
    : mesh_(mesh),
      heads_(mesh.group(kHeads)),
      sharing_(mesh.group(kSharing)),
      outer_(outer),
      piece_(piece),
      out_(out) {}

// Returns a tensor with the positions of all ranks of `group`, and this rank's part of the heads within `group`.
TensorId Exchange::with_positions_of(TensorId id, MeshGroup group) {
  const TensorId all = clone_tensor(piece_, id);
  Tensor& t = piece_.tensors[all];
  const int sequence = t.find(Axis::sequence);
  t.sizes[sequence] *= mesh_.size(group);
  t.over[sequence] = outer_;
  t.over[sequence].append((heads_ | sharing_).without(group));
  const auto divide = [&](Axis axis, MeshGroup by) {
    const int d = t.find(axis);
    if (d < 0 || by.empty()) return;
    t.sizes[d] /= mesh_.size(by);
    t.over[d].append(by);
  };
  divide(Axis::groups, heads_ & group);
  divide(Axis::group_heads, sharing_ & group);
  return all;
}

TensorId Exchange::with_all_positions(TensorId local) { return with_positions_of(local, heads_ | sharing_); }

Exchange::Keys Exchange::with_all_positions_of_keys(TensorId local, TensorId queries) {
  Keys keys;
  keys.own = heads_.empty() ? local : with_positions_of(local, heads_);
  if (sharing_.empty()) {
    keys.all = keys.own;
    return keys;
  }
  keys.all = clone_tensor(piece_, keys.own);
  Tensor& t = piece_.tensors[keys.all];
  const int sequence = t.find(Axis::sequence);
  t.sizes[sequence] = piece_.tensors[queries].sizes[sequence];
  t.over[sequence] = outer_;
  return keys;
}

// Keys and values are sent separately, as in the published code.
void Exchange::communicate(OpKind kind, const char* name, MeshGroup group, TensorId from, TensorId to, const Op& cause,
                           Tensors tensors) {
  if (group.empty()) return;
  Op op = communication(kind, name, cause.phase, Stream::context_communication, group, from, to);
  op.count = static_cast<std::uint16_t>(tensors);
  out_.push_back(op);
}

void Exchange::give_positions(const char* name, TensorId local, TensorId all, const Op& cause) {
  communicate(OpKind::redistribute, name, heads_ | sharing_, local, all, cause, Tensors::one);
}

void Exchange::take_positions(const char* name, TensorId all, TensorId local, const Op& cause) {
  give_positions(name, all, local, cause);
}

void Exchange::give_keys(TensorId local, Keys keys, const Op& cause) {
  communicate(OpKind::redistribute, "ulysses.keys", heads_, local, keys.own, cause, Tensors::keys_and_values);
  communicate(OpKind::all_gather, "ulysses.shared_keys", sharing_, keys.own, keys.all, cause, Tensors::keys_and_values);
}

void Exchange::take_key_gradients(Keys keys, TensorId local, const Op& cause) {
  communicate(OpKind::reduce_scatter, "ulysses.shared_key_gradients", sharing_, keys.all, keys.own, cause,
              Tensors::keys_and_values);
  communicate(OpKind::redistribute, "ulysses.key_gradients", heads_, keys.own, local, cause, Tensors::keys_and_values);
}

}  // namespace orrery::usp
