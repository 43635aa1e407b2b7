// The cheapest choices for a row of layers within a memory budget, exactly.
//
// Each layer takes one of several choices. A choice costs time and memory, and so may the change from the choice of the
// layer before. The recurrence is that of Galvatron (Miao et al. 2022, arXiv 2211.13878, Algorithm 1):
//   C(l, e, s) = min over s' of C(l-1, e - memory(l, s), s') + entering(l, s', s) + cost(l, s),   C(0, e) = 0
// where e is the memory that the first l layers may take. Sums are rounded in this order, and ties go to the lower s'.
//
// Memory is counted in whole units, which the caller picks. An option may hold more while it runs than after it
// (`transient`): recomputed activations, gathered parameters. All that the layers up to it hold and its transient must
// fit together (forward and backward memory of Galvatron-BMW, Wang et al. 2023, arXiv 2307.02031).
//
// It takes at most layers x units x choices^2 steps. Steps are left out where they cannot matter: units that the
// remaining layers need at least, and units beyond all that the layers so far can use.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace orrery {

struct LayerOption {
  double cost = 0;             // infinite: the layer cannot take this choice
  std::int64_t memory = 0;     // held from this layer on
  std::int64_t transient = 0;  // held besides while this layer runs
};

// Layers with the same costs.
struct LayerKind {
  std::vector<LayerOption> options;  // by choice; as many for all kinds
  std::vector<double> entering;      // [from x choices + to]: from the layer before; empty: free
};

struct LayerPlan {
  double cost = 0;
  std::int64_t memory = 0;            // after the last layer
  std::vector<std::int32_t> choices;  // by layer
};

class LayerProgramme {
 public:
  // `layers` has the kind of each layer. The change to the first layer is free. REQUIRES: a layer, a choice, equal
  // numbers of choices, no negative memory.
  LayerProgramme(std::vector<LayerKind> kinds, std::vector<std::int32_t> layers, std::int64_t budget);

  // Empty if nothing fits. Of plans of equal cost it is the one that the recurrence finds from the last layer
  // backwards.
  std::optional<LayerPlan> cheapest() const;
  // The same within a smaller budget, without searching again. REQUIRES: no option has a transient.
  std::optional<LayerPlan> cheapest(std::int64_t budget) const;

 private:
  // The choice s' that a choice s follows, from a number of units to that of the next run.
  struct Run {
    std::int64_t first = 0;
    std::int32_t from = 0;
  };

  bool bound_units();  // false: nothing fits
  void advance(std::size_t layer, std::size_t to, const std::vector<double>& before, std::vector<double>& after);
  std::optional<LayerPlan> ending_at(std::int64_t units) const;

  std::vector<LayerKind> kinds_;
  std::vector<std::int32_t> layers_;
  std::size_t choices_;
  std::int64_t budget_;
  bool has_transients_ = false;
  // By the number of layers done: units that these need at least, units that leave enough to the others, and those
  // beyond which more changes nothing.
  std::vector<std::int64_t> least_, most_, top_;
  std::size_t row_ = 0;                 // units of a choice
  std::vector<double> ends_;            // the last layer's costs, [choice x row_ + units]
  std::vector<std::vector<Run>> runs_;  // [layer x choices_ + choice]
};

}  // namespace orrery
