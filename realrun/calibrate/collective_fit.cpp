#include "realrun/calibrate/collective_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "realrun/calibrate/least_squares.h"
#include "realrun/calibrate/write_json.h"
#include "sim/base/error.h"
#include "sim/base/statistics.h"
#include "sim/hardware/presets.h"

namespace orrery {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr double kLarge = 1 << 20;  // sizes above this depend on bandwidth, not latency
constexpr double kSmallWeight = 0.5;
constexpr double kLeastRate = 1e-3;  // the least rate, as a part of the one that the bundled calibration gives
constexpr double kPull = 0.01;       // weight of the pull on a parameter's logarithm, towards its start

struct Free {
  std::string name;
  double* value;
  double least, most;
};

// The bounds are those of fit_collectives.py: shares stay shares, and latencies per step stay near the published
// constants. But a user's links may be much slower than those of the bundled calibration.
Free free_parameter(const std::string& name, double& value) {
  double least = value / 20, most = 20 * value;
  if (name == "ring_share") {
    least = kLeastRate * value, most = 1;
  } else if (name.find("share") != std::string::npos) {
    least = kLeastRate * value, most = std::min(1.0, 2 * value);
  } else if (name.find("step_seconds") != std::string::npos || name.find("fill") != std::string::npos) {
    least = value / 4, most = 4 * value;
  }
  return {name, &value, least, most};
}

double seconds_of(const CollectiveModel& model, const CollectiveCurve& curve, double bytes) {
  GroupSpan span;
  span.ranks = curve.ranks;
  span.nodes = curve.nodes;
  span.ranks_per_node = curve.ranks / curve.nodes;
  return model.cost(curve.kind, bytes, span).seconds;
}

constexpr std::array<const char*, 3> kProtocols{"simple", "ll128", "ll"};

template <class Add>
void add_protocols(const std::string& name, ByProtocol& values, bool ll128, const Add& add) {
  for (std::size_t p = 0; p < values.size(); ++p)
    if (values[p] > 0 && (p != 1 || ll128)) add(name + "." + kProtocols[p], values[p]);
}

class CollectiveFitter {
 public:
  CollectiveFitter(const Cluster& cluster, const std::vector<CollectiveCurve>& curves)
      : cluster_(cluster), curves_(curves), calibration(find_collective_calibration(cluster)) {}

  std::vector<double> log_errors(const std::vector<const CollectiveCurve*>& curves, bool weighted,
                                 double least_bytes = 0) const {
    const CollectiveModel model(cluster_, calibration);
    std::vector<double> errors;
    for (const CollectiveCurve* curve : curves)
      for (const CollectivePoint& p : curve->points) {
        if (p.bytes < least_bytes) continue;
        const double weight = weighted && p.bytes < kLarge ? kSmallWeight : 1;
        errors.push_back(weight * std::log(seconds_of(model, *curve, p.bytes) / p.seconds));
      }
    return errors;
  }

  double median_error(const CollectiveCurve& curve, double least_bytes = 0) const {
    const CollectiveModel model(cluster_, calibration);
    std::vector<double> errors;
    for (const CollectivePoint& p : curve.points)
      if (p.bytes >= least_bytes) errors.push_back(std::fabs(seconds_of(model, curve, p.bytes) / p.seconds - 1));
    return errors.empty() ? 0 : median(std::move(errors));
  }

  std::vector<MissedPoint> missed(const CollectiveCurve& curve) const {
    const CollectiveModel model(cluster_, calibration);
    std::vector<MissedPoint> points;
    for (const CollectivePoint& p : curve.points) {
      const double predicted = seconds_of(model, curve, p.bytes);
      if (std::fabs(std::log(predicted / p.seconds)) > std::log(kMissedFactor)) points.push_back({p, predicted});
    }
    return points;
  }

  CollectiveResidual residual(const std::vector<const CollectiveCurve*>& curves) const {
    const CollectiveModel model(cluster_, calibration);
    CollectiveResidual r;
    std::vector<double> all, large;
    r.curves = static_cast<std::int64_t>(curves.size());
    for (const CollectiveCurve* curve : curves)
      for (const CollectivePoint& p : curve->points) {
        all.push_back(std::fabs(seconds_of(model, *curve, p.bytes) / p.seconds - 1));
        if (p.bytes >= kLarge) large.push_back(all.back());
      }
    r.points = static_cast<std::int64_t>(all.size());
    r.points_from_1_mib = static_cast<std::int64_t>(large.size());
    if (!all.empty()) r.median_error = rounded(median(std::move(all)));
    if (!large.empty()) r.median_error_from_1_mib = rounded(median(std::move(large)));
    return r;
  }

