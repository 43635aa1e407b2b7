#include "sim/program/redistribute.h"

#include <algorithm>
#include <numeric>

namespace orrery {
namespace {

Deal deal_of(const Tensor& t, int dim) { return t.over[dim].empty() ? Deal::contiguous : t.deal(dim); }

std::int64_t whole_of(const Mesh& mesh, const Tensor& t, int dim) {
  return t.sizes[dim] * mesh.size(t.over[dim].group());
}

// How many indices two runs share.
std::int64_t common(const IndexRun& a, const IndexRun& b) {
  std::int64_t first = 0;
  while (first < a.count && first < b.apart && (a.at(first) - b.begin) % b.apart != 0) ++first;
  if (first == a.count || first == b.apart) return 0;
  const std::int64_t step = std::lcm(a.apart, b.apart), last = std::min(a.at(a.count - 1), b.at(b.count - 1));
  std::int64_t begin = a.at(first);
  if (begin < b.begin) begin += (b.begin - begin + step - 1) / step * step;
  return begin > last ? 0 : (last - begin) / step + 1;
}

// Of a dimension, the indices that a rank has in both layouts.
std::int64_t kept(const Mesh& mesh, const Tensor& from, const Tensor& to, int dim, std::int64_t rank) {
  const std::int64_t whole = whole_of(mesh, from, dim);
  std::int64_t indices = 0;
  for_each_dealt_run(deal_of(from, dim), from.over[dim], whole, from.sizes[dim], mesh, rank, [&](const IndexRun& a) {
    for_each_dealt_run(deal_of(to, dim), to.over[dim], whole, to.sizes[dim], mesh, rank,
                       [&](const IndexRun& b) { indices += common(a, b); });
  });
  return indices;
}

}  // namespace

// A zigzag deal is of twice as many blocks as parts.
bool deals_evenly(const Mesh& mesh, const Tensor& t, int dim) {
  const Deal deal = deal_of(t, dim);
  if (deal != Deal::zigzag && !is_table(deal)) return true;
  std::int64_t parts = 1;
  for (int n = dealing_digits(deal, t.over[dim], mesh); n-- > 0;)
    parts *= mesh.size(MeshGroup::of_digit(t.over[dim].digit(n)));
  const std::int64_t whole = whole_of(mesh, t, dim);
  if (deal == Deal::zigzag) return whole % (2 * parts) == 0;
  const BlockTable& table = table_of(deal);
  return static_cast<std::int64_t>(table.of_part.size()) == parts && whole % table.blocks == 0;
}

std::optional<Redistribution> redistribution(const Mesh& mesh, const Tensor& from, const Tensor& to) {
  if (from.rank != to.rank) return std::nullopt;
  MeshGroup left, come;
  std::uint32_t changed = 0;  // dimensions
  for (int d = 0; d < from.rank; ++d) {
    if (from.axes[d] != to.axes[d]) return std::nullopt;
    const bool dealt_alike = deal_of(from, d) == deal_of(to, d);
    if (from.over[d] == to.over[d] && dealt_alike) {
      if (from.sizes[d] != to.sizes[d]) return std::nullopt;
      continue;
    }
    if (deal_of(from, d) == Deal::query_heads || deal_of(to, d) == Deal::query_heads) return std::nullopt;
    // Of rows of unequal number either side's sizes are those of its fullest rank.
    const bool unequal = from.axes[d] == Axis::slots && from.load != to.load;
    if (!unequal && whole_of(mesh, from, d) != whole_of(mesh, to, d)) return std::nullopt;
    if (!deals_evenly(mesh, from, d) || !deals_evenly(mesh, to, d)) return std::nullopt;
    changed |= 1u << d;
    // The digits are major to minor: what both layouts begin with stays, where the same digits deal the dimension.
    int stays = 0;
    if (dealt_alike)
      while (from.over[d].digit(stays) >= 0 && from.over[d].digit(stays) == to.over[d].digit(stays)) ++stays;
    const Deal deal = deal_of(from, d);
    if (const int dealing = std::max(dealing_digits(deal, from.over[d], mesh), dealing_digits(deal, to.over[d], mesh));
        stays < dealing && deal != Deal::contiguous)
      stays = 0;
    for (int n = stays; n < from.over[d].count(); ++n) left = left | MeshGroup::of_digit(from.over[d].digit(n));
    for (int n = stays; n < to.over[d].count(); ++n) come = come | MeshGroup::of_digit(to.over[d].digit(n));
  }
  if (left != come) return std::nullopt;
  Redistribution r{left, 0};
  if (changed == 0) return r;
  if (from.load != to.load) {  // who sends how much is the load's to say
    r.share = 1;
    return r;
  }

  const std::int64_t ranks = mesh.size(r.group), elements = from.elements();
  std::int64_t most = 0;  // that a rank sends
  for (std::int64_t member = 0; member < ranks; ++member) {
    std::int64_t rank = 0, rest = member, own = 1;
    for (std::size_t d = 0; d < mesh.digits().size(); ++d) {
      if (!r.group.contains(static_cast<int>(d))) continue;
      rank += rest % mesh.digits()[d].size * mesh.digits()[d].stride;
      rest /= mesh.digits()[d].size;
    }
    for (int d = 0; d < from.rank; ++d) own *= (changed >> d & 1u) != 0 ? kept(mesh, from, to, d, rank) : from.sizes[d];
    most = std::max(most, elements - own);
  }
  r.share = static_cast<double>(most * ranks) / static_cast<double>(elements * (ranks - 1));
  return r;
}

}  // namespace orrery
