#include "realrun/calibrate/collective_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <span>
#include <utility>

#include "realrun/calibrate/fit.h"
#include "realrun/calibrate/least_squares.h"
#include "realrun/calibrate/published.h"
#include "sim/base/error.h"
#include "sim/base/input_file.h"
#include "sim/base/json_reader.h"
#include "sim/base/statistics.h"
#include "sim/base/words.h"
#include "sim/cost/collective_calibration.h"
#include "sim/cost/published_collectives.h"
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

// Shares stay shares, and latencies per step stay near the published constants, as they are extrapolated to large
// groups. But a user's links may be much slower than those of the bundled calibration.
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

constexpr std::array<const char*, 3> kProtocols{"simple", "ll128", "ll"};

// The parameters of a class by their names, and its numbers by theirs: "ring_share", "base_seconds.simple".
class ParameterFields {
 public:
  OrderedJson json = OrderedJson::object();
  std::vector<std::pair<std::string, double*>> numbers;

  template <class Parameters>
  explicit ParameterFields(Parameters& parameters) {
    visit_parameters(parameters, *this);
  }
  void number(const char* name, double& value, NumberRange) {
    json[name] = value;
    numbers.emplace_back(name, &value);
  }
  void integer(const char* name, std::int64_t value, std::int64_t) { json[name] = value; }
  void boolean(const char* name, bool value) { json[name] = value; }
  void rates(const char* name, const std::array<double, 3>& values) { json[name] = values; }
  void protocols(const char* name, ByProtocol& values, NumberRange, bool with_ll128) {
    for (std::size_t p = 0; p < values.size(); ++p) {
      if (p == 1 && !with_ll128) continue;
      json[name][kProtocols[p]] = values[p];
      numbers.emplace_back(fmt::format("{}.{}", name, kProtocols[p]), &values[p]);
    }
  }
  void protocols_or(const char* name, ByProtocol& values, const ByProtocol&, NumberRange range) {
    protocols(name, values, range, false);
  }
};

// `names`: of numbers, or of those of all protocols.
template <class Parameters>
std::vector<Free> free_of(Parameters& parameters, const std::vector<std::string>& names) {
  const ParameterFields fields(parameters);
  std::vector<Free> free;
  for (const std::string& name : names)
    for (const auto& [key, value] : fields.numbers)
      if ((key == name || key.starts_with(name + ".")) && *value > 0 && (parameters.ll128 || !key.ends_with(".ll128")))
        free.push_back(free_parameter(key, *value));
  return free;
}

// A curve beside what its prediction depends on: the parameters as the fit has them now.
struct PlacedCurve {
  const CollectiveCurve* curve;
  const Cluster* cluster;
  CollectiveCalibration calibration;
  const IntraCalibration* intra;
  const InterCalibration* inter;

  std::vector<double> predicted_seconds() const {
    CollectiveCalibration now = calibration;
    now.intra = *intra, now.inter = *inter;
    const CollectiveModel model(*cluster, now);
    GroupSpan span;
    span.ranks = curve->ranks;
    span.nodes = curve->nodes;
    span.ranks_per_node = curve->ranks / curve->nodes;
    std::vector<double> seconds;
    for (const CollectivePoint& p : curve->points)
      seconds.push_back(model.cost(curve->kind, p.bytes, span, curve->algorithm).seconds);
    return seconds;
  }
};
using PlacedCurves = std::vector<PlacedCurve>;

// Calls visit(point, predicted seconds) for every point of the curves.
template <class Visit>
void for_each_point(std::span<const PlacedCurve> curves, Visit visit) {
  for (const PlacedCurve& placed : curves) {
    const std::vector<double> seconds = placed.predicted_seconds();
    for (std::size_t i = 0; i < seconds.size(); ++i) visit(placed.curve->points[i], seconds[i]);
  }
}

std::vector<double> log_errors(const PlacedCurves& curves, double least_bytes = 0) {
  std::vector<double> errors;
  for_each_point(curves, [&](const CollectivePoint& p, double predicted) {
    const double weight = p.bytes < kLarge ? kSmallWeight : 1;
    if (p.bytes >= least_bytes) errors.push_back(weight * std::log(predicted / p.seconds));
  });
  return errors;
}

