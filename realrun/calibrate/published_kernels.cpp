#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <type_traits>
#include <utility>

#include "realrun/calibrate/fit.h"
#include "realrun/calibrate/least_squares.h"
#include "realrun/calibrate/published.h"
#include "sim/base/error.h"
#include "sim/base/input_file.h"
#include "sim/cost/calibration.h"
#include "sim/hardware/presets.h"

namespace orrery {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

double real(std::int64_t n) { return static_cast<double>(n); }
std::size_t index(Dtype dtype) { return static_cast<std::size_t>(dtype); }
double four_digits(double x) { return std::stod(fmt::format("{:.4g}", x)); }

// A measured kernel, and the formula that predicts it.
struct Point {
  std::string source;
  double seconds = 0, flops = 0;
  std::vector<std::int64_t> shape;  // of products: m, n, k
  std::function<double(const KernelModel&, const Device&, const Calibration&)> predicted = {};
};
using Points = std::vector<Point>;

// A type of devices, with its curves so far.
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

struct BoardPoints {
  Board* board;
  Points points;
};

// The curve of a die that one search fits, with the points of all its boards.
template <class Curve>
struct DieFit {
  std::vector<BoardPoints> boards;  // of one die
  Dtype dtype = Dtype::bf16;
  Curve known = {};  // the numbers that are not fitted
  std::vector<FitParameter> parameters;
  std::vector<std::string> rates;  // those numbers of which each board has its own
  std::function<void(Curve&)> complete = [](Curve&) {};
  std::function<void(Calibration&, const Curve&)> put;
  std::function<Curve(const Calibration&)> get = {};  // needed where an earlier die's board bounds the numbers
};

// Returns true if kernels become faster as the number grows. They become slower as any other number grows, but for the
// numbers of points.
bool is_gain(const std::string& number) {
  return number.ends_with("efficiency") || number == "sustained_seconds" || number == "relative";
}
bool is_of_points(const std::string& number) { return number.starts_with("point_"); }
// Returns true if the number adds to a kernel's work: a better rate makes up for more of it.
bool is_work(const std::string& number) {
  return number == "half_k" || number == "split_k" || number == "half_sequence" || number.ends_with("last_wave") ||
         number.ends_with("window_edge");
}

template <class Curve>
void round_numbers(Curve& curve) {
  for (const auto& number : numbers_of(curve)) curve.*number.value = four_digits(curve.*number.value);
}

class PublishedKernels {
 public:
  PublishedKernels(const Json& document, const std::string& date)
      : points_(document.at("points")), sources_(document.at("sources")), fits_(document.at("fits")) {
    for (const Json& die : fits_.at("dies").at("boards"))
      for (const std::string name : die) {
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
    for (const Json& curve : fits_.at("attention").at("curves")) fit_attention(curve);
    for (const Json& curve : fits_.at("attention").at("lent")) lend_attention(curve);
    for (const Json& windows : fits_.at("attention").at("windows")) fit_windows(windows);
    for (const Json& die : fits_.at("dies").at("boards")) {
      for (const Dtype dtype : {Dtype::bf16, Dtype::fp8, Dtype::nvfp4}) fit_matmul(die, dtype);
      fit_memory(die);
    }
    for (const Json& curve : fits_.at("grouped").at("curves")) fit_grouped(curve);
    PublishedFit result;
    for (auto& [name, board] : boards_) {
      board.file["source"] = sources_of(points_of(
          name, {"matmul", "gemv"}, [](const Point&, const Json& p) { return !p.contains("best_of_search"); }));
      board.file["measured_attention"] = shapes_of(points_of(name, {"attention"}, [](Point& point, Json& p) {
        point.shape = {p["shape"][3], p["shape"][4]};
        return true;
      }));
      if (!issue_.is_null()) board.file["grouped"]["issue"] = issue_;
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

  // Calls make(point, its JSON) for the points of these ops.
  template <class Make>
  Points points_of(const std::string& device, std::initializer_list<const char*> ops, Make make) const {
    Points points;
    for (const Json& stated : points_) {
      if (stated.at("device") != device || std::find(ops.begin(), ops.end(), stated.at("op")) == ops.end()) continue;
      Json p = stated;  // what it does not state reads as null
      Point point{.source = sources_.at(p["source"].get<std::string>()), .seconds = p["seconds"], .shape = {}};
      if (make(point, p)) points.push_back(std::move(point));
    }
    return points;
  }

  // The boards of a die that have enough points.
  std::vector<BoardPoints> measured(const Json& die, std::size_t least,
                                    const std::function<Points(const std::string&)>& points_of_board) {
    std::vector<BoardPoints> boards;
    for (const std::string name : die)
      if (Points points = points_of_board(name); points.size() >= least)
        boards.push_back({&boards_.at(name), std::move(points)});
    return boards;
  }

  // Left out: the fastest shape of a long search, which is no sample of shapes; and what a board's L2 holds where the
  // benchmark repeats a kernel, so that weights stay there. A step's do not.
  bool usable(const Json& p, double moved) const {
    return !p.contains("best_of_search") && moved > fits_.at("cached").value(p["device"].get<std::string>(), 0.0);
  }

  Points products(const std::string& board, Dtype dtype) const {
    return points_of(board, {"matmul"}, [&](Point& point, Json& p) {
      const GemmShape s{p["shape"][0], p["shape"][1], p["shape"][2], p["shape"][3]};
      const double m = real(s.m), n = real(s.n), k = real(s.k), width = real(bytes_of(dtype, 16)) / 16;
      const double operands = width * (m * k + n * k), out = p.value("out", "bf16") == "fp32" ? 4 : 2;
      const double moved = real(s.batch) * (operands + out * m * n * (p.contains("accumulate") ? 2 : 1));
      point.flops = 2 * real(s.batch) * m * n * k;
      point.shape = {s.m, s.n, s.k};
      // Points of narrow types include the quantising of the activations, which is a kernel of its own in a Program.
      point.predicted = [=](const KernelModel& model, const Device& device, const Calibration& calibration) {
        const MatmulCurve& c = calibration.matmul[index(dtype)];
        return model.matmul_seconds(s, dtype, moved) + c.point_quantise_seconds +
               c.point_quantise_bytes * m * k / (device.memory_bytes_per_second * c.memory_efficiency);
      };
      return p["dtype"] == name_of(dtype) && usable(p, operands + 2 * m * n);
    });
  }

  Points vectors(const std::string& board) const {  // streams of weights through matrix-vector products
    return points_of(board, {"matmul", "gemv"}, [&](Point& point, Json& p) {
      const double n = p["shape"][2], k = p["shape"][3], moved = 2 * (k + n * k + n);
      point.predicted = [=](const KernelModel& model, auto&&...) { return model.memory_seconds(moved); };
      return p["dtype"] == "bf16" && p["shape"][1] == 1 && usable(p, moved);
    });
  }

  Points attentions(const std::string& board, const std::string& kernel, Dtype dtype, bool windowed = false) const {
    return points_of(board, {"attention"}, [&](Point& point, Json& p) {
      const std::int64_t window = p.value("window", 0);
      const AttentionShape s{p["shape"][0], p["shape"][1], p["shape"][2], p["shape"][3], p["shape"][3],
                             p["shape"][4], p["shape"][5], p["causal"],   window};
      const double d = real(s.head_dim), dv = real(s.value_head_dim), rows = real(s.batch * s.queries);
      const double seen =
          windowed ? real(window) * (1 - real(window) / real(2 * s.keys)) : real(s.keys) * (s.causal ? 0.5 : 1);
      const double pairs = rows * real(s.heads) * seen;
      const double width = dtype == Dtype::bf16 ? 2 : 1;  // of q, k and v; the output has 16 bits
      const double moved = rows * (width * (real(s.heads) * d + real(s.kv_heads) * (d + dv)) + 2 * real(s.heads) * dv);
      const bool forward = p["phase"] != "backward", backward = p["phase"] != "forward";
      point.predicted = [=](const KernelModel& model, auto&&...) {
        const auto pass = [&](bool back, double flops_per_pair) {
          return model.attention_seconds(s, dtype, back, flops_per_pair * pairs, back ? 2 * moved : moved);
        };
        return (forward ? pass(false, 2 * (d + dv)) : 0) + (backward ? pass(true, 2 * (3 * d + 2 * dv)) : 0);
      };
      return p["kernel"] == kernel && dtype_of_attention(p) == dtype && (window > 0) == windowed;
    });
  }

  // Returns the points of grouped products. Each is the forward, input gradient or weight gradient of a layer's product
  // [groups, rows, outputs, inputs].
  Points groups(const std::string& board, Dtype dtype, bool launched_each) const {
    return points_of(board, {"grouped_matmul"}, [&](Point& point, Json& p) {
      const std::int64_t groups = p["shape"][0], rows = p["shape"][1], outputs = p["shape"][2], inputs = p["shape"][3];
      const std::string stage = p.value("stage", "fwd");
      const bool of_weight = stage == "bwd_grad_w";
      const GemmShape s = of_weight                 ? GemmShape{groups, outputs, inputs, rows}
                          : stage == "bwd_grad_act" ? GemmShape{groups, rows, inputs, outputs}
                                                    : GemmShape{groups, rows, outputs, inputs};
      const double m = real(s.m), n = real(s.n), k = real(s.k), out = of_weight && p["main_grad"] == "fp32" ? 4 : 2;
      const double moved = real(groups) * (real(bytes_of(dtype, 1)) * (m * k + k * n) +
                                           out * m * n * (p.contains("accumulate") ? 2 : 1));
      point.shape = {s.m, s.n, s.k};
      point.predicted = [=](const KernelModel& model, const Device&, const Calibration& calibration) {
        const double launches = launched_each ? real(s.batch) * calibration.group_issue_seconds : 0;
        return std::max(model.grouped_seconds(s, dtype, moved), launches);
      };
      return p["dtype"] == name_of(dtype) && !p.contains("multiprocessors");  // those are beside a collective
    });
  }

  // ---- the fit

  bool has_rates_of_its_own(const std::string& board) const {
    const Json& same = fits_.at("dies").at("same_rates");
    return std::find(same.begin(), same.end(), board) == same.end();
  }

  // The board of an earlier die which `board` revises, fitted before it; null: none.
  const Board* revised_by(const std::string& board) const {
    const Json& all = fits_.at("dies").at("revises");
    const auto found = all.find(board);
    return found == all.end() ? nullptr : &boards_.at(found->get<std::string>());
  }

  // The least share of the board's peak or memory rate at which it is as fast as an earlier board with this curve.
  template <class Curve>
  static double least_rate(Curve its, const std::string& name, const Board& earlier, const Board& board, Dtype dtype) {
    if (name == "sustained_efficiency" && number_in(its, name) == 0)  // 0: as `efficiency`
      return least_rate(its, "efficiency", earlier, board, dtype);
    const bool of_memory = name == "memory_efficiency" || std::is_same_v<Curve, MemoryCurve>;
    const double rates = of_memory ? earlier.device.memory_bytes_per_second / board.device.memory_bytes_per_second
                                   : earlier.rate(dtype) / board.rate(dtype);
    return std::min(1.0, number_in(its, name) * rates);
  }

  // Bounds the numbers of a die's first board by those of the board that it revises, so that no kernel is slower on it.
  template <class Curve>
  void bound(const DieFit<Curve>& fit, std::vector<FitParameter>& parameters) const {
    const Board& board = *fit.boards.front().board;
    const Board* earlier = fit.get ? revised_by(board.name) : nullptr;
    if (earlier == nullptr) return;
    Curve its = fit.get(earlier->calibration);
    for (FitParameter& p : parameters) {
      if (is_of_points(p.name) || is_work(p.name)) continue;  // curves_at() bounds the work
      const double value = number_in(its, p.name);
      if (!is_gain(p.name)) {
        p.most = std::max(p.least, std::min(p.most, value));
      } else if (p.name != "sustained_seconds") {
        p.least = std::max(p.least, least_rate(its, p.name, *earlier, board, fit.dtype));
      } else if (value > 0) {
        p.least = std::max(p.least, value);
      }
      p.start = std::clamp(p.start, p.least, p.most);
    }
  }

  // Raises a curve's rates to those of the board that this one revises, and lowers what it adds to a kernel's work to
  // what the better rates make up for.
  template <class Curve>
  static void keep_order(Curve& curve, const std::vector<std::string>& rates, Dtype dtype, Curve its,
                         const Board& earlier, const Board& board) {
    double gain = std::numeric_limits<double>::max();
    for (const std::string& name : rates) {
      const double least = least_rate(its, name, earlier, board, dtype);
      double& rate = number_in(curve, name);
      rate = std::max(rate, least);
      gain = std::min(gain, rate / least);
    }
    for (const auto& number : numbers_of(curve))
      if (is_work(number.name)) curve.*number.value = std::min(curve.*number.value, gain * its.*number.value);
  }

  // The curves of the boards if the parameters have these values. Behind the die's own follow, board by board, by how
  // much its rates exceed those of the board before it.
  template <class Curve>
  std::vector<Curve> curves_at(const DieFit<Curve>& fit, const std::vector<double>& values) const {
    Curve die = fit.known;
    set_numbers(die, fit.parameters, values);
    fit.complete(die);
    std::vector<double> gains(fit.rates.size(), 1);
    std::vector<Curve> curves;
    std::size_t next = fit.parameters.size();
    for (const auto& [board, points] : fit.boards) {
      const bool own = !curves.empty() && has_rates_of_its_own(board->name);
      Curve& curve = curves.emplace_back(die);
      for (std::size_t r = 0; r < fit.rates.size(); ++r) {
        if (own) gains[r] *= values[next++];
        double& rate = number_in(curve, fit.rates[r]);
        rate = std::min(1.0, rate * gains[r] * fit.boards.front().board->rate(fit.dtype) / board->rate(fit.dtype));
      }
      if (const Board* earlier = fit.get ? revised_by(board->name) : nullptr)
        keep_order(curve, fit.rates, fit.dtype, fit.get(earlier->calibration), *earlier, *board);
    }
    return curves;
  }

  // Returns the boards' curves, with the file's four digits, and leaves them in the boards' calibrations.
  template <class Curve>
  std::vector<Curve> run(const DieFit<Curve>& fit) {
    double all = 0;
    for (const BoardPoints& b : fit.boards) all += real(std::ssize(b.points));
    FitLoss loss = published_loss();
    std::vector<FitParameter> parameters = fit.parameters;
    bound(fit, parameters);
    for (std::size_t b = 0; b < fit.boards.size(); ++b) {
      const Points& points = fit.boards[b].points;
      loss.weights.insert(loss.weights.end(), points.size(),
                          all / real(std::ssize(points)) / real(std::ssize(fit.boards)));
      if (b > 0 && has_rates_of_its_own(fit.boards[b].board->name))
        for (const std::string& rate : fit.rates) parameters.push_back({"gain of " + rate, 1.02, 1, 4});
    }
    const auto log_errors = [&](const std::vector<double>& values) {
      const std::vector<Curve> curves = curves_at(fit, values);
      std::vector<double> errors;
      for (std::size_t b = 0; b < curves.size(); ++b) {
        fit.put(fit.boards[b].board->calibration, curves[b]);
        const std::vector<double> own = fit.boards[b].board->log_errors(fit.boards[b].points);
        errors.insert(errors.end(), own.begin(), own.end());
      }
      return errors;
    };
    std::vector<double> values = fit_least_squares(parameters, log_errors, loss).values;
    for (double& value : values) value = four_digits(value);
    std::vector<Curve> curves = curves_at(fit, values);
    for (std::size_t b = 0; b < curves.size(); ++b) {
      round_numbers(curves[b]);
      fit.put(fit.boards[b].board->calibration, curves[b]);
    }
    return curves;
  }

  // ---- the curves

  // The dtype of an attention curve: bf16 for all that are not narrow.
  static Dtype dtype_of_attention(const Json& json) {
    const std::string name = json.value("dtype", "bf16");
    for (const Dtype dtype : {Dtype::fp8, Dtype::mxfp8})
      if (name == name_of(dtype)) return dtype;
    return Dtype::bf16;
  }
  // The key of such a curve in curves_.
  static std::string key_of_attention(const Json& json) {
    const Dtype dtype = dtype_of_attention(json);
    const std::string kernel = json.at("kernel");
    return dtype == Dtype::bf16 ? kernel : fmt::format("{} {}", kernel, name_of(dtype));
  }
  // Where it stands in the file of a board.
  static OrderedJson& attention_in(Board& board, const Json& json) {
    OrderedJson& attention = board.file["attention"];
    const Dtype dtype = dtype_of_attention(json);
    return dtype == Dtype::bf16 ? attention["kernels"][json.at("kernel").get<std::string>()]
                                : attention["narrow"][name_of(dtype)];
  }

  static void put_attention(Calibration& calibration, const AttentionCurve& curve) {
    if (curve.dtype == Dtype::bf16) {
      calibration.attention = curve;
      return;
    }
    std::erase_if(calibration.narrow_attention, [&](const AttentionCurve& n) { return n.dtype == curve.dtype; });
    calibration.narrow_attention.push_back(curve);
  }

  void fit_attention(const Json& of) {
    const std::string kernel = of.at("kernel");
    const Dtype dtype = dtype_of_attention(of);
    const bool prefill = of.value("prefill", false);
    DieFit<AttentionCurve> fit{
        .boards = measured(of.at("boards"), 1, [&](const std::string& b) { return attentions(b, kernel, dtype); }),
        .dtype = dtype == Dtype::bf16 ? Dtype::bf16 : Dtype::fp8,
        .parameters = {{"forward_efficiency", 0.6, 0.05, 1}, {"half_sequence", 200, 1, 2000}},
        .rates = {"forward_efficiency", "backward_efficiency"},
        .put = put_attention,
        .get = [dtype](const Calibration& calibration) { return calibration.attention_of(dtype); }};
    fit.known.dtype = dtype;
    if (dtype == Dtype::bf16) {
      fit.parameters.push_back({"fixed_seconds", 4e-6, 1e-7, 1e-5});
    } else {  // a kernel starts and ends as that of 16 bits
      fit.known.fixed_seconds = curves_.at({fit.boards.front().board->name, kernel}).fixed_seconds;
    }
    if (of.contains("half_head_dim_from")) {
      fit.known.half_head_dim = curves_.at(of["half_head_dim_from"]).half_head_dim;
    } else if (of.value("has_a_least_head_dim", false)) {
      fit.parameters.push_back({"forward_least_head_dim", 100, 64, 128});
    } else {
      fit.parameters.push_back({"half_head_dim", 20, 0.1, 300});
    }
    if (of.contains("last_wave_from")) {
      const AttentionCurve& from = curves_.at(of["last_wave_from"]);
      fit.known.forward_last_wave = from.forward_last_wave, fit.known.backward_last_wave = from.backward_last_wave;
    } else {
      fit.parameters.push_back({"forward_last_wave", 0.5, 1e-3, 2.5});
      if (!prefill) fit.parameters.push_back({"backward_last_wave", 0.3, 1e-3, 2.5});
    }
    if (of.contains("least_head_dim_from"))
      fit.known.forward_least_head_dim = curves_.at(of["least_head_dim_from"]).forward_least_head_dim;
    // The smallest that was measured. With narrower products, the softmax bounds a forward the sooner.
    if (of.contains("least_head_dim")) fit.known.forward_least_head_dim = of["least_head_dim"];
    double ratio = prefill ? 1 : 0;  // of backward to forward efficiency; 0: fitted
    if (of.contains("ratio_from")) {
      const AttentionCurve& from = curves_.at(of["ratio_from"]);
      ratio = from.backward_efficiency / from.forward_efficiency;
    }
    if (ratio == 0) fit.parameters.push_back({"backward_efficiency", 0.5, 0.05, 1});
    if (of.value("backward_has_a_half_head_dim", false))
      fit.parameters.push_back({"backward_half_head_dim", 20, 0.1, 300});
    if (of.value("backward_is_masked_in_part", false))
      fit.parameters.push_back({"backward_masked_share", 0.5, 1e-3, 1});
    fit.complete = [ratio](AttentionCurve& c) {
      if (ratio > 0) c.backward_efficiency = ratio * c.forward_efficiency;
      // The last backward tile does 2.5 times the forward tile's work: it cannot take less time.
      const double least = c.forward_last_wave * c.backward_efficiency / c.forward_efficiency / 2.5;
      c.backward_last_wave = std::max(c.backward_last_wave, least);
    };
    std::vector<AttentionCurve> curves = run(fit);
    for (std::size_t b = 0; b < curves.size(); ++b) {
      const auto& [board, points] = fit.boards[b];
      curves[b].backward_last_wave = four_digits(curves[b].backward_last_wave);
      fit.put(board->calibration, curves[b]);
      const Residual residual = state(*board, "attention " + key_of_attention(of), points);
      if (prefill) {
        const AttentionCurve& like = curves_.at(of.at("last_wave_like"));
        curves[b].backward_last_wave = curves[b].forward_last_wave * like.backward_last_wave / like.forward_last_wave;
      } else if (!of.value("only_lent", false)) {
        OrderedJson& json = attention_in(*board, of);
        write(json, curves[b], residual);
        json["source"] = sources_of(points);
      }
      curves_[{board->name, key_of_attention(of)}] = curves[b];
    }
  }

  // A kernel that was measured on one board alone is on another as much slower as another kernel is there, or takes the
  // same share of the peak.
  void lend_attention(const Json& lent) {
    const std::string from = lent.at("from"), to = lent.at("to"), as = lent.value("slower_as", "");
    AttentionCurve curve = curves_.at({from, key_of_attention(lent)});
    constexpr double kHeadDim = 128;  // measured for all
    for (double AttentionCurve::*rate : {&AttentionCurve::forward_efficiency, &AttentionCurve::backward_efficiency}) {
      const auto there = [&](const std::string& board) {
        if (as.empty()) return 1.0;
        const AttentionCurve& c = curves_.at({board, as});
        return c.*rate * kHeadDim / (kHeadDim + c.half_head_dim);
      };
      curve.*rate = std::min(1.0, four_digits(curve.*rate * there(to) / there(from)));
    }
    write(attention_in(boards_.at(to), lent), curve, {});
  }

  // Fits what the edges of windows cost a kernel, whose curve is known, to its points within windows, and gives it to
  // the kernel on other boards and to kernels like it.
  void fit_windows(const Json& of) {
    const std::string kernel = of.at("kernel"), key = key_of_attention(of);
    const Dtype dtype = dtype_of_attention(of);
    const auto boards =
        measured(of.at("boards"), 1, [&](const std::string& b) { return attentions(b, kernel, dtype, true); });
    std::vector<FitParameter> parameters{{"forward_window_edge", 300, 1, 3000}};
    if (!of.contains("backward_as")) parameters.push_back({"backward_window_edge", 500, 1, 3000});
    const auto put = [&](const std::vector<double>& values) {
      for (const auto& [board, points] : boards) {
        AttentionCurve curve = curves_.at({board->name, key});
        set_numbers(curve, parameters, values);
        put_attention(board->calibration, curve);
      }
    };
    const auto log_errors = [&](const std::vector<double>& tried) {
      put(tried);
      std::vector<double> errors;
      for (const auto& [board, points] : boards) {
        const std::vector<double> own = board->log_errors(points);
        errors.insert(errors.end(), own.begin(), own.end());
      }
      return errors;
    };
    std::vector<double> values = fit_least_squares(parameters, log_errors, published_loss()).values;
    for (double& value : values) value = four_digits(value);
    put(values);
    for (const auto& [board, points] : boards) state(*board, "attention in windows " + key, points);
    AttentionCurve edges;
    set_numbers(edges, parameters, values);
    if (of.contains("backward_as")) edges.backward_window_edge = curves_.at(of["backward_as"]).backward_window_edge;
    for (const Json& to : of.at("to")) {
      const std::string board = to.at("board");
      AttentionCurve& curve = curves_[{board, key_of_attention(to)}];
      OrderedJson& json = attention_in(boards_.at(board), to);
      curve.forward_window_edge = json["forward_window_edge"] = edges.forward_window_edge;
      curve.backward_window_edge = json["backward_window_edge"] = edges.backward_window_edge;
    }
  }

  void fit_matmul(const Json& die, Dtype dtype) {
    constexpr std::size_t kLeast = 30;
    constexpr double kLarge = 2e10;
    DieFit<MatmulCurve> fit{
        .boards = measured(die, kLeast, [&](const std::string& board) { return products(board, dtype); }),
        .dtype = dtype,
        .parameters = {{"efficiency", 0.85, 0.05, 1},
                       {"half_k", 100, 1, 2000},
                       {"operand_cost", 10, 0.5, 200},
                       {"split_k", 400, 10, 8000},
                       {"sustained_efficiency", 0.75, 0.05, 1},
                       {"sustained_seconds", 1e-3, 1e-5, 0.1},
                       {"memory_efficiency", 0.8, 0.1, 1},
                       {"overlap_loss", 0.1, 1e-3, 1}},
        .rates = {"efficiency", "sustained_efficiency"},
        .put = [dtype](Calibration& calibration, const MatmulCurve& c) { calibration.matmul[index(dtype)] = c; },
        .get = [dtype](const Calibration& calibration) { return calibration.matmul[index(dtype)]; }};
    if (fit.boards.empty()) return;
    const Calibration& first = fit.boards.front().board->calibration;
    fit.known.tiles = first.matmul[index(dtype)].tiles;
    if (dtype == Dtype::bf16) {
      fit.parameters.push_back({"fixed_seconds", 4e-6, 1e-7, 5e-5});
    } else {  // a product's fixed time does not depend on the type; what is left over is the quantising kernels'
      fit.known.fixed_seconds = first.matmul[index(Dtype::bf16)].fixed_seconds;
      fit.parameters.push_back({"point_quantise_seconds", 8e-6, 1e-7, 5e-5});
      fit.parameters.push_back({"point_quantise_bytes", 3, 0.1, 12});
    }
    std::vector<MatmulCurve> curves = run(fit);
    std::set<std::string> own;
    for (std::size_t b = 0; b < curves.size(); ++b) {
      const auto& [board, points] = fit.boards[b];
      MatmulCurve& curve = curves[b];
      if (curve.sustained_efficiency >= curve.efficiency) curve.sustained_efficiency = curve.sustained_seconds = 0;
      fit.put(board->calibration, curve);
      const std::string what = fmt::format("matmul {}", name_of(dtype));
      write(board->file["matmul"][name_of(dtype)], curve, state(*board, what, points));
      Points large = points;
      std::erase_if(large, [](const Point& p) { return p.flops < kLarge; });
      state(*board, what + ", from 20 GFLOP", large);
      board->file["measured_shapes"][name_of(dtype)] = shapes_of(points);
      own.insert(board->name);
    }
    for (const std::string name : die)
      if (!own.contains(name)) lend_matmul(*fit.boards.front().board, boards_.at(name), dtype);
  }

  // A type's curve for a board of the die that it was not measured on: limited in power as bf16 products are.
  void lend_matmul(const Board& lender, Board& board, Dtype dtype) const {
    const MatmulCurve &own = board.calibration.matmul[index(Dtype::bf16)],
                      &its = lender.calibration.matmul[index(Dtype::bf16)];
    const auto sustained = [](const MatmulCurve& c) {
      return c.sustained_efficiency > 0 ? c.sustained_efficiency : c.efficiency;
    };
    MatmulCurve curve = lender.calibration.matmul[index(dtype)];
    curve.sustained_efficiency = four_digits(sustained(curve) * std::min(1.0, sustained(own) / sustained(its)));
    curve.efficiency = four_digits(curve.efficiency * std::min(1.0, own.efficiency / its.efficiency));
    if (const Board* earlier = revised_by(board.name)) {
      keep_order(curve, {"efficiency", "sustained_efficiency"}, dtype, earlier->calibration.matmul[index(dtype)],
                 *earlier, board);
      round_numbers(curve);
    }
    if (curve.sustained_seconds == 0) curve.sustained_seconds = own.sustained_seconds;
    write(board.file["matmul"][name_of(dtype)], curve, {});
  }

  void fit_grouped(const Json& of) {
    Board& board = boards_.at(of.at("board"));
    const std::string type = of.at("dtype");
    const Dtype dtype = type == name_of(Dtype::fp8) ? Dtype::fp8 : Dtype::bf16;
    const bool launched_each = of.value("launched_each", false);
    const Points points = groups(of.at("measured_on"), dtype, launched_each);
    std::vector<FitParameter> parameters{{"relative", 0.9, 0.2, 1}, {"group_seconds", 2e-6, 1e-9, 5e-5}};
    if (launched_each) parameters.push_back({"issue_seconds", 8e-6, 1e-7, 5e-5});
    GroupedCurve& curve = board.calibration.grouped[index(dtype)];
    const auto errors_at = [&](const std::vector<double>& values) {
      set_numbers(curve, std::span(parameters).first(2), values);
      if (launched_each) board.calibration.group_issue_seconds = values[2];
      return board.log_errors(points);
    };
    std::vector<double> values = fit_least_squares(parameters, errors_at, published_loss()).values;
    for (double& value : values) value = four_digits(value);
    errors_at(values);
    OrderedJson& json = board.file["grouped"][type];
    write(json, curve, state(board, "grouped " + type, points));
    json["source"] = sources_of(points);
    board.file["measured_groups"][type] = shapes_of(points);
    if (launched_each) issue_ = {{"seconds", values[2]}, {"source", sources_of(points)}};
  }

  // Fits seconds = fixed + bytes / (rate * efficiency) to the points of all boards of a die.
  void fit_memory(const Json& die) {
    constexpr std::size_t kLeast = 5;
    const DieFit<MemoryCurve> fit{
        .boards = measured(die, kLeast, [&](const std::string& board) { return vectors(board); }),
        .parameters = {{"efficiency", 0.85, 0.1, 1}, {"fixed_seconds", 4e-6, 1e-7, 5e-5}},
        .rates = {},
        .put =
            [](Calibration& calibration, const MemoryCurve& c) {
              calibration.memory_efficiency = c.efficiency;
              calibration.kernel_fixed_seconds = c.fixed_seconds;
            },
        .get =
            [](const Calibration& calibration) {
              MemoryCurve curve;
              curve.efficiency = calibration.memory_efficiency, curve.fixed_seconds = calibration.kernel_fixed_seconds;
              return curve;
            }};
    const std::vector<MemoryCurve> curves = run(fit);
    for (std::size_t b = 0; b < curves.size(); ++b) {
      const auto& [board, points] = fit.boards[b];
      write(board->file["memory"], curves[b], state(*board, "memory-bound", points));
    }
  }

  // ---- the files

  static std::string sources_of(const Points& points) {
    std::set<std::string> sources;
    for (const Point& p : points) sources.insert(p.source);
    return fmt::format("{}", fmt::join(sources, "; "));
  }

  static std::set<std::vector<std::int64_t>> shapes_of(const Points& points) {
    std::set<std::vector<std::int64_t>> shapes;
    for (const Point& p : points) shapes.insert(p.shape);
    return shapes;
  }

  // Numbers that the file does not state stay at their defaults.
  template <class Curve>
  static void write(OrderedJson& json, const Curve& curve, const Residual& residual) {
    for (const auto& number : numbers_of(curve))
      if (json.contains(number.name)) json[number.name] = curve.*number.value;
    if (residual.points > 0) json["residual"] = residual_json(residual);
  }

  Residual state(const Board& board, const std::string& what, const Points& points) {
    const Residual r = residual_of(board.log_errors(points));
    rows_ += fmt::format("| {} | {} | {} | {:.1f}% | {:.1f}% | {:.1f}% | {:+.1f}% |\n", board.name, what, r.points,
                         100 * r.median, 100 * r.percentile_90, 100 * r.geometric_std, 100 * r.bias);
    return r;
  }

  const Json &points_, &sources_, &fits_;
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
  } catch (const std::out_of_range&) {
    throw InputError({file, "/fits"}, "a board or a curve that is not among those before it", "one that is");
  }
}

}  // namespace orrery
