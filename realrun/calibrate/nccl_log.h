// Reads measured collectives from the logs of nccl-tests and rccl-tests, of any version: what they print, or the file
// that they write with -J FILE.json.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/program/op.h"

namespace orrery {

struct CollectivePoint {
  double bytes = 0;  // nccl-tests' size: the full buffer
  double seconds = 0;
  std::size_t line = 0;  // its line in the log, from 1; 0: read from JSON
};

struct CollectiveCurve {
  std::string id, source;
  std::string collective;  // "all_reduce", as in results/published/collectives.json
  OpKind kind = OpKind::all_reduce;
  std::int64_t ranks = 1;  // of one communicator
  std::int64_t hosts = 1;  // different host names in the log, on which those ranks ran
  std::int64_t nodes = 1;  // as `hosts`, until place_on (collective_fit.h) says how many nodes of a cluster they are
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::automatic;  // a log does not say it
  std::string device;                                              // as the driver names it
  std::string dtype;
  std::vector<CollectivePoint> points;
};

struct LogOptions {
  bool in_place = false;  // reads the in-place times, not the out-of-place ones
  // Reads only the tests of this collective, one of kCollectiveKinds; empty: all tests. A test counts as one of it
  // where neither the log nor the file's name says the collective.
  std::string collective;
};

struct CollectiveLog {
  std::vector<CollectiveCurve> curves;  // one for each test, in the log's order; at least one
  std::vector<std::string> left_out;    // the tests of other collectives than the wanted one: "all_gather, line 40"
};

// `file`: the path of the log. A log may hold several tests, one after the other. The reader ignores what a launcher
// puts before a line (its tag, a rank, a host, a time) and colours, and accepts headers that have lost their "#".
// Throws InputError, with the line, for a text that is no such log, for a test that was cut off, for results that
// nccl-tests found wrong, for processes that each ran a test alone, and for mixed lines of several runs: the last two
// do not measure one communicator of several ranks.
CollectiveLog read_nccl_log(const std::string& file, const LogOptions& options);
CollectiveLog parse_nccl_log(const std::string& text, const std::string& file, const LogOptions& options);

}  // namespace orrery
