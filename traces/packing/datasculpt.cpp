#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include "traces/packing/packing.h"
#include "traces/random_bits.h"

namespace orrery {

void inner_products(std::span<const float> a, std::span<const float> b, std::size_t depth,
                    std::vector<float>& products) {
  using Rows = Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
  // On its own, Eigen cuts longer rows by the size of the machine's caches, and rounding would depend on them.
  constexpr Eigen::Index kDepthAtOnce = 256;
  const auto all = static_cast<Eigen::Index>(depth);
  const Rows left(a.data(), static_cast<Eigen::Index>(a.size()) / all, all);
  const Rows right(b.data(), static_cast<Eigen::Index>(b.size()) / all, all);
  products.assign(static_cast<std::size_t>(left.rows() * right.rows()), 0.0f);
  Eigen::Map<Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>> sums(products.data(), left.rows(),
                                                                                         right.rows());
  for (Eigen::Index k = 0; k < all; k += kDepthAtOnce) {
    const Eigen::Index count = std::min(kDepthAtOnce, all - k);
    sums.noalias() += left.middleCols(k, count) * right.middleCols(k, count).transpose();
  }
}

float inner_product(const float* a, const float* b, std::size_t depth) {
  return std::inner_product(a, a + depth, b, 0.0f);
}

namespace {

using DocumentNumbers = std::vector<std::uint32_t>;

enum class SculptDraw : std::uint64_t { sample, centers, neighbours };

// Returns `count` of `numbers`, all equally likely, in their order (selection sampling).
DocumentNumbers sampled(const DocumentNumbers& numbers, std::size_t count, std::uint64_t seed, SculptDraw draw) {
  if (count >= numbers.size()) return numbers;
  RandomBits random(seed, draw, {});
  DocumentNumbers chosen;
  chosen.reserve(count);
  for (std::size_t i = 0; chosen.size() < count; ++i)
    if (random.uniform() * static_cast<double>(numbers.size() - i) < static_cast<double>(count - chosen.size()))
      chosen.push_back(numbers[i]);
  return chosen;
}

void append_row(const float* row, std::size_t depth, std::vector<float>& rows) {
  rows.insert(rows.end(), row, row + depth);
}

// Centres of clusters while they are found and moved.
class Clustering {
 public:
  Clustering(const Documents& documents, const DataSculptOptions& options)
      : documents_(documents), options_(options), depth_(static_cast<std::size_t>(documents.dimension())) {}

  // Dense documents need few clusters: the initial number of centres is the documents times their mean similarity to
  // neighbours, here to their kNeighbours nearest in a sample.
  void found(const DocumentNumbers& sample) {
    constexpr std::size_t kNeighbours = 10, kMostCompared = 1024;
    const DocumentNumbers some = sampled(sample, kMostCompared, options_.seed, SculptDraw::neighbours);
    double density = 1;
    if (some.size() > 1) {
      set_centers(some);
      double sum = 0;
      std::vector<float> near;
      for_blocks(some, [&](std::size_t begin, std::size_t rows, const float* products) {
        for (std::size_t i = 0; i < rows; ++i) {
          const float* row = products + i * clusters();
          near.assign(row, row + some.size());
          near.erase(near.begin() + static_cast<std::ptrdiff_t>(begin + i));  // the document itself
          const std::size_t k = std::min(kNeighbours, near.size());
          std::partial_sort(near.begin(), near.begin() + static_cast<std::ptrdiff_t>(k), near.end(), std::greater<>());
          sum += std::accumulate(near.begin(), near.begin() + static_cast<std::ptrdiff_t>(k), 0.0) /
                 static_cast<double>(k);
        }
      });
      density = sum / static_cast<double>(some.size());
    }
    const double wanted = std::floor(static_cast<double>(documents_.count()) * density);
    const double most = static_cast<double>(std::min(kMostClusters, sample.size()));
    const auto count = static_cast<std::size_t>(std::clamp(wanted, 1.0, most));
    set_centers(sampled(sample, count, options_.seed, SculptDraw::centers));
  }

