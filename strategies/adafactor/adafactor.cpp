// Adafactor (Shazeer & Stern 2018, arXiv 1804.04235). The second moment of a matrix is a product of a column and a row,
// of which alone it keeps numbers; vectors have a whole second moment. There is no first moment.
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/program/rewrite.h"
#include "strategies/muon/muon.h"
#include "strategies/strategy.h"

namespace orrery::adafactor {
namespace {

// Algorithm 6 of the paper; the defaults of torch.optim.Adafactor, of transformers and of T5X.
constexpr double kClipping = 1;      // d: the largest root mean square of an update
constexpr float kLeastSize = 1e-3f;  // epsilon 2: of a parameter's root mean square

bool used(const Scenario& scenario) { return scenario.plan.optimizer.rule == optimizer::Rule::adafactor; }

// The dimensions of a parameter: first those of the experts, then those of a row's number; `any`: then those of a
// column's. All that torch.nn has as matrices are factored, tables of embeddings and of positions among them.
muon::Matrices factors_of(const Piece& piece, TensorId parameter) {
  if (const muon::Matrices product = muon::matrices_of_product(piece, parameter); product.any) return product;
  const Tensor& t = piece.tensors[parameter];
  const bool table = std::ranges::any_of(piece.forward.ops, [&](const Op& op) {
    if (op.kind == OpKind::embedding) return std::string_view(piece.tensors[op.reads[1]].name) == t.name;
    if (op.kind != OpKind::add || op.reads[2] == kNoTensor) return false;
    const Tensor& rows = piece.tensors[op.reads[2]];  // as many of a table of positions as a sequence has
    return rows.alias_of == parameter && rows.axes[0] == Axis::sequence;
  });
  if (table) return {0, 1, true};
  const int leading = t.axes[0] == Axis::experts ? 1 : 0;
  return {leading, t.rank - leading, false};
}

// Replaces the update of a parameter set, a plain SGD, as data parallelism has laid it out.
class Update {
 public:
  Update(const Mesh& mesh, Piece& piece, std::vector<Op>& ops) : mesh_(mesh), piece_(piece), ops_(ops) {}

  void replace(const Op& sgd, std::size_t set) {
    gradients_ = sgd.reads[0], weights_ = sgd.reads[1];
    if (const std::optional<Op> unscaling = unscaling_of(sgd)) ops_.push_back(*unscaling);
    updates_ = clone_tensor(piece_, gradients_, "updates", Category::workspace, Dtype::fp32);
    for (std::size_t p = 0; p < piece_.parameters.size(); ++p) {
      const ParameterGradient parameter = piece_.parameters[p];
      if (parameter.set == set && parameter.gradient != kNoTensor && !piece_.tensors[parameter.parameter].shared)
        update(factors_of(piece_, parameter.parameter), parameter.gradient);
    }
    put(OpKind::sgd, "adafactor", {updates_, weights_}, {}).writes = sgd.writes;
  }

 private:
  // Puts the update of a parameter into its part of `updates_`.
  void update(const muon::Matrices& m, TensorId gradient) {
    const Tensor own = piece_.tensors[gradient];
    const int columns = m.leading + m.rows;
    MeshGroup divided;  // the ranks that divide each matrix, or each vector
    double elements = 1;
    for (int d = m.leading; d < own.rank; ++d) {
      divided = divided | own.over[d].group();
      elements *= static_cast<double>(own.sizes[d]);
    }
    elements *= static_cast<double>(mesh_.size(divided));
    const auto group_dims = static_cast<std::uint8_t>(m.leading);
    Tensor number = dims_of(own, m.leading, own.rank);  // of each matrix
    number.append({1, Axis::none});

    const TensorId update = view(updates_, own);
    if (m.any) {
      const Tensor of_rows = dims_of(own, columns, own.rank), of_columns = dims_of(own, m.leading, columns);
      const TensorId row = squares("row_squares", gradient, of_rows, divided),
                     column = squares("column_squares", gradient, of_columns, divided, 1, m.leading);
      const TensorId rows = moment("row_moment", row), all = moment("column_moment", column);
      // Both have the same sum. The sum of the one that ranks do not divide needs no collective.
      const bool rows_divided = piece_.tensors[rows].divided_over().meets(divided);
      const TensorId sum = piece_.add(tensor_like(number, "moment_sum", Category::workspace, Dtype::fp32));
      put(OpKind::bias_gradient, "moment_sum", {rows_divided ? all : rows}, {sum}).group_dims = group_dims;
      put(OpKind::factored_update, "update", {gradient, rows, all, sum}, {update});
    } else {
      put(OpKind::factored_update, "update", {gradient, moment("moment", squares("squares", gradient, own, {}))},
          {update});
    }
    const TensorId size = squares("parameter_size", view(weights_, own), number, divided, 1 / elements),
                   norm = squares("update_norm", update, number, divided);
    Tensor list = number;  // all of a matrix beside each other
    list.sizes[list.rank - 1] = own.elements() / number.elements();
    const TensorId all = view_of(piece_, updates_, own.alias_begin, list);
    Op& step = put(OpKind::scale, "clip_and_size", {all, norm, size}, {all});
    step.clip_limit = static_cast<float>(kClipping * std::sqrt(elements));
    step.epsilon = kLeastSize;
  }

