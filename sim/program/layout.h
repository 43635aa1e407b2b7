// How a dimension of a tensor is divided over a mesh.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <vector>

#include "sim/program/mesh.h"

namespace orrery {

struct BlockTable;

// Which indices each part of a dimension has. A table's deals last as long as the DealTables that made them.
struct Deal {
  enum Kind : std::uint8_t {
    contiguous,   // part p the p-th of equal parts
    zigzag,       // of twice as many blocks as parts, the p-th from the front and the p-th from the back: the ranks of
                  // a causal mask then have equal work
    query_heads,  // of a key/value group: its query heads are divided, the key and the value behind them are on every
                  // rank
    striped,      // index i to part i mod the parts: equal causal work, too, but for one diagonal
    by_table,     // as `table` says
  };
  Kind kind = contiguous;
  const BlockTable* table = nullptr;  // of by_table alone

  constexpr Deal() = default;
  constexpr Deal(Kind of_kind, const BlockTable* of = nullptr) : kind(of_kind), table(of) {}
  constexpr auto operator<=>(const Deal&) const = default;
};
inline constexpr int kDeals = 5;  // kinds of them
const char* name_of(Deal deal);

// The digits of a mesh that a dimension is divided over, major to minor: the first cuts the dimension, the next cuts
// what one rank of the first has, and so on; but for those that deal it together (dealing_digits). Like a group it
// means nothing without its mesh.
class Division {
 public:
  static constexpr int kMost = 8;

  constexpr int count() const {
    int n = 0;
    while (n < kMost && digit(n) >= 0) ++n;
    return n;
  }
  constexpr bool empty() const { return digits_ == 0; }
  // The n-th digit, or -1.
  constexpr int digit(int n) const { return static_cast<int>(digits_ >> (4 * n) & 0xf) - 1; }
  // Of a group the outermost digit is the major one, so that parts are in the order of the group's ranks. Both throw
  // std::logic_error for more than kMost digits.
  void append(MeshGroup minor) {
    for (unsigned bits = minor.bits(); bits != 0;) {
      const int outermost = std::bit_width(bits) - 1;
      push_back(outermost);
      bits &= ~(1u << outermost);
    }
  }
  void prepend(MeshGroup major) {
    const Division minor = *this;
    digits_ = 0;
    append(major);
    for (int n = 0; n < minor.count(); ++n) push_back(minor.digit(n));
  }
  // No digit twice, and not too many.
  constexpr bool has_room_for(MeshGroup minor) const {
    int n = count();
    for (int d = 0; d < Mesh::kMaxDigits; ++d) n += minor.contains(d) ? 1 : 0;
    return n <= kMost && !group().meets(minor);
  }
  constexpr MeshGroup group() const {
    MeshGroup group;
    for (int n = 0; n < count(); ++n) group = group | MeshGroup::of_digit(digit(n));
    return group;
  }
  // Whether the first digits are those of `major`.
  constexpr bool begins_with(Division major) const {
    const std::uint64_t mask = (std::uint64_t{1} << (4 * major.count())) - 1;
    return (digits_ & mask) == major.digits_;
  }
  // The digits behind those of `major`. REQUIRES: begins_with(major).
  constexpr Division behind(Division major) const {
    Division minor;
    minor.digits_ = static_cast<std::uint32_t>(std::uint64_t{digits_} >> (4 * major.count()));
    return minor;
  }
  constexpr bool operator==(const Division&) const = default;

 private:
  void push_back(int digit) {
    const int n = count();
    if (n == kMost) throw std::logic_error("a dimension divided over more than eight digits");
    digits_ |= static_cast<std::uint32_t>(digit + 1) << (4 * n);
  }
  std::uint32_t digits_ = 0;  // four bits each, the digit's number and one; the first in the lowest
};

// How many of a division's digits, from the first on, deal out the dimension together; what they leave the rest cut
// contiguously. The first, and behind it those of its name, which a mesh has where a digit is cut (Mesh::fold) or a
// ring is one of rings; of a table as many as have its parts.
int dealing_digits(Deal deal, Division over, const Mesh& mesh);

// Which of the parts is `rank`'s: they count the digits in the order of the division.
std::int64_t part_of(Division over, const Mesh& mesh, std::int64_t rank);

// Indices begin, begin + apart, ..; kNoIndex, apart 0: rows that no index has (the rest of a part that has fewer than
// the largest).
inline constexpr std::int64_t kNoIndex = -1;
struct IndexRun {
  std::int64_t begin = 0, count = 0, apart = 1;
  constexpr std::int64_t at(std::int64_t i) const { return begin + i * apart; }
  constexpr IndexRun slice(std::int64_t first, std::int64_t n) const { return {at(first), n, apart}; }
  constexpr bool is_empty_rows() const { return begin == kNoIndex; }
  constexpr bool operator==(const IndexRun&) const = default;
};

using RunsOfParts = std::vector<std::vector<IndexRun>>;
inline std::int64_t rows_of(std::span<const IndexRun> runs) {
  std::int64_t rows = 0;
  for (const IndexRun& run : runs) rows += run.count;
  return rows;
}

// Pairs (query, key) that attention touches in one head of one sequence, from the positions that its operands have
// (layouts, Op::parts, Op::keys_before): those that kernels mask by. Kernels skip what is masked.
struct AttendedPairs {
  std::int64_t seen = 0;
  // What FLOPs count: on the edges of a causal mask, a query's own key and the first one behind its window, half of
  // each pair. The dense half-square is the field's usual count.
  double counted = 0;
  std::int64_t keys = 0;  // in runs of neighbouring positions of which any is seen
};

// What attention over parts of a table touches, by all that it follows from beside the table (work.cpp): an op's shape
// and bytes, rank by rank and again, ask for it. For several threads at once.
class AttendedMemo {
 public:
  using Key = std::array<std::int64_t, 8>;
  AttendedMemo() = default;
  AttendedMemo(const AttendedMemo&) {}  // begins anew
  template <class Count>
  AttendedPairs of(const Key& key, Count&& count) const {
    const std::lock_guard lock(mutex_);
    const auto [met, is_new] = met_.try_emplace(key);
    if (is_new) met->second = count();
    return met->second;
  }
  bool operator==(const AttendedMemo&) const { return true; }

