// orrery search as a user meets it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "tests/cli/command.h"

namespace orrery {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr const char* kSmall =
    "search llama-3-70b-512-h100 --set model=llama-3-8b --set cluster.nodes=2 --set workload.global_batch_size=32 ";

TEST(SearchCommand, WritesTheFastestAsAScenarioThatTakesAsLong) {
  Workplace place;
  const CommandResult found = place.orrery(std::string(kSmall) + "--json found.json --best best.json --csv found.csv");
  ASSERT_EQ(found.code, 0) << found.err;
  EXPECT_THAT(found.out, HasSubstr("loses most by"));
  const json answer = json::parse(place.read("found.json"));
  EXPECT_GT(answer["considered"], 1000);
  EXPECT_GT(answer["feasible"], 10);
  EXPECT_GT(answer["seconds"], 0);
  ASSERT_EQ(answer["plans"].size(), 10U);
  const json& best = answer["plans"][0];
  ASSERT_EQ(place.orrery("simulate best.json --json best-report.json").code, 0);
  const json report = json::parse(place.read("best-report.json"));
  EXPECT_EQ(report["step_seconds"], best["step_seconds"]);
  EXPECT_EQ(report["memory"]["peak_bytes"], best["memory"]["peak_bytes"]);
  double most_lost = 0;
  for (const auto& [term, seconds] : report["time"].items())
    if (term != "matmul_seconds" && term != "attention_seconds") most_lost = std::max(most_lost, seconds.get<double>());
  std::array<char, 16> share{};
  std::snprintf(share.data(), share.size(), " %.1f %%", 100 * most_lost / report["step_seconds"].get<double>());
  EXPECT_THAT(best["loses_most_by"].get<std::string>(), testing::EndsWith(share.data()));
  for (const json& plan : answer["plans"]) {
    EXPECT_GE(plan["step_seconds"], best["step_seconds"]);
    EXPECT_TRUE(plan["memory"]["fits"]);
  }
  // A head, the plans and the front.
  const std::string csv = place.read("found.csv");
  EXPECT_EQ(static_cast<std::size_t>(std::count(csv.begin(), csv.end(), '\n')),
            1 + answer["plans"].size() + answer["front"].size());
}

TEST(SearchCommand, PlansBeyondALimitAreRefused) {
  Workplace place;
  const std::string over =
      "search co2 --over local_steps=6,12,24 --over outer_delay=0,1 --fix tensor_parallel --fix pipeline_parallel "
      "--fix context_parallel --json - ";
  const auto staleness_of = [&](const std::string& limit) {
    const CommandResult found = place.orrery(over + limit);
    EXPECT_EQ(found.code, 0) << found.err;
    std::set<std::int64_t> all;
    const json answer = json::parse(found.out);
    for (const json& plan : answer["plans"])
      all.insert(plan["plan"]["local_steps"].get<std::int64_t>() *
                 (1 + plan["plan"]["outer_delay"].get<std::int64_t>()));
    return all;
  };
  EXPECT_EQ(*staleness_of("").rbegin(), 48) << "the latest exchange costs least";
  EXPECT_EQ(*staleness_of("--at-most staleness=24").rbegin(), 24);
  for (const auto& [limit, says] : {std::pair{"--at-most stale=24", R"(did you mean "staleness")"},
                                    {"--at-most staleness", "expected FIGURE=NUMBER"},
                                    {"--at-most staleness=few", "expected FIGURE=NUMBER"}}) {
    const CommandResult found = place.orrery(over + limit);
    EXPECT_EQ(found.code, 2) << limit;
    EXPECT_THAT(found.err, HasSubstr(says));
  }
}

TEST(SearchCommand, WhatIsFixedOrSetStays) {
  Workplace place;
  const CommandResult found = place.orrery(std::string(kSmall) +
                                           "--set plan.zero_stage=3 --fix plan.tensor_parallel=2 --fix micro_batch_size "
                                           "--over plan.recompute=full,none --json -");
  ASSERT_EQ(found.code, 0) << found.err;
  const json answer = json::parse(found.out);
  ASSERT_FALSE(answer["plans"].empty());
  for (const json& plan : answer["plans"]) {
    EXPECT_FALSE(plan["plan"].contains("zero_stage")) << "what is not searched is not listed";
    EXPECT_THAT(plan["plan"]["recompute"].get<std::string>(), testing::AnyOf("full", "none"));
  }
  EXPECT_THAT(answer["searched"].dump(), testing::Not(HasSubstr("tensor_parallel")));
}

TEST(SearchCommand, NothingThatFitsIsAnAnswerWithItsReason) {
  Workplace place;
  const CommandResult none = place.orrery(std::string(kSmall) + "--max-memory 8G --fix plan.context_parallel --fix plan.mesh_order --best best.json --json none.json");
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.out, HasSubstr("No plan fits. The leanest takes"));
  EXPECT_THAT(none.out, HasSubstr("What fits (searched in"));
  EXPECT_THAT(none.out, HasSubstr("of memory per device"));
  EXPECT_EQ(place.files().count("best.json"), 0U);
  const json answer = json::parse(place.read("none.json"));
  EXPECT_TRUE(answer["plans"].empty());
  EXPECT_GT(answer["nothing_fits"]["leanest"]["memory"]["peak_bytes"], 8.0 * (1 << 30));

