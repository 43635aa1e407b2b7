#include "strategies/muon/muon.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/program/rewrite.h"
#include "sim/program/work.h"
#include "strategies/strategy.h"

namespace orrery::muon {

Matrices matrices_of(const Piece& piece, TensorId parameter) {
  const Tensor& t = piece.tensors[parameter];
  if (t.find(Axis::vocab) >= 0) return {};
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
// What a momentum is multiplied by before it is clipped to the norm 1, so that every one is clipped.
constexpr double kLarge = 1e15;
constexpr Dtype kProducts = Dtype::bf16;

bool used(const Scenario& scenario) { return scenario.plan.optimizer.rule == optimizer::Rule::muon; }

// Replaces the update of a parameter set, SGD with a momentum, as data parallelism has laid it out.
class Update {
 public:
  // `instances`: of the piece, on the stage that has the most.
  Update(const Mesh& mesh, std::int64_t instances, Piece& piece, std::vector<Op>& ops)
      : mesh_(mesh), instances_(instances), piece_(piece), ops_(ops) {}

  void replace(const Op& sgd, std::size_t set) {
    const auto written = static_cast<std::size_t>(std::ranges::find(sgd.writes, kNoTensor) - sgd.writes.begin());
    const TensorId gradient = sgd.reads[0], weight = sgd.reads[1], momentum = sgd.writes[written - 1];
    constexpr auto kNorm = static_cast<std::size_t>(norm_operand(OpKind::scale));
    if (const TensorId norm = sgd.reads[static_cast<std::size_t>(norm_operand(OpKind::sgd))];
        sgd.scale != 1 || norm != kNoTensor) {
      Op& clip = put(OpKind::scale, "unscale_and_clip", {gradient}, {gradient});
      clip.scale = sgd.scale;
      clip.clip_limit = sgd.clip_limit;
      clip.reads[kNorm] = norm;
    }
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
      const std::int64_t ranks = mesh_.size(shards);
      turns_ = shards;
      share_ = static_cast<double>((instances_ + ranks - 1) / ranks) / static_cast<double>(instances_);
    }
    // Matrices that this rank has whole come first: then nothing reads a buffer that holds parts of others.
    for (const bool divided : {false, true})
      for (std::size_t p = 0; p < piece_.parameters.size(); ++p) {
        const ParameterGradient parameter = piece_.parameters[p];
        if (is_in(parameter, set) && (divided_dimension(parameter) >= 0) == divided) orthogonalise(parameter, all);
      }
    turns_ = {}, share_ = 1;
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
      const double share = std::exchange(share_, 1);
      put(OpKind::zero_fill, "zero_update", {}, {part});
      turns_ = turns, share_ = share;
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
  TensorId view(TensorId base, std::int64_t begin, const Tensor& of) {
    Tensor t = tensor_like(of, piece_.tensors[base].name, piece_.tensors[base].category, piece_.tensors[base].dtype);
    t.alias_of = base;
    t.alias_begin = begin;
    return piece_.add(t);
  }
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
    Op& op = ops_.emplace_back(for_all_instances(communication(kind, name, Phase::update, stream, group, from, to)));
    op.turns = turns_, op.share = share_;
  }
  Op& put(OpKind kind, const char* name, std::initializer_list<TensorId> reads,
          std::initializer_list<TensorId> writes) {
    Op& op = ops_.emplace_back(over_buffers(kind, name, reads, writes));
    op.turns = turns_, op.share = share_;
    return op;
  }

  const Mesh& mesh_;
  const std::int64_t instances_;
  Piece& piece_;
  std::vector<Op>& ops_;
  MeshGroup turns_;  // of the ops that are added
  double share_ = 1;
};

// The instances of a piece on the stage that has the most.
std::int64_t instances_of(const Program& program, std::size_t piece) {
  std::int64_t most = 1;
  for (std::size_t c = 0; c < program.micro_batch_classes(); ++c)
    for (const auto& stage : program.stages_of(c)) {
      std::int64_t all = 0;
      for (const Chunk& chunk : stage)
        for (const PieceRun& run : chunk.runs) all += run.piece == piece ? run.count : 0;
      most = std::max(most, all);
    }
  return most;
}

void rewrite(const Scenario& scenario, Program& program) {
  if (!used(scenario)) return;
  for (Piece& piece : program.pieces) {
    const std::vector<Op> before = std::exchange(piece.update.ops, {});
    for (const Op& op : before) {
      const auto set = std::ranges::find_if(piece.sets, [&](const ParameterSet& s) {
        return op.kind == OpKind::sgd && (s.own_parameters == op.writes[0] || s.parameters == op.writes[0]);
      });
      if (set == piece.sets.end())
        piece.update.ops.push_back(op);
      else
        Update(program.mesh, instances_of(program, static_cast<std::size_t>(&piece - program.pieces.data())), piece,
               piece.update.ops)
            .replace(op, static_cast<std::size_t>(set - piece.sets.begin()));
    }
  }
  // Every rank executes the products of its matrices.
  const auto ranks = static_cast<double>(program.mesh.ranks() / program.mesh.size(MeshAxis::pp));
  for (const PieceRun& run : program.line)
    for (const Op& op : program.pieces[run.piece].update.ops)
      if (op.kind == OpKind::batched_matmul)
        program.model.executed_flops_per_step +=
            ranks * op.share * static_cast<double>(run.count) * flops(op, program.pieces[run.piece].tensors);
}

void check(const Scenario& scenario) {
  if (!used(scenario)) return;
  if (const std::int64_t heads = scenario.model.effective_kv_heads(); scenario.plan.tensor.degree > heads)
    refuse(scenario.plan, "tensor_parallel",
           "at most the model's " + std::to_string(heads) +
               " key/value heads with optimizer \"muon\": ranks that hold a head in common hold no part of a matrix");
}

constexpr FieldRule kExcludes[]{
    keep({"optimizer_offload"}, "with optimizer \"muon\": the host multiplies no matrices",
         [](const AskedOf& a) { return used(a.scenario); }),
    keep({"gradient_compression"}, "with optimizer \"muon\"", [](const AskedOf& a) { return used(a.scenario); }),
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
