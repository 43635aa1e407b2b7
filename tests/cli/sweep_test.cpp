// orrery sweep as a user meets it: what is there is not computed again, whatever has happened to the process before.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/cli/command.h"
#include "tests/cli/sweep_cases.h"

namespace orrery {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

TEST(Sweep, EachPointIsWhatSimulateSays) {
  const Workplace place;
  place.write("sweep.json", small_sweep());
  const CommandResult run = place.orrery("sweep sweep.json --db results.db --export results.jsonl");
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(computed(run), 12);
  EXPECT_THAT(run.out, HasSubstr("4 without a result, the first: "));
  place.write("scenario.json", swept_scenario().dump());
  const std::string lines = place.read("results.jsonl");
  ASSERT_EQ(lines_of(lines), 12);
  int with_result = 0;
  for (std::size_t begin = 0; begin < lines.size();) {
    const std::size_t end = lines.find('\n', begin);
    const json row = json::parse(lines.substr(begin, end - begin));
    begin = end + 1;
    std::string sets;
    for (const char* field : {"cluster.nodes", "plan.tensor_parallel", "plan.zero_stage"})
      sets += std::string(" --set ") + field + "=" + row[field].dump();
    const CommandResult one = place.orrery("simulate scenario.json --json -" + sets);
    if (row["plan.tensor_parallel"] == 3) {
      EXPECT_EQ(one.code, 2);
      EXPECT_TRUE(row["step_seconds"].is_null());
      EXPECT_THAT(row["error"].get<std::string>(), HasSubstr("/plan/tensor_parallel"));
      continue;
    }
    ++with_result;
    const json report = json::parse(one.out);
    EXPECT_EQ(row["step_seconds"], report["step_seconds"]) << sets;
    EXPECT_EQ(row["mfu"], report["mfu"]) << sets;
    EXPECT_EQ(row["memory_peak_bytes"], report["memory"]["peak_bytes"]) << sets;
    EXPECT_EQ(row["memory_fits"], report["memory"]["fits"]) << sets;
    EXPECT_TRUE(row["error"].is_null());
  }
  EXPECT_EQ(with_result, 8);
}

TEST(Sweep, ASecondRunDoesOnlyWhatIsMissing) {
  const Workplace place;
  place.write("sweep.json", sweep_over({{"cluster.nodes", {2, 4}}, {"plan.tensor_parallel", {1, 2}}}));
  EXPECT_EQ(computed(place.orrery("sweep sweep.json --db results.db")), 4);
  const CommandResult again = place.orrery("sweep sweep.json --db results.db --export results.csv");
  EXPECT_EQ(computed(again), 0);
  EXPECT_THAT(again.out, HasSubstr("4 there before"));
  // Of another document the points that the file has already.
  place.write("more.json", sweep_over({{"cluster.nodes", {2, 4, 8}}, {"plan.tensor_parallel", {2, 4}}}));
  const CommandResult more = place.orrery("sweep more.json --db results.db --export more.csv");
  EXPECT_EQ(computed(more), 4);
  EXPECT_EQ(lines_of(place.read("more.csv")), 1 + 6);
  EXPECT_EQ(lines_of(place.read("results.csv")), 1 + 4);
  // A file that is no calibration changes nothing.
  place.write("calibration.json", place.read("results.csv"));
  EXPECT_EQ(place.orrery("sweep sweep.json --db results.db --calibration calibration.json").code, 2);
}

// What another engine, a search or another calibration says of a scenario is another result.
TEST(Sweep, ResultsAreOfTheirMethod) {
  const Workplace place;
  json document{{"scenario", swept_scenario()}, {"axes", {{"cluster.nodes", {2, 4}}}}};
  place.write("analytical.json", document.dump());
  document["engine"] = "des";
  place.write("des.json", document.dump());
  document.erase("engine");
  document["search"] = {{"fix", {"recompute", "context_parallel"}}};
  place.write("search.json", document.dump());
  document["search"]["safe"] = true;
  place.write("safe.json", document.dump());
  place.write("calibration.json", R"({
    "name": "mine", "source": "a test", "date": "2026-01-01",
    "device": {"name": "mine", "vendor": "AMD", "architecture": "CPU", "fp32_flops_per_second": 1e11,
               "vector_flops_per_second": 1e11, "memory_bytes": 1e12, "memory_bytes_per_second": 1e10,
               "multiprocessors": 1, "pcie_bytes_per_second": 1e10, "source": "a test"},
    "matmul": {"fp32": {"efficiency": 0.5, "memory_efficiency": 0.5, "fixed_seconds": 1e-6, "tiles": [[1, 1]]}},
    "memory": {"efficiency": 0.5, "fixed_seconds": 1e-6, "kinds": {"norm": {"efficiency": 0.01}}},
    "attention": {"default": "mine", "kernels": {"mine": {"forward_efficiency": 0.5, "backward_efficiency": 0.4}}}
  })");
  for (const char* arguments :
       {"analytical.json", "des.json", "search.json", "safe.json", "analytical.json --calibration calibration.json"}) {
    SCOPED_TRACE(arguments);
    EXPECT_EQ(computed(place.orrery(std::string("sweep ") + arguments + " --db results.db")), 2);
    EXPECT_EQ(computed(place.orrery(std::string("sweep ") + arguments + " --db results.db")), 0);
  }
}

