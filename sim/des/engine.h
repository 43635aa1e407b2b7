// The discrete-event engine: runs Programs on SimGrid to give them a clock. Kernels take the time that the analytical
// engine computes. Collectives become the flows of their algorithm over the links of the cluster, and share these
// max-min fairly with all other flows that are under way. Contention, slow or broken parts and late arrivals thus show
// in the step time.
//
// Folding. Ranks, groups, flows and links that no perturbation, placement or schedule tells apart are simulated once:
// the coarsest equitable partition, found by colour refinement (sim/des/traffic.h), so the folded run takes the time of
// the unfolded one (to rounding). Beyond DiscreteEventOptions::most_exact_works collectives move in lockstep instead.
//
// Network model. SimGrid's CM02 without TCP window, cross traffic and latency-dependent shares: plain max-min.
// Latencies are the collectives' calibrated ones and pass before the first byte. If a flow reaches the share e of its
// link's rate when alone (sim/cost/collective_cost.h), it occupies 1/e bytes of the link for each of its bytes. Flows
// of different protocols thus compete in the proportions in which they perform alone.
//
// Fidelity. steady_flow: the messages of an edge are one flow of their joint size. step_exact: every message is sent by
// itself, with its calibrated step latency; for groups of up to a few hundred ranks.
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

// Defaults of DiscreteEventOptions; see there for what counts as a work.
inline constexpr double kMostWorks = 40e6, kMostExactWorks = 8e6;
// Limit of works of the ranks that a timeline shows. Each is at most one interval, of 150 bytes in a trace.
inline constexpr double kMostTimelineWorks = 2e6;

struct DiscreteEventOptions {
  Fidelity fidelity = Fidelity::steady_flow;
  Routing routing = Routing::automatic;
  // Step-exact: number of chunks that chains and trees pass on one by one; 0: NCCL's slices (512 KiB per channel).
  std::int64_t chunks = 0;
  bool fold = true;  // false simulates every rank and link, as a check
  // Number of works (see most_works) beyond which a run is simplified; infinite: never. Collectives then run in
  // lockstep, if that saves half of the ranks: all edges of a group with equal bytes run at the rate of the slowest,
  // however far they are from a disturbed one (Traffic::fold). Large expert groups whose ranks have unequal loads, each
  // by itself, then keep only a few kinds of ranks (sim/des/plan.h, folded_loads). The report says so.
  double most_exact_works = kMostExactWorks;
  // Limit of works: kernels and transfers of all classes of ranks. A run with more is refused before it starts. 40
  // million take half a minute to some minutes, depending on contention, and 3 GB.
  double most_works = kMostWorks;
  // Fill Report::timeline, for at most kMostTimelineWorks works and kMostTimelineSlots slots (sim/analytical/engine.h).
  bool timeline = false;
  bool ops = false;  // fill Report::ops and ::unmeasured
};

// One training job on the cluster. REQUIRES: its pointers stay valid during the call.
struct DiscreteEventJob {
  std::string name;
  const Program* program = nullptr;
  Dtype mfu_dtype = Dtype::bf16;
  const Calibration* kernels = nullptr;
  JobNodes placement;
};

// Whether this program was built with SimGrid, which takes 30 ms to load. Without it no function here runs.
bool built_with_simgrid();

// Runs one step of each job, all starting at the same time, in a process of its own (SimGrid allows one simulation per
// process). `reports`: one for each job. A Program with tasks beside the step (sim/program/task.h) is simulated task by
// task, and a task that runs beside the step together with some steps; what is said of links, waits and the critical
// path is of the step alone. Throws InputError for several jobs of which any has such tasks. Throws InputError for a
// placement beyond the cluster, jobs on the same device, perturbations that name nothing, rates that the cluster lacks,
// and more work than `most_works`. Throws StalledError if the step cannot end: programs wait for each other, or a link
// or node failed.
void run_discrete_event(const Cluster& cluster, const CollectiveCalibration& collectives,
                        std::span<const DiscreteEventJob> jobs, std::span<const Perturbation> perturbations,
                        const DiscreteEventOptions& options, std::span<Report> reports);

// The step does not end. what() says when the last thing moved, and which ranks wait in which op for which group.
class StalledError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The result of one collective by itself, all its groups at the same time, as nccl-tests times it.
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
  Mesh mesh;  // of the ranks that take part; for nccl-tests' single group: tp
  MeshGroup group;
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::automatic;
  CollectiveProtocol protocol = CollectiveProtocol::automatic;
  // For an all-to-all with unequal parts, [from * members + to]: what each member sends each other one, over what it
  // would send if all parts were equal. Empty: equal.
  std::vector<double> rows = {};
};
// Estimates the number of flows that a collective lays over the links, without making any. Most of them fold
// afterwards.
double collective_works(const Cluster& cluster, const CollectiveCalibration& collectives,
                        const CollectiveRequest& request, const DiscreteEventOptions& options);
// Approximate cost of laying and folding one flow: seconds on a core of 2024, and bytes of memory.
inline constexpr double kFlowSeconds = 1e-6, kFlowBytes = 220;
// Throws InputError like run_discrete_event(), and for a collective that is too large to simulate: collective_works(),
// or the messages of the flow classes after folding, exceed `most_works`.
CollectiveRun run_collective(const Cluster& cluster, const CollectiveCalibration& collectives,
                             const CollectiveRequest& request, std::span<const Perturbation> perturbations,
                             const DiscreteEventOptions& options);

}  // namespace orrery
