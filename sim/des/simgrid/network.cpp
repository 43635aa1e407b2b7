#include "sim/des/simgrid/network.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <simgrid/kernel/routing/NetPoint.hpp>
#include <simgrid/kernel/routing/NetZoneImpl.hpp>

namespace orrery {
namespace {

namespace sgk = simgrid::kernel;

// SimGrid counts whole bytes; with these units a message is exact to less than a ten-thousandth of a byte.
constexpr double kUnitsPerByte = 16384;
double whole_units(double bytes) { return std::max(1.0, std::round(bytes * kUnitsPerByte)); }

// A routing zone that looks up routes by the flow class of the sender.
class FlowZone final : public sgk::routing::NetZoneImpl {
 public:
  explicit FlowZone(const std::string& name) : NetZoneImpl(name) {}
  void get_local_route(const sgk::routing::NetPoint* from, const sgk::routing::NetPoint*, sgk::routing::Route* into,
                       double*) override {
    into->link_list_ = routes[from->id()];
  }
  std::vector<std::vector<sgk::resource::StandardLinkImpl*>> routes;
};

}  // namespace

void configure_simgrid() {
  int argc = 2;
  static char name[] = "orrery", quiet[] = "--log=root.app:file:/dev/null";
  char* arguments[] = {name, quiet, nullptr};
  char** argv = arguments;
  static sg4::Engine engine(&argc, argv);
  sg4::Engine::set_config("network/model:CM02");
  sg4::Engine::set_config("network/TCP-gamma:0");
  sg4::Engine::set_config("network/crosstraffic:0");
  sg4::Engine::set_config("maxmin/precision:1e-9");
  sg4::Engine::set_config("surf/precision:1e-13");
  sg4::Engine::set_config("contexts/factory:raw");
  sg4::Engine::set_config("contexts/stack-size:128");
  sg4::Engine::set_config("contexts/guard-size:0");
}

Network::Network(const SimulationPlan& plan, Clock& clock) : traffic_(plan.traffic), clock_(clock) {
  const Traffic& traffic = plan.traffic;
  auto* zone = new FlowZone("cluster");  // owned by SimGrid
  sg4::NetZone* root = zone->get_iface();
  const auto links = traffic.link_classes();
  const auto flows = traffic.flow_classes();

  // A factor that all flow classes on a link have in common divides the link's rate instead of lengthening the routes.
  std::vector<std::int64_t> common(links.size(), 0);
  for (const FlowClass& flow : flows)
    for (const LinkTraffic& load : flow.loads)
      common[load.link_class] = std::gcd(common[load.link_class], static_cast<std::int64_t>(load.flows));
  links_.assign(links.size(), nullptr);
  rates_.assign(links.size(), 0);
  for (std::size_t l = 0; l < links.size(); ++l) {
    if (links[l].never_binds || common[l] == 0) continue;
    rates_[l] = links[l].bytes_per_second * kUnitsPerByte / static_cast<double>(common[l]);
    links_[l] = root->create_link(fmt::format("l{}", l), rates_[l])->seal();
  }
  driver_host_ = root->create_host("driver", 1.0)->seal();
  sink_ = root->create_host("sink", 1.0)->seal();
  for (std::size_t f = 0; f < flows.size(); ++f)
    hosts_.push_back(root->create_host(fmt::format("f{}", f), 1.0)->seal());
  // How many flows use each link: 1 if a single one does, and nothing disturbs it.
  std::vector<std::uint32_t> users(links.size(), 0);
  for (const FlowClass& flow : flows)
    for (const LinkTraffic& load : flow.loads) users[load.link_class] += load.flows == 1 ? 1 : 2;
  std::vector<char> slowed(links.size(), 0);
  disturbed_.assign(links.size(), 0);
  for (const ResolvedPerturbation& r : plan.perturbations)
    for (const LinkId l : r.links)
      if (traffic.uses(l)) {
        const std::uint32_t c = traffic.link_class(l);
        users[c] += 2;
        disturbed_[c] = 1;
        if (r.perturbation.kind == PerturbationKind::slow_link) slowed[c] = 1;
      }
  zone->routes.resize(flows.size() + 2);
  ways_.resize(flows.size());
  may_slow_.resize(flows.size());
  seconds_per_byte_.assign(flows.size(), 0);
  alone_.assign(flows.size(), 0);
  for (std::size_t f = 0; f < flows.size(); ++f) {
    auto& route = zone->routes[hosts_[f]->get_netpoint()->id()];
    bool alone = true;
    for (const LinkTraffic& load : flows[f].loads) {
      const std::uint32_t l = load.link_class;
      if (!binds(l)) continue;
      route.insert(route.end(), static_cast<std::size_t>(load.flows) / static_cast<std::size_t>(common[l]),
                   links_[l]->get_impl());
      ways_[f].push_back(l);
      if (slowed[l] != 0) may_slow_[f].push_back(l);
      seconds_per_byte_[f] = std::max(seconds_per_byte_[f], load.flows / links[l].bytes_per_second);
      alone = alone && users[l] == 1;
    }
    if (alone) alone_[f] = seconds_per_byte_[f];
  }
  // An additional link limits the rate of background traffic: SimGrid ignores Comm::set_rate between hosts.
  for (const ResolvedPerturbation& r : plan.perturbations)
    for (const std::int32_t b : r.background) {
      const std::uint32_t f = traffic.background_flow(b);
      auto& route = zone->routes[hosts_[f]->get_netpoint()->id()];
      const std::string name = fmt::format("background{}", f);
      if (sg4::Link::by_name_or_null(name) != nullptr) continue;
      route.push_back(root->create_link(name, r.perturbation.bytes_per_second * kUnitsPerByte)->seal()->get_impl());
    }
  root->seal();

  factors_.assign(links.size(), 1);
  on_link_.assign(links.size(), 0);
  foreseen_on_.assign(links.size(), nullptr);
  for (std::uint32_t l = 0; l < links.size(); ++l) binds_.push_back(binds(l));
  woken_ = sg4::Semaphore::create(0);
}

void Network::slow(std::uint32_t link_class, double factor) {
  factors_[link_class] *= factor;
  links_[link_class]->set_bandwidth(rates_[link_class] * factors_[link_class]);
}

void Network::fail(std::uint32_t link_class) { links_[link_class]->turn_off(); }

// SimGrid limits a flow for its whole life by the rates that its links have when it starts. A link that is slow for a
// while must therefore have its full rate at that instant.
void Network::start_at_full_rate(const sg4::CommPtr& comm, std::uint32_t flow_class) const {
  for (const std::uint32_t l : may_slow_[flow_class])
    if (factors_[l] != 1) links_[l]->set_bandwidth(rates_[l]);
  comm->start();
  for (const std::uint32_t l : may_slow_[flow_class])
    if (factors_[l] != 1) links_[l]->set_bandwidth(rates_[l] * factors_[l]);
}

sg4::CommPtr Network::send(std::uint32_t flow_class, double wire_bytes) {
  sg4::CommPtr comm = sg4::Comm::sendto_init(hosts_[flow_class], sink_);
  comm->set_payload_size(static_cast<std::uint64_t>(whole_units(wire_bytes)));
  start_at_full_rate(comm, flow_class);
  return comm;
}

void Network::request(std::uint32_t flow_class, double wire_bytes, Flight& flight, double& end) {
  ++flight.left;
  for (const std::uint32_t l : ways_[flow_class]) {
    if (foreseen_on_[l] != nullptr) part(*foreseen_on_[l]);
    ++on_link_[l];
  }
  if (free_flows_.empty()) free_flows_.push_back(&all_flows_.emplace_back());
  Flow& flow = *free_flows_.back();
  free_flows_.pop_back();
  flow = {flow_class, &flight, &end};
  requests_.push_back({&flow, wire_bytes});
}

void Network::land(Flight& flight) {
  if (--flight.left == 0 && flight.waiting != nullptr) clock_.wake(*flight.waiting);
}

void Network::start(std::uint32_t flow_class, double wire_bytes, Flight& flight, double& end) {
  ++flows_started_;
  if (std::ranges::any_of(ways_[flow_class], [&](std::uint32_t l) { return is_taken(l); })) {
    request(flow_class, wire_bytes, flight, end);
    return;
  }
  const double bytes = whole_units(wire_bytes) / kUnitsPerByte;  // the same rounding, whoever computes its time
  foresee(nullptr, flow_class, bytes, bytes * seconds_per_byte_[flow_class], flight, std::array{&end});
}

const Network::Course& Network::course_of(const ExchangeKey& exchange, std::span<const std::uint32_t> flow_classes,
                                          std::span<const double> wire_bytes) {
  const auto found = courses_.find(exchange);
  if (found != courses_.end()) return found->second;
  std::vector<double> bytes;
  for (const double b : wire_bytes) bytes.push_back(whole_units(b) / kUnitsPerByte);
  Course& course = courses_
                       .emplace(exchange, Course{.flow_classes = {flow_classes.begin(), flow_classes.end()},
                                                 .flows = FairFlows(traffic_.flow_classes(), traffic_.link_classes(),
                                                                    binds_, flow_classes, bytes),
                                                 .seconds = {}})
                       .first->second;
  if (!course.flows.share()) return course;
  course.flows.run(left_, course.seconds);
  course.longest = std::ranges::max(course.seconds);
  return course;
}

void Network::start(const ExchangeKey& exchange, std::span<const std::uint32_t> flow_classes,
                    std::span<const double> wire_bytes, Flight& flight, std::span<double* const> ends) {
  const Course& course = course_of(exchange, flow_classes, wire_bytes);
  if (!course.flows.share() ||
      std::ranges::any_of(course.flows.links(), [&](std::uint32_t l) { return is_taken(l); })) {
    for (std::size_t i = 0; i < flow_classes.size(); ++i) start(flow_classes[i], wire_bytes[i], flight, *ends[i]);
    return;
  }
  flows_started_ += static_cast<std::int64_t>(flow_classes.size());
  foresee(&course, 0, 0, course.longest, flight, ends);
}

void Network::foresee(const Course* course, std::uint32_t flow_class, double wire_bytes, double seconds, Flight& flight,
                      std::span<double* const> ends) {
  ++flight.left;
  if (free_foreseen_.empty()) {
    free_foreseen_.push_back(&all_foreseen_.emplace_back());
    free_foreseen_.back()->network = this;
  }
  Foreseen& flows = *free_foreseen_.back();
  free_foreseen_.pop_back();
  flows.course = course;
  flows.flow_class = flow_class;
  flows.wire_bytes = wire_bytes;
  flows.begin = clock_.now();
  flows.flight = &flight;
  flows.ends.assign(ends.begin(), ends.end());
  for (const std::uint32_t l : links_of(flows)) {
    ++on_link_[l];
    foreseen_on_[l] = &flows;
  }
  clock_.at(clock_.now() + seconds, flows);
}

void Network::leave_links(Foreseen& flows) {
  for (const std::uint32_t l : links_of(flows)) {
    --on_link_[l];
    foreseen_on_[l] = nullptr;
  }
  ++flows.stamp;
  free_foreseen_.push_back(&flows);
}

void Network::finish(Foreseen& flows) {
  leave_links(flows);
  for (std::size_t i = 0; i < flows.ends.size(); ++i)
    *flows.ends[i] = flows.course != nullptr ? flows.begin + flows.course->seconds[i] : clock_.now();
  land(*flows.flight);
}

void Network::part(Foreseen& flows) {
  leave_links(flows);
  const double since = clock_.now() - flows.begin;
  if (flows.course == nullptr) {
    const double left = std::max(0.0, flows.wire_bytes - since / seconds_per_byte_[flows.flow_class]);
    request(flows.flow_class, left, *flows.flight, *flows.ends[0]);
  } else {
    const Course& course = *flows.course;
    course.flows.run(since, left_, seconds_);
    for (std::size_t i = 0; i < course.flow_classes.size(); ++i)
      if (left_[i] > 0)
        request(course.flow_classes[i], left_[i], *flows.flight, *flows.ends[i]);
      else
        *flows.ends[i] = flows.begin + seconds_[i];
  }
  land(*flows.flight);
}

void Network::finish(Flow& flow, double time) {
  for (const std::uint32_t l : ways_[flow.flow_class]) --on_link_[l];
  *flow.end = time;
  free_flows_.push_back(&flow);
  land(*flow.flight);
}

void Network::start_background(std::uint32_t flow_class) { background_requests_.push_back(flow_class); }
void Network::end_background(std::uint32_t flow_class) {
  const auto found = background_.find(flow_class);
  if (found != background_.end()) (*found->second)->cancel();
}

void Network::carry(Carrier& carrier) {
  for (;;) {
    carrier.called->acquire();
    try {
      carrier.comm->wait();
      finish(*carrier.flow, carrier.comm->get_finish_time());
    } catch (const simgrid::NetworkFailureException&) {
      Flight& flight = *carrier.flow->flight;
      flight.failed = true;
      flight.failed_class = carrier.flow->flow_class;
      if (flight.waiting != nullptr) clock_.wake(*flight.waiting);
    }
    carrier.comm.reset();
    --under_way_;
    idle_carriers_.push_back(&carrier);
    if (!driver_waits_) continue;
    driver_waits_ = false;
    woken_->release();
  }
}

void Network::start_requested() {
  if (requests_.empty() && background_requests_.empty()) return;
  sg4::this_actor::sleep_until(clock_.now());  // SimGrid's clock has stood still since its last flow
  for (const std::uint32_t f : background_requests_) {
    sg4::CommPtr comm = sg4::Comm::sendto_init(hosts_[f], sink_);
    constexpr std::uint64_t kEndless = std::uint64_t{1} << 63;  // ten minutes at 900 GB/s
    comm->set_payload_size(kEndless);
    start_at_full_rate(comm, f);
    background_[f] = new sg4::CommPtr(comm);
  }
  background_requests_.clear();
  for (const Request& request : requests_) {
    if (idle_carriers_.empty()) {
      idle_carriers_.push_back(new Carrier);
      sg4::Actor::create("carrier", driver_host_, [this, &carrier = *idle_carriers_.back()] {
        carry(carrier);
      })->daemonize();
    }
    Carrier& carrier = *idle_carriers_.back();
    idle_carriers_.pop_back();
    carrier.flow = request.flow;
    carrier.comm = send(request.flow->flow_class, request.wire_bytes);
    ++under_way_;
    carrier.called->release();
  }
  requests_.clear();
}

double Network::wait_until(double time) {
  driver_waits_ = true;
  bool too_late = false;
  if (std::isfinite(time))
    too_late = woken_->acquire_timeout(time - sg4::Engine::get_clock());
  else
    woken_->acquire();
  driver_waits_ = false;
  return too_late ? time : std::min(time, sg4::Engine::get_clock());
}

void Network::drive(const std::function<bool()>& ended) {
  for (;;) {
    clock_.run_ready();
    if (ended()) return;
    start_requested();
    if (clock_.is_ready()) continue;  // a flow has ended in the meantime
    double due = std::numeric_limits<double>::infinity();
    const bool more = clock_.next_due(due);
    if (under_way_ == 0 || due <= sg4::Engine::get_clock()) {
      if (!more) return;
      clock_.move_to(due);
      continue;
    }
    clock_.move_to(wait_until(due));
  }
}

void Network::run(std::function<bool()> ended) {
  sg4::Actor::create("driver", driver_host_, [this, ended = std::move(ended)] { drive(ended); });
  sg4::Engine::get_instance()->run();
}

}  // namespace orrery
