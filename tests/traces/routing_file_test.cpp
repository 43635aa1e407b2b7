// Are files of routing read as what was written, and refused with file and line where they are not whole or no routing?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/traces/drawn_routing.h"
#include "tests/traces/routing_csv.h"
#include "traces/routing.h"

namespace orrery {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

// The example of docs/traces.md.
const std::string kPerRank =
    "# routing steps=500,501 layers=1 source_ranks=2 top_k=2\n"
    "step,layer,source_rank,tokens,expert_0,expert_1,expert_2\n"
    "500,1,0,8,8,5,3\n"
    "500,1,1,8,7,8,1\n"
    "501,1,0,8,8,6,2\n"
    "501,1,1,8,8,8,0\n";
const std::string kPerLayer =
    "{\"format\":\"orrery-routing\",\"steps\":[0],\"layers\":[3,4],\"experts\":4,\"top_k\":1}\n"
    "{\"step\":0,\"layer\":3,\"tokens\":16,\"counts\":[9,4,2,1]}\n"
    "{\"step\":0,\"layer\":4,\"tokens\":16,\"counts\":[4,4,4,4]}\n";

std::string refusal(const std::string& text) {
  try {
    parse_routing(text, "trace");
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}
std::string replaced(std::string text, const std::string& what, const std::string& with) {
  const std::size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), with);
}

TEST(RoutingFile, IsReadBySourceRank) {
  const RoutingCounts counts = parse_routing(kPerRank, "trace");
  EXPECT_THAT(counts.shape().steps, ElementsAre(500, 501));
  EXPECT_THAT(counts.shape().layers, ElementsAre(1));
  EXPECT_EQ(counts.shape().source_ranks, 2);
  EXPECT_EQ(counts.shape().top_k, 2);
  EXPECT_THAT(counts.matrix(0, 0).tokens, ElementsAre(8, 5, 3, 7, 8, 1));
  EXPECT_THAT(counts.matrix(1, 0).tokens, ElementsAre(8, 6, 2, 8, 8, 0));
}

TEST(RoutingFile, IsReadOfAllRanksTogether) {
  const RoutingCounts counts = parse_routing(kPerLayer, "trace");
  EXPECT_THAT(counts.shape().layers, ElementsAre(3, 4));
  EXPECT_EQ(counts.shape().source_ranks, 1);
  EXPECT_THAT(counts.matrix(0, 0).tokens, ElementsAre(9, 4, 2, 1));
  EXPECT_EQ(parse_routing(replaced(kPerRank, "\n500", "\r\n500"), "trace").rows(), 4) << "lines of Windows";
}

TEST(RoutingFile, IsReadAsWritten) {
  for (const std::int64_t micro_batches : {1, 3})
    for (const std::int64_t ranks : {1, 2}) {
      RoutingGenerator g = generator_of(ExpertRouting::young_router);
      g.layers = 2;
      g.micro_batches = micro_batches;
      g.source_ranks = ranks;
      g.tokens = 300;
      g.experts = 8;
      g.top_k = 2;
      const RoutingCounts counts = drawn_routing(g, 3);
      EXPECT_EQ(parse_routing(routing_csv(counts), "csv"), counts);
    }
}

TEST(RoutingFile, ThatIsCutAnywhereIsRefused) {
  for (const std::string& whole : {kPerRank, kPerLayer}) {
    EXPECT_EQ(refusal(whole), "accepted");
    for (std::size_t bytes = 0; bytes < whole.size(); ++bytes)
      EXPECT_THAT(refusal(whole.substr(0, bytes)), StartsWith("trace: line ")) << bytes;
  }
  EXPECT_EQ(
      refusal(kPerRank.substr(0, kPerRank.size() - 3)),
      "trace: line 6: found \"501,1,1,8,8,8\" without an end of line, expected a whole line: the trace is truncated");
  EXPECT_EQ(
      refusal(kPerRank.substr(0, kPerRank.find("501,1,1,"))),
      "trace: line 6: found the end of the trace after 3 rows, expected 4 rows; next step 501, layer 1, source rank 1");
}

