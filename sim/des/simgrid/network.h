// The folded cluster as a SimGrid platform. Internal to sim/des; pulls in SimGrid.
#pragma once

#include <cstdint>
#include <simgrid/s4u.hpp>
#include <vector>

#include "sim/des/plan.h"

namespace orrery {

namespace sg4 = simgrid::s4u;

// Plain max-min: no TCP window, no acknowledgements' traffic, no shares by latency (all links have none). Call first.
void configure_simgrid();

inline double now() { return sg4::Engine::get_clock(); }

// A link for each class of links that can bind, a host for each class of flows. A flow's route holds each of its links
// as often as the flows of its class pass it.
class Network {
 public:
  explicit Network(const RunPlan& plan);

  sg4::Host* clock() const { return clock_; }
  sg4::Host* host(std::uint32_t flow_class) const { return hosts_[flow_class]; }
  // Null if the class never binds.
  sg4::Link* link(std::uint32_t link_class) const { return links_[link_class]; }
  // From now on the link carries `factor` of what it does.
  void slow(std::uint32_t link_class, double factor);
  // Of a flow that has its links to itself, whatever else happens, and that nothing disturbs; 0: of no such flow.
  double seconds_per_byte_alone(std::uint32_t flow_class) const { return alone_[flow_class]; }
  // A flow over no link at all takes no time.
  bool unbound(std::uint32_t flow_class) const { return unbound_[flow_class] != 0; }
  // In bytes that the flow occupies on its links.
  sg4::CommPtr start(std::uint32_t flow_class, double wire_bytes) const;
  // A background flow, which never ends.
  sg4::CommPtr start_background(std::uint32_t flow_class) const;

 private:
  std::vector<sg4::Link*> links_;
  std::vector<double> rates_;
  std::vector<double> alone_;
  std::vector<double> factors_;                       // of links
  std::vector<std::vector<std::uint32_t>> may_slow_;  // of a flow class's links, those that perturbations slow
  void start_at_full_rate(const sg4::CommPtr& comm, std::uint32_t flow_class) const;
  std::vector<sg4::Host*> hosts_;
  std::vector<char> unbound_;
  sg4::Host *clock_ = nullptr, *sink_ = nullptr;
};

}  // namespace orrery
