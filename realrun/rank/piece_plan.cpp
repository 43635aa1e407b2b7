#include "realrun/rank/piece_plan.h"

#include <algorithm>
#include <string>

#include "sim/program/rewrite.h"
#include "sim/program/step_end.h"

namespace orrery::realrun {

std::size_t set_number(const Piece& piece, TensorId buffer) {
  const ParameterSet* set = set_of(piece, buffer);
  if (set == nullptr)
    throw ExecutionError(std::string("\"") + piece.tensors[buffer].name + "\" of piece \"" + piece.name +
                         "\" belongs to no parameter set");
  return static_cast<std::size_t>(set - piece.sets.data());
}

PiecePlan::PiecePlan(const Piece& piece, const Program& program, Position position, const SequenceLengths& sequences)
    : piece_(&piece) {
  const SideStream& memory = piece.sides[kEncoderOutput];
  const bool of_decoder = memory.input != kNoTensor || memory.output != kNoTensor || piece.output == kNoTensor;
  sequence_ = of_decoder ? sequences.decoder : sequences.whole;
  position.sequence = sequence_;
  views_ = views_of(piece, position);
  find_capacities(program);
  of_norm_.assign(piece.tensors.size(), false);
  for (std::size_t b = 0; b < kBlocks.size(); ++b)
    for (const Op& op : ops(b))
      if (op.kind == OpKind::gradient_norm) of_norm_[root(op.writes[0])] = true;
  find_held(position);
  for (const PackedGradients& packing : piece.packed) find_packed(packing, program);
  lives_.find(piece);
  update_ = UpdateParts(piece, lives_.storage(), !program.stage_groups.empty());
  for (std::size_t b = 0; b < kBlocks.size(); ++b)
    ahead_[b] = find_ahead(ops(b), lives_.storage(), boundary_of(piece, b).input);
  find_ends();
  find_added_to();
}

void PiecePlan::find_capacities(const Program& program) {
  const std::size_t n = piece_->tensors.size();
  capacity_.assign(n, 0);
  for (std::size_t id = 0; id < n; ++id) {
    const ElementMap& v = views_[id];
    const std::int64_t elements = piece_->tensors[id].elements();
    const std::int64_t end = v.dense() ? v.offset + elements : *std::max_element(v.index.begin(), v.index.end()) + 1;
    capacity_[v.root] = std::max(capacity_[v.root], end);
  }
  for (std::size_t b = 0; b < kBlocks.size(); ++b)
    for (const Op& op : ops(b)) {
      if (op.kind != OpKind::all_gather || tensor(op.writes[0]).rank != 1) continue;
      const ElementMap& whole = view(op.writes[0]);  // a flat buffer, including the padding of the last parts
      capacity_[whole.root] =
          std::max(capacity_[whole.root], whole.offset + tensor(op.reads[0]).elements() * program.mesh.size(op.group));
    }
}

void PiecePlan::find_held(const Position& position) {
  for (const ParameterSet& set : piece_->sets)
    held_.push_back({set.own_parameters, set.own_gradients, position.begin(tensor(set.own_parameters), 0), 0});
  for (const ParameterGradient& p : piece_->parameters) {
    if (tensor(p.parameter).shared) continue;
    HeldSet& held = held_.at(p.set);
    held.flat.push_back({&p, static_cast<std::size_t>(&p - piece_->parameters.data()), held.elements});
    held.elements += tensor(p.parameter).elements();
  }
}

// Finds the places of the gradients that the Program packs within what this rank holds.
void PiecePlan::find_packed(const PackedGradients& packing, const Program& program) {
  const Mesh& mesh = program.mesh;
  std::vector<std::vector<std::int64_t>>& packed = packed_[packing.buffer];
  packed.resize(held_.size());
  std::int64_t all = 0;
  for (std::size_t s = 0; s < held_.size(); ++s) {
    if (piece_->sets[s].frozen()) continue;
    const HeldSet& held = held_[s];
    const std::int64_t size = tensor(held.gradients).elements();
    std::int64_t elements = 0;
    for (const auto& [p, number, begin] : held.flat) {
      const Tensor& t = tensor(p->parameter);
      const auto partial = std::find_if(packing.gradients.begin(), packing.gradients.end(), [&, p = p](TensorId id) {
        return id == p->gradient || tensor(id).alias_of == p->gradient;  // rows of a table of positions
      });
      if (p->gradient == kNoTensor || partial == packing.gradients.end()) continue;
      for (std::int64_t e = 0; e < t.elements(); ++e) {
        if (packing.shared_heads && !is_behind_query_heads(t, e)) continue;
        ++elements;
        const std::int64_t at = begin + e - held.begin;
        if (at >= 0 && at < size) packed[s].push_back(view(held.gradients).at(at));
      }
      if (*partial == p->gradient) continue;
      // A table of positions packs as many rows as the sequence has; it may have more.
      elements += tensor(*partial).elements() * mesh.size(tensor(*partial).divided_over()) - t.elements();
    }
    // Each shard packs its part; the Program counts the mean over shards.
    const std::int64_t shards = mesh.size(tensor(piece_->sets[s].gradients).divided_over());
    all += (elements + shards - 1) / shards;
  }
  const Tensor& buffer = tensor(packing.buffer);
  if (all != buffer.elements())
    throw ExecutionError(std::string("piece \"") + piece_->name + "\" packs " + std::to_string(buffer.elements()) +
                         " gradients into " + buffer.name + ", but " + std::to_string(all) + " are partial sums");
}

void PiecePlan::find_ends() {
  for (std::size_t b = 0; b < kBlocks.size(); ++b)
    for (ByOp* of : {&ends_, &begin_anew_}) (*of)[b].resize(ops(b).size());
  for (const TensorId storage : lives_.storages()) {
    const Tensor& t = tensor(storage);
    const Life& life = lives_.of(storage);
    if (t.shared) continue;
    if (lasts(storage)) {
      const bool reduced = t.category == Category::gradient && !t.resident && life.read && !life.touches(kUpdateBlock);
      if (reduced && life.touches(kWeightGradientBlock))
        begin_anew_[kWeightGradientBlock][life.last[kWeightGradientBlock]].push_back(storage);
      continue;
    }
    for (std::size_t b = 0; b < kBlocks.size(); ++b)
      if (life.touches(b) && !life.outlives(b)) ends_[b][life.last[b]].push_back(storage);
  }
}

bool PiecePlan::ends_handed_on(TensorId storage, std::size_t block) const {
  const Life& life = lives_.of(storage);
  return life.keeper != Keeper::step && (life.handed_on & ~life.kept & bit_of_block(block)) != 0;
}

void PiecePlan::find_added_to() {
  added_to_.assign(piece_->tensors.size(), false);
  for (std::size_t b = 0; b < kBlocks.size(); ++b)
    for (const Op& op : ops(b))
      for (std::size_t i = 0; op.accumulate && i < op.writes.size(); ++i)
        if (op.writes[i] != kNoTensor && accumulates(op.kind, i)) added_to_[root(op.writes[i])] = true;
}

std::int64_t PiecePlan::longest_ahead(std::size_t block) const {
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < ahead_[block].size(); ++i)
    if (is_ahead(block, i)) longest = std::max(longest, static_cast<std::int64_t>(ops(block)[i].prefetch));
  return longest;
}

