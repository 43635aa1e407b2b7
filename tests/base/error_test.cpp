// Does the error say its sentence, and does "did you mean" name what was meant - and nothing when nothing is near?
#include "sim/base/error.h"

#include <gtest/gtest.h>

namespace orrery {
namespace {

TEST(InputErrorText, IsOneSentence) {
  const InputError error({"scenario.json", "/plan/tensor_parallel"}, "3", "a divisor of the 64 attention heads");
  EXPECT_STREQ(error.what(),
               "scenario.json: /plan/tensor_parallel: found 3, expected a divisor of the 64 attention heads");
  const InputError with_nearest({"", "/model"}, "\"lama\"", "a model preset", "llama");
  EXPECT_STREQ(with_nearest.what(), "/model: found \"lama\", expected a model preset (did you mean \"llama\"?)");
}

TEST(InputErrorText, TakesTheFileOfTheEnclosingDocumentOnlyWhenItHasNone) {
  const InputError error({"", "/plan/zero_stage"}, "7", "an integer from 0 to 3", "near");
  EXPECT_EQ(error.in_file("a.json").where().file, "a.json");
  EXPECT_EQ(error.in_file("a.json").in_file("b.json").where().file, "a.json");
  EXPECT_EQ(error.in_file("a.json").nearest(), "near");
  EXPECT_EQ(error.in_file("a.json").where().pointer, "/plan/zero_stage");
}

TEST(NearestName, IsWhatWasMeant) {
  const std::vector<std::string> keys{"tensor_parallel",
                                      "pipeline_parallel",
                                      "context_parallel",
                                      "zero_stage",
                                      "micro_batch_size",
                                      "llama-3-70b",
                                      "h100-sxm-80gb",
                                      "1f1b",
                                      "bf16",
                                      "fp8"};
  EXPECT_EQ(nearest_name("tensor_paralell", keys), "tensor_parallel");
  EXPECT_EQ(nearest_name("TENSOR-PARALLEL", keys), "tensor_parallel");
  EXPECT_EQ(nearest_name("zero-stge", keys), "zero_stage");
  EXPECT_EQ(nearest_name("microbatchsize", keys), "micro_batch_size");
  EXPECT_EQ(nearest_name("llama3-70b", keys), "llama-3-70b");
  EXPECT_EQ(nearest_name("1b1f", keys), "1f1b");
  EXPECT_EQ(nearest_name("bf61", keys), "bf16");
  EXPECT_EQ(nearest_name("tp", keys), "tensor_parallel");
  EXPECT_EQ(nearest_name("h100", keys), "h100-sxm-80gb");
}

TEST(NearestName, IsEmptyWhenNothingIsNear) {
  const std::vector<std::string> keys{"tensor_parallel", "zero_stage", "fp8"};
  EXPECT_EQ(nearest_name("banana", keys), "");
  EXPECT_EQ(nearest_name("", keys), "");
  EXPECT_EQ(nearest_name("x", keys), "");
  EXPECT_EQ(nearest_name("tensor_parallel", std::vector<std::string>{}), "");
  EXPECT_EQ(nearest_name(std::string(5000, 't'), keys), "");
}

TEST(NearestName, SwappedLettersAreOneMistake) {
  EXPECT_EQ(nearest_name("ba", std::vector<std::string>{"ab", "xy"}), "ab");
}

}  // namespace
}  // namespace orrery