std::vector<double> relative_errors(std::span<const PlacedCurve> curves, double least_bytes = 0) {
  std::vector<double> errors;
  for_each_point(curves, [&](const CollectivePoint& p, double predicted) {
    if (p.bytes >= least_bytes) errors.push_back(std::fabs(predicted / p.seconds - 1));
  });
  return errors;
}

double median_or_zero(std::vector<double> values) { return values.empty() ? 0 : median(std::move(values)); }

CollectiveResidual collective_residual(const PlacedCurves& curves) {
  const auto rounded = [](double x) { return std::stod(fmt::format("{:.4f}", x)); };
  const std::vector<double> all = relative_errors(curves), large = relative_errors(curves, kLarge);
  return {.curves = std::ssize(curves),
          .points = std::ssize(all),
          .points_from_1_mib = std::ssize(large),
          .median_error = rounded(median_or_zero(all)),
          .median_error_from_1_mib = rounded(median_or_zero(large))};
}

std::vector<MissedPoint> missed_points(const PlacedCurve& curve) {
  std::vector<MissedPoint> points;
  for_each_point({&curve, 1}, [&](const CollectivePoint& p, double predicted) {
    if (std::fabs(std::log(predicted / p.seconds)) > std::log(kMissedFactor)) points.push_back({p, predicted});
  });
  return points;
}

std::vector<double> values_of(const std::vector<Free>& free) {
  std::vector<double> values;
  for (const Free& f : free) values.push_back(*f.value);
  return values;
}

// A log does not say which algorithm ran, and if one algorithm becomes slower, the prediction uses another. So all
// shares of a link start at the common rate that matches the large sizes best. The search for it only goes down: the
// fit can raise single shares later.
void slow_links(const PlacedCurves& curves, const std::vector<Free>& free) {
  const std::vector<double> bundled = values_of(free);
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
    for (const double error : log_errors(curves, kLarge)) loss += std::fabs(error);
    if (loss < least) least = loss, best = rate;
  }
  put(best);
}

// Fits the free parameters, each pulled towards what it was before slow_links().
void fit_free(const PlacedCurves& curves, const std::vector<Free>& free, const std::vector<double>& start,
              const FitLoss& loss) {
  std::vector<FitParameter> parameters;
  for (const Free& f : free) parameters.push_back({f.name, std::clamp(*f.value, f.least, f.most), f.least, f.most});
  const auto put = [&](const std::vector<double>& values) {
    for (std::size_t i = 0; i < free.size(); ++i) *free[i].value = values[i];
  };
  const auto errors_at = [&](const std::vector<double>& values) {
    put(values);
    std::vector<double> errors = log_errors(curves);
    for (std::size_t i = 0; i < values.size(); ++i) errors.push_back(kPull * std::log(values[i] / start[i]));
    return errors;
  };
  std::vector<double> values = fit_least_squares(parameters, errors_at, loss).values;
  for (double& value : values) value = std::stod(fmt::format("{:.4g}", value));
  put(values);
}

bool has(const PlacedCurves& curves, std::initializer_list<OpKind> kinds) {
  return std::any_of(curves.begin(), curves.end(), [&](const PlacedCurve& c) {
    return std::find(kinds.begin(), kinds.end(), c.curve->kind) != kinds.end();
  });
}

constexpr std::initializer_list<OpKind> kRings{OpKind::all_reduce, OpKind::all_gather, OpKind::reduce_scatter,
                                               OpKind::broadcast, OpKind::reduce};

