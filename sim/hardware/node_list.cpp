#include "sim/hardware/node_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <iterator>
#include <limits>
#include <string>
#include <unordered_map>
#include <utility>

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
  if (!word.starts_with("ip-") && !word.starts_with("ec2-")) return false;
  word.remove_prefix(word.find('-') + 1);
  for (int part = 0; part < 4; ++part) {
    const std::string_view number = leading_digits(word);
    if (number.empty() || number.size() > 3) return false;
    word.remove_prefix(number.size());
    if (part < 3 && !word.starts_with('-')) return false;
    if (part < 3) word.remove_prefix(1);
  }
  return true;
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

// Returns the text of a name with kNumber in place of each number.
std::string shape_of(std::string_view name) {
  std::string shape;
  for (std::size_t i = 0; i < name.size();) {
    const std::string_view number = leading_digits(name.substr(i));
    if (number.empty() || number.size() > kMostDigits) {
      shape += name.substr(i, std::max<std::size_t>(1, number.size()));
      i += std::max<std::size_t>(1, number.size());
    } else {
      shape += kNumber;
      i += number.size();
    }
  }
  return shape;
}

class NodeList {
 public:
  NodeList(const NodeListRules& rules, const InputError::Where& where) : rules_(rules), where_(where) {}

  std::vector<std::int64_t> read(std::string_view text) {
    const std::string_view whole = text;
    // A variable may precede the list: SLURM_JOB_NODELIST=..., exec_host=..., LSB_HOSTS=...
    const std::size_t equals = std::min(text.find('='), text.size());
    std::string key(text.substr(0, equals));
    std::transform(key.begin(), key.end(), key.begin(), [](unsigned char c) { return std::tolower(c); });
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
    if (nodes_.size() == 1 && is_bare(nodes_.front()))
      throw InputError(
          where_, fmt::format("\"{}\", either a number of nodes or the number of one", whole),
          fmt::format("\"nodes\" of the cluster for a number of nodes, or \"node{0}\" or [{0}] for node {0}",
                      last_number(nodes_.front())));
    check_ranges();
    count_once();
    check_slots();
    check_counts();
    return numbers();
  }

