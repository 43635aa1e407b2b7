// The discrete-event engine: puts a clock on Programs by running them on SimGrid. Kernels cost what the analytical
// engine says; collectives become the flows of their algorithm over the links of the cluster, and share them max-min
// fairly with everything else that is under way. Whatever contends, is slow, breaks or comes late shows in the step.
//
// Folding. Ranks, groups, flows and links that no perturbation, placement or schedule tells apart are simulated once:
// the coarsest equitable partition, found by colour refinement (sim/des/fold.h), so the folded run takes the time of
// the unfolded one (to rounding). Beyond DiscreteEventOptions::most_exact_works collectives move in lockstep instead.
//
// Network model. SimGrid's CM02 without TCP window, cross traffic and latency-dependent shares: plain max-min.
// Latencies are the collectives' calibrated ones and pass before the first byte. A flow that reaches a share e of its
// link's rate when alone (sim/cost/collective_cost.h) occupies 1/e bytes of the link for each of its own, so that
// protocols compete as they do alone.
//
// Fidelity. steady_flow: an edge's messages are one flow of their joint size. step_exact: every message by itself, each
// with its calibrated step latency; for groups of up to a few hundred ranks.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "sim/cost/collective_cost.h"
#include "sim/cost/kernel_cost.h"
#include "sim/des/topology.h"
#include "sim/hardware/cluster.h"
#include "sim/hardware/perturbation.h"
#include "sim/program/program.h"
#include "sim/report/report.h"

namespace orrery {

enum class Fidelity : std::uint8_t { steady_flow, step_exact };
inline constexpr std::array<std::string_view, 2> kFidelityNames{"steady-flow", "step-exact"};

inline constexpr double kMostWorks = 40e6, kMostExactWorks = 8e6;
// Works of the ranks that a timeline shows, each at most an interval of 150 bytes of a trace.
inline constexpr double kMostTimelineWorks = 2e6;

struct DiscreteEventOptions {
  Fidelity fidelity = Fidelity::steady_flow;
  Routing routing = Routing::automatic;
  std::int64_t chunks =
      0;             // step-exact: that chains and trees pass on one by one; 0: slices of NCCL's (512 KiB a channel)
  bool fold = true;  // false simulates every rank and link, as a check
  // Works (see most_works) beyond which collectives move in lockstep where that spares half of the ranks: all edges of
  // a group that are alike in bytes at the rate of the slowest, however far from a disturbed one (Traffic::fold). The
  // report says so. So do large expert groups whose ranks have unequal loads, each by itself: few kinds are kept
  // (sim/des/plan.h, folded_loads). Infinite: never.
  double most_exact_works = kMostExactWorks;
  // Kernels and transfers of all classes of ranks, beyond which a run is refused before it starts: 40 million take
  // half a minute to some minutes, by how much they contend, and 3 GB.
  double most_works = kMostWorks;
  // Fill Report::timeline: of at most kMostTimelineWorks, and kMostTimelineSlots (sim/analytical/engine.h).
  bool timeline = false;
  bool ops = false;  // fill Report::ops and ::unmeasured
};

// One training job on the cluster. References must outlive the call.
struct DiscreteEventJob {
  std::string name;
  const Program* program = nullptr;
  Dtype mfu_dtype = Dtype::bf16;
  const Calibration* kernels = nullptr;
  Placement placement;
};

// Whether this program has SimGrid in it, which takes 30 ms to load. Without it nothing here runs.
bool built_with_simgrid();

// Runs one step of each job, all starting at once, in a process of its own (SimGrid allows one simulation a process).
// `reports`: one for each job.
// Throws InputError: a placement beyond the cluster, jobs on the same device, perturbations that name nothing, rates
// that the cluster lacks, more work than `most_works`. Throws StalledError when the step cannot end: programs that wait
// for each other, or a link or node that failed.
void run_discrete_event(const Cluster& cluster, const CollectiveCalibration& collectives,
                        std::span<const DiscreteEventJob> jobs, std::span<const Perturbation> perturbations,
                        const DiscreteEventOptions& options, std::span<Report> reports);

// The step does not end. what() says when nothing moved any more, and which ranks wait in which op for which group.
class StalledError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// One collective by itself, all groups of `axes` of a mesh at once, as nccl-tests times it.
struct CollectiveRun {
  double seconds = 0;
  double bus_bytes_per_second = 0;
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::ring;
  CollectiveProtocol protocol = CollectiveProtocol::simple;
  std::int64_t flows = 0, flow_classes = 0, messages = 0;
  std::vector<LinkReport> link_kinds;
};
struct CollectiveRequest {
  OpKind kind = OpKind::all_reduce;
  double bytes = 0;
  Mesh mesh;  // of the ranks that take part; tp for nccl-tests' single group
  MeshGroup group;
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::automatic;
  CollectiveProtocol protocol = CollectiveProtocol::automatic;
  // Of an all-to-all with unequal parts: what each member sends each other one, [from * members + to], over what it is
  // where all parts are equal. Empty: equal.
  std::vector<double> rows = {};
};
// Estimates how many flows a collective lays over the links, without making any. Most flows fold afterwards.
double collective_works(const Cluster& cluster, const CollectiveCalibration& collectives,
                        const CollectiveRequest& request, const DiscreteEventOptions& options);
// About what laying and folding a flow takes: seconds of a core of 2024, and bytes of memory.
inline constexpr double kFlowSeconds = 1e-6, kFlowBytes = 220;
// Throws InputError as run_discrete_event does, and for a collective too large to simulate: where its
// collective_works(), or the messages of the classes that are left when flows are folded, are more than `most_works`.
CollectiveRun run_collective(const Cluster& cluster, const CollectiveCalibration& collectives,
                             const CollectiveRequest& request, std::span<const Perturbation> perturbations,
                             const DiscreteEventOptions& options);

}  // namespace orrery
