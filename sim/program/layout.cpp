#include "sim/program/layout.h"

#include <string_view>
#include <utility>

namespace orrery {
namespace {

// Appends indices, with neighbouring ones in one run.
void append(const IndexRange& run, std::vector<IndexRange>& runs) {
  if (!runs.empty() && runs.back().begin + runs.back().count == run.begin)
    runs.back().count += run.count;
  else
    runs.push_back(run);
}

DealTable by_part(std::span<const std::int64_t> owners) {
  DealTable table{.blocks = static_cast<std::int64_t>(owners.size()), .of_part = {}};
  for (std::size_t b = 0; b < owners.size(); ++b) {
    if (owners[b] < 0) throw std::logic_error("a table of blocks names a part below 0");
    const auto part = static_cast<std::size_t>(owners[b]);
    if (part >= table.of_part.size()) table.of_part.resize(part + 1);
    append({static_cast<std::int64_t>(b), 1}, table.of_part[part]);
  }
  const auto has_other_number = [&](const std::vector<IndexRange>& runs) {
    return rows_of(runs) != rows_of(table.of_part.front());
  };
  if (owners.empty() || std::ranges::any_of(table.of_part, has_other_number))
    throw std::logic_error("a table gives its parts unequal numbers of blocks");
  return table;
}

void expect_apart(const RunsOfParts& of_part, std::int64_t whole) {
  std::vector<IndexRange> all;
  for (const std::vector<IndexRange>& runs : of_part) all.insert(all.end(), runs.begin(), runs.end());
  std::ranges::sort(all, {}, &IndexRange::begin);
  std::int64_t end = 0;
  for (const IndexRange& run : all) {
    if (run.begin < end || run.count < 1 || run.apart != 1)
      throw std::logic_error("a table of runs gives an index to two parts");
    end = run.begin + run.count;
  }
  if (end > whole) throw std::logic_error("a table of runs has an index beyond its dimension");
}

}  // namespace

Deal DealTables::add(DealTable table) const {
  for (const std::shared_ptr<const DealTable>& met : tables_)
    if (*met == table) return {Deal::by_table, met.get()};
  tables_.push_back(std::make_shared<const DealTable>(std::move(table)));
  return {Deal::by_table, tables_.back().get()};
}

Deal DealTables::by_blocks(std::span<const std::int64_t> owners) const { return add(by_part(owners)); }

Deal DealTables::by_runs(RunsOfParts of_part, std::int64_t whole, std::int64_t meeting_parts, std::int64_t rows) const {
  expect_apart(of_part, whole);
  for (const std::vector<IndexRange>& runs : of_part) rows = std::max(rows, rows_of(runs));
  std::vector<std::int64_t> filled;
  for (std::vector<IndexRange>& runs : of_part) {
    std::vector<IndexRange> joined;
    for (const IndexRange& run : runs) append(run, joined);
    filled.push_back(rows_of(joined));
    if (const std::int64_t rest = rows - filled.back(); rest > 0)
      joined.push_back({.begin = kNoIndex, .count = rest, .apart = 0});
    runs = std::move(joined);
  }
  return add({.blocks = 0,
              .of_part = std::move(of_part),
              .whole = whole,
              .filled = std::move(filled),
              .meeting_parts = meeting_parts});
}

int dealing_digits(Deal deal, Division over, const Mesh& mesh) {
  const int count = over.count();
  int digits = 0;
  if (deal.table != nullptr) {
    const auto of_table = static_cast<std::int64_t>(deal.table->of_part.size());
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
  const DealTable& table = *deal.table;
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
  for_each_dealt_run(deal, over, whole, local, mesh, rank, [&](const IndexRange& run) {
    for (std::int64_t i = 0; i < run.count; ++i) indices.push_back(run.at(i));
  });
  return indices;
}

}  // namespace orrery
