// A batch that replicas do not divide: what is said of it.
#include <gmock/gmock.h>

#include "sim/base/error.h"
#include "strategies/read_scenario.h"
#include "tests/strategies/support.h"

namespace orrery {
namespace {

std::string refusal_of(const nlohmann::json& workload, const nlohmann::json& plan, int nodes) {
  try {
    check(read_scenario({{"model", "llama-3-8b"},
                         {"cluster", {{"node", "dgx-h100"}, {"nodes", nodes}}},
                         {"workload", workload},
                         {"plan", plan}},
                        {"test", {}}));
  } catch (const InputError& error) {
    return error.where().pointer + ": " + error.found() + "; " + error.expected();
  }
  return "";
}

TEST(Batch, ThatReplicasDoNotDivideNamesTheNearestAndTheNearestDevices) {
  const nlohmann::json plan{{"tensor_parallel", 2}, {"micro_batch_size", 2}};
  EXPECT_EQ(refusal_of({{"sequence_length", 2048}, {"global_batch_size", 96}}, plan, 2), "");
  EXPECT_EQ(refusal_of({{"sequence_length", 2048}, {"global_batch_size", 96}}, plan, 5),
            "/workload/global_batch_size: 96; a multiple of 40, the data-parallel degree 20 times micro_batch_size 2: "
            "80 or 120; or 32 or 48 devices");
  EXPECT_EQ(refusal_of({{"sequence_length", 2048}, {"global_batch_size", 6}}, plan, 2),
            "/workload/global_batch_size: 6; a multiple of 16, the data-parallel degree 8 times micro_batch_size 2: 16");
  EXPECT_EQ(refusal_of({{"sequence_length", 2048}, {"global_batch_size", 6}}, plan, 1),
            "/workload/global_batch_size: 6; a multiple of 8, the data-parallel degree 4 times micro_batch_size 2: 8; or "
            "6 devices");
  EXPECT_EQ(refusal_of({{"sequence_length", 2048}, {"global_batch_size", 7}}, plan, 2),
            "/workload/global_batch_size: 7; a multiple of 16, the data-parallel degree 8 times micro_batch_size 2: 16");
}

TEST(Batch, ThatIsNotGivenIsMissing) {
  EXPECT_EQ(refusal_of({{"sequence_length", 2048}}, {{"tensor_parallel", 8}}, 1), "");
  EXPECT_EQ(refusal_of({{"sequence_length", 2048}}, nlohmann::json::object(), 1),
            "/workload/global_batch_size: nothing; sequences a step, a multiple of 8, the data-parallel degree 8 times "
            "micro_batch_size 1");
}

}  // namespace
}  // namespace orrery