  // Finds the nearest centre of each document. A document without one nearer than delta founds a cluster, if allowed.
  void assign(const DocumentNumbers& numbers, std::vector<std::uint32_t>& labels,
              const std::function<void(double)>& progress) {
    labels.resize(numbers.size());
    for_blocks(numbers, [&](std::size_t begin, std::size_t rows, const float* products) {
      const std::size_t known = clusters();
      for (std::size_t i = 0; i < rows; ++i) {
        const float* const row = products + i * known;
        const float* const e = documents_.embedding(numbers[begin + i]);
        std::size_t best = 0;
        float cosine = -2;
        for (std::size_t c = 0; c < known; ++c)
          if (row[c] > cosine) cosine = row[best = c];
        for (std::size_t c = known; c < clusters(); ++c)  // clusters that this block has founded
          if (const float own = inner_product(e, center(c), depth_); own > cosine) {
            cosine = own;
            best = c;
          }
        if (cosine <= static_cast<float>(options_.delta) && clusters() < kMostClusters) {
          best = clusters();
          append_row(e, depth_, centers_);
        }
        labels[begin + i] = static_cast<std::uint32_t>(best);
      }
      if (progress) progress(static_cast<double>(begin + rows) / static_cast<double>(numbers.size()));
    });
  }

  // Moves centres to the mean of their documents, removes those without any. Returns the mean movement, as 1 - cosine.
  double recenter(const DocumentNumbers& numbers, const std::vector<std::uint32_t>& labels) {
    std::vector<double> sums(centers_.size());
    sizes_.assign(clusters(), 0);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const float* const e = documents_.embedding(numbers[i]);
      double* const sum = sums.data() + std::size_t{labels[i]} * depth_;
      for (std::size_t k = 0; k < depth_; ++k) sum[k] += double{e[k]};
      ++sizes_[labels[i]];
    }
    double moved = 0;
    std::size_t kept = 0;
    for (std::size_t c = 0; c < sizes_.size(); ++c) {
      if (sizes_[c] == 0) continue;
      std::vector<float> mean(center(c), center(c) + depth_);
      direction_of(sums.data() + c * depth_, mean.data());
      moved += 1 - double{inner_product(mean.data(), center(c), depth_)};
      std::copy(mean.begin(), mean.end(), centers_.begin() + static_cast<std::ptrdiff_t>(kept * depth_));
      sizes_[kept++] = sizes_[c];
    }
    centers_.resize(kept * depth_);
    sizes_.resize(kept);
    return moved / static_cast<double>(kept);
  }

  // Merges centres that are nearer than delta, the largest first.
  void merge() {
    std::vector<std::size_t> order(clusters());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return sizes_[a] > sizes_[b]; });
    std::vector<float> kept;
    std::vector<double> sums;
    for (const std::size_t c : order) {
      const float* const own = center(c);
      const auto size = static_cast<double>(sizes_[c]);
      std::size_t into = 0;
      while (into * depth_ < kept.size() &&
             inner_product(own, kept.data() + into * depth_, depth_) <= static_cast<float>(options_.delta))
        ++into;
      if (into * depth_ == kept.size()) {
        append_row(own, depth_, kept);
        sums.resize(kept.size());
      }
      for (std::size_t k = 0; k < depth_; ++k) sums[into * depth_ + k] += size * double{own[k]};
      direction_of(sums.data() + into * depth_, kept.data() + into * depth_);
    }
    centers_ = std::move(kept);
  }

  std::size_t clusters() const { return centers_.size() / depth_; }

 private:
  const float* center(std::size_t c) const { return centers_.data() + c * depth_; }

  // Leaves `to` unchanged if the sum has no direction.
  void direction_of(const double* sum, float* to) const {
    const double squares = std::inner_product(sum, sum + depth_, sum, 0.0);
    if (squares <= 0) return;
    const double scale = 1 / std::sqrt(squares);
    for (std::size_t k = 0; k < depth_; ++k) to[k] = static_cast<float>(sum[k] * scale);
  }

  void set_centers(const DocumentNumbers& at) {
    centers_.clear();
    for (const std::uint32_t d : at) append_row(documents_.embedding(d), depth_, centers_);
  }

  // Calls visit(first, number, products with all centres) for blocks of documents.
  template <class Visit>
  void for_blocks(const DocumentNumbers& numbers, Visit visit) {
    constexpr std::size_t kBlock = 240;
    std::vector<float> rows, products;
    for (std::size_t begin = 0; begin < numbers.size(); begin += kBlock) {
      const std::size_t end = std::min(begin + kBlock, numbers.size());
      rows.clear();
      for (std::size_t i = begin; i < end; ++i) append_row(documents_.embedding(numbers[i]), depth_, rows);
      inner_products(rows, centers_, depth_, products);
      visit(begin, end - begin, products.data());
    }
  }

  const Documents& documents_;
  const DataSculptOptions& options_;
  std::size_t depth_;
  std::vector<float> centers_;  // [cluster * depth_], of unit length
  std::vector<std::int64_t> sizes_;
};

