#include "sim/report/summary.h"

namespace orrery {

void summarise_bounding_stage(Report& report) {
  const TimeBreakdown& time = report.stages[static_cast<std::size_t>(report.bounding_stage)].time;
  report.bubble_fraction = time.bubble / report.step_seconds;
  report.exposed_communication_seconds = 0;
  for (int s = 1; s < static_cast<int>(Stream::device_to_host); ++s)
    report.exposed_communication_seconds += time.exposed[static_cast<std::size_t>(s)];

  static constexpr std::array<const char*, kStreams> kExposedWords{"compute",
                                                                   "exposed tensor-parallel communication",
                                                                   "exposed context-parallel communication",
                                                                   "exposed expert-parallel communication",
                                                                   "exposed gradient reduction",
                                                                   "exposed parameter gathering",
                                                                   "exposed pipeline transfers",
                                                                   "exposed copies to the host",
                                                                   "exposed copies to the device",
                                                                   "exposed host kernels",
                                                                   "exposed storage transfers"};
  double largest = -1;
  const auto consider = [&](double term, const char* words) {
    if (term <= largest) return;
    largest = term;
    report.bound_by = words;
  };
  consider(time.matmul, "matrix products");
  consider(time.attention, "attention");
  consider(time.memory_bound, "memory-bound kernels");
  consider(time.recompute, "recomputation");
  consider(time.host_issue, "the host's launches");
  consider(time.bubble, "pipeline bubble");
  consider(time.optimizer, "optimizer");
  for (std::size_t s = 1; s < kStreams; ++s) consider(time.exposed[s], kExposedWords[s]);
}

}  // namespace orrery
