#include "sim/des/network.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <simgrid/kernel/routing/NetPoint.hpp>
#include <simgrid/kernel/routing/NetZoneImpl.hpp>

namespace orrery {
namespace {

namespace sgk = simgrid::kernel;

// SimGrid counts whole bytes; in these units a message is exact to a thousandth of a byte.
constexpr double kUnitsPerByte = 1024;

// Routes are looked up by the flow class that sends.
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

Network::Network(const RunPlan& plan) {
  const Traffic& traffic = plan.traffic;
  auto* zone = new FlowZone("cluster");  // SimGrid's
  sg4::NetZone* root = zone->get_iface();
  const auto links = traffic.link_classes();
  const auto flows = traffic.flow_classes();

  // What all classes of flows have in common divides the rate instead of lengthening the routes.
  std::vector<std::int64_t> common(links.size(), 0);
  for (const FlowClass& flow : flows)
    for (const LinkLoad& load : flow.loads)
      common[load.link_class] = std::gcd(common[load.link_class], static_cast<std::int64_t>(load.flows));
  links_.assign(links.size(), nullptr);
  rates_.assign(links.size(), 0);
  for (std::size_t l = 0; l < links.size(); ++l) {
    if (links[l].never_binds || common[l] == 0) continue;
    rates_[l] = links[l].bytes_per_second * kUnitsPerByte / static_cast<double>(common[l]);
    links_[l] = root->create_link(fmt::format("l{}", l), rates_[l])->seal();
  }
  clock_ = root->create_host("clock", 1.0)->seal();
  sink_ = root->create_host("sink", 1.0)->seal();
  for (std::size_t f = 0; f < flows.size(); ++f)
    hosts_.push_back(root->create_host(fmt::format("f{}", f), 1.0)->seal());
  zone->routes.resize(flows.size() + 2);
  unbound_.assign(flows.size(), 0);
  for (std::size_t f = 0; f < flows.size(); ++f) {
    auto& route = zone->routes[hosts_[f]->get_netpoint()->id()];
    for (const LinkLoad& load : flows[f].loads)
      if (links_[load.link_class] != nullptr)
        route.insert(route.end(),
                     static_cast<std::size_t>(load.flows) / static_cast<std::size_t>(common[load.link_class]),
                     links_[load.link_class]->get_impl());
    unbound_[f] = route.empty();
  }
  root->seal();

  std::vector<std::uint32_t> users(links.size(), 0);
  for (const FlowClass& flow : flows)
    for (const LinkLoad& load : flow.loads) users[load.link_class] += load.flows == 1 ? 1 : 2;
  for (const ResolvedPerturbation& r : plan.perturbations)
    for (const LinkId l : r.links)
      if (const std::uint32_t c = traffic.link_class(l); c < links.size()) users[c] += 2;
  alone_.assign(flows.size(), 0);
  for (std::size_t f = 0; f < flows.size(); ++f) {
    bool alone = true;
    double seconds = 0;
    for (const LinkLoad& load : flows[f].loads) {
      if (links_[load.link_class] == nullptr) continue;
      alone = alone && users[load.link_class] == 1;
      seconds = std::max(seconds, 1 / links[load.link_class].bytes_per_second);
    }
    if (alone) alone_[f] = seconds;
  }
}

sg4::CommPtr Network::start(std::uint32_t flow_class, double wire_bytes) const {
  sg4::CommPtr comm = sg4::Comm::sendto_init(hosts_[flow_class], sink_);
  comm->set_payload_size(
      std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::llround(wire_bytes * kUnitsPerByte))));
  comm->start();
  return comm;
}

sg4::CommPtr Network::start_background(std::uint32_t flow_class, double bytes_per_second) const {
  sg4::CommPtr comm = sg4::Comm::sendto_init(hosts_[flow_class], sink_);
  comm->set_rate(bytes_per_second * kUnitsPerByte);
  constexpr std::uint64_t kEndless = std::uint64_t{1} << 62;
  comm->set_payload_size(kEndless);
  comm->start();
  return comm;
}

}  // namespace orrery
