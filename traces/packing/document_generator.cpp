#include "traces/packing/document_generator.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "traces/random_bits.h"

namespace orrery {
namespace {

enum class DocumentDraw : std::uint64_t { length, topic, embedding };
using Shape = LengthBin::Shape;

double below_normal(double z) { return std::erfc(-z / std::sqrt(2.0)) / 2; }

// DataSculpt's figure of document lengths (Lu et al. 2024, arXiv 2409.00997): % below 4K, 8K, 16K, 32K, 64K tokens and
// above, and % of the mixture. Lengths below 4K follow a log-normal that fits the histogram, cut at 4K (`mu`, `sigma`).
// If none fits, they are log-uniform from 256 on (an assumption).
struct Domain {
  const char* name;
  double percent[6];
  double mixture_percent;
  double mu, sigma;  // sigma 0: no log-normal fits
};
constexpr Domain kDomains[] = {
    {"book-zh", {2.06, 1.55, 2.61, 4.29, 10.02, 79.46}, 6.5, 0, 0},
    {"book-en", {2.55, 2.07, 3.68, 6.31, 13.86, 71.52}, 6.5, 0, 0},
    {"paper-en", {4.94, 14.59, 33.66, 31.12, 12.58, 3.12}, 8.5, 9.6, 0.8},
    {"code", {92.36, 3.88, 1.86, 0.92, 0.47, 0.50}, 25, 4.2, 2.75},
    {"paper-zh", {26.04, 51.88, 20.24, 1.71, 0.11, 0.02}, 3.5, 8.5, 0.7},
    {"web-en", {96.63, 2.36, 0.76, 0.20, 0.04, 0.01}, 31.5, 5.5, 1.5},
    {"web-zh", {99.02, 0.73, 0.21, 0.04, 0, 0}, 13.5, 5.4, 1.15},
    {"others", {99.99, 0.01, 0, 0, 0, 0}, 5, 5.8, 0.65},
};
constexpr double kDomainEdges[] = {1, 4096, 8192, 16384, 32768, 65536, 262144};  // the last edge is an assumption

// The default of MagiAttention's generator: numbers of documents by length.
constexpr double kMagiEdges[] = {1, 11, 51, 101, 201, 501, 1025, 2049, 4097, 8193, 16385, 32769, 65537, 131073, 196609};
constexpr double kMagiCounts[] = {30254,  391188, 699596, 1377757, 3794735, 3316785, 2106566,
                                  988525, 410002, 173574, 115007,  18428,   22513,   18284};

// A million documents of Wikipedia from FlexSP: % of documents and of tokens up to a length, and their mean.
constexpr double kWikipediaEdges[] = {1, 1025, 2049, 4097, 8193, 16385, 32769, 65537, 131073, 196609, 393217};
constexpr double kWikipediaDocuments[] = {78.8087, 10.8382, 5.9582, 2.7959, 1.1221,
                                          0.3465,  0.1027,  0.0228, 0.003,  0.0017};
constexpr double kWikipediaTokens[] = {24.9078, 15.3741, 16.7303, 15.5232, 12.3396,
                                       7.5714,  4.4697,  1.9666,  0.4893,  0.3993};
constexpr double kWikipediaMean = 1013.6;

void normalise_shares(std::vector<LengthBin>& bins) {
  double sum = 0;
  for (const LengthBin& bin : bins) sum += bin.share;
  for (LengthBin& bin : bins) bin.share /= sum;
}

LengthDistribution of_domain(const Domain& domain) {
  LengthDistribution d{domain.name, {}};
  for (std::size_t i = 0; i < std::size(domain.percent); ++i) {
    if (domain.percent[i] == 0) continue;
    LengthBin bin{.least = kDomainEdges[i], .most = kDomainEdges[i + 1], .share = domain.percent[i]};
    if (i == 0 && domain.sigma > 0) {
      bin.shape = Shape::log_normal;
      bin.a = domain.mu;
      bin.b = domain.sigma;
    } else if (i == 0) {
      bin.least = 256;
    }
    d.bins.push_back(bin);
  }
  normalise_shares(d.bins);
  return d;
}

LengthDistribution magi_attention() {
  LengthDistribution d{"magi-attention", {}};
  for (std::size_t i = 0; i < std::size(kMagiCounts); ++i)
    d.bins.push_back({.least = kMagiEdges[i], .most = kMagiEdges[i + 1], .share = kMagiCounts[i]});
  normalise_shares(d.bins);
  return d;
}

// Within a bin: a power of a uniform number, with the mean that the bin's shares of documents and tokens give.
LengthDistribution wikipedia() {
  LengthDistribution d{"wikipedia", {}};
  for (std::size_t i = 0; i < std::size(kWikipediaDocuments); ++i) {
    LengthBin bin{.least = kWikipediaEdges[i],
                  .most = kWikipediaEdges[i + 1],
                  .share = kWikipediaDocuments[i],
                  .shape = Shape::power};
    // + 0.5, as draws are rounded down.
    const double mean = kWikipediaMean * kWikipediaTokens[i] / kWikipediaDocuments[i] + 0.5;
    bin.a = (bin.most - bin.least) / (mean - bin.least) - 1;
    d.bins.push_back(bin);
  }
  normalise_shares(d.bins);
  return d;
}

std::optional<LengthDistribution> log_normal(std::string_view text) {
  constexpr std::string_view kName = "log-normal:";
  if (!text.starts_with(kName)) return {};
  const char *at = text.data() + kName.size(), *const end = text.data() + text.size();
  double mu = 0, sigma = 0;
  auto parsed = std::from_chars(at, end, mu);
  const bool colon = parsed.ec == std::errc() && parsed.ptr != end && *parsed.ptr == ':';
  if (colon) parsed = std::from_chars(parsed.ptr + 1, end, sigma);
  constexpr double kMostMu = 16, kMostSigma = 4;  // exp(16): 9 million
  if (!colon || parsed.ec != std::errc() || parsed.ptr != end || !(mu >= 0 && mu <= kMostMu) ||
      !(sigma >= 0 && sigma <= kMostSigma))
    throw InputError({"--lengths", ""}, fmt::format("\"{}\"", text),
                     "log-normal:MU:SIGMA, of the logarithm of tokens: mean 0 to 16, standard deviation 0 to 4");
  return LengthDistribution{std::string(text),
                            {{.least = 1,
                              .most = static_cast<double>(Documents::kMostTokens),
                              .shape = Shape::log_normal,
                              .a = mu,
                              .b = sigma}}};
}

void add_part(LengthDistribution& to, const LengthDistribution& part, double weight, bool by_documents) {
  const double documents = by_documents ? weight : weight / part.mean();
  for (LengthBin bin : part.bins) {
    bin.share *= documents;
    to.bins.push_back(bin);
  }
}

LengthDistribution datasculpt_mixture(bool by_documents) {
  LengthDistribution all{"datasculpt", {}};
  for (const Domain& domain : kDomains) add_part(all, of_domain(domain), domain.mixture_percent, by_documents);
  normalise_shares(all.bins);
  return all;
}

LengthDistribution named(std::string_view name, bool by_documents) {
  if (auto d = log_normal(name)) return *d;
  for (const Domain& domain : kDomains)
    if (name == domain.name) return of_domain(domain);
  if (name == "datasculpt") return datasculpt_mixture(by_documents);
  if (name == "magi-attention") return magi_attention();
  if (name == "wikipedia") return wikipedia();
  const std::vector<std::string> names = length_distribution_names();
  throw InputError({"--lengths", ""}, fmt::format("\"{}\"", name),
                   fmt::format("log-normal:MU:SIGMA or one of {}", fmt::join(names, ", ")), nearest_name(name, names));
}

std::int64_t drawn_length(const LengthBin& bin, RandomBits& random) {
  double x = bin.least;
  switch (bin.shape) {
    case Shape::log_uniform:
      x = bin.least * std::pow(bin.most / bin.least, random.uniform());
      break;
    case Shape::power:
      x = bin.least + (bin.most - bin.least) * std::pow(random.uniform(), bin.a);
      break;
    case Shape::log_normal:
      do x = std::exp(bin.a + bin.b * random.normal());
      while (x < bin.least || x >= bin.most);
      break;
  }
  return static_cast<std::int64_t>(std::min(std::floor(x), bin.most - 1));
}

// Draws topics, then documents: the document's topic plus noise of evenly spread bytes.
void draw_embeddings(const DocumentGenerator& g, Documents& documents) {
  const auto dimension = static_cast<std::size_t>(g.dimension);
  std::vector<float> topics(static_cast<std::size_t>(g.topics) * dimension);
  for (std::int64_t t = 0; t < g.topics; ++t) {
    RandomBits random(g.seed, DocumentDraw::topic, {t});
    float* const topic = topics.data() + static_cast<std::size_t>(t) * dimension;
    double squares = 0;
    std::vector<double> numbers(dimension);
    for (double& n : numbers) {
      n = random.normal();
      squares += n * n;
    }
    for (std::size_t k = 0; k < dimension; ++k)
      topic[k] = static_cast<float>(numbers[k] * (squares > 0 ? g.similarity / std::sqrt(squares) : 1));
  }
  constexpr double kByteVariance = (256.0 * 256 - 1) / 12;
  const auto scale = static_cast<float>(
      std::sqrt((1 - g.similarity * g.similarity) / (static_cast<double>(dimension) * kByteVariance)));
  const std::span<float> embeddings = documents.make_embeddings(g.count, g.dimension);
  for (std::int64_t d = 0; d < g.count; ++d) {
    RandomBits random(g.seed, DocumentDraw::embedding, {d});
    const float* const topic = topics.data() + static_cast<std::size_t>(random.below(g.topics)) * dimension;
    float* const e = embeddings.data() + static_cast<std::size_t>(d) * dimension;
    std::uint64_t bytes = 0;
    for (std::size_t k = 0; k < dimension; ++k, bytes >>= 8) {
      if (k % 8 == 0) bytes = random.next();
      e[k] = topic[k] + scale * (static_cast<float>(bytes & 255) - 127.5f);
    }
    documents.normalise(d);
  }
}

}  // namespace

double LengthBin::mean() const {
  switch (shape) {
    case Shape::log_uniform:
      return (most - least) / std::log(most / least);
    case Shape::power:
      return least + (most - least) / (a + 1);
    case Shape::log_normal:
      break;
  }
  if (b == 0) return std::exp(a);
  const double low = (std::log(least) - a) / b, high = (std::log(most) - a) / b;
  return std::exp(a + b * b / 2) * (below_normal(high - b) - below_normal(low - b)) /
         (below_normal(high) - below_normal(low));
}

double LengthDistribution::mean() const {
  double sum = 0;
  for (const LengthBin& bin : bins) sum += bin.share * bin.mean();
  return sum;
}

std::vector<std::string> length_distribution_names() {
  std::vector<std::string> names;
  for (const Domain& domain : kDomains) names.emplace_back(domain.name);
  for (const char* other : {"datasculpt", "magi-attention", "wikipedia"}) names.emplace_back(other);
  return names;
}

LengthDistribution length_distribution(std::string_view text, bool by_documents) {
  LengthDistribution all{std::string(text), {}};
  for (std::string_view rest = text;;) {
    const std::size_t comma = rest.find(',');
    const std::string_view part = rest.substr(0, comma);
    const std::size_t equals = part.find('=');
    double weight = 1;
    if (equals != std::string_view::npos) {
      const std::string_view number = part.substr(equals + 1);
      const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), weight);
      if (error != std::errc() || end != number.data() + number.size() || !(weight > 0 && weight < 1e9))
        throw InputError({"--lengths", ""}, fmt::format("\"{}\"", part), "NAME=WEIGHT with a weight above 0");
    }
    add_part(all, named(part.substr(0, equals), by_documents), weight, by_documents);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  normalise_shares(all.bins);
  return all;
}

