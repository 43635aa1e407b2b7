// Does `orrery galvatron` print one result in all its forms, and say in a sentence what it cannot use?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/command.h"

namespace orrery {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST(Galvatron, AllFormsHaveTheAuthorsPlan) {
  Workplace place;
  const std::string command = "galvatron swin-huge-8-titan --memory 12 --batches 64 ";
  const auto table = place.orrery(command + "--json out.json --csv out.csv");
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("2-1-4 x 11 | 2-2-2* x 1, 2-1-4 x 17, 2-1-4f x 1, 2-4-1 x 2"));
  EXPECT_THAT(table.out, HasSubstr("22 of the 34"));
  EXPECT_THAT(place.read("out.csv"), HasSubstr("2,true,64,3,"));
  const json rows = json::parse(place.read("out.json"));
  ASSERT_EQ(rows.size(), 4U);
  const json& best = rows[1];
  EXPECT_TRUE(best["best"].get<bool>());
  EXPECT_EQ(best["stages"][1]["layers"].size(), 21U);
  EXPECT_EQ(best["stages"][1]["layers"][0], "2-2-2*");
}

TEST(Galvatron, SaysWhatDoesNotFit) {
  Workplace place;
  const auto result = place.orrery("galvatron t5-large-8-titan --memory 2");
  EXPECT_EQ(result.code, 1) << result.err;
  EXPECT_THAT(result.out, HasSubstr("MiB at batch 8"));
  EXPECT_THAT(result.out, HasSubstr("outside the layers"));
}

TEST(Galvatron, RefusesWhatItCannotUse) {
  Workplace place;
  const std::string command = "galvatron bert-huge-8-titan --memory 12 ";
  for (const auto& [options, said] : {std::pair("--system dp+ddp", "did you mean"),
                                      {"--hybrid 2-2-2", "pipeline-tensor-data"},
                                      {"--hybrid 2-1-8", "product is 8"},
                                      {"--layers 4,4", "2 counts"},
                                      {"--layers 0", "--layers"},
                                      {"--batches 8,x", "whole numbers"},
                                      {"--set batch_stop=8", "batch_step"}}) {
    const auto result = place.orrery(command + options);
    EXPECT_EQ(result.code, 2) << options;
    EXPECT_THAT(result.err, HasSubstr(said)) << options;
  }
}

}  // namespace
}  // namespace orrery