TEST(RoutingFile, ThatIsNoRoutingIsRefusedWithItsLine) {
  EXPECT_EQ(refusal(replaced(kPerRank, "7,8,1\n", "7,8,2\n")),
            "trace: line 4: found counts that add up to 17, expected 16, 2 for each of 8 tokens");
  EXPECT_EQ(refusal(replaced(kPerRank, "8,8,5,3\n", "8,8,9,-1\n")),
            "trace: line 3: found 9 tokens for expert 1, expected 0 to 8, the tokens that are routed");
  EXPECT_EQ(refusal(replaced(kPerRank, "8,8,5,3\n", "8,8,8,-1\n")),
            "trace: line 3: found -1 tokens for expert 2, expected 0 to 8, the tokens that are routed");
  EXPECT_EQ(refusal(replaced(kPerRank, "8,8,5,3\n", "8,8,5,3,0\n")), "trace: line 3: found 8 columns, expected 7");
  EXPECT_EQ(refusal(replaced(kPerRank, "8,8,5,3\n", "8,8,5.0,3\n")),
            "trace: line 3: found \"5.0\", expected a whole number");
  EXPECT_EQ(refusal(replaced(kPerRank, "layers=1", "layers=1-2")),
            "trace: line 5: found step 501, layer 1, source rank 0, expected step 500, layer 2, source rank 0");
  EXPECT_EQ(refusal(kPerRank + "502,1,0,8,8,8,0\n"),
            "trace: line 7: found \"502,1,0,8,8,8,0\", expected the end of the trace after 4 rows");
  EXPECT_EQ(refusal(replaced(kPerRank, "expert_1", "expert_3")),
            "trace: line 2: found \"expert_3\", expected the column expert_1");
  EXPECT_EQ(refusal(replaced(kPerRank, ",source_rank", "")),
            "trace: line 2: found \"tokens\", expected the column source_rank");
  EXPECT_EQ(refusal(replaced(kPerRank, "top_k=2", "top_k=4")),
            "trace: line 2: found top_k 4, expected 1 to the 3 experts");
  EXPECT_THAT(refusal(replaced(kPerRank, " top_k=2", "")), HasSubstr("expected top_k=.."));
  EXPECT_THAT(refusal(replaced(kPerRank, "steps=500,501", "steps=9-0")), HasSubstr("found steps=9-0"));
  EXPECT_THAT(refusal(replaced(kPerRank, "steps=500,501", "steps=0-9999999999")), HasSubstr("at most 4194304 numbers"));
  EXPECT_THAT(refusal(replaced(kPerRank, "source_ranks", "ranks")), HasSubstr("line 1: found \"ranks=2\""));
  EXPECT_THAT(refusal("step,layer\n"), HasSubstr("expected \"# routing steps="));

  EXPECT_EQ(refusal(replaced(kPerLayer, "[9,4,2,1]", "[9,4,3]")),
            "trace: line 2: found counts of 3 experts, expected counts of 4 experts");
  EXPECT_EQ(refusal(replaced(kPerLayer, "[9,4,2,1]", "[9,4,2,1.5]")),
            "trace: line 2: /counts/3: found 1.5, expected an integer of at least 0");
  EXPECT_EQ(refusal(replaced(kPerLayer, "[9,4,2,1]", "[9,4,2,18446744073709551615]")),
            "trace: line 2: /counts/3: found 18446744073709551615, expected an integer of at least 0");
  EXPECT_EQ(refusal(replaced(kPerLayer, "\"tokens\":16", "\"token\":16")),
            "trace: line 2: /token: found the unknown key \"token\", expected a known key (did you mean \"tokens\"?)");
  EXPECT_EQ(refusal(replaced(kPerLayer, "\"layer\":4", "\"layer\":3")),
            "trace: line 3: found step 0, layer 3, expected step 0, layer 4");
  EXPECT_THAT(refusal(replaced(kPerLayer, "\"experts\":4,", "")), HasSubstr("line 1: /experts: found nothing"));
  EXPECT_THAT(refusal(replaced(kPerLayer, "\"step\":0,", "\"step\":0")), HasSubstr("line 2"));
}

// Behind the largest number there is none that a loop could end at.
TEST(RoutingFile, TheLargestNumberEndsARange) {
  const std::string largest = "9223372036854775807";
  for (const std::string& steps : {"500," + largest, "500," + largest + "-" + largest}) {
    std::string text = replaced(kPerRank, "steps=500,501", "steps=" + steps);
    for (int row = 0; row < 2; ++row) text = replaced(text, "\n501,", "\n" + largest + ",");
    EXPECT_THAT(parse_routing(text, "trace").shape().steps, ElementsAre(500, INT64_MAX));
  }
  EXPECT_THAT(refusal(replaced(kPerRank, "layers=1", "layers=" + largest)), HasSubstr("expected step 500, layer 9223"));
  EXPECT_THAT(refusal(replaced(kPerRank, "layers=1", "layers=0-" + largest)), HasSubstr("at most 4194304 numbers"));
}

TEST(RoutingFile, ThatIsMissingIsRefused) { EXPECT_THROW(read_routing("/nowhere/trace.csv"), InputError); }

}  // namespace
}  // namespace orrery
