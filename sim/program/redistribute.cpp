#include "sim/program/redistribute.h"

#include <algorithm>
#include <array>
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
  if (static_cast<std::int64_t>(table.of_part.size()) != parts) return false;
  return table.blocks == 0 ? rows_of(table.of_part.front()) * parts == whole : whole % table.blocks == 0;
}

std::vector<std::int64_t> moved_rows(std::span<const RunsOfParts* const> from, const RunsOfParts& to) {
  struct Held {
    std::int64_t begin, end;
    std::size_t part;
  };
  const std::size_t parts = to.size();
  std::vector<std::int64_t> moved(parts * parts, 0);
  std::vector<Held> held;
  for (const RunsOfParts* of_part : from)
    for (std::size_t p = 0; p < parts; ++p)
      for (const IndexRun& run : (*of_part)[p])
        if (!run.is_empty_rows()) held.push_back({run.begin, run.begin + run.count, p});
  std::ranges::sort(held, {}, &Held::begin);
  for (std::size_t p = 0; p < parts; ++p)
    for (const IndexRun& run : to[p]) {
      if (run.is_empty_rows()) continue;
      const std::int64_t end = run.begin + run.count;
      auto at = std::ranges::upper_bound(held, run.begin, {}, &Held::begin);
      if (at != held.begin()) --at;
      for (; at != held.end() && at->begin < end; ++at)
        if (const std::int64_t rows = std::min(end, at->end) - std::max(run.begin, at->begin); rows > 0)
          moved[at->part * parts + p] += rows;
    }
  return moved;
}

namespace {

// The dimension that all of them have dealt by runs of one whole, over the same digits, and that alone; -1: there is
// none.
int dimension_of_runs(std::span<const Tensor* const> from, const Tensor& to) {
  const auto table = [](const Tensor& t, int d) {
    return !t.over[d].empty() && is_table_of_runs(t.deal(d)) ? &table_of(t.deal(d)) : nullptr;
  };
  int dim = -1;
  for (int d = 0; d < to.rank; ++d)
    if (table(to, d) != nullptr) dim = d;
  if (dim < 0) return -1;
  const auto fits = [&](const Tensor* t) {
    if (t->rank != to.rank || t->axes != to.axes || t->over != to.over || t->load != 0 || to.load != 0) return false;
    for (int d = 0; d < to.rank; ++d)
      if (d != dim && (t->sizes[d] != to.sizes[d] || deal_of(*t, d) != deal_of(to, d))) return false;
    const BlockTable* const of = table(*t, dim);
    return of != nullptr && of->whole == table(to, dim)->whole && of->of_part.size() == table(to, dim)->of_part.size();
  };
  return std::ranges::all_of(from, fits) ? dim : -1;
}

std::optional<Redistribution> redistribution_of_runs(const Mesh& mesh, std::span<const Tensor* const> from,
                                                     const Tensor& to, int dim) {
  const BlockTable& table = table_of(to.deal(dim));
  const std::size_t parts = table.of_part.size();
  std::vector<const RunsOfParts*> before;
  for (const Tensor* t : from) before.push_back(&table_of(t->deal(dim)).of_part);
  const std::vector<std::int64_t> moved = moved_rows(before, table.of_part);
  std::int64_t all = 0, stay = 0, wanted = 0;
  for (std::size_t i = 0; i < moved.size(); ++i) {
    all += moved[i];
    stay += i / parts == i % parts ? moved[i] : 0;
  }
  for (const std::vector<IndexRun>& runs : table.of_part)
    for (const IndexRun& run : runs) wanted += run.is_empty_rows() ? 0 : run.count;
  if (all != wanted) return std::nullopt;  // one that nobody has, or two have
  Redistribution r;
  if (stay == all) return r;
  for (int n = dealing_digits(to.deal(dim), to.over[dim], mesh); n-- > 0;)
    r.group = r.group | MeshGroup::of_digit(to.over[dim].digit(n));
  std::int64_t largest = to.sizes[dim];
  for (const Tensor* t : from) largest = std::max(largest, t->sizes[dim]);
  r.share = static_cast<double>(all) / static_cast<double>(parts) / static_cast<double>(largest);
  return r;
}

// Of dimensions that every rank has as many indices of, or whose load says how many.
std::optional<Redistribution> redistribution_of_parts(const Mesh& mesh, const Tensor& from, const Tensor& to) {
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

}  // namespace

std::optional<Redistribution> redistribution(const Mesh& mesh, std::span<const Tensor* const> from, const Tensor& to) {
  const int dim = dimension_of_runs(from, to);
  const bool alike = from.size() == 1 && dim >= 0 && from[0]->deal(dim) == to.deal(dim);
  if (dim >= 0 && !alike) return redistribution_of_runs(mesh, from, to, dim);
  return from.size() == 1 ? redistribution_of_parts(mesh, *from[0], to) : std::nullopt;
}

std::optional<Redistribution> redistribution(const Mesh& mesh, const Tensor& from, const Tensor& to) {
  const Tensor* const one[]{&from};
  return redistribution(mesh, one, to);
}

}  // namespace orrery