TEST(Sweep, GoesOnAfterKills) {
  const Workplace place;
  place.write("sweep.json", large_sweep());
  const CommandResult whole = place.orrery("sweep sweep.json --db whole.db --threads 2");
  ASSERT_EQ(whole.code, 0) << whole.err;
  EXPECT_EQ(computed(whole), kLargePoints);
  const CommandResult killed = place.shell(kEnded + R"sh(
for kill in 1 2 3; do ended killed.db SIGKILL - $ORRERY sweep sweep.json --db killed.db --threads 1 >out || exit 1; done
cat out)sh");
  ASSERT_EQ(killed.code, 0) << killed.out << killed.err;
  EXPECT_THAT(killed.out, HasSubstr("exit 137\n"));
  const std::int64_t there = lines_of(table_of(place, "killed.db")) - 1;
  EXPECT_GT(there, 0);
  EXPECT_LT(there, kLargePoints);
  const CommandResult rest = place.orrery("sweep sweep.json --db killed.db --threads 2");
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_EQ(computed(rest), kLargePoints - there);
  EXPECT_EQ(table_of(place, "killed.db"), table_of(place, "whole.db"));
}

TEST(Sweep, SaysHowToGoOnWhenInterrupted) {
  const Workplace place;
  place.write("my sweep.json", large_sweep());
  const std::string interrupted =
      kEnded + "ended results.db SIGINT - $ORRERY sweep 'my sweep.json' --db results.db --threads 1";
  const CommandResult result = place.shell(interrupted);
  EXPECT_THAT(result.out, HasSubstr("exit 130"));
  EXPECT_THAT(result.err, AllOf(HasSubstr("orrery: interrupted: "),
                                HasSubstr(fmt::format(" of {} points are in results.db", kLargePoints)),
                                HasSubstr("\n  orrery sweep 'my sweep.json' --db results.db --threads 1\n")));
  const std::int64_t there = lines_of(table_of(place, "results.db")) - 1;
  EXPECT_THAT(result.err, HasSubstr(fmt::format("interrupted: {} of ", there)));
  // Again: what was there before counts, too.
  const CommandResult again = place.shell(interrupted);
  const std::int64_t more = lines_of(table_of(place, "results.db")) - 1;
  EXPECT_GT(more, there);
  EXPECT_THAT(again.err, HasSubstr(fmt::format("interrupted: {} of ", more)));
  EXPECT_EQ(computed(place.orrery("sweep 'my sweep.json' --db results.db")), kLargePoints - more);
}

