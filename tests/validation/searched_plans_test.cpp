// Does a search find plans as fast as those that experts have published, by the same clock?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "sim/prediction/prediction.h"
#include "sim/search/search.h"
#include "sim/validation/published.h"
#include "strategies/read_scenario.h"

namespace orrery {
namespace {

TEST(SearchedPlans, TieOrBeatThosePublishedByExperts) {
  // Korthikanti et al. 2022, table 5, and NVIDIA's recipes of 2025. Schedules are those that the stack has.
  for (const char* id : {"korth-t5-megatron-22B-selsp", "korth-t5-gpt3-175B-selsp", "korth-t5-mt-nlg-530B-selsp",
                         "korth-t5-megatron-1T-selsp", "dgxc-v25.04-llama3-8b-h100-32-bf16",
                         "dgxc-v25.04-llama3-70b-h100-64-bf16"}) {
    SCOPED_TRACE(id);
    const PublishedPoint* point = find_published(id);
    ASSERT_NE(point, nullptr);
    const Scenario published = read_scenario(*point->scenario, {id, {}});
    Calibrator calibrator;
    const Report report = predict(calibrator.prepare(published));
    ASSERT_TRUE(report.memory_fits);
    SpaceOptions fields;
    fields.over = {{"pipeline_schedule", {"1f1b", "interleaved"}}};
    const SearchResult found = search(Space(published, fields), {.top = 1, .front = 1});
    ASSERT_FALSE(found.best.empty());
    EXPECT_TRUE(found.bounds_held);
    EXPECT_LE(found.best.front().step_seconds, report.step_seconds * (1 + 1e-9));
  }
}

}  // namespace
}  // namespace orrery
