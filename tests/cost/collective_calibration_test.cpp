// Is the calibration of collectives what the measured curves say, and does every cluster find one?
#include "sim/cost/collective_calibration.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/base/json_reader.h"

namespace orrery {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

constexpr double kLarge = 1 << 20;  // bytes

const Json& published_collectives() {
  static const Json json = parse_json_file(ORRERY_SOURCE_DIR "/results/published/collectives.json");
  return json;
}
Json calibration_file() { return parse_json_file(ORRERY_SOURCE_DIR "/results/calibration/collectives.json"); }

// The system on which a curve was measured.
Cluster cluster_of(const Json& system, const Json& curve) {
  Cluster c;
  c.device.architecture = system["architecture"];
  c.device.pcie_bytes_per_second = system["pcie_bytes_per_second"];
  const std::string intra = system["intra"];
  const auto* kind = std::find(kIntraFabricNames.begin(), kIntraFabricNames.end(), intra);
  c.node.devices = system["devices_per_node"];
  c.node.intra = static_cast<IntraFabric>(kind - kIntraFabricNames.begin());
  c.node.intra_bytes_per_second = system["intra_bytes_per_second"];
  c.node.pair_bytes_per_second = system["pair_bytes_per_second"];
  c.node.in_switch_reduction = system["in_switch_reduction"] && curve.value("in_switch_reduction", true);
  c.node.devices_per_pcie_switch = system["devices_per_pcie_switch"];
  c.node.nics = system["nics"];
  c.node.nic_bytes_per_second = system["nic_bytes_per_second"];
  c.nodes = curve["nodes"];
  c.fabric.name = system["network"];
  return c;
}

double predicted_seconds(const CollectiveModel& model, const Json& curve, double bytes) {
  const std::int64_t ranks = curve["ranks"], nodes = curve["nodes"];
  const std::string kind = curve["collective"], algorithm = curve["algorithm"];
  if (kind == "send_recv") return model.transfer_seconds(bytes, 1, 0);
  const GroupSpan span{.ranks = ranks, .ranks_per_node = ranks / nodes, .nodes = nodes};
  const auto wanted = algorithm == "ring"   ? CollectiveAlgorithm::ring
                      : algorithm == "nvls" ? CollectiveAlgorithm::nvls
                                            : CollectiveAlgorithm::automatic;
  for (const OpKind op :
       {OpKind::all_reduce, OpKind::all_gather, OpKind::reduce_scatter, OpKind::all_to_all, OpKind::broadcast,
        OpKind::reduce})
    if (kind == name_of(op)) return model.cost(op, bytes, span, wanted).seconds;
  ADD_FAILURE() << "unknown collective " << kind;
  return 0;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

struct Errors {
  std::int64_t curves = 0;
  std::vector<double> all, large;
};

// Errors of all fitted curves by class; curves across nodes count for their network's class.
struct Residuals {
  std::map<std::string, Errors> by_class;
  Errors in_node, across;
};
Residuals recompute() {
  Residuals result;
  for (const Json& curve : published_collectives()["curves"]) {
    if (curve.contains("not_fitted")) continue;
    const Cluster cluster = cluster_of(published_collectives()["systems"][curve["system"].get<std::string>()], curve);
    const CollectiveCalibration calibration = find_collective_calibration(cluster);
    const CollectiveModel model(cluster, calibration);
    const bool across = cluster.nodes > 1;
    Errors& of_class = result.by_class[across ? calibration.inter_class : calibration.intra_class];
    Errors& of_level = across ? result.across : result.in_node;
    ++of_class.curves;
    for (const Json& point : curve["points"]) {
      const double bytes = point[0], measured = point[1].get<double>() * 1e-6;
      const double error = std::abs(predicted_seconds(model, curve, bytes) / measured - 1);
      for (Errors* e : {&of_class, &of_level}) {
        e->all.push_back(error);
        if (bytes >= kLarge) e->large.push_back(error);
      }
    }
  }
  return result;
}

TEST(CollectiveResiduals, AreThoseStatedInTheCalibration) {
  const Residuals residuals = recompute();
  const auto check = [&](const std::string& name, const CollectiveResidual& stated) {
    const auto found = residuals.by_class.find(name);
    const Errors errors = found == residuals.by_class.end() ? Errors{} : found->second;
    EXPECT_EQ(stated.curves, errors.curves) << name;
    EXPECT_EQ(stated.points, std::ssize(errors.all)) << name;
    EXPECT_EQ(stated.points_from_1_mib, std::ssize(errors.large)) << name;
    EXPECT_NEAR(stated.median_error, median(errors.all), 2e-4) << name;
    EXPECT_NEAR(stated.median_error_from_1_mib, median(errors.large), 2e-4) << name;
  };
  std::int64_t points = 0;
  for (const IntraClass& c : bundled_collective_classes().node_classes) {
    check(c.name, c.residual);
    points += c.residual.points;
  }
  for (const InterClass& c : bundled_collective_classes().network_classes) {
    check(c.name, c.residual);
    points += c.residual.points;
  }
  EXPECT_GT(points, 2500);
}

TEST(CollectiveResiduals, MedianErrorsOfLargeMessagesAreSmall) {
  const Residuals residuals = recompute();
  const double in_node = median(residuals.in_node.large), across = median(residuals.across.large);
  fmt::print("median error from 1 MiB: {:.1f}% within nodes ({} points), {:.1f}% across nodes ({} points)\n",
             100 * in_node, residuals.in_node.large.size(), 100 * across, residuals.across.large.size());
  EXPECT_LT(in_node, 0.10);
  EXPECT_LT(across, 0.15);
}

TEST(CollectiveCalibrations, EveryFabricOfEveryArchitectureFindsOne) {
  for (const std::string architecture : {"Pascal", "Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell",
                                         "Blackwell Ultra", "CDNA1", "CDNA2", "CDNA3", "CDNA4", "Gaudi2", ""})
    for (const IntraFabric intra :
         {IntraFabric::nvswitch, IntraFabric::direct_mesh, IntraFabric::nvlink_pairs, IntraFabric::pcie})
      for (const std::string fabric : {"ib-hdr-rail", "roce-400-meta", "efa-v2", "slingshot-dragonfly",
                                       "gpudirect-tcpx", "ethernet-tcp", "something else", ""}) {
        Cluster c;
        c.device.architecture = architecture;
        c.node.intra = intra;
        c.node.devices = 8;
        c.nodes = 2;
        c.fabric.name = fabric;
        const CollectiveCalibration found = find_collective_calibration(c);
        EXPECT_GT(found.intra.ring_share, 0);
        EXPECT_GT(found.inter.ring_share, 0);
        EXPECT_FALSE(found.intra_class.empty());
      }
}

TEST(CollectiveCalibrations, StandInsAreSaid) {
  Cluster c;
  c.device.architecture = "Gaudi2";
  c.node.intra = IntraFabric::direct_mesh;
  c.nodes = 4;
  c.fabric.name = "carrier pigeons";
  const CollectiveCalibration borrowed = find_collective_calibration(c);
  EXPECT_THAT(borrowed.note, HasSubstr("Gaudi2"));
  EXPECT_THAT(borrowed.note, HasSubstr("carrier pigeons"));
  c.device.architecture = "Hopper";
  c.fabric.name = "RoCE-400-rail";  // whatever the case
  const CollectiveCalibration own = find_collective_calibration(c);
  EXPECT_EQ(own.note, "");
  EXPECT_EQ(own.intra_class, "Hopper NVLink4");
  EXPECT_EQ(own.inter_class, "RoCE");
}

TEST(CollectiveCalibrations, ClassesFollowGenerationFabricAndDomain) {
  Cluster c;
  const auto found = [&](const char* architecture, IntraFabric intra, std::int64_t devices) {
    c.device.architecture = architecture;
    c.node.intra = intra;
    c.node.devices = devices;
    return find_collective_calibration(c).intra_class;
  };
  EXPECT_EQ(found("Ampere", IntraFabric::nvswitch, 8), "Ampere NVLink3");
  EXPECT_EQ(found("Ampere", IntraFabric::nvlink_pairs, 8), "NVLink bridge pairs");
  EXPECT_EQ(found("Blackwell", IntraFabric::pcie, 8), "PCIe");
  EXPECT_EQ(found("Blackwell", IntraFabric::nvswitch, 8), "Blackwell NVLink5");
  EXPECT_EQ(found("Blackwell", IntraFabric::nvswitch, 72), "Blackwell NVLink5 rack");
  const auto network = [&](const char* name) {
    c.fabric.name = name;
    return find_collective_calibration(c).inter_class;
  };
  EXPECT_EQ(network("ib-ndr-fat-tree"), "InfiniBand");
  EXPECT_EQ(network("omni-path-100"), "InfiniBand");
  EXPECT_EQ(network("ethernet-roce-100"), "RoCE");
  EXPECT_EQ(network("efa-v1"), "EFA v1");
  EXPECT_EQ(network("efa-v3"), "EFA");
  EXPECT_EQ(network("slingshot-dragonfly-alps"), "Slingshot");
  EXPECT_EQ(network("gpudirect-tcpx"), "GPUDirect-TCPX");
  EXPECT_EQ(network("ethernet-tcp"), "TCP");
}

TEST(CollectiveCalibrations, AUsersOwnClassesComeFirst) {
  Json mine = calibration_file();
  Json network = mine["network_classes"][0];
  network["name"] = "my switch";
  network["words"] = {"carrier pigeons"};
  network["parameters"]["ring_share"] = 0.123;
  const CollectiveClasses user = read_collective_classes({{"network_classes", {network}}}, {"mine.json", ""});
  Cluster c;
  c.device.architecture = "Hopper";
  c.nodes = 2;
  c.fabric.name = "carrier pigeons";
  const CollectiveCalibration found = find_collective_calibration(c, user);
  EXPECT_EQ(found.inter_class, "my switch");
  EXPECT_EQ(found.inter.ring_share, 0.123);
  EXPECT_EQ(found.intra_class, "Hopper NVLink4");
  EXPECT_EQ(found.note, "");
}

TEST(CollectiveCalibrations, FaultsAreNamedWithTheirPlace) {
  const auto fault = [](auto edit) -> std::string {
    Json json = calibration_file();
    edit(json);
    try {
      read_collective_classes(json, {"mine.json", ""});
    } catch (const InputError& e) {
      return e.where().file + e.where().pointer + " " + e.found() + " | " + e.expected() + " | " + e.nearest();
    }
    return "none";
  };
  EXPECT_EQ(fault([](Json&) {}), "none");
  EXPECT_THAT(fault([](Json& j) { j["node_classes"][1]["parameters"]["ring_share"] = 1.5; }),
              HasSubstr("mine.json/node_classes/1/parameters/ring_share"));
  EXPECT_THAT(fault([](Json& j) { j["node_classes"][0]["parameters"].erase("local_steps"); }),
              HasSubstr("local_steps"));
  EXPECT_THAT(fault([](Json& j) { j["network_classes"][0]["parameters"]["rign_share"] = 1; }), HasSubstr("ring_share"));
  EXPECT_THAT(fault([](Json& j) { j["node_classes"][0]["fabrics"] = {"nvswich"}; }), HasSubstr("nvswitch"));
  EXPECT_THAT(fault([](Json& j) { j["node_classes"][0]["parameters"]["base_seconds"].erase("ll128"); }),
              HasSubstr("/base_seconds/ll128"));
  EXPECT_THAT(fault([](Json& j) {
                j["node_classes"][0]["parameters"]["ll_bytes_per_second"] = {1, 2};
              }),
              HasSubstr("ll_bytes_per_second"));
}

TEST(PublishedCollectives, SayWhereTheyWereSeenAndWhatWasLeftOut) {
  for (const Json& curve : published_collectives()["curves"]) {
    EXPECT_FALSE(curve["source"].get<std::string>().empty());
    EXPECT_FALSE(curve["method"].get<std::string>().empty());
    EXPECT_TRUE(published_collectives()["systems"].contains(curve["system"].get<std::string>())) << curve["id"];
    EXPECT_FALSE(curve["points"].empty());
  }
  for (const Json& left : published_collectives()["left_out"]) EXPECT_FALSE(left["why"].get<std::string>().empty());
}

}  // namespace
}  // namespace orrery