TEST(Sweep, SeveralProcessesMayUseOneFile) {
  const Workplace place;
  place.write("sweep.json", large_sweep());
  ASSERT_EQ(place.orrery("sweep sweep.json --db one.db").code, 0);
  const CommandResult both = place.shell(R"sh(
$ORRERY sweep sweep.json --db both.db --threads 1 >a.txt & a=$!
$ORRERY sweep sweep.json --db both.db --threads 1 >b.txt & b=$!
wait $a && wait $b)sh");
  ASSERT_EQ(both.code, 0) << both.err;
  EXPECT_EQ(table_of(place, "both.db"), table_of(place, "one.db"));
  const CommandResult sound = place.shell(
      "python3 -c \"import sqlite3; print(sqlite3.connect('both.db').execute('PRAGMA "
      "integrity_check').fetchone()[0])\"");
  EXPECT_EQ(sound.out, "ok\n");
}

TEST(Sweep, ShardsMakeTheWhole) {
  const Workplace place;
  place.write("sweep.json", small_sweep());
  ASSERT_EQ(place.orrery("sweep sweep.json --db whole.db").code, 0);
  std::int64_t points = 0;
  for (const char* shard : {"1", "2", "3"}) {
    const CommandResult run =
        place.orrery("sweep sweep.json --db " + std::string(shard) + ".db --shard " + shard + "/3");
    ASSERT_EQ(run.code, 0) << run.err;
    points += computed(run);
  }
  EXPECT_EQ(points, 12);
  const CommandResult merged = place.orrery("sweep merge all.db 3.db 1.db 2.db");
  ASSERT_EQ(merged.code, 0) << merged.err;
  EXPECT_EQ(merged.out, "all.db: 12 points, 12 of them new\n");
  EXPECT_EQ(table_of(place, "all.db"), table_of(place, "whole.db"));
  EXPECT_THAT(place.orrery("sweep merge all.db 2.db").out, HasSubstr("12 points, 0 of them new"));
  EXPECT_EQ(computed(place.orrery("sweep sweep.json --db all.db")), 0);
  EXPECT_EQ(place.orrery("sweep merge all.db all.db").code, 2);
}

TEST(Sweep, FindsTheBestPlanOfEachPoint) {
  const Workplace place;
  place.write("scenario.json", swept_scenario().dump());
  place.write("sweep.json", json{{"scenario", "scenario.json"},
                                 {"axes", {{"cluster.nodes", {2, 4}}, {"plan.zero_stage", {1}}}},
                                 {"search", {{"fix", {"recompute", "context_parallel", "mesh_order"}}}}}
                                .dump());
  const CommandResult run = place.orrery("sweep sweep.json --db results.db --export results.jsonl");
  ASSERT_EQ(run.code, 0) << run.err;
  const std::string lines = place.read("results.jsonl");
  ASSERT_EQ(lines_of(lines), 2);
  const json second = json::parse(lines.substr(lines.find('\n') + 1));
  const CommandResult found = place.orrery(
      "search scenario.json --set cluster.nodes=4 --set plan.zero_stage=1 --fix recompute --fix context_parallel "
      "--fix mesh_order --top 1 --json -");
  ASSERT_EQ(found.code, 0) << found.err;
  const json best = json::parse(found.out)["plans"][0];
  EXPECT_EQ(second["step_seconds"], best["step_seconds"]);
  for (const char* field : {"tensor_parallel", "pipeline_parallel", "micro_batch_size"})
    EXPECT_EQ(second[std::string("plan.") + field], best["plan"][field]) << field;
}

