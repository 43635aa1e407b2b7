#include "sim/des/fair_flows.h"

#include <algorithm>

namespace orrery {

FairFlows::FairFlows(std::span<const FlowClass> classes, std::span<const LinkClass> links, std::span<const char> binds,
                     std::span<const std::uint32_t> flow_classes, std::span<const double> bytes)
    : bytes_(bytes.begin(), bytes.end()) {
  const auto each_load = [&](auto&& visit) {
    for (std::size_t f = 0; f < flow_classes.size(); ++f)
      for (const LinkTraffic& load : classes[flow_classes[f]].loads)
        if (binds[load.link_class] != 0) visit(f, load);
  };
  each_load([&](std::size_t, const LinkTraffic& load) { link_classes_.push_back(load.link_class); });
  std::ranges::sort(link_classes_);
  link_classes_.erase(std::unique(link_classes_.begin(), link_classes_.end()), link_classes_.end());
  for (const std::uint32_t l : link_classes_) capacity_.push_back(links[l].bytes_per_second);
  first_on_.assign(link_classes_.size() + 1, 0);
  first_use_.assign(flow_classes.size() + 1, 0);
  each_load([&](std::size_t f, const LinkTraffic& load) {
    const auto link =
        static_cast<std::uint32_t>(std::ranges::lower_bound(link_classes_, load.link_class) - link_classes_.begin());
    uses_.push_back({static_cast<std::uint32_t>(f), link, load.flows});
    first_use_[f + 1] = uses_.size();
    ++first_on_[link + 1];
  });
  for (std::size_t l = 0; l < link_classes_.size(); ++l) {
    share_ = share_ || first_on_[l + 1] > 1;
    first_on_[l + 1] += first_on_[l];
  }
  flows_on_.resize(uses_.size());
  std::vector<std::size_t> next(first_on_.begin(), first_on_.end() - 1);
  for (const Use& use : uses_) flows_on_[next[use.link]++] = use.flow;
}

void FairFlows::find_rates(const std::vector<double>& left, std::size_t running, std::vector<double>& rate) const {
  struct Room {
    double room, flows = 0;
    std::uint32_t running = 0;
  };
  std::vector<Room> rooms;
  for (const double capacity : capacity_) rooms.push_back({capacity});
  for (std::size_t f = 0; f < left.size(); ++f) {
    rate[f] = 0;
    if (left[f] <= 0) continue;
    for (const Use& use : of_flow(f)) {
      rooms[use.link].flows += use.flows;
      ++rooms[use.link].running;
    }
  }
  double level = 0;
  while (running > 0) {
    double least = std::numeric_limits<double>::infinity();
    for (const Room& r : rooms)
      if (r.running > 0) least = std::min(least, r.room / r.flows);
    level = std::max(level, least);  // it only rises, except for rounding
    for (std::size_t l = 0; l < rooms.size(); ++l) {
      constexpr double kRounding = 1e-12;
      if (rooms[l].running == 0 || rooms[l].room > level * (1 + kRounding) * rooms[l].flows) continue;
      for (const std::uint32_t f : on_link(l)) {
        if (left[f] <= 0 || rate[f] > 0) continue;
        rate[f] = level;
        --running;
        for (const Use& use : of_flow(f)) {
          rooms[use.link].room -= level * use.flows;
          rooms[use.link].flows -= use.flows;
          --rooms[use.link].running;
        }
      }
    }
  }
}

void FairFlows::run(double until, std::vector<double>& left, std::vector<double>& seconds) const {
  left = bytes_;
  seconds.assign(left.size(), 0);
  std::vector<double> rate(left.size());
  std::size_t running = left.size();
  for (double now = 0; running > 0;) {
    find_rates(left, running, rate);
    double next = std::numeric_limits<double>::infinity();
    for (std::size_t f = 0; f < left.size(); ++f)
      if (left[f] > 0) next = std::min(next, left[f] / rate[f]);
    const bool ends = now + next > until;
    if (ends) next = until - now;
    now += next;
    for (std::size_t f = 0; f < left.size(); ++f) {
      if (left[f] <= 0) continue;
      constexpr double kDone = 1e-12;  // share of the whole flow
      left[f] -= next * rate[f];
      if (left[f] > kDone * bytes_[f]) continue;
      left[f] = 0;
      seconds[f] = now;
      --running;
    }
    if (ends) return;
  }
}

}  // namespace orrery