// The sequences of a cluster, or of a part of one, while they are filled.
class Windows {
 public:
  Windows(const Documents& documents, std::int64_t context, std::size_t count)
      : documents_(documents),
        depth_(static_cast<std::size_t>(documents.dimension())),
        rooms_(count, context),
        open_(count),
        squares_(count),
        weights_(count),
        offers_(count, static_cast<float>(context)),
        totals_(count * depth_),
        contents_(count) {}

  // Distributes pieces, the longest first, cut to the room that is left. Pieces without room go to `left_over`.
  void deal(std::span<const DocumentPart> pieces, std::vector<DocumentPart>& left_over) {
    constexpr std::size_t kBlock = 96;
    const std::size_t windows = contents_.size();
    std::vector<float> rows, products, among;
    for (std::size_t begin = 0; begin < pieces.size(); begin += kBlock) {
      const std::span<const DocumentPart> block = pieces.subspan(begin, std::min(kBlock, pieces.size() - begin));
      if (open_ == 0) {
        left_over.insert(left_over.end(), block.begin(), block.end());
        continue;
      }
      rows.clear();
      for (const DocumentPart& piece : block) append_row(documents_.embedding(piece.document), depth_, rows);
      inner_products(rows, totals_, depth_, products);
      inner_products(rows, rows, depth_, among);
      for (std::size_t i = 0; i < block.size(); ++i) {
        if (open_ == 0) {
          left_over.push_back(block[i]);
          continue;
        }
        const std::size_t w = best(products.data() + i * windows);
        take(w, block[i], rows.data() + i * depth_, double{products[i * windows + w]});
        for (std::size_t j = i + 1; j < block.size(); ++j)  // pieces whose products used the sum before this change
          products[j * windows + w] += among[i * block.size() + j];
      }
    }
  }

  void append_to(Packing& packing) const {
    for (const std::vector<DocumentPart>& pieces : contents_) {
      if (pieces.empty()) continue;
      packing.pieces.insert(packing.pieces.end(), pieces.begin(), pieces.end());
      packing.ends.push_back(packing.pieces.size());
    }
  }

 private:
  // The sequence of largest cosine to its mean x room, sum . e / |sum| x room; the cosine with an empty sequence is 1.
  std::size_t best(const float* products) const {
    std::size_t at = 0;
    float most = -std::numeric_limits<float>::infinity();
    for (std::size_t w = 0; w < weights_.size(); ++w)
      if (const float score = products[w] * weights_[w] + offers_[w]; score > most) {
        most = score;
        at = w;
      }
    return at;
  }

  void take(std::size_t w, DocumentPart piece, const float* e, double product) {
    piece.tokens = static_cast<std::int32_t>(std::min<std::int64_t>(piece.tokens, rooms_[w]));
    contents_[w].push_back(piece);
    rooms_[w] -= piece.tokens;
    squares_[w] += 2 * product + 1;
    for (std::size_t k = 0; k < depth_; ++k) totals_[w * depth_ + k] += e[k];
    weights_[w] = squares_[w] > 0 ? static_cast<float>(static_cast<double>(rooms_[w]) / std::sqrt(squares_[w])) : 0.0f;
    offers_[w] = 0;
    if (rooms_[w] > 0) return;
    weights_[w] = 0;
    offers_[w] = -std::numeric_limits<float>::infinity();
    --open_;
  }

  const Documents& documents_;
  std::size_t depth_;
  std::vector<std::int64_t> rooms_;
  std::size_t open_;                     // number of windows with room
  std::vector<double> squares_;          // |sum|^2
  std::vector<float> weights_, offers_;  // score = product x weight + offer
  std::vector<float> totals_;            // [window * depth_]: sums of embeddings
  std::vector<std::vector<DocumentPart>> contents_;
};