  std::vector<const CollectiveCurve*> curves_of(bool across_nodes) const {
    std::vector<const CollectiveCurve*> chosen;
    for (const CollectiveCurve& c : curves_)
      if ((c.nodes > 1) == across_nodes) chosen.push_back(&c);
    return chosen;
  }

  // A log does not say which algorithm ran, and if one algorithm becomes slower, the prediction uses another. So all
  // shares of a link start at the common rate that matches the large sizes best. The search for it only goes down: the
  // fit can raise single shares later.
  void slow_links(const std::vector<const CollectiveCurve*>& curves, const std::vector<Free>& free) {
    std::vector<double> bundled;
    for (const Free& f : free) bundled.push_back(*f.value);
    const auto put = [&](double rate) {
      for (std::size_t i = 0; i < free.size(); ++i)
        if (free[i].name.find("share") != std::string::npos) *free[i].value = bundled[i] * rate;
    };
    constexpr int kSteps = 60;
    double best = 1, least = std::numeric_limits<double>::infinity();
    for (int k = 0; k <= kSteps; ++k) {
      const double rate = std::pow(kLeastRate, static_cast<double>(k) / kSteps);
      put(rate);
      double loss = 0;
      for (const double error : log_errors(curves, true, kLarge)) loss += std::fabs(error);
      if (loss < least) least = loss, best = rate;
    }
    put(best);
  }

  void fit(const std::vector<const CollectiveCurve*>& curves, std::vector<Free> free) {
    std::vector<FitParameter> parameters;
    std::vector<double> start;
    for (const Free& f : free) start.push_back(*f.value);
    slow_links(curves, free);
    for (const Free& f : free) {
      parameters.push_back({f.name, std::clamp(*f.value, f.least, f.most), f.least, f.most});
    }
    const auto put = [&](const std::vector<double>& values) {
      for (std::size_t i = 0; i < free.size(); ++i) *free[i].value = values[i];
    };
    const FitResult result = fit_least_squares(parameters, [&](const std::vector<double>& values) {
      put(values);
      std::vector<double> errors = log_errors(curves, true);
      for (std::size_t i = 0; i < values.size(); ++i) errors.push_back(kPull * std::log(values[i] / start[i]));
      return errors;
    });
    std::vector<double> values;
    for (const double value : result.values) values.push_back(std::stod(fmt::format("{:.4g}", value)));
    put(values);
  }

  static double rounded(double x) { return std::stod(fmt::format("{:.4f}", x)); }

 private:
  const Cluster& cluster_;
  const std::vector<CollectiveCurve>& curves_;

