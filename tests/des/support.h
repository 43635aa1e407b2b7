// What the tests of the discrete-event engine run: collectives on clusters whose seconds are bytes / rate, Programs
// made by hand, and lowered scenarios.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/base/error.h"
#include "sim/cost/calibration.h"
#include "sim/cost/collective_calibration.h"
#include "sim/des/engine.h"
#include "strategies/pipeline_parallel/schedules.h"
#include "tests/analytical/handmade.h"
#include "tests/simulation/support.h"

namespace orrery {

// --- Collectives by themselves

// Everything reaches its link's rate and nothing has a latency.
inline CollectiveCalibration ideal_collectives() {
  constexpr double kNoLimit = 1e30;
  CollectiveCalibration c;
  c.intra.ring_share = c.intra.all_to_all_share = c.intra.send_share = c.intra.host_bridge_share = 1;
  c.intra.protocol_share = c.intra.tree_share = {1, 1, 1};
  c.intra.ll_bytes_per_second = {kNoLimit, kNoLimit, kNoLimit};
  c.intra.nvls_share = c.intra.nvls_network_share = 1;
  c.intra.nvls_channels = 16;
  c.inter.ring_share = c.inter.tree_share = c.inter.all_to_all_share = c.inter.ll_share = 1;
  return c;
}

inline constexpr double kNicRate = 50e9;
inline constexpr double kScaleUpRate = 400e9;
inline constexpr double kSize = 1e9;  // of a collective, in bytes

// NVSwitch nodes without PCIe's rate: the NICs bound what leaves them. All NICs are under one switch.
inline Cluster ideal_cluster(std::int64_t nodes, std::int64_t devices = 1, std::int64_t nics = 1) {
  Cluster c;
  c.node.devices = devices;
  c.node.intra = IntraFabric::nvswitch;
  c.node.intra_bytes_per_second = kScaleUpRate;
  c.node.nics = nics;
  c.node.nic_bytes_per_second = kNicRate;
  c.nodes = nodes;
  c.fabric.kind = FabricKind::single_switch;
  return c;
}
inline Cluster ideal_fat_tree(FabricKind kind, std::int64_t nodes, std::int64_t devices, std::int64_t nodes_per_leaf,
                              double oversubscription) {
  Cluster c = ideal_cluster(nodes, devices, devices);
  c.fabric.kind = kind;
  c.fabric.nodes_per_leaf = nodes_per_leaf;
  c.fabric.oversubscription = oversubscription;
  return c;
}

inline Mesh mesh_of(std::initializer_list<std::pair<MeshAxis, std::int64_t>> degrees) {
  Mesh mesh;
  for (const auto& [axis, degree] : degrees) mesh.add(axis, degree);
  return mesh;
}

// A collective over all devices of the cluster.
inline CollectiveRequest over_all(const Cluster& cluster, OpKind kind,
                                  CollectiveAlgorithm algorithm = CollectiveAlgorithm::automatic,
                                  double bytes = kSize) {
  return {.kind = kind,
          .bytes = bytes,
          .mesh = mesh_of({{MeshAxis::tp, cluster.devices()}}),
          .group = MeshGroup::of_digit(0),
          .algorithm = algorithm,
          .protocol = CollectiveProtocol::simple};
}
// One over each group of ranks that are `inner` apart, on all devices.
inline CollectiveRequest over_strided(const Cluster& cluster, std::int64_t inner, OpKind kind,
                                      CollectiveAlgorithm algorithm = CollectiveAlgorithm::automatic,
                                      double bytes = kSize) {
  CollectiveRequest request = over_all(cluster, kind, algorithm, bytes);
  request.mesh = mesh_of({{MeshAxis::tp, inner}, {MeshAxis::dp_shard, cluster.devices() / inner}});
  request.group = request.mesh.group(MeshAxis::dp_shard);
  return request;
}

inline CollectiveRun run(const Cluster& cluster, const CollectiveRequest& request,
                         const std::vector<Perturbation>& perturbations = {}, const DiscreteEventOptions& options = {},
                         const CollectiveCalibration& collectives = ideal_collectives()) {
  return run_collective(cluster, collectives, request, perturbations, options);
}
inline double seconds(const Cluster& cluster, const CollectiveRequest& request,
                      const std::vector<Perturbation>& perturbations = {}, const DiscreteEventOptions& options = {}) {
  return run(cluster, request, perturbations, options).seconds;
}

inline LinkReport links_of(const std::vector<LinkReport>& all, std::string_view kind) {
  for (const LinkReport& link : all)
    if (link.name == kind) return link;
  return {};  // of no bytes
}

// --- What goes wrong

inline Perturbation slow_link(std::string link, double factor, double from = 0, double until = 0) {
  Perturbation p;
  p.kind = PerturbationKind::slow_link;
  p.link = std::move(link);
  p.factor = factor;
  p.from_seconds = from;
  p.until_seconds = until;
  return p;
}
inline Perturbation background(std::string link, double bytes_per_second, double from = 0, double until = 0) {
  Perturbation p = slow_link(std::move(link), 1, from, until);
  p.kind = PerturbationKind::background_traffic;
  p.bytes_per_second = bytes_per_second;
  return p;
}
inline Perturbation failing_link(std::string link, double from = 0) {
  Perturbation p = slow_link(std::move(link), 1, from);
  p.kind = PerturbationKind::failing_link;
  return p;
}
inline Perturbation failing_node(std::int64_t node, double from = 0) {
  Perturbation p;
  p.kind = PerturbationKind::failing_node;
  p.nodes = {node};
  p.from_seconds = from;
  return p;
}
inline Perturbation slow_device(std::int64_t device, double factor, double from = 0, double until = 0) {
  Perturbation p;
  p.devices = {device};
  p.factor = factor;
  p.from_seconds = from;
  p.until_seconds = until;
  return p;
}
inline Perturbation jitter(double coefficient_of_variation, std::int64_t seed,
                           JitterDistribution distribution = JitterDistribution::lognormal) {
  Perturbation p;
  p.kind = PerturbationKind::jitter;
  p.coefficient_of_variation = coefficient_of_variation;
  p.seed = seed;
  p.distribution = distribution;
  return p;
}

// --- Programs made by hand

// One micro-batch of one piece a stage; kernels as in Handmade: so many seconds.
struct HandmadeProgram {
  explicit HandmadeProgram(const Mesh& mesh) : pieces(static_cast<std::size_t>(mesh.size(MeshAxis::pp))) {
    program.mesh = mesh;
    pipeline_parallel::build_schedule(pipeline_parallel::ScheduleKind::one_f_one_b, mesh.size(MeshAxis::pp), 1, 1,
                                      program.schedule);
  }
  Op& collective(std::size_t stage, OpKind kind, Stream stream, MeshAxis axis, double bytes,
                 const char* name = "collective") {
    return collective(stage, kind, stream, program.mesh.group(axis), bytes, name);
  }
  Op& collective(std::size_t stage, OpKind kind, Stream stream, MeshGroup group, double bytes,
                 const char* name = "collective") {
    Handmade& piece = pieces[stage];
    Op op;
    op.kind = kind;
    op.name = name;
    op.stream = stream;
    op.group = group;
    op.reads[0] = piece.tensor(static_cast<std::int64_t>(bytes));
    op.writes[0] = piece.tensor(static_cast<std::int64_t>(bytes));
    piece.piece.forward.ops.push_back(op);
    return piece.piece.forward.ops.back();
  }
  // So many bytes cross each border between stages, both ways.
  void hand_on(double bytes) {
    for (std::size_t s = 0; s < pieces.size(); ++s) {
      Handmade& piece = pieces[s];
      const auto tensor = [&] { return piece.tensor(static_cast<std::int64_t>(bytes)); };
      if (s > 0) piece.piece.input = tensor(), piece.piece.input_gradient = tensor();
      if (s + 1 < pieces.size()) piece.piece.output = tensor(), piece.piece.output_gradient = tensor();
    }
  }
  const Program& finish() {
    program.pieces.clear();
    program.stages.clear();
    for (std::size_t s = 0; s < pieces.size(); ++s) {
      pieces[s].piece.name = "piece";
      program.pieces.push_back(pieces[s].piece);
      program.stages.push_back({{{{static_cast<std::uint16_t>(s), 1}}}});
    }
    return program;
  }

