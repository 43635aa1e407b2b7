// Simulates many scenarios in one process: lines of JSON in, lines of JSON or CSV out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/offers.h"

namespace orrery {

// What `orrery simulate` is asked for, of one scenario or of a batch.
struct SimulateArguments {
  std::string scenario;
  std::vector<std::string> sets;          // of a batch: applied to every line
  std::vector<std::string> calibrations;  // calibration files of the user
  // Output files, "-": standard output; empty: no output in that format.
  std::string json, csv, trace, memory_trace, svg;
  std::string explain;
  std::string batch;   // a file with a scenario a line, or "-": standard input; empty: one scenario
  std::string fields;  // columns of a batch's results; empty: all of the report
  std::string label;   // name of the result or of the batch, if not its file
  EngineArguments engine;
  std::optional<std::int64_t> steps;  // none: one step, with its full report
  std::string database;
  // ops: keep the list of ops; not with fields. verify: prove every Program (sim/program/check.h); one that is wrong is
  // an error of its line in a batch.
  bool ops = false, verbose = false, verify = false;
  bool expandable_segments = false, planned_memory = false;
};

// Each line of `batch` that is not blank is a scenario, or with the discrete-event engine also jobs. The outputs get
// its result or its error ({"error": {...}}, or a text in CSV's last column), in the same order. Relative paths in a
// scenario start from the input's folder. Throws InputError if there is no scenario at all, and, after everything is
// written, if all of them are errors. Throws Exit with code 1 if a Program is wrong.
void run_batch(const SimulateArguments& arguments);

}  // namespace orrery