  // Adds sums of the squares of `x`, as `like` is laid out, over all ranks of `divided` that hold parts of them.
  // `groups`: above -1 the leading dimensions of sums over rows.
  TensorId squares(const char* name, TensorId x, const Tensor& like, MeshGroup divided, double factor = 1,
                   int groups = -1) {
    const Tensor t = tensor_like(like, name, Category::workspace, Dtype::fp32);
    const TensorId own = piece_.add(t);
    Op& op = put(OpKind::square_sums, name, {x}, {own});
    op.scale = factor;
    op.transpose_a = groups >= 0;
    op.group_dims = static_cast<std::uint8_t>(std::max(groups, 0));
    const MeshGroup owed = divided.without(t.divided_over());
    if (owed.empty()) return own;
    const TensorId sum = piece_.add(t);
    ops_.push_back(communication(OpKind::all_reduce, "squares.all_reduce", Phase::update, Stream::tensor_communication,
                                 owed, own, sum));
    return sum;
  }
  // Adds a state, the moving mean of `x`.
  TensorId moment(const char* name, TensorId x) {
    const TensorId mean = clone_tensor(piece_, x, name, Category::optimizer_state, Dtype::fp32);
    piece_.tensors[mean].resident = true;
    put(OpKind::moving_mean, name, {mean, x}, {mean});
    return mean;
  }

  // The tensor without the dimensions from `begin` to `end`.
  static Tensor dims_of(const Tensor& own, int begin, int end) {
    Tensor t = tensor_like(own, own.name, own.category, own.dtype);
    t.truncate(begin);
    t.over = {};
    t.deals = {};
    for (int d = 0; d < own.rank; ++d) {
      if (d >= begin && d < end) continue;
      if (d >= end) t.append({own.sizes[d], own.axes[d]});
      t.over[d < begin ? d : t.rank - 1] = own.over[d];
    }
    return t;
  }
  // What a buffer has for a parameter, whose gradient is `of`.
  TensorId view(TensorId base, const Tensor& of) { return view_of(piece_, base, of.alias_begin, of); }

  Op& put(OpKind kind, const char* name, std::initializer_list<TensorId> reads,
          std::initializer_list<TensorId> writes) {
    return ops_.emplace_back(computation(kind, name, Phase::update, reads, writes));  // parameter by parameter
  }

  const Mesh& mesh_;
  Piece& piece_;
  std::vector<Op>& ops_;
  TensorId gradients_ = kNoTensor, weights_ = kNoTensor, updates_ = kNoTensor;  // the set's buffers
};

void rewrite(const Scenario& scenario, Program& program) {
  if (!used(scenario)) return;
  for (Piece& piece : program.pieces) {
    const std::vector<Op> before = std::exchange(piece.update.ops, {});
    for (const Op& op : before) {
      const auto set = std::ranges::find_if(piece.sets, [&](const ParameterSet& s) {
        return op.kind == OpKind::sgd && s.own_parameters == op.writes[0];
      });
      if (set == piece.sets.end())
        piece.update.ops.push_back(op);
      else
        Update(program.mesh, piece, piece.update.ops).replace(op, static_cast<std::size_t>(set - piece.sets.begin()));
    }
  }
}

void check(const Scenario& scenario) {
  if (!used(scenario)) return;
  refuse_heads_in_common(scenario,
                         "with optimizer \"adafactor\": sums would count a head that ranks hold in common twice");
}

bool asked(const AskedOf& a) { return used(a.scenario); }

constexpr FieldRule kExcludes[]{
    keep({"zero_stage"}, "with optimizer \"adafactor\": a shard of a flat buffer has no rows and columns", asked),
    keep({"optimizer_dtype"}, "with optimizer \"adafactor\", whose factors are in fp32", asked),
    keep({"optimizer_offload"}, "with optimizer \"adafactor\": the host factors no moments", asked),
    keep({"gradient_compression"}, "with optimizer \"adafactor\"", asked),
    keep({"fp8_param_gather", "fp4_param_gather"}, "with optimizer \"adafactor\", whose update of them is not modelled",
         asked)};

constexpr PlanWord kWords[]{{"adafactor", used}};

}  // namespace

Strategy describe() {
  return {.name = "adafactor",
          .summary = "second moments of matrices kept as sums of rows and columns",
          .paper = "Shazeer & Stern 2018, arXiv 1804.04235",
          .excludes = kExcludes,
          .check = check,
          .rewrite = rewrite,
          .words = kWords};
}

}  // namespace orrery::adafactor