 private:
  mutable std::mutex mutex_;
  mutable std::map<Key, AttendedPairs> met_;
};

struct BlockTable {
  std::int64_t blocks = 0;  // 0: of runs
  RunsOfParts of_part;      // of blocks, neighbours in one run; or of indices
  // Of runs: the indices of the dimension, of which parts may lack some, and how many of a part's rows have one.
  std::int64_t whole = 0;
  std::vector<std::int64_t> filled = {};
  // Of runs: what has to meet (the queries and keys of a document) is within so many parts that follow each other, from
  // a multiple of that on.
  std::int64_t meeting_parts = 0;
  AttendedMemo attended = {};
  bool operator==(const BlockTable&) const = default;
};
constexpr bool is_table_of_runs(Deal deal) { return deal.table != nullptr && deal.table->blocks == 0; }

// The tables that a Program's dimensions are dealt by. Copies share them. Whoever asks for one changes nothing that the
// Program says, but two threads must not ask at once.
class DealTables {
 public:
  // A dimension in as many equal blocks as `owners` has, of which part owners[b] has block b; every part has as many,
  // in their order. Equal tables are one deal. Throws std::logic_error for parts of unequal size.
  Deal by_blocks(std::span<const std::int64_t> owners) const;
  // Part p has the indices of_part[p] of a dimension of `whole`, and behind them rows without an index, until all parts
  // have `rows` of them (0: as many as the largest part has indices). As above otherwise: equal ones are one deal.
  // Throws std::logic_error for an index that two parts have, or that the dimension has not.
  Deal by_runs(RunsOfParts of_part, std::int64_t whole, std::int64_t meeting_parts, std::int64_t rows = 0) const;
  std::size_t count() const { return tables_.size(); }
  void clear() { tables_.clear(); }

 private:
  Deal add(BlockTable table) const;
  mutable std::vector<std::shared_ptr<const BlockTable>> tables_;
};

// Of a rank's rows of such a dimension those that an index has, over all. REQUIRES: is_table_of_runs(deal).
double filled_share(Deal deal, Division over, const Mesh& mesh, std::int64_t rank);

// visit(run) for what part `part` of `parts` has of a dimension of `whole`, `local` indices, in their order there.
template <class Visit>
void for_each_run_of_part(Deal deal, std::int64_t parts, std::int64_t part, std::int64_t whole, std::int64_t local,
                          Visit&& visit) {
  if (parts == 1) deal = Deal::contiguous;
  switch (deal.kind) {
    case Deal::contiguous:
      return visit(IndexRun{part * local, local});
    case Deal::zigzag:
      visit(IndexRun{part * (local / 2), local / 2});
      return visit(IndexRun{(2 * parts - 1 - part) * (local / 2), local / 2});
    case Deal::query_heads: {
      const std::int64_t heads = (whole - local) / (parts - 1);
      visit(IndexRun{part * heads, heads});
      return visit(IndexRun{whole - (local - heads), local - heads});
    }
    case Deal::striped:
      return visit(IndexRun{part, local, parts});
    case Deal::by_table: {
      const BlockTable& table = *deal.table;
      if (table.blocks == 0) {
        for (const IndexRun& run : table.of_part.at(static_cast<std::size_t>(part))) visit(run);
        return;
      }
      const std::int64_t block = whole / table.blocks;
      for (const IndexRun& run : table.of_part.at(static_cast<std::size_t>(part)))
        visit(IndexRun{run.begin * block, run.count * block});
    }
  }
}

// visit(run) for the indices that `rank` has of a dimension of `whole`, `local` of them, in its order. Indices of a
// last part may reach beyond `whole` (padded flat buffers).
template <class Visit>
void for_each_dealt_run(Deal deal, Division over, std::int64_t whole, std::int64_t local, const Mesh& mesh,
                        std::int64_t rank, Visit&& visit) {
  std::int64_t parts = 1, part = 0, minor_parts = 1, minor_part = 0;
  const int dealing = dealing_digits(deal, over, mesh);
  for (int n = 0; n < over.count(); ++n) {
    const Digit& digit = mesh.digits()[static_cast<std::size_t>(over.digit(n))];
    std::int64_t &count = n < dealing ? parts : minor_parts, &at = n < dealing ? part : minor_part;
    count *= digit.size;
    at = at * digit.size + rank / digit.stride % digit.size;
  }
  std::int64_t before = 0;  // in what they leave
  const std::int64_t begin = minor_part * local, end = begin + local;
  for_each_run_of_part(deal, parts, part, whole, local * minor_parts, [&](const IndexRun& run) {
    const std::int64_t first = std::max(begin - before, std::int64_t{0}), last = std::min(end - before, run.count);
    if (first < last) visit(run.slice(first, last - first));
    before += run.count;
  });
}
std::vector<std::int64_t> dealt_indices(Deal deal, Division over, std::int64_t whole, std::int64_t local,
                                        const Mesh& mesh, std::int64_t rank);

}  // namespace orrery
