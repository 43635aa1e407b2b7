// How a dimension of a tensor is divided over a mesh.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <compare>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <vector>

#include "sim/program/mesh.h"

namespace orrery {

struct DealTable;

// How the indices of a dimension are dealt out to its parts. A deal by a table points into the DealTables that made it,
// which must outlive it.
struct Deal {
  enum Kind : std::uint8_t {
    contiguous,   // part p has the p-th of equal parts
    zigzag,       // with twice as many blocks as parts, part p has the p-th block from the front and the p-th from the
                  // back: the ranks then have equal work under a causal mask
    query_heads,  // for Axis::group_qkv: the query heads of a key/value group are divided equally; the group's key and
                  // value, the last indices, are in every part
    striped,      // index i is in part i mod parts: under a causal mask the parts' work differs by one diagonal only
    by_table,     // by `table`
  };
  Kind kind = contiguous;
  const DealTable* table = nullptr;  // set for by_table only

  constexpr Deal() = default;
  constexpr Deal(Kind of_kind, const DealTable* of = nullptr) : kind(of_kind), table(of) {}
  constexpr auto operator<=>(const Deal&) const = default;
};
inline constexpr int kDeals = 5;  // kinds of deals
const char* name_of(Deal deal);

// The digits of a mesh that a dimension is divided over, from the major to the minor one. A Deal deals the dimension
// out over the first dealing_digits() of them together. Each further digit cuts every part of the digits before it into
// contiguous parts. A division, like a group, has no meaning without its mesh.
class Division {
 public:
  static constexpr int kMost = 8;

  constexpr Division() = default;
  // The digits of these groups, each appended to those before it.
  Division(std::initializer_list<MeshGroup> groups) {
    for (const MeshGroup group : groups) append(group);
  }

  constexpr int count() const {
    int n = 0;
    while (n < kMost && digit(n) >= 0) ++n;
    return n;
  }
  constexpr bool empty() const { return digits_ == 0; }
  // Returns the n-th digit, or -1.
  constexpr int digit(int n) const { return static_cast<int>(digits_ >> (4 * n) & 0xf) - 1; }
  // Adds the digits of a group as the minor ones. Among them, the digit with the largest stride is the major one, so
  // that parts are in the order of the group's ranks. Throws std::logic_error for more than kMost digits.
  void append(MeshGroup minor) {
    for (unsigned bits = minor.bits(); bits != 0;) {
      const int outermost = std::bit_width(bits) - 1;
      push_back(outermost);
      bits &= ~(1u << outermost);
    }
  }
  // Whether append(minor) would give a division of at most kMost digits, none of them twice.
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
  // Returns the digits that follow those of `major`. REQUIRES: begins_with(major).
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
  std::uint32_t digits_ = 0;  // four bits per digit: its number plus one; the first digit in the lowest bits
};

// Returns how many of a division's first digits deal the dimension out together; the other digits cut each of these
// parts contiguously. Without a table, the dealing digits are the first one and those after it that have the same name:
// Mesh::fold may have cut a digit in two, and a ring of rings has a digit for each level. With a table, they are as
// many digits as give the table's number of parts.
int dealing_digits(Deal deal, Division over, const Mesh& mesh);

// Returns the part that `rank` has. Parts are counted in the order of the division's digits.
std::int64_t part_of(Division over, const Mesh& mesh, std::int64_t rank);

// A run stands for `count` indices: begin, begin + apart, begin + 2 apart and so on. A run with begin == kNoIndex and
// apart == 0 stands for empty rows: they pad a part that has fewer indices than the largest part.
inline constexpr std::int64_t kNoIndex = -1;
struct IndexRange {
  std::int64_t begin = 0, count = 0, apart = 1;
  constexpr std::int64_t at(std::int64_t i) const { return begin + i * apart; }
  constexpr IndexRange slice(std::int64_t first, std::int64_t n) const { return {at(first), n, apart}; }
  constexpr bool is_empty_rows() const { return begin == kNoIndex; }
  constexpr bool operator==(const IndexRange&) const = default;
};

using RunsOfParts = std::vector<std::vector<IndexRange>>;
inline std::int64_t rows_of(std::span<const IndexRange> runs) {
  std::int64_t rows = 0;
  for (const IndexRange& run : runs) rows += run.count;
  return rows;
}

// The pairs (query, key) that attention computes in one head of one sequence. Kernels mask by the positions of queries
// and keys, and skip masked pairs. The positions follow from the layouts, Op::parts and Op::keys_before.
struct AttendedPairs {
  std::int64_t seen = 0;  // pairs that the mask leaves
  // Pairs as FLOPs count them. A pair on the edge of the mask counts half: a query with its own key, or with the first
  // key behind its window. A causal square thus counts half of its pairs, as is usual in the field.
  double counted = 0;
  std::int64_t keys = 0;  // keys that kernels read: all keys of each run of neighbouring positions with a seen key
};

// Remembers the pairs of attention over the parts of one table, because an op's FLOPs and bytes ask for them again and
// again. The key holds everything besides the table that the pairs depend on (attended_pairs() in work.cpp makes it).
// Several threads may use a cache at once.
class AttendedMemo {
 public:
  using Key = std::array<std::int64_t, 8>;
  AttendedMemo() = default;
  AttendedMemo(const AttendedMemo&) {}  // a copy starts empty
  template <class Count>
  AttendedPairs of(const Key& key, Count&& count) const {
    const std::lock_guard lock(mutex_);
    const auto [met, is_new] = met_.try_emplace(key);
    if (is_new) met->second = count();
    return met->second;
  }
  bool operator==(const AttendedMemo&) const { return true; }  // what is remembered does not tell tables apart

