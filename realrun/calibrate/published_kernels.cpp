#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "realrun/calibrate/curve_numbers.h"
#include "realrun/calibrate/fit.h"
#include "realrun/calibrate/published.h"
#include "realrun/calibrate/write_json.h"
#include "sim/base/error.h"
#include "sim/base/preset.h"
#include "sim/cost/calibration.h"
#include "sim/hardware/presets.h"

namespace orrery {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// Boards of one die, the slower first: by the presets a later one is no slower in any rate, nor has it less power
// (tests/cost/device_order_test.cpp). What the die does is fitted to the points of all its boards at once, each board's
// counting alike, so that what tells two sweeps apart does not make the better board the slower one. A board's own are
// the rates of a multiprocessor, where its peak or its power is another's, and they are no lower than the board's
// before.
const std::vector<std::vector<std::string>>& dies() {
  static const std::vector<std::vector<std::string>> all{{"A100-PCIe-80GB", "A100-SXM4-80GB"},
                                                         {"H100-SXM5-80GB", "H200-SXM5-141GB"},
                                                         {"B200-SXM-180GB-limited", "B200-SXM-180GB", "GB200"},
                                                         {"L40S"}};
  return all;
}
bool has_rates_of_its_own(const std::string& board) { return board != "H200-SXM5-141GB"; }  // but those of memory

// Curves whose points have only a forward pass, or only both passes together, take backward / forward efficiency from
// the curve (board, kernel) that has them apart. The FlashAttention charts keep 16k tokens and 2048 hidden, so how many
// multiprocessors idle at the end is taken from points of the same device type that vary batch and heads.
struct AttentionFit {
  std::string kernel;
  std::vector<std::string> boards;
  std::pair<std::string, std::string> ratio_from, last_wave_from;  // empty: its own
  bool for_training = true;  // false: prefill kernels, fitted for others' last wave only
};
const std::vector<AttentionFit>& attention_fits() {  // each after those that it takes from
  static const std::pair<std::string, std::string> a100{"A100-PCIe-80GB", "flash_attention_2"},
      h100{"H100-SXM5-80GB", "flash_attention_2"}, prefill{"H100-SXM5-80GB", "tensorrt_llm"};
  static const std::vector<AttentionFit> all{{"flash_attention_2", {"A100-PCIe-80GB", "A100-SXM4-80GB"}, {}, {}},
                                             {"flash_attention_1", {"A100-SXM4-80GB"}, a100, a100},
                                             {"tensorrt_llm", {"H100-SXM5-80GB"}, {}, {}, /*for_training=*/false},
                                             {"flash_attention_2", {"H100-SXM5-80GB"}, {}, prefill},
                                             {"flash_attention_1", {"H100-SXM5-80GB"}, h100, prefill},
                                             {"cudnn", {"H100-SXM5-80GB"}, h100, prefill},
                                             {"flash_attention_3", {"H100-SXM5-80GB"}, h100, prefill},
                                             {"cudnn", {"B200-SXM-180GB"}, {}, {}}};
  return all;
}

// Where a device type's grouped products were measured: on boards of the same chip. Whether each group's kernel was
// launched by the host: what the smallest groups took is the host's time for it.
struct GroupedFit {
  std::string board;
  Dtype dtype;
  std::string measured_on;
  bool launched_each;
};
const std::vector<GroupedFit>& grouped_fits() {
  static const std::vector<GroupedFit> all{{"A100-PCIe-80GB", Dtype::bf16, "A100-PCIe-80GB", false},
                                           {"B200-SXM-180GB-limited", Dtype::bf16, "B200-SXM-180GB-limited", true},
                                           {"H100-SXM5-80GB", Dtype::fp8, "H800-SXM5-80GB", false}};
  return all;
}

// A measured kernel, and the formula that predicts it.
struct Point {
  std::string source;
  double seconds = 0, flops = 0;
  std::array<std::int64_t, 3> shape{};  // m, n, k; or sequence and head_dim
  std::function<double(const KernelModel&, const Device&, const Calibration&)> predicted;
};
using Points = std::vector<Point>;

double real(std::int64_t n) { return static_cast<double>(n); }
std::size_t index(Dtype dtype) { return static_cast<std::size_t>(dtype); }
double four_digits(double x) { return std::stod(fmt::format("{:.4g}", x)); }

// One board of a die, with its curves so far.
struct Board {
  std::string name;
  Device device;
  Calibration calibration;
  OrderedJson file;

