// orrery sweep --mpi: do the ranks of a job write what one process writes, whatever becomes of them?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "tests/cli/command.h"
#include "tests/cli/sweep_cases.h"

namespace orrery {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// Seconds after which Open MPI tells ranks to end, and again, after which it ends them: for rank 0 to say how to go on,
// however busy the machine is.
const std::string kPatience = "export OMPI_MCA_odls_base_sigkill_timeout=4\n";

class SweepOverMpi : public testing::Test {
 protected:
  void SetUp() override {
    if (std::string(ORRERY_MPIRUN).empty())
      GTEST_SKIP() << "CMake found no MPI (Debian: libopenmpi-dev openmpi-bin), so sweeps by ranks were not tested";
  }

  // $MPIRUN, for ranks that may outnumber cores, be root's and run on any core.
  CommandResult mpi(const std::string& script) const {
    return place_.shell("MPIRUN='" ORRERY_MPIRUN "'\n" + std::string(R"sh(
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none
)sh") + kEnded + script);
  }
  CommandResult ranks(int count, const std::string& arguments) const {
    return mpi("$MPIRUN -n " + std::to_string(count) + " $ORRERY sweep " + arguments + " --mpi");
  }
  std::int64_t points_in(const std::string& database) const { return lines_of(table_of(place_, database)) - 1; }

  // Writes sweep.json, which no run completes before it is ended, and rest.json, a 64th of its points.
  void write_endless_sweep() const {
    json document = json::parse(large_sweep());
    place_.write("rest.json", document.dump());
    document["axes"]["workload.sequence_length"] = {{"from", 2}, {"to", 16384}, {"step", 2}};
    place_.write("sweep.json", document.dump());
  }

  // After a run of sweep.json that was ended: of the points of rest.json, by ranks or one process, those that are
  // missing are computed, and then all are there.
  void expect_the_rest(const std::string& database, bool by_ranks = true) const {
    std::istringstream rows(place_.orrery("sweep export " + database + " --fields workload.sequence_length").out);
    std::int64_t there = 0;
    std::string row;
    for (std::getline(rows, row); std::getline(rows, row);) there += std::stoll(row) % 128 == 0 ? 1 : 0;
    EXPECT_GT(there, 0);
    const std::string arguments = "rest.json --export rest.csv --db " + database;
    const CommandResult rest = by_ranks ? ranks(2, arguments) : place_.orrery("sweep " + arguments);
    ASSERT_EQ(rest.code, 0) << rest.err;
    EXPECT_EQ(computed(rest), kLargePoints - there);
    ASSERT_EQ(place_.orrery("sweep rest.json --export whole.csv --db whole.db").code, 0);
    EXPECT_EQ(place_.read("rest.csv"), place_.read("whole.csv"));
  }

  const Workplace place_;
};

TEST_F(SweepOverMpi, RanksWriteWhatOneProcessWrites) {
  place_.write("small.json", small_sweep());
  place_.write("large.json", large_sweep());
  for (const char* sweep : {"small", "large"}) {
    const std::string one = std::string(sweep) + ".db", document = std::string(sweep) + ".json ";
    ASSERT_EQ(place_.orrery("sweep " + document + "--db " + one).code, 0);
    const std::string table = table_of(place_, one);
    for (const char* how : {"3", "2 --threads 2", "2"}) {
      if (how == std::string("2") && sweep == std::string("large")) continue;  // seconds
      const std::string database = one + how[0] + std::to_string(std::string(how).size());
      const CommandResult run = mpi(std::string("$MPIRUN -n ") + how[0] + " $ORRERY sweep --mpi " + document + "--db " +
                                    database + std::string(how + 1));
      ASSERT_EQ(run.code, 0) << run.err;
      EXPECT_EQ(computed(run), lines_of(table) - 1);
      EXPECT_EQ(lines_of(run.out), 1) << "rank 0 alone speaks: " << run.out;
      EXPECT_EQ(table_of(place_, database), table) << sweep << " by " << how;
    }
    // One process's results count for ranks.
    EXPECT_EQ(computed(ranks(3, document + "--db " + one)), 0);
    EXPECT_EQ(table_of(place_, one), table);
  }
}

TEST_F(SweepOverMpi, OfAnotherDocumentOnlyWhatIsMissingIsComputed) {
  place_.write("some.json", sweep_over({{"cluster.nodes", {2, 4}}, {"plan.tensor_parallel", {1, 2}}}));
  place_.write("more.json", sweep_over({{"cluster.nodes", {2, 4, 8}}, {"plan.tensor_parallel", {2, 4}}}));
  EXPECT_EQ(computed(ranks(2, "some.json --db results.db")), 4);
  const CommandResult more =
      ranks(3, "more.json --db results.db --export - --fields cluster.nodes,plan.tensor_parallel");
  EXPECT_THAT(more.err, HasSubstr("6 points in results.db: 4 computed, 2 there before"));
  EXPECT_EQ(more.out, "cluster.nodes,plan.tensor_parallel\n2,2\n2,4\n4,2\n4,4\n8,2\n8,4\n");
}

TEST_F(SweepOverMpi, SearchesAndDrawsByEvents) {
  json drawn = swept_scenario();
  drawn["perturbations"] = json::array({{{"kind", "jitter"}, {"coefficient_of_variation", 0.1}}});
  place_.write("drawn.json", json{{"scenario", drawn}, {"engine", "des"}, {"seeds", {1, 2, 3}}}.dump());
  place_.write("searched.json", json{{"scenario", swept_scenario()},
                                     {"axes", {{"cluster.nodes", {1, 2, 4}}}},
                                     {"search", {{"fix", {"recompute", "context_parallel", "mesh_order"}}}}}
                                    .dump());
  for (const std::string sweep : {"drawn", "searched"}) {
    const CommandResult run = ranks(3, sweep + ".json --db ranks.db");
    ASSERT_EQ(run.code, 0) << run.err;
    EXPECT_EQ(computed(run), 3);
    ASSERT_EQ(place_.orrery("sweep " + sweep + ".json --db one.db").code, 0);
    EXPECT_EQ(table_of(place_, "ranks.db"), table_of(place_, "one.db"));
  }
}

TEST_F(SweepOverMpi, TheDocumentMayBeOnStandardInput) {
  place_.write("sweep.json", small_sweep());
  const CommandResult run = mpi("$MPIRUN -n 2 $ORRERY sweep - --db results.db --mpi <sweep.json");
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(computed(run), 12);
}

TEST_F(SweepOverMpi, GoesOnAfterTheKillOfAnyRank) {
  write_endless_sweep();
  for (const char* rank : {"0", "1"}) {
    const std::string database = std::string("killed-") + rank + ".db";
    const CommandResult killed = mpi((*rank == '0' ? "" : kPatience) + "ended " + database + " SIGKILL " + rank +
                                     " $MPIRUN -n 3 $ORRERY sweep sweep.json --db " + database + " --mpi");
    EXPECT_THAT(killed.out, HasSubstr("exit 137")) << killed.err;
    if (*rank != '0') {
      EXPECT_THAT(killed.err, HasSubstr("started as before:\n  orrery sweep sweep.json --db " + database + " --mpi\n"));
    }
    expect_the_rest(database, /*by_ranks=*/*rank == '0');
  }
}

TEST_F(SweepOverMpi, RanksEndWithMpirun) {
  write_endless_sweep();
  const CommandResult killed =
      mpi("ended results.db SIGKILL - $MPIRUN -n 3 $ORRERY sweep sweep.json --db results.db --mpi");
  EXPECT_THAT(killed.out, AllOf(HasSubstr("exit 137"), HasSubstr("all gone"))) << killed.err;
  expect_the_rest("results.db", /*by_ranks=*/false);
}

TEST_F(SweepOverMpi, SaysHowToGoOnWhenInterrupted) {
  write_endless_sweep();
  const CommandResult result =
      mpi(kPatience + "ended results.db SIGINT - $MPIRUN -n 3 $ORRERY sweep sweep.json --db results.db --mpi");
  EXPECT_THAT(result.out, AllOf(HasSubstr("exit "), Not(HasSubstr("exit 0"))));
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("orrery: interrupted: " + std::to_string(points_in("results.db")) + " of 1048576 points"),
                    HasSubstr("; to continue, started as before:\n  orrery sweep sweep.json --db results.db --mpi\n")));
}

