// What groups span stage by stage, where node boundaries fall differently in the stages of a pipeline: one stage's
// groups lie in a node, the next one's straddle two, and share NICs with those of a third.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "sim/hardware/cluster.h"

namespace orrery {

// A NIC of a stage that groups of other stages use as well. Groups are counted as in GroupSpan, as if each used all
// NICs of the node: one whose bytes all pass this one counts as many as there are.
struct SharedNic {
  struct Others {
    std::int32_t stage = 0;
    double groups = 0;
  };
  double groups = 0;  // of the stage itself
  std::vector<Others> others;
};

// Like span_of(), of one stage's groups: the worst of them; groups_sharing_nics counts no other stage's, and where a
// group has fewer ranks on a node than NICs are there, those that it cannot use.
struct StageSpan {
  GroupSpan span;
  std::vector<SharedNic> shared;
};

// Rank r sits on device r % node.devices of node r / node.devices, and uses the NIC of its place.
// Whether groups span the same in every stage, and no two stages share a node's NICs.
bool stages_lie_alike(const Mesh& mesh, const Node& node);
// By stage. REQUIRES: the group holds no digit of the pipeline. Proportional to the mesh's ranks.
std::vector<StageSpan> spans_by_stage(const Mesh& mesh, MeshGroup group, const Node& node);

// Of a mesh's groups; each group's are worked out once.
class StageSpans {
 public:
  // `node` must outlive this.
  void set_mesh(const Mesh& mesh, const Node& node);
  const StageSpan& of(MeshGroup group, std::int64_t stage);

 private:
  Mesh mesh_;
  const Node* node_ = nullptr;
  std::vector<std::pair<MeshGroup, std::vector<StageSpan>>> known_;
};

// How many times as long bytes take over the NICs that other stages use for this part of the time (by stage), each
// whenever it happens to: all groups that are there get equal parts of a NIC.
double slowdown_by_others(const StageSpan& span, std::span<const double> busy);

}  // namespace orrery
