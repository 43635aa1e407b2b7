// The tables of links that vendors' tools print: nvidia-smi topo -m, rocm-smi --showtopo, amd-smi topology.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <utility>

#include "sim/base/words.h"
#include "sim/hardware/node_topology.h"

namespace orrery {
namespace {

using NvidiaPath = NodeTopology::Path;
using Words = std::vector<std::string>;

bool is_gpu(const std::string& word) { return word.starts_with("GPU") && number_of(word.substr(3)).has_value(); }

// Drivers before 2018 print PSB and SOC.
constexpr std::array<std::pair<std::string_view, TopologyLink>, 8> kLinkWords{{{"X", TopologyLink::self},
                                                                               {"PSB", TopologyLink::pix},
                                                                               {"PIX", TopologyLink::pix},
                                                                               {"PXB", TopologyLink::pxb},
                                                                               {"PHB", TopologyLink::phb},
                                                                               {"NODE", TopologyLink::node},
                                                                               {"SYS", TopologyLink::sys},
                                                                               {"SOC", TopologyLink::sys}}};

std::optional<NvidiaPath> path_of(std::string_view word) {
  for (const auto& [name, link] : kLinkWords)
    if (word == name) return NvidiaPath{link};
  if (word.starts_with("NV"))
    if (const auto links = number_of(word.substr(2)); links && *links > 0 && *links < 1000)
      return NvidiaPath{TopologyLink::nv, *links};
  return std::nullopt;
}

std::size_t digits_at(std::string_view text, std::size_t begin) {
  std::size_t end = begin;
  while (end < text.size() && std::isdigit(static_cast<unsigned char>(text[end])) != 0) ++end;
  return end - begin;
}

// Returns the length of the device name with which `text` begins: GPU7, NIC11, mlx5_0. 0: none.
std::size_t device_name_at(std::string_view text) {
  if (text.starts_with("GPU") || text.starts_with("NIC")) {
    const std::size_t digits = digits_at(text, 3);
    return digits > 0 ? 3 + digits : 0;
  }
  if (!text.starts_with("mlx")) return 0;
  const std::size_t driver = 3 + digits_at(text, 3);
  const std::size_t digits = text.substr(driver).starts_with('_') ? digits_at(text, driver + 1) : 0;
  return digits > 0 ? driver + 1 + digits : 0;
}

std::size_t link_at(std::string_view text) {
  for (const auto& [name, link] : kLinkWords)
    if (text.starts_with(name)) return name.size();
  return text.starts_with("NV") && digits_at(text, 2) > 0 ? 2 + digits_at(text, 2) : 0;
}

// Separates words that have lost the space between them: NIC11NIC12, NV18NV18. Other words stay whole.
template <class LengthAt>
Words parted(const Words& words, LengthAt length_at) {
  Words all;
  for (const std::string& word : words) {
    Words parts;
    std::string_view rest = word;
    for (std::size_t length = length_at(rest); length > 0; length = length_at(rest)) {
      parts.emplace_back(rest.substr(0, length));
      rest.remove_prefix(length);
    }
    // After the links follows the column "CPU Affinity" with its numbers.
    if (!parts.empty() && !rest.empty() &&
        (rest.starts_with("CPU") || std::isdigit(static_cast<unsigned char>(rest.front())) != 0))
      parts.emplace_back(std::exchange(rest, {}));
    if (rest.empty()) {
      all.insert(all.end(), parts.begin(), parts.end());
    } else {
      all.push_back(word);
    }
  }
  return all;
}

// The base of the parsers of all tools.
class Parser {
 public:
  explicit Parser(std::string file) : file_(std::move(file)) {}

 protected:
  [[noreturn]] void fail(const std::string& found, const std::string& expected) const {
    throw InputError({file_, ""}, found, expected);
  }
  // The row's name, and its entries: one for each column.
  void check_row(const Words& words, const std::string& name, std::size_t columns, bool may_have_more) const {
    if (words[0] != name) fail(fmt::format("\"{}\" at the start of line {}", words[0], line_), "the row of " + name);
    if (words.size() < 1 + columns || (words.size() > 1 + columns && !may_have_more))
      fail(fmt::format("{} entries in the row of {} (line {})", words.size() - 1, name, line_),
           fmt::format("one for each of the {} columns", columns));
  }

  std::string file_;
  NodeTopology topology_;
  std::int64_t line_ = 0;
};

// Reads the matrix line by line.
class NvidiaParser : Parser {
 public:
  using Parser::Parser;

