// Measured collectives from what nccl-tests prints (2.13 and later; rccl-tests alike), or writes with -J FILE.json.
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
  std::int64_t ranks = 1, nodes = 1;
  std::string device;  // as the driver names it
  std::string dtype;
  std::vector<CollectivePoint> points;
};

struct LogOptions {
  bool in_place = false;   // which of the two columns
  std::string collective;  // instead of what the log, or its file's name, says
};

// The values of LogOptions::collective.
std::vector<std::string> collectives_of_logs();

// `file`: a path. Throws InputError, with the line, for what is no such log, for one that was cut off, and for results
// that nccl-tests found wrong.
CollectiveCurve read_nccl_log(const std::string& file, const LogOptions& options);
CollectiveCurve parse_nccl_log(const std::string& text, const std::string& file, const LogOptions& options);

}  // namespace orrery