TEST(Sweep, ASafeSearchKeepsAMargin) {
  const Workplace place;
  constexpr double kMost = 60e9;
  const auto peak = [&](bool safe) {
    place.write("sweep.json", json{{"scenario", swept_scenario()},
                                   {"axes", {{"cluster.nodes", {2}}}},
                                   {"search", {{"max_memory_bytes", kMost}, {"safe", safe}}}}
                                  .dump());
    const CommandResult run = place.orrery("sweep sweep.json --db results.db --export results.jsonl");
    EXPECT_EQ(run.code, 0) << run.err;
    return json::parse(place.read("results.jsonl"))["memory_peak_bytes"].get<double>();
  };
  EXPECT_GT(1.14 * peak(false), kMost) << "the fastest needs no more than is safe: a test of nothing";
  EXPECT_LE(1.14 * peak(true), kMost);
}

TEST(Sweep, DrawsByEventsForEachSeed) {
  const Workplace place;
  json drawn = swept_scenario();
  drawn["perturbations"] = json::array({{{"kind", "jitter"}, {"coefficient_of_variation", 0.1}}});
  place.write("sweep.json", json{{"scenario", drawn}, {"engine", "des"}, {"seeds", {1, 2}}}.dump());
  const CommandResult run =
      place.orrery("sweep sweep.json --db results.db --export - --fields engine,perturbations.0.seed,step_seconds");
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("2 points in results.db"));
  EXPECT_THAT(run.out, StartsWith("engine,perturbations.0.seed,step_seconds\n"));
  EXPECT_EQ(lines_of(run.out), 3);
  const std::size_t first = run.out.find("\ndes,1,"), second = run.out.find("\ndes,2,");
  ASSERT_NE(first, std::string::npos) << run.out;
  ASSERT_NE(second, std::string::npos) << run.out;
  EXPECT_NE(std::stod(run.out.substr(first + 7)), std::stod(run.out.substr(second + 7))) << "what is drawn is the same";
}

TEST(Sweep, TwoDatabasesAreCompared) {
  const Workplace place;
  place.write("sweep.json", small_sweep());
  ASSERT_EQ(place.orrery("sweep sweep.json --db a.db").code, 0);
  ASSERT_EQ(place.orrery("sweep sweep.json --db b.db").code, 0);
  const CommandResult same = place.orrery("compare a.db b.db");
  EXPECT_EQ(same.code, 0) << same.err;
  EXPECT_THAT(same.out, HasSubstr("12 points in both"));
  json longer = swept_scenario();
  longer["workload"]["sequence_length"] = 9216;
  const json axes{{"cluster.nodes", {2, 4}}, {"plan.tensor_parallel", {1, 2, 3}}, {"plan.zero_stage", {1, 3}}};
  place.write("sweep.json", json{{"scenario", longer}, {"axes", axes}}.dump());
  ASSERT_EQ(place.orrery("sweep sweep.json --db c.db").code, 0);
  const CommandResult moved = place.orrery("compare a.db c.db --fields step_seconds --json moved.json --csv moved.csv");
  EXPECT_EQ(moved.code, 1) << moved.err;
  EXPECT_THAT(moved.out, HasSubstr("moved by more than 1.0 %"));
  const json all = json::parse(place.read("moved.json"));
  EXPECT_EQ(all["moved"].size(), 8U);
  EXPECT_EQ(all["points_in_both"], 12);
  EXPECT_GT(all["moved"][0]["change"], 0.01);
  EXPECT_EQ(lines_of(place.read("moved.csv")), 9);
  for (const auto& [arguments, words] : {std::pair{"a.db", "a database on one side only"},
                                         {"a.db sweep.json", "sweep.json: found a file that is not an SQLite database"},
                                         {"a.db none.db", "none.db: found nothing"},
                                         {"none.db a.db", "none.db: found nothing"},
                                         {"a.db b.db --set plan.zero_stage=1", "--set"},
                                         {"a.db b.db --threshold x", "a share"},
                                         {"a.db b.db --fields mfuu", "mfu"},
                                         {"llama-3-70b-512-h100 --threshold 1%", "--threshold"}}) {
    SCOPED_TRACE(arguments);
    const CommandResult refused = place.orrery(std::string("compare ") + arguments + " --json out.json");
    EXPECT_EQ(refused.code, 2);
    EXPECT_THAT(refused.err, HasSubstr(words));
    EXPECT_EQ(place.files().count("out.json"), 0U);
  }
}

