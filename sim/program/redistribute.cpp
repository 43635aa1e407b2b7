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
  return table.blocks == 0 ? rows_of_part(table) * parts == whole : whole % table.blocks == 0;
}

namespace {

// The dimension that all of them have dealt by runs, over the same digits, and that alone; -1: there is none.
int dimension_of_runs(std::span<const Tensor* const> from, const Tensor& to) {
  const auto by_runs = [](const Tensor& t, int d) { return !t.over[d].empty() && is_table_of_runs(t.deal(d)); };
  int dim = -1;
  for (int d = 0; d < to.rank; ++d)
    if (by_runs(to, d)) dim = d;
  if (dim < 0) return -1;
  for (const Tensor* t : from) {
    if (t->rank != to.rank || t->axes != to.axes || t->over != to.over || !by_runs(*t, dim) || t->load != 0 ||
        to.load != 0)
      return -1;
    for (int d = 0; d < to.rank; ++d)
      if (d != dim && (t->sizes[d] != to.sizes[d] || deal_of(*t, d) != deal_of(to, d))) return -1;
  }
  return dim;
}

// Whether every index that `to` has is one of exactly one of `from`.
bool covers(const std::vector<std::int64_t>& moved, std::span<const Tensor* const> from, const Tensor& to, int dim) {
  const BlockTable& table = table_of(to.deal(dim));
  if (std::ranges::any_of(from, [&](const Tensor* t) { return table_of(t->deal(dim)).whole != table.whole; }))
    return false;
  std::int64_t indices = 0;
  for (const std::vector<IndexRun>& runs : table.of_part)
    for (const IndexRun& run : runs) indices += run.is_empty_rows() ? 0 : run.count;
  return std::reduce(moved.begin(), moved.end()) == indices;
}

std::optional<Redistribution> redistribution_of_runs(const Mesh& mesh, std::span<const Tensor* const> from,
                                                     const Tensor& to, int dim) {
  const std::vector<std::int64_t> moved = moved_rows(from, to, dim);
  if (!covers(moved, from, to, dim)) return std::nullopt;
  const Division over = to.over[dim];
  const auto parts = static_cast<std::int64_t>(table_of(to.deal(dim)).of_part.size());
  Redistribution r;
  for (std::int64_t a = 0; a < parts; ++a)
    for (std::int64_t b = 0; b < parts; ++b) {
      if (a == b || moved[static_cast<std::size_t>(a * parts + b)] == 0) continue;
      std::int64_t minor = 1;
      for (int n = dealing_digits(to.deal(dim), over, mesh); n-- > 0;) {
        const MeshGroup digit = MeshGroup::of_digit(over.digit(n));
        const std::int64_t size = mesh.size(digit);
        if (a / minor % size != b / minor % size) r.group = r.group | digit;
        minor *= size;
      }
    }
  if (r.group.empty()) return r;
  std::int64_t largest = to.elements();
  for (const Tensor* t : from) largest = std::max(largest, t->elements());
  const double rows = static_cast<double>(std::reduce(moved.begin(), moved.end())) / static_cast<double>(parts),
               largest_rows = static_cast<double>(largest / (to.elements() / to.sizes[dim]));
  r.share = rows / largest_rows;
  return r;
}

}  // namespace

std::vector<std::int64_t> moved_rows(std::span<const Tensor* const> from, const Tensor& to, int dim) {
  struct Held {
    std::int64_t begin, end, part;
  };
  const BlockTable& table = table_of(to.deal(dim));
  const std::size_t parts = table.of_part.size();
  std::vector<std::int64_t> moved(parts * parts, 0);
  std::vector<Held> held;
  for (const Tensor* t : from) {
    const std::vector<std::vector<IndexRun>>& of_part = table_of(t->deal(dim)).of_part;
    for (std::size_t p = 0; p < of_part.size() && p < parts; ++p)
      for (const IndexRun& run : of_part[p])
        if (!run.is_empty_rows()) held.push_back({run.begin, run.begin + run.count, static_cast<std::int64_t>(p)});
  }
  std::ranges::sort(held, {}, &Held::begin);
  for (std::size_t p = 0; p < parts; ++p)
    for (const IndexRun& run : table.of_part[p]) {
      if (run.is_empty_rows()) continue;
      const std::int64_t end = run.begin + run.count;
      auto at = std::ranges::upper_bound(held, run.begin, {}, &Held::begin);
      if (at != held.begin()) --at;
      for (; at != held.end() && at->begin < end; ++at)
        if (const std::int64_t rows = std::min(end, at->end) - std::max(run.begin, at->begin); rows > 0)
          moved[static_cast<std::size_t>(at->part) * parts + p] += rows;
    }
  return moved;
}

std::optional<Redistribution> redistribution(const Mesh& mesh, std::span<const Tensor* const> from, const Tensor& to) {
  if (from.size() == 1) return redistribution(mesh, *from[0], to);
  const int dim = dimension_of_runs(from, to);
  return dim < 0 ? std::nullopt : redistribution_of_runs(mesh, from, to, dim);
}

std::optional<Redistribution> redistribution(const Mesh& mesh, const Tensor& from, const Tensor& to) {
  if (from.rank != to.rank) return std::nullopt;
  const std::array<const Tensor*, 1> one{&from};
  if (const int dim = dimension_of_runs(one, to); dim >= 0 && from.deal(dim) != to.deal(dim))
    return redistribution_of_runs(mesh, one, to, dim);
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
