#include "tests/fuzz/json_mutator.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "sim/base/error.h"
#include "sim/base/json_reader.h"

namespace orrery::fuzz {
namespace {

using Json = nlohmann::json;

// Where a value stands: in `parent`, at `key` or `index`.
struct Place {
  Json* parent = nullptr;
  std::string key;
  std::size_t index = 0;

  Json& value() const { return parent->is_object() ? (*parent)[key] : (*parent)[index]; }
};

void list_places(Json& value, std::vector<Place>& places) {
  if (value.is_object()) {
    for (auto member = value.begin(); member != value.end(); ++member) {
      places.push_back({&value, member.key()});
      list_places(*member, places);
    }
  } else if (value.is_array()) {
    for (std::size_t i = 0; i < value.size(); ++i) {
      places.push_back({&value, "", i});
      list_places(value[i], places);
    }
  }
}

std::optional<Json> parsed(std::string_view text) {
  try {
    return parse_json(text, "");
  } catch (const InputError&) {
    return std::nullopt;
  }
}

// The text, or its lines where the first is a document by itself.
std::vector<std::string_view> documents_in(std::string_view text) {
  if (!parsed(text.substr(0, text.find('\n')))) return {text};
  std::vector<std::string_view> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

const std::array<Json, 22>& edge_values() {
  static const std::array<Json, 22> values{0,
                                           1,
                                           2,
                                           3,
                                           7,
                                           64,
                                           1 << 10,
                                           1 << 20,
                                           std::int64_t{1} << 32,
                                           std::numeric_limits<std::int64_t>::max(),
                                           std::numeric_limits<std::int64_t>::min(),
                                           std::numeric_limits<std::uint64_t>::max(),
                                           -1,
                                           0.5,
                                           1e-300,
                                           1e300,
                                           1e18,
                                           true,
                                           false,
                                           nullptr,
                                           Json::array(),
                                           Json::object()};
  return values;
}

}  // namespace

void JsonMutator::learn_value(const Json& value) {
  constexpr std::size_t kMostKeys = 2000, kMostValues = 32, kLongest = 400;
  if (value.is_array())
    for (const Json& element : value) learn_value(element);
  if (!value.is_object()) return;
  for (const auto& [key, member] : value.items()) {
    learn_value(member);
    if (key.size() > kLongest || (keys_.size() >= kMostKeys && !values_.contains(key))) continue;
    const auto [at, is_new] = values_.try_emplace(key);
    if (is_new) keys_.push_back(key);
    std::vector<std::string>& seen = at->second;
    if (seen.size() >= kMostValues) continue;
    const std::string text = member.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (text.size() <= kLongest && std::find(seen.begin(), seen.end(), text) == seen.end()) seen.push_back(text);
  }
}

void JsonMutator::learn(std::string_view text) {
  // Of all that a long run brings forth the first is enough.
  constexpr std::size_t kMostInputs = 2000;
  if (++learnt_ > kMostInputs) return;
  for (const std::string_view document : documents_in(text))
    if (const std::optional<Json> value = parsed(document)) learn_value(*value);
}

Json JsonMutator::other_value(const std::string& key, const Json& before) {
  const auto seen = values_.find(key);
  if (seen != values_.end() && !seen->second.empty() && below(3) == 0)
    return *parsed(seen->second[below(seen->second.size())]);
  if (before.is_number_integer() && below(3) != 0) {
    const auto n = before.get<std::uint64_t>();  // wraps around where it must
    const std::array<std::uint64_t, 6> near{n + 1, n - 1, n * 2, n / 2, n * 3, std::uint64_t{0} - n};
    return static_cast<std::int64_t>(near[below(near.size())]);
  }
  if (before.is_number_float() && below(3) != 0) {
    const auto x = before.get<double>();
    const std::array<double, 5> near{-x, x * 2, x / 2, x * 1e6, x * 1e-6};
    return near[below(near.size())];
  }
  if (before.is_boolean() && below(3) != 0) return !before.get<bool>();
  if (before.is_string() && below(3) == 0) {
    auto text = before.get<std::string>();
    if (!text.empty()) text.erase(below(text.size()), 1);
    return text;
  }
  if (!keys_.empty() && below(8) == 0) {
    const std::vector<std::string>& any = values_[keys_[below(keys_.size())]];
    if (!any.empty()) return *parsed(any[below(any.size())]);
  }
  return edge_values()[below(edge_values().size())];
}

void JsonMutator::change(Json& document) {
  std::vector<Place> places;
  list_places(document, places);
  if (places.empty()) {
    document = other_value("", document);
    return;
  }
  const Place place = places[below(places.size())];
  Json& parent = *place.parent;
  switch (below(8)) {
    case 0:  // removed
      if (parent.is_object()) {
        parent.erase(place.key);
      } else {
        parent.erase(place.index);
      }
      return;
    case 1:  // repeated, or put elsewhere as well
      if (parent.is_array()) {
        const Json again = place.value();
        parent.insert(parent.begin() + static_cast<std::ptrdiff_t>(place.index), again);
      } else {
        const Json taken = places[below(places.size())].value();
        place.value() = taken;
      }
      return;
    case 2:
    case 3: {  // beside it, under a key that some document has
      if (!parent.is_object() || keys_.empty()) break;
      const std::string& key = keys_[below(keys_.size())];
      Json value = other_value(key, nullptr);
      parent[key] = std::move(value);
      return;
    }
    default:
      break;
  }
  Json value = other_value(place.key, place.value());
  place.value() = std::move(value);
}

std::optional<std::string> JsonMutator::mutate(std::string_view text, std::size_t most, unsigned seed) {
  random_.seed(seed);
  const std::vector<std::string_view> documents = documents_in(text);
  const std::string_view chosen = documents[below(documents.size())];
  std::optional<Json> document = parsed(chosen);
  if (!document) return std::nullopt;
  for (std::size_t left = 1 + below(4); left > 0; --left) change(*document);
  std::string mutated(text.substr(0, static_cast<std::size_t>(chosen.data() - text.data())));
  mutated += document->dump(-1, ' ', false, Json::error_handler_t::replace);
  mutated += text.substr(static_cast<std::size_t>(chosen.data() - text.data()) + chosen.size());
  if (mutated.size() > most) return std::nullopt;
  return mutated;
}

}  // namespace orrery::fuzz