  double rate(Dtype dtype) const { return device.peak(dtype) / real(device.multiprocessors); }
  std::vector<double> log_errors(const Points& points) const {
    const KernelModel model(device, calibration);
    std::vector<double> errors;
    for (const Point& p : points) errors.push_back(std::log(p.predicted(model, device, calibration) / p.seconds));
    return errors;
  }
};

// Fits a die's curve, from `known`, to the points of its boards (`points_of` them). `rates`: the numbers that each
// board has of its own, relative to its peak. `complete` finishes a die's curve; `put` gives it to a board. Returns the
// boards' curves, in the file's four digits.
template <class Curve>
std::vector<Curve> fit_die(const std::vector<Board*>& boards, const std::vector<Points>& points_of, const Curve& known,
                           Dtype dtype, std::vector<FitParameter> parameters, const std::vector<std::string>& rates,
                           const std::function<void(Curve&)>& complete,
                           const std::function<void(Board&, const Curve&)>& put) {
  const std::size_t of_die = parameters.size();
  for (std::size_t b = 1; b < boards.size(); ++b)  // by how much the board's rates exceed those of the board before
    if (has_rates_of_its_own(boards[b]->name))
      for (const std::string& rate : rates) parameters.push_back({rate + " gain", 1.02, 1, 4});
  const auto curves_of = [&](const std::vector<double>& values) {
    Curve die = known;
    set_numbers(die, std::span(parameters).first(of_die), values);
    complete(die);
    std::vector<Curve> curves;
    std::vector<double> gains(rates.size(), 1);
    std::size_t next = of_die;
    for (const Board* board : boards) {
      Curve& curve = curves.emplace_back(die);
      const bool own = !curves.empty() && curves.size() > 1 && has_rates_of_its_own(board->name);
      for (std::size_t r = 0; r < rates.size(); ++r) {
        if (own) gains[r] *= values[next++];
        double& rate = number_in(curve, rates[r]);
        rate = std::min(1.0, rate * gains[r] * boards.front()->rate(dtype) / board->rate(dtype));
      }
    }
    return curves;
  };
  double all = 0;
  for (const Points& points : points_of) all += real(std::ssize(points));
  FitLoss loss = published_loss();
  for (const Points& points : points_of)
    loss.weights.insert(loss.weights.end(), points.size(),
                        all / real(std::ssize(points)) / real(std::ssize(points_of)));
  const auto log_errors = [&](const std::vector<double>& values) {
    const std::vector<Curve> curves = curves_of(values);
    std::vector<double> errors;
    for (std::size_t b = 0; b < boards.size(); ++b) {
      put(*boards[b], curves[b]);
      const std::vector<double> own = boards[b]->log_errors(points_of[b]);
      errors.insert(errors.end(), own.begin(), own.end());
    }
    return errors;
  };
  std::vector<double> values = fit_least_squares(parameters, log_errors, loss).values;
  for (double& value : values) value = four_digits(value);
  std::vector<Curve> curves = curves_of(values);
  for (std::size_t b = 0; b < boards.size(); ++b) {
    for (const std::string& rate : rates) number_in(curves[b], rate) = four_digits(number_in(curves[b], rate));
    put(*boards[b], curves[b]);
  }
  return curves;
}

class PublishedKernels {
 public:
  PublishedKernels(const Json& document, const std::string& date)
      : points_(document.at("points")), sources_(document.at("sources")) {
    for (const auto& die : dies())
      for (const std::string& name : die) {
        const Device device = find_device(name);
        Board& board = boards_[name] = {name, device, find_calibration(device), {}};
        board.file = OrderedJson::parse(embedded_files(fmt::format("results/calibration/{}.json", name)).front().text);
        board.file["date"] = date;
        // A fit does not need them, and every model would index them.
        board.calibration.measured_shapes.clear();
        board.calibration.measured_groups.clear();
      }
  }