// The names of the parameters that curves determine, within a node or across nodes.
std::vector<std::string> determined(const Cluster& cluster, const PlacedCurves& curves, bool across) {
  const bool rings = has(curves, kRings), reduces = has(curves, {OpKind::all_reduce}),
             exchanges = has(curves, {OpKind::all_to_all}), sends = has(curves, {OpKind::ring_shift});
  const IntraFabric intra = cluster.node.intra;
  const bool bridged = intra == IntraFabric::pcie || intra == IntraFabric::nvlink_pairs;
  std::vector<std::string> names;
  const auto add = [&](bool are, std::initializer_list<const char*> more) {
    if (are) names.insert(names.end(), more.begin(), more.end());
  };
  if (across) {
    add(rings, {"ring_share", "ring_fill_seconds", "ring_fill_bytes", "ring_step_seconds", "ll_share"});
    add(reduces, {"tree_share", "tree_fill_seconds", "tree_fill_bytes", "tree_step_seconds"});
    add(exchanges, {"all_to_all_share", "send_step_seconds"});
    add(true, {"base_seconds"});
    return names;
  }
  add(rings, {"ring_share"});
  add(rings && bridged, {"host_bridge_share"});
  add(rings, {"base_seconds", "step_seconds"});
  add(exchanges, {"all_to_all_share", "all_to_all_base_seconds"});
  add(sends, {"send_share", "send_base_seconds"});
  add(reduces && cluster.node.in_switch_reduction,
      {"nvls_share", "nvls_seconds", "nvls_fill_seconds", "nvls_fill_bytes"});
  return names;
}

// Fits the named parameters of a node or network to a user's curves, and returns which were fitted. Rings load links
// evenly, so no other algorithm gets a larger share of them than rings were measured to get. (An all-to-all may be slow
// for other reasons.) `shares`: those of the other algorithms.
template <class Parameters>
std::vector<Free> fit_users(const PlacedCurves& curves, const std::vector<std::string>& names, Parameters& parameters,
                            std::initializer_list<std::pair<const char*, double*>> shares) {
  const double bundled = parameters.ring_share;
  std::vector<Free> free = free_of(parameters, names);
  const std::vector<double> start = values_of(free);
  slow_links(curves, free);
  fit_free(curves, free, start, {});
  const auto is_free = [&](const char* name) { return std::ranges::find(free, name, &Free::name) != free.end(); };
  if (!is_free("ring_share") || parameters.ring_share >= bundled) return free;
  for (const auto& [name, share] : shares)
    if (!is_free(name)) *share = std::stod(fmt::format("{:.4g}", *share * parameters.ring_share / bundled));
  return free;
}

OrderedJson json_of(const CollectiveResidual& r) {
  return {{"curves", r.curves},
          {"points", r.points},
          {"median_error", r.median_error},
          {"points_from_1_mib", r.points_from_1_mib},
          {"median_error_from_1_mib", r.median_error_from_1_mib}};
}

// Returns the word that tells a device's model from others, in lower case: "a100" in "NVIDIA A100-SXM4-80GB", "3090"
// in "GeForce RTX 3090"; "" where there is none ("NVIDIA Graphics Device").
std::string model_word(const std::string& device) {
  static const std::regex kWithDigit("[A-Za-z0-9]*[0-9][A-Za-z0-9]*");
  std::smatch found;
  if (!std::regex_search(device, found, kWithDigit)) return {};
  std::string word = lower_case(found.str());
  if (word.ends_with("ti") && std::isdigit(static_cast<unsigned char>(word.front()))) word.resize(word.size() - 2);
  return word;
}

// Returns the word that tells forms of a model apart: "pcie" in "NVIDIA H100 PCIe"; "" where there is none.
std::string form_word(const std::string& device) {
  const std::string name = lower_case(device);
  for (const char* form : {"pcie", "sxm", "nvl"})
    if (name.find(form) != std::string::npos) return form;
  return {};
}

bool is_preset(const std::string& device) {
  const std::vector<std::string> names = device_names();
  return std::ranges::find(names, device) != names.end();
}

