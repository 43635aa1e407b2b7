// Finds the extent of groups stage by stage, for pipelines whose stages differ in where node boundaries fall. For
// example the groups of one stage lie within a node, while those of the next stage straddle two nodes and share NICs
// with those of a third stage.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "sim/hardware/cluster.h"

namespace orrery {

// A NIC that groups of several stages use. Groups are counted as in GroupSpan, as if each used all NICs of its node: a
// group that sends all its bytes over this NIC counts as many times as the node has NICs.
struct SharedNic {
  struct Others {
    std::int32_t stage = 0;
    double groups = 0;
  };
  double groups = 0;  // groups of this stage
  std::vector<Others> others;
};

// The extent of one stage's groups as in span_of(): that of the worst group. groups_sharing_nics does not count groups
// of other stages. If a group has fewer ranks on a node than the node has NICs, groups_sharing_nics includes the NICs
// that it cannot use.
struct StageSpan {
  GroupSpan span;
  std::vector<SharedNic> shared;
};

// Whether groups have the same extent in every stage, and no two stages share a node's NICs. Rank r is on device r %
// node.devices of node r / node.devices, and uses the NIC of that device.
bool stages_lie_alike(const Mesh& mesh, const Node& node);
// Returns the extents by stage. REQUIRES: `group` contains no digit of pp. Cost: proportional to the mesh's ranks.
std::vector<StageSpan> spans_by_stage(const Mesh& mesh, MeshGroup group, const Node& node);

// The extents of a mesh's groups; each group's are computed once.
class StageSpans {
 public:
  // REQUIRES: `node` outlives this object.
  void set_mesh(const Mesh& mesh, const Node& node);
  const StageSpan& of(MeshGroup group, std::int64_t stage);

 private:
  Mesh mesh_;
  const Node* node_ = nullptr;
  std::vector<std::pair<MeshGroup, std::vector<StageSpan>>> known_;
};

// Returns the factor by which transfers over shared NICs take longer because of other stages. `busy`: for each stage
// the share of the time in which it uses the NICs. The model assumes that stages do so at random moments, and that all
// groups that use a NIC at the same moment get equal parts of its rate.
double slowdown_by_others(const StageSpan& span, std::span<const double> busy);

}  // namespace orrery
