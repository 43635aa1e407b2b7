// What a search says beside its plans: if nothing fits, the changes with which something would; and the network
// bandwidth that a plan needs, if its step may take longer by a given share.
#pragma once

#include <string>
#include <vector>

#include "study/search/search.h"

namespace orrery {

struct Remedy {
  std::string what;   // "plan.recompute free", "16 nodes instead of 8"
  Scenario scenario;  // the fastest plan that fits then
  FoundPlan plan;
};

// Each remedy changes one thing by the smallest sufficient amount: a field is no longer fixed or restricted to some
// values, all fields are searched, the number of nodes is doubled as often as necessary (16 times at most), or the
// sequence is halved. all_refused: no plan of the search could be laid out. Then all fields are not searched: they are
// a hundred times as many plans, which what refuses these most often refuses, too.
std::vector<Remedy> remedies(const Scenario& base, const SpaceOptions& space, const SearchOptions& options,
                             const UserCalibration& user = {}, bool all_refused = false);

struct NetworkNeed {
  // The least rate per NIC, to 1 %, at which the step takes at most (1 + allowed) times as long as at the cluster's
  // rate.
  double bytes_per_second = 0;
  double nic_bytes_per_second = 0;  // the cluster's rate per NIC
  double allowed = 0;               // 0.05: 5 % longer
  bool any = true;  // false: the need is not known, as there is a single node, or a thousandth of the rate is enough
};

// Finds the need with the analytical engine. It varies the NICs' rate alone: latencies and all other properties of the
// network stay the same. Throws InputError as a prediction does.
NetworkNeed network_need(const Scenario& scenario, double allowed, const UserCalibration& user = {});

}  // namespace orrery
