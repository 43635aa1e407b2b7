#include "strategies/muon/muon.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/program/issue.h"
#include "sim/program/rewrite.h"
#include "sim/program/work.h"
#include "strategies/strategy.h"

namespace orrery::muon {

Matrices matrices_of(const Piece& piece, TensorId parameter) {
  return is_layer(piece) ? matrices_of_product(piece, parameter) : Matrices{};
}

Matrices matrices_of_product(const Piece& piece, TensorId parameter) {
  const Tensor& t = piece.tensors[parameter];
  // A product reads the parameter, what a rank has gathered of it, or a cast of either. They have its name.
  const std::string_view name = t.name;
  TensorId quantised = kNoTensor;
  for (const Op& op : piece.forward.ops) {
    const auto reads_it = [&](std::size_t at) {
      const TensorId id = op.reads[at];
      return id != kNoTensor && (id == quantised || piece.tensors[id].name == name) && piece.tensors[id].rank == t.rank;
    };
    if (op.kind == OpKind::cast && reads_it(0) && piece.tensors[op.reads[0]].category == Category::parameter)
      quantised = op.writes[0];
    if (op.kind == OpKind::linear && reads_it(1))
      return {op.group_dims, op.transposed_weight ? t.rank - op.group_dims - op.inner_dims : op.inner_dims, true};
  }
  return {};
}

namespace {

constexpr double kMomentum = 0.95;  // with Nesterov's step (Jordan et al. 2024)
// X = a X + (b A + c A A) X with A = X X' (Jordan et al. 2024).
constexpr int kIterations = 5;
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
// The root mean square of an update's elements, as large as AdamW's are (Liu et al. 2025, equation 4).
constexpr double kUpdateSize = 0.2;
// Multiplies a momentum before it is clipped to the norm 1. Any momentum is then long enough to be divided by its norm.
constexpr double kLarge = 1e15;
constexpr Dtype kProducts = Dtype::bf16;

bool used(const Scenario& scenario) { return scenario.plan.optimizer.rule == optimizer::Rule::muon; }

// Replaces the update of a parameter set, SGD with a momentum, as data parallelism has laid it out.
class Update {
 public:
  Update(const Mesh& mesh, Piece& piece, std::vector<Op>& ops) : mesh_(mesh), piece_(piece), ops_(ops) {}

  void replace(const Op& sgd, std::size_t set) {
    const auto written = static_cast<std::size_t>(std::ranges::find(sgd.writes, kNoTensor) - sgd.writes.begin());
    const TensorId gradient = sgd.reads[0], weight = sgd.reads[1], momentum = sgd.writes[written - 1];
    if (const std::optional<Op> unscaling = unscaling_of(sgd)) put(*unscaling);
    const TensorId own = clone_tensor(piece_, momentum, "muon_update", Category::workspace, kProducts);
    put(OpKind::scale, "decay_momentum", {momentum}, {momentum}).scale = kMomentum;
    put(OpKind::add, "add_gradients", {momentum, gradient}, {momentum});
    put(OpKind::scale, "nesterov", {momentum}, {own}).scale = kMomentum;
    put(OpKind::add, "add_gradients", {own, gradient}, {own});

    // Ranks that share the states gather the momentum. Each then works on the whole matrices of some layers, and all
    // exchange the parts that they update.
    TensorId all = own, part = own;
    const MeshGroup shards = piece_.tensors[own].divided_over();
    if (!shards.empty()) {
      all = clone_tensor(piece_, own);
      piece_.tensors[all].over[0] = {};
      piece_.tensors[all].sizes[0] = elements_of(set);
      collect(OpKind::all_gather, Stream::parameter_communication, shards, own, all);
      part = clone_tensor(piece_, own);
      turns_ = shards;
    }
    // Matrices that this rank has whole come first: then nothing reads a buffer that holds parts of others.
    for (const bool divided : {false, true})
      for (std::size_t p = 0; p < piece_.parameters.size(); ++p) {
        const ParameterGradient parameter = piece_.parameters[p];
        if (is_in(parameter, set) && (divided_dimension(parameter) >= 0) == divided) orthogonalise(parameter, all);
      }
    turns_ = {};
    if (!shards.empty()) collect(OpKind::reduce_scatter, Stream::parameter_communication, shards, all, part);
    Op& step = put(OpKind::sgd, "muon", {part, weight}, {});
    std::copy_n(sgd.writes.begin(), written - 1, step.writes.begin());
  }

