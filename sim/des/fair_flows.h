// The progress of flows that start at the same time and share their links with no other flows, by max-min fair sharing
// from start to end (progressive filling: Bertsekas and Gallager, Data Networks, section 6.5.2). Internal to sim/des.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "sim/des/traffic.h"

namespace orrery {

class FairFlows {
 public:
  // `bytes`: bytes on the links, of one flow of each class. Links whose `binds` is 0 are ignored. REQUIRES: each flow
  // has a link that binds.
  FairFlows(std::span<const FlowClass> classes, std::span<const LinkClass> links, std::span<const char> binds,
            std::span<const std::uint32_t> flow_classes, std::span<const double> bytes);

  // Whether any two flows share a link.
  bool share() const { return share_; }
  std::span<const std::uint32_t> links() const { return link_classes_; }  // of all flows, each once

  // Runs until time `until`. `left`: bytes left of each flow. `seconds`: for flows that have ended (none left), the
  // time that they took.
  void run(double until, std::vector<double>& left, std::vector<double>& seconds) const;
  void run(std::vector<double>& left, std::vector<double>& seconds) const {
    run(std::numeric_limits<double>::infinity(), left, seconds);
  }

 private:
  struct Use {  // of a link by a flow
    std::uint32_t flow, link;
    double flows;  // LinkTraffic::flows
  };
  std::span<const Use> of_flow(std::size_t flow) const {
    return std::span(uses_).subspan(first_use_[flow], first_use_[flow + 1] - first_use_[flow]);
  }
  std::span<const std::uint32_t> on_link(std::size_t link) const {
    return std::span(flows_on_).subspan(first_on_[link], first_on_[link + 1] - first_on_[link]);
  }
  void find_rates(const std::vector<double>& left, std::size_t running, std::vector<double>& rate) const;

  std::vector<double> bytes_, capacity_;
  std::vector<std::uint32_t> link_classes_;
  std::vector<Use> uses_;
  std::vector<std::uint32_t> flows_on_;
  std::vector<std::size_t> first_use_, first_on_;
  bool share_ = false;
};

}  // namespace orrery
