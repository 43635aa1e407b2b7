// Turns the records of a run into the report. Internal to sim/des.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sim/des/simulation.h"

namespace orrery {

class Results {
 public:
  // Keeps references. `seconds`: seconds of the run.
  Results(const SimulationPlan& plan, const Outcome& outcome, double seconds);

  // Overwrites the times of an analytical report of the same job. `stage_classes`: see
  // AnalyticalEngine::stage_classes().
  void fill(std::size_t job, std::span<const std::int32_t> stage_classes, Report& report) const;
  std::vector<LinkReport> link_kinds(double step_seconds) const;

 private:
  std::vector<std::uint32_t> rank_classes_of(std::size_t job) const;
  std::string who(std::uint32_t rank_class) const;
  std::string what(std::uint32_t rank_class, std::uint32_t name) const;
  void fill_terms(std::size_t job, std::span<const std::int32_t> stage_classes, Report& report) const;
  void fill_critical_path(std::size_t job, double step_seconds, DiscreteEventReport& d) const;
  void fill_contention(std::size_t job, double step_seconds, DiscreteEventReport& d) const;
  // The busiest link on the way of the exchange's longest run, during that run.
  std::string busiest_link_of(const ExchangeRecord& r) const;
  void fill_waits(std::size_t job, DiscreteEventReport& d) const;
  // `named`: complete except for the timeline.
  void fill_timeline(std::size_t job, const DiscreteEventReport& named, Report& report) const;
  // The rank classes of the job that the report names, most important first, without those that represent its stages.
  std::vector<std::uint32_t> named_ranks(std::size_t job, const DiscreteEventReport& named,
                                         std::span<const std::uint32_t> speakers) const;
  std::vector<std::uint32_t> by_load() const;  // link classes that carry anything, the busiest first
  std::vector<LinkReport> busiest_links(double step_seconds) const;
  std::vector<LinkReport> link_reports(std::span<const std::uint32_t> link_classes, double step_seconds) const;

  const SimulationPlan& plan_;
  const Outcome& outcome_;
  std::vector<double> bytes_, wire_bytes_;  // over each link of a class
  std::vector<double> rates_;               // by link class: mean rate of a link over the run; slowed links have less
};

}  // namespace orrery
