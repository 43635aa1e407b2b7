#include "realrun/calibrate/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <utility>

#include "realrun/calibrate/collective_fit.h"
#include "realrun/calibrate/least_squares.h"
#include "sim/base/error.h"
#include "sim/base/json_writer.h"
#include "sim/base/statistics.h"
#include "sim/cost/calibration.h"
#include "sim/program/work.h"

namespace orrery {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::array<Dtype, 3> kFittedDtypes{Dtype::fp32, Dtype::fp16, Dtype::bf16};
constexpr double kNothing = 1e-9;  // a bound that stands for zero, for parameters around 1

struct Measured {
  const KernelPoint* point;
  double seconds;
};
using Points = std::vector<Measured>;

std::size_t index_of(Dtype dtype) { return static_cast<std::size_t>(dtype); }

// Lists of tiles to choose from. One processor: a single tile, as partly filled register blocks cost as much as full
// ones. A device with many: those of the published fits.
std::vector<std::vector<MatmulTile>> tile_lists(std::int64_t multiprocessors) {
  if (multiprocessors == 1) return {{{1, 1}}, {{4, 4}}, {{8, 4}}, {{4, 8}}, {{16, 8}}, {{16, 16}}, {{32, 8}}};
  return {{{256, 128}, {128, 256}, {256, 64}, {64, 256}, {64, 64}},
          {{256, 128}, {128, 256}, {128, 128}, {128, 64}, {64, 128}, {64, 64}},
          {{128, 128}, {64, 64}},
          {{128, 128}}};
}

class KernelFitter {
 public:
  KernelFitter(const std::vector<KernelPoint>& points, const std::map<std::string, Measurement>& measured) {
    for (const KernelPoint& p : points)
      if (const auto found = measured.find(p.id); found != measured.end())
        groups_[p.group].push_back({&p, found->second.seconds});
  }

  const Points& group(const std::string& name) const {
    static const Points none;
    const auto found = groups_.find(name);
    return found == groups_.end() ? none : found->second;
  }
  const std::map<std::string, Points>& groups() const { return groups_; }

  std::vector<double> log_errors(const Points& points) const {
    const KernelModel model(device, calibration);
    std::vector<double> errors;
    for (const Measured& m : points)
      errors.push_back(std::log(model.cost(m.point->op, m.point->tensors).seconds / m.seconds));
    return errors;
  }

  // Fits the values that `put` sets from the parameters: first without the held-out points, then to all points.
  CurveFit fit(const std::string& name, const Points& points, const std::vector<FitParameter>& parameters,
               const std::function<void(const std::vector<double>&)>& put) {
    Points kept, held_out;
    for (const Measured& m : points) (m.point->held_out ? held_out : kept).push_back(m);
    const auto to = [&](const Points& these) {
      return fit_least_squares(parameters, [&](const std::vector<double>& values) {
        put(values);
        return log_errors(these);
      });
    };
    CurveFit curve;
    curve.name = name;
    if (!held_out.empty() && kept.size() > parameters.size()) {
      put(to(kept).values);
      curve.held_out = residual_of(log_errors(held_out));
    }
    const FitResult all = to(points);
    std::vector<double> rounded = all.values;
    for (double& value : rounded) value = round(value);
    put(rounded);
    curve.residual = residual_of(log_errors(points));
    for (std::size_t i = 0; i < parameters.size(); ++i)
      curve.parameters.push_back({parameters[i].name, rounded[i], all.factor_95[i]});
    curve.loss = all.loss;
    return curve;
  }

  // Rounds as the file does; values close to 0 become 0.
  static double round(double value) {
    constexpr double kVanishes = 1e-15;
    return value <= kVanishes ? 0 : std::stod(fmt::format("{:.4g}", value));
  }

  Device device;
  Calibration calibration;

