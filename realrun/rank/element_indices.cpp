#include "realrun/rank/element_indices.h"

#include <algorithm>

#include "realrun/layout.h"

namespace orrery::realrun {
namespace {

// Runs of elements along a dimension, and the number of repetitions.
struct Extents {
  std::int64_t outer = 1, inner = 1;
};
Extents extents_around(const Tensor& t, int dim) {
  Extents e;
  for (int d = dim + 1; d < t.rank; ++d) e.inner *= t.sizes[d];
  for (int d = 0; d < dim; ++d) e.outer *= t.sizes[d];
  return e;
}

}  // namespace

const ElementIndices::Elements& ElementIndices::part(const Tensor& whole, int dim, std::int64_t begin,
                                                     std::int64_t size) {
  const auto [outer, inner] = extents_around(whole, dim);
  auto [found, fresh] = parts_.try_emplace({outer, whole.sizes[dim], inner, begin, size, 0});
  if (!fresh) return found->second;
  const std::int64_t inside = std::clamp<std::int64_t>(whole.sizes[dim] - begin, 0, size);
  for (std::int64_t o = 0; o < outer; ++o)
    for (std::int64_t i = 0; i < inside * inner; ++i)
      found->second.push_back((o * whole.sizes[dim] + begin) * inner + i);
  return found->second;
}

namespace {

// How a dimension is divided, as a part of a key.
void add_layout(const Tensor& t, int dim, ElementIndices::Elements& key) {
  const Deal deal = t.deal(dim);
  key.insert(key.end(), {deal.kind, reinterpret_cast<std::intptr_t>(deal.table)});
  for (int n = 0; n < t.over[dim].count(); ++n) key.push_back(-1 - t.over[dim].digit(n));
}

}  // namespace

const ElementIndices::Elements& ElementIndices::of_member(const Tensor& whole, const Tensor& part_of, int dim,
                                                          std::size_t rank, std::int64_t place) {
  const std::int64_t size = part_of.sizes[dim];
  if (is_contiguous_part(whole, part_of, dim)) return part(whole, dim, place * size, size);
  const auto [outer, inner] = extents_around(whole, dim);
  const Elements dealt = dealt_indices(part_of.deal(dim), part_of.over[dim], whole.sizes[dim], size, mesh_,
                                       static_cast<std::int64_t>(rank));
  Elements key{outer, whole.sizes[dim], inner, dealt.front(), size};
  add_layout(part_of, dim, key);
  auto [found, fresh] = parts_.try_emplace(std::move(key));
  if (!fresh) return found->second;
  for (std::int64_t o = 0; o < outer; ++o)
    for (const std::int64_t at : dealt)
      for (std::int64_t i = 0; i < inner; ++i) found->second.push_back((o * whole.sizes[dim] + at) * inner + i);
  return found->second;
}

const ElementIndices::Elements& ElementIndices::exchanged(const Tensor& tensor, std::size_t rank, const Tensor& in,
                                                          std::size_t other) {
  Elements key{static_cast<std::int64_t>(rank), static_cast<std::int64_t>(other)};
  for (const Tensor* t : {&tensor, &in})
    for (int d = 0; d < t->rank; ++d) {
      key.push_back(t->sizes[d]);
      add_layout(*t, d, key);
    }
  auto [found, fresh] = exchanged_.try_emplace(std::move(key));
  if (!fresh) return found->second;
  Elements& elements = found->second;
  elements.push_back(0);
  for (int d = 0; d < tensor.rank; ++d) {
    const Elements here = common(tensor, rank, in, other, d);
    Elements next;
    next.reserve(elements.size() * here.size());
    for (const std::int64_t at : elements)
      for (const std::int64_t i : here) next.push_back(at * tensor.sizes[d] + i);
    elements = std::move(next);
  }
  return elements;
}

ElementIndices::Elements ElementIndices::common(const Tensor& tensor, std::size_t rank, const Tensor& in,
                                                std::size_t other, int d) const {
  Elements here;
  if (tensor.over[d] == in.over[d] && tensor.deal(d) == in.deal(d)) {
    for (std::int64_t i = 0; i < tensor.sizes[d]; ++i) here.push_back(i);
    return here;
  }
  const std::int64_t whole = tensor.sizes[d] * mesh_.size(tensor.over[d].group());
  const auto of = [&](const Tensor& t, std::size_t r) {
    return dealt_indices(t.deal(d), t.over[d], whole, t.sizes[d], mesh_, static_cast<std::int64_t>(r));
  };
  const Elements own = of(tensor, rank);
  Elements theirs = of(in, other);
  std::sort(theirs.begin(), theirs.end());
  for (std::size_t i = 0; i < own.size(); ++i)
    if (own[i] != kNoIndex && std::binary_search(theirs.begin(), theirs.end(), own[i]))
      here.push_back(static_cast<std::int64_t>(i));
  std::sort(here.begin(), here.end(), [&](std::int64_t a, std::int64_t b) {
    return own[static_cast<std::size_t>(a)] < own[static_cast<std::size_t>(b)];
  });
  return here;
}

std::int64_t ElementIndices::longest_exchange(std::span<const Tensor* const> from, const Tensor& to,
                                              const Members& members) {
  std::size_t longest = 0;
  for (const std::size_t a : members)
    for (const std::size_t b : members) {
      std::size_t all = 0;
      for (const Tensor* t : from) all += exchanged(*t, a, to, b).size();
      longest = std::max(longest, all);
    }
  return static_cast<std::int64_t>(longest);
}

std::int64_t ElementIndices::rows_without_index(const Tensor& tensor, std::size_t rank) const {
  std::int64_t elements = 0;
  for (int d = 0; d < tensor.rank; ++d) {
    if (tensor.over[d].empty() || !is_table_of_runs(tensor.deal(d))) continue;
    const Elements dealt =
        dealt_indices(tensor.deal(d), tensor.over[d], 0, tensor.sizes[d], mesh_, static_cast<std::int64_t>(rank));
    elements += std::ranges::count(dealt, kNoIndex) * (tensor.elements() / tensor.sizes[d]);
  }
  return elements;
}

const ElementIndices::Elements& ElementIndices::stretch(const Elements& of, std::int64_t first, std::int64_t count) {
  Elements& elements = stretches_[{&of, first}];
  if (elements.empty()) elements.assign(of.begin() + first, of.begin() + first + count);
  return elements;
}

}  // namespace orrery::realrun
