// Sweeps to be run, and what runs of them say.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/cli/command.h"

namespace orrery {

inline nlohmann::json swept_scenario() {
  return {{"model", "llama-3-8b"},
          {"cluster", {{"node", "dgx-h100"}, {"nodes", 2}}},
          {"workload", {{"sequence_length", 8192}, {"global_batch_size", 64}}},
          {"plan", {{"zero_stage", 1}, {"recompute", "full"}}}};
}

inline std::string sweep_over(const nlohmann::json& axes) {
  return nlohmann::json{{"scenario", swept_scenario()}, {"axes", axes}}.dump();
}

// 12 points, of which those of 3 ranks cannot be laid out.
inline std::string small_sweep() {
  return sweep_over({{"cluster.nodes", {2, 4}}, {"plan.tensor_parallel", {1, 2, 3}}, {"plan.zero_stage", {1, 3}}});
}

// So many points that a process can be killed among them.
inline std::string large_sweep() {
  return sweep_over({{"cluster.nodes", {1, 2, 4, 8}},
                     {"plan.recompute", {"none", "full"}},
                     {"plan.tensor_parallel", {1, 2, 4, 8}},
                     {"plan.zero_stage", {0, 1, 2, 3}},
                     {"workload.sequence_length", {{"from", 32}, {"to", 16384}, {"step", 32}}}});
}
inline constexpr int kLargePoints = 4 * 2 * 4 * 4 * 512;

// A function of bash: until_written FILE [N] returns when a running sweep has written more than N points (0) there,
// within milliseconds, so that much is left to be interrupted.
inline const std::string kUntilWritten = R"sh(until_written() {
  python3 - "$@" <<'END'
import sqlite3, sys, time
for _ in range(4000):
    try:
        with sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True) as database:
            if database.execute("SELECT count(*) FROM points").fetchone()[0] > int((*sys.argv, 0)[2]):
                sys.exit(0)
    except sqlite3.Error:
        pass  # not there yet
    time.sleep(0.005)
sys.exit("nothing was written")
END
}
)sh";

inline std::int64_t lines_of(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

// "N" of "N computed" in what a run says.
inline std::int64_t computed(const CommandResult& result) {
  const std::size_t end = result.out.find(" computed");
  EXPECT_NE(end, std::string::npos) << result.out << result.err;
  return end == std::string::npos ? -1 : std::stoll(result.out.substr(result.out.rfind(' ', end - 1) + 1));
}

inline std::string table_of(const Workplace& place, const std::string& database) {
  const CommandResult exported = place.orrery("sweep export " + database);
  EXPECT_EQ(exported.code, 0) << exported.err;
  return exported.out;
}

}  // namespace orrery
