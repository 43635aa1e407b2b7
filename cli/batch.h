// Simulates many scenarios in one process: lines of JSON in, lines of JSON or CSV out.
#pragma once

#include <string>
#include <vector>

#include "study/simulation/simulation.h"

namespace orrery {

struct BatchOptions {
  std::string input;                      // a file, or "-": standard input
  std::vector<std::string> sets;          // applied to every line
  std::vector<std::string> calibrations;  // calibration files of the user
  std::string label;                      // name of the input in results, if not `input`
  // Output files, "-": standard output; empty: no output in that format.
  std::string json, csv;
  std::vector<std::string> fields;  // CSV columns; empty: all of the report
  SimulationOptions simulation;
  bool ops = false;  // keep the list of ops; not with fields
  // Prove every Program (sim/program/check.h); a Program that is wrong is an error of its line.
  bool verify = false;
};

// Parses "a,b,c" as names of CSV columns. Throws InputError for unknown or repeated names.
std::vector<std::string> read_fields(const std::string& text);

// Each line of the input that is not blank is a scenario, or with the discrete-event engine also jobs. The outputs get
// its result or its error ({"error": {...}}, or a text in CSV's last column), in the same order. Relative paths in a
// scenario start from the input's folder. Throws InputError if there is no scenario at all, and, after everything is
// written, if all of them are errors. Throws Exit with code 1 if a Program is wrong.
void run_batch(const BatchOptions& options, UserCalibration user);

}  // namespace orrery
