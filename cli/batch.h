// Many scenarios in one process: a line of JSON in, a line of JSON or CSV out.
#pragma once

#include <string>
#include <vector>

#include "study/simulation/simulation.h"

namespace orrery {

struct BatchOptions {
  std::string input;                      // a file, or "-": standard input
  std::vector<std::string> sets;          // applied to every line
  std::vector<std::string> calibrations;  // files of the user's
  std::string label;                      // what results are called in place of `input`
  std::string json, csv;                  // where results go, "-": standard output; empty: not in that form
  std::vector<std::string> fields;        // of CSV's columns, or empty: all of the report
  SimulationOptions simulation;
  bool ops = false;     // keep the list of ops; not with fields
  bool verify = false;  // prove every Program (sim/program/check.h): one that is wrong is its line's error
};

// "a,b,c" as names of CSV's columns. Throws InputError for what is none, or comes twice.
std::vector<std::string> read_fields(const std::string& text);

// Each line of the input that is not blank is a scenario, or with the discrete-event engine jobs. The outputs get its
// result, or what is wrong with it ({"error": {...}}, or a text in CSV's last column), in the same order. Relative
// paths in a scenario start from the input's folder. Throws InputError when there is no scenario at all, and, once
// everything is written, when each of them is in error; Exit, with code 1, when one could not be verified.
void run_batch(const BatchOptions& options, UserCalibration user);

}  // namespace orrery
