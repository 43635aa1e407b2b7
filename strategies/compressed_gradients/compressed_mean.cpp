#include "strategies/compressed_gradients/compressed_mean.h"

#include <algorithm>
#include <vector>

#include "sim/program/rewrite.h"
#include "strategies/local_updates/coded_mean.h"

namespace orrery::compressed_gradients {
namespace {

// A matrix is sent as its factors if it has more than this many times their numbers (PyTorch's min_compression_rate).
constexpr std::int64_t kLeastSaved = 2;

// Whether the gradient lies in the flat buffers of the set.
bool is_in(const Piece& piece, std::size_t set, const ParameterGradient& p) {
  return p.set == set && p.gradient != kNoTensor && !piece.tensors[p.parameter].shared;
}

TensorId view(Piece& piece, TensorId buffer, std::int64_t begin, std::int64_t size) {
  Tensor part = piece.tensors[buffer];
  part.sizes[0] = size;
  return view_of(piece, buffer, begin, part);
}

// Puts ops in front of the optimizer, for each set of trained parameters.
class CompressedMean {
 public:
  CompressedMean(const Options& options, const Mesh& mesh, Piece& piece)
      : options_(options),
        mesh_(mesh),
        workers_(mesh.group(MeshAxis::worker)),
        count_(mesh.size(MeshAxis::worker)),
        piece_(piece) {}

  void run() {
    for (std::size_t s = 0; s < piece_.sets.size(); ++s)
      if (!piece_.sets[s].frozen()) agree(s);
    // Sums over the ranks of a worker come first.
    std::vector<Op>& update = piece_.update.ops;
    update.insert(std::ranges::find_if(update, [](const Op& op) { return !is_communication(op.kind); }), ops_.begin(),
                  ops_.end());
  }

 private:
  // A part of a flat buffer: a matrix that is sent as its factors, or numbers that are sent as they are (columns 0).
  struct Part {
    std::int64_t begin = 0, rows = 0, columns = 0;
    std::int64_t rank = 0;
    std::int64_t left = 0, right = 0;  // where the factors, or the numbers, begin in their buffers
  };

  void agree(std::size_t set) {
    const TensorId gradients = piece_.sets[set].gradients;
    const TensorId error = clone_tensor(piece_, gradients, "compression_error", Category::optimizer_state, Dtype::fp32);
    piece_.tensors[error].resident = true;
    const bool in_place = piece_.tensors[gradients].dtype == Dtype::fp32;
    const TensorId mean =
        in_place ? gradients : clone_tensor(piece_, gradients, "mean_gradients", Category::workspace, Dtype::fp32);
    put(OpKind::add, "add_error", {gradients, error}, {error});
    options_.method == Method::topk ? send_largest(set, error, mean) : send_factors(set, error, mean);
    if (!in_place) put(OpKind::cast, "cast_mean_gradients", {mean}, {gradients});
  }

  // ---- top-k

  void send_largest(std::size_t set, TensorId error, TensorId mean) {
    const std::vector<FlatPart> parts = parts_of_buffers(piece_, set);
    for (std::size_t p = 0; p < parts.size(); ++p)
      send_largest(part_of_buffer(piece_, error, parts, p), part_of_buffer(piece_, mean, parts, p));
  }
  void send_largest(TensorId error, TensorId mean) {
    Tensor own = tensor_like(piece_.tensors[mean], "largest", Category::communication_buffer, Dtype::fp32);
    const std::int64_t numbers = own.sizes[0], groups = (numbers + options_.group - 1) / options_.group;
    own.sizes[0] = groups;
    own.append({std::min(options_.kept, (numbers + groups - 1) / groups), Axis::none});
    own = with_contributions(own, 1);
    Tensor all = own;
    own.over[0].append(workers_);
    all.sizes[0] = count_;
    const TensorId values = piece_.add(own), all_values = piece_.add(all);
    own.dtype = all.dtype = Dtype::int32;
    own.name = all.name = "places_of_largest";
    const TensorId indices = piece_.add(own), all_indices = piece_.add(all);
    put(OpKind::sparsify, "keep_largest", {error}, {values, indices, error});
    gather(values, all_values);
    gather(indices, all_indices);
    put(OpKind::densify, "add_largest", {all_values, all_indices}, {mean}).scale = 1 / static_cast<double>(count_);
  }

  // ---- PowerSGD

  void send_factors(std::size_t set, TensorId error, TensorId mean) {
    const TensorId gradients = piece_.sets[set].gradients;
    std::vector<Part> matrices, others;
    std::int64_t left_size = 0, right_size = 0;
    // A tied parameter comes first: all pieces that hold it begin with the same numbers in Q.
    for (const bool tied : {true, false})
      for (const ParameterGradient& p : piece_.parameters) {
        if (!is_in(piece_, set, p) || (p.tied != 0) != tied) continue;
        Part part = part_of(p);
        part.left = left_size, part.right = right_size;
        left_size += part.columns > 0 ? part.rows * part.rank : part.rows;
        right_size += part.columns * part.rank;
        (part.columns > 0 ? matrices : others).push_back(part);
      }
    const TensorId left = add_buffer(gradients, "left_factors", left_size);
    for (const Part& part : others)
      put(OpKind::cast, "send", {view(piece_, error, part.begin, part.rows)},
          {view(piece_, left, part.left, part.rows)});
    if (matrices.empty())
      average(left, left);
    else
      iterate(matrices, error, left, add_buffer(gradients, "own_right_factors", right_size), mean);
    for (const Part& part : others)
      put(OpKind::cast, "receive", {view(piece_, left, part.left, part.rows)},
          {view(piece_, mean, part.begin, part.rows)});
    // Numbers that are sent as they are lose nothing.
    put(OpKind::subtract, "keep_error", {error, mean}, {error});
    for (const Part& part : others)
      put(OpKind::zero_fill, "keep_no_error", {}, {view(piece_, error, part.begin, part.rows)});
  }

