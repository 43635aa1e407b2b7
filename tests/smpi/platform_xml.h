// A cluster's topology as a SimGrid platform, for programs that know nothing of Orrery: a host for each device, the
// links of the topology, and the topology's route between every two devices, written out.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "sim/des/topology.h"

namespace orrery {

struct PlatformOptions {
  bool scale_up_first = false;      // as in Topology::route
  double link_latency_seconds = 0;  // of every link
};

inline std::string host_of_device(std::int64_t device) { return fmt::format("device{}", device); }

// Platform format 4.1. O(devices^2). Links that no route passes are left out.
inline std::string platform_xml(const Topology& topology, const PlatformOptions& options) {
  std::string hosts, links, routes;
  std::vector<char> written(static_cast<std::size_t>(topology.links()), 0);
  std::vector<LinkId> way;
  for (std::int64_t from = 0; from < topology.devices(); ++from) {
    hosts += fmt::format("    <host id=\"{}\" speed=\"1Gf\"/>\n", host_of_device(from));
    for (std::int64_t to = 0; to < topology.devices(); ++to) {
      if (from == to) continue;
      way.clear();
      topology.route(Endpoint::device(from), Endpoint::device(to), way, options.scale_up_first);
      routes +=
          fmt::format("    <route src=\"{}\" dst=\"{}\" symmetrical=\"NO\">", host_of_device(from), host_of_device(to));
      for (const LinkId link : way) {
        routes += fmt::format("<link_ctn id=\"{}\"/>", topology.name(link));
        if (written[static_cast<std::size_t>(link)]) continue;
        written[static_cast<std::size_t>(link)] = 1;
        links += fmt::format("    <link id=\"{}\" bandwidth=\"{}Bps\" latency=\"{}s\"/>\n", topology.name(link),
                             topology.bytes_per_second(link), options.link_latency_seconds);
      }
      routes += "</route>\n";
    }
  }
  return "<?xml version='1.0'?>\n<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n"
         "<platform version=\"4.1\">\n  <zone id=\"cluster\" routing=\"Full\">\n" +
         hosts + links + routes + "  </zone>\n</platform>\n";
}

}  // namespace orrery
