#include <coin/Cbc_C_Interface.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "sim/memory/address_layout.h"

namespace orrery {
namespace {

using Pair = std::pair<std::size_t, std::size_t>;

// Bytes are scaled by the height of best fit, because the solver's tolerances are absolute.
class LayoutProgram {
 public:
  LayoutProgram(std::span<const StorageLife> lives, std::span<const Pair> pairs, const AddressLayout& known)
      : lives_(lives), pairs_(pairs), known_(known), model_(Cbc_newModel(), &Cbc_deleteModel) {
    if (model_ == nullptr) throw std::runtime_error("COIN-OR CBC cannot create a model");
    Cbc_setLogLevel(model_.get(), 0);
    add_columns();
    add_rows();
    begin_with_known();
  }

  void solve(int nodes) {
    Cbc_setMaximumNodes(model_.get(), nodes);
    Cbc_solve(model_.get());
  }
  // Null if the solver found no solution.
  const double* solution() const { return Cbc_bestSolution(model_.get()); }
  double address(const double* solution, std::size_t storage) const { return solution[1 + storage]; }
  bool is_smallest() const { return Cbc_isProvenOptimal(model_.get()) != 0; }
  // Scaled, like all other values.
  double bound() const { return Cbc_getBestPossibleObjValue(model_.get()); }

 private:
  double part(std::int64_t bytes) const { return static_cast<double>(bytes) / static_cast<double>(known_.bytes); }
  int column_of(std::size_t storage) const { return static_cast<int>(1 + storage); }
  int column_of_pair(std::size_t pair) const { return static_cast<int>(1 + lives_.size() + pair); }

  void add_column(double least, double most, double cost, bool integer) {
    const std::string name = std::to_string(columns_++);
    Cbc_addCol(model_.get(), name.c_str(), least, most, cost, integer ? 1 : 0, 0, nullptr, nullptr);
  }
  void add_columns() {
    add_column(part(known_.least_bytes), 1, 1, false);
    for (const StorageLife& life : lives_) add_column(0, 1 - part(life.bytes), 0, false);
    for (std::size_t p = 0; p < pairs_.size(); ++p) add_column(0, 1, 0, true);
  }

  // Requires that the sum of the terms is at most `most`.
  void add_row(std::initializer_list<std::pair<int, double>> terms, double most) {
    std::vector<int> columns;
    std::vector<double> factors;
    for (const auto& [column, factor] : terms) {
      columns.push_back(column);
      factors.push_back(factor);
    }
    const std::string name = "r" + std::to_string(rows_++);
    Cbc_addRow(model_.get(), name.c_str(), static_cast<int>(columns.size()), columns.data(), factors.data(), 'L', most);
  }
  void add_rows() {
    for (std::size_t i = 0; i < lives_.size(); ++i) add_row({{column_of(i), 1}, {0, -1}}, -part(lives_[i].bytes));
    for (std::size_t p = 0; p < pairs_.size(); ++p) {
      const auto [i, j] = pairs_[p];
      add_row({{column_of(i), 1}, {column_of(j), -1}, {column_of_pair(p), -1}}, -part(lives_[i].bytes));
      add_row({{column_of(j), 1}, {column_of(i), -1}, {column_of_pair(p), 1}}, 1 - part(lives_[j].bytes));
    }
  }

  void begin_with_known() {
    std::vector<int> columns(static_cast<std::size_t>(columns_));
    std::iota(columns.begin(), columns.end(), 0);
    std::vector<double> values(columns.size());
    values[0] = 1;
    for (std::size_t i = 0; i < lives_.size(); ++i) values[1 + i] = part(known_.addresses[i]);
    for (std::size_t p = 0; p < pairs_.size(); ++p)
      values[1 + lives_.size() + p] = known_.addresses[pairs_[p].first] > known_.addresses[pairs_[p].second] ? 1 : 0;
    Cbc_setMIPStartI(model_.get(), columns_, columns.data(), values.data());
  }