 private:
  std::map<std::string, Points> groups_;
};

// Initial rates of a measured device: no kernel reaches them, and the fit replaces them.
double best_rate(const KernelFitter& fitter, Dtype dtype) {
  double best = 0;
  for (const Measured& m : fitter.group(fmt::format("matmul {}", name_of(dtype))))
    best = std::max(best, flops(m.point->op, m.point->tensors) / m.seconds);
  return best;
}

double best_byte_rate(const KernelFitter& fitter) {
  double best = 0;
  for (const auto& [name, points] : fitter.groups())
    for (const Measured& m : points)
      if (name.starts_with("memory ")) best = std::max(best, bytes(m.point->op, m.point->tensors) / m.seconds);
  return best;
}

// The rate of the largest copy, which no cache holds.
double copy_rate(const KernelFitter& fitter) {
  double largest = 0, rate = 0;
  for (const char* kind : {"copy copy_to_device", "copy copy_to_host"})
    for (const Measured& m : fitter.group(kind)) {
      const double size = bytes(m.point->op, m.point->tensors);
      if (size < largest) continue;
      largest = size;
      rate = size / m.seconds;
    }
  return rate;
}

std::string vendor_of(const std::string& device) {
  for (const char* vendor : {"AMD", "Intel", "NVIDIA", "ARM", "Apple", "Ampere"})
    if (device.find(vendor) != std::string::npos) return vendor;
  return "unknown";
}

void describe_measured_device(KernelFitter& fitter, const BackendFacts& facts) {
  constexpr double kBeyond = 4;
  Device& d = fitter.device;
  d.name = device_name(facts);
  d.vendor = vendor_of(facts.device);
  const bool cpu = facts.kind == "cpu";
  d.architecture = cpu ? "CPU" : d.vendor;
  d.multiprocessors = cpu ? 1 : facts.processors;
  d.memory_bytes =
      cpu ? facts.memory_bytes / static_cast<double>(std::max<std::int64_t>(facts.processors, 1)) : facts.memory_bytes;
  for (const Dtype dtype : kFittedDtypes) d.peak_flops_per_second[index_of(dtype)] = kBeyond * best_rate(fitter, dtype);
  d.vector_flops_per_second = d.peak(Dtype::fp32);
  d.memory_bytes_per_second = kBeyond * best_byte_rate(fitter);
  d.pcie_bytes_per_second = KernelFitter::round(copy_rate(fitter));
}

// Fits a curve of the fitter's calibration to a group's points. Returns false if there are too few.
template <class Curve>
bool fit_curve(KernelFitter& fitter, const std::string& group, const std::vector<FitParameter>& parameters,
               Curve& curve, CalibrationFit& result) {
  const Points& points = fitter.group(group);
  if (points.size() <= parameters.size()) {
    result.missing.push_back(group);
    return false;
  }
  CurveFit fit =
      fitter.fit(group, points, parameters, [&](const auto& values) { set_numbers(curve, parameters, values); });
  curve.residual = fit.residual;
  result.curves.push_back(std::move(fit));
  return true;
}

void fit_matmul(KernelFitter& fitter, Dtype dtype, CalibrationFit& result) {
  const std::string name = fmt::format("matmul {}", name_of(dtype));
  const Points& points = fitter.group(name);
  const bool one = fitter.device.multiprocessors == 1;
  std::vector<FitParameter> parameters{{"efficiency", 0.25, 1e-3, 1},
                                       {"half_k", one ? 8.0 : 200.0, 1e-3, 2000},
                                       {"memory_efficiency", 0.5, 1e-3, 1},
                                       {"overlap_loss", 0.5, kNothing, 1},
                                       {"fixed_seconds", one ? 1e-6 : 3e-6, 1e-9, 1e-4}};
  if (!one) {
    parameters.push_back({"operand_cost", 4, kNothing, 200});
    parameters.push_back({"split_k", 200, 1, 5000});
    parameters.push_back({"sustained_efficiency", 0.2, 1e-3, 1});
    parameters.push_back({"sustained_seconds", 1e-3, 1e-5, 0.1});
  }
  if (points.size() <= parameters.size()) {
    result.missing.push_back(name);
    return;
  }
  MatmulCurve best;
  CurveFit best_fit;
  constexpr double kWorthMoreTiles = 0.98;  // of the loss: a longer list must improve it by this
  for (const auto& tiles : tile_lists(fitter.device.multiprocessors)) {
    MatmulCurve& curve = fitter.calibration.matmul[index_of(dtype)];
    curve.tiles = tiles;
    CurveFit fit = fitter.fit(name, points, parameters,
                              [&](const std::vector<double>& values) { set_numbers(curve, parameters, values); });
    if (!best.tiles.empty() && fit.loss > kWorthMoreTiles * best_fit.loss) continue;
    best = curve;
    best_fit = std::move(fit);
  }
  best.residual = best_fit.residual;
  best.measured = true;
  fitter.calibration.matmul[index_of(dtype)] = best;
  result.curves.push_back(std::move(best_fit));
}

void fit_attention(KernelFitter& fitter, Dtype dtype, CalibrationFit& result) {
  std::vector<FitParameter> parameters{
      {"forward_efficiency", 0.1, 1e-4, 1},       {"backward_efficiency", 0.1, 1e-4, 1},
      {"half_sequence", 10, 1e-3, 5000},          {"half_head_dim", 30, 1e-3, 3000},
      {"backward_half_head_dim", 30, 1e-3, 3000}, {"masked_share", 0.5, kNothing, 1},
      {"fixed_seconds", 2e-6, 1e-9, 1e-4}};
  if (fitter.device.multiprocessors != 1) {
    parameters.push_back({"forward_last_wave", 0.5, kNothing, 4});
    parameters.push_back({"backward_last_wave", 0.5, kNothing, 4});
  }
  AttentionCurve& curve = fitter.calibration.attention;
  if (fit_curve(fitter, fmt::format("attention {}", name_of(dtype)), parameters, curve, result))
    curve.name = "measured";
}

const std::vector<FitParameter>& memory_parameters() {
  static const std::vector<FitParameter> parameters{{"efficiency", 0.1, 1e-5, 1}, {"fixed_seconds", 1e-6, 1e-9, 1e-3}};
  return parameters;
}

// Points that stand for kinds without a fit of their own: plain streams.
Points streams_of(const KernelFitter& fitter) {
  Points streams;
  for (const char* kind : {"memory add", "memory multiply", "memory cast"})
    streams.insert(streams.end(), fitter.group(kind).begin(), fitter.group(kind).end());
  return streams;
}

void fit_memory(KernelFitter& fitter, CalibrationFit& result) {
  const Points streams = streams_of(fitter);
  if (streams.size() <= memory_parameters().size())
    throw InputError({}, fmt::format("{} points of memory-bound kernels", streams.size()),
                     "more points: a longer --budget");
  CurveFit common = fitter.fit("memory", streams, memory_parameters(), [&](const std::vector<double>& v) {
    fitter.calibration.memory_efficiency = v[0];
    fitter.calibration.kernel_fixed_seconds = v[1];
  });
  fitter.calibration.memory_residual = common.residual;
  result.curves.push_back(std::move(common));

  std::vector<MemoryCurve> kinds;
  for (const auto& [group, points] : fitter.groups()) {
    constexpr std::string_view kPrefix = "memory ";
    if (!group.starts_with(kPrefix)) continue;
    fitter.calibration.memory_kinds = {{.name = group.substr(kPrefix.size()), .residual = {}}};
    MemoryCurve& curve = fitter.calibration.memory_kinds.front();
    if (fit_curve(fitter, group, memory_parameters(), curve, result)) kinds.push_back(curve);
  }
  fitter.calibration.memory_kinds = std::move(kinds);
}

// Without a data sheet, rates are the highest that the device's kernels approach, and efficiencies fractions of them.
void state_measured_rates(KernelFitter& fitter) {
  Device& d = fitter.device;
  Calibration& c = fitter.calibration;
  const auto rescale_to = [](double& rate, double highest, const std::vector<double*>& shares) {
    if (highest <= 0) return;
    const double stated = std::stod(fmt::format("{:.3g}", 1.005 * highest));  // rounded, but not below the highest
    for (double* share : shares) *share = std::min(1.0, KernelFitter::round(*share * rate / stated));
    rate = stated;
  };
  for (const Dtype dtype : kFittedDtypes) {
    double& peak = d.peak_flops_per_second[index_of(dtype)];
    if (peak <= 0) continue;
    MatmulCurve& curve = c.matmul[index_of(dtype)];
    std::vector<double*> shares{&curve.efficiency, &curve.sustained_efficiency};
    const bool of_attention = d.peak(Dtype::bf16) == peak;
    if (of_attention) shares.insert(shares.end(), {&c.attention.forward_efficiency, &c.attention.backward_efficiency});
    double highest = std::max(curve.efficiency * peak, best_rate(fitter, dtype));
    if (of_attention)
      highest = std::max({highest, c.attention.forward_efficiency * peak, c.attention.backward_efficiency * peak});
    rescale_to(peak, highest, shares);
  }
  d.vector_flops_per_second = d.peak(Dtype::fp32);
  std::vector<double*> shares{&c.memory_efficiency};
  for (MatmulCurve& curve : c.matmul) shares.push_back(&curve.memory_efficiency);
  double highest = 0;
  for (MemoryCurve& curve : c.memory_kinds) {
    shares.push_back(&curve.efficiency);
    // Pooling may read only one token of a sequence, but its bytes count all.
    if (curve.name != name_of(OpKind::pool)) highest = std::max(highest, curve.efficiency * d.memory_bytes_per_second);
  }
  highest = std::max(highest, c.memory_efficiency * d.memory_bytes_per_second);
  for (const MatmulCurve& curve : c.matmul)
    if (curve.measured) highest = std::max(highest, curve.memory_efficiency * d.memory_bytes_per_second);
  rescale_to(d.memory_bytes_per_second, highest, shares);
  // 0: the calibration was cut off before any copy.
  if (d.pcie_bytes_per_second <= 0) d.pcie_bytes_per_second = d.memory_bytes_per_second;
}

// The speed of a rank while all hardware threads are busy, over its speed alone: the geometric mean over the points
// measured both ways; 1 if there are none.
double busy_share(const std::vector<KernelPoint>& points, const std::map<std::string, Measurement>& measured) {
  double logs = 0;
  int both = 0;
  for (const KernelPoint& p : points) {
    const auto alone = measured.find(p.id), busy = measured.find(busy_id(p.id));
    if (alone == measured.end() || busy == measured.end()) continue;
    logs += std::log(alone->second.seconds / busy->second.seconds);
    ++both;
  }
  return both == 0 ? 1 : std::min(1.0, KernelFitter::round(std::exp(logs / both)));
}

// Efficiencies have changed with the rates: states the numbers of a curve as the file will.
template <class Curve>
void state_numbers(CurveFit& fit, Curve& curve) {
  for (FittedParameter& p : fit.parameters) p.value = number_in(curve, p.name);
  curve.residual = fit.residual;
}

void state_again(KernelFitter& fitter, CalibrationFit& result) {
  Calibration& c = fitter.calibration;
  for (CurveFit& curve : result.curves) {
    if (curve.name == "memory") {
      const std::vector<MemoryCurve> kinds = std::exchange(c.memory_kinds, {});
      curve.residual = residual_of(fitter.log_errors(streams_of(fitter)));
      c.memory_kinds = kinds;
      curve.parameters[0].value = c.memory_efficiency;
      c.memory_residual = curve.residual;
      continue;
    }
    curve.residual = residual_of(fitter.log_errors(fitter.group(curve.name)));
    for (const Dtype dtype : kFittedDtypes)
      if (curve.name == fmt::format("matmul {}", name_of(dtype))) state_numbers(curve, c.matmul[index_of(dtype)]);
    if (curve.name.starts_with("attention ")) state_numbers(curve, c.attention);
    for (MemoryCurve& kind : c.memory_kinds)
      if (curve.name == "memory " + kind.name) state_numbers(curve, kind);
  }
}

void write(const OrderedJson& json, std::size_t indent, std::string& text) {
  const bool nested =
      json.is_object() && (indent == 0 || std::any_of(json.begin(), json.end(), [](const OrderedJson& value) {
                             return value.is_object() || value.is_string();
                           }));
  const bool list_of_objects = json.is_array() && std::any_of(json.begin(), json.end(), [](const OrderedJson& value) {
                                 return value.is_object();
                               });
  if (!nested && !list_of_objects) {
    text += json_text(json);
    return;
  }
  const std::string pad(indent + 2, ' ');
  text += nested ? "{\n" : "[\n";
  bool first = true;
  for (const auto& [key, value] : json.items()) {
    if (!first) text += ",\n";
    first = false;
    text += pad;
    if (nested) text += json_text(OrderedJson(key)) + ": ";
    write(value, indent + 2, text);
  }
  text += "\n" + std::string(indent, ' ') + (nested ? "}" : "]");
}

}  // namespace