  PublishedFit fit() {
    for (const AttentionFit& a : attention_fits()) fit_attention(a);
    lend_attention("A100-SXM4-80GB", "A100-PCIe-80GB", "flash_attention_1", "flash_attention_2");
    for (const auto& die : dies()) {
      for (const Dtype dtype : {Dtype::bf16, Dtype::fp8, Dtype::nvfp4}) fit_matmul(die, dtype);
      fit_memory(die);
    }
    for (const GroupedFit& g : grouped_fits()) fit_grouped(g);
    PublishedFit result;
    for (auto& [name, board] : boards_) {
      if (issue_.is_object()) board.file["grouped"]["issue"] = issue_;
      result.files[name + ".json"] = written_json(board.file);
    }
    result.table =
        "| device | curve | points | median | 90th percentile | geometric std | bias |\n"
        "|---|---|---:|---:|---:|---:|---:|\n" +
        rows_;
    return result;
  }

 private:
  // ---- points

  // Left out of every fit: the fastest shape of a long search, which is no sample of shapes; and on an L40S what its
  // L2 holds, because the benchmark repeats a kernel, so that weights stay there. A step's do not.
  static bool usable(const Json& p, double moved) {
    constexpr double kCacheOfL40S = 96e6;
    return !p.contains("best_of_search") && (p["device"] != "L40S" || moved > kCacheOfL40S);
  }

  Point point_of(const Json& p) const {
    return {.source = sources_.at(p["source"].get<std::string>()), .seconds = p["seconds"], .predicted = {}};
  }

  Points matmuls(const std::string& board, Dtype dtype) const {
    Points points;
    for (const Json& p : points_) {
      if (p["device"] != board || p["op"] != "matmul" || p["dtype"] != name_of(dtype)) continue;
      const GemmShape s{p["shape"][0], p["shape"][1], p["shape"][2], p["shape"][3]};
      const double m = real(s.m), n = real(s.n), k = real(s.k), width = real(bytes_of(dtype, 16)) / 16;
      const double operands = width * (m * k + n * k), out = p.value("out", "bf16") == "fp32" ? 4 : 2;
      if (!usable(p, operands + 2 * m * n)) continue;
      const double moved = real(s.batch) * (operands + out * m * n * (p.contains("accumulate") ? 2 : 1));
      Point& point = points.emplace_back(point_of(p));
      point.flops = 2 * real(s.batch) * m * n * k;
      point.shape = {s.m, s.n, s.k};
      // What narrow points contain beside the product: quantising the activations, a Program's own kernel.
      point.predicted = [=](const KernelModel& model, const Device& device, const Calibration& calibration) {
        const MatmulCurve& c = calibration.matmul[index(dtype)];
        return model.matmul_seconds(s, dtype, moved) + c.point_quantise_seconds +
               c.point_quantise_bytes * m * k / (device.memory_bytes_per_second * c.memory_efficiency);
      };
    }
    return points;
  }

  Points vectors(const std::string& board) const {  // streams of weights through matrix-vector products
    Points points;
    for (const Json& p : points_) {
      if (p["device"] != board || p["dtype"] != "bf16" || (p["op"] != "matmul" && p["op"] != "gemv")) continue;
      const double n = p["shape"][2], k = p["shape"][3], moved = 2 * (k + n * k + n);
      if (p["shape"][1] != 1 || !usable(p, moved)) continue;
      points.emplace_back(point_of(p)).predicted = [=](const KernelModel& model, const Device&, const Calibration&) {
        return model.memory_seconds(moved);
      };
    }
    return points;
  }

