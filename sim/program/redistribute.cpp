#include "sim/program/redistribute.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>

#include "sim/program/program.h"
#include "sim/program/rewrite.h"

namespace orrery {
namespace {

Deal deal_of(const Tensor& t, int dim) { return t.over[dim].empty() ? Deal::contiguous : t.deal(dim); }

std::int64_t whole_of(const Mesh& mesh, const Tensor& t, int dim) {
  return t.sizes[dim] * mesh.size(t.over[dim].group());
}

// The number of indices that two runs share.
std::int64_t common(const IndexRange& a, const IndexRange& b) {
  std::int64_t first = 0;
  while (first < a.count && first < b.apart && (a.at(first) - b.begin) % b.apart != 0) ++first;
  if (first == a.count || first == b.apart) return 0;
  const std::int64_t step = std::lcm(a.apart, b.apart), last = std::min(a.at(a.count - 1), b.at(b.count - 1));
  std::int64_t begin = a.at(first);
  if (begin < b.begin) begin += (b.begin - begin + step - 1) / step * step;
  return begin > last ? 0 : (last - begin) / step + 1;
}

// The number of indices of a dimension that a rank has in both layouts.
std::int64_t kept(const Mesh& mesh, const Tensor& from, const Tensor& to, int dim, std::int64_t rank) {
  const std::int64_t whole = whole_of(mesh, from, dim);
  std::int64_t indices = 0;
  for_each_dealt_run(deal_of(from, dim), from.over[dim], whole, from.sizes[dim], mesh, rank, [&](const IndexRange& a) {
    for_each_dealt_run(deal_of(to, dim), to.over[dim], whole, to.sizes[dim], mesh, rank,
                       [&](const IndexRange& b) { indices += common(a, b); });
  });
  return indices;
}

}  // namespace

// A zigzag deal has twice as many blocks as parts.
bool deals_evenly(const Mesh& mesh, const Tensor& t, int dim) {
  const Deal deal = deal_of(t, dim);
  if (deal != Deal::zigzag && deal.table == nullptr) return true;
  std::int64_t parts = 1;
  for (int n = dealing_digits(deal, t.over[dim], mesh); n-- > 0;)
    parts *= mesh.size(MeshGroup::of_digit(t.over[dim].digit(n)));
  const std::int64_t whole = whole_of(mesh, t, dim);
  if (deal == Deal::zigzag) return whole % (2 * parts) == 0;
  const DealTable& table = *deal.table;
  if (static_cast<std::int64_t>(table.of_part.size()) != parts) return false;
  return table.blocks == 0 ? rows_of(table.of_part.front()) * parts == whole : whole % table.blocks == 0;
}

namespace {

std::size_t count(const RowsOfParts& rows) { return rows.of_part->size() * static_cast<std::size_t>(rows.sharing); }

// Calls visit(holder, taker, indices) for the indices that holders, which share none, have of those that takers need.
template <class Visit>
void for_each_common(std::span<const RunsOfParts* const> holders, const RowsOfParts& takers, Visit&& visit) {
  struct Held {
    std::int64_t begin, end;
    std::size_t part;
  };
  std::vector<Held> held;
  for (const RunsOfParts* of_part : holders)
    for (std::size_t p = 0; p < of_part->size(); ++p)
      for (const IndexRange& run : (*of_part)[p])
        if (!run.is_empty_rows()) held.push_back({run.begin, run.begin + run.count, p});
  std::ranges::sort(held, {}, &Held::begin);
  const auto sharing = static_cast<std::size_t>(takers.sharing);
  for (std::size_t p = 0; p < count(takers); ++p)
    for (const IndexRange& run : (*takers.of_part)[p / sharing]) {
      if (run.is_empty_rows()) continue;
      const std::int64_t end = run.begin + run.count;
      auto at = std::ranges::upper_bound(held, run.begin, {}, &Held::begin);
      if (at != held.begin()) --at;
      for (; at != held.end() && at->begin < end; ++at)
        if (const std::int64_t n = std::min(end, at->end) - std::max(run.begin, at->begin); n > 0)
          visit(at->part, p, static_cast<double>(n) / static_cast<double>(takers.sharing));
    }
}

}  // namespace

std::vector<double> moved_rows(std::span<const RowsOfParts> from, const RowsOfParts& to) {
  const std::size_t parts = count(to);
  std::vector<double> moved(parts * parts, 0);
  std::vector<const RunsOfParts*> alone;
  const RunsOfParts* const taker[]{to.of_part};
  for (const RowsOfParts& rows : from) {
    if (rows.sharing == 1)
      alone.push_back(rows.of_part);
    else
      for_each_common(taker, rows, [&](std::size_t b, std::size_t a, double n) { moved[a * parts + b] += n; });
  }
  for_each_common(alone, to, [&](std::size_t a, std::size_t b, double n) { moved[a * parts + b] += n; });
  return moved;
}

namespace {

// Layouts of one tensor in which one dimension is dealt by runs.
struct LayoutsOfRuns {
  int dim = 0;
  std::int64_t whole = 0;  // its indices
  Division over;           // the digits that deal it
  std::vector<RowsOfParts> from;
  RowsOfParts to;
  std::int64_t row = 1;                          // elements of an index that is not shared
  std::shared_ptr<const RunsOfParts> undivided;  // the only part of tensors that have all indices
};

const DealTable* table_of_runs(const Tensor& t, int dim) {
  return !t.over[dim].empty() && is_table_of_runs(t.deal(dim)) ? t.table : nullptr;
}

// The number of parts that share an index in `coarse`. Its other dimensions must be divided like those of `fine`,
// except that one of them is also divided over the digits that deal `dim` only in `fine`. 0: the layouts are not
// related like this.
std::int64_t sharing(const Mesh& mesh, const Tensor& fine, const Tensor& coarse, int dim) {
  if (fine.rank != coarse.rank || fine.axes != coarse.axes || !fine.over[dim].begins_with(coarse.over[dim])) return 0;
  const MeshGroup inner = fine.over[dim].behind(coarse.over[dim]).group();
  const std::int64_t ranks = mesh.size(inner);
  bool divided = inner.empty();
  for (int d = 0; d < fine.rank; ++d) {
    if (d == dim) continue;
    if (deal_of(fine, d) != deal_of(coarse, d)) return 0;
    if (fine.over[d] == coarse.over[d] && fine.sizes[d] == coarse.sizes[d]) continue;
    Division over = fine.over[d];
    if (divided || !over.has_room_for(inner)) return 0;
    over.append(inner);
    if (coarse.over[d] != over || fine.sizes[d] != coarse.sizes[d] * ranks) return 0;
    if (deal_of(coarse, d) != Deal::contiguous) return 0;
    divided = true;
  }
  return divided ? ranks : 0;
}

std::optional<LayoutsOfRuns> layouts_of_runs(const Mesh& mesh, std::span<const Tensor* const> from, const Tensor& to) {
  LayoutsOfRuns layouts;
  int dim = -1;
  for (const Tensor* t : {from[0], &to})
    for (int d = 0; d < t->rank; ++d)
      if (table_of_runs(*t, d) != nullptr) dim = d;
  if (dim < 0 || dim >= to.rank || to.load.has_value()) return std::nullopt;
  const auto has_parts = [&](const Tensor& t) { return t.over[dim].empty() || table_of_runs(t, dim) != nullptr; };
  const Tensor* fine = &to;
  for (const Tensor* t : from) {
    if (t->rank != to.rank || t->load.has_value() || !has_parts(*t)) return std::nullopt;
    if (t->over[dim].count() > fine->over[dim].count()) fine = t;
  }
  if (!has_parts(to) || fine->over[dim].empty()) return std::nullopt;
  layouts.whole = table_of_runs(*fine, dim)->whole;
  layouts.undivided = std::make_shared<const RunsOfParts>(RunsOfParts{{{0, layouts.whole}}});
  const auto rows = [&](const Tensor& t) {
    const DealTable* const table = table_of_runs(t, dim);
    return RowsOfParts{table != nullptr ? &table->of_part : layouts.undivided.get(), sharing(mesh, *fine, t, dim)};
  };
  layouts.dim = dim;
  for (int n = 0; n < dealing_digits(fine->deal(dim), fine->over[dim], mesh); ++n)
    layouts.over.append(MeshGroup::of_digit(fine->over[dim].digit(n)));
  layouts.to = rows(to);
  layouts.row = fine->elements() / fine->sizes[dim];
  const std::size_t parts = table_of_runs(*fine, dim)->of_part.size();
  const auto fits = [&](const Tensor& t, const RowsOfParts& r) {
    return r.sharing > 0 && (r.sharing == 1 || layouts.to.sharing == 1 || &t == &to) && count(r) == parts &&
           (t.over[dim].empty() ? t.sizes[dim] : table_of_runs(t, dim)->whole) == layouts.whole;
  };
  if (!fits(to, layouts.to)) return std::nullopt;
  for (const Tensor* t : from) {
    layouts.from.push_back(rows(*t));
    if (!fits(*t, layouts.from.back())) return std::nullopt;
  }
  return layouts;
}

// The digits in which two parts differ.
MeshGroup between(const Mesh& mesh, Division over, std::size_t a, std::size_t b) {
  MeshGroup group;
  for (int n = over.count(); n-- > 0;) {
    const auto size = static_cast<std::size_t>(mesh.size(MeshGroup::of_digit(over.digit(n))));
    if (a % size != b % size) group = group | MeshGroup::of_digit(over.digit(n));
    a /= size, b /= size;
  }
  return group;
}

std::optional<Redistribution> redistribution_of_runs(const Mesh& mesh, std::span<const Tensor* const> from,
                                                     const Tensor& to, const LayoutsOfRuns& layouts) {
  const std::vector<double> moved = moved_rows(layouts.from, layouts.to);
  const std::size_t parts = count(layouts.to);
  double all = 0, wanted = 0;
  Redistribution r;
  for (std::size_t i = 0; i < moved.size(); ++i) {
    all += moved[i];
    if (moved[i] > 0) r.group = r.group | between(mesh, layouts.over, i / parts, i % parts);
  }
  for (const std::vector<IndexRange>& runs : *layouts.to.of_part)
    for (const IndexRange& run : runs) wanted += run.is_empty_rows() ? 0 : static_cast<double>(run.count);
  constexpr double kOfShares = 1e-3;                            // thirds of rows are not exact numbers
  if (std::abs(all - wanted) > kOfShares) return std::nullopt;  // an index that no part has, or that two have
  if (r.group.empty()) return r;
  const auto rows = [&](const Tensor& t) {
    return static_cast<double>(t.elements()) / static_cast<double>(layouts.row);
  };
  double largest = rows(to);
  for (const Tensor* t : from) largest = std::max(largest, rows(*t));
  r.share = all / static_cast<double>(parts) / largest;
  return r;
}

// The redistribution if every rank has the same number of indices of each dimension, or the load says how many.
std::optional<Redistribution> redistribution_of_parts(const Mesh& mesh, const Tensor& from, const Tensor& to) {
  if (from.rank != to.rank) return std::nullopt;
  MeshGroup left, come;
  std::uint32_t changed = 0;  // set of dimensions
  for (int d = 0; d < from.rank; ++d) {
    if (from.axes[d] != to.axes[d]) return std::nullopt;
    const bool dealt_alike = deal_of(from, d) == deal_of(to, d);
    if (from.over[d] == to.over[d] && dealt_alike) {
      if (from.sizes[d] != to.sizes[d]) return std::nullopt;
      continue;
    }
    if (deal_of(from, d) == Deal::query_heads || deal_of(to, d) == Deal::query_heads) return std::nullopt;
    // If ranks have unequal rows, each side's sizes are those of its fullest rank.
    const bool unequal = from.axes[d] == Axis::slots && from.load != to.load;
    if (!unequal && whole_of(mesh, from, d) != whole_of(mesh, to, d)) return std::nullopt;
    if (!deals_evenly(mesh, from, d) || !deals_evenly(mesh, to, d)) return std::nullopt;
    changed |= 1u << d;
    // Digits are major to minor. If both layouts begin with the same digits, and these deal the dimension, they stay.
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
  if (from.load != to.load) {  // the load says how much each rank sends
    r.share = 1;
    return r;
  }

  const std::int64_t ranks = mesh.size(r.group), elements = from.elements();
  std::int64_t most = 0;  // most elements that any rank sends
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
  const auto same = [&](const Tensor& t) { return t.over == to.over && t.is_dealt_as(to) && t.sizes == to.sizes; };
  if (from.size() != 1 || !same(*from[0]))
    if (const auto runs = layouts_of_runs(mesh, from, to)) return redistribution_of_runs(mesh, from, to, *runs);
  return from.size() == 1 ? redistribution_of_parts(mesh, *from[0], to) : std::nullopt;
}

std::optional<Redistribution> redistribution(const Mesh& mesh, const Tensor& from, const Tensor& to) {
  const Tensor* const one[]{&from};
  return redistribution(mesh, one, to);
}

namespace {

bool laid_out_alike(const Tensor& a, const Tensor& b) {
  return a.over == b.over && a.is_dealt_as(b) && a.sizes == b.sizes;
}

Tensor handed_on(Tensor t) {
  t.alias_of = kNoTensor;
  t.alias_begin = 0;
  t.category = Category::activation;
  return t;
}

// Returns the joint between two of these layouts. `back`: it also hands gradients back.
std::uint16_t joint(Program& program, const Tensor& from, const Tensor& to, bool back, std::uint16_t plan) {
  for (std::size_t p = 0; p < program.pieces.size(); ++p) {
    const Piece& piece = program.pieces[p];
    if (is_joint(piece) && laid_out_alike(piece.tensors[piece.input], from) &&
        laid_out_alike(piece.tensors[piece.output], to) && back == !piece.backward.ops.empty())
      return static_cast<std::uint16_t>(p);
  }
  const auto by = redistribution(program.mesh, from, to);
  if (!by) throw std::logic_error(std::string("\"") + from.name + "\" cannot be redistributed between two pieces");
  Piece piece;
  piece.name = "joint";
  piece.plan = plan;
  piece.input = piece.add(handed_on(from));
  piece.output = piece.add(handed_on(to));
  Op op = communication(OpKind::redistribute, "redistribute", Phase::forward, Stream::context_communication, by->group,
                        piece.input, piece.output);
  op.share = by->share;
  piece.forward.ops.push_back(op);
  if (back) differentiate(piece, from.dtype);
  program.pieces.push_back(std::move(piece));
  return static_cast<std::uint16_t>(program.pieces.size() - 1);
}

void join_layouts(Program& program, std::vector<PieceRun>& of) {
  std::vector<PieceRun> line;
  bool differ = false;
  for (std::size_t i = 0; i < of.size(); ++i) {
    if (i > 0) {
      const Piece& before = program.pieces[of[i - 1].piece];
      const Piece& behind = program.pieces[of[i].piece];
      const bool meet = before.output != kNoTensor && behind.input != kNoTensor;
      if (meet && !laid_out_alike(before.tensors[before.output], behind.tensors[behind.input])) {
        if (!differ) line.assign(of.begin(), of.begin() + static_cast<std::ptrdiff_t>(i));
        differ = true;
        // Copies, as adding a piece may move the others.
        const Tensor from = before.tensors[before.output], to = behind.tensors[behind.input];
        line.push_back({joint(program, from, to, behind.input_gradient != kNoTensor, behind.plan), 1});
      }
    }
    if (differ) line.push_back(of[i]);
  }
  if (differ) of = std::move(line);
}

}  // namespace

void join_layouts(Program& program) {
  program.for_each_class([&](std::vector<PieceRun>& line, auto&) { join_layouts(program, line); });
}

}  // namespace orrery