std::string device_name(const BackendFacts& facts) {
  std::string name;
  std::istringstream words(facts.device);
  for (std::string word; words >> word;) {
    for (const std::string_view mark : {"(R)", "(TM)", "(r)", "(tm)"})
      if (const std::size_t at = word.find(mark); at != std::string::npos) word.erase(at, mark.size());
    if (word.empty() || word == "CPU" || word == "@" || word == "Processor") continue;
    std::replace(word.begin(), word.end(), '/', '-');
    name += (name.empty() ? "" : "-") + word;
  }
  return name.empty() ? "unknown-device" : name;
}

std::string busy_id(const std::string& id) { return "busy: " + id; }

Residual residual_of(const std::vector<double>& log_errors) {
  Residual r;
  r.points = static_cast<std::int64_t>(log_errors.size());
  if (log_errors.empty()) return r;
  std::vector<double> errors;
  double sum = 0, squares = 0;
  for (const double e : log_errors) {
    errors.push_back(std::fabs(std::expm1(e)));
    sum += e;
    squares += e * e;
  }
  std::sort(errors.begin(), errors.end());
  const std::size_t n = errors.size();
  r.median = median(errors);
  r.percentile_90 = errors[std::min(n - 1, n * 9 / 10)];
  r.geometric_std = std::expm1(std::sqrt(squares / static_cast<double>(n)));
  r.bias = std::expm1(sum / static_cast<double>(n));
  return r;
}