std::size_t PiecePlan::norm_begin() const {
  const std::vector<Op>& update = ops(kUpdateBlock);
  const auto it = std::find_if(update.begin(), update.end(), [](const Op& op) {
    return op.kind == OpKind::gradient_norm || is_optimizer(op.kind) || op.kind == OpKind::copy;
  });
  return static_cast<std::size_t>(it - update.begin());
}

double PiecePlan::factor_behind_norm(std::size_t set) const {
  const std::vector<Op>& update = ops(kUpdateBlock);
  const std::size_t norm = norm_begin();
  double factor = 1;
  for (std::size_t i = 0; i < update.size(); ++i) {
    if (update[i].kind != OpKind::scale && !is_optimizer(update[i].kind)) continue;
    if (set_of(*piece_, update[i].writes[0]) != &piece_->sets[set]) continue;
    const bool done = i < norm && root(update[i].writes[0]) == root(held_[set].gradients);
    if (!done) factor *= update[i].scale;
  }
  return factor;
}

std::vector<std::int64_t> sequence_positions(const PiecePlan& plan, const Tensor& t, const Position& position) {
  const int d = t.find(Axis::sequence);
  if (d < 0) return {};
  const std::int64_t whole = t.sizes[d] * position.mesh->size(t.over[d].group());
  if (whole != plan.sequence() && t.over[d].empty() && t.sequence_begin == 0) return {};
  std::vector<std::int64_t> positions = position.dealt(t, d, whole);
  for (std::int64_t& at : positions) at += t.sequence_begin;
  return positions;
}

}  // namespace orrery::realrun