// A device of a user's own may have any name, and so may a log's that names no model, or an architecture ("gfx942").
void refuse_other_device(const Cluster& cluster, const CollectiveCurve& curve) {
  const std::string measured = model_word(curve.device), given = model_word(cluster.device.name);
  if (measured.empty() || measured.starts_with("gfx") || !is_preset(cluster.device.name)) return;
  const std::string measured_form = form_word(curve.device), given_form = form_word(cluster.device.name);
  if (measured == given && (measured_form.empty() || given_form.empty() || measured_form == given_form)) return;
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
  CollectiveCalibration calibration = find_collective_calibration(cluster);
  IntraCalibration& intra = calibration.intra;
  InterCalibration& inter = calibration.inter;
  PlacedCurves all, within, across;
  CollectiveFit result;
  for (const CollectiveCurve& curve : curves) {
    const PlacedCurve& placed = all.emplace_back(&curve, &cluster, calibration, &intra, &inter);
    (curve.nodes > 1 ? across : within).push_back(placed);
    result.errors.push_back({curve.id, std::ssize(curve.points), median_or_zero(relative_errors({&placed, 1})), 0, {}});
  }
  if (!within.empty()) {
    for (const Free& f : fit_users(within, determined(cluster, within, /*across=*/false), intra,
                                   {{"all_to_all_share", &intra.all_to_all_share},
                                    {"send_share", &intra.send_share},
                                    {"nvls_share", &intra.nvls_share}}))
      result.fitted.push_back("node: " + f.name);
    result.classes.node_classes.push_back(
        {.name = fmt::format("{} measured", cluster.device.architecture),
         .source = source,
         .architectures = {cluster.device.architecture},
         .fabrics = {std::string(kIntraFabricNames[static_cast<std::size_t>(cluster.node.intra)])},
         .least_devices = 1,
         .parameters = intra,
         .residual = collective_residual(within)});
  }
  if (!across.empty()) {
    for (const Free& f : fit_users(across, determined(cluster, across, /*across=*/true), inter,
                                   {{"tree_share", &inter.tree_share}, {"all_to_all_share", &inter.all_to_all_share}}))
      result.fitted.push_back("network: " + f.name);
    result.classes.network_classes.push_back({.name = fmt::format("{} measured", cluster.fabric.name),
                                              .source = source,
                                              .words = {lower_case(cluster.fabric.name)},
                                              .parameters = inter,
                                              .residual = collective_residual(across)});
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    result.errors[i].after = median_or_zero(relative_errors({&all[i], 1}));
    result.errors[i].missed = missed_points(all[i]);
  }
  return result;
}

nlohmann::ordered_json collectives_json(const CollectiveFit& fit, const std::string& method) {
  OrderedJson json{{"description", "Rates and latencies of collectives, measured by a user."}, {"method", method}};
  OrderedJson& nodes = json["node_classes"] = OrderedJson::array();
  for (IntraClass c : fit.classes.node_classes)
    nodes.push_back({{"name", c.name},
                     {"architectures", c.architectures},
                     {"fabrics", c.fabrics},
                     {"least_devices", c.least_devices},
                     {"source", c.source},
                     {"parameters", ParameterFields(c.parameters).json},
                     {"residual", json_of(c.residual)}});
  OrderedJson& networks = json["network_classes"] = OrderedJson::array();
  for (InterClass c : fit.classes.network_classes)
    networks.push_back({{"name", c.name},
                        {"words", c.words},
                        {"source", c.source},
                        {"parameters", ParameterFields(c.parameters).json},
                        {"residual", json_of(c.residual)}});
  return json;
}