 private:
  mutable std::mutex mutex_;
  mutable std::map<Key, AttendedPairs> met_;
};

// A table that says which indices each part of a dimension has. There are two kinds: a table of blocks cuts the
// dimension into equal blocks, a table of runs lists the indices themselves.
struct DealTable {
  std::int64_t blocks = 0;  // blocks of the dimension; 0: this is a table of runs
  RunsOfParts of_part;      // [part]: runs of blocks, with neighbouring blocks in one run; or runs of indices
  // For tables of runs: the size of the dimension, of which some indices may be in no part; and for each part, the
  // number of its rows that have an index.
  std::int64_t whole = 0;
  std::vector<std::int64_t> filled = {};
  // For tables of runs: each group of this many consecutive parts (the first is a multiple of the number) holds whole
  // documents, so a query finds all its keys in its own group.
  std::int64_t meeting_parts = 0;
  AttendedMemo attended = {};
  bool operator==(const DealTable&) const = default;
};
constexpr bool is_table_of_runs(Deal deal) { return deal.table != nullptr && deal.table->blocks == 0; }

// The tables by which a Program's dimensions are dealt. Copies of this object share them. by_blocks() and by_runs() are
// const, since adding a table leaves the Program's meaning alone, but two threads must not call them at the same time.
class DealTables {
 public:
  // Returns the deal of a dimension that consists of as many equal blocks as `owners` has entries: block b is in part
  // owners[b]. Each part keeps its blocks in order. Equal tables give the same deal. Throws std::logic_error unless all
  // parts have the same number of blocks.
  Deal by_blocks(std::span<const std::int64_t> owners) const;
  // Returns the deal in which part p has the indices of_part[p] of a dimension of `whole` indices. Empty rows pad every
  // part to `rows` rows, or to the size of the largest part if that is more. `meeting_parts`: DealTable. Equal tables
  // give the same deal. Throws std::logic_error for an index that two parts have, or that the dimension does not have.
  Deal by_runs(RunsOfParts of_part, std::int64_t whole, std::int64_t meeting_parts, std::int64_t rows = 0) const;
  std::size_t count() const { return tables_.size(); }
  void clear() { tables_.clear(); }

 private:
  Deal add(DealTable table) const;
  mutable std::vector<std::shared_ptr<const DealTable>> tables_;
};

// Returns the share of a rank's rows that have an index, in a dimension dealt by runs. REQUIRES:
// is_table_of_runs(deal).
double filled_share(Deal deal, Division over, const Mesh& mesh, std::int64_t rank);

// Calls visit(run) for the runs of part `part` of `parts`, in the part's order. `whole`: size of the dimension;
// `local`: size of the part.
template <class Visit>
void for_each_run_of_part(Deal deal, std::int64_t parts, std::int64_t part, std::int64_t whole, std::int64_t local,
                          Visit&& visit) {
  if (parts == 1) deal = Deal::contiguous;
  switch (deal.kind) {
    case Deal::contiguous:
      return visit(IndexRange{part * local, local});
    case Deal::zigzag:
      visit(IndexRange{part * (local / 2), local / 2});
      return visit(IndexRange{(2 * parts - 1 - part) * (local / 2), local / 2});
    case Deal::query_heads: {
      const std::int64_t heads = (whole - local) / (parts - 1);
      visit(IndexRange{part * heads, heads});
      return visit(IndexRange{whole - (local - heads), local - heads});
    }
    case Deal::striped:
      return visit(IndexRange{part, local, parts});
    case Deal::by_table: {
      const DealTable& table = *deal.table;
      if (table.blocks == 0) {
        for (const IndexRange& run : table.of_part.at(static_cast<std::size_t>(part))) visit(run);
        return;
      }
      const std::int64_t block = whole / table.blocks;
      for (const IndexRange& run : table.of_part.at(static_cast<std::size_t>(part)))
        visit(IndexRange{run.begin * block, run.count * block});
    }
  }
}

// Calls visit(run) for the runs of the `local` indices that `rank` has of a dimension of size `whole`, in the rank's
// order. The last part of a padded flat buffer may reach beyond `whole`.
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
  std::int64_t before = 0;  // indices of the dealt part that earlier runs had
  const std::int64_t begin = minor_part * local, end = begin + local;
  for_each_run_of_part(deal, parts, part, whole, local * minor_parts, [&](const IndexRange& run) {
    const std::int64_t first = std::max(begin - before, std::int64_t{0}), last = std::min(end - before, run.count);
    if (first < last) visit(run.slice(first, last - first));
    before += run.count;
  });
}
// Returns these indices one by one; kNoIndex for an empty row.
std::vector<std::int64_t> dealt_indices(Deal deal, Division over, std::int64_t whole, std::int64_t local,
                                        const Mesh& mesh, std::int64_t rank);

}  // namespace orrery