  Points attentions(const std::string& board, const std::string& kernel) const {
    Points points;
    for (const Json& p : points_) {
      if (p["device"] != board || p["op"] != "attention" || (!kernel.empty() && p["kernel"] != kernel)) continue;
      const AttentionShape s{p["shape"][0], p["shape"][1], p["shape"][2],
                             p["shape"][3], p["shape"][3], p["shape"][4],
                             p["shape"][5], p["causal"],   0};
      const double d = real(s.head_dim), dv = real(s.value_head_dim), rows = real(s.batch * s.queries);
      const double pairs = rows * real(s.heads) * real(s.keys) * (s.causal ? 0.5 : 1);
      const double moved = 2 * rows * real(s.heads + s.kv_heads) * (d + dv);  // q, k, v and the output
      const bool forward = p["phase"] != "backward", backward = p["phase"] != "forward";
      Point& point = points.emplace_back(point_of(p));
      point.shape = {s.keys, s.head_dim, 0};
      point.predicted = [=](const KernelModel& model, const Device&, const Calibration&) {
        double seconds = 0;
        if (forward) seconds += model.attention_seconds(s, Dtype::bf16, false, 2 * (d + dv) * pairs, moved);
        if (backward) seconds += model.attention_seconds(s, Dtype::bf16, true, 2 * (3 * d + 2 * dv) * pairs, 2 * moved);
        return seconds;
      };
    }
    return points;
  }

  // Of a layer's product [groups, rows, outputs, inputs]: forward, input gradient, weight gradient.
  Points grouped(const GroupedFit& g) const {
    Points points;
    for (const Json& p : points_) {
      if (p["device"] != g.measured_on || p["op"] != "grouped_matmul" || p["dtype"] != name_of(g.dtype)) continue;
      if (p.contains("multiprocessors")) continue;  // beside a collective
      const std::int64_t groups = p["shape"][0], rows = p["shape"][1], outputs = p["shape"][2], inputs = p["shape"][3];
      const std::string stage = p.value("stage", "fwd");
      const GemmShape s = stage == "bwd_grad_w"     ? GemmShape{groups, outputs, inputs, rows}
                          : stage == "bwd_grad_act" ? GemmShape{groups, rows, inputs, outputs}
                                                    : GemmShape{groups, rows, outputs, inputs};
      const double m = real(s.m), n = real(s.n), k = real(s.k);
      const double out = stage == "bwd_grad_w" && p["main_grad"] == "fp32" ? 4 : 2;
      const double moved = real(groups) * (real(bytes_of(g.dtype, 1)) * (m * k + k * n) +
                                           out * m * n * (p.contains("accumulate") ? 2 : 1));
      Point& point = points.emplace_back(point_of(p));
      point.shape = {s.m, s.n, s.k};
      point.predicted = [=](const KernelModel& model, const Device&, const Calibration& calibration) {
        const double seconds = model.grouped_seconds(s, g.dtype, moved);
        return g.launched_each ? std::max(seconds, real(s.batch) * calibration.group_issue_seconds) : seconds;
      };
    }
    return points;
  }

  // ---- fits

