#include "study/answers/results.h"

#include <nlohmann/json.hpp>

#include "sim/base/json_writer.h"
#include "sim/report/json.h"
#include "study/answers/build_commit.h"
#include "study/answers/inputs.h"

namespace orrery {
namespace {

using OrderedJson = nlohmann::ordered_json;

// The report with the version.
OrderedJson result_json(const Report& report, bool ops) {
  std::string text;
  JsonWriter writer(text);
  writer.begin_object();
  write_report(report, ops, writer);
  writer.field("version", ORRERY_VERSION);
  writer.end_object();
  return OrderedJson::parse(text);
}

OrderedJson both_result_json(const Report& analytical, const Report& des, bool ops) {
  OrderedJson compared = comparison_json(analytical, des);
  for (const char* side : {"a", "b"})
    if (!ops) compared[side].erase("ops");
  return {{"analytical", std::move(compared["a"])},
          {"des", std::move(compared["b"])},
          {"change", std::move(compared["change"])},
          {"version", ORRERY_VERSION}};
}

// `result` between what was asked and what it was made of.
OrderedJson answered(const Asked& asked, const OrderedJson& result) {
  OrderedJson json;
  if (!asked.label.empty()) json["label"] = asked.label;
  json["scenario"] = asked.source.file;
  json["set"] = asked.source.sets;
  json.update(result);
  json["inputs"] = inputs_json(asked.document, asked.source, asked.calibrations);
  return json;
}

}  // namespace

OrderedJson simulation_json(const Asked& asked, const Report& report) {
  return answered(asked, result_json(report, asked.ops));
}

OrderedJson both_json(const Asked& asked, const Report& analytical, const Report& des) {
  return answered(asked, both_result_json(analytical, des, asked.ops));
}

OrderedJson jobs_json(const Asked& asked, const std::vector<JobResult>& jobs) {
  return answered(asked, jobs_json(jobs, asked.ops));
}

OrderedJson jobs_json(const std::vector<JobResult>& jobs, bool ops) {
  OrderedJson list = OrderedJson::array();
  for (const JobResult& result : jobs) {
    OrderedJson together = report_json(result.together);
    if (!ops) together.erase("ops");
    list.push_back({{"name", result.job.name},
                    {"nodes", result.job.scenario.cluster.nodes},
                    {"first_node", result.job.placement.first_node},
                    {"node_stride", result.job.placement.node_stride},
                    {"slowdown", result.slowdown()},
                    {"alone_seconds", result.alone_seconds},
                    {"most_shared_link", result.most_shared_link},
                    {"together", std::move(together)}});
  }
  return {{"jobs", std::move(list)}, {"version", ORRERY_VERSION}};
}

}  // namespace orrery