Documents generate_documents(const DocumentGenerator& g) {
  const auto integer = [](const char* field, std::int64_t value, std::int64_t least, std::int64_t most) {
    if (value < least || value > most)
      throw InputError({"", fmt::format("/{}", field)}, std::to_string(value), fmt::format("{} to {}", least, most));
  };
  integer("count", g.count, 1, Documents::kMostDocuments);
  integer("dimension", g.dimension, 0, Documents::kMostDimension);
  integer("topics", g.topics, 1, DocumentGenerator::kMostTopics);
  if (!(g.similarity >= 0 && g.similarity < 1))
    throw InputError({"", "/similarity"}, fmt::format("{}", g.similarity), "0 to below 1");
  const LengthDistribution lengths = length_distribution(g.lengths, g.by_documents);
  Documents documents;
  for (std::int64_t d = 0; d < g.count; ++d) {
    RandomBits random(g.seed, DocumentDraw::length, {d});
    double u = random.uniform();
    std::size_t bin = 0;
    while (bin + 1 < lengths.bins.size() && u >= lengths.bins[bin].share) u -= lengths.bins[bin++].share;
    documents.append(drawn_length(lengths.bins[bin], random));
  }
  if (g.dimension > 0) draw_embeddings(g, documents);
  return documents;
}

}  // namespace orrery