nlohmann::ordered_json residual_json(const Residual& r) {
  const auto four = [](double x) { return std::stod(fmt::format("{:.4f}", x)); };
  return {{"points", r.points},
          {"median", four(r.median)},
          {"percentile_90", four(r.percentile_90)},
          {"geometric_std", four(r.geometric_std)},
          {"bias", four(r.bias)}};
}

CalibrationFit fit_calibration(const std::vector<KernelPoint>& points,
                               const std::map<std::string, Measurement>& measured, const BackendFacts& facts,
                               const std::optional<Device>& preset) {
  KernelFitter fitter(points, measured);
  CalibrationFit result;
  result.device_is_measured = !preset.has_value();
  if (preset) {
    fitter.device = *preset;
  } else {
    describe_measured_device(fitter, facts);
  }
  fitter.calibration.name = fitter.device.name;
  MatmulCurve none;
  none.tiles = {{1, 1}};
  none.measured = false;
  fitter.calibration.matmul.assign(kDtypes, none);

  for (const Dtype dtype : kFittedDtypes)
    if (!fitter.group(fmt::format("matmul {}", name_of(dtype))).empty()) fit_matmul(fitter, dtype, result);
  if (result.curves.empty())
    throw InputError({}, fmt::format("{} measured points", measured.size()),
                     "more measured products: a longer --budget");
  fit_memory(fitter, result);
  // One attention curve for all dtypes: bf16's if the device has it.
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::fp32})
    if (!fitter.group(fmt::format("attention {}", name_of(dtype))).empty()) {
      fit_attention(fitter, dtype, result);
      break;
    }
  if (result.device_is_measured) {
    state_measured_rates(fitter);
    state_again(fitter, result);
  }

  Calibration& c = fitter.calibration;
  std::set<std::array<std::int64_t, 2>> sequences;
  for (const auto& [group, measured_points] : fitter.groups())
    for (const Measured& m : measured_points) {
      const Op& op = m.point->op;
      if (is_matmul(op.kind)) {
        const GemmShape s = gemm_shape(op, m.point->tensors);
        c.measured_shapes.push_back({op.compute_dtype, s.m, s.n, s.k});
      } else if (is_attention(op.kind)) {
        const AttentionShape s = attention_shape(op, m.point->tensors);
        sequences.insert({s.keys, s.head_dim});
      }
    }
  for (const auto& [sequence, head_dim] : sequences) c.measured_attention.push_back({sequence, head_dim});
  c.attention_kernels = {c.attention};
  if (facts.kind == "cpu") {
    c.host_processors = std::max<std::int64_t>(facts.processors, 1);
    c.busy_share = busy_share(points, measured);
  }
  result.calibration = std::move(fitter.calibration);
  result.device = std::move(fitter.device);
  return result;
}