std::int64_t errors_in(const std::string& text) {
  std::int64_t count = 0;
  for (std::size_t at = 0; (at = text.find("orrery", at)) != std::string::npos; ++at)
    count += text.compare(at, 15, "orrery: error: ") == 0;
  return count;
}

TEST_F(SweepOverMpi, WhatCannotBeUsedIsSaidOnce) {
  place_.write("sweep.json", small_sweep());
  place_.write("unknown.json", sweep_over({{"plan.tensor_paralel", {1, 2}}}));
  place_.write("text.db", "no database\n");
  for (const auto& [arguments, says] : std::initializer_list<std::pair<const char*, const char*>>{
           {"", "a DOCUMENT is required"},
           {"missing.json --db results.db", "missing.json: found"},
           {"unknown.json --db results.db", R"(did you mean "plan.tensor_parallel"?)"},
           {"sweep.json --db text.db", "a file that is not an SQLite database"},
           {"sweep.json --db results.db --thread 2", "--thread"},
           {"sweep.json --db results.db --export - --fields step_second", R"(did you mean "step_seconds"?)"}}) {
    const CommandResult result = ranks(3, arguments);
    EXPECT_EQ(result.code, 2) << arguments;
    EXPECT_THAT(result.err, HasSubstr(says)) << arguments;
    EXPECT_EQ(errors_in(result.err), 1) << result.err;
  }
}