  void fit_attention(const AttentionFit& a) {
    const std::vector<std::string> rates{"forward_efficiency", "backward_efficiency"};
    AttentionCurve known;
    known.name = a.kernel;
    std::vector<FitParameter> parameters{{"forward_efficiency", 0.6, 0.05, 1},
                                         {"half_sequence", 200, 1, 2000},
                                         {"half_head_dim", 20, 0.1, 300},
                                         {"fixed_seconds", 4e-6, 1e-7, 1e-5}};
    if (a.last_wave_from.first.empty()) {
      parameters.push_back({"forward_last_wave", 0.5, 1e-3, 2.5});
      if (a.for_training) parameters.push_back({"backward_last_wave", 0.3, 1e-3, 2.5});
    } else {
      const AttentionCurve& from = curves_.at(a.last_wave_from);
      known.forward_last_wave = from.forward_last_wave, known.backward_last_wave = from.backward_last_wave;
    }
    double ratio = 0;  // of backward to forward efficiency; 0: fitted
    if (!a.ratio_from.first.empty()) {
      const AttentionCurve& from = curves_.at(a.ratio_from);
      ratio = from.backward_efficiency / from.forward_efficiency;
    } else if (a.for_training) {
      parameters.push_back({"backward_efficiency", 0.5, 0.05, 1});
    } else {
      ratio = 1;
    }
    std::vector<Board*> boards;
    std::vector<Points> points;
    for (const std::string& board : a.boards) {
      boards.push_back(&boards_.at(board));
      points.push_back(attentions(board, a.kernel));
    }
    const auto complete = [&](AttentionCurve& c) {
      if (ratio > 0) c.backward_efficiency = ratio * c.forward_efficiency;
      // The last backward tile does 2.5 times the forward tile's work: it cannot take less time.
      const double least = c.forward_last_wave * c.backward_efficiency / c.forward_efficiency / 2.5;
      c.backward_last_wave = std::max(c.backward_last_wave, least);
    };
    const auto put = [](Board& board, const AttentionCurve& c) { board.calibration.attention = c; };
    std::vector<AttentionCurve> curves =
        fit_die<AttentionCurve>(boards, points, known, Dtype::bf16, parameters, rates, complete, put);
    for (std::size_t b = 0; b < boards.size(); ++b) {
      AttentionCurve& curve = curves[b];
      curve.backward_last_wave = four_digits(curve.backward_last_wave);
      put(*boards[b], curve);
      const Residual residual = state(*boards[b], "attention " + a.kernel, points[b]);
      if (a.for_training) {
        OrderedJson& json = boards[b]->file["attention"]["kernels"][a.kernel];
        write(json, curve, residual);
        json["source"] = sources_of(points[b]);
      } else {  // the proportion seen where both were measured
        const AttentionCurve& seen = curves_.at({"A100-PCIe-80GB", "flash_attention_2"});
        curve.backward_last_wave = curve.forward_last_wave * seen.backward_last_wave / seen.forward_last_wave;
      }
      curves_[{boards[b]->name, a.kernel}] = curve;
    }
  }

  // A kernel that was measured on one board of a die alone is on the other as much slower as `known` is there.
  void lend_attention(const std::string& from, const std::string& to, const std::string& kernel,
                      const std::string& known) {
    AttentionCurve curve = curves_.at({from, kernel});
    for (double AttentionCurve::*rate : {&AttentionCurve::forward_efficiency, &AttentionCurve::backward_efficiency})
      curve.*rate = four_digits(curve.*rate * curves_.at({to, known}).*rate / curves_.at({from, known}).*rate);
    write(boards_.at(to).file["attention"]["kernels"][kernel], curve, {});
  }

