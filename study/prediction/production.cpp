#include "study/prediction/production.h"

#include <fmt/format.h>

#include "sim/cost/step_calibration.h"
#include "sim/report/format.h"
#include "sim/report/terms.h"

namespace orrery {

void add_production(const Cluster& cluster, Report& report) {
  if (!cluster.production) return;
  const ProductionSlowdown& slowdown = production_slowdown();
  const double before = report.step_seconds, factor = 1 + slowdown.median;
  for (StageReport& stage : report.stages) stage.time.production += slowdown.median * before;
  for (double* seconds : {&report.step_seconds, &report.pipeline_seconds}) *seconds *= factor;
  for (double* rate : {&report.tokens_per_second, &report.tokens_per_second_per_device, &report.sequences_per_second,
                       &report.model_flops_per_second_per_device, &report.mfu, &report.mfu_full_attention, &report.hfu})
    *rate /= factor;
  if (report.expected) {
    report.expected->low_seconds *= 1 + slowdown.better_tenth();
    report.expected->high_seconds *= 1 + slowdown.worse_tenth();
  }
  report.notes.push_back(
      fmt::format("on a shared production cluster the median job's steps take {} longer, and those of one job in ten "
                  "{} or more; measured on jobs with at least 128 devices (results/calibration/scale.json)",
                  percent_text(slowdown.median), percent_text(slowdown.worse_tenth())));
  summarise_bounding_stage(report);
}

}  // namespace orrery
