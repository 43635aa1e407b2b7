#include "realrun/rank/expert_rows.h"

#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>

namespace orrery::realrun {
namespace {

// Returns the choices by which an op puts tokens into rows or takes them out; kNoTensor: another op.
TensorId choices_of(const Op& op) {
  if (!traits_of(op.kind).regroups) return kNoTensor;
  return op.reads[op.kind == OpKind::unpermute_backward ? 2 : 1];
}

// First chunk of a view.
std::int64_t first_chunk(const Piece& piece, TensorId id) {
  std::int64_t first = 0;
  while (piece.tensors[id].alias_of != kNoTensor) {
    const Tensor &view = piece.tensors[id], &base = piece.tensors[view.alias_of];
    const int in_base = base.find(Axis::chunks), chunks = view.find(Axis::chunks);
    if (chunks >= 0 && in_base >= 0 && base.sizes[in_base] != view.sizes[chunks]) first += view.alias_begin;
    id = view.alias_of;
  }
  return first;
}

}  // namespace

ExpertRows::ExpertRows(const RankShared& rank)
    : RankShared(rank), counts_(rank.setup_.scenario.plan.expert.counts_rows()) {
  for (const Piece& piece : program_.pieces)
    for (const auto block : kBlocks)
      for (const Op& op : (piece.*block).ops)
        if (is_communication(op.kind) && op.reads[0] != kNoTensor && piece.tensors[op.reads[0]].find(Axis::slots) >= 0)
          shared_ = shared_ | op.group;
}

RowCountsPtr ExpertRows::of(const OpCall& call) {
  if (!counts_) return nullptr;
  const TensorId read = first_rows(call, call.op.reads), written = first_rows(call, call.op.writes);
  if (read == kNoTensor && written == kNoTensor) return nullptr;
  RowCountsPtr counts;
  if (const TensorId choices = choices_of(call.op); choices != kNoTensor) {
    Storage& routed = memory_.storage(call, choices, Access::read);
    if (routed.rows == nullptr) routed.rows = count(call, choices, read != kNoTensor ? read : written);
    counts = routed.rows;
  } else if (read != kNoTensor) {
    counts = memory_.storage(call, read, Access::read).rows;
  }
  if (counts == nullptr)
    throw std::logic_error("nobody knows how many rows \"" +
                           std::string(call.instance.tensor(read != kNoTensor ? read : written).name) + "\" has");
  for (const TensorId id : call.op.writes)
    if (is_rows(call, id)) memory_.storage(call, id, Access::write).rows = counts;
  return counts;
}

RowCountsPtr ExpertRows::count(const OpCall& call, TensorId choices, TensorId rows) {
  auto counts = std::make_shared<RowCounts>();
  const Tensor& t = call.instance.tensor(rows);
  counts->ranks = position_.group(shared_);
  counts->experts = t.sizes[t.find(Axis::experts)];
  const Tensor& chosen = call.instance.tensor(choices);
  const TensorMemory::Dense dense = memory_.dense(call, choices);
  std::vector<float> values(static_cast<std::size_t>(chosen.elements()));
  backend_.read({dense.data, chosen.dtype, 0, chosen.elements(), nullptr}, values);
  std::vector<double> own(static_cast<std::size_t>(counts->experts));
  for (const float expert : values) {
    if (expert == -1) continue;  // an expert that has not chosen the token
    if (!(expert >= 0) || expert >= static_cast<float>(counts->experts))
      throw std::logic_error("a choice is not an expert");
    ++own[static_cast<std::size_t>(expert)];
  }
  const auto all = counts->ranks.size() == 1 ? std::vector<std::vector<double>>{own}
                                             : communicator_.gather_values(counts->ranks, "rows of experts", own);
  for (const std::vector<double>& of_rank : all)
    for (const double n : of_rank) counts->tokens.push_back(std::llround(n));
  note(*counts, t.sizes[t.find(Axis::slots)]);
  return counts;
}

void ExpertRows::note(const RowCounts& counts, std::int64_t slots) {
  const auto parts = position_.mesh->size(position_.experts), here = counts.experts / parts;
  const auto part_of = [&](std::size_t rank) {
    return position_.mesh->coordinate(static_cast<std::int64_t>(rank), position_.experts);
  };
  std::vector<double> of_part(static_cast<std::size_t>(parts));
  double sent = 0;
  for (std::size_t r = 0; r < counts.ranks.size(); ++r)
    for (std::int64_t e = 0; e < counts.experts; ++e) {
      const auto rows = static_cast<double>(counts.at(r, e));
      of_part[static_cast<std::size_t>(e / here)] += rows;
      if (counts.ranks[r] == position_.rank && e / here != part_of(position_.rank)) sent += rows;
    }
  const double all = std::accumulate(of_part.begin(), of_part.end(), 0.0), mean = all / static_cast<double>(parts);
  std::vector<double> of_expert(static_cast<std::size_t>(counts.experts));
  for (std::size_t i = 0; i < counts.tokens.size(); ++i)
    of_expert[i % of_expert.size()] += static_cast<double>(counts.tokens[i]);
  const auto own = static_cast<std::size_t>(part_of(position_.rank));
  ++routed_.layers;
  routed_.computed += of_part[own];
  routed_.slots += static_cast<double>(slots * here) * static_cast<double>(counts.ranks.size());
  routed_.sent += sent;
  routed_.slots_sent += static_cast<double>(slots * (counts.experts - here));
  if (all <= 0) return;
  const double rank_over_mean = std::ranges::max(of_part) / mean;
  routed_.busiest_rank = std::max(routed_.busiest_rank, rank_over_mean);
  routed_.sum_of_busiest_ranks += rank_over_mean;
  routed_.busiest_expert =
      std::max(routed_.busiest_expert, std::ranges::max(of_expert) * static_cast<double>(counts.experts) / all);
}

std::vector<RowStretch> ExpertRows::held(const OpCall& call, TensorId id, std::size_t rank,
                                         const RowCounts& counts) const {
  const Tensor& t = call.instance.tensor(id);
  const Mesh& mesh = *position_.mesh;
  const auto r = static_cast<std::int64_t>(rank);
  const int experts = t.find(Axis::experts), chunks = t.find(Axis::chunks), slots = t.find(Axis::slots);
  if (experts != 0 || slots != (chunks < 0 ? 1 : 2) || (chunks >= 0 && chunks != 1))
    throw std::logic_error(std::string("rows \"") + t.name + "\" are not [experts, (chunks,) slots, ..]");
  // The ranks that the slots are divided over and whose rows this rank has.
  const MeshGroup divided = t.over[slots].group() & shared_;
  std::vector<std::size_t> sources;
  for (std::size_t s = 0; s < counts.ranks.size(); ++s)
    if (mesh.coordinate(static_cast<std::int64_t>(counts.ranks[s]), divided) == mesh.coordinate(r, divided))
      sources.push_back(s);
  const std::int64_t first_expert = part_of(t.over[experts], mesh, r) * t.sizes[experts];
  const std::int64_t parts = chunks < 0 ? 1 : t.sizes[chunks];
  const std::int64_t begin = chunks < 0 ? 0 : first_chunk(call.instance.piece(), id);
  const std::int64_t of_source = t.sizes[slots] / static_cast<std::int64_t>(sources.size());
  std::vector<RowStretch> stretches;
  for (std::int64_t e = 0; e < t.sizes[experts]; ++e)
    for (std::int64_t c = 0; c < parts; ++c) {
      std::int64_t at = (e * parts + c) * t.sizes[slots];
      for (const std::size_t source : sources) {
        const std::int64_t left = counts.at(source, first_expert + e) - (begin + c) * of_source;
        const std::int64_t rows = std::clamp<std::int64_t>(left, 0, of_source);
        stretches.push_back({first_expert + e, begin + c, source, at, rows});
        at += rows;
      }
    }
  return stretches;
}

std::vector<std::int64_t> ExpertRows::blocks(const OpCall& call, TensorId id, const RowCounts& counts) const {
  const Tensor& t = call.instance.tensor(id);
  const int chunks = t.find(Axis::chunks);
  std::vector<std::int64_t> rows(static_cast<std::size_t>(t.sizes[0] * (chunks < 0 ? 1 : t.sizes[chunks])));
  const std::vector<RowStretch> stretches = held(call, id, position_.rank, counts);
  const std::size_t of_block = stretches.size() / rows.size();
  for (std::size_t i = 0; i < stretches.size(); ++i) rows[i / of_block] += stretches[i].rows;
  return rows;
}

}  // namespace orrery::realrun