// Time grows with the square of the windows; beyond this number pieces are dealt to several parts in turn.
constexpr std::size_t kMostWindows = 512;

// Packs the pieces of one cluster, the longest first.
void pack_cluster(const Documents& documents, std::span<const DocumentPart> pieces, Packing& packing,
                  std::vector<DocumentPart>& left_over) {
  std::int64_t tokens = 0;
  for (const DocumentPart& piece : pieces) tokens += piece.tokens;
  const auto windows = static_cast<std::size_t>(tokens / packing.context);
  if (windows == 0) {
    left_over.insert(left_over.end(), pieces.begin(), pieces.end());
    return;
  }
  if (windows > kMostWindows) {
    const std::size_t parts = (windows + kMostWindows - 1) / kMostWindows;
    std::vector<DocumentPart> part;
    for (std::size_t p = 0; p < parts; ++p) {
      part.clear();
      for (std::size_t i = p; i < pieces.size(); i += parts) part.push_back(pieces[i]);
      pack_cluster(documents, part, packing, left_over);
    }
    return;
  }
  // As many pieces as fill the windows, plus as many as there are windows.
  std::size_t kept = 0;
  for (std::int64_t sum = 0; kept < pieces.size(); ++kept)
    if ((sum += pieces[kept].tokens) > static_cast<std::int64_t>(windows) * packing.context) break;
  kept = std::min(pieces.size(), kept + windows);
  Windows filled(documents, packing.context, windows);
  filled.deal(pieces.first(kept), left_over);
  left_over.insert(left_over.end(), pieces.begin() + static_cast<std::ptrdiff_t>(kept), pieces.end());
  filled.append_to(packing);
}

}  // namespace

std::vector<std::uint32_t> cluster(const Documents& documents, const DataSculptOptions& options,
                                   const std::function<void(std::string_view, double)>& progress) {
  DocumentNumbers all(static_cast<std::size_t>(documents.count()));
  std::iota(all.begin(), all.end(), 0u);
  std::vector<std::uint32_t> labels;
  Clustering clustering(documents, options);
  {
    const DocumentNumbers sample = sampled(all, kMostSampled, options.seed, SculptDraw::sample);
    clustering.found(sample);
    for (std::int64_t t = 0; t < options.iterations; ++t) {
      clustering.assign(sample, labels, {});
      const double moved = clustering.recenter(sample, labels);
      clustering.merge();
      if (moved < options.epsilon) break;
    }
  }
  clustering.assign(all, labels, [&](double done) {
    if (progress) progress("clustering", done);
  });
  // New numbers of clusters, without those that no document has joined.
  std::vector<std::uint32_t> numbers(clustering.clusters());
  for (const std::uint32_t label : labels) numbers[label] = 1;
  std::exclusive_scan(numbers.begin(), numbers.end(), numbers.begin(), 0u);
  for (std::uint32_t& label : labels) label = numbers[label];
  return labels;
}

void pack_datasculpt(const Documents& documents, const PackingOptions& options, Packing& packing) {
  const std::vector<std::uint32_t> labels = cluster(documents, options.datasculpt, options.progress);
  const std::size_t clusters = std::size_t{*std::max_element(labels.begin(), labels.end())} + 1;
  std::vector<std::size_t> ends(clusters);
  for (const std::uint32_t label : labels) ++ends[label];
  std::size_t begin = 0;
  for (std::size_t& end : ends) begin += std::exchange(end, begin);
  DocumentNumbers members(labels.size());
  for (std::size_t d = 0; d < labels.size(); ++d) members[ends[labels[d]]++] = static_cast<std::uint32_t>(d);
  std::vector<DocumentPart> pieces, left_over;
  begin = 0;
  for (std::size_t c = 0; c < clusters; ++c) {
    pieces.clear();
    for (; begin < ends[c]; ++begin) append_pieces(documents, members[begin], options.context, pieces);
    sort_longest_first(pieces);
    pack_cluster(documents, pieces, packing, left_over);
    if (options.progress) options.progress("packing", static_cast<double>(begin) / static_cast<double>(members.size()));
  }
  append_best_fit(std::move(left_over), packing);
}

}  // namespace orrery
