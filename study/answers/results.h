// What `orrery simulate` answers, as documents.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sim/report/report.h"
#include "study/simulation/simulation.h"

namespace orrery {

// What was simulated. References must outlive it.
struct Asked {
  const nlohmann::json& document;
  const ScenarioSource& source;
  const std::vector<std::string>& calibrations;  // the user's files
  const std::string& label;                      // what the result is called; may be empty
  bool ops = false;                              // keep the lists of ops
};

// { "label", "scenario", "set", report, "version", "inputs" }; of both engines "analytical", "des" and "change" in
// place of one report, of jobs those of jobs_json() without what was asked.
nlohmann::ordered_json simulation_json(const Asked& asked, const Report& report);
nlohmann::ordered_json both_json(const Asked& asked, const Report& analytical, const Report& des);
nlohmann::ordered_json jobs_json(const Asked& asked, const std::vector<JobResult>& jobs);

// {"jobs": [{"name": ..., "slowdown": ..., "alone_seconds": ..., "together": report}], "version": ...}
nlohmann::ordered_json jobs_json(const std::vector<JobResult>& jobs, bool ops);

}  // namespace orrery
