#include "traces/packing/document_generator.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "sim/base/json_reader.h"
#include "traces/random_bits.h"

namespace orrery {
namespace {

enum class DocumentDraw : std::uint64_t { length, topic, embedding };
using Shape = LengthBin::Shape;

double below_normal(double z) { return std::erfc(-z / std::sqrt(2.0)) / 2; }

void normalise_shares(std::vector<LengthBin>& bins) {
  double sum = 0;
  for (const LengthBin& bin : bins) sum += bin.share;
  for (LengthBin& bin : bins) bin.share /= sum;
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
  return LengthDistribution{{{.least = 1,
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

const nlohmann::json& published() {
  static const nlohmann::json file = parse_embedded("traces/packing/lengths.json");
  return file;
}

// One of lengths.json that is a histogram.
LengthDistribution histogram(const nlohmann::json& said) {
  const std::vector<double> edges = published().at("edges").at(said.at("edges").get_ref<const std::string&>()),
                            documents = said.at("documents"), tokens = said.value("tokens", std::vector<double>());
  LengthDistribution d;
  for (std::size_t i = 0; i < documents.size(); ++i) {
    if (documents[i] == 0) continue;
    LengthBin bin{.least = edges[i], .most = edges[i + 1], .share = documents[i]};
    if (!tokens.empty()) {
      // + 0.5, as draws are rounded down.
      const double mean = said.at("mean").get<double>() * tokens[i] / documents[i] + 0.5;
      bin.shape = Shape::power;
      bin.a = (bin.most - bin.least) / (mean - bin.least) - 1;
    } else if (i == 0 && said.contains("log_normal")) {
      bin.shape = Shape::log_normal;
      bin.a = said["log_normal"][0];
      bin.b = said["log_normal"][1];
    } else if (i == 0) {
      bin.least = said.value("least", bin.least);
    }
    d.bins.push_back(bin);
  }
  return d;
}

LengthDistribution named(std::string_view name, bool by_documents) {
  if (auto d = log_normal(name)) return *d;
  const nlohmann::json& all = published().at("distributions");
  const auto said = std::ranges::find_if(all, [&](const nlohmann::json& d) { return d.at("name") == name; });
  if (said == all.end()) {
    const std::vector<std::string> names = length_distribution_names();
    throw InputError({"--lengths", ""}, fmt::format("\"{}\"", name),
                     fmt::format("log-normal:MU:SIGMA or one of {}", fmt::join(names, ", ")),
                     nearest_name(name, names));
  }
  LengthDistribution d;
  if (said->contains("mixture")) {
    for (const nlohmann::json& part : said->at("mixture"))
      add_part(d, named(part[0].get_ref<const std::string&>(), by_documents), part[1], by_documents);
  } else {
    d = histogram(*said);
  }
  normalise_shares(d.bins);
  return d;
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
  for (const nlohmann::json& said : published().at("distributions")) names.push_back(said.at("name"));
  return names;
}

LengthDistribution length_distribution(std::string_view text, bool by_documents) {
  LengthDistribution all;
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
