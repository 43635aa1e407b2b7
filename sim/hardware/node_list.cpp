#include "sim/hardware/node_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <unordered_map>

namespace orrery {
namespace {

constexpr std::string_view kDigits = "0123456789";

class NodeList {
 public:
  NodeList(std::string_view text, std::int64_t most, const InputError::Where& where)
      : whole_(text), most_(most), where_(where) {}

  std::vector<std::int64_t> read() {
    std::string_view rest = whole_;
    do {
      // A comma in brackets separates ranges of one item.
      const std::size_t comma = rest.find(','), bracket = rest.find('['), close = rest.find(']');
      std::size_t end = comma;
      if (bracket < comma) end = close == std::string_view::npos ? rest.size() : rest.find(',', close);
      read_item(rest.substr(0, end));
      rest = end < rest.size() ? rest.substr(end + 1) : std::string_view{};
      if (end < whole_.size() && rest.empty() && whole_.ends_with(',')) refuse(whole_);
    } while (!rest.empty());
    check_names();
    return std::move(nodes_);
  }

 private:
  [[noreturn]] void refuse(std::string_view found) const {
    throw InputError(where_, fmt::format("\"{}\"", found),
                     "nodes as a scheduler lists them: \"node[001-004,010]\", \"3-6,12\"");
  }

  // Nodes of several names that are the same number.
  void check_names() const {
    bool several = false;
    for (const auto& [name, begin] : names_) several = several || name != names_.front().name;
    if (!several) return;
    std::unordered_map<std::int64_t, std::string_view> seen;
    for (std::size_t i = 0; i < names_.size(); ++i) {
      const std::size_t end = i + 1 < names_.size() ? names_[i + 1].begin : nodes_.size();
      for (std::size_t n = names_[i].begin; n < end; ++n) {
        const auto [at, is_new] = seen.emplace(nodes_[n], names_[i].name);
        if (is_new || at->second == names_[i].name) continue;
        throw InputError(
            where_,
            fmt::format("{0}{2} and {1}{2}, which differ in their prefix alone", at->second, names_[i].name, nodes_[n]),
            "another number for each node of the fabric: what stands before it is not looked at (an array "
            "of numbers says where nodes of several names are)");
      }
    }
  }

  void read_item(std::string_view item) {
    if (item.ends_with(']')) {
      const std::size_t open = item.find('[');
      if (open == std::string_view::npos) refuse(item);
      names_.push_back({item.substr(0, open), nodes_.size()});
      std::string_view ranges = item.substr(open + 1, item.size() - open - 2);
      if (ranges.empty() || ranges.ends_with(',')) refuse(item);
      while (!ranges.empty()) {
        const std::size_t comma = ranges.find(',');
        read_range(ranges.substr(0, comma), item);
        ranges = comma < ranges.size() ? ranges.substr(comma + 1) : std::string_view{};
      }
      return;
    }
    if (item.find_first_of("[]") != std::string_view::npos) refuse(item);
    if (!item.empty() && kDigits.find(item.front()) != std::string_view::npos) {
      names_.push_back({{}, nodes_.size()});
      return read_range(item, item);
    }
    // A name that ends in its number.
    const std::size_t number = item.find_last_not_of(kDigits);
    if (number == std::string_view::npos || number + 1 == item.size()) refuse(item);
    names_.push_back({item.substr(0, number + 1), nodes_.size()});
    nodes_.push_back(read_number(item.substr(number + 1), item));
  }

  void read_range(std::string_view range, std::string_view item) {
    const std::size_t dash = range.find('-');
    const std::int64_t first = read_number(range.substr(0, dash), item),
                       last = dash == std::string_view::npos ? first : read_number(range.substr(dash + 1), item);
    if (last < first) refuse(range);
    if (last - first >=
        most_ - static_cast<std::int64_t>(nodes_.size()))  // ranges of a few characters, again and again
      throw InputError(where_, fmt::format("more than {} nodes", most_), "each node once");
    for (std::int64_t n = first; n <= last; ++n) nodes_.push_back(n);
  }

  std::int64_t read_number(std::string_view digits, std::string_view item) const {
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (digits.empty() || digits.front() == '-' || end != digits.data() + digits.size()) refuse(item);
    if (error != std::errc() || number >= most_)
      throw InputError(where_, fmt::format("node {}", digits), fmt::format("nodes below {}", most_));
    return number;
  }

  std::string_view whole_;
  std::int64_t most_;
  const InputError::Where& where_;
  std::vector<std::int64_t> nodes_;
  struct Name {
    std::string_view name;  // in front of the number
    std::size_t begin = 0;  // of the item's nodes
  };
  std::vector<Name> names_;  // of each item
};

}  // namespace

std::vector<std::int64_t> read_node_list(std::string_view text, std::int64_t most, const InputError::Where& where) {
  return NodeList(text, most, where).read();
}

}  // namespace orrery