  void fit_matmul(const std::vector<std::string>& die, Dtype dtype) {
    constexpr std::ptrdiff_t kLeast = 30;
    constexpr double kLarge = 2e10;
    std::vector<Board*> boards;
    std::vector<Points> points;
    for (const std::string& board : die)
      if (Points own = matmuls(board, dtype); std::ssize(own) >= kLeast) {
        boards.push_back(&boards_.at(board));
        points.push_back(std::move(own));
      }
    if (boards.empty()) return;
    std::vector<FitParameter> parameters{
        {"efficiency", 0.85, 0.05, 1},           {"half_k", 100, 1, 2000},
        {"operand_cost", 10, 0.5, 200},          {"split_k", 400, 10, 8000},
        {"sustained_efficiency", 0.75, 0.05, 1}, {"sustained_seconds", 1e-3, 1e-5, 0.1},
        {"memory_efficiency", 0.8, 0.1, 1},      {"overlap_loss", 0.1, 1e-3, 1}};
    MatmulCurve known;
    known.tiles = boards.front()->calibration.matmul[index(dtype)].tiles;
    if (dtype == Dtype::bf16) {
      parameters.push_back({"fixed_seconds", 4e-6, 1e-7, 5e-5});
    } else {  // a product's fixed time does not depend on the type; what is left over is the quantising kernels'
      known.fixed_seconds = boards.front()->calibration.matmul[index(Dtype::bf16)].fixed_seconds;
      parameters.push_back({"point_quantise_seconds", 8e-6, 1e-7, 5e-5});
      parameters.push_back({"point_quantise_bytes", 3, 0.1, 12});
    }
    const auto put = [&](Board& board, const MatmulCurve& c) { board.calibration.matmul[index(dtype)] = c; };
    std::vector<MatmulCurve> curves = fit_die<MatmulCurve>(
        boards, points, known, dtype, parameters, {"efficiency", "sustained_efficiency"}, [](MatmulCurve&) {}, put);
    for (std::size_t b = 0; b < boards.size(); ++b) {
      MatmulCurve& curve = curves[b];
      if (curve.sustained_efficiency >= curve.efficiency) curve.sustained_efficiency = curve.sustained_seconds = 0;
      put(*boards[b], curve);
      const std::string what = fmt::format("matmul {}", name_of(dtype));
      const Residual residual = state(*boards[b], what, points[b]);
      Points large = points[b];
      std::erase_if(large, [](const Point& p) { return p.flops < kLarge; });
      state(*boards[b], what + ", from 20 GFLOP", large);
      OrderedJson& file = boards[b]->file;
      write(file["matmul"][name_of(dtype)], curve, residual);
      write_shapes(file["measured_shapes"][name_of(dtype)], points[b], 3);
      if (dtype == Dtype::bf16) file["source"] = sources_of(points[b]);
    }
    for (const std::string& board : die)
      if (std::find(boards.begin(), boards.end(), &boards_.at(board)) == boards.end())
        lend_matmul(*boards.front(), curves.front(), boards_.at(board), dtype);
  }

  // A type's curve for a board of the die that it was not measured on: limited in power as bf16 products are.
  static void lend_matmul(const Board& lender, MatmulCurve curve, Board& board, Dtype dtype) {
    const MatmulCurve &own = board.calibration.matmul[index(Dtype::bf16)],
                      &its = lender.calibration.matmul[index(Dtype::bf16)];
    const auto sustained = [](const MatmulCurve& c) {
      return c.sustained_efficiency > 0 ? c.sustained_efficiency : c.efficiency;
    };
    curve.sustained_efficiency = four_digits(sustained(curve) * std::min(1.0, sustained(own) / sustained(its)));
    curve.efficiency = four_digits(curve.efficiency * std::min(1.0, own.efficiency / its.efficiency));
    if (curve.sustained_seconds == 0) curve.sustained_seconds = own.sustained_seconds;
    board.calibration.matmul[index(dtype)] = curve;
    write(board.file["matmul"][name_of(dtype)], curve, {});
  }

