#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <regex>
#include <string>
#include <unordered_map>
#include <utility>

#include "sim/base/words.h"
#include "sim/hardware/read_placement.h"

namespace orrery {
namespace {

constexpr char kNumber = '\0';           // replaces a number in a name's text
constexpr std::size_t kMostDigits = 18;  // longer ones are text: hashes, not numbers of nodes

bool digit(char c) { return c >= '0' && c <= '9'; }
bool all_digits(std::string_view text) { return !text.empty() && std::all_of(text.begin(), text.end(), digit); }
bool space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }
bool of_a_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_'; }

// For example "123" of "123abc".
std::string_view leading_digits(std::string_view text) {
  return text.substr(0, static_cast<std::size_t>(std::find_if_not(text.begin(), text.end(), digit) - text.begin()));
}

// 10.0.0.1, 10.0.0.[1-4], fe80::1, [fe80::1], ip-10-0-0-1 (as cloud instances are named).
bool is_address(std::string_view word) {
  const std::string_view digits = leading_digits(word);
  if (!digits.empty() && digits.size() < word.size() && word[digits.size()] == '.') return true;
  if (word.find("::") != std::string_view::npos || std::count(word.begin(), word.end(), ':') >= 7) return true;
  static const std::regex cloud_instance("(ip|ec2)(-\\d{1,3}){4}(?!\\d)");
  return std::regex_search(word.begin(), word.end(), cloud_instance, std::regex_constants::match_continuous);
}

// hostfile.txt, ../hosts, /var/spool/nodes.7: the path of a list, not a list.
bool is_path(std::string_view text) {
  const std::size_t begin = std::min(text.find_first_not_of(" \t\r\n"), text.size());
  text = text.substr(begin, text.find_last_not_of(" \t\r\n") + 1 - begin);
  if (text.empty() || text.find_first_of(" \t\r\n,;+[(:=") != std::string_view::npos) return false;
  if (text.starts_with('/') || text.starts_with('~') || text.starts_with("./") || text.starts_with("..")) return true;
  const std::size_t slash = text.find('/');  // node1/0 is a core
  if (slash != std::string_view::npos && slash + 1 < text.size() && !digit(text[slash + 1])) return true;
  for (const std::string_view end :
       {".txt", ".list", ".lst", ".conf", ".cfg", ".log", ".out", ".csv", ".json", ".yaml", ".yml", ".hostfile",
        ".nodefile", "hostfile", "nodefile", "machinefile", "nodelist"})
    if (text.ends_with(end)) return true;
  return false;
}

std::string_view host_of(std::string_view name) { return name.substr(0, name.find('.')); }

// Calls visit(part, is_number) for the numbers of a text, and for each character between them.
template <class Visit>
void for_each_part(std::string_view text, Visit visit) {
  while (!text.empty()) {
    const std::string_view digits = leading_digits(text);
    const std::string_view part = text.substr(0, std::max<std::size_t>(1, digits.size()));
    visit(part, !digits.empty() && digits.size() <= kMostDigits);
    text.remove_prefix(part.size());
  }
}

// The numbers in a name; its domain does not identify the node.
std::vector<std::int64_t> numbers_of(std::string_view name) {
  std::vector<std::int64_t> numbers;
  for_each_part(host_of(name), [&](std::string_view part, bool is_number) {
    if (is_number) numbers.push_back(number_of(part).value());
  });
  return numbers;
}

// Returns the text with kNumber in place of each number.
std::string shape_of(std::string_view text) {
  std::string shape;
  for_each_part(text, [&](std::string_view part, bool is_number) { is_number ? shape += kNumber : shape += part; });
  return shape;
}

class NodeList {
 public:
  NodeList(const NodeListRules& rules, const InputError::Where& where) : rules_(rules), where_(where) {}

