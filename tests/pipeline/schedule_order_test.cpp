// Is every schedule a valid order, and the order of its paper?
#include <gmock/gmock.h>

#include <map>
#include <tuple>

#include "tests/pipeline/pipeline_cases.h"

namespace orrery::pipeline_parallel {
namespace {

std::vector<Slot> slots_of(const StageOrder& order) {
  std::vector<Slot> slots;
  order.for_each([&](const Slot& slot) { slots.push_back(slot); });
  return slots;
}

// "F0 F1 B0.1": chunk after the dot unless 0.
std::string text_of(const StageOrder& order) {
  std::string text;
  order.for_each([&](const Slot& slot) {
    text += (text.empty() ? "" : " ") + std::string(1, "FBW"[static_cast<int>(slot.kind)]) +
            std::to_string(slot.micro_batch);
    if (slot.chunk > 0) text += "." + std::to_string(slot.chunk);
  });
  return text;
}

TEST(ScheduleOrder, RunsEachSlotExactlyOnceAndAfterWhatItNeedsOfItsStage) {
  for (const ScheduleKind kind : kAllKinds)
    for (std::int64_t p = 1; p <= 9; ++p)
      for (std::int64_t m = 1; m <= 40; ++m)
        for (std::int64_t v = 2; v <= (kind == ScheduleKind::interleaved ? 4 : 2); ++v) {
          if (schedule_limit(kind, p, chunks_of(kind, v), m)) continue;
          SCOPED_TRACE(name_of(kind) + " p=" + std::to_string(p) + " m=" + std::to_string(m) +
                       " v=" + std::to_string(v));
          const Schedule schedule = schedule_of(kind, p, m, v);
          ASSERT_EQ(schedule.stages.size(), p);
          for (std::size_t s = 0; s < schedule.stages.size(); ++s) {
            std::map<std::tuple<SlotKind, int, std::uint32_t>, int> runs;
            const std::vector<Slot> slots = slots_of(schedule.order(s));
            for (const Slot& slot : slots) {
              ASSERT_LT(slot.micro_batch, m);
              ASSERT_LT(slot.chunk, schedule.chunks);
              if (slot.kind == SlotKind::backward) {
                ASSERT_EQ((runs[{SlotKind::forward, slot.chunk, slot.micro_batch}]), 1);
              }
              if (slot.kind == SlotKind::weight_gradient) {
                ASSERT_EQ((runs[{SlotKind::backward, slot.chunk, slot.micro_batch}]), 1);
              }
              ASSERT_EQ(++(runs[{slot.kind, slot.chunk, slot.micro_batch}]), 1);
            }
            ASSERT_EQ(slots.size(), schedule.chunks * m * (schedule.split_backward ? 3 : 2));
            // Dependencies between stages: the plain walk throws unless every slot can run.
            PipelineClock clock;
            ASSERT_NO_THROW(PipelineWalker().walk_plain(schedule, uniform_costs(schedule, 1, 1, 1).view(), clock));
          }
        }
}

TEST(ScheduleOrder, IndexingAgreesWithIteration) {
  for (const ScheduleKind kind : kAllKinds) {
    const Schedule schedule = schedule_of(kind, 4, 16, 3);
    for (std::size_t s = 0; s < 4; ++s) {
      const StageOrder order = schedule.order(s);
      const std::vector<Slot> slots = slots_of(order);
      for (std::size_t i = 0; i < slots.size(); ++i) EXPECT_EQ(order.at(i), slots[i]) << name_of(kind) << " " << i;
    }
  }
}

TEST(ScheduleOrder, GpipeRunsAllForwardsFirst) {
  EXPECT_EQ(text_of(schedule_of(ScheduleKind::gpipe, 4, 3).order(2)), "F0 F1 F2 B0 B1 B2");
}

// Narayanan et al. 2021, figure 4 (top), p = 4, m = 8.
TEST(ScheduleOrder, OneFOneBIsPipeDreamFlush) {
  const Schedule schedule = schedule_of(ScheduleKind::one_f_one_b, 4, 8);
  EXPECT_EQ(text_of(schedule.order(0)), "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7");
  EXPECT_EQ(text_of(schedule.order(3)), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7");
}

// Narayanan et al. 2021, figure 4 (bottom), p = 4, m = 8, v = 2.
TEST(ScheduleOrder, InterleavedIsMegatrons) {
  const Schedule schedule = schedule_of(ScheduleKind::interleaved, 4, 8, 2);
  EXPECT_EQ(text_of(schedule.order(0)),
            "F0 F1 F2 F3 F0.1 F1.1 F2.1 F3.1 F4 F5 F6 B0.1 F7 B1.1 F4.1 B2.1 F5.1 B3.1 F6.1 B0 F7.1 B1 B2 B3 B4.1 B5.1 "
            "B6.1 B7.1 B4 B5 B6 B7");
  EXPECT_EQ(text_of(schedule.order(3)),
            "F0 F1 F2 F3 F0.1 B0.1 F1.1 B1.1 F2.1 B2.1 F3.1 B3.1 F4 B0 F5 B1 F6 B2 F7 B3 F4.1 B4.1 F5.1 B5.1 F6.1 B6.1 "
            "F7.1 B7.1 B4 B5 B6 B7");
}

// Megatron-LM's schedules.py: no 1F1B phase when there is one group of micro-batches.
TEST(ScheduleOrder, InterleavedWithOneGroupRunsAllForwardsFirst) {
  EXPECT_EQ(text_of(schedule_of(ScheduleKind::interleaved, 2, 2, 2).order(1)), "F0 F1 F0.1 F1.1 B0.1 B1.1 B0 B1");
}

// Qi et al. 2024 (Zero Bubble), figure 3 (top): the last of 4 stages first runs 4 backwards before a weight gradient.
TEST(ScheduleOrder, ZbH1DelaysWeightGradientsByTheStage) {
  const Schedule schedule = schedule_of(ScheduleKind::zb_h1, 4, 8);
  EXPECT_EQ(text_of(schedule.order(0)), "F0 F1 F2 F3 B0 W0 F4 B1 W1 F5 B2 W2 F6 B3 W3 F7 B4 W4 B5 W5 B6 W6 B7 W7");
  EXPECT_EQ(text_of(schedule.order(3)), "F0 B0 F1 B1 F2 B2 F3 B3 W0 F4 B4 W1 F5 B5 W2 F6 B6 W3 F7 B7 W4 W5 W6 W7");
}

TEST(ScheduleOrder, ZbVRunsDownAndUpTheStages) {
  const Schedule schedule = schedule_of(ScheduleKind::zb_v, 4, 8);
  for (std::size_t s = 0; s < 4; ++s) {
    EXPECT_EQ(schedule.position_of(s, 0), s);
    EXPECT_EQ(schedule.position_of(s, 1), 7 - s);
  }
  EXPECT_THAT(text_of(schedule.order(0)), testing::StartsWith("F0 F1 F2 F3 F4 F5 F6 F0.1 B0.1 W0.1 F1.1 B1.1 W1.1"));
  EXPECT_THAT(text_of(schedule.order(3)), testing::StartsWith("F0 F0.1 F1 F1.1 F2 F2.1 F3 F3.1 B0.1 W0.1 F4 B0 W0"));
}

TEST(ScheduleOrder, SizeDoesNotGrowWithMicroBatches) {
  for (const ScheduleKind kind : kAllKinds) {
    const std::size_t few = schedule_of(kind, 8, 64, 3).segments.size();
    EXPECT_EQ(schedule_of(kind, 8, 6400, 3).segments.size(), few) << name_of(kind);
  }
}

TEST(ScheduleOrder, RebuildingKeepsTheStorage) {
  Schedule schedule;
  build_schedule(ScheduleKind::interleaved, 16, 4, 64, schedule);
  const Segment* storage = schedule.segments.data();
  for (const ScheduleKind kind : kAllKinds) {
    build_schedule(kind, 8, chunks_of(kind, 2), 32, schedule);
    EXPECT_EQ(schedule.segments.data(), storage) << name_of(kind);
    EXPECT_EQ(schedule.segments.size(), schedule_of(kind, 8, 32, 2).segments.size());
  }
}

TEST(ScheduleLimits, NameTheFieldAndWhatItMustHold) {
  const auto limit = schedule_limit(ScheduleKind::interleaved, 8, 2, 12);
  ASSERT_TRUE(limit);
  EXPECT_STREQ(limit->field, "global_batch_size");
  EXPECT_EQ(limit->found, "12 micro-batches");
  EXPECT_THAT(limit->expected, testing::HasSubstr("multiple of the 8 pipeline stages"));
  EXPECT_FALSE(schedule_limit(ScheduleKind::interleaved, 8, 2, 16));
  EXPECT_STREQ(schedule_limit(ScheduleKind::interleaved, 8, 1, 16)->field, "virtual_pipeline");
  EXPECT_STREQ(schedule_limit(ScheduleKind::zb_v, 8, 3, 16)->field, "virtual_pipeline");
  EXPECT_STREQ(schedule_limit(ScheduleKind::gpipe, 8, 2, 16)->field, "virtual_pipeline");
  EXPECT_STREQ(schedule_limit(ScheduleKind::gpipe, 8, 1, 0)->field, "global_batch_size");
  Schedule schedule;
  EXPECT_THROW(build_schedule(ScheduleKind::interleaved, 8, 2, 12, schedule), std::logic_error);
}

TEST(SplitLayers, AreEvenWhenTheyDivide) {
  Options options;
  options.degree = 4;
  EXPECT_THAT(split_layers(32, options), testing::ElementsAre(8, 8, 8, 8));
  options.virtual_stages = 2;
  EXPECT_EQ(effective_schedule(options), ScheduleKind::interleaved);
  EXPECT_THAT(split_layers(32, options), testing::Each(4));
  EXPECT_EQ(split_layers(32, options).size(), 8);
}

// Llama 3 405B: 126 layers, 16 stages; first and last have one layer fewer (arXiv 2407.21783, section 3.3.2).
TEST(SplitLayers, PutTheRestInTheMiddle) {
  Options options;
  options.degree = 16;
  const std::vector<std::int64_t> split = split_layers(126, options);
  EXPECT_EQ(split.front(), 7);
  EXPECT_EQ(split.back(), 7);
  EXPECT_THAT(std::vector<std::int64_t>(split.begin() + 1, split.end() - 1), testing::Each(8));
}

// Megatron-LM's --account-for-embedding-in-pipeline-split and --account-for-loss-in-pipeline-split: the same layout.
TEST(SplitLayers, CountEmbeddingAndHeadAsLayers) {
  Options options;
  options.degree = 16;
  options.embedding_counts_as_layer = options.head_counts_as_layer = true;
  const std::vector<std::int64_t> split = split_layers(126, options);
  EXPECT_EQ(split.front(), 7);
  EXPECT_EQ(split.back(), 7);
  EXPECT_EQ(split[8], 8);
}

TEST(SplitLayers, OfZbVGiveNoStageTwoMoreThanAnother) {
  Options options;
  options.schedule = ScheduleKind::zb_v;
  for (std::int64_t p = 1; p <= 8; ++p)
    for (std::int64_t layers = 2 * p; layers <= 6 * p; ++layers) {
      options.degree = p;
      const std::vector<std::int64_t> split = split_layers(layers, options);
      std::int64_t least = layers, most = 0, sum = 0;
      for (std::int64_t s = 0; s < p; ++s) {
        const std::int64_t of_stage = split[s] + split[2 * p - 1 - s];
        least = std::min(least, of_stage), most = std::max(most, of_stage), sum += of_stage;
      }
      EXPECT_EQ(sum, layers);
      EXPECT_LE(most - least, 1);
      EXPECT_EQ(split[0] + split[2 * p - 1], least);  // the stage that holds embedding and head
    }
}

TEST(SplitLayers, TakeTheUsersNumbers) {
  Options options;
  options.degree = 3;
  options.stage_layers = {5, 8, 3};
  EXPECT_FALSE(options_limit(options, 16));
  EXPECT_THAT(split_layers(16, options), testing::ElementsAre(5, 8, 3));
  EXPECT_EQ(options_limit(options, 17)->found, "16 layers in all");
  options.stage_layers = {8, 8};
  EXPECT_EQ(options_limit(options, 16)->found, "2 numbers");
  options.stage_layers.clear();
  EXPECT_STREQ(options_limit(options, 2)->field, "pipeline_parallel");
  EXPECT_FALSE(options_limit(options, 3));
}

}  // namespace
}  // namespace orrery::pipeline_parallel