  Program program;
  std::vector<Handmade> pieces;  // by stage
};

struct PlacedProgram {
  const Program* program = nullptr;
  JobNodes placement;
};
// One byte of a kernel takes one second; collectives are ideal.
inline std::vector<Report> run_programs(Cluster cluster, const std::vector<PlacedProgram>& placed,
                                        const std::vector<Perturbation>& perturbations = {},
                                        const DiscreteEventOptions& options = {}) {
  static const SlowCluster kSlow;  // parsing presets takes a while
  const double pcie = cluster.device.pcie_bytes_per_second;
  cluster.device = kSlow.cluster.device;
  cluster.device.pcie_bytes_per_second = pcie;
  const CollectiveCalibration collectives = ideal_collectives();
  std::vector<DiscreteEventJob> jobs;
  for (const PlacedProgram& p : placed)
    jobs.push_back({.name = "job " + std::to_string(jobs.size()),
                    .program = p.program,
                    .mfu_dtype = Dtype::bf16,
                    .kernels = &kSlow.kernels,
                    .placement = p.placement});
  std::vector<Report> reports(jobs.size());
  run_discrete_event(cluster, collectives, jobs, perturbations, options, reports);
  return reports;
}
inline Report run_program(const Cluster& cluster, const Program& program,
                          const std::vector<Perturbation>& perturbations = {},
                          const DiscreteEventOptions& options = {}) {
  return run_programs(cluster, {{&program, {}}}, perturbations, options).front();
}

// --- Scenarios

// With its perturbations, on its cluster's calibrations.
inline Report simulate_des(const Scenario& scenario, const DiscreteEventOptions& options = {},
                           bool interference = true) {
  const PreparedAlone p(scenario, interference);
  const DiscreteEventJob job{.name = "",
                             .program = p.program,
                             .mfu_dtype = scenario.plan.precision.compute(),
                             .kernels = p.kernels,
                             .placement = {}};
  Report report;
  run_discrete_event(p.scenario.cluster, *p.collectives, {&job, 1}, scenario.perturbations, options, {&report, 1});
  return report;
}

inline std::vector<Report> simulate_jobs(const Cluster& cluster, const std::vector<std::pair<Scenario, JobNodes>>& all,
                                         const std::vector<Perturbation>& perturbations = {},
                                         const DiscreteEventOptions& options = {}) {
  std::vector<Program> programs(all.size());
  const Calibration kernels = find_calibration(cluster.device);
  const CollectiveCalibration collectives = find_collective_calibration(cluster);
  std::vector<DiscreteEventJob> jobs;
  for (std::size_t j = 0; j < all.size(); ++j) {
    lower(all[j].first, programs[j]);
    jobs.push_back({.name = "job " + std::to_string(j),
                    .program = &programs[j],
                    .mfu_dtype = all[j].first.plan.precision.compute(),
                    .kernels = &kernels,
                    .placement = all[j].second});
  }
  std::vector<Report> reports(all.size());
  run_discrete_event(cluster, collectives, jobs, perturbations, options, reports);
  return reports;
}

}  // namespace orrery
