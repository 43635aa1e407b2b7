#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "sim/base/words.h"
#include "sim/hardware/node_topology.h"

namespace orrery {
namespace {

// The titles that rocm-smi and amd-smi print above their tables.
constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kHopsTitles{
    {{"rocm-smi", "Hops between two GPUs"}, {"amd-smi", "HOPS TABLE"}}};
constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kTypeTitles{
    {{"rocm-smi", "Link Type between two GPUs"}, {"amd-smi", "LINK TYPE TABLE"}}};
constexpr std::array<std::string_view, 2> kTitles{"between two GPUs", " TABLE:"};

// Reads the tables of hops and of link types. They have a column for each GPU, named GPU0 or by its bus (0000:0c:00.0).
class AmdParser {
 public:
  explicit AmdParser(std::string file) : file_(std::move(file)) {}

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

  [[noreturn]] void fail(const std::string& found, const std::string& expected) const {
    throw InputError({file_, ""}, found, expected);
  }

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
    const std::string& name = table_->columns[table_->rows.size()];
    if (words[0] != name) fail(fmt::format("\"{}\" at the start of line {}", words[0], line_), "the row of " + name);
    if (words.size() != 1 + table_->columns.size())
      fail(fmt::format("{} entries in the row of {} (line {})", words.size() - 1, name, line_),
           fmt::format("one for each of the {} columns", table_->columns.size()));
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
    topology_.cpu_affinity.resize(gpus);
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

  std::string file_;
  NodeTopology topology_;
  Table hops_, types_;
  Table* table_ = nullptr;  // the table to which the next lines belong
  std::int64_t line_ = 0;
};

}  // namespace

bool is_amd_topology(std::string_view text) {
  return text.find("ROCm System Management") != std::string_view::npos ||
         std::any_of(kTitles.begin(), kTitles.end(),
                     [&](std::string_view title) { return text.find(title) != std::string_view::npos; });
}

NodeTopology parse_amd_topology(std::string_view text, const std::string& file) { return AmdParser(file).parse(text); }

}  // namespace orrery