  const CommandResult refused = place.orrery(std::string(kSmall) + "--fix plan.micro_batch_size=5");
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.out, HasSubstr("No plan can be laid out"));
  EXPECT_THAT(refused.out, HasSubstr("global_batch_size"));
}

constexpr const char* kOffloaded =
    "search llama-3-70b-512-h100 --set cluster.nodes=1 --set workload.global_batch_size=8 --set plan.framework=deepspeed "
    "--set plan.pipeline_parallel=1 --set plan.micro_batch_size=1 --set plan.recompute=full --set plan.zero_stage=3 "
    "--set plan.optimizer_offload=true ";

TEST(SearchCommand, NamesTheHostsMemoryWhereThatIsTooSmall) {
  const Workplace place;
  const CommandResult none =
      place.orrery(std::string(kOffloaded) + "--fix plan.tensor_parallel=2 --set cluster.node.host_memory_bytes=1e12");
  EXPECT_EQ(none.code, 1) << none.err;
  EXPECT_THAT(none.out, testing::ContainsRegex("The leanest takes [0-9.]+ TiB of 931.32 GiB of the host memory"));
  EXPECT_THAT(none.out, HasSubstr("of host memory per node"));
  EXPECT_THAT(none.out, testing::Not(HasSubstr("of memory per device"))) << "of which there is enough";
}

TEST(SearchCommand, NamesTheHostWhereItIsTight) {
  const Workplace place;
  const std::string tight = std::string(kOffloaded) + "--fix plan.tensor_parallel=4 --max-memory 640G --top 1 ";
  const CommandResult found = place.orrery(tight);
  EXPECT_EQ(found.code, 0) << found.err;
  EXPECT_THAT(found.out,
              testing::AllOf(HasSubstr("tight: host memory"), HasSubstr("of host memory on its fullest node")));
  const json memory = json::parse(place.orrery(tight + "--json -").out)["plans"][0]["memory"];
  EXPECT_EQ(memory["verdict"], "tight");
  EXPECT_LT(memory["upper_bytes"], memory["capacity_bytes"]);
  EXPECT_GT(1.5 * memory["host"]["node_bytes"].get<double>(), memory["host"]["node_capacity_bytes"].get<double>());
}

// What would be enough stands under its heading even where nothing else is.
TEST(SearchCommand, OffersMemoryUnderTheHeadingOfWhatFits) {
  const Workplace place;
  const CommandResult none = place.orrery(std::string(kSmall) +
                                          "--max-memory 1G --set cluster.nodes=1 --set workload.sequence_length=8191 "
                                          "--fix plan.context_parallel --fix plan.mesh_order --fix plan.sequence_parallel");
  EXPECT_EQ(none.code, 1) << none.err;
  EXPECT_THAT(none.out,
              testing::ContainsRegex("What fits .searched in [^\n]*\n  with [0-9.]+ GiB of memory per device"));
}

TEST(SearchCommand, SaysInASentenceWhatItCannotUse) {
  Workplace place;
  for (const auto& [arguments, words] : {std::pair{"--over plan.zero_stag", "zero_stage"},
                                         {"--over plan.zero_stage=9", "/plan/zero_stage"},
                                         {"--fix plan.zero_stage --over plan.zero_stage", "both fixed and searched"},
                                         {"--over plan.clip_grad", "no values"},
                                         {"--global-batch 64..8", "the smaller batch first"},
                                         {"--global-batch x", "--global-batch"},
                                         {"--max-memory 5Q", "--max-memory"},
                                         {"--max-memory 1e308G", "--max-memory"},
                                         {"--fix plan.zero_stag=1", "--fix"},
                                         {"--over plan.zero_stage=9", "--over"},
                                         {"--top 0", "--top"},
                                         {"--fidelity steady-flow", "--engine des"},
                                         {"--set cluster.nodes=0", "/cluster/nodes"}}) {
    SCOPED_TRACE(arguments);
    const CommandResult result = place.orrery(std::string(kSmall) + arguments + " --json out.json");
    EXPECT_EQ(result.code, 2);
    EXPECT_THAT(result.err, HasSubstr(words));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1);
    EXPECT_EQ(place.files().count("out.json"), 0U);
  }
}

