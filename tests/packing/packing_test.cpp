// Does packing keep every token that it does not say it drops, and is each policy what it is called?
#include "traces/packing/packing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "traces/packing/document_generator.h"
#include "traces/random_bits.h"

namespace orrery {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Policy = PackingPolicy;

enum class TestDraw : std::uint64_t { lengths, numbers };

Documents of_tokens(const std::vector<std::int64_t>& tokens) {
  Documents documents;
  for (const std::int64_t n : tokens) documents.append(n);
  return documents;
}

Packing packed(const Documents& documents, std::int64_t context, Policy policy) {
  return pack(documents, {.context = context, .policy = policy});
}

// Of each sequence the tokens of its pieces.
std::vector<std::vector<std::int64_t>> lengths_of(const Packing& packing) {
  std::vector<std::vector<std::int64_t>> all;
  for (std::int64_t s = 0; s < packing.sequences(); ++s) {
    all.emplace_back();
    for (const DocumentPart& piece : packing.sequence(s)) all.back().push_back(piece.tokens);
  }
  return all;
}

class EachPolicy : public testing::TestWithParam<Policy> {};
INSTANTIATE_TEST_SUITE_P(Policies, EachPolicy,
                         testing::Values(Policy::pad, Policy::concat, Policy::first_fit_decreasing,
                                         Policy::best_fit_decreasing, Policy::best_fit, Policy::datasculpt),
                         [](const auto& policy) {
                           return std::string(kPackingPolicyNames[static_cast<std::size_t>(policy.param)]);
                         });

TEST_P(EachPolicy, PutsEachTokenInOnePlaceOrCountsIt) {
  for (const std::uint64_t seed : {1u, 2u, 3u})
    for (const std::int64_t context : {64, 1000, 4096}) {
      const Documents documents = generate_documents(
          {.count = 700, .lengths = "log-normal:5.5:1.5", .dimension = 8, .topics = 5, .seed = seed});
      const Packing packing = packed(documents, context, GetParam());
      std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> places(700);
      std::int64_t kept = 0, padding = 0;
      for (std::int64_t s = 0; s < packing.sequences(); ++s) {
        std::int64_t sum = 0;
        for (const DocumentPart& piece : packing.sequence(s)) {
          ASSERT_GT(piece.tokens, 0);
          places[piece.document].emplace_back(piece.first, piece.first + piece.tokens);
          sum += piece.tokens;
        }
        ASSERT_GT(sum, 0);
        ASSERT_LE(sum, context);
        kept += sum;
        padding += context - sum;
      }
      std::int64_t truncated = 0;
      for (std::int64_t d = 0; d < documents.count(); ++d) {
        auto& own = places[static_cast<std::size_t>(d)];
        std::sort(own.begin(), own.end());
        for (std::size_t i = 0; i < own.size(); ++i) {
          ASSERT_LE(i == 0 ? 0 : own[i - 1].second, own[i].first);
          ASSERT_LE(own[i].second, documents.tokens(d));
        }
        truncated += own.size() == 1 && own[0] == std::pair<std::int64_t, std::int64_t>(0, documents.tokens(d)) ? 0 : 1;
      }
      const PackingMeasures m = measures(documents, packing);
      EXPECT_EQ(m.dropped_tokens, documents.all_tokens() - kept);
      EXPECT_EQ(m.truncated, truncated);
      EXPECT_EQ(m.padding_tokens, padding);
      EXPECT_EQ(m.sequences, packing.sequences());
      if (GetParam() == Policy::concat || GetParam() == Policy::best_fit) {
        EXPECT_EQ(m.dropped_tokens, 0);
      }
      EXPECT_EQ(packing, packed(documents, context, GetParam()));
    }
}

TEST_P(EachPolicy, TakesTheSmallestCases) {
  Documents documents;
  documents.append(1);
  documents.append_embedding(std::vector<float>{1});
  EXPECT_THAT(lengths_of(packed(documents, 1, GetParam())), ElementsAre(ElementsAre(1)));
  EXPECT_THAT(lengths_of(packed(documents, 1 << 20, GetParam())), ElementsAre(ElementsAre(1)));
  EXPECT_THROW(packed({}, 8, GetParam()), InputError);
  EXPECT_THROW(packed(documents, 0, GetParam()), InputError);
  EXPECT_THROW(packed(documents, PackingOptions::kMostContext + 1, GetParam()), InputError);
}

TEST(Packing, DoesWhatEachPolicyIsCalled) {
  const Documents documents = of_tokens({6, 25, 4, 5, 3});
  EXPECT_THAT(lengths_of(packed(documents, 10, Policy::pad)),
              ElementsAre(ElementsAre(6), ElementsAre(10), ElementsAre(4), ElementsAre(5), ElementsAre(3)));
  EXPECT_THAT(lengths_of(packed(documents, 10, Policy::concat)),
              ElementsAre(ElementsAre(6, 4), ElementsAre(10), ElementsAre(10), ElementsAre(1, 4, 5), ElementsAre(3)));
  EXPECT_THAT(lengths_of(packed(documents, 10, Policy::first_fit_decreasing)),
              ElementsAre(ElementsAre(10), ElementsAre(6, 4), ElementsAre(5, 3)));
  EXPECT_THAT(lengths_of(packed(documents, 10, Policy::best_fit)),
              ElementsAre(ElementsAre(10), ElementsAre(10), ElementsAre(6, 4), ElementsAre(5, 5), ElementsAre(3)));
}

// 8 fits behind 70 and, with less room left, behind 55 and 35.
TEST(Packing, BestFitTakesTheLeastRoomAndFirstFitTheFirst) {
  const Documents documents = of_tokens({70, 55, 35, 8});
  EXPECT_THAT(lengths_of(packed(documents, 100, Policy::first_fit_decreasing)),
              ElementsAre(ElementsAre(70, 8), ElementsAre(55, 35)));
  EXPECT_THAT(lengths_of(packed(documents, 100, Policy::best_fit_decreasing)),
              ElementsAre(ElementsAre(70), ElementsAre(55, 35, 8)));
}

// Against all sequences tried one after the other, over contexts of one, two and three levels of the tree.
TEST(Packing, TheTreeFindsWhatAScanFinds) {
  for (const std::int64_t context : {50, 700, 5000, 300'000}) {
    RandomBits random(7, TestDraw::lengths, {context});
    std::vector<std::int64_t> tokens;
    for (int i = 0; i < 500; ++i) tokens.push_back(1 + random.below(context));
    const auto got = lengths_of(packed(of_tokens(tokens), context, Policy::best_fit));
    std::sort(tokens.begin(), tokens.end(), std::greater<>());
    std::vector<std::int64_t> rooms;
    for (const std::int64_t n : tokens) {
      std::size_t best = rooms.size();
      for (std::size_t b = 0; b < rooms.size(); ++b)
        if (rooms[b] >= n && (best == rooms.size() || rooms[b] < rooms[best])) best = b;
      if (best == rooms.size()) rooms.push_back(context);
      rooms[best] -= n;
    }
    std::vector<std::int64_t> got_rooms;
    for (const auto& sequence : got) {
      got_rooms.push_back(context);
      for (const std::int64_t n : sequence) got_rooms.back() -= n;
    }
    std::sort(rooms.begin(), rooms.end());
    std::sort(got_rooms.begin(), got_rooms.end());
    EXPECT_EQ(got_rooms, rooms) << context;
  }
}

TEST(Packing, BestFitTruncatesOnlyWhatIsLongerThanTheContext) {
  for (const char* lengths : {"web-en", "code", "datasculpt", "wikipedia"})
    for (const std::int64_t context : {1024, 4096, 16384}) {
      const Documents documents = generate_documents({.count = 2000, .lengths = lengths});
      const auto best = measures(documents, packed(documents, context, Policy::best_fit));
      const auto concat = measures(documents, packed(documents, context, Policy::concat));
      std::int64_t longer = 0;
      for (std::int64_t d = 0; d < documents.count(); ++d) longer += documents.tokens(d) > context ? 1 : 0;
      EXPECT_EQ(best.truncated, longer);
      EXPECT_LE(best.truncated, concat.truncated);
      EXPECT_GE(best.sequences, concat.sequences);
    }
}

// The fewest sequences, by trying all.
std::int64_t fewest(const std::vector<std::int64_t>& tokens, std::int64_t context) {
  std::int64_t best = static_cast<std::int64_t>(tokens.size());
  std::vector<std::int64_t> rooms;
  const std::function<void(std::size_t)> place = [&](std::size_t next) {
    if (static_cast<std::int64_t>(rooms.size()) >= best) return;
    if (next == tokens.size()) {
      best = static_cast<std::int64_t>(rooms.size());
      return;
    }
    for (std::size_t b = 0; b < rooms.size(); ++b)
      if (rooms[b] >= tokens[next]) {
        rooms[b] -= tokens[next];
        place(next + 1);
        rooms[b] += tokens[next];
      }
    rooms.push_back(context - tokens[next]);
    place(next + 1);
    rooms.pop_back();
  };
  place(0);
  return best;
}

// Johnson 1973: at most 11/9 of the fewest, and one.
TEST(Packing, DecreasingFitsAreNearTheOptimum) {
  for (std::int64_t round = 0; round < 200; ++round) {
    RandomBits random(11, TestDraw::lengths, {round});
    std::vector<std::int64_t> tokens;
    for (int i = 0; i < 9; ++i) tokens.push_back(5 + random.below(60));
    const std::int64_t optimum = fewest(tokens, 100);
    for (const Policy policy : {Policy::first_fit_decreasing, Policy::best_fit_decreasing, Policy::best_fit}) {
      const std::int64_t sequences = packed(of_tokens(tokens), 100, policy).sequences();
      EXPECT_GE(sequences, optimum);
      EXPECT_LE(9 * sequences, 11 * optimum + 9);
    }
  }
}

TEST(Packing, MeasuresAreWhatTheyAreCalled) {
  Documents documents = of_tokens({60, 40, 150});
  documents.append_embedding(std::vector<float>{2, 0});
  documents.append_embedding(std::vector<float>{3, 4});
  documents.append_embedding(std::vector<float>{0, 1});
  const PackingMeasures m = measures(documents, packed(documents, 100, Policy::best_fit_decreasing));
  EXPECT_EQ(m.sequences, 2);  // 100 of 150, 60 and 40
  EXPECT_EQ(m.dropped_tokens, 50);
  EXPECT_EQ(m.truncated, 1);
  EXPECT_EQ(m.padding_tokens, 0);
  EXPECT_DOUBLE_EQ(m.pieces, 1.5);
  EXPECT_EQ(m.most_pieces, 2);
  EXPECT_NEAR(m.attention_share, (1 + 0.52) / 2, 1e-12);
  EXPECT_NEAR(m.largest_attention_share, 1, 1e-12);
  EXPECT_NEAR(m.similarity, 0.6, 1e-6);
  const PackingMeasures padded = measures(documents, packed(documents, 100, Policy::pad));
  EXPECT_NEAR(padded.padding_share(), 100.0 / 300, 1e-12);
  EXPECT_FALSE(padded.has_similarity);
}

// ---- DataSculpt

// Of so many topics along axes, each document near its own.
Documents of_topics(std::int64_t topics, std::int64_t each, std::int64_t tokens) {
  Documents documents;
  for (std::int64_t d = 0; d < topics * each; ++d) {
    documents.append(tokens);
    std::vector<float> e(static_cast<std::size_t>(topics), 0.05f);
    e[static_cast<std::size_t>(d % topics)] = 1 + 0.01f * static_cast<float>(d / topics);
    documents.append_embedding(e);
  }
  return documents;
}

TEST(DataSculpt, FindsObviousClusters) {
  const Documents documents = of_topics(4, 12, 25);
  const std::vector<std::uint32_t> labels = cluster(documents, {});
  EXPECT_EQ(std::set<std::uint32_t>(labels.begin(), labels.end()), (std::set<std::uint32_t>{0, 1, 2, 3}));
  for (std::size_t d = 0; d < labels.size(); ++d) EXPECT_EQ(labels[d], labels[d % 4]);
  const Packing packing = packed(documents, 100, Policy::datasculpt);
  EXPECT_EQ(packing.sequences(), 12);
  for (std::int64_t s = 0; s < packing.sequences(); ++s) {
    EXPECT_EQ(packing.sequence(s).size(), 4u);
    for (const DocumentPart& piece : packing.sequence(s))
      EXPECT_EQ(piece.document % 4, packing.sequence(s)[0].document % 4);
  }
  EXPECT_GT(measures(documents, packing).similarity, 0.99);
  EXPECT_LT(measures(documents, packed(documents, 100, Policy::concat)).similarity, 0.2);
}

// Unlike all others, so that one centre is drawn: whoever it is far from founds a cluster.
TEST(DataSculpt, FarDocumentsFoundClustersOfTheirOwn) {
  constexpr std::size_t kAlone = 6;
  Documents documents = of_tokens(std::vector<std::int64_t>(kAlone, 10));
  for (std::size_t d = 0; d < kAlone; ++d) {
    std::vector<float> direction(kAlone, 0);
    direction[d] = 1;
    documents.append_embedding(direction);
  }
  const std::vector<std::uint32_t> labels = cluster(documents, {});
  EXPECT_EQ(std::set<std::uint32_t>(labels.begin(), labels.end()).size(), kAlone);
}

// Within one cluster (delta -1): each document goes where cosine times room is largest.
TEST(DataSculpt, DealsByCosineTimesRoom) {
  Documents documents = of_tokens({60, 50, 30, 20, 40});
  for (const auto& e : {std::vector<float>{1, 0}, {0, 1}, {0, 1}, {1, 0}, {0.9f, 0.1f}}) documents.append_embedding(e);
  const Packing packing = pack(documents, {.context = 100, .policy = Policy::datasculpt, .datasculpt = {.delta = -1}});
  // 60 and 50 open a window each (an empty one has cosine 1 and all its room), 40 goes to 60, which is full; 30 and 20
  // to 50.
  ASSERT_EQ(packing.sequences(), 2);
  EXPECT_THAT(lengths_of(packing), ElementsAre(ElementsAre(60, 40), ElementsAre(50, 30, 20)));
}

TEST(DataSculpt, CutsToTheRoomAndPacksWhatIsLeftOver) {
  Documents documents = of_tokens({90, 80, 60, 3});
  for (int i = 0; i < 4; ++i) documents.append_embedding(std::vector<float>{1, 0});
  const Packing packing = packed(documents, 100, Policy::datasculpt);  // two windows for 233 tokens
  EXPECT_THAT(lengths_of(packing), ElementsAre(ElementsAre(90, 3), ElementsAre(80, 20)));
  EXPECT_EQ(measures(documents, packing).dropped_tokens, 40);
  Documents few = of_tokens({40, 30});  // no window's worth: best fit
  few.append_embedding(std::vector<float>{1, 0});
  few.append_embedding(std::vector<float>{0, 1});
  EXPECT_THAT(lengths_of(packed(few, 100, Policy::datasculpt)), ElementsAre(ElementsAre(40, 30)));
}

TEST(DataSculpt, TakesEmbeddingsOfEachDocument) {
  Documents documents = of_tokens({1, 2});
  documents.append_embedding(std::vector<float>{1, 0});
  EXPECT_THROW(packed(documents, 8, Policy::datasculpt), InputError);
  EXPECT_THROW(documents.append_embedding(std::vector<float>{1, 0, 0}), InputError);
  EXPECT_THROW(documents.append_embedding(std::vector<float>{0, 0}), InputError);
  EXPECT_THROW(documents.append_embedding(std::vector<float>{NAN, 0}), InputError);
}

// Several parts of 512 windows, and more documents than the sample.
TEST(DataSculpt, SimilarDocumentsMeetInLargeSets) {
  const Documents documents =
      generate_documents({.count = 20000, .lengths = "log-normal:5:0.5", .dimension = 16, .topics = 3});
  const PackingMeasures sculpted = measures(documents, packed(documents, 1024, Policy::datasculpt));
  EXPECT_GT(sculpted.similarity, 0.6);
  EXPECT_LT(measures(documents, packed(documents, 1024, Policy::best_fit)).similarity, 0.45);
  EXPECT_LT(sculpted.padding_share(), 0.01);
}

TEST(InnerProducts, AreThoseOfPairs) {
  for (const std::size_t depth : {1u, 7u, 64u, 600u})
    for (const std::size_t count : {1u, 16u, 35u}) {
      RandomBits random(3, TestDraw::numbers, {});
      std::vector<float> a(13 * depth), b(count * depth), products(7, 99);
      for (float& x : b) x = static_cast<float>(random.normal());
      for (float& x : a) x = static_cast<float>(random.normal());
      inner_products(a, b, depth, products);
      ASSERT_EQ(products.size(), 13 * count);
      for (std::size_t i = 0; i < 13; ++i)
        for (std::size_t j = 0; j < count; ++j)
          EXPECT_NEAR(products[i * count + j], inner_product(a.data() + i * depth, b.data() + j * depth, depth), 1e-4);
    }
}

// ---- What is drawn

// Tables of DataSculpt's figure, of MagiAttention's file and of FlexSP's. The generator draws from these very tables, so this
// holds the drawing, not the tables.
TEST(DocumentGenerator, HistogramsAreThePublishedOnes) {
  const auto shares = [](const char* lengths, const std::vector<std::int32_t>& edges) {
    const Documents documents = generate_documents({.count = 100000, .lengths = lengths});
    std::vector<double> percent(edges.size() + 1);
    for (std::int64_t d = 0; d < documents.count(); ++d)
      percent[static_cast<std::size_t>(std::upper_bound(edges.begin(), edges.end(), documents.tokens(d)) -
                                       edges.begin())] += 100.0 / 100000;
    return percent;
  };
  const auto near = [](const std::vector<double>& expected) {
    std::vector<testing::Matcher<double>> all;
    for (const double e : expected) all.push_back(testing::DoubleNear(e, 0.5));
    return all;
  };
  const std::vector<std::int32_t> domain{4096, 8192, 16384, 32768, 65536};
  EXPECT_THAT(shares("book-en", domain), testing::ElementsAreArray(near({2.55, 2.07, 3.68, 6.31, 13.86, 71.52})));
  EXPECT_THAT(shares("paper-en", domain), testing::ElementsAreArray(near({4.94, 14.59, 33.66, 31.12, 12.58, 3.12})));
  EXPECT_THAT(shares("web-en", domain), testing::ElementsAreArray(near({96.63, 2.36, 0.76, 0.20, 0.04, 0.01})));
  EXPECT_THAT(shares("magi-attention", {11, 51, 101, 201, 501, 1025, 2049, 4097}),
              testing::ElementsAreArray(near({0.22, 2.91, 5.2, 10.23, 28.19, 24.64, 15.65, 7.34, 5.64})));
  EXPECT_THAT(shares("wikipedia", {1025, 2049, 4097, 8193}),
              testing::ElementsAreArray(near({78.81, 10.84, 5.96, 2.80, 1.60})));
}

double mean_drawn(const char* lengths) {
  const Documents documents = generate_documents({.count = 200000, .lengths = lengths});
  return static_cast<double>(documents.all_tokens()) / 200000;
}

// No mean of DataSculpt's mixture is published: this one is of another program's draw from the same histograms, 120,503
// documents of 120.2 M tokens.
TEST(DocumentGenerator, TheMixturesMeanIsThatOfASyntheticReference) {
  EXPECT_NEAR(mean_drawn("datasculpt"), 998, 60);
}

TEST(DocumentGenerator, MeansAreThePublishedOnes) {
  const auto mean = mean_drawn;
  EXPECT_NEAR(mean("wikipedia"), 1013.6, 40);
  EXPECT_NEAR(mean("web-en"), 752, 60);  // published; how lengths lie within bins is not, which makes 6 % of it
  EXPECT_NEAR(mean("log-normal:6:1"), std::exp(6.5) - 0.5, 10);
  for (const char* lengths : {"wikipedia", "web-en", "code", "log-normal:6:1", "web-en=3,code=1"})
    EXPECT_NEAR(mean(lengths) / length_distribution(lengths, false).mean(), 1, 0.05) << lengths;
}

// Also where most of the distribution is cut off, at either end.
TEST(DocumentGenerator, MeansOfLogNormalsAreTheirIntegrals) {
  for (const auto& [least, most] : {std::pair{1.0, 1e6}, {300.0, 1e6}, {1.0, 500.0}, {350.0, 800.0}}) {
    const LengthBin bin{.least = least, .most = most, .shape = LengthBin::Shape::log_normal, .a = 6, .b = 0.7};
    double tokens = 0, all = 0;
    constexpr int kSteps = 20000;
    for (int i = 0; i < kSteps; ++i) {
      const double x = std::log(least) + (i + 0.5) / kSteps * std::log(most / least), z = (x - bin.a) / bin.b;
      tokens += std::exp(x - z * z / 2);
      all += std::exp(-z * z / 2);
    }
    EXPECT_NEAR(bin.mean() / (tokens / all), 1, 1e-6) << least << " to " << most;
  }
}

TEST(DocumentGenerator, WeightsAreOfTokensOrOfDocuments) {
  const auto share_of_long = [](bool by_documents) {
    const Documents documents = generate_documents(
        {.count = 20000, .lengths = "log-normal:3:0.1=1,log-normal:7:0.1=3", .by_documents = by_documents});
    double longer = 0, tokens = 0;
    for (std::int64_t d = 0; d < documents.count(); ++d)
      if (documents.tokens(d) > 200) {
        longer += 1;
        tokens += documents.tokens(d);
      }
    return by_documents ? longer / 20000 : tokens / static_cast<double>(documents.all_tokens());
  };
  EXPECT_NEAR(share_of_long(true), 0.75, 0.02);
  EXPECT_NEAR(share_of_long(false), 0.75, 0.03);
}

TEST(DocumentGenerator, EmbeddingsLieAroundTopics) {
  const Documents documents = generate_documents({.count = 3000, .dimension = 128, .topics = 1, .similarity = 0.8});
  double sum = 0;
  for (std::int64_t d = 1; d < documents.count(); ++d)
    sum += inner_product(documents.embedding(d - 1), documents.embedding(d), 128);
  EXPECT_NEAR(sum / 2999, 0.64, 0.02);
  const Documents fewer = generate_documents({.count = 5, .dimension = 128, .topics = 1, .similarity = 0.8});
  EXPECT_EQ(fewer.tokens(4), documents.tokens(4));
  EXPECT_EQ(fewer.embedding(4)[7], documents.embedding(4)[7]);
}

TEST(DocumentGenerator, RefusesWhatItDoesNotKnow) {
  for (const char* lengths : {"", "web-english", "web-en=0", "web-en=x", "log-normal", "log-normal:5",
                              "log-normal:5:-1", "log-normal:5:1:2", "web-en,,code"})
    EXPECT_THROW(length_distribution(lengths, false), InputError) << lengths;
  EXPECT_THROW(generate_documents({.count = 0}), InputError);
  EXPECT_THROW(generate_documents({.count = 1, .similarity = 1}), InputError);
}

}  // namespace
}  // namespace orrery