TEST_F(SweepOverMpi, RanksThatSeeOtherFilesAreRefused) {
  json document = json::parse(small_sweep()), other = document["scenario"];
  other["workload"]["global_batch_size"] = 32;
  const CommandResult made = place_.shell("mkdir here there");
  ASSERT_EQ(made.code, 0);
  place_.write("here/scenario.json", document["scenario"].dump());
  place_.write("there/scenario.json", other.dump());
  document["scenario"] = "scenario.json";
  place_.write("here/sweep.json", document.dump());
  const std::string run =
      "$MPIRUN -n 1 -wdir $PWD/here $ORRERY sweep sweep.json --db results.db --mpi : "
      "-n 2 -wdir $PWD/there $ORRERY sweep sweep.json --db results.db --mpi";
  for (const char* says : {"found another scenario of sweep.json, expected the same program and files as on rank 0",
                           "found \"scenario.json: found nothing"}) {
    const CommandResult result = mpi(run);
    EXPECT_EQ(result.code, 2);
    EXPECT_THAT(result.err, AllOf(HasSubstr("orrery: error: rank "), HasSubstr(says)));
    EXPECT_EQ(errors_in(result.err), 1) << result.err;
    EXPECT_EQ(place_.shell("test ! -e here/results.db").code, 0);
    std::filesystem::remove(place_.path() / "there" / "scenario.json");
  }
}

TEST(SweepWithoutMpi, SaysWhatDoesIt) {
  const Workplace place;
  place.write("sweep.json", small_sweep());
  ASSERT_EQ(place.shell("cp $ORRERY alone").code, 0);  // nothing beside it
  const CommandResult refused = place.shell("./alone sweep sweep.json --db results.db --mpi");
  EXPECT_EQ(refused.code, 2);
  EXPECT_EQ(refused.err,
            "orrery: error: --mpi: found no program orrery-mpi next to this one: it was built without MPI, expected "
            "--shard I/N on each machine, and then orrery sweep merge\n");
  const CommandResult other =
      place.shell("OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 ./alone sweep sweep.json --db results.db --mpi");
  EXPECT_EQ(other.code, 0);
  EXPECT_EQ(other.out + other.err, "") << "rank 0 says it";
}

}  // namespace
}  // namespace orrery
