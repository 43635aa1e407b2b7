#include "sim/program/layout.h"

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace orrery {
namespace {

struct Tables {
  std::mutex mutex;
  int count = 0;
  std::map<std::vector<std::int64_t>, int> met;  // the definition of each table, and its number
  // A table with a known number is found without the lock.
  std::array<std::atomic<const BlockTable*>, kMostTables> tables{};
};
Tables& tables() {
  static Tables all;
  return all;
}

BlockTable by_part(std::span<const std::int64_t> owners) {
  BlockTable table{.blocks = static_cast<std::int64_t>(owners.size()), .of_part = {}};
  std::vector<std::int64_t> blocks;
  for (std::size_t b = 0; b < owners.size(); ++b) {
    if (owners[b] < 0) throw std::logic_error("a table of blocks names a part below 0");
    const auto part = static_cast<std::size_t>(owners[b]);
    if (part >= table.of_part.size()) table.of_part.resize(part + 1), blocks.resize(part + 1);
    ++blocks[part];
    std::vector<IndexRun>& runs = table.of_part[part];
    const auto at = static_cast<std::int64_t>(b);
    if (!runs.empty() && runs.back().begin + runs.back().count == at) {
      ++runs.back().count;
    } else {
      runs.push_back({at, 1});
    }
  }
  if (owners.empty() || std::any_of(blocks.begin(), blocks.end(), [&](std::int64_t n) { return n != blocks[0]; }))
    throw std::logic_error("a table gives its parts unequal numbers of blocks");
  return table;
}

}  // namespace

namespace {

// `make`: makes the table that `key` defines.
template <class Make>
Deal numbered(std::vector<std::int64_t> key, Make&& make) {
  const auto deal = [](int number) { return static_cast<Deal>(static_cast<int>(Deal::table) + number); };
  Tables& all = tables();
  const std::lock_guard lock(all.mutex);
  if (const auto found = all.met.find(key); found != all.met.end()) return deal(found->second);
  if (all.count == kMostTables) throw std::length_error("too many tables of blocks in one process");
  auto table = std::make_unique<const BlockTable>(make());
  all.met.emplace(std::move(key), all.count);
  all.tables[static_cast<std::size_t>(all.count)] = table.release();
  return deal(all.count++);
}

void expect_apart(const RunsOfParts& of_part, std::int64_t whole) {
  std::vector<IndexRun> all;
  for (const std::vector<IndexRun>& runs : of_part) all.insert(all.end(), runs.begin(), runs.end());
  std::ranges::sort(all, {}, &IndexRun::begin);
  std::int64_t end = 0;
  for (const IndexRun& run : all) {
    if (run.begin < end || run.count < 1 || run.apart != 1)
      throw std::logic_error("a table of runs gives an index to two parts");
    end = run.begin + run.count;
  }
  if (end > whole) throw std::logic_error("a table of runs has an index beyond its dimension");
}

}  // namespace

Deal deal_by_table(std::span<const std::int64_t> owners) {
  return numbered({owners.begin(), owners.end()}, [&] { return by_part(owners); });
}

Deal deal_by_runs(RunsOfParts of_part, std::int64_t whole, std::int64_t meeting_parts, std::int64_t rows) {
  expect_apart(of_part, whole);
  for (const std::vector<IndexRun>& runs : of_part) rows = std::max(rows, rows_of(runs));
  std::vector<std::int64_t> key{kNoIndex, whole, meeting_parts}, filled;  // no owner has the number kNoIndex
  for (std::vector<IndexRun>& runs : of_part) {
    std::vector<IndexRun> joined;
    for (const IndexRun& run : runs) {
      if (!joined.empty() && joined.back().begin + joined.back().count == run.begin) {
        joined.back().count += run.count;
      } else {
        joined.push_back(run);
      }
    }
    filled.push_back(rows_of(joined));
    if (const std::int64_t rest = rows - filled.back(); rest > 0)
      joined.push_back({.begin = kNoIndex, .count = rest, .apart = 0});
    runs = std::move(joined);
    for (const IndexRun& run : runs) key.insert(key.end(), {run.begin, run.count});
    key.push_back(kNoIndex);
  }
  return numbered(std::move(key), [&] {
    return BlockTable{.blocks = 0,
                      .of_part = std::move(of_part),
                      .whole = whole,
                      .filled = std::move(filled),
                      .meeting_parts = meeting_parts};
  });
}

bool is_table_of_runs(Deal deal) { return is_table(deal) && table_of(deal).blocks == 0; }

const BlockTable& table_of(Deal deal) {
  const auto n = static_cast<std::size_t>(deal) - static_cast<std::size_t>(Deal::table);
  const BlockTable* table = n < kMostTables ? tables().tables[n].load() : nullptr;
  if (table == nullptr) throw std::logic_error("no table of blocks has this number");
  return *table;
}

int dealing_digits(Deal deal, Division over, const Mesh& mesh) {
  const int count = over.count();
  int digits = 0;
  if (is_table(deal)) {
    const auto of_table = static_cast<std::int64_t>(table_of(deal).of_part.size());
    for (std::int64_t parts = 1; digits < count && parts < of_table; ++digits)
      parts *= mesh.size(MeshGroup::of_digit(over.digit(digits)));
    return digits;
  }
  const auto name = [&](int n) {
    return std::string_view(mesh.digits()[static_cast<std::size_t>(over.digit(n))].name);
  };
  while (digits < count && name(digits) == name(0)) ++digits;
  return digits;
}

double filled_share(Deal deal, Division over, const Mesh& mesh, std::int64_t rank) {
  const BlockTable& table = table_of(deal);
  Division dealing;
  for (int n = 0; n < dealing_digits(deal, over, mesh); ++n) dealing.append(MeshGroup::of_digit(over.digit(n)));
  return static_cast<double>(table.filled[static_cast<std::size_t>(part_of(dealing, mesh, rank))]) /
         static_cast<double>(rows_of(table.of_part.front()));
}

std::int64_t part_of(Division over, const Mesh& mesh, std::int64_t rank) {
  std::int64_t part = 0;
  for (int n = 0; n < over.count(); ++n) {
    const Digit& digit = mesh.digits()[static_cast<std::size_t>(over.digit(n))];
    part = part * digit.size + rank / digit.stride % digit.size;
  }
  return part;
}

std::vector<std::int64_t> dealt_indices(Deal deal, Division over, std::int64_t whole, std::int64_t local,
                                        const Mesh& mesh, std::int64_t rank) {
  std::vector<std::int64_t> indices;
  indices.reserve(static_cast<std::size_t>(local));
  for_each_dealt_run(deal, over, whole, local, mesh, rank, [&](const IndexRun& run) {
    for (std::int64_t i = 0; i < run.count; ++i) indices.push_back(run.at(i));
  });
  return indices;
}

}  // namespace orrery