 private:
  bool is_in(const ParameterGradient& p, std::size_t set) const {
    return p.set == set && p.gradient != kNoTensor && !piece_.tensors[p.parameter].shared;
  }
  std::int64_t elements_of(std::size_t set) const {
    std::int64_t elements = 0;
    for (const ParameterGradient& p : piece_.parameters)
      if (is_in(p, set)) elements += piece_.tensors[p.gradient].elements();
    return elements;
  }

  // The dimension along which ranks divide the parameter's matrices; -1: none.
  int divided_dimension(const ParameterGradient& parameter) const {
    const Tensor& t = piece_.tensors[parameter.gradient];
    int divided = -1;
    for (int d = matrices_of(piece_, parameter.parameter).leading; d < t.rank; ++d) {
      if (t.over[d].empty()) continue;
      if (divided >= 0) throw std::logic_error("a matrix that ranks divide along two dimensions");
      divided = d;
    }
    return divided;
  }

  // Makes the parameter's part of `updates`, the flat buffer of the set, orthogonal.
  void orthogonalise(const ParameterGradient& parameter, TensorId updates) {
    Tensor own = piece_.tensors[parameter.gradient];
    const Matrices m = matrices_of(piece_, parameter.parameter);
    for (int d = 0; d < m.leading; ++d) own.over[d] = {};  // a rank works on the experts that it has
    if (!m.any) throw std::logic_error("a matrix without a product");
    const TensorId part = view(updates, own.alias_begin, own);
    // Ranks of tensor parallelism divide matrices: each gathers them, and keeps its part of the result.
    const int d = divided_dimension(parameter);
    if (d < 0) return iterate(updates, own.alias_begin, own, m, part);
    const MeshGroup divided = own.over[d].group();
    Tensor whole = own;
    whole.sizes[d] *= mesh_.size(divided);
    whole.over[d] = {};
    Tensor flat = tensor_like(piece_.tensors[updates], "muon_matrix", Category::workspace, kProducts);
    flat.sizes[0] = whole.elements();
    flat.over[0] = {};
    const TensorId buffer = piece_.add(flat), gathered = view(buffer, 0, whole);
    collect(OpKind::all_gather, Stream::tensor_communication, divided, part, gathered);
    iterate(buffer, 0, whole, m, part);
    put(OpKind::cast, "own_part", {view(gathered, 0, own)}, {part});
  }

  // Newton-Schulz on the matrices that lie in `buffer` from `begin` on, in place. `part`: of the set's updates.
  void iterate(TensorId buffer, std::int64_t begin, const Tensor& matrices, const Matrices& m, TensorId part) {
    const auto product = [&](int from, int to) {
      std::int64_t size = 1;
      for (int d = from; d < to; ++d) size *= matrices.sizes[d];
      return size;
    };
    const std::int64_t count = product(0, m.leading), rows = product(m.leading, m.leading + m.rows),
                       columns = product(m.leading + m.rows, matrices.rank);
    const bool wide = rows <= columns;  // the products with itself are on the shorter side
    const std::int64_t side = std::min(rows, columns);
    const TensorId update = view(buffer, begin, matrix("muon_update", kProducts, {count, rows, columns})),
                   list = view(buffer, begin, matrix("muon_update", kProducts, {count, rows * columns})),
                   squares = piece_.add(matrix("muon_norms", Dtype::fp32, {count, 1})),
                   gram = piece_.add(matrix("muon_gram", kProducts, {count, side, side})),
                   polynomial = piece_.add(matrix("muon_polynomial", kProducts, {count, side, side}));
    std::array<TensorId, 2> x{};
    for (TensorId& id : x) id = piece_.add(matrix("muon_matrix", kProducts, {count, rows, columns}));

    put(OpKind::multiply, "norm", {list, list}, {squares});
    Op& normalise = put(OpKind::scale, "normalise", {update}, {x[0]});
    normalise.reads[static_cast<std::size_t>(norm_operand(OpKind::scale))] = squares;
    normalise.scale = kLarge;
    normalise.clip_limit = 1;
    if (const MeshGroup turns = std::exchange(turns_, {}); !turns.empty()) {  // on all ranks
      put(OpKind::zero_fill, "zero_update", {}, {part});
      turns_ = turns;
    }
    for (int i = 0; i < kIterations; ++i) {
      Op& square = put(OpKind::batched_matmul, "gram", {x[0], x[0]}, {gram});
      (wide ? square.transpose_b : square.transpose_a) = true;
      put(OpKind::scale, "polynomial", {gram}, {polynomial}).scale = kB;
      add_product("polynomial", kC, gram, gram, polynomial);
      put(OpKind::scale, "iterate", {x[0]}, {x[1]}).scale = kA;
      wide ? add_product("iterate", 1, polynomial, x[0], x[1]) : add_product("iterate", 1, x[0], polynomial, x[1]);
      std::swap(x[0], x[1]);
    }
    put(OpKind::scale, "update_size", {x[0]}, {update}).scale =
        kUpdateSize * std::sqrt(static_cast<double>(std::max(rows, columns)));
  }