std::string written_json(const OrderedJson& json) {
  std::string text;
  write(json, 0, text);
  return text + "\n";
}

std::string calibration_text(const CalibrationFit& fit, const std::string& source, const std::string& date,
                             const std::string& method) {
  const Calibration& c = fit.calibration;
  OrderedJson json{{"name", c.name}, {"date", date}, {"source", source}, {"method", method}};
  if (c.host_processors > 0) json["host"] = {{"processors", c.host_processors}, {"busy_share", c.busy_share}};
  OrderedJson& relative = json["relative_to"] = OrderedJson::object();
  for (const Dtype dtype : kFittedDtypes)
    if (c.matmul[index_of(dtype)].measured) relative[name_of(dtype)] = fit.device.peak(dtype);
  relative["memory"] = fit.device.memory_bytes_per_second;
  relative["multiprocessors"] = fit.device.multiprocessors;
  if (fit.device_is_measured) {
    OrderedJson& fields = json["device"] = OrderedJson::object();
    Device device = fit.device;
    device.source = source;
    for_each_field(device, [&](const VisitedField& field, const auto& value) {
      const nlohmann::json its = field_json(field, value);
      if (!is_empty_field(its) && its != 0 && its != false) fields[field.name] = its;
    });
  }
  OrderedJson& matmul = json["matmul"] = OrderedJson::object();
  for (const Dtype dtype : kFittedDtypes) {
    const MatmulCurve& m = c.matmul[index_of(dtype)];
    if (!m.measured) continue;
    OrderedJson tiles = OrderedJson::array();
    for (const MatmulTile& tile : m.tiles) tiles.push_back({tile.m, tile.n});
    OrderedJson& curve = matmul[name_of(dtype)] = {{"tiles", std::move(tiles)}};
    constexpr std::size_t kAlways = 7;  // before those of sustained products and of published points
    for (const auto& number : std::span(kMatmulNumbers).first(kAlways)) curve[number.name] = m.*number.value;
    curve["residual"] = residual_json(m.residual);
    if (m.sustained_efficiency > 0) {
      curve["sustained_efficiency"] = m.sustained_efficiency;
      curve["sustained_seconds"] = m.sustained_seconds;
    }
  }
  OrderedJson kinds = OrderedJson::object();
  for (const MemoryCurve& kind : c.memory_kinds)
    kinds[kind.name] = {{"efficiency", kind.efficiency},
                        {"fixed_seconds", kind.fixed_seconds},
                        {"residual", residual_json(kind.residual)}};
  json["memory"] = {{"efficiency", c.memory_efficiency},
                    {"fixed_seconds", c.kernel_fixed_seconds},
                    {"residual", residual_json(c.memory_residual)},
                    {"kinds", std::move(kinds)}};
  const AttentionCurve& a = c.attention;
  if (a.name.empty()) {
    json["attention"] = {{"borrowed_from", "A100-SXM4-80GB"}};
  } else {
    OrderedJson kernel;
    for (const auto& number : kAttentionNumbers) kernel[number.name] = a.*number.value;
    kernel["source"] = source;
    kernel["residual"] = residual_json(a.residual);
    json["attention"] = {{"default", a.name}, {"kernels", {{a.name, std::move(kernel)}}}};
  }
  if (fit.overlaps) {
    const auto direction = [](const CopyOverlap& o) {
      return OrderedJson{{"product_slowdown", o.product_slowdown},
                         {"copy_slowdown", o.copy_slowdown},
                         {"product_residual", residual_json(o.product_residual)},
                         {"copy_residual", residual_json(o.copy_residual)}};
    };
    json["overlap"] = {{"copy_to_device", direction(fit.overlaps->to_device)},
                       {"copy_to_host", direction(fit.overlaps->to_host)}};
    if (!fit.overlaps->attention.empty()) {
      OrderedJson& rows = json["overlap"]["attention"] = OrderedJson::array();
      for (const AttentionOverlap& row : fit.overlaps->attention)
        rows.push_back({{"attention", row.attention},
                        {"copy", row.copy},
                        {"attention_seconds", row.attention_seconds},
                        {"attention_slowdown", row.attention_slowdown},
                        {"copy_bytes_per_second", row.copy_bytes_per_second},
                        {"copy_slowdown", row.copy_slowdown}});
    }
    json["overlap"]["source"] = fit.overlaps->source;
  } else if (!fit.no_overlaps.empty()) {
    json["overlap"] = {{"not_measured", fit.no_overlaps}};
  }
  OrderedJson& shapes = json["measured_shapes"] = OrderedJson::object();
  for (const MeasuredShape& s : c.measured_shapes) shapes[name_of(s.dtype)].push_back({s.m, s.n, s.k});
  if (!c.measured_attention.empty()) {
    OrderedJson& attention = json["measured_attention"] = OrderedJson::array();
    for (const MeasuredAttention& m : c.measured_attention) attention.push_back({m.sequence, m.head_dim});
  }
  if (!fit.collectives.node_classes.empty())
    json["collectives"] = collectives_json({.classes = fit.collectives, .errors = {}, .fitted = {}}, "as above");
  return written_json(json);
}