  NodeTopology parse(std::string_view text) {
    for (std::optional<std::string_view> line; !done_ && (line = next_line(text)); read_line(topology_words(*line)))
      ++line_;
    if (columns_.empty())
      fail("no line of column names",
           "a line \"GPU0 GPU1 ...\", as nvidia-smi topo -m prints, or what rocm-smi --showtopo or amd-smi topology "
           "does");
    if (rows_ < topology_.gpus)
      fail(fmt::format("{} GPU rows", rows_), fmt::format("a row for each of the {} GPUs", topology_.gpus));
    check_symmetric();
    topology_.tool = "nvidia-smi";
    return std::move(topology_);
  }

 private:
  void read_line(const Words& words) {
    if (columns_.empty()) {
      const Words names = parted(words, device_name_at);
      if (!names.empty() && names[0] == "GPU0" && (names.size() == 1 || names[1] != "X")) read_columns(names);
      return;
    }
    if (words.empty()) return;
    if (words[0] == "Legend:" || words[0] == "NIC" || rows_ == topology_.gpus) {
      done_ = true;  // the rest are the rows of the NICs, which repeat, and the legend
      return;
    }
    read_gpu_row(words);
  }

  void read_columns(const Words& words) {
    for (const std::string& word : words) {
      if (word == "CPU" || word == "NUMA") break;  // "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"
      columns_.push_back(word);
      if (!is_gpu(word)) {
        topology_.nics.push_back(word);
      } else if (word != fmt::format("GPU{}", topology_.gpus)) {
        fail(fmt::format("the column {} in line {}", word, line_), fmt::format("GPU{}", topology_.gpus));
      } else if (!topology_.nics.empty()) {
        fail(fmt::format("the column {} after {} in line {}", word, topology_.nics.back(), line_), "the GPUs first");
      } else {
        ++topology_.gpus;
      }
    }
  }

  void read_gpu_row(const Words& squeezed) {
    const Words words = parted(squeezed, link_at);
    const std::string name = fmt::format("GPU{}", rows_);
    check_row(words, name, columns_.size(), true);
    std::size_t links = 0;
    while (1 + links < words.size() && path_of(words[1 + links])) ++links;
    if (links > columns_.size())
      fail(fmt::format("{} links in the row of {} (line {})", links, name, line_),
           fmt::format("one for each of the {} columns; are two names written as one?", columns_.size()));
    auto& to_gpus = topology_.gpu_gpu.emplace_back();
    auto& to_nics = topology_.gpu_nic.emplace_back();
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      const std::string& word = words[1 + i];
      const auto path = path_of(word);
      if (!path)
        fail(fmt::format("\"{}\" between {} and {} (line {})", word, name, columns_[i], line_),
             "X, NV#, PIX, PXB, PHB, NODE or SYS");
      const bool diagonal = static_cast<std::int64_t>(i) == rows_;
      if (diagonal != (path->link == TopologyLink::self))
        fail(fmt::format("\"{}\" between {} and {} (line {})", word, name, columns_[i], line_),
             diagonal ? "X" : "a link between two different GPUs");
      (static_cast<std::int64_t>(i) < topology_.gpus ? to_gpus : to_nics).push_back(*path);
    }
    ++rows_;
  }

  void check_symmetric() const {
    for (std::size_t a = 0; a < topology_.gpu_gpu.size(); ++a)
      for (std::size_t b = 0; b < a; ++b)
        if (topology_.gpu_gpu[a][b].link != topology_.gpu_gpu[b][a].link ||
            topology_.gpu_gpu[a][b].nvlinks != topology_.gpu_gpu[b][a].nvlinks)
          fail(fmt::format("different links from GPU{} to GPU{} and back", b, a), "a symmetric matrix");
  }

  Words columns_;
  std::int64_t rows_ = 0;
  bool done_ = false;
};

}  // namespace

std::vector<std::string> topology_words(std::string_view line) {
  return words_of(without_escapes(line));  // nvidia-smi underlines its header on a terminal
}

NodeTopology parse_nvidia_topology(std::string_view text, const std::string& file) {
  return NvidiaParser(file).parse(text);
}

namespace {

// The titles that rocm-smi and amd-smi print above their tables.
constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kHopsTitles{
    {{"rocm-smi", "Hops between two GPUs"}, {"amd-smi", "HOPS TABLE"}}};
constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kTypeTitles{
    {{"rocm-smi", "Link Type between two GPUs"}, {"amd-smi", "LINK TYPE TABLE"}}};
constexpr std::array<std::string_view, 2> kTitles{"between two GPUs", " TABLE:"};

// Reads the tables of hops and of link types. They have a column for each GPU, named GPU0 or by its bus (0000:0c:00.0).
class AmdParser : Parser {
 public:
  using Parser::Parser;

