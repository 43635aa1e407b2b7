// The folded cluster as a SimGrid platform. Internal to sim/des; pulls in SimGrid.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <simgrid/s4u.hpp>
#include <span>
#include <tuple>
#include <vector>

#include "sim/des/fair_flows.h"
#include "sim/des/plan.h"
#include "sim/des/simgrid/clock.h"

namespace orrery {

namespace sg4 = simgrid::s4u;

// Configures SimGrid for plain max-min sharing: no TCP window, no traffic for acknowledgements, no shares by latency
// (all links have none). Call it first.
void configure_simgrid();

// The flows that one process waits for.
struct Flight {
  std::size_t left = 0;
  Self* waiting = nullptr;
  bool failed = false;  // a link of one of them has failed
  std::uint32_t failed_class = 0;
};

// There is one SimGrid link per class of links that can bind, and one host per class of flows. The route of a flow
// holds each of its links as many times as the flows of its class pass it.
//
// While a flow is alone on all its links, and nothing disturbs them, its end is known in advance and is an event of the
// clock. When another flow starts on one of its links, it becomes a flow of SimGrid with the bytes that are left. A
// flow that starts beside others is a flow of SimGrid from the beginning. Flows of one exchange that share links only
// with each other are treated like a flow alone: their course is the same each time and is computed once (FairFlows).
// SimGrid's clock is advanced to the run's clock when a flow of SimGrid starts, and leads while any is under way.
class Network {
 public:
  Network(const SimulationPlan& plan, Clock& clock);

  // Runs processes and flows until `ended`, or until nothing moves any more. Call once.
  void run(std::function<bool()> ended);

  // For run() and the processes that it runs. `wire_bytes`: bytes that the flow occupies on its links. At its end `end`
  // is set, and `flight.left` decreases by one. REQUIRES: `flight` and `end` stay valid until then.
  void start(std::uint32_t flow_class, double wire_bytes, Flight& flight, double& end);
  // Starts several flows of one exchange at the same time. `exchange`: a key that distinguishes flows of these classes
  // and bytes from all others.
  using ExchangeKey = std::tuple<std::int32_t, std::uint32_t, int, double, double>;
  void start(const ExchangeKey& exchange, std::span<const std::uint32_t> flow_classes,
             std::span<const double> wire_bytes, Flight& flight, std::span<double* const> ends);
  // A flow that never ends by itself.
  void start_background(std::uint32_t flow_class);
  void end_background(std::uint32_t flow_class);
  // From now on the link carries `factor` of its present rate. REQUIRES: binds(link_class).
  void slow(std::uint32_t link_class, double factor);
  void fail(std::uint32_t link_class);
  bool is_disturbed(std::uint32_t link_class) const { return disturbed_[link_class] != 0; }
  bool binds(std::uint32_t link_class) const { return links_[link_class] != nullptr; }

  // Seconds per byte of a flow that never shares its links and that nothing disturbs; 0 for all other flows.
  double seconds_per_byte_alone(std::uint32_t flow_class) const { return alone_[flow_class]; }
  // Whether the flow passes no link at all; it then takes no time.
  bool unbound(std::uint32_t flow_class) const { return ways_[flow_class].empty(); }
  std::int64_t flows() const { return flows_started_; }

 private:
  struct Flow {  // under way in SimGrid
    std::uint32_t flow_class = 0;
    Flight* flight = nullptr;
    double* end = nullptr;
  };
  // The course of an exchange's flows that share links only with each other.
  struct Course {
    std::vector<std::uint32_t> flow_classes;
    FairFlows flows;
    std::vector<double> seconds;
    double longest = 0;
  };
  // Flows under way that have their links to themselves, so that their ends are known: those of a course, or one alone.
  struct Foreseen final : Timed {
    void due(Clock&) override { network->finish(*this); }

    Network* network = nullptr;
    const Course* course = nullptr;  // null: one flow of the class, with these bytes
    std::uint32_t flow_class = 0;
    double wire_bytes = 0;
    double begin = 0;
    Flight* flight = nullptr;
    std::vector<double*> ends;
  };
  // An actor of SimGrid that waits for one flow after another. It is never freed, and neither are background flows:
  // SimGrid complains about an activity that is dropped while under way, which happens when the run ends first.
  struct Carrier {
    sg4::SemaphorePtr called = sg4::Semaphore::create(0);
    sg4::CommPtr comm;
    Flow* flow = nullptr;
  };
  struct Request {  // to start a flow in SimGrid
    Flow* flow;
    double wire_bytes;
  };

  void drive(const std::function<bool()>& ended);
  // Waits until something ends, at most until `time`. Returns the time then.
  double wait_until(double time);
  void start_requested();
  void carry(Carrier& carrier);
  sg4::CommPtr send(std::uint32_t flow_class, double wire_bytes);
  // Requests a flow of SimGrid.
  void request(std::uint32_t flow_class, double wire_bytes, Flight& flight, double& end);
  void land(Flight& flight);  // one of its flows has ended
  const Course& course_of(const ExchangeKey& exchange, std::span<const std::uint32_t> flow_classes,
                          std::span<const double> wire_bytes);
  bool is_taken(std::uint32_t link_class) const { return on_link_[link_class] != 0 || disturbed_[link_class] != 0; }
  std::span<const std::uint32_t> links_of(const Foreseen& flows) const {
    return flows.course != nullptr ? flows.course->flows.links() : ways_[flows.flow_class];
  }
  // Starts the flows on links that are not taken; they end after `seconds`.
  void foresee(const Course* course, std::uint32_t flow_class, double wire_bytes, double seconds, Flight& flight,
               std::span<double* const> ends);
  void part(Foreseen& flows);  // turns them into flows of SimGrid
  void leave_links(Foreseen& flows);
  void finish(Foreseen& flows);
  void finish(Flow& flow, double time);
  void start_at_full_rate(const sg4::CommPtr& comm, std::uint32_t flow_class) const;

  const Traffic& traffic_;
  Clock& clock_;
  std::vector<sg4::Link*> links_;
  std::vector<double> rates_;
  std::vector<double> alone_;
  std::vector<std::vector<std::uint32_t>> ways_;      // by flow class: its links that bind
  std::vector<double> seconds_per_byte_;              // by flow class: when alone
  std::vector<char> disturbed_;                       // by link: whether perturbations touch it
  std::vector<std::uint32_t> on_link_;                // by link: number of flows under way
  std::vector<Foreseen*> foreseen_on_;                // by link
  std::vector<char> binds_;                           // by link
  std::vector<double> factors_;                       // by link
  std::vector<std::vector<std::uint32_t>> may_slow_;  // by flow class: its links that perturbations slow down
  std::vector<sg4::Host*> hosts_;
  sg4::Host *driver_host_ = nullptr, *sink_ = nullptr;

  std::map<ExchangeKey, Course> courses_;
  std::deque<Foreseen> all_foreseen_;
  std::vector<Foreseen*> free_foreseen_;
  std::vector<double> left_, seconds_;  // working storage of part()
  std::deque<Flow> all_flows_;
  std::vector<Flow*> free_flows_;
  std::vector<Carrier*> idle_carriers_;
  std::vector<Request> requests_;
  std::vector<std::uint32_t> background_requests_;
  std::map<std::uint32_t, const sg4::CommPtr*> background_;
  std::int64_t under_way_ = 0, flows_started_ = 0;  // SimGrid's without background flows; all
  sg4::SemaphorePtr woken_;
  bool driver_waits_ = false;
};

}  // namespace orrery