  void add_product(const char* name, double factor, TensorId a, TensorId b, TensorId to) {
    Op& op = put(OpKind::batched_matmul, name, {a, b}, {to});
    op.scale = factor;
    op.accumulate = true;
  }

  // A part of a tensor, laid out as `of`.
  TensorId view(TensorId base, std::int64_t begin, const Tensor& of) { return view_of(piece_, base, begin, of); }
  static Tensor matrix(const char* name, Dtype dtype, std::initializer_list<std::int64_t> sizes) {
    Tensor t;
    t.name = name;
    t.category = Category::workspace;
    t.dtype = dtype;
    for (const std::int64_t size : sizes) t.append({size, Axis::none});
    return t;
  }

  void collect(OpKind kind, Stream stream, MeshGroup group, TensorId from, TensorId to) {
    const char* const name = kind == OpKind::all_gather ? "muon_update.all_gather" : "muon_update.reduce_scatter";
    ops_.push_back(communication(kind, name, Phase::update, stream, group, from, to));
    ops_.back().turns = turns_;
  }
  Op& put(OpKind kind, const char* name, std::initializer_list<TensorId> reads,
          std::initializer_list<TensorId> writes) {
    return put(computation(kind, name, Phase::update, reads, writes));  // layer by layer
  }
  Op& put(const Op& op) {
    ops_.push_back(op);
    ops_.back().turns = turns_;
    return ops_.back();
  }