 public:
  CollectiveCalibration calibration;
};

bool has(const std::vector<const CollectiveCurve*>& curves, std::initializer_list<OpKind> kinds) {
  return std::any_of(curves.begin(), curves.end(), [&](const CollectiveCurve* c) {
    return std::find(kinds.begin(), kinds.end(), c->kind) != kinds.end();
  });
}

constexpr std::initializer_list<OpKind> kRings{OpKind::all_reduce, OpKind::all_gather, OpKind::reduce_scatter,
                                               OpKind::broadcast, OpKind::reduce};

// The parameters that the curves determine.
std::vector<Free> free_of_node(const Cluster& cluster, const std::vector<const CollectiveCurve*>& curves,
                               IntraCalibration& c) {
  std::vector<Free> free;
  const auto add = [&](const std::string& name, double& value) {
    if (value > 0) free.push_back(free_parameter(name, value));
  };
  if (has(curves, kRings)) {
    add("ring_share", c.ring_share);
    if (cluster.node.intra == IntraFabric::pcie || cluster.node.intra == IntraFabric::nvlink_pairs)
      add("host_bridge_share", c.host_bridge_share);
    add_protocols("base_seconds", c.base_seconds, c.ll128, add);
    add_protocols("step_seconds", c.step_seconds, c.ll128, add);
  }
  if (has(curves, {OpKind::all_to_all})) {
    add("all_to_all_share", c.all_to_all_share);
    add_protocols("all_to_all_base_seconds", c.all_to_all_base_seconds, false, add);
  }
  if (has(curves, {OpKind::ring_shift})) {
    add("send_share", c.send_share);
    add_protocols("send_base_seconds", c.send_base_seconds, false, add);
  }
  if (has(curves, {OpKind::all_reduce}) && cluster.node.in_switch_reduction) {
    add("nvls_share", c.nvls_share);
    add("nvls_seconds", c.nvls_seconds);
    add("nvls_fill_seconds", c.nvls_fill_seconds);
    add("nvls_fill_bytes", c.nvls_fill_bytes);
  }
  return free;
}

std::vector<Free> free_of_network(const std::vector<const CollectiveCurve*>& curves, InterCalibration& c) {
  std::vector<Free> free;
  const auto add = [&](const std::string& name, double& value) {
    if (value > 0) free.push_back(free_parameter(name, value));
  };
  if (has(curves, kRings)) {
    add("ring_share", c.ring_share);
    add("ring_fill_seconds", c.ring_fill_seconds);
    add("ring_fill_bytes", c.ring_fill_bytes);
    add_protocols("ring_step_seconds", c.ring_step_seconds, c.ll128, add);
    add("ll_share", c.ll_share);
  }
  if (has(curves, {OpKind::all_reduce})) {
    add("tree_share", c.tree_share);
    add("tree_fill_seconds", c.tree_fill_seconds);
    add("tree_fill_bytes", c.tree_fill_bytes);
    add_protocols("tree_step_seconds", c.tree_step_seconds, c.ll128, add);
  }
  if (has(curves, {OpKind::all_to_all})) {
    add("all_to_all_share", c.all_to_all_share);
    add_protocols("send_step_seconds", c.send_step_seconds, false, add);
  }
  add_protocols("base_seconds", c.base_seconds, c.ll128, add);
  return free;
}

// Rings load the links of a node or network evenly, so no other algorithm gets more than rings were measured to get.
// (An all-to-all may be slow for other reasons.)
void bound_by_rings(const std::vector<Free>& free, double ring_share, double bundled_ring_share,
                    std::initializer_list<std::pair<const char*, double*>> shares) {
  const auto is_free = [&](const char* name) {
    return std::any_of(free.begin(), free.end(), [&](const Free& f) { return f.name == name; });
  };
  if (!is_free("ring_share") || ring_share >= bundled_ring_share) return;
  for (const auto& [name, share] : shares)
    if (!is_free(name)) *share = std::stod(fmt::format("{:.4g}", *share * ring_share / bundled_ring_share));
}

struct ParametersWriter {
  OrderedJson json;

  void number(const char* name, double value, const NumberRange&) { json[name] = value; }
  void integer(const char* name, std::int64_t value, std::int64_t) { json[name] = value; }
  void boolean(const char* name, bool value) { json[name] = value; }
  void protocols(const char* name, const ByProtocol& values, const NumberRange&, bool with_ll128) {
    OrderedJson& of = json[name] = {{"simple", values[0]}};
    if (with_ll128) of["ll128"] = values[1];
    of["ll"] = values[2];
  }
  void rates(const char* name, const std::array<double, 3>& values) { json[name] = values; }
};
template <class Calibration>
OrderedJson parameters_json(Calibration c) {
  ParametersWriter writer;
  visit_parameters(c, writer);
  return std::move(writer.json);
}

OrderedJson json_of(const CollectiveResidual& r) {
  return {{"curves", r.curves},
          {"points", r.points},
          {"median_error", r.median_error},
          {"points_from_1_mib", r.points_from_1_mib},
          {"median_error_from_1_mib", r.median_error_from_1_mib}};
}

// Returns the word that tells a device's model from others: "A100" in "NVIDIA A100-SXM4-80GB", "3090" in "GeForce RTX
// 3090"; "" where there is none ("NVIDIA Graphics Device").
std::string model_word(const std::string& device) {
  std::string word;
  for (std::size_t i = 0; i <= device.size(); ++i) {
    const auto c = static_cast<unsigned char>(i < device.size() ? device[i] : ' ');
    if (std::isalnum(c)) {
      word += static_cast<char>(std::toupper(c));
      continue;
    }
    if (std::any_of(word.begin(), word.end(), [](unsigned char w) { return std::isdigit(w); })) {
      if (word.ends_with("TI") && std::isdigit(static_cast<unsigned char>(word.front()))) word.resize(word.size() - 2);
      return word;
    }
    word.clear();
  }
  return {};
}

bool is_known_model(const std::string& word) {
  if (word.empty()) return false;
  const std::vector<std::string> names = device_names();
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return model_word(name) == word; });
}

