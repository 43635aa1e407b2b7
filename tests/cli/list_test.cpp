// Is what `orrery list` prints for programs the same as for people, and are its fields those of scenarios?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/cli/command.h"

namespace orrery {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(List, NamesAreThoseOfTheRows) {
  const Workplace place;
  for (const char* kind :
       {"models", "clusters", "nodes", "devices", "fabrics", "strategies", "scenarios", "measurements", "fields", "plans",
        "prices", "power", "sites", "grids", "failures", "storage", "restarts", "sweeps"}) {
    std::string names;
    for (const auto& row : nlohmann::json::parse(place.orrery(std::string("list ") + kind + " --json").out)) {
      names += row["name"].get<std::string>() + "\n";
      EXPECT_FALSE(row["summary"].get<std::string>().empty()) << row;
    }
    EXPECT_EQ(place.orrery(std::string("list ") + kind + " --names").out, names);
  }
  EXPECT_EQ(place.orrery("list models --names --json").code, 2);
}

TEST(List, FieldsAreThoseThatSetTakes) {
  const Workplace place;
  const std::string fields = place.orrery("list fields --names").out;
  EXPECT_THAT(fields, AllOf(HasSubstr("\nplan.tensor_parallel\n"), HasSubstr("\ncluster.node.nic_bytes_per_second\n"),
                            HasSubstr("\nworkload.global_batch_size\n"), Not(HasSubstr("$schema"))));
  const auto errors = place.shell(
      "\"$ORRERY\" list fields --names | while read -r field; do \"$ORRERY\" simulate small-gpt --set \"$field=@\"; "
      "done");
  EXPECT_THAT(errors.err, AllOf(HasSubstr("plan.tensor_parallel=@"), Not(HasSubstr("unknown key"))));
}

}  // namespace
}  // namespace orrery