  void iterate(const std::vector<Part>& parts, TensorId error, TensorId left, TensorId own, TensorId mean) {
    const TensorId right = clone_tensor(piece_, own, "right_factors", Category::optimizer_state, Dtype::fp32);
    Tensor& kept = piece_.tensors[right];
    kept.resident = kept.common = true;
    kept.input = Input::directions;
    struct Views {
      TensorId matrix, p, own_q, q, product;
    };
    std::vector<Views> matrices;
    for (const Part& part : parts) {
      const Views v{matrix(error, part.begin, part.rows, part.columns), matrix(left, part.left, part.rows, part.rank),
                    matrix(own, part.right, part.columns, part.rank),
                    matrix(right, part.right, part.columns, part.rank),
                    matrix(mean, part.begin, part.rows, part.columns)};
      matrices.push_back(v);
      put(OpKind::linear, "project", {v.matrix, v.q}, {v.p});
    }
    average(left, left);
    for (const Views& v : matrices) {
      put(OpKind::orthogonalise, "orthogonalise", {v.p}, {v.p});
      put(OpKind::linear_weight_gradient, "project_back", {v.matrix, v.p}, {v.own_q});
    }
    average(own, right);
    for (const Views& v : matrices)
      put(OpKind::linear, "approximate", {v.p, v.q}, {v.product}).transposed_weight = true;
  }

  Part part_of(const ParameterGradient& p) const {
    const Tensor& gradient = piece_.tensors[p.gradient];
    const std::int64_t numbers = gradient.elements();
    Part part{.begin = gradient.alias_begin, .rows = numbers};
    if (is_vector(p.parameter)) return part;
    // The leading dimensions are the rows, the others the columns. The split is where the factors are smallest.
    std::int64_t best = numbers;
    for (std::int64_t d = 0, rows = 1; d < gradient.rank; ++d) {
      rows *= gradient.sizes[static_cast<std::size_t>(d)];
      if (rows + numbers / rows < best + numbers / best) best = rows;
    }
    const std::int64_t columns = numbers / best, rank = options_.matrix_rank;
    if ((best + columns) * rank * kLeastSaved >= numbers) return part;
    part.rows = best, part.columns = columns, part.rank = rank;
    return part;
  }

  // Biases, and weights of norms.
  bool is_vector(TensorId parameter) const {
    return std::ranges::any_of(piece_.forward.ops, [&](const Op& op) {
      for (std::size_t i = 0; i < op.reads.size(); ++i)
        if (op.reads[i] == parameter && (op.kind == OpKind::norm || i >= 2)) return true;
      return false;
    });
  }

  TensorId add_buffer(TensorId like, const char* name, std::int64_t size) {
    const TensorId buffer = clone_tensor(piece_, like, name, Category::communication_buffer, Dtype::fp32);
    piece_.tensors[buffer].sizes[0] = size;
    return buffer;
  }
  TensorId matrix(TensorId buffer, std::int64_t begin, std::int64_t rows, std::int64_t columns) {
    const TensorId id = view(piece_, buffer, begin, rows);
    piece_.tensors[id].append({columns, Axis::none});
    return id;
  }

  // ---- ops

  void average(TensorId from, TensorId to) { ops_.push_back(local_updates::mean_over_workers(mesh_, from, to)); }
  void gather(TensorId from, TensorId to) {
    ops_.push_back(for_all_instances(communication(OpKind::all_gather, "workers.all_gather", Phase::update,
                                                   Stream::data_communication, workers_, from, to)));
  }
  Op& put(OpKind kind, const char* name, std::initializer_list<TensorId> reads,
          std::initializer_list<TensorId> writes) {
    Op& op = ops_.emplace_back(over_buffers(kind, name, reads, writes));
    op.compute_dtype = Dtype::fp32;
    return op;
  }

  const Options& options_;
  const Mesh& mesh_;
  const MeshGroup workers_;
  const std::int64_t count_;
  Piece& piece_;
  std::vector<Op> ops_;
};

}  // namespace

std::vector<FlatPart> parts_of_buffers(const Piece& piece, std::size_t set) {
  std::vector<FlatPart> parts;
  const ParameterGradient* last = nullptr;
  for (const ParameterGradient& p : piece.parameters) {
    if (!is_in(piece, set, p)) continue;
    const Tensor& gradient = piece.tensors[p.gradient];
    const bool alike = last != nullptr && last->tied == 0 && p.tied == 0 &&
                       piece.tensors[last->gradient].divided_over() == gradient.divided_over();
    if (!alike) parts.push_back({gradient.alias_begin, 0});
    parts.back().size = gradient.alias_begin + gradient.elements() - parts.back().begin;
    last = &p;
  }
  return parts;
}

TensorId part_of_buffer(Piece& piece, TensorId buffer, const std::vector<FlatPart>& parts, std::size_t part) {
  return parts.size() == 1 ? buffer : view(piece, buffer, parts[part].begin, parts[part].size);
}

void agree_on_gradients(const Options& options, const Mesh& mesh, Piece& piece) {
  CompressedMean(options, mesh, piece).run();
}

}  // namespace orrery::compressed_gradients
