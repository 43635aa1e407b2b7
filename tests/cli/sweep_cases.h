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

// So many points that a process can be ended among them.
inline std::string large_sweep() {
  return sweep_over({{"cluster.nodes", {1, 2, 4, 8}},
                     {"plan.recompute", {"none", "full"}},
                     {"plan.tensor_parallel", {1, 2, 4, 8}},
                     {"plan.zero_stage", {0, 1, 2, 3}},
                     {"workload.sequence_length", {{"from", 128}, {"to", 16384}, {"step", 128}}}});
}
inline constexpr int kLargePoints = 4 * 2 * 4 * 4 * 128;

// A function of bash: ended FILE SIGNAL RANK COMMAND... starts a sweep and sends it the signal within milliseconds of
// its first points in FILE, so that much is left to be computed: to the rank of that number where mpirun starts it, to
// the command itself for "-". It prints "exit CODE", as bash has it, and "all gone" once mpirun's ranks are.
inline const std::string kEnded = R"sh(ended() {
  python3 - "$@" <<'END'
import os, pathlib, signal, sqlite3, subprocess, sys, time
file, name, rank, *command = sys.argv[1:]
def points():
    try:
        with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as database:
            return database.execute("SELECT count(*) FROM points").fetchone()[0]
    except sqlite3.Error:
        return 0  # not there yet
before = points()
process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
while points() <= before:
    if process.poll() is not None:
        sys.exit(f"exit {process.returncode} before anything was written")
    time.sleep(0.001)
ranks = {}
for child in pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
    for variable in pathlib.Path(f"/proc/{child}/environ").read_text().split("\0"):
        if variable.startswith("OMPI_COMM_WORLD_RANK="):
            ranks[variable.split("=")[1]] = int(child)
os.kill(process.pid if rank == "-" else ranks[rank], getattr(signal, name))
code = process.wait()
print("exit", code if code >= 0 else 128 - code, flush=True)
for _ in range(500):
    if not any(os.path.exists(f"/proc/{pid}") for pid in ranks.values()):
        print("all gone")
        break
    time.sleep(0.02)
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