  const Mesh& mesh_;
  Piece& piece_;
  std::vector<Op>& ops_;
  MeshGroup turns_;  // of the ops that are added
};

double product_flops(const Piece& piece, MeshGroup turns) {
  double total = 0;
  for (const Op& op : piece.update.ops)
    if (op.kind == OpKind::batched_matmul && op.turns == turns) total += flops(op, piece.tensors);
  return total;
}

// Sets the share of the instances of each piece that the busiest rank has, of those that take these turns. A piece that
// several stages have gets the share of the stage whose busiest rank has most to do.
void share_out(MeshGroup turns, Program& program) {
  const std::int64_t ranks = program.mesh.size(turns);
  std::vector<double> work, busiest(program.pieces.size(), -1);
  for (const Piece& piece : program.pieces) work.push_back(product_flops(piece, turns));
  for (const auto& stage : program.stages) {
    std::vector<double> of_rank(static_cast<std::size_t>(ranks));
    std::vector<std::vector<double>> instances(program.pieces.size(), std::vector<double>(of_rank.size() + 1));
    std::int64_t number = 0;
    for (const Chunk& chunk : stage)
      for (const PieceRun& run : chunk.runs)
        for (std::int64_t i = 0; i < run.count && takes_turns(program.pieces[run.piece]); ++i) {
          const auto rank = static_cast<std::size_t>(rank_of_turn(number++, ranks));
          of_rank[rank] += work[run.piece];
          ++instances[run.piece][rank], ++instances[run.piece].back();
        }
    const auto rank = std::ranges::max_element(of_rank) - of_rank.begin();
    for (std::size_t p = 0; p < instances.size(); ++p) {
      if (instances[p].back() == 0 || of_rank[static_cast<std::size_t>(rank)] <= busiest[p]) continue;
      busiest[p] = of_rank[static_cast<std::size_t>(rank)];
      for (Op& op : program.pieces[p].update.ops)
        if (!op.turns.empty() && op.turns == turns)
          op.share = instances[p][static_cast<std::size_t>(rank)] / instances[p].back();
    }
  }
}

void rewrite(const Scenario& scenario, Program& program) {
  if (!used(scenario)) return;
  std::vector<MeshGroup> all_turns;
  for (Piece& piece : program.pieces) {
    const std::vector<Op> before = std::exchange(piece.update.ops, {});
    for (const Op& op : before) {
      const auto set = std::ranges::find_if(piece.sets, [&](const ParameterSet& s) {
        return op.kind == OpKind::sgd && (s.own_parameters == op.writes[0] || s.parameters == op.writes[0]);
      });
      if (set == piece.sets.end())
        piece.update.ops.push_back(op);
      else
        Update(program.mesh, piece, piece.update.ops).replace(op, static_cast<std::size_t>(set - piece.sets.begin()));
    }
    for (const Op& op : piece.update.ops)
      if (!op.turns.empty() && std::ranges::find(all_turns, op.turns) == all_turns.end()) all_turns.push_back(op.turns);
  }
  for (const MeshGroup turns : all_turns) share_out(turns, program);
  // HFU is by the peak of the layers' dtype, which that of fp32 layers is not.
  if (scenario.plan.precision.storage() == Dtype::fp32) return;
  all_turns.push_back({});
  const auto ranks = static_cast<double>(program.mesh.ranks() / program.mesh.size(MeshAxis::pp));
  for (const PieceRun& run : program.line)
    for (const MeshGroup turns : all_turns)
      program.model.executed_flops_per_step += ranks / static_cast<double>(program.mesh.size(turns)) *
                                               static_cast<double>(run.count) *
                                               product_flops(program.pieces[run.piece], turns);
}

void check(const Scenario& scenario) {
  if (!used(scenario)) return;
  refuse_heads_in_common(scenario,
                         "with optimizer \"muon\": ranks that hold a head in common hold no part of a matrix");
}

constexpr FieldRule kExcludes[]{
    keep({"optimizer_offload"}, "with optimizer \"muon\": the host multiplies no matrices",
         [](const AskedOf& a) { return used(a.scenario); }),
    keep({"gradient_compression"}, "with optimizer \"muon\"", [](const AskedOf& a) { return used(a.scenario); }),
    keep({"zero_weights_degree", "zero_gradients_degree"},
         "with optimizer \"muon\": parts of three levels are gathered in another order",
         [](const AskedOf& a) { return used(a.scenario); }),
    keep({"fp8_param_gather", "fp4_param_gather"}, "with optimizer \"muon\", whose update of them is not modelled",
         [](const AskedOf& a) { return used(a.scenario); })};

std::vector<std::string> notes(const Scenario& scenario) {
  if (!used(scenario) || scenario.plan.data.zero_stage > 0 || data_parallel_degree(scenario) == 1) return {};
  return {"every replica multiplies all of Muon's matrices; with zero_stage 1 replicas take turns at them"};
}

constexpr PlanWord kWords[]{{"muon", used}};

}  // namespace

Strategy describe() {
  return {.name = "muon",
          .summary = "matrices updated by their orthogonalised momentum",
          .paper = "Jordan et al. 2024, https://kellerjordan.github.io/posts/muon; Liu et al. 2025, arXiv 2502.16982",
          .excludes = kExcludes,
          .check = check,
          .rewrite = rewrite,
          .words = kWords,
          .notes = notes};
}

}  // namespace orrery::muon