void refuse_other_device(const Cluster& cluster, const CollectiveCurve& curve) {
  const std::string measured = model_word(curve.device), given = model_word(cluster.device.name);
  if (measured == given || !is_known_model(measured) || !is_known_model(given)) return;
  throw InputError(
      {curve.source, ""}, "a log of " + curve.device,
      fmt::format("a log of the cluster's device, {}, or --cluster with the device of the log", cluster.device.name));
}

}  // namespace

bool CurveError::is_missed() const {
  const bool by_far = std::any_of(missed.begin(), missed.end(), [](const MissedPoint& m) {
    return std::fabs(std::log(m.predicted_seconds / m.point.seconds)) > std::log(kMissedByFar);
  });
  return by_far || static_cast<double>(missed.size()) > kMissedPart * static_cast<double>(points);
}

void place_on(const Cluster& cluster, CollectiveCurve& curve) {
  const Node& node = cluster.node;
  refuse_other_device(cluster, curve);
  curve.nodes = curve.hosts;
  if (node.devices_per_host > 0) {
    const std::int64_t hosts = std::max<std::int64_t>(1, node.devices / node.devices_per_host);
    curve.nodes = (curve.hosts + hosts - 1) / hosts;
    if (curve.hosts % curve.nodes != 0)
      throw InputError({curve.source, ""},
                       fmt::format("{} hosts, in nodes of {} hosts and {} devices", curve.hosts, hosts, node.devices),
                       "the same number of hosts in every node");
  }
  if (curve.nodes <= cluster.nodes && curve.ranks / curve.nodes <= node.devices) return;
  std::string expected = fmt::format("at most the given cluster's {} node{} of {} devices", cluster.nodes,
                                     cluster.nodes == 1 ? "" : "s", node.devices);
  if (curve.hosts > 1 && curve.ranks <= cluster.devices() && node.devices_per_host == 0)
    expected += "; if a node has several hosts, set its devices_per_host";
  throw InputError({curve.source, ""}, fmt::format("{} ranks on {} hosts", curve.ranks, curve.hosts), expected);
}

CollectiveFit fit_collectives(const Cluster& cluster, const std::vector<CollectiveCurve>& curves,
                              const std::string& source) {
  for (const CollectiveCurve& curve : curves)
    if (curve.nodes > cluster.nodes || curve.ranks / curve.nodes > cluster.node.devices)
      throw InputError(
          {curve.source, ""}, fmt::format("{} ranks on {} nodes", curve.ranks, curve.nodes),
          fmt::format("at most the given cluster's {} nodes of {} devices", cluster.nodes, cluster.node.devices));
  CollectiveFitter fitter(cluster, curves);
  CollectiveFit result;
  for (const CollectiveCurve& curve : curves)
    result.errors.push_back(
        {curve.id, static_cast<std::int64_t>(curve.points.size()), fitter.median_error(curve), 0, {}});

  if (const auto within = fitter.curves_of(false); !within.empty()) {
    const std::vector<Free> free = free_of_node(cluster, within, fitter.calibration.intra);
    const double bundled = fitter.calibration.intra.ring_share;
    fitter.fit(within, free);
    IntraCalibration& c = fitter.calibration.intra;
    bound_by_rings(
        free, c.ring_share, bundled,
        {{"all_to_all_share", &c.all_to_all_share}, {"send_share", &c.send_share}, {"nvls_share", &c.nvls_share}});
    for (const Free& f : free) result.fitted.push_back("node: " + f.name);
    result.classes.node_classes.push_back(
        {.name = fmt::format("{} measured", cluster.device.architecture),
         .source = source,
         .architectures = {cluster.device.architecture},
         .fabrics = {std::string(kIntraFabricNames[static_cast<std::size_t>(cluster.node.intra)])},
         .least_devices = 1,
         .parameters = fitter.calibration.intra,
         .residual = fitter.residual(within)});
  }
  if (const auto across = fitter.curves_of(true); !across.empty()) {
    const std::vector<Free> free = free_of_network(across, fitter.calibration.inter);
    const double bundled = fitter.calibration.inter.ring_share;
    fitter.fit(across, free);
    InterCalibration& c = fitter.calibration.inter;
    bound_by_rings(free, c.ring_share, bundled,
                   {{"tree_share", &c.tree_share}, {"all_to_all_share", &c.all_to_all_share}});
    for (const Free& f : free) result.fitted.push_back("network: " + f.name);
    std::string word = cluster.fabric.name;
    std::transform(word.begin(), word.end(), word.begin(), [](unsigned char w) { return std::tolower(w); });
    result.classes.network_classes.push_back({.name = fmt::format("{} measured", cluster.fabric.name),
                                              .source = source,
                                              .words = {word},
                                              .parameters = fitter.calibration.inter,
                                              .residual = fitter.residual(across)});
  }
  for (std::size_t i = 0; i < curves.size(); ++i) {
    result.errors[i].after = fitter.median_error(curves[i]);
    result.errors[i].missed = fitter.missed(curves[i]);
  }
  return result;
}

