// An optional index into one of a Program's tables.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace orrery {

// Takes one byte. T is the type of the table's entries: it keeps indices of different tables apart.
template <class T>
class TableIndex {
 public:
  static constexpr std::size_t kMost = 255;  // entries

  constexpr TableIndex() = default;
  // Throws std::logic_error for an index of kMost or more.
  explicit constexpr TableIndex(std::size_t index) : behind_(static_cast<std::uint8_t>(index + 1)) {
    if (index >= kMost) throw std::logic_error("a table of a Program has more than 255 entries");
  }
  constexpr bool has_value() const { return behind_ != 0; }
  constexpr std::size_t value() const { return behind_ - 1u; }  // REQUIRES: has_value()
  constexpr auto operator<=>(const TableIndex&) const = default;

 private:
  std::uint8_t behind_ = 0;
};

}  // namespace orrery