  void fit_grouped(const GroupedFit& g) {
    Board& board = boards_.at(g.board);
    const Points points = grouped(g);
    std::vector<FitParameter> parameters{{"relative", 0.9, 0.2, 1}, {"group_seconds", 2e-6, 1e-9, 5e-5}};
    if (g.launched_each) parameters.push_back({"issue_seconds", 8e-6, 1e-7, 5e-5});
    const auto put = [&](const std::vector<double>& values) {
      set_numbers(board.calibration.grouped[index(g.dtype)], std::span(parameters).first(2), values);
      if (g.launched_each) board.calibration.group_issue_seconds = values[2];
    };
    std::vector<double> values = fit_least_squares(
                                     parameters,
                                     [&](const std::vector<double>& tried) {
                                       put(tried);
                                       return board.log_errors(points);
                                     },
                                     published_loss())
                                     .values;
    for (double& value : values) value = four_digits(value);
    put(values);
    OrderedJson& json = board.file["grouped"][name_of(g.dtype)];
    write(json, board.calibration.grouped[index(g.dtype)],
          state(board, fmt::format("grouped {}", name_of(g.dtype)), points));
    json["source"] = sources_of(points);
    write_shapes(board.file["measured_groups"][name_of(g.dtype)], points, 3);
    if (g.launched_each) issue_ = {{"seconds", values[2]}, {"source", sources_of(points)}};
  }

  // Of all boards of a die: seconds = fixed + bytes / (rate * efficiency).
  void fit_memory(const std::vector<std::string>& die) {
    constexpr std::ptrdiff_t kLeast = 5;
    std::vector<Board*> boards;
    std::vector<Points> points;
    for (const std::string& board : die)
      if (Points own = vectors(board); std::ssize(own) >= kLeast) {
        boards.push_back(&boards_.at(board));
        points.push_back(std::move(own));
      }
    const std::vector<FitParameter> parameters{{"efficiency", 0.85, 0.1, 1}, {"fixed_seconds", 4e-6, 1e-7, 5e-5}};
    const auto put = [](Board& board, const MemoryCurve& c) {
      board.calibration.memory_efficiency = c.efficiency;
      board.calibration.kernel_fixed_seconds = c.fixed_seconds;
    };
    const std::vector<MemoryCurve> curves = fit_die<MemoryCurve>(
        boards, points, {}, Dtype::bf16, parameters, {}, [](MemoryCurve&) {}, put);
    for (std::size_t b = 0; b < boards.size(); ++b)
      write(boards[b]->file["memory"], curves[b], state(*boards[b], "memory-bound", points[b]));
  }

  // ---- the files

  static std::string sources_of(const Points& points) {
    std::set<std::string> sources;
    for (const Point& p : points) sources.insert(p.source);
    return fmt::format("{}", fmt::join(sources, "; "));
  }

  // Numbers that the file does not state stay at their defaults.
  template <class Curve>
  static void write(OrderedJson& json, const Curve& curve, const Residual& residual) {
    for (const auto& number : numbers_of(curve))
      if (json.contains(number.name)) json[number.name] = curve.*number.value;
    if (residual.points > 0) json["residual"] = residual_json(residual);
  }

  static void write_shapes(OrderedJson& json, const Points& points, std::size_t dims) {
    std::set<std::vector<std::int64_t>> shapes;
    for (const Point& p : points) shapes.emplace(p.shape.begin(), p.shape.begin() + static_cast<std::ptrdiff_t>(dims));
    json = shapes;
  }

  Residual state(const Board& board, const std::string& what, const Points& points) {
    const Residual r = residual_of(board.log_errors(points));
    rows_ += fmt::format("| {} | {} | {} | {:.1f}% | {:.1f}% | {:.1f}% | {:+.1f}% |\n", board.name, what, r.points,
                         100 * r.median, 100 * r.percentile_90, 100 * r.geometric_std, 100 * r.bias);
    return r;
  }

  const Json &points_, &sources_;
  std::map<std::string, Board> boards_;
  std::map<std::pair<std::string, std::string>, AttentionCurve> curves_;  // by board and kernel
  OrderedJson issue_;                                                     // the host's time to launch a group's kernel
  std::string rows_;
};

}  // namespace

PublishedFit fit_published_kernels(const Json& points, const std::string& file, const std::string& date) {
  try {
    return PublishedKernels(points, date).fit();
  } catch (const Json::exception& error) {
    throw InputError({file, ""}, error.what(), "points as in results/published/kernels.json");
  }
}

}  // namespace orrery
