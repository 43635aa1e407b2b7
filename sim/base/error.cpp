#include "sim/base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "sim/base/one_line.h"

namespace orrery {
namespace {

std::string sentence(const InputError::Where& where, std::string_view found, std::string_view expected,
                     std::string_view nearest) {
  std::string text;
  if (!where.file.empty()) text += where.file + ": ";
  if (!where.pointer.empty()) text += where.pointer + ": ";
  text += fmt::format("found {}, expected {}", found, expected);
  if (!nearest.empty()) text += fmt::format(" (did you mean \"{}\"?)", nearest);
  return one_line(text);
}

// Ignores differences that users do not intend: letter case, and '-' versus '_'.
std::string folded(std::string_view name) {
  std::string result(name);
  for (char& c : result) c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

// Damerau-Levenshtein distance, restricted form (optimal string alignment).
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), now(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0u : 1u)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) now[j] = std::min(now[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, now);
  }
  return last[b.size()];
}

// "tp" for "tensor_parallel".
std::string initials(std::string_view name) {
  std::string result;
  for (std::size_t i = 0; i < name.size(); ++i)
    if (i == 0 || name[i - 1] == '_') result += name[i];
  return result;
}

template <class Names>
std::string nearest_of(std::string_view name, const Names& valid) {
  constexpr std::size_t kLongestName = 100;  // no one means a longer name; keeps hostile input cheap
  if (name.empty() || name.size() > kLongestName) return {};
  const std::string wanted = folded(name);

  std::string best;
  std::size_t best_distance = (wanted.size() + 2) / 3 + 1;  // up to a third of the letters may be wrong
  for (const auto& candidate : valid) {
    const auto [fewer, more] = std::minmax({wanted.size(), candidate.size()});
    if (more - fewer >= best_distance) continue;  // each missing letter is an edit
    const std::size_t distance = edit_distance(wanted, folded(candidate));
    if (distance < best_distance && distance < candidate.size()) {
      best_distance = distance;
      best = candidate;
    }
  }
  if (!best.empty()) return best;

  for (const auto& candidate : valid)
    if (wanted.size() >= 2 && folded(candidate.substr(0, 1)) == wanted.substr(0, 1) &&
        initials(folded(candidate)) == wanted)
      return std::string(candidate);
  for (const auto& candidate : valid) {
    const bool contains = wanted.size() >= 3 && folded(candidate).find(wanted) != std::string::npos;
    if (contains && (best.empty() || candidate.size() < best.size())) best = candidate;
  }
  return best;
}

}  // namespace

InputError::InputError(Where where, std::string found, std::string expected, std::string nearest)
    : std::runtime_error(sentence(where, found, expected, nearest)),
      where_(std::move(where)),
      found_(std::move(found)),
      expected_(std::move(expected)),
      nearest_(std::move(nearest)) {}

InputError InputError::in_file(const std::string& file) const {
  Where where = where_;
  if (where.file.empty()) where.file = file;
  return InputError(std::move(where), found_, expected_, nearest_);
}

std::string nearest_name(std::string_view name, std::span<const std::string_view> valid) {
  return nearest_of(name, valid);
}
std::string nearest_name(std::string_view name, const std::vector<std::string>& valid) {
  return nearest_of(name, valid);
}

}  // namespace orrery