nlohmann::ordered_json collectives_json(const CollectiveFit& fit, const std::string& method) {
  OrderedJson json{{"description", "Rates and latencies of collectives, measured by a user."}, {"method", method}};
  OrderedJson& nodes = json["node_classes"] = OrderedJson::array();
  for (const IntraClass& c : fit.classes.node_classes)
    nodes.push_back({{"name", c.name},
                     {"architectures", c.architectures},
                     {"fabrics", c.fabrics},
                     {"least_devices", c.least_devices},
                     {"source", c.source},
                     {"parameters", parameters_json(c.parameters)},
                     {"residual", json_of(c.residual)}});
  OrderedJson& networks = json["network_classes"] = OrderedJson::array();
  for (const InterClass& c : fit.classes.network_classes)
    networks.push_back({{"name", c.name},
                        {"words", c.words},
                        {"source", c.source},
                        {"parameters", parameters_json(c.parameters)},
                        {"residual", json_of(c.residual)}});
  return json;
}

std::string collectives_text(const CollectiveFit& fit, const std::string& method) {
  return written_json(collectives_json(fit, method));
}

std::string curves_text(const Cluster& cluster, const std::vector<CollectiveCurve>& curves, const std::string& method) {
  const Node& node = cluster.node;
  const std::string system = node.name.empty() ? "measured" : node.name;
  OrderedJson json{{"description", "Measured time of collectives (nccl-tests and the like)."},
                   {"units", "points: [bytes, microseconds]; systems: bytes per second, one direction"}};
  json["systems"][system] = {{"gpu", cluster.device.name},
                             {"architecture", cluster.device.architecture},
                             {"intra", kIntraFabricNames[static_cast<std::size_t>(node.intra)]},
                             {"devices_per_node", node.devices},
                             {"intra_bytes_per_second", node.intra_bytes_per_second},
                             {"pair_bytes_per_second", node.pair_bytes_per_second},
                             {"in_switch_reduction", node.in_switch_reduction},
                             {"pcie_bytes_per_second", node.pcie_bytes_per_second},
                             {"devices_per_pcie_switch", node.devices_per_pcie_switch},
                             {"devices_per_pcie_root", node.devices_per_pcie_root},
                             {"nics", node.nics},
                             {"nic_bytes_per_second", node.nic_bytes_per_second},
                             {"fabric", kFabricKindNames[static_cast<std::size_t>(cluster.fabric.kind)]},
                             {"network", cluster.fabric.name}};
  OrderedJson& list = json["curves"] = OrderedJson::array();
  for (const CollectiveCurve& c : curves) {
    OrderedJson points = OrderedJson::array();
    for (const CollectivePoint& p : c.points)
      points.push_back({p.bytes, std::stod(fmt::format("{:.6g}", 1e6 * p.seconds))});
    list.push_back({{"id", c.id},
                    {"source", c.source},
                    {"method", method},
                    {"system", system},
                    {"collective", c.collective},
                    {"ranks", c.ranks},
                    {"nodes", c.nodes},
                    {"algorithm", "automatic"},
                    {"dtype", c.dtype},
                    {"points", std::move(points)}});
  }
  return written_json(json);
}

}  // namespace orrery