std::string curves_text(const Cluster& cluster, const std::vector<CollectiveCurve>& curves, const std::string& method) {
  const std::string system = cluster.node.name.empty() ? "measured" : cluster.node.name;
  OrderedJson json{{"description", "Measured time of collectives (nccl-tests and the like)."},
                   {"units", "points: [bytes, microseconds]; systems: bytes per second, one direction"}};
  json["systems"][system] = system_json(cluster);
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

namespace {

// A curve of results/published/collectives.json on its system.
struct PublishedCurve {
  CollectiveCurve curve, fitted;  // fitted: without the points that a fit leaves out
  Cluster cluster;
  bool is_fitted = true;
};

PublishedCurve published_curve(const nlohmann::json& curve, const nlohmann::json& system) {
  PublishedCurve p;
  p.cluster = cluster_of_curve(curve, system);
  p.is_fitted = !curve.contains("not_fitted");
  p.curve.id = curve.at("id");
  p.curve.source = curve.at("system");
  const CollectiveKind* kind = find_collective(curve.at("collective").get_ref<const std::string&>());
  p.curve.kind = kind == nullptr ? OpKind::ring_shift : kind->op;
  p.curve.ranks = curve.at("ranks");
  p.curve.nodes = curve.at("nodes");
  for (std::size_t a = 0; a < kCollectiveAlgorithmNames.size(); ++a)
    if (curve.at("algorithm") == kCollectiveAlgorithmNames[a]) p.curve.algorithm = static_cast<CollectiveAlgorithm>(a);
  for (const auto& point : curve.at("points")) p.curve.points.push_back({point[0], 1e-6 * point[1].get<double>(), 0});
  p.fitted = p.curve;
  std::erase_if(p.fitted.points,
                [&](const CollectivePoint& at) { return at.bytes < curve.value("fit_from_bytes", 0); });
  return p;
}

// A class of nodes or networks, and its part of the file.
struct PublishedClass {
  const void* parameters;
  OrderedJson* json;
};
struct PublishedNumber {
  double* value;
  OrderedJson* of_class;
  OrderedJson::json_pointer at;

  OrderedJson& stated(const char* key) const { return (*of_class)[key][at]; }  // key: "prior" or "parameters"
};

class PublishedCollectives {
 public:
  PublishedCollectives(const nlohmann::json& document, const std::string& only)
      : file(OrderedJson::parse(embedded_files("results/calibration/collectives.json").front().text)),
        classes_(bundled_collective_classes()) {
    add_classes(classes_.node_classes, "node_classes");
    add_classes(classes_.network_classes, "network_classes");
    for (const auto& c : document.at("curves"))
      curves_.push_back(published_curve(c, document.at("systems").at(c.at("system").get<std::string>())));
    for (const PublishedCurve& p : curves_) {
      const CollectiveCalibration found = find_collective_calibration(p.cluster, classes_);
      placed_.push_back({&p.curve, &p.cluster, found, &named(classes_.node_classes, found.intra_class).parameters,
                         &named(classes_.network_classes, found.inter_class).parameters});
    }
    const auto wanted = [&](const PublishedClass& c) { return only.empty() || c.json->at("name") == only; };
    if (std::none_of(published_.begin(), published_.end(), wanted)) refuse_class(only);
    for (const auto& c : published_)
      if (wanted(c)) free_of_class(c, /*at_prior=*/true);
    for (const auto& c : published_)
      if (wanted(c)) fit(c);
    for (const auto& [name, number] : numbers_) number.stated("parameters") = *number.value;
    for (const PublishedClass& c : published_)
      (*c.json)["residual"] = json_of(collective_residual(curves_of(c, /*for_fit=*/false)));
  }

  // Every curve's residual.
  std::string table() const {
    const auto percent = [](double x) { return fmt::format("{:.1f}%", 100 * x); };
    std::string text =
        fmt::format("{:46} {:26} {:>6} {:>5} {:>9} {:>9}\n", "curve", "system", "ranks", "nodes", "median", ">= 1 MiB");
    std::array<PlacedCurves, 2> levels;
    for (std::size_t i = 0; i < curves_.size(); ++i) {
      const CollectiveCurve& c = curves_[i].curve;
      const CollectiveResidual r = collective_residual({placed_[i]});
      text += fmt::format("{:46} {:26} {:>6} {:>5} {:>9} {:>9}{}\n", c.id, c.source, c.ranks, c.nodes,
                          percent(r.median_error), r.points_from_1_mib > 0 ? percent(r.median_error_from_1_mib) : "",
                          curves_[i].is_fitted ? "" : "  (not fitted)");
      if (curves_[i].is_fitted) levels[c.nodes > 1 ? 1 : 0].push_back(placed_[i]);
    }
    for (const std::size_t across : {0u, 1u}) {
      const CollectiveResidual r = collective_residual(levels[across]);
      text += fmt::format("{}: median error {}, from 1 MiB {} ({} points)\n",
                          across == 0 ? "within a node" : "across nodes", percent(r.median_error),
                          percent(r.median_error_from_1_mib), r.points_from_1_mib);
    }
    return text;
  }

  OrderedJson file;

 private:
  template <class Class>
  static const Class& named(const std::vector<Class>& classes, const std::string& name) {
    return *std::find_if(classes.begin(), classes.end(), [&](const Class& c) { return c.name == name; });
  }

  template <class Class>
  void add_classes(std::vector<Class>& classes, const char* key) {
    for (std::size_t i = 0; i < classes.size(); ++i) {
      OrderedJson* const json = &file.at(key)[i];
      published_.push_back({&classes[i].parameters, json});
      ParameterFields fields(classes[i].parameters);
      for (auto& [name, value] : fields.numbers) {
        const std::string full = fmt::format("{}: {}", classes[i].name, name);
        std::replace(name.begin(), name.end(), '.', '/');
        numbers_[full] = {value, json, OrderedJson::json_pointer("/" + name)};
      }
    }
  }

  // Returns the parameters that the class's "fit" lists. An entry is the name of a parameter, or "class: parameter" for
  // one of another class.
  std::vector<Free> free_of_class(const PublishedClass& c, bool at_prior) {
    std::vector<Free> free;
    for (const std::string entry : c.json->at("fit")) {
      const std::string own = c.json->at("name");
      const PublishedNumber& number = numbers_.at(entry.find(": ") == std::string::npos ? own + ": " + entry : entry);
      if (at_prior) *number.value = number.stated("prior");
      free.push_back(free_parameter(entry, *number.value));
    }
    return free;
  }

  [[noreturn]] void refuse_class(const std::string& name) const {
    std::vector<std::string> names;
    for (const PublishedClass& c : published_) names.push_back(c.json->at("name"));
    throw InputError({"--only", ""}, describe(name), "a class of collectives", nearest_name(name, names));
  }

  // Curves within a node are their node class's, others their network class's.
  PlacedCurves curves_of(const PublishedClass& c, bool for_fit) const {
    PlacedCurves chosen;
    for (std::size_t i = 0; i < curves_.size(); ++i) {
      const PlacedCurve& p = placed_[i];
      const void* of = p.curve->nodes > 1 ? static_cast<const void*>(p.inter) : p.intra;
      if (of != c.parameters || !curves_[i].is_fitted) continue;
      chosen.push_back(p);
      if (for_fit) chosen.back().curve = &curves_[i].fitted;
    }
    return chosen;
  }

  void fit(const PublishedClass& c) {
    const std::vector<Free> free = free_of_class(c, /*at_prior=*/false);
    const PlacedCurves curves = curves_of(c, /*for_fit=*/true);
    if (free.empty() || curves.empty()) return;
    double points = 0;
    for (const PlacedCurve& p : curves) points += static_cast<double>(p.curve->points.size());
    FitLoss loss = published_loss();
    for (const PlacedCurve& p : curves) {  // each curve counts alike
      const std::size_t own = p.curve->points.size();
      loss.weights.insert(loss.weights.end(), own, points / static_cast<double>(own * curves.size()));
    }
    loss.weights.insert(loss.weights.end(), free.size(), 1);
    fit_free(curves, free, values_of(free), loss);
  }

  CollectiveClasses classes_;
  std::vector<PublishedClass> published_;
  std::map<std::string, PublishedNumber> numbers_;  // "Hopper NVLink4: base_seconds.ll"
  std::vector<PublishedCurve> curves_;
  PlacedCurves placed_;
};

}  // namespace

PublishedFit fit_published_collectives(const nlohmann::json& curves, const std::string& file, const std::string& only) {
  try {
    const PublishedCollectives published(curves, only);
    return {.files = {{"collectives.json", written_json(published.file)}}, .table = published.table()};
  } catch (const nlohmann::json::exception& error) {
    throw InputError({file, ""}, error.what(), "curves as in results/published/collectives.json");
  }
}

}  // namespace orrery