  std::vector<std::int64_t> read(std::string_view text) {
    const std::string_view whole = text;
    // A variable may precede the list: SLURM_JOB_NODELIST=..., exec_host=..., LSB_HOSTS=...
    const std::size_t equals = std::min(text.find('='), text.size());
    const std::string key = lower_case(text.substr(0, equals));
    if (equals < text.size() && std::all_of(key.begin(), key.end(), [](char c) { return of_a_name(c) && !digit(c); }) &&
        (key.find("node") != std::string::npos || key.find("host") != std::string::npos))
      text.remove_prefix(equals + 1);
    if (is_path(text)) throw InputError(where_, fmt::format("\"{}\", a file's path", whole), "the lines of that file");
    while (!text.empty()) {
      const std::size_t end = std::min(text.find_first_of("\r\n"), text.size());
      read_line(text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    if (after_comma_ && !nodes_.empty()) refuse_comma(whole);
    if (after_comma_ || nodes_.empty()) refuse(whole);
    if (nodes_.size() == 1 && nodes_.front().is_bare())
      throw InputError(
          where_, fmt::format("\"{}\", either a number of nodes or the number of one", whole),
          fmt::format("\"nodes\" of the cluster for a number of nodes, or \"node{0}\" or [{0}] for node {0}",
                      nodes_.front().last_number()));
    check_ranges();
    count_once();
    check_slots();
    check_counts();
    return numbers();
  }

 private:
  struct Node {
    std::string name;  // node1 and node01 are two nodes
    std::int64_t slots = 0;
    std::int64_t count = 0;  // of cores or tasks, as in LSF's lists; 0: not stated
    std::int64_t times = 1;  // number of times that the list has the name

    bool is_bare() const { return all_digits(name); }
    std::int64_t last_number() const { return numbers_of(name).back(); }
    std::string shape() const { return shape_of(host_of(name)) + name.substr(host_of(name).size()); }
  };
  struct Word {
    std::string text;
    bool after_comma = false;
  };
  struct Range {
    std::int64_t first = 0, last = 0, step = 1;
    std::size_t width = 0;  // digits of the first number, as written
    std::int64_t size() const { return (last - first) / step + 1; }
  };

  [[noreturn]] void refuse(std::string_view found) const {
    throw InputError(
        where_, fmt::format("\"{}\"", found),
        "nodes as a scheduler or a hostfile lists them: \"node[001-004,010]\", \"3-6,12\", \"node1 node2\", "
        "\"worker-1 slots=8\"");
  }

  [[noreturn]] void refuse_comma(std::string_view found) const {
    throw InputError(where_, fmt::format("\"{}\", which ends in a comma", found),
                     "another node after the comma, or no comma");
  }

  // Splits a line at spaces, commas, semicolons and plus signs outside of brackets; '#' begins a comment.
  std::vector<Word> words_of_line(std::string_view line) {
    std::vector<Word> words;
    std::string word;
    bool in_brackets = false, in_parentheses = false;
    const auto end_word = [&] {
      if (word.empty()) return;
      words.push_back({std::exchange(word, {}), after_comma_});
      after_comma_ = false;
    };
    for (std::size_t i = 0; i < line.size() && line[i] != '#'; ++i) {
      const char c = line[i];
      if (c == '[') in_brackets = true;
      if (c == ']') in_brackets = false;
      if (space(c)) {
        const std::size_t next = std::min(line.find_first_not_of(" \t", i), line.size());
        if (in_brackets || word.ends_with('=') || line.substr(next).starts_with('=')) continue;  // slots = 8
        end_word();
      } else if (!in_brackets && (c == ',' || c == ';' || c == '+')) {
        end_word();
        if (after_comma_ || (words.empty() && nodes_.empty())) refuse(line);  // nothing precedes it
        after_comma_ = true;
      } else if (c == '(' && word.empty() && !in_parentheses) {  // PBS: (node1:ncpus=8+node1b:ncpus=8)
        in_parentheses = true;
      } else if (c == ')' && in_parentheses) {
        in_parentheses = false;
        end_word();
      } else if (c == ':' && !in_brackets && all_digits(leading_digits(line.substr(i + 1))) &&
                 line.substr(i + 1 + leading_digits(line.substr(i + 1)).size()).starts_with('*')) {  // 8*a:8*b
        end_word();
      } else {
        word += c;
      }
    }
    if (in_parentheses) refuse(line);
    end_word();
    return words;
  }

  void read_line(std::string_view line) {
    const std::vector<Word> words = words_of_line(line);
    std::int64_t names = 0, counts = 0;
    for (std::size_t i = 0; i < words.size(); ++i) {
      const std::string& word = words[i].text;
      const bool follows_name = i > 0 && !words[i].after_comma && !digit(words[i - 1].text.front());
      if (i > 0 && words[i].after_comma && digit(word.front()) && has_cores(words[i - 1].text)) {
        if (word.find_first_not_of("0123456789-") != std::string::npos) refuse(line);
        continue;  // node1/0,2-3
      }
      if (const std::size_t equals = word.find('='); equals < word.find_first_of(":[")) {
        if (nodes_.empty()) refuse(word);
        if (word.substr(0, equals) == "slots") add_slots(last_item_, word.substr(equals + 1), word);
      } else if (follows_name && all_digits(word)) {
        if (i + 1 < words.size() && words[i + 1].text.find('@') != std::string::npos) return;  // a queue of Grid Engine
        ++counts;  // LSB_MCPU_HOSTS: the slots of LSF are cores
        set_count(word, word);
      } else {
        if (i > 0 && !words[i].after_comma && all_digits(word) && counts > 0) refuse(line);
        ++names;
        read_item(word);
      }
    }
    if (counts > 0 && counts != names) refuse(line);
  }

  // Torque and PBS write cores behind a slash, node1/0; more cores may follow behind a comma.
  static bool has_cores(std::string_view word) {
    const std::size_t slash = word.find('/');
    return slash != std::string_view::npos && slash > word.find_last_of(']') + 1;
  }

  // A host without slots runs nothing.
  void refuse_zero(std::int64_t slots, std::size_t first_node) const {
    if (slots == 0 && first_node < nodes_.size())
      throw InputError(where_, fmt::format("0 slots on {}", nodes_[first_node].name),
                       "hosts with slots: leave the others out");
  }

  void set_count(std::string_view digits, std::string_view word) {
    const std::int64_t count = number_of_digits(digits, word);
    refuse_zero(count, last_item_);
    for (std::size_t n = last_item_; n < nodes_.size(); ++n) nodes_[n].count = count;
  }

  void add_slots(std::size_t first_node, std::string_view digits, std::string_view word) {
    const std::int64_t slots = number_of_digits(digits, word);
    refuse_zero(slots, first_node);
    for (std::size_t n = first_node; n < nodes_.size(); ++n)
      nodes_[n].slots = std::min(nodes_[n].slots + slots, std::numeric_limits<std::int64_t>::max() / 2);
  }

  std::int64_t number_of_digits(std::string_view digits, std::string_view word) const {
    if (!all_digits(digits)) refuse(word);
    if (digits.size() > kMostDigits) too_large(digits);
    return number_of(digits).value();
  }

  [[noreturn]] void too_large(std::string_view node) const {
    throw InputError(where_, fmt::format("node {}", node), fmt::format("node numbers below {}", rules_.most));
  }

  // Reads a name with its slots or cores: 8*node1, node1:8, node1/0*8, node1:ncpus=8:ngpus=4.
  void read_item(std::string_view word) {
    if (is_address(word) || (word.starts_with('[') && is_address(word.substr(1))))
      throw InputError(where_, fmt::format("\"{}\", an address", word),
                       "names that end in numbers, or numbers: an address does not say where in the fabric a node is "
                       "(give an array of numbers, or \"nodes\" without a placement)");
    std::string_view name = word;
    const std::string_view times = leading_digits(name);
    const bool counted = !times.empty() && name.substr(times.size()).starts_with('*');
    if (counted) {
      name.remove_prefix(times.size() + 1);
      if (name.empty() || digit(name.front())) refuse(word);
    }
    std::size_t end = 0;
    for (bool in_brackets = false; end < name.size(); ++end) {
      in_brackets = name[end] == '[' || (in_brackets && name[end] != ']');
      if (!in_brackets && (name[end] == ':' || name[end] == '/' || name[end] == '*')) break;
    }
    std::string_view rest = name.substr(end);
    name = name.substr(0, end);
    if (!rest.empty() && (name.empty() || digit(name.front()))) refuse(word);
    const bool of_pbs = rest.find('=') != std::string_view::npos;
    // PBS writes a virtual node, a part of a host, as node1[0].
    if (of_pbs && name.ends_with(']')) {
      const std::size_t open = name.find_last_of('[');
      if (open != std::string_view::npos && all_digits(name.substr(open + 1, name.size() - open - 2)))
        name = name.substr(0, open);
    }
    last_item_ = nodes_.size();
    read_name(name, word);
    if (counted) set_count(times, word);
    if (rest.starts_with(':')) {
      bool first = true;
      for (const std::string_view part : split(rest.substr(1), ':')) {
        if (first && !of_pbs) {
          add_slots(last_item_, part, word);
        } else if (part.starts_with("ngpus=") || part.starts_with("gpus=")) {
          add_slots(last_item_, part.substr(part.find('=') + 1), word);
        } else if (part.empty()) {
          refuse(word);
        }
        first = false;
      }
    } else if (!rest.empty()) {  // /0*8, /0-7, *8: cores and tasks
      if (rest.size() < 2 || !digit(rest[1]) || rest.find_first_not_of("0123456789-*/") != std::string_view::npos)
        refuse(word);
      if (rest.starts_with('*') && all_digits(rest.substr(1))) set_count(rest.substr(1), word);
    }
  }

  // Adds the nodes of a name; of several numbers the last one changes fastest.
  void read_name(std::string_view name, std::string_view word) {
    std::vector<std::string> names{""};
    if (!name.empty() && digit(name.front())) {  // 3, 3-6
      append({read_range(name, word)}, names);
      name = {};
    } else if (!name.starts_with('[')) {
      if (name.empty() || std::isalpha(static_cast<unsigned char>(name.front())) == 0) refuse(word);
      if (name.find('[') == std::string_view::npos) remember_range_like(name);
    }
    for (std::string_view rest = host_of(name); !rest.empty();) {
      std::size_t size = 1;
      if (rest.front() == '[') {
        size = rest.find(']') + 1;
        if (size == 0) refuse(word);  // npos + 1
        append(read_ranges(rest.substr(1, size - 2), word), names);
      } else if (of_a_name(rest.front())) {
        for (std::string& one : names) one += rest.front();
      } else {
        refuse(word);
      }
      rest.remove_prefix(size);
    }
    if (numbers_of(names.front()).empty())
      throw InputError(where_, fmt::format("\"{}\", a name without a number", word), kNumbered);
    std::string_view domain = name.substr(host_of(name).size());
    for (std::size_t i = 0; i < domain.size(); ++i)
      if (domain[i] == '.' ? domain.substr(i).starts_with("..") : !of_a_name(domain[i])) refuse(word);
    if (domain.ends_with('.')) domain.remove_suffix(1);
    check_length(1, names.size());
    for (const std::string& one : names) nodes_.push_back({.name = one + std::string(domain)});
  }

  std::vector<Range> read_ranges(std::string_view ranges, std::string_view word) const {
    std::vector<Range> list;
    if (ranges.size() > 1 && ranges.ends_with(',')) refuse_comma(word);
    for (const std::string_view range : split(ranges, ',')) list.push_back(read_range(range, word));
    return list;
  }

  Range read_range(std::string_view range, std::string_view word) const {
    Range read;
    if (const std::size_t step = range.find_first_of(":/"); step != std::string_view::npos) {
      read.step = number_of_digits(range.substr(step + 1), word);
      range = range.substr(0, step);
      if (read.step == 0 || range.find('-') == std::string_view::npos) refuse(word);
    }
    const std::size_t dash = range.find('-');
    read.first = number_of_digits(range.substr(0, dash), word);
    read.last = dash == std::string_view::npos ? read.first : number_of_digits(range.substr(dash + 1), word);
    read.width = std::min(dash, range.size());
    if (read.last < read.first) refuse(word);
    if (read.size() > rules_.most) too_large(range.substr(dash + 1));
    return read;
  }

  void check_length(std::int64_t numbers, std::size_t names) const {
    if (numbers > (rules_.most - static_cast<std::int64_t>(nodes_.size())) / static_cast<std::int64_t>(names))
      throw InputError(where_, "a longer list", fmt::format("at most {} nodes", rules_.most));
  }

  // Appends each number of the ranges to each of the names.
  void append(const std::vector<Range>& ranges, std::vector<std::string>& names) const {
    std::int64_t numbers = 0;
    for (const Range& range : ranges) numbers += range.size();
    check_length(numbers, names.size());
    std::vector<std::string> longer;
    for (const std::string& name : names)
      for (const Range& range : ranges)
        for (std::int64_t k = 0; k < range.size(); ++k)
          longer.push_back(fmt::format("{}{:0{}}", name, range.first + k * range.step, range.width));
    names = std::move(longer);
  }

  // Looks for a range without brackets. cn001-cn004 is one. node1-4 may be one: check_ranges() decides, by whether
  // other names show that it is a name.
  void remember_range_like(std::string_view name) {
    for (std::size_t dash = name.find('-'); dash != std::string_view::npos; dash = name.find('-', dash + 1)) {
      // Either both ends have their domain, or one domain for both follows the second.
      const std::string_view left = name.substr(0, dash), right = name.substr(dash + 1);
      const std::string shape = shape_of(left);
      if (shape.find(kNumber) != std::string::npos && shape.front() != kNumber &&
          (shape == shape_of(right) || shape == shape_of(right.substr(0, right.find('.')))))
        refuse_range(name, left.substr(0, left.find('.')).find_last_not_of("0123456789") + 1, dash);
    }
    const std::string_view host = host_of(name);
    const std::size_t dash = host.find_last_of('-');
    if (dash == std::string_view::npos || dash == 0 || !digit(host[dash - 1])) return;
    const std::string_view last = host.substr(dash + 1);
    const std::size_t begin = host.substr(0, dash).find_last_not_of("0123456789") + 1;
    const std::string_view first = host.substr(begin, dash - begin);
    if (!all_digits(last) || first.size() > kMostDigits || last.size() > kMostDigits) return;
    range_like_.push_back(
        {std::string(name), begin, dash, number_of_digits(first, name), number_of_digits(last, name)});
  }

  [[noreturn]] void refuse_range(std::string_view name, std::size_t begin, std::size_t dash) const {
    std::string_view right = name.substr(dash + 1);
    right = right.substr(0, right.find('.'));
    const std::size_t last = right.find_last_of("0123456789") + 1;
    const std::size_t last_begin = right.substr(0, last).find_last_not_of("0123456789") + 1;  // npos + 1: 0
    throw InputError(where_, fmt::format("\"{}\", a name or a range", name),
                     fmt::format("brackets: \"{}[{}-{}]\" for a range, \"{}[{}]\" for one name", name.substr(0, begin),
                                 leading_digits(name.substr(begin)), right.substr(last_begin, last - last_begin),
                                 name.substr(0, dash + 1 + last_begin), right.substr(last_begin, last - last_begin)));
  }

  void check_ranges() {
    if (range_like_.empty()) return;
    // They are ranges only if each is ascending and none overlaps another.
    std::stable_sort(range_like_.begin(), range_like_.end(),
                     [](const RangeLike& a, const RangeLike& b) { return a.first < b.first; });
    for (std::size_t i = 0; i < range_like_.size(); ++i)
      if (range_like_[i].last <= range_like_[i].first || (i > 0 && range_like_[i].first <= range_like_[i - 1].last))
        return;
    refuse_range(range_like_.front().name, range_like_.front().begin, range_like_.front().dash);
  }

  // Names that repeat (once per rank or core) count once; their slots add up.
  void count_once() {
    std::unordered_map<std::string_view, Node*> met;
    for (Node& node : nodes_) {
      if (node.is_bare()) continue;
      const auto [at, is_new] = met.emplace(node.name, &node);
      if (is_new) continue;
      at->second->slots += node.slots;
      at->second->count += node.count;
      at->second->times += std::exchange(node.times, 0);
    }
    std::erase_if(nodes_, [](const Node& node) { return node.times == 0; });
  }

  void check_slots() const {
    for (const Node& node : nodes_)
      if (node.slots > 0 && rules_.devices_per_node > 0 && node.slots != rules_.devices_per_node)
        throw InputError(
            where_, fmt::format("{} slots on {}", node.slots, node.name),
            fmt::format("{}, the devices of a node (cluster.devices_per_node), or no slots if they count cores",
                        rules_.devices_per_node));
  }

  // LSF lists the host from which a job is launched first, with one slot, although it runs no rank. Counts of cores may
  // differ from those of devices, but they are equal on hosts that run equally many ranks.
  void check_counts() const {
    const Node& first = nodes_.front();
    const auto rest = nodes_.begin() + 1;
    if (rest == nodes_.end()) return;
    const bool counted = std::any_of(nodes_.begin(), nodes_.end(), [](const Node& n) { return n.count > 0; });
    const bool slotted = std::any_of(nodes_.begin(), nodes_.end(), [](const Node& n) { return n.slots > 0; });
    const auto of = [&](const Node& node) { return counted ? node.count : node.times; };
    const bool rest_alike = std::all_of(rest, nodes_.end(), [&](const Node& n) { return of(n) == of(*rest); });
    if (rest_alike && of(first) == 1 && of(*rest) > 1 && !slotted)
      throw InputError(
          where_, fmt::format("1 slot on {} and {} on {}", first.name, of(*rest), rest->name),
          fmt::format("equally many on every host: {} differs; leave it out if it is the launch host, which "
                      "runs no ranks",
                      first.name));
    if (!counted) return;
    const auto other =
        std::find_if(rest, nodes_.end(), [&](const Node& n) { return n.count > 0 && n.count != first.count; });
    if (first.count == 0 || other == nodes_.end()) return;
    const Node& odd = rest_alike ? first : *other;
    throw InputError(
        where_, fmt::format("{} slots on {} and {} on {}", first.count, first.name, other->count, other->name),
        fmt::format(
            "equally many on every host: {} differs; leave out the launch host, which runs no ranks, or give names "
            "alone",
            odd.name));
  }

  std::vector<std::int64_t> numbers() const {
    std::vector<std::int64_t> list;
    list.reserve(nodes_.size());
    for (const Node& node : nodes_) list.push_back(node.last_number());
    if (!differ(list)) {
      const std::string shape = nodes_.front().shape();
      if (std::ranges::any_of(nodes_, [&](const Node& node) { return node.shape() != shape; })) refuse_equal_numbers();
      list = by_digits(std::move(list));
    }
    for (const std::int64_t number : list)
      if (number >= rules_.most) too_large(std::to_string(number));
    return list;
  }

  static bool differ(std::vector<std::int64_t> list) {
    std::sort(list.begin(), list.end());
    return std::adjacent_find(list.begin(), list.end()) == list.end();
  }

  [[noreturn]] void refuse_equal_numbers() const {
    std::unordered_map<std::int64_t, const Node*> seen;
    for (const Node& node : nodes_) {
      const auto [at, is_new] = seen.emplace(node.last_number(), &node);
      if (is_new || at->second->shape() == node.shape()) continue;
      throw InputError(where_, fmt::format("{} and {}, which differ only in their prefix", at->second->name, node.name),
                       "a different number for each node of the fabric: prefixes are ignored (an array of numbers can "
                       "place nodes of several names)");
    }
    throw InputError(
        where_, fmt::format("{} among names of other forms", nodes_.front().name),
        "names of one form, or a different last number in each (an array of numbers can place such nodes)");
  }

  // For names of one form whose last numbers repeat: the numbers that differ count like the digits of one number.
  std::vector<std::int64_t> by_digits(std::vector<std::int64_t> list) const {
    std::vector<std::vector<std::int64_t>> numbers;
    for (const Node& node : nodes_) numbers.push_back(numbers_of(node.name));
    struct Digit {
      std::size_t place;
      std::int64_t least, most;
    };
    std::vector<Digit> digits;
    for (std::size_t place = 0; place < numbers.front().size(); ++place) {
      const auto at_place = [place](const std::vector<std::int64_t>& of_name) { return of_name[place]; };
      const auto [low, high] = std::ranges::minmax_element(numbers, {}, at_place);
      if ((*low)[place] != (*high)[place]) digits.push_back({place, (*low)[place], (*high)[place]});
    }
    if (digits.empty()) return list;  // bare numbers that repeat
    if (digits.size() == 1) {
      for (std::size_t n = 0; n < list.size(); ++n) list[n] = numbers[n][digits[0].place];
      return list;
    }
    if (!rules_.first && std::ranges::any_of(digits, [](const Digit& d) { return d.least != 0; }))
      throw InputError(
          where_, fmt::format("{} numbers in each name (\"{}\") and no \"first\"", digits.size(), nodes_.front().name),
          "\"first\" as well, the number from which each of them counts: 1 or 0");
    const std::int64_t first = rules_.first.value_or(0);
    std::int64_t whole = 1;
    for (const Digit& d : digits) {
      if (d.least < first)
        throw InputError(where_, fmt::format("{} in names such as {}", d.least, nodes_.front().name),
                         fmt::format("numbers from {} (\"first\") on", first));
      const bool leads = &d == &digits.front();
      if (d.most >= rules_.most || (!leads && d.most - first + 1 > rules_.most / whole))
        throw InputError(where_, fmt::format("{} numbers up to {} in each name", digits.size(), d.most),
                         fmt::format("names that count fewer than {} nodes", rules_.most));
      if (!leads) whole *= d.most - first + 1;
    }
    for (std::size_t n = 0; n < list.size(); ++n) {
      list[n] = 0;
      for (const Digit& d : digits) list[n] = list[n] * (d.most - first + 1) + numbers[n][d.place] - first;
      list[n] += first;
    }
    return list;
  }

  static constexpr const char* kNumbered = "names with the number of the node, \"node7\", or numbers";

  struct RangeLike {
    std::string name;
    std::size_t begin = 0, dash = 0;  // where the first number begins; the dash after it
    std::int64_t first = 0, last = 0;
  };

  NodeListRules rules_;
  const InputError::Where& where_;
  std::vector<Node> nodes_;
  std::vector<RangeLike> range_like_;
  std::size_t last_item_ = 0;  // index of the first node of the last name read
  bool after_comma_ = false;
};

}  // namespace

std::vector<std::int64_t> read_node_list(std::string_view text, const NodeListRules& rules,
                                         const InputError::Where& where) {
  return NodeList(rules, where).read(text);
}

}  // namespace orrery