// Of the memory that is allowed, not of the device's.
TEST(SearchCommand, VerdictsAreOfTheMemoryThatIsAllowed) {
  const Workplace place;
  const auto first = [&](const std::string& limit) {
    const CommandResult found = place.orrery(std::string(kSmall) + "--top 1 --json - --max-memory " + limit);
    EXPECT_EQ(found.code, 0) << found.err;
    return json::parse(found.out)["plans"][0]["memory"];
  };
  const double peak = first("640G")["peak_bytes"];
  EXPECT_EQ(first("640G")["capacity_bytes"], 640.0 * 1024 * 1024 * 1024);
  EXPECT_EQ(first("640G")["verdict"], "fits");
  EXPECT_EQ(first(std::to_string(static_cast<std::int64_t>(1.01 * peak)))["verdict"], "tight");
}

TEST(SearchCommand, ShowsTheNotesOnTheFirst) {
  const Workplace place;
  const std::string search = "search straggler --fix zero_stage --fix recompute --json out.json";
  EXPECT_THAT(place.orrery(search).out, HasSubstr("perturbations are ignored"));
  EXPECT_EQ(json::parse(place.read("out.json"))["plans"][0]["notes"].size(), 1U);
}

TEST(SearchCommand, EventsOrderTheFastestAnew) {
  Workplace place;
  const CommandResult found = place.orrery(std::string(kSmall) + "--engine des --top 4 --json - --network-within 5");
  ASSERT_EQ(found.code, 0) << found.err;
  const json answer = json::parse(found.out);
  double last = 0;
  for (const json& plan : answer["plans"]) {
    EXPECT_GE(plan["des_step_seconds"], last);
    last = plan["des_step_seconds"];
  }
  EXPECT_GT(last, 0);
  EXPECT_TRUE(answer["network"].contains("needed_bytes_per_second"));
  EXPECT_DOUBLE_EQ(answer["network"]["allowed"].get<double>(), 0.05);
}

TEST(SearchCommand, FiguresByEventsHaveThePerturbations) {
  const Workplace place;
  const CommandResult found = place.orrery("search straggler --fix zero_stage --fix recompute --top 1 --engine des --json -");
  ASSERT_EQ(found.code, 0) << found.err;
  const json plan = json::parse(found.out)["plans"][0];
  EXPECT_GT(plan["des_step_seconds"].get<double>(), 1.1 * plan["step_seconds"].get<double>());
  const CommandResult slow = place.orrery("simulate straggler --engine des --json -");
  const json report = json::parse(slow.out);
  EXPECT_NEAR(plan["tokens_per_second_per_device"].get<double>() * plan["des_step_seconds"].get<double>(),
              report["tokens_per_second_per_device"].get<double>() * report["step_seconds"].get<double>(), 1e-6);
  EXPECT_THAT(plan.value("notes", json::array()).dump(), testing::Not(HasSubstr("are ignored")));
}

TEST(SearchCommand, WritesTheLayoutThatTheStackMustBeTold) {
  Workplace place;
  const CommandResult found = place.orrery(
      "search llama-3-70b-512-h100 --set model=llama-3-8b --set cluster.nodes=3 --set workload.global_batch_size=32 "
      "--over pipeline_parallel=3 --fix virtual_pipeline=1 --fix context_parallel --fix micro_batch_size --top 1 "
      "--best best.json --json -");
  ASSERT_EQ(found.code, 0) << found.err;
  const json plan = json::parse(found.out)["plans"][0];
  EXPECT_THAT(plan["notes"].dump(), HasSubstr("32 layers do not divide evenly into 3 model chunks"));
  EXPECT_EQ(json::parse(place.read("best.json"))["plan"]["pipeline_stage_layers"], (json{11, 11, 10}));
  const json report = json::parse(place.orrery("simulate best.json --json -").out);
  EXPECT_EQ(report["step_seconds"], plan["step_seconds"]);
  EXPECT_THAT(report["notes"].dump(), testing::Not(HasSubstr("do not divide")));
}

TEST(SearchCommand, WhereNoDegreesDivideTheBatchTheNearestAreNamed) {
  const Workplace place;
  const std::string search =
      "search llama-3-70b-512-h100 --set model=llama-3-8b --set cluster.nodes=1 --fix tensor_parallel=1 --fix "
      "pipeline_parallel=1 --fix context_parallel=1 ";
  EXPECT_THAT(place.orrery(search + "--set workload.global_batch_size=13").out,
              HasSubstr("the 8 devices and the batch of 13; the nearest batches that some divide: 8 or 16"));
  place.write("none.json", R"({"model": "llama-3-8b", "cluster": "dgx-h100", "workload": {"sequence_length": 2048}})");
  EXPECT_THAT(place.orrery("search none.json --fix tensor_parallel --fix pipeline_parallel --fix context_parallel").out,
              HasSubstr("the batch, which is not given (workload.global_batch_size)"));
}

