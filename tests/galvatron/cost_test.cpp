// Is the cost of a layer that of the authors' code?
#include "study/galvatron/cost.h"

#include <gtest/gtest.h>

#include "tests/galvatron/profiles.h"

namespace orrery::galvatron {
namespace {

using Json = nlohmann::json;

TEST(GalvatronCost, IsThatOfTheAuthorsCodeToTwelveDigits) {
  constexpr double kSame = 1e-12;
  int vectors = 0;
  const Json data = test_data("layer_vectors.json");
  for (const Json& row : data.at("rows")) {
    const Profile profile = bundled_profile(row.at("profile"));
    const auto of = std::ranges::find(profile.layers, row.at("layers").get<std::string>(), &Layers::name);
    const std::vector<Hybrid> space = hybrids(profile.cluster.devices);
    ASSERT_EQ(space.size(), row.at("seconds").size());
    for (std::size_t i = 0; i < space.size(); ++i, ++vectors) {
      const double seconds = row["seconds"][i], mib = row["memory_mib"][i];
      const std::string where =
          fmt::format("{} {} {} {}", row["profile"].dump(), of->name, text_of(space[i]), row["batch"].get<int>());
      EXPECT_NEAR(layer_seconds(profile, *of, space[i], row["batch"]), seconds, kSame * seconds) << where;
      EXPECT_NEAR(layer_memory(profile, *of, space[i], row["batch"]).total_mib(), mib, kSame * mib) << where;
    }
  }
  EXPECT_EQ(vectors, 8 * 2 * (22 + 37));
}

TEST(GalvatronCost, IsThatOfTheAuthorsOwnRuns) {
  const Json data = test_data("rounded_vectors.json");
  const auto holds = [](const Profile& profile, const Layers& layers, std::int64_t batch, const Json& row,
                        std::size_t column) {
    constexpr double kMs = 1e3, kHalfADigit = 0.50001;
    const Hybrid h = read_hybrid(row[0]);
    EXPECT_NEAR(layer_seconds(profile, layers, h, batch) * kMs, row[column].get<double>(), kHalfADigit * 1e-4)
        << text_of(h);
    const LayerMemory memory = layer_memory(profile, layers, h, batch);
    EXPECT_NEAR(memory.states_mib, row[column + 1].get<double>(), kHalfADigit * 1e-3) << text_of(h);
    EXPECT_NEAR(memory.activation_mib, row[column + 2].get<double>(), kHalfADigit * 1e-3) << text_of(h);
  };
  const Profile bert = bundled_profile("bert-huge-8-titan"), t5 = bundled_profile("t5-large-8-titan"),
                on_sixteen = bundled_profile("bert-huge-16-titan");
  ASSERT_EQ(data["eight"]["rows"].size(), 22U);
  for (const Json& row : data["eight"]["rows"]) {
    holds(bert, bert.layers[0], 16, row, 1);
    holds(t5, t5.layers[1], 16, row, 4);
  }
  ASSERT_EQ(data["sixteen"]["rows"].size(), 37U);
  for (const Json& row : data["sixteen"]["rows"]) holds(on_sixteen, on_sixteen.layers[0], 32, row, 1);
}

// utils/cost_model.py, other_memcost; utils/cost_model_dist.py, other_memcosts.
TEST(GalvatronCost, CountsEmbeddingsAndHeadsAtTheEndsOfAPipeline) {
  const auto at = [](const char* profile, const char* hybrid, std::int64_t batch) {
    return outside_mib(bundled_profile(profile), read_hybrid(hybrid), batch);
  };
  EXPECT_EQ(at("bert-huge-8-titan", "1-2*-4", 16), (std::vector<double>{790 + 300 * 16.0 / 8 + 1024}));
  EXPECT_EQ(at("t5-large-8-titan", "4-1-2", 16), (std::vector<double>{900 + 350 * 16.0 / 2 + 1024, 0, 0, 0}));
  EXPECT_EQ(at("bert-huge-16-titan", "1-1-16", 32), (std::vector<double>{800 + 280 * 2.0 + 1024}));
  // 16 samples in a stage: 4 micro-batches.
  EXPECT_EQ(at("bert-huge-16-titan", "8-1-2", 32),
            (std::vector<double>{620 + 330 * 16.0 / 8 + 1024, 1024, 1024, 1024, 1024, 1024, 1024,
                                 662 + 260 * 16.0 - 120 * 16 * (1 - 1 / 4.0) + 1024}));
  // 32 samples: 2 micro-batches.
  EXPECT_EQ(at("swin-huge-16-titan", "4-1-4", 128),
            (std::vector<double>{47 + 50 * 32.0 - 25 * 32 * 0.5 + 1024, 1024, 1024, 42 + 35 * 32.0 / 4 + 1024}));
}

TEST(GalvatronCost, TakesTheAuthorsMicroBatches) {
  const auto of = [](const char* profile, const char* hybrid, double samples) {
    return micro_batches(bundled_profile(profile), samples, read_hybrid(hybrid));
  };
  EXPECT_EQ(of("bert-huge-8-titan", "1-1-8", 40), 1);
  EXPECT_EQ(of("bert-huge-8-titan", "2-4-1", 24), 6);
  EXPECT_EQ(of("bert-huge-8-titan", "2-2*-2", 5), 2.5);
  EXPECT_EQ(of("bert-huge-8-titan", "2-2*-2", 6), 2.75);
  EXPECT_EQ(of("bert-huge-8-titan", "8-1-1", 8), 3);
  EXPECT_EQ(of("vit-huge-8-titan", "2-1-4", 8), 1);
  EXPECT_EQ(of("vit-huge-8-titan", "2-1-4", 9), 2);
  EXPECT_EQ(of("t5-large-8-titan", "8-1-1", 2), 1);
  EXPECT_EQ(of("t5-large-8-titan", "8-1-1", 8), 3);
  EXPECT_EQ(of("swin-huge-8-titan", "2-1-4", 8), 1);
  EXPECT_EQ(of("swin-huge-8-titan", "2-1-4", 31), 2);
  EXPECT_EQ(of("swin-huge-8-titan", "2-1-4", 96), 3);
  EXPECT_EQ(of("swin-huge-8-titan", "2-1-4", 97), 4);
  EXPECT_EQ(of("bert-huge-16-titan", "2-4*-2", 3), 1);
  EXPECT_EQ(of("bert-huge-16-titan", "2-4*-2", 23), 2);
  EXPECT_EQ(of("vit-huge-16-titan", "16-1-1", 65), 3);
  EXPECT_EQ(of("vit-huge-16-titan", "8-1-2", 65), 5);
}

// utils/dp_utils.py, inter_layer_cost.
TEST(GalvatronCost, ChargesAChangeOfLayoutAndABiasAgainstLeavingShards) {
  const Profile bert = bundled_profile("bert-huge-8-titan");
  const auto change = [&](const char* from, const char* to) {
    return change_seconds(bert, read_hybrid(from), read_hybrid(to), 16);
  };
  EXPECT_EQ(change("1-1-8", "1-1-8"), 0);
  EXPECT_EQ(change("1-1-8", "1-1-8f"), 0);
  EXPECT_EQ(change("1-1-8f", "1-1-8"), 1e-4);
  EXPECT_EQ(change("1-2*-4f", "1-2*-4"), 1e-4);
  EXPECT_DOUBLE_EQ(change("1-1-8f", "1-4*-2"), 3.0 / 4 * 2 * 16 / 2 * 0.226519097e-3);
  EXPECT_DOUBLE_EQ(change("1-2*-4", "1-2-4*"), 1.0 / 2 * 2 * 16 / 4 * 0.271614583e-3);
  EXPECT_DOUBLE_EQ(change("1-4*-2", "1-2-4*"), 1.0 / 2 * 2 * 16 / 4 * 0.271614583e-3);
  EXPECT_EQ(change("1-4*-2", "1-2*-4"), 0);
  EXPECT_EQ(change("1-8-1", "1-2*-4"), 0);
  EXPECT_EQ(change("1-4*-2f", "1-1-8"), 0);
}

}  // namespace
}  // namespace orrery::galvatron
