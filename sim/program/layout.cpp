#include "sim/program/layout.h"

#include <array>
#include <atomic>
#include <memory>
#include <mutex>

namespace orrery {
namespace {

struct Tables {
  std::mutex mutex;
  int count = 0;
  std::array<std::vector<std::int64_t>, kMostTables> owners;
  // Whoever has a number finds its table without the lock.
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

Deal deal_by_table(std::span<const std::int64_t> owners) {
  const auto deal = [](int number) { return static_cast<Deal>(static_cast<int>(Deal::table) + number); };
  Tables& all = tables();
  const std::lock_guard lock(all.mutex);
  for (int n = 0; n < all.count; ++n)
    if (std::ranges::equal(all.owners[static_cast<std::size_t>(n)], owners)) return deal(n);
  if (all.count == kMostTables) throw std::length_error("too many tables of blocks in one process");
  auto table = std::make_unique<const BlockTable>(by_part(owners));
  const auto n = static_cast<std::size_t>(all.count);
  all.owners[n].assign(owners.begin(), owners.end());
  all.tables[n] = table.release();
  return deal(all.count++);
}

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