TEST(SearchCommand, GoesOnWithTheThreadsThatTheMachineStarts) {
  const Workplace place;
  const auto plans = [&](const CommandResult& found) {
    EXPECT_EQ(found.code, 0) << found.err;
    return found.code == 0 ? json::parse(found.out)["plans"].dump() : "";
  };
  EXPECT_EQ(plans(place.shell("(ulimit -v 2000000; $ORRERY " + std::string(kSmall) + "--threads 512 --json -)")),
            plans(place.orrery(std::string(kSmall) + "--threads 1 --json -")));
  // Where memory ends all the same, a sentence says so.
  const CommandResult little =
      place.shell("(ulimit -v 150000; $ORRERY " + std::string(kSmall) + "--threads 512 --json -)");
  if (little.code != 0) {
    EXPECT_EQ(little.code, 1);
    EXPECT_THAT(little.err, HasSubstr("out of memory"));
  }
}

TEST(SearchCommand, BatchesAreComparedByTheirTimeASequence) {
  Workplace place;
  const CommandResult found =
      place.orrery(std::string(kSmall) +
                   "--global-batch 16..64 --fix plan.context_parallel --fix plan.pipeline_parallel "
                   "--fix plan.recompute --top 100 --json -");
  ASSERT_EQ(found.code, 0) << found.err;
  const json answer = json::parse(found.out);
  ASSERT_FALSE(answer["plans"].empty());
  double last = 0;
  std::set<int> sizes;
  for (const json& plan : answer["plans"]) {
    sizes.insert(plan["global_batch_size"].get<int>());
    const double a_sequence = plan["step_seconds"].get<double>() / plan["global_batch_size"].get<double>();
    EXPECT_GE(a_sequence, last);
    last = a_sequence;
  }
  EXPECT_EQ(sizes, (std::set<int>{16, 32, 64}));
}

TEST(SearchCommand, ASafePlanFitsWithItsMargin) {
  Workplace place;
  constexpr double kMost = 60 * 0x1p30;
  const auto most_upper = [&](const std::string& arguments) {
    const CommandResult found = place.orrery(std::string(kSmall) + "--max-memory 60G --top 50 --json - " + arguments);
    EXPECT_EQ(found.code, 0) << found.err;
    const json answer = json::parse(found.out);
    double most = 0;
    for (const json& plan : answer["plans"])
      most = std::max(most, plan["memory"]["upper_bytes"].get<double>());
    return most;
  };
  EXPECT_GT(most_upper(""), kMost);
  EXPECT_LE(most_upper("--safe"), kMost);
}

TEST(SearchCommand, DegreesThatLeaveNoReplicaCannotBeLaidOut) {
  Workplace place;
  for (const char* arguments : {"--set cluster.nodes=1 --fix plan.pipeline_parallel=2",
                                "--set cluster.nodes=1 --over plan.pipeline_parallel=2,16",
                                "--set cluster.nodes=1 --fix plan.micro_batch_size --over plan.tensor_parallel=16"}) {
    const CommandResult found = place.orrery(std::string(kSmall) + arguments + " --json -");
    ASSERT_THAT(found.code, testing::AnyOf(0, 1)) << arguments << found.err;
    EXPECT_EQ(json::parse(found.out)["plans"].empty(), found.code == 1) << arguments;
  }
}

TEST(SearchCommand, PlansAreOfWhatTheStackHas) {
  Workplace place;
  const auto values_of = [&](const std::string& arguments, const char* field) {
    const CommandResult found = place.orrery(std::string(kSmall) + arguments + " --top 300 --front 9 --json -");
    EXPECT_EQ(found.code, 0) << found.err;
    const json answer = json::parse(found.out);
    std::set<std::string> values;
    for (const json& plan : answer["plans"]) values.insert(plan["plan"][field].dump());
    return values;
  };
  EXPECT_EQ(values_of("--set plan.framework=nanotron", "recompute").count("\"selective_op\""), 0U);
  EXPECT_EQ(values_of("--set plan.framework=megatron-2021", "zero_stage"), std::set<std::string>{"0"});
  EXPECT_EQ(values_of("--set plan.framework=megatron-2021 --over plan.zero_stage=1,2", "zero_stage").count("0"), 0U);
}

}  // namespace
}  // namespace orrery
