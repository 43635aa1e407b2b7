// The folded cluster as a SimGrid platform. Internal to sim/des; pulls in SimGrid.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <simgrid/s4u.hpp>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/des/fair_flows.h"
#include "sim/des/plan.h"
#include "sim/des/simgrid/clock.h"

namespace orrery {

namespace sg4 = simgrid::s4u;

// Plain max-min: no TCP window, no acknowledgements' traffic, no shares by latency (all links have none). Call first.
void configure_simgrid();

// Flows that one process waits for.
struct Flight {
  std::size_t left = 0;
  Self* waiting = nullptr;
  bool failed = false;  // a link under one of them
  std::uint32_t failed_class = 0;
};

// A link for each class of links that can bind, a host for each class of flows. A flow's route holds each of its links
// as often as the flows of its class pass it.
//
// While a flow is alone on all of its links, and nothing disturbs them, its end is known: it is a date of the clock. It
// becomes a flow of SimGrid, of the bytes that are left, when another comes over one of its links. What starts beside
// others is one from the beginning. So do the flows of one exchange that share links with each other alone: how they
// fare is the same each time, and is found once (FairFlows). SimGrid's clock is moved on to the run's when there is one
// to start, and leads while any is under way.
class Network {
 public:
  Network(const RunPlan& plan, Clock& clock);

  // Runs processes and flows until `ended`, or until nothing moves any more. Call once.
  void run(std::function<bool()> ended);

  // For run() and what it runs. `wire_bytes`: that it occupies on its links. At its end `end` is set, and `flight` has
  // one less left; both must stay where they are until then.
  void start(std::uint32_t flow_class, double wire_bytes, Flight& flight, double& end);
  // Several that one exchange starts at once. `exchange`: tells those of the same classes and bytes from all others.
  using ExchangeKey = std::tuple<std::int32_t, std::uint32_t, int, double, double>;
  void start(const ExchangeKey& exchange, std::span<const std::uint32_t> flow_classes,
             std::span<const double> wire_bytes, Flight& flight, std::span<double* const> ends);
  // A flow that never ends by itself.
  void start_background(std::uint32_t flow_class);
  void end_background(std::uint32_t flow_class);
  // From now on the link carries `factor` of what it does. Not if the class never binds.
  void slow(std::uint32_t link_class, double factor);
  void fail(std::uint32_t link_class);
  bool is_disturbed(std::uint32_t link_class) const { return disturbed_[link_class] != 0; }
  bool binds(std::uint32_t link_class) const { return links_[link_class] != nullptr; }

  // Of a flow that has its links to itself, whatever else happens, and that nothing disturbs; 0: of no such flow.
  double seconds_per_byte_alone(std::uint32_t flow_class) const { return alone_[flow_class]; }
  // A flow over no link at all takes no time.
  bool unbound(std::uint32_t flow_class) const { return unbound_[flow_class] != 0; }
  std::int64_t flows() const { return flows_started_; }

 private:
  struct Flow final : Timed {  // under way
    void due(Clock& clock) override { network->finish(*this, clock.now()); }

    Network* network = nullptr;
    std::uint32_t flow_class = 0;
    double wire_bytes = 0, begin = 0;
    bool alone = false;
    Flight* flight = nullptr;
    double* end = nullptr;
  };
  // How the flows of an exchange fare that have their links to themselves.
  struct Course {
    std::vector<std::uint32_t> flow_classes;
    FairFlows flows;
    std::vector<double> seconds;
    double longest = 0;
  };
  struct Together final : Timed {  // such flows, under way
    void due(Clock&) override { network->finish(*this); }

    Network* network = nullptr;
    const Course* course = nullptr;
    double begin = 0;
    Flight* flight = nullptr;
    std::vector<double*> ends;
  };
  // An actor of SimGrid that waits for one flow after another. Never freed, as background flows are not: SimGrid
  // complains of an activity that is dropped under way, as it is when the run ends first.
  struct Carrier {
    sg4::SemaphorePtr called = sg4::Semaphore::create(0);
    sg4::CommPtr comm;
    Flow* flow = nullptr;
  };
  struct Request {  // of a flow of SimGrid
    Flow* flow;
    double wire_bytes;
  };

  void drive(const std::function<bool()>& ended);
  // Until something ends, or that time at the latest; returns the time that it is.
  double wait_until(double time);
  void start_requested();
  void carry(Carrier& carrier);
  sg4::CommPtr send(std::uint32_t flow_class, double wire_bytes);
  Flow& new_flow(std::uint32_t flow_class, Flight& flight, double& end);
  void share(Flow& flow);  // no longer alone
  const Course& course_of(const ExchangeKey& exchange, std::span<const std::uint32_t> flow_classes,
                          std::span<const double> wire_bytes);
  void part(Together& together);  // no longer by themselves
  void leave_links(Together& together);
  void finish(Together& together);
  void meet_on(std::uint32_t link_class);  // what has it to itself
  void leave_links(Flow& flow);
  void finish(Flow& flow, double time);
  void start_at_full_rate(const sg4::CommPtr& comm, std::uint32_t flow_class) const;

  const Traffic& traffic_;
  Clock& clock_;
  std::vector<sg4::Link*> links_;
  std::vector<double> rates_;
  std::vector<double> alone_;
  std::vector<std::vector<std::uint32_t>> ways_;      // of a flow class: links that bind
  std::vector<double> seconds_per_byte_;              // of a flow class, alone
  std::vector<char> disturbed_;                       // links that perturbations touch
  std::vector<std::uint32_t> on_link_;                // flows under way
  std::vector<Flow*> alone_on_;                       // by link
  std::vector<Together*> together_on_;                // by link
  std::vector<char> binds_;                           // links
  std::vector<double> factors_;                       // of links
  std::vector<std::vector<std::uint32_t>> may_slow_;  // of a flow class's links, those that perturbations slow
  std::vector<sg4::Host*> hosts_;
  std::vector<char> unbound_;
  sg4::Host *driver_host_ = nullptr, *sink_ = nullptr;

  std::map<ExchangeKey, Course> courses_;
  std::deque<Together> all_together_;
  std::vector<Together*> free_together_;
  std::vector<double> left_, seconds_;  // of part()
  std::deque<Flow> all_flows_;
  std::vector<Flow*> free_flows_;
  std::vector<Carrier*> idle_carriers_;
  std::vector<Request> requests_;
  std::vector<std::uint32_t> background_requests_;
  std::map<std::uint32_t, const sg4::CommPtr*> background_;
  std::int64_t under_way_ = 0, flows_started_ = 0;  // of SimGrid but background; all
  sg4::SemaphorePtr woken_;
  bool driver_waits_ = false;
};

}  // namespace orrery