 private:
  // One node: the shape of its name, and the index of the name's first number in `numbers_`.
  struct Node {
    std::size_t shape = 0, begin = 0;
    std::int64_t slots = 0;
    std::int64_t count = 0;  // of cores or tasks, as in LSF's lists; 0: not stated
    std::int64_t times = 1;  // number of times that the list has the name
  };
  struct Word {
    std::string text;
    bool after_comma = false;
  };
  // A number as written: node1 and node01 are two nodes.
  struct Number {
    std::int64_t value = 0;
    std::size_t width = 0;
    std::string text() const { return fmt::format("{:0{}}", value, width); }
    auto operator<=>(const Number&) const = default;
  };
  // A name that may stand for several nodes.
  struct Name {
    std::string shape;
    std::vector<std::vector<Number>> places;  // by number of the name: its values
    std::int64_t nodes = 1;
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
      throw InputError(where_, fmt::format("0 slots on {}", name_of(nodes_[first_node])),
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
    std::int64_t number = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), number);
    return number;
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
      while (!rest.empty()) {
        if (!rest.starts_with(':')) refuse(word);
        rest.remove_prefix(1);
        const std::string_view part = rest.substr(0, rest.find(':'));
        rest.remove_prefix(part.size());
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

  void read_name(std::string_view name, std::string_view word) {
    Name read;
    const bool bare = !name.empty() && (digit(name.front()) || name.front() == '[');
    if (bare && digit(name.front())) {  // 3, 3-6
      add_place({read_range(name, word)}, false, read);
      name = {};
    } else if (!bare && (name.empty() || std::isalpha(static_cast<unsigned char>(name.front())) == 0)) {
      refuse(word);
    } else if (name.find('[') == std::string_view::npos) {
      remember_range_like(name);
    }
    const std::size_t domain = name.find('.');
    const std::string_view host = name.substr(0, domain);
    bool after_number = false;  // node1[0-3]: node10 to node13
    for (std::size_t i = 0; i < host.size();) {
      const std::string_view digits = leading_digits(host.substr(i));
      if (host[i] == '[') {
        const std::size_t close = host.find(']', i);
        if (close == std::string_view::npos) refuse(word);
        add_place(read_ranges(host.substr(i + 1, close - i - 1), word), after_number, read);
        i = close + 1;
        after_number = true;
      } else if (!digits.empty() && digits.size() <= kMostDigits) {
        add_place({read_range(digits, word)}, after_number, read);
        i += digits.size();
        after_number = true;
      } else if (of_a_name(host[i])) {
        const std::size_t size = std::max<std::size_t>(1, digits.size());
        read.shape += host.substr(i, size);
        i += size;
        after_number = false;
      } else {
        refuse(word);
      }
    }
    if (read.places.empty()) throw InputError(where_, fmt::format("\"{}\", a name without a number", word), kNumbered);
    if (domain != std::string_view::npos) {  // the domain does not identify the node
      std::string_view rest = name.substr(domain);
      for (std::size_t i = 0; i < rest.size(); ++i)
        if (rest[i] == '.' ? i + 1 < rest.size() && rest[i + 1] == '.' : !of_a_name(rest[i])) refuse(word);
      read.shape += rest.substr(0, rest.size() - (rest.ends_with('.') ? 1 : 0));
    }
    add_nodes(read);
  }

  std::vector<Range> read_ranges(std::string_view ranges, std::string_view word) const {
    std::vector<Range> list;
    if (ranges.size() > 1 && ranges.ends_with(',')) refuse_comma(word);
    while (true) {
      const std::size_t comma = ranges.find(',');
      list.push_back(read_range(ranges.substr(0, comma), word));
      if (comma == std::string_view::npos) return list;
      ranges.remove_prefix(comma + 1);
    }
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

  // Adds another number to a name, or, if `further`, more digits to its last number.
  void add_place(const std::vector<Range>& ranges, bool further, Name& name) const {
    std::int64_t size = 0;
    for (const Range& range : ranges) size += range.size();
    if (size > (rules_.most - static_cast<std::int64_t>(nodes_.size())) / name.nodes)
      throw InputError(where_, "a longer list", fmt::format("at most {} nodes", rules_.most));
    name.nodes *= size;
    std::vector<Number> numbers;
    for (const Range& range : ranges)
      for (std::int64_t k = 0; k < range.size(); ++k) {
        const std::int64_t value = range.first + k * range.step;
        numbers.push_back({value, std::max(range.width, std::to_string(value).size())});
      }
    if (!further) {
      name.shape += kNumber;
      name.places.push_back(std::move(numbers));
      return;
    }
    std::vector<Number> whole;
    for (const Number& front : name.places.back())
      for (const Number& back : numbers) {
        if (front.width + back.width > kMostDigits) too_large(front.text() + back.text());
        Number& number = whole.emplace_back(Number{front.value, front.width + back.width});
        for (std::size_t d = 0; d < back.width; ++d) number.value *= 10;
        number.value += back.value;
      }
    name.places.back() = std::move(whole);
  }

  // Adds the nodes of a name; the last number changes fastest.
  void add_nodes(const Name& name) {
    const auto [at, is_new] = shape_numbers_.emplace(name.shape, shapes_.size());
    if (is_new) {
      shapes_.push_back(name.shape);
      places_.push_back(name.places.size());
    }
    std::vector<std::size_t> turn(name.places.size());
    for (std::int64_t n = 0; n < name.nodes; ++n) {
      nodes_.push_back({at->second, numbers_.size()});
      for (std::size_t place = 0; place < turn.size(); ++place) numbers_.push_back(name.places[place][turn[place]]);
      for (std::size_t place = turn.size(); place-- > 0;) {
        if (++turn[place] < name.places[place].size()) break;
        turn[place] = 0;
      }
    }
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
    const std::string_view host = name.substr(0, name.find('.'));
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

  std::size_t places_of(const Node& node) const { return places_[node.shape]; }
  bool is_bare(const Node& node) const { return shapes_[node.shape].size() == 1; }
  std::int64_t last_number(const Node& node) const { return numbers_[node.begin + places_of(node) - 1].value; }

  std::string name_of(const Node& node) const {
    std::string name;
    std::size_t place = node.begin;
    for (const char c : shapes_[node.shape]) c == kNumber ? name += numbers_[place++].text() : name += c;
    return name;
  }

  // Names that repeat (once per rank or core) count once; their slots add up.
  void count_once() {
    std::vector<std::size_t> order(nodes_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    const auto compare = [&](std::size_t a, std::size_t b) {
      const Node &x = nodes_[a], &y = nodes_[b];
      if (x.shape != y.shape) return x.shape <=> y.shape;
      const auto at = [&](const Node& n) { return numbers_.begin() + static_cast<std::ptrdiff_t>(n.begin); };
      const auto places = static_cast<std::ptrdiff_t>(places_of(x));
      return std::lexicographical_compare_three_way(at(x), at(x) + places, at(y), at(y) + places);
    };
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return compare(a, b) < 0; });
    std::vector<bool> again(nodes_.size());
    for (std::size_t i = 1, first = 0; i < order.size(); ++i) {
      if (compare(order[first], order[i]) != 0 || is_bare(nodes_[order[i]])) {
        first = i;
        continue;
      }
      again[order[i]] = true;
      nodes_[order[first]].slots += nodes_[order[i]].slots;
      nodes_[order[first]].count += nodes_[order[i]].count;
      nodes_[order[first]].times += nodes_[order[i]].times;
    }
    std::size_t kept = 0;
    for (std::size_t i = 0; i < nodes_.size(); ++i)
      if (!again[i]) nodes_[kept++] = nodes_[i];
    nodes_.resize(kept);
  }

  void check_slots() const {
    for (const Node& node : nodes_)
      if (node.slots > 0 && rules_.devices_per_node > 0 && node.slots != rules_.devices_per_node)
        throw InputError(
            where_, fmt::format("{} slots on {}", node.slots, name_of(node)),
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
          where_, fmt::format("1 slot on {} and {} on {}", name_of(first), of(*rest), name_of(*rest)),
          fmt::format("equally many on every host: {} differs; leave it out if it is the launch host, which "
                      "runs no ranks",
                      name_of(first)));
    if (!counted) return;
    const auto other =
        std::find_if(rest, nodes_.end(), [&](const Node& n) { return n.count > 0 && n.count != first.count; });
    if (first.count == 0 || other == nodes_.end()) return;
    const Node& odd = rest_alike ? first : *other;
    throw InputError(
        where_, fmt::format("{} slots on {} and {} on {}", first.count, name_of(first), other->count, name_of(*other)),
        fmt::format(
            "equally many on every host: {} differs; leave out the launch host, which runs no ranks, or give names "
            "alone",
            name_of(odd)));
  }

  std::vector<std::int64_t> numbers() const {
    std::vector<std::int64_t> list;
    list.reserve(nodes_.size());
    for (const Node& node : nodes_) list.push_back(last_number(node));
    if (!differ(list)) {
      if (shapes_.size() > 1) refuse_equal_numbers();
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
      const auto [at, is_new] = seen.emplace(last_number(node), &node);
      if (is_new || at->second->shape == node.shape) continue;
      throw InputError(where_,
                       fmt::format("{} and {}, which differ only in their prefix", name_of(*at->second), name_of(node)),
                       "a different number for each node of the fabric: prefixes are ignored (an array of numbers can "
                       "place nodes of several names)");
    }
    throw InputError(
        where_, fmt::format("{} among names of other forms", name_of(nodes_.front())),
        "names of one form, or a different last number in each (an array of numbers can place such nodes)");
  }

  // For names of one form whose last numbers repeat: the numbers that differ count like the digits of one number.
  std::vector<std::int64_t> by_digits(std::vector<std::int64_t> list) const {
    const std::size_t places = places_of(nodes_.front());
    std::vector<std::size_t> digits;
    std::vector<std::int64_t> least, most;
    bool zeros = true;
    for (std::size_t place = 0; place < places; ++place) {
      const auto [low, high] = std::minmax_element(nodes_.begin(), nodes_.end(), [&](const Node& a, const Node& b) {
        return numbers_[a.begin + place].value < numbers_[b.begin + place].value;
      });
      const std::int64_t from = numbers_[low->begin + place].value, to = numbers_[high->begin + place].value;
      if (from == to) continue;
      digits.push_back(place);
      least.push_back(from);
      most.push_back(to);
      zeros = zeros && from == 0;
    }
    if (digits.empty()) return list;  // bare numbers that repeat
    if (digits.size() == 1) {
      for (std::size_t n = 0; n < list.size(); ++n) list[n] = numbers_[nodes_[n].begin + digits[0]].value;
      return list;
    }
    if (!rules_.first && !zeros)
      throw InputError(
          where_,
          fmt::format("{} numbers in each name (\"{}\") and no \"first\"", digits.size(), name_of(nodes_.front())),
          "\"first\" as well, the number from which each of them counts: 1 or 0");
    const std::int64_t first = rules_.first.value_or(0);
    std::int64_t whole = 1;
    for (std::size_t d = 0; d < digits.size(); ++d) {
      if (least[d] < first)
        throw InputError(where_, fmt::format("{} in names such as {}", least[d], name_of(nodes_.front())),
                         fmt::format("numbers from {} (\"first\") on", first));
      if (most[d] >= rules_.most || (d > 0 && most[d] - first + 1 > rules_.most / whole))
        throw InputError(where_, fmt::format("{} numbers up to {} in each name", digits.size(), most[d]),
                         fmt::format("names that count fewer than {} nodes", rules_.most));
      whole *= d > 0 ? most[d] - first + 1 : 1;
    }
    for (std::size_t n = 0; n < list.size(); ++n) {
      list[n] = 0;
      for (std::size_t d = 0; d < digits.size(); ++d)
        list[n] = list[n] * (most[d] - first + 1) + numbers_[nodes_[n].begin + digits[d]].value - first;
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
  std::vector<Number> numbers_;  // the numbers of all names
  std::vector<std::string> shapes_;
  std::vector<std::size_t> places_;  // by shape: numbers in a name
  std::unordered_map<std::string, std::size_t> shape_numbers_;
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