TEST(Sweep, SaysThatPerturbationsAreLeftOut) {
  const Workplace place;
  place.write("sweep.json", R"({"scenario": "straggler", "axes": {"cluster.nodes": [4, 8]}})");
  const CommandResult done = place.orrery("sweep sweep.json --db out.db");
  EXPECT_EQ(done.code, 0);
  EXPECT_THAT(done.err, HasSubstr("perturbations are ignored"));
  place.write("factors.json", R"({"scenario": "straggler", "axes": {"perturbations.0.factor": [0.5, 0.8]}})");
  const CommandResult refused = place.orrery("sweep factors.json --db factors.db");
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("/axes/perturbations.0.factor: found perturbations with the analytical engine"));
}

// As a colleague's, or an archive's: with a write-ahead log SQLite writes beside a file that it reads, where it may.
TEST(Sweep, DatabasesInFoldersThatCannotBeWrittenAreRead) {
  const Workplace place;
  place.write("sweep.json", small_sweep());
  const CommandResult read = place.shell(R"sh(mkdir archive
$ORRERY sweep sweep.json --db archive/results.db >/dev/null && chmod 755 . && chmod 555 archive
as_somebody=
test $(id -u) -eq 0 && as_somebody='setpriv --reuid 65534 --regid 65534 --clear-groups'
$as_somebody $ORRERY sweep export archive/results.db | wc -l
$as_somebody $ORRERY compare archive/results.db archive/results.db | sed -n 3p
chmod 755 archive)sh");
  EXPECT_EQ(read.out, "13\n12 points in both, 0 only in A, 0 only in B\n") << read.err;
}

TEST(Sweep, SaysWhatIsWrongInDatabasesOfEarlierVersions) {
  const Workplace place;
  place.write("sweep.json", sweep_over({{"plan.framework", {"megatron-core", "orrery"}}}));
  EXPECT_EQ(place.orrery("sweep sweep.json --db results.db").err, "");
  ASSERT_EQ(place.python("-c \"import sqlite3; c = sqlite3.connect('results.db'); "
                         "c.execute('UPDATE sweeps SET version = \\'0.1.0\\''); c.commit()\""),
            0);
  const auto says = HasSubstr("results.db: results of orrery 0.1.0: where plan.framework has no published steps");
  EXPECT_THAT(place.orrery("sweep sweep.json --db results.db").err, says);  // goes on
  EXPECT_THAT(place.orrery("sweep export results.db").err, says);
  EXPECT_THAT(place.orrery("sweep merge all.db results.db").err, HasSubstr("all.db: results of orrery 0.1.0"));
  EXPECT_THAT(place.orrery("compare results.db results.db").out, says);
}

TEST(Sweep, GoesOnWithTheThreadsThatTheMachineStarts) {
  const Workplace place;
  place.write("sweep.json", small_sweep());
  const CommandResult alone = place.orrery("sweep sweep.json --db alone.db --threads 1");
  ASSERT_EQ(alone.code, 0) << alone.err;
  const auto little =
      place.shell("(ulimit -v 1500000; timeout 60 $ORRERY sweep sweep.json --db little.db --threads 512)");
  ASSERT_EQ(little.code, 0) << little.err;
  EXPECT_EQ(table_of(place, "little.db"), table_of(place, "alone.db"));
  // Beyond what waits to be written; as a user whose processes are counted.
  const std::string as_other = "setpriv --reuid=65534 --clear-groups prlimit --nproc=";
  if (place.shell("chmod 777 . && " + as_other + "9 true && " + as_other + "9 test -x $ORRERY").code != 0)
    GTEST_SKIP() << "no other user to be";
  place.write("many.json", sweep_over({{"workload.sequence_length", {{"from", 1}, {"to", 9000}, {"step", 1}}}}));
  const auto many = place.shell("timeout 60 " + as_other + "3 $ORRERY sweep many.json --db many.db --threads 8");
  EXPECT_EQ(many.code, 0) << many.err;
  EXPECT_EQ(computed(many), 9000);
  const auto none = place.shell("timeout 60 " + as_other + "1 $ORRERY sweep many.json --db none.db --threads 8");
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("--threads: found a thread that the machine cannot start"));
}

