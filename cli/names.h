// Options whose values are the names of an enumeration.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace orrery {

inline std::vector<std::string> texts(std::span<const std::string_view> names) { return {names.begin(), names.end()}; }

// REQUIRES: `name` is empty (the first) or one of `names`, in the order of the enumerators.
template <class Enum>
Enum chosen(const std::string& name, std::span<const std::string_view> names) {
  const auto at = std::find(names.begin(), names.end(), name);
  return at == names.end() ? Enum{} : static_cast<Enum>(at - names.begin());
}

}  // namespace orrery
