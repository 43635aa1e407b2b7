// Measured collectives from what nccl-tests and rccl-tests print, of any version, or write with -J FILE.json.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/program/op.h"

namespace orrery {

struct CollectivePoint {
  double bytes = 0;  // nccl-tests' size: the full buffer
  double seconds = 0;
  std::size_t line = 0;  // of the log; 0: JSON
};

struct CollectiveCurve {
  std::string id, source;
  std::string collective;  // "all_reduce", as in results/published/collectives.json
  OpKind kind = OpKind::all_reduce;
  std::int64_t ranks = 1;  // of one communicator
  std::int64_t hosts = 1;  // that they ran on, as the log names them
  std::int64_t nodes = 1;  // the hosts, until place_on (collective_fit.h) says how many nodes of a cluster they are
  std::string device;      // as the driver names it
  std::string dtype;
  std::vector<CollectivePoint> points;
};

struct LogOptions {
  bool in_place = false;  // which of the two columns
  std::string
      collective;  // which of the log's tests; what the tests are where the log, or its file's name, does not say
};

// The values of LogOptions::collective.
std::vector<std::string> collectives_of_logs();

struct CollectiveLog {
  std::vector<CollectiveCurve> curves;  // one a test, in the log's order; at least one
  std::vector<std::string> left_out;    // tests that are not of the wanted collective: "all_gather, line 40"
};

// `file`: a path. Several tests may follow each other in one log. Whatever a launcher puts before a line (its tag, a
// rank, a host, a time), colours and a lost "#" are overlooked. Throws InputError, with the line, for what is no such
// log, for a test that was cut off, for results that nccl-tests found wrong, and for what measures no communicator of
// several ranks: processes that each ran by themselves, or lines of several runs that are mixed.
CollectiveLog read_nccl_log(const std::string& file, const LogOptions& options);
CollectiveLog parse_nccl_log(const std::string& text, const std::string& file, const LogOptions& options);

}  // namespace orrery
