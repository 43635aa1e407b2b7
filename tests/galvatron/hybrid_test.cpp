// Is the space that of the paper and of its code?
#include "study/galvatron/hybrid.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "sim/base/error.h"

namespace orrery::galvatron {
namespace {

std::vector<std::string> texts_of(const std::vector<Hybrid>& hybrids) {
  std::vector<std::string> texts;
  for (const Hybrid& h : hybrids) texts.push_back(text_of(h));
  return texts;
}

TEST(Hybrids, AreAsManyAsThePaperCounts) {
  EXPECT_EQ(unpruned_hybrids(8), 34);
  EXPECT_EQ(hybrids(8).size(), 22U);
  EXPECT_EQ(hybrids(16).size(), 37U);
  EXPECT_EQ(hybrids(32).size(), 56U);
  EXPECT_EQ(hybrids(64).size(), 79U);
  EXPECT_EQ(hybrids(1).size(), 1U);
  EXPECT_EQ(unpruned_hybrids(1), 1);
}

// The list `strategies` of search_layerwise_hp.py.
TEST(Hybrids, ComeInTheAuthorsOrder) {
  EXPECT_THAT(texts_of(hybrids(8)),
              testing::ElementsAre("1-1-8", "1-1-8f", "1-2-4*", "1-2*-4", "1-2-4f*", "1-2*-4f", "1-4-2*", "1-4*-2",
                                   "1-4-2f*", "1-4*-2f", "1-8-1", "2-1-4", "2-1-4f", "2-2-2*", "2-2*-2", "2-2-2f*",
                                   "2-2*-2f", "2-4-1", "4-1-2", "4-1-2f", "4-2-1", "8-1-1"));
}

// The lists of the same file for its restricted searches.
TEST(Hybrids, OfARestrictedSystemAreThoseOfItsDimensions) {
  const auto of = [](const char* text) { return texts_of(hybrids(8, read_dimensions(text))); };
  EXPECT_THAT(of("dp+tp"), testing::ElementsAre("1-1-8", "1-2-4*", "1-2*-4", "1-4-2*", "1-4*-2", "1-8-1"));
  EXPECT_THAT(of("dp+pp"), testing::ElementsAre("1-1-8", "2-1-4", "4-1-2", "8-1-1"));
  EXPECT_THAT(of("dp"), testing::ElementsAre("1-1-8"));
  EXPECT_THAT(of("tp"), testing::ElementsAre("1-8-1"));
  EXPECT_THAT(of("pp"), testing::ElementsAre("8-1-1"));
  EXPECT_THAT(of("sdp"), testing::ElementsAre("1-1-8f"));
  EXPECT_EQ(of("pp+sdp+dp+tp"), texts_of(hybrids(8)));
}

TEST(Hybrids, ReadWhatTheyWrite) {
  for (const std::int64_t devices : {1, 8, 64})
    for (const Hybrid& h : hybrids(devices)) EXPECT_EQ(read_hybrid(text_of(h)), h) << text_of(h);
  for (const char* wrong :
       {"", "1-2", "1-2-4", "1-2*-4*", "1-1*-8", "1-8-1f", "0-1-8", "1-3-8", "1-2*-4x", "1-2*-f4", "1-1-8-1", "-1-1-8"})
    EXPECT_THROW(read_hybrid(wrong), InputError) << wrong;
  for (const char* wrong : {"", "ddp", "dp+", "dp tp"}) EXPECT_THROW(read_dimensions(wrong), InputError) << wrong;
}

TEST(Hybrids, AreShownInRuns) {
  const Hybrid a = read_hybrid("2-1-4"), b = read_hybrid("2-2-2*");
  EXPECT_EQ(runs_text({a, a, b, a}), "2-1-4 x 2, 2-2-2* x 1, 2-1-4 x 1");
  EXPECT_EQ(runs_text({}), "");
}

}  // namespace
}  // namespace orrery::galvatron
