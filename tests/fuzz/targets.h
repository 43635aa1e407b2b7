// What is fuzzed: each reader of what users give, with what is done to that afterwards. A target takes any bytes. It
// returns, or throws InputError, which is exit code 2; anything else that ends it is a fault of Orrery's, as is what
// takes more than seconds.
//
// A test runs each target over its corpus and some changes of it (corpus_test.cpp); libFuzzer runs it for as long as one
// likes (fuzzer_main.cpp, long.sh).
#pragma once

#include <array>
#include <string_view>

namespace orrery::fuzz {

void accuracy_baseline(std::string_view input);    // validate --baseline
void benchmark_history(std::string_view input);    // bench history: a file of SQLite
void benchmark_run(std::string_view input);        // bench compare: Google Benchmark's JSON
void calibration_journal(std::string_view input);  // calibrate --resume
void candidate(std::string_view input);            // of a plan of capacity, with its presets
void capacity_plan(std::string_view input);        // plan: candidates, deadline, budget
void cluster(std::string_view input);              // a scenario's cluster, with all that it is made of
void command_line(std::string_view input);         // words, a line each
void hybrid_profile(std::string_view input);       // galvatron: layers and links
void model(std::string_view input);                // a scenario's model, of Hugging Face or not
void nccl_log(std::string_view input);             // calibrate import: nccl-tests' output or JSON
void nvidia_topology(std::string_view input);      // nvidia-smi topo -m, rocm-smi --showtopo, amd-smi topology
void perturbations(std::string_view input);        // a scenario's list of them
void published(std::string_view input);            // results/published/steps
void report(std::string_view input);               // compare A.json B.json
void routing_trace(std::string_view input);        // counts of routed tokens, CSV or lines of JSON
void scenario(std::string_view input);             // lowered, proven and predicted
void scenario_lines(std::string_view input);       // simulate --batch, a line read with and without what was kept
void scenario_sets(std::string_view input);        // a bundled scenario's name, and a --set a line
void step_calibration(std::string_view input);     // results/calibration/steps.json
void sweep_database(std::string_view input);       // sweep export, compare: a file of SQLite
void sweep_document(std::string_view input);       // sweep: axes and conditions, and the points they make
void user_calibration(std::string_view input);     // --calibration: kernels, collectives, devices

enum class Form { json, text };  // JSON: a document, or one a line, which the fuzzer changes as documents

struct Target {
  std::string_view name;
  void (*run)(std::string_view input);
  int changes;  // that a test runs: about a second of them
  Form form = Form::json;
};
inline constexpr std::array kTargets{
    Target{"accuracy_baseline", accuracy_baseline, 11000},
    Target{"benchmark_history", benchmark_history, 2500, Form::text},
    Target{"benchmark_run", benchmark_run, 1000},
    Target{"calibration_journal", calibration_journal, 4000},
    Target{"candidate", candidate, 5500},
    Target{"capacity_plan", capacity_plan, 5000},
    Target{"cluster", cluster, 5500},
    Target{"command_line", command_line, 6000, Form::text},
    Target{"hybrid_profile", hybrid_profile, 3000},
    Target{"model", model, 5000},
    Target{"nccl_log", nccl_log, 6500},
    Target{"nvidia_topology", nvidia_topology, 40000, Form::text},
    Target{"perturbations", perturbations, 20000},
    Target{"published", published, 3000},
    Target{"report", report, 350},
    Target{"routing_trace", routing_trace, 70000, Form::text},
    Target{"scenario", scenario, 3000},
    Target{"scenario_lines", scenario_lines, 200},
    Target{"scenario_sets", scenario_sets, 4800, Form::text},
    Target{"step_calibration", step_calibration, 3000},
    Target{"sweep_database", sweep_database, 3000, Form::text},
    Target{"sweep_document", sweep_document, 3000},
    Target{"user_calibration", user_calibration, 450},
};

// Ends the run where what a reader promises does not hold.
void require(bool holds, const char* promise);

}  // namespace orrery::fuzz