  std::span<const StorageLife> lives_;
  std::span<const Pair> pairs_;
  const AddressLayout& known_;
  std::unique_ptr<Cbc_Model, void (*)(Cbc_Model*)> model_;
  int columns_ = 0, rows_ = 0;
};

// Puts each storage directly above those that it meets and that lie below it: removes the solver's rounding.
void settle(std::span<const StorageLife> lives, std::span<const Pair> pairs, std::span<const std::size_t> from_below,
            AddressLayout& layout) {
  std::vector<std::size_t> place(lives.size());
  for (std::size_t n = 0; n < from_below.size(); ++n) place[from_below[n]] = n;
  std::vector<std::vector<std::size_t>> below(lives.size());
  for (const auto& [i, j] : pairs) {
    if (place[i] < place[j]) {
      below[j].push_back(i);
    } else {
      below[i].push_back(j);
    }
  }
  layout.bytes = 0;
  for (const std::size_t storage : from_below) {
    std::int64_t& address = layout.addresses[storage] = 0;
    for (const std::size_t other : below[storage])
      address = std::max(address, layout.addresses[other] + lives[other].bytes);
    layout.bytes = std::max(layout.bytes, address + lives[storage].bytes);
  }
}

std::vector<Pair> pairs_that_meet(std::span<const StorageLife> lives) {
  std::vector<Pair> pairs;
  for (std::size_t i = 0; i < lives.size(); ++i)
    for (std::size_t j = i + 1; j < lives.size(); ++j)
      if (lives[i].bytes > 0 && lives[j].bytes > 0 && lives[i].meets(lives[j])) pairs.emplace_back(i, j);
  return pairs;
}

// Solves problems with few enough pairs; the result is no worse than `known`.
AddressLayout by_program(std::span<const StorageLife> lives, std::span<const Pair> pairs, const AddressLayout& known,
                         int nodes) {
  if (known.bytes == known.least_bytes) return known;
  LayoutProgram program(lives, pairs, known);
  program.solve(nodes);
  const double* const solution = program.solution();
  if (solution == nullptr) return known;
  std::vector<std::size_t> from_below(lives.size());
  std::iota(from_below.begin(), from_below.end(), 0);
  std::ranges::stable_sort(from_below, {}, [&](std::size_t i) { return program.address(solution, i); });
  AddressLayout found = known;
  settle(lives, pairs, from_below, found);
  if (found.bytes >= known.bytes) found = known;
  found.by_program = found.bytes < known.bytes;
  // The solver's proof holds within its tolerance.
  constexpr double kTolerance = 1e-6;
  const double bound = std::floor((program.bound() - kTolerance) * static_cast<double>(known.bytes));
  found.least_bytes = program.is_smallest()
                          ? found.bytes
                          : std::clamp(static_cast<std::int64_t>(bound), known.least_bytes, found.bytes);
  return found;
}

}  // namespace

bool built_with_cbc() { return true; }

AddressLayout smallest_layout(std::span<const StorageLife> lives, const LayoutLimits& limits) {
  const AddressLayout known = best_fit(lives);
  if (known.bytes == known.least_bytes) return known;
  const std::vector<Pair> pairs = pairs_that_meet(lives);
  if (pairs.size() <= limits.pairs) return by_program(lives, pairs, known, limits.nodes);
  std::vector<std::size_t> largest(lives.size());
  std::iota(largest.begin(), largest.end(), 0);
  std::ranges::stable_sort(largest, [&](std::size_t a, std::size_t b) { return lives[a].bytes > lives[b].bytes; });
  std::vector<StorageLife> chosen;
  std::vector<Pair> of_chosen;
  for (const std::size_t storage : largest) {
    chosen.push_back(lives[storage]);
    std::vector<Pair> more = pairs_that_meet(chosen);
    if (more.size() > limits.pairs) {
      chosen.pop_back();
      break;
    }
    of_chosen = std::move(more);
  }
  const AddressLayout part = by_program(chosen, of_chosen, best_fit(chosen), limits.nodes);
  std::vector<std::int64_t> placed(lives.size(), -1);
  for (std::size_t i = 0; i < chosen.size(); ++i) placed[largest[i]] = part.addresses[i];
  AddressLayout found = best_fit_around(lives, std::move(placed));
  if (found.bytes >= known.bytes) return known;
  found.by_program = true;
  return found;
}

}  // namespace orrery
