#include "sim/des/fold.h"

#include <bit>

#include "sim/base/digest.h"

namespace orrery {
namespace {

using Colour = ColourRefinement::Colour;

constexpr std::uint64_t scramble(std::uint64_t x) { return mixed(x + kSplitMixStep); }

// Open addressing: colour -> class.
class ColourTable {
 public:
  explicit ColourTable(std::size_t most) {
    const std::size_t size = std::bit_ceil(2 * most + 1);
    mask_ = size - 1;
    entries_.assign(size, {0, kEmpty});
  }
  std::uint32_t class_of(Colour colour) {
    for (std::size_t at = scramble(colour) & mask_;; at = (at + 1) & mask_) {
      Entry& entry = entries_[at];
      if (entry.number == kEmpty) entry = {colour, count_++};
      if (entry.colour == colour) return entry.number;
    }
  }
  std::uint32_t count() const { return count_; }

 private:
  static constexpr std::uint32_t kEmpty = ~std::uint32_t{0};
  struct Entry {
    Colour colour;
    std::uint32_t number;
  };
  std::vector<Entry> entries_;
  std::size_t mask_ = 0;
  std::uint32_t count_ = 0;
};

std::size_t count_colours(std::span<const Colour> colours) {
  ColourTable table(colours.size());
  for (const Colour c : colours) table.class_of(c);
  return table.count();
}

}  // namespace

Colour mix_colour(Colour seed, std::uint64_t value) { return scramble(seed ^ scramble(value)); }
Colour mix_colour(Colour seed, double value) { return mix_colour(seed, std::bit_cast<std::uint64_t>(value)); }
Colour scatter_colour(Colour colour) { return scramble(colour ^ 0x5851f42d4c957f2dull); }

std::vector<std::uint32_t> classes_of(std::span<const Colour> colours) {
  ColourTable table(colours.size());
  std::vector<std::uint32_t> classes(colours.size());
  for (std::size_t i = 0; i < colours.size(); ++i) classes[i] = table.class_of(colours[i]);
  return classes;
}

std::vector<std::uint32_t> ColourRefinement::refine(std::size_t watched, std::size_t most) {
  std::size_t classes = count_colours(colours_);
  const auto too_many = [&] { return watched > 0 && count_colours(std::span(colours_).first(watched)) > most; };
  if (too_many()) return {};
  std::vector<Colour> sums(colours_.size());
  while (classes < colours_.size()) {
    sums.assign(colours_.size(), 0);
    // A sum does not depend on the order of neighbours.
    for (const Edge& e : edges_) {
      sums[e.a] += scatter_colour(colours_[e.b]);
      sums[e.b] += scatter_colour(colours_[e.a]);
    }
    for (std::size_t v = 0; v < colours_.size(); ++v) colours_[v] = mix_colour(colours_[v], sums[v]);
    const std::size_t refined = count_colours(colours_);
    if (refined == classes) break;  // the neighbours of each class are alike
    classes = refined;
    if (too_many()) return {};
  }
  return classes_of(colours_);
}

}  // namespace orrery