TEST(Sweep, FieldsAreCheckedBeforeAnythingRuns) {
  const Workplace place;
  place.write("sweep.json", small_sweep());
  const CommandResult refused = place.orrery("sweep sweep.json --db out.db --export - --fields step_secnds");
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("step_seconds"));
  EXPECT_EQ(place.files().count("out.db"), 0U);
}

TEST(Sweep, RefusesWhatCannotBeUsed) {
  const Workplace place;
  place.write("sweep.json", small_sweep());
  place.write("unknown.json", sweep_over({{"plan.tensor_paralel", {1, 2}}}));
  place.write("never.json", sweep_over({{"plan.tensor_parallel", {3, 5}}}));
  place.write("text.db", "no database\n");
  ASSERT_EQ(place.orrery("sweep sweep.json --db other.db").code, 0);
  ASSERT_EQ(
      place.python("-c \"import sqlite3; c = sqlite3.connect('other.db'); c.execute('PRAGMA user_version = 2')\""), 0);
  for (const auto& [arguments, says] : std::initializer_list<std::pair<const char*, const char*>>{
           {"sweep", "a DOCUMENT is required"},
           {"sweep sweep.json", "--db FILE is required"},
           {"sweep scalin --db results.db", R"(did you mean "scaling"?)"},
           {"sweep missing.json --db results.db", "missing.json: found"},
           {"sweep unknown.json --db results.db", R"(did you mean "plan.tensor_parallel"?)"},
           {"sweep never.json --db results.db", "2 points, each without a result"},
           {"sweep sweep.json --db text.db", "a file that is not an SQLite database"},
           {"sweep sweep.json --db other.db",
            "found a database of sweeps of version 2, expected one of version 1: made by this version of orrery"},
           {"sweep merge results.db other.db", "found a database of sweeps of version 2, expected one of version 1"},
           {"sweep export other.db", "of version 2, expected one of version 1"},
           {"sweep export nothing.db", "nothing.db: found nothing"},
           {"sweep sweep.json --db sweep.json", "sweep.json: found a file that this command reads"},
           {"sweep sweep.json --db results.db --shard 4/3", "1/3, 2/3 or 3/3"},
           {"sweep sweep.json --db results.db --shard 2", "1/3, 2/3 or 3/3"},
           {"sweep sweep.json --db results.db --shard 0/3", "1/3, 2/3 or 3/3"},
           {"compare other.db other.db --calibration sweep.json", "scenarios: results of a sweep cannot be changed"},
           {"sweep sweep.json --db results.db --export results.txt", ".csv or .jsonl"},
           {"sweep sweep.json --db results.db --fields mfu", "--export FILE"},
           {"sweep sweep.json --db results.db --export - --fields step_second", R"(did you mean "step_seconds"?)"},
           {"sweep sweep.json --db results.db --export - --fields mfu,mfu", "a second time"}}) {
    const CommandResult result = place.orrery(arguments);
    EXPECT_EQ(result.code, 2) << arguments;
    EXPECT_THAT(result.err, AllOf(StartsWith("orrery: error: "), HasSubstr(says))) << arguments;
  }
}

}  // namespace
}  // namespace orrery