  NodeTopology parse(std::string_view text) {
    topology_.of_amd = true;
    for (std::optional<std::string_view> line; (line = next_line(text)); read_line(*line)) ++line_;
    if (types_.rows.empty())
      fail("no table of link types",
           "\"Link Type between two GPUs\" of rocm-smi --showtopo, or \"LINK TYPE TABLE\" of "
           "amd-smi topology");
    for (const Table* table : {&types_, &hops_})
      if (table->rows.size() != table->columns.size())
        fail(fmt::format("{} rows of the table \"{}\"", table->rows.size(), table->title),
             fmt::format("a row for each of the {} GPUs", table->columns.size()));
    if (!hops_.rows.empty() && hops_.columns != types_.columns)
      fail("different GPUs in the tables of hops and of link types", "the same");
    read_paths();
    return std::move(topology_);
  }

 private:
  struct Table {
    std::string title;
    std::vector<std::string> columns;
    std::vector<std::vector<std::string>> rows;
  };

  void read_line(std::string_view line) {
    if (std::any_of(kTitles.begin(), kTitles.end(),
                    [&](std::string_view title) { return line.find(title) != std::string_view::npos; })) {
      table_ = nullptr;
      begin(line, kHopsTitles, hops_);
      begin(line, kTypeTitles, types_);
      return;
    }
    if (table_ == nullptr) return;
    std::vector<std::string> words = topology_words(line);
    if (words.empty() && table_->rows.empty()) return;
    if (words.empty() || words[0].starts_with("==") || table_->rows.size() == table_->columns.size()) {
      if (!table_->columns.empty()) table_ = nullptr;
      if (table_ == nullptr) return;
    }
    if (table_->columns.empty()) {
      table_->columns = std::move(words);
      return;
    }
    check_row(words, table_->columns[table_->rows.size()], table_->columns.size(), false);
    words.erase(words.begin());
    table_->rows.push_back(std::move(words));
  }

  void begin(std::string_view line, const std::array<std::pair<std::string_view, std::string_view>, 2>& titles,
             Table& table) {
    for (const auto& [tool, title] : titles) {
      if (line.find(title) == std::string_view::npos) continue;
      if (!table.columns.empty())
        fail(fmt::format("the table \"{}\" again in line {}", title, line_), "that table once");
      table.title = title;
      topology_.tool = tool;
      table_ = &table;
    }
  }

  void read_paths() {
    const std::size_t gpus = types_.columns.size();
    topology_.gpus = static_cast<std::int64_t>(gpus);
    topology_.gpu_gpu.resize(gpus);
    topology_.gpu_nic.resize(gpus);
    for (std::size_t a = 0; a < gpus; ++a)
      for (std::size_t b = 0; b < gpus; ++b) {
        if (types_.rows[a][b] != types_.rows[b][a] || (!hops_.rows.empty() && hops_.rows[a][b] != hops_.rows[b][a]))
          fail(fmt::format("different entries from {} to {} and back", types_.columns[a], types_.columns[b]),
               "symmetric tables");
        topology_.gpu_gpu[a].push_back({a == b ? TopologyLink::self : link_of(a, b)});
      }
  }

  TopologyLink link_of(std::size_t a, std::size_t b) const {
    const std::string& type = types_.rows[a][b];
    if (type == "XGMI") return TopologyLink::xgmi;
    if (type != "PCIE")
      fail(fmt::format("\"{}\" between {} and {}", type, types_.columns[a], types_.columns[b]), "XGMI or PCIE");
    if (hops_.rows.empty()) return TopologyLink::node;
    // The way to the processor and back takes two hops; a third hop leads to another NUMA node.
    const std::string& text = hops_.rows[a][b];
    const std::int64_t hops = number_of(text).value_or(0);
    if (hops < 1)
      fail(fmt::format("\"{}\" hops between {} and {}", text, types_.columns[a], types_.columns[b]),
           "a number from 1 on");
    return hops > 2 ? TopologyLink::sys : TopologyLink::node;
  }

  Table hops_, types_;
  Table* table_ = nullptr;  // the table to which the next lines belong
};

}  // namespace

bool is_amd_topology(std::string_view text) {
  return text.find("ROCm System Management") != std::string_view::npos ||
         std::any_of(kTitles.begin(), kTitles.end(),
                     [&](std::string_view title) { return text.find(title) != std::string_view::npos; });
}

NodeTopology parse_amd_topology(std::string_view text, const std::string& file) { return AmdParser(file).parse(text); }

}  // namespace orrery