std::string fit_table(const CalibrationFit& fit) {
  constexpr double kMostFactor = 100;  // either way: beyond it not even the order of magnitude is known
  const auto percent = [](double x) { return fmt::format("{:.1f}%", 100 * x); };
  std::string text = fmt::format("{:32} {:>6} {:>7} {:>7} {:>7} {:>16}  {}\n", "curve", "points", "median", "90th",
                                 "bias", "held out: median", "parameters (95% interval: value / .. x factor)");
  bool open = false;
  const auto interval = [&](const FittedParameter& p) -> std::string {
    if (p.factor_95 == 0) return "";
    if (p.factor_95 <= kMostFactor) return fmt::format(" (x {:.2f})", p.factor_95);
    open = true;
    return " (x -)";
  };
  const auto add = [&](const std::string& name, const Residual& r, const Residual& held_out, const std::string& more) {
    text += fmt::format("{:32} {:>6} {:>7} {:>7} {:>7} {:>16}  {}\n", name, r.points, percent(r.median),
                        percent(r.percentile_90), percent(r.bias),
                        held_out.points > 0 ? fmt::format("{} of {}", percent(held_out.median), held_out.points) : "-",
                        more);
  };
  for (const CurveFit& curve : fit.curves) {
    std::string parameters;
    for (const FittedParameter& p : curve.parameters)
      parameters += fmt::format("{}{} {:.4g}{}", parameters.empty() ? "" : ", ", p.name, p.value, interval(p));
    add(curve.name, curve.residual, curve.held_out, parameters);
  }
  for (const IntraClass& c : fit.collectives.node_classes)
    text += fmt::format("{:32} {:>6} {:>7}\n", "collectives: " + c.name, c.residual.points,
                        percent(c.residual.median_error));
  const auto overlap = [&](const char* name, double slowdown, const Residual& r) {
    add(name, r, {}, fmt::format("slowdown {:.4g}", slowdown));
  };
  if (fit.overlaps) {
    const CopyOverlap &up = fit.overlaps->to_device, &down = fit.overlaps->to_host;
    overlap("product beside copy_to_device", up.product_slowdown, up.product_residual);
    overlap("copy_to_device beside product", up.copy_slowdown, up.copy_residual);
    overlap("product beside copy_to_host", down.product_slowdown, down.product_residual);
    overlap("copy_to_host beside product", down.copy_slowdown, down.copy_residual);
    for (const AttentionOverlap& row : fit.overlaps->attention)
      text += fmt::format(
          "{} during {}: {:.4g} ms, {:.3f} times as long during the copy; {:.4g} GB/s, {:.3f} times as long\n",
          row.attention, row.copy, 1e3 * row.attention_seconds, 1 + row.attention_slowdown,
          1e-9 * row.copy_bytes_per_second, 1 + row.copy_slowdown);
  } else if (!fit.no_overlaps.empty()) {
    text += fmt::format("{:32} not measured: {}\n", "copies beside products", fit.no_overlaps);
  }
  if (open)
    text += fmt::format("x -: the points do not determine the parameter within a factor of {:g}\n", kMostFactor);
  for (const std::string& name : fit.missing) text += fmt::format("{:32} too few points measured\n", name);
  return text;
}

}  // namespace orrery
