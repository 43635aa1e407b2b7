#include "strategies/expert_parallel/expert_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "sim/base/error.h"
#include "sim/program/rewrite.h"
#include "strategies/expert_parallel/routing_loads.h"
#include "strategies/pipeline_parallel/schedules.h"

namespace orrery::expert_parallel {

std::int64_t expert_tensor_ranks(const Plan& plan) {
  return plan.expert.tensor_degree > 0 ? plan.expert.tensor_degree : plan.tensor.degree;
}

MeshGroup expert_replicas(const Mesh& mesh) {
  return mesh.group({MeshAxis::tp, MeshAxis::cp, MeshAxis::dp_shard, MeshAxis::dp_replicate})
      .without(mesh.group({MeshAxis::ep, MeshAxis::etp}));
}

namespace {

bool is_rows(const Tensor& t) { return t.find(Axis::slots) >= 0; }
bool quantises(const Op& op, const Piece& piece) {
  if (op.kind != OpKind::cast) return false;
  const Dtype dtype = piece.tensors[op.writes[0]].dtype;
  return dtype == Dtype::fp8 || dtype == Dtype::fp8_blocks || dtype == Dtype::mxfp8;
}

// Lays out the experts of a piece, and moves rows between the ranks of their tokens and the ranks of their experts.
class Experts {
 public:
  Experts(const Options& options, const Model& model, const Mesh& mesh, std::span<const Load> loads, Piece& piece)
      : options_(options),
        model_(model),
        mesh_(mesh),
        loads_(loads),
        expert_(mesh.group(MeshAxis::ep)),
        tensor_(mesh.group(MeshAxis::etp)),
        piece_(piece),
        home_(piece.tensors.size(), kNoTensor),
        gathered_(piece.tensors.size(), kNoTensor) {}

  void run() {
    const Tensor* tokens = nullptr;
    for (const Op& op : piece_.forward.ops)
      if (op.kind == OpKind::permute) {
        tokens = &piece_.tensors[op.reads[0]];
      } else if (op.kind == OpKind::route || op.kind == OpKind::hash_route) {
        router_ = op.router;
      }
    if (tokens == nullptr) return;
    const std::int64_t assignments = tokens->elements() / tokens->sizes[tokens->rank - 1] * model_.experts_per_token;
    slots_ = slots_of(assignments);
    pad();
    divided_ = tokens->divided_over();
    divide();
    for (Block* block : {&piece_.forward, &piece_.backward}) {
      sum_counts(*block);
      if (!expert_.empty() || !tensor_.empty())
        options_.dispatcher == Dispatcher::allgather ? rewrite_gathering(*block) : rewrite(*block);
      if (options_.permute == Permute::einsum) use_masks(*block);
    }
    sum_undivided_gradients();
    if (options_.overlap_shared) overlap_shared_experts();
  }

 private:
  std::int64_t slots_of(std::int64_t assignments) const {
    const double factor = options_.capacity_factor > 0 ? options_.capacity_factor : 1;
    const double slots =
        std::ceil(factor * static_cast<double>(assignments) / static_cast<double>(model_.placed_experts()));
    // A token goes to an expert at most once.
    const std::int64_t most = assignments / model_.experts_per_token;
    if (options_.counts_rows()) return std::max<std::int64_t>(1, most);
    return std::clamp<std::int64_t>(static_cast<std::int64_t>(slots), 1, std::max<std::int64_t>(1, most));
  }

  // Pads to the rows of the busiest expert; engines treat all of them as rows.
  void pad() {
    for (Tensor& t : piece_.tensors) {
      if (!t.load.has_value() || !loads_[t.load.value()].padded) continue;
      padding_ = loads_[t.load.value()].busiest_rank;
      t.load = {};
    }
    slots_ = static_cast<std::int64_t>(std::ceil(static_cast<double>(slots_) * padding_));
  }

  // Rows per expert on the rank with the most rows, assuming that its experts are alike.
  std::int64_t rows_of(const Tensor& t, std::int64_t mean) const {
    if (!t.load.has_value()) return mean;
    return static_cast<std::int64_t>(std::ceil(static_cast<double>(mean) * loads_[t.load.value()].busiest_rank));
  }

  // Divides parameters and all tensors on the experts' side.
  void divide() {
    const std::int64_t here = mesh_.size(expert_), parts = mesh_.size(tensor_);
    for (Tensor& t : piece_.tensors)
      for (int d = 0; d < t.rank; ++d) {
        if (t.axes[d] == Axis::experts) {
          t.sizes[d] /= here;
          t.over[d].append(expert_);
        } else if (t.axes[d] == Axis::expert_ffn) {
          t.sizes[d] /= parts;
          t.over[d].append(tensor_);
        } else if (t.axes[d] == Axis::slots) {
          t.sizes[d] = rows_of(t, slots_ * here) * parts;
          t.over[d].append(divided_.without(expert_ | tensor_));
        }
      }
  }

  TensorId like(TensorId id, const char* name) {
    const TensorId copy = clone_tensor(piece_, id);
    home_.resize(piece_.tensors.size(), kNoTensor);
    gathered_.resize(piece_.tensors.size(), kNoTensor);
    piece_.tensors[copy].name = name;
    return copy;
  }
  // The part of an expert's rows that one of its etp ranks has before they gather them.
  TensorId part_of(TensorId rows) {
    const TensorId id = like(rows, "expert_rows");
    Tensor& t = piece_.tensors[id];
    const int slots = t.find(Axis::slots);
    t.sizes[slots] /= mesh_.size(tensor_);
    t.over[slots].append(tensor_);
    return id;
  }
  // The rows of a rank's own tokens, for all experts.
  TensorId home_of(TensorId rows) {
    const TensorId id = like(rows, "token_rows");
    Tensor& t = piece_.tensors[id];
    const int experts = t.find(Axis::experts), slots = t.find(Axis::slots);
    t.sizes[experts] *= mesh_.size(expert_);
    t.over[experts] = {};
    t.sizes[slots] = slots_;
    t.load = {};
    t.over[slots].append(tensor_);
    t.over[slots].append(expert_);
    return id;
  }

  Op collective(OpKind kind, const char* name, MeshGroup group, TensorId from, TensorId to, const Op& cause) const {
    // The next kernels wait for it, as for PyTorch's collectives.
    Op op = communication(kind, name, cause.phase, Stream::compute, group, from, to);
    op.account = Stream::expert_communication;
    return op;
  }
  // Sorts blocks of rows between the order of exchanges (by rank) and that of products (by expert).
  void sort(TensorId from, TensorId to, const Op& cause) { cast("sort_rows", from, to, cause); }
  // Tokens that are sent once are put into rows where they arrive, and need no sort.
  bool sorts() const {
    return !expert_.empty() && model_.placed_experts() > mesh_.size(expert_) && options_.dispatcher != Dispatcher::flex;
  }

  void dispatch(TensorId home, TensorId rows, const Op& cause) {
    const TensorId part = tensor_.empty() ? rows : expert_.empty() ? home : part_of(rows);
    if (!expert_.empty()) {
      const TensorId came = sorts() ? like(part, "arrived_rows") : part;
      out_.push_back(redistribution(home, came, "dispatch", cause));
      if (sorts()) sort(came, part, cause);
    }
    if (part != rows) out_.push_back(collective(OpKind::all_gather, "dispatch.all_gather", tensor_, part, rows, cause));
  }
  void combine(TensorId rows, TensorId home, const Op& cause) {
    const TensorId part = tensor_.empty() ? rows : expert_.empty() ? home : part_of(rows);
    if (part != rows)
      out_.push_back(collective(OpKind::reduce_scatter, "combine.reduce_scatter", tensor_, rows, part, cause));
    if (expert_.empty()) return;
    const TensorId leaves = sorts() ? like(part, "leaving_rows") : part;
    if (sorts()) sort(part, leaves, cause);
    out_.push_back(redistribution(leaves, home, "combine", cause));
  }
  // Each rank sends equally much to each other, or the rows that the load says.
  Op redistribution(TensorId from, TensorId to, const char* name, const Op& cause) const {
    Op op = collective(OpKind::redistribute, name, expert_, from, to, cause);
    op.router = router_;
    if (options_.dispatcher == Dispatcher::hierarchical) op.algorithm = CollectiveAlgorithm::hierarchical;
    if (options_.dispatcher == Dispatcher::flex) op.algorithm = CollectiveAlgorithm::by_token;
    return op;
  }

  void rewrite(Block& block) {
    out_.clear();
    for (Op op : block.ops) {
      if (!traits_of(op.kind).regroups) {
        pass_on(op);
        continue;
      }
      for (TensorId& id : op.reads) {
        if (id == kNoTensor || !is_rows(piece_.tensors[id])) continue;
        if (home_[id] == kNoTensor) {
          const TensorId home = home_of(id);
          combine(id, home, op);
          home_[id] = home;
        }
        id = home_[id];
      }
      const Quantised quantised = quantise_rows(op, block);
      TensorId home = kNoTensor, rows = kNoTensor;
      for (TensorId& id : op.writes)
        if (id != kNoTensor && is_rows(piece_.tensors[id])) {
          rows = id;
          id = home = home_of(rows);
        }
      const Op cause = op;
      if (op.kind == OpKind::unpermute_backward && quantised.exact != kNoTensor) {
        op.writes[0] = home_of(quantised.exact);
        out_.push_back(op);
        cast("quantise_rows", op.writes[0], home, cause);
      } else {
        out_.push_back(op);
      }
      if (home != kNoTensor) dispatch(home, rows, cause);
      dequantise(quantised, cause);
    }
    block.ops = out_;
  }

  // ---- fp8 on the way to the experts ----

  // Rows, and those that replace them after arrival in fp8. Products of these read them directly, all others a cast.
  struct Quantised {
    TensorId exact = kNoTensor, narrow = kNoTensor;
  };
  Quantised quantised_rows(TensorId rows, const Block& block) {
    // The second of two copies is by rows, which the next product reads.
    const auto casts = [&](const Op& op) { return op.reads[0] == rows && quantises(op, piece_); };
    const auto fused = std::find_if(block.ops.rbegin(), block.ops.rend(), casts);
    const Quantised q{rows, fused == block.ops.rend() ? like(rows, "fp8_rows") : fused->writes[0]};
    piece_.tensors[q.narrow].dtype = Dtype::fp8_blocks;
    quantised_.push_back(q);
    return q;
  }
  // Tokens are quantised once each, before they are put into rows.
  TensorId quantised_tokens(TensorId tokens, const Op& cause) {
    const TensorId narrow = like(tokens, "fp8_tokens");
    piece_.tensors[narrow].dtype = Dtype::fp8_blocks;
    cast("quantise_tokens", tokens, narrow, cause);
    return narrow;
  }
  // For an op that puts tokens, or their gradients, into rows.
  Quantised quantise_rows(Op& op, const Block& block) {
    if (!options_.fp8_dispatch || (op.kind != OpKind::permute && op.kind != OpKind::unpermute_backward)) return {};
    const Quantised q = quantised_rows(op.writes[0], block);
    // Rows weighted on the way are quantised afterwards, row by row; not those weighted where they arrive.
    if (op.kind == OpKind::permute || options_.dispatcher == Dispatcher::allgather)
      op.reads[0] = quantised_tokens(op.reads[0], op);
    op.writes[0] = q.narrow;
    return q;
  }
  // Leaves out the cast of rows that came in fp8; their other copy is made of these.
  void pass_on(Op op) {
    if (quantises(op, piece_))
      for (const Quantised& q : quantised_) {
        if (op.reads[0] != q.exact) continue;
        if (op.writes[0] == q.narrow) return;
        op.reads[0] = q.narrow;
        op.passes = 1;
      }
    out_.push_back(op);
  }
  void dequantise(const Quantised& q, const Op& cause) {
    if (q.exact == kNoTensor) return;
    for (const Block* block : {&piece_.forward, &piece_.backward})
      for (const Op& op : block->ops)
        if (std::ranges::find(op.reads, q.exact) != op.reads.end() && !quantises(op, piece_) &&
            !traits_of(op.kind).regroups)
          return cast("dequantise_rows", q.narrow, q.exact, cause);
  }
  void cast(const char* name, TensorId from, TensorId to, const Op& cause) {
    out_.push_back(computation(OpKind::cast, name, cause.phase, {from}, {to}));
  }

  // ---- all tokens to all ranks of the experts ----

  // The digits of a dimension that belong to ranks which share experts, and the digits before them.
  struct Step {
    int dim = 0;
    MeshGroup group;
    Division rest;
  };
  // Steps, one per dimension, from a tensor of a rank's own tokens to one of all ranks that share experts with it.
  std::vector<Step> steps(const Tensor& t) const {
    std::vector<Step> all;
    for (int d = 0; d < t.rank; ++d) {
      Step step{d, t.over[d].group() & (expert_ | tensor_), {}};
      if (step.group.empty()) continue;
      for (int n = 0; n < t.over[d].count(); ++n)
        if (const int digit = t.over[d].digit(n); !step.group.contains(digit))
          step.rest.append(MeshGroup::of_digit(digit));
      Division whole = step.rest;
      whole.append(step.group);
      if (whole != t.over[d])
        throw InputError(
            {"", "/plan/moe_token_dispatcher"}, "\"allgather\"",
            std::string("another one for this mesh: ranks that share experts do not lie side by side along ") +
                name_of(t.axes[d]));
      all.push_back(step);
    }
    return all;
  }
  // Returns `id` as it is after this step.
  TensorId step_from(TensorId id, const Step& step, const char* name) {
    const TensorId whole = like(id, name);
    Tensor& t = piece_.tensors[whole];
    t.sizes[step.dim] *= mesh_.size(step.group);
    t.over[step.dim] = step.rest;
    return whole;
  }
  // Gathered once for both blocks: choices and weights are small enough to keep.
  TensorId gathered(TensorId id, const Op& cause) {
    if (gathered_[id] != kNoTensor) return gathered_[id];
    TensorId at = id;
    for (const Step& step : steps(piece_.tensors[id])) {
      const TensorId whole = step_from(at, step, "all_tokens");
      out_.push_back(collective(OpKind::all_gather, "dispatch.all_gather", step.group, at, whole, cause));
      at = whole;
    }
    return gathered_[id] = at;
  }
  void rewrite_gathering(Block& block) {
    out_.clear();
    for (Op op : block.ops) {
      if (!traits_of(op.kind).regroups) {
        pass_on(op);
        continue;
      }
      const Quantised quantised = quantise_rows(op, block);
      for (TensorId& id : op.reads)
        if (id != kNoTensor && !is_rows(piece_.tensors[id])) id = gathered(id, op);
      std::vector<Op> scatters;  // in reverse order
      for (TensorId& id : op.writes) {
        if (id == kNoTensor || is_rows(piece_.tensors[id])) continue;
        TensorId at = id;
        for (const Step& step : steps(piece_.tensors[id])) {
          const TensorId whole = step_from(at, step, "all_tokens");
          scatters.push_back(collective(OpKind::reduce_scatter, "combine.reduce_scatter", step.group, whole, at, op));
          at = whole;
        }
        id = at;
      }
      const Op cause = op;
      out_.push_back(op);
      out_.insert(out_.end(), scatters.rbegin(), scatters.rend());
      dequantise(quantised, cause);
    }
    block.ops = out_;
  }

  // ---- products with masks ----

  // Made once for both blocks: GShard has a mask of choices and one of weights, and the backward needs the forward's.
  TensorId mask_of(TensorId choices, TensorId weights, TensorId rows, const Op& cause) {
    for (const Mask& known : masks_)
      if (known.choices == choices && known.weights == weights) return known.mask;
    const TensorId mask = like(choices, weights == kNoTensor ? "dispatch_mask" : "combine_weights");
    Tensor& t = piece_.tensors[mask];
    const Tensor& of_rows = piece_.tensors[rows];
    t.dtype = of_rows.dtype;
    t.truncate(t.rank - 1);
    for (const int d : {of_rows.find(Axis::experts), of_rows.find(Axis::slots)}) {
      t.append({of_rows.sizes[d], of_rows.axes[d]});
      t.over[t.rank - 1] = of_rows.over[d];
    }
    masks_.push_back({choices, weights, mask});
    emit(OpKind::slot_mask, "slot_mask", {choices, weights}, mask, cause);
    return mask;
  }
  void emit(OpKind kind, const char* name, std::array<TensorId, 2> reads, TensorId write, const Op& cause) {
    out_.push_back(computation(kind, name, cause.phase, {reads[0], reads[1]}, {write}));
    out_.back().compute_dtype = piece_.tensors[reads[0]].dtype;
  }
  void use_masks(Block& block) {
    out_.clear();
    for (const Op& op : block.ops) {
      switch (op.kind) {
        case OpKind::permute: {
          const TensorId mask = mask_of(op.reads[1], kNoTensor, op.writes[0], op);
          emit(OpKind::mask_permute, "permute", {op.reads[0], mask}, op.writes[0], op);
          break;
        }
        case OpKind::unpermute: {
          const TensorId mask = mask_of(op.reads[1], op.reads[2], op.reads[0], op);
          emit(OpKind::mask_unpermute, "unpermute", {op.reads[0], mask}, op.writes[0], op);
          break;
        }
        case OpKind::unpermute_backward: {
          const TensorId mask = mask_of(op.reads[2], op.reads[3], op.reads[1], op), gradient = like(mask, "dmask");
          emit(OpKind::mask_permute, "unpermute", {op.reads[0], mask}, op.writes[0], op);
          emit(OpKind::mask_gradient, "combine_weights", {op.reads[0], op.reads[1]}, gradient, op);
          emit(OpKind::slot_mask_backward, "combine_weights", {gradient, op.reads[2]}, op.writes[1], op);
          break;
        }
        default:
          out_.push_back(op);
      }
    }
    block.ops = out_;
  }

  // ---- parameters that ranks of expert_tensor_parallel do not divide ----

  // A factor of an expert's matrix that lacks the inner width is whole on these ranks. An operand of its gradient is
  // then a part of a sum over them.
  void sum_undivided_gradients() {
    if (tensor_.empty()) return;
    PackedGradients summed;
    std::int64_t elements = 0;
    for (const ParameterGradient& p : piece_.parameters) {
      const Tensor& t = piece_.tensors[p.parameter];
      if (p.gradient == kNoTensor || t.find(Axis::experts) < 0 || t.divided_over().contains(tensor_)) continue;
      summed.gradients.push_back(p.gradient);
      elements += t.elements();
    }
    sum_packed(piece_, std::move(summed), "undivided_gradients", "undivided_gradients.all_reduce",
               Stream::expert_communication, tensor_, elements);
  }

  // ---- losses of routers ----

  // Sums the tokens per expert over ranks with parts of the same sequence (Megatron-Core reduces over these ranks too),
  // or over the whole micro-batch of all replicas.
  void sum_counts(Block& block) {
    out_.clear();
    for (Op op : block.ops) {
      out_.push_back(op);
      if (op.kind != OpKind::expert_counts) continue;
      const Tensor& choices = piece_.tensors[op.reads[0]];
      MeshGroup parts = choices.over[choices.find(Axis::sequence)].group();
      if (model_.load_balancing == LoadBalancing::global_aux_loss)
        parts = parts | choices.over[choices.find(Axis::batch)].group();
      if (parts.empty()) continue;
      const TensorId counts = op.writes[0], own = like(counts, "expert_counts");
      out_.back().writes[0] = own;
      out_.push_back(collective(OpKind::all_reduce, "expert_counts.all_reduce", parts, own, counts, op));
    }
    block.ops = out_;
  }

  // ---- shared experts beside the exchange ----

  // Finds the ops of a block that only serve shared experts. Forward: ops that only lead to the sum with the routed
  // experts. Backward: ops that read their weights or what they have kept, and their weight gradients. `own`: the
  // weights of shared experts and what they write in the forward, which finds them.
  std::vector<std::uint8_t> shared_ops(const Block& block, Storages& own) const {
    std::vector<std::uint8_t> chosen(block.ops.size());
    if (&block == &piece_.forward) {
      // From the end: ops whose results nobody else reads.
      Storages wanted(piece_), elsewhere(piece_);
      elsewhere.add(piece_.output);
      const Op* const sum = sum_of_experts();
      if (sum == nullptr) return chosen;
      for (std::size_t i = block.ops.size(); i-- > 0;) {
        const Op& op = block.ops[i];
        chosen[i] = wanted.has_any(op.writes) && !elsewhere.has_any(op.writes) ? 1 : 0;
        for (std::size_t r = 0; r < op.reads.size(); ++r)
          (chosen[i] != 0 || (&op == sum && r == 1) ? wanted : elsewhere).add(op.reads[r]);
      }
      for (std::size_t i = 0; i < chosen.size(); ++i) {
        if (chosen[i] == 0) continue;
        own.add_all(block.ops[i].writes);
        if (is_matmul(block.ops[i].kind)) own.add(block.ops[i].reads[1]);
        if (block.ops[i].kind == OpKind::cast && piece_.tensors[block.ops[i].reads[0]].category == Category::parameter)
          own.add(block.ops[i].reads[0]);
      }
      // Second copies of these, which the backward reads.
      for (std::size_t i = 0; i < chosen.size(); ++i) {
        const Op& op = block.ops[i];
        if (chosen[i] != 0 || op.kind != OpKind::cast || !own.has(op.reads[0]) || elsewhere.has(op.writes[0])) continue;
        chosen[i] = 1;
        own.add(op.writes[0]);
      }
      return chosen;
    }
    Storages gradients(piece_);
    // An addition belongs to a shared expert if the sum meets its values again. Others add the routed experts'
    // gradients.
    const auto adds_within = [&](const Op& add) {
      return gradients.has(add.reads[0]) && std::ranges::any_of(block.ops, [&](const Op& op) {
               return std::ranges::find(op.reads, add.writes[0]) != op.reads.end() && own.has_any(op.reads);
             });
    };
    for (std::size_t i = 0; i < block.ops.size(); ++i) {
      const Op& op = block.ops[i];
      const bool adds_up = op.kind == OpKind::add;
      const bool goes_on = op.phase == Phase::weight_gradient || is_communication(op.kind) || op.kind == OpKind::scale;
      if (adds_up ? !adds_within(op) : !(own.has_any(op.reads) || (goes_on && gradients.has_any(op.reads)))) continue;
      chosen[i] = 1;
      (op.kind == OpKind::cast && own.has(op.reads[0]) ? own : gradients).add_all(op.writes);
    }
    // Casts, gathers and multiples of the incoming gradient that only serve them.
    for (std::size_t i = block.ops.size(); i-- > 0;) {
      const Op& op = block.ops[i];
      const bool copies = op.kind == OpKind::cast || op.kind == OpKind::all_gather || op.kind == OpKind::scale;
      if (chosen[i] != 0 || !copies) continue;
      std::size_t readers = 0, shared = 0;
      for (std::size_t j = i + 1; j < block.ops.size(); ++j)
        if (std::ranges::find(block.ops[j].reads, op.writes[0]) != block.ops[j].reads.end())
          ++readers, shared += chosen[j];
      if (readers > 0 && readers == shared) chosen[i] = 1;
    }
    return chosen;
  }

  // The op that adds the shared experts' output to that of the routed ones.
  const Op* sum_of_experts() const {
    TensorId routed = kNoTensor;
    for (const Op& op : piece_.forward.ops) {
      if (op.kind == OpKind::unpermute || op.kind == OpKind::mask_unpermute) routed = op.writes[0];
      if (op.kind == OpKind::add && routed != kNoTensor && op.reads[0] == routed && op.reads[1] != kNoTensor)
        return &op;
    }
    return nullptr;
  }

  // Runs half of the shared experts' ops during the dispatch and half during the combine, both on a separate stream
  // (Megatron-Core's --moe-shared-expert-overlap).
  void overlap_shared_experts() {
    Storages own(piece_);
    for (Block* block : {&piece_.forward, &piece_.backward}) {
      const std::vector<std::uint8_t> chosen = shared_ops(*block, own);
      std::vector<Op> shared, rest;
      for (std::size_t i = 0; i < chosen.size(); ++i) (chosen[i] != 0 ? shared : rest).push_back(block->ops[i]);
      std::vector<std::size_t> exchanges;
      for (std::size_t i = 0; i < rest.size(); ++i)
        if (rest[i].kind == OpKind::redistribute && rest[i].account == Stream::expert_communication &&
            piece_.tensors[rest[i].reads[0]].find(Axis::hidden) >= 0)  // rows, not their weights
          exchanges.push_back(i);
      if (shared.empty() || exchanges.size() != 2) continue;
      const auto middle = std::ranges::find_if(
          shared, [](const Op& op) { return op.kind == OpKind::activation || op.kind == OpKind::activation_backward; });
      const auto half = middle == shared.end() ? shared.begin() : middle + 1;
      for (const std::size_t i : exchanges) rest[i].stream = rest[i].account;
      rest.insert(rest.begin() + static_cast<std::ptrdiff_t>(exchanges[1]) + 1, half, shared.end());
      rest.insert(rest.begin() + static_cast<std::ptrdiff_t>(exchanges[0]) + 1, shared.begin(), half);
      block->ops = std::move(rest);
    }
  }

  const Options& options_;
  const Model& model_;
  const Mesh& mesh_;
  std::span<const Load> loads_;
  const MeshGroup expert_, tensor_;
  Piece& piece_;
  // By rows on the experts' side: the rows of a rank's own tokens.
  std::vector<TensorId> home_;
  // By tensor of a rank's own tokens: that of the tokens of all ranks that share the experts.
  std::vector<TensorId> gathered_;
  std::vector<Quantised> quantised_;
  struct Mask {
    TensorId choices = kNoTensor, weights = kNoTensor, mask = kNoTensor;
  };
  std::vector<Mask> masks_;
  std::vector<Op> out_;
  Router router_;
  MeshGroup divided_;       // group over which tokens are divided
  std::int64_t slots_ = 1;  // of an expert, for one rank's tokens
  double padding_ = 1;      // slots over what balanced routing needs
};

constexpr FieldRule kIdle[]{
    keep({"expert_parallel", "expert_tensor_parallel", "moe_expert_capacity_factor", "moe_token_dispatcher",
          "moe_pad_to_busiest_expert", "moe_shared_expert_overlap", "overlap_moe_expert_parallel_comm",
          "moe_fp8_dispatch", "moe_permute"},
         "for a model without experts", [](const AskedOf& a) { return a.model.has_experts(); }),
    keep({"moe_shared_expert_overlap"}, "for a model without shared experts",
         [](const AskedOf& a) { return a.model.shared_expert_ffn > 0; }),
    keep({"moe_fp8_dispatch", "overlap_moe_expert_parallel_comm"}, "with expert_parallel 1: tokens stay on their rank",
         [](const AskedOf& a) { return a.plan.expert.degree > 1; }),
    keep({"moe_permute"}, "without moe_expert_capacity_factor: a mask has a fixed number of slots",
         [](const AskedOf& a) { return a.plan.expert.capacity_factor > 0; }),
    // Megatron-Core's rule: there is no exchange for them to hide.
    keep({"moe_shared_expert_overlap", "overlap_moe_expert_parallel_comm"}, "with moe_token_dispatcher \"allgather\"",
         [](const AskedOf& a) { return a.plan.expert.dispatcher != Dispatcher::allgather; })};
constexpr FieldRule kExcludes[]{
    keep({"moe_pad_to_busiest_expert"}, "with moe_expert_capacity_factor, which sets the number of slots",
         [](const AskedOf& a) { return a.plan.expert.capacity_factor > 0; }),
    keep({"moe_permute"}, "with moe_fp8_dispatch: products with masks read tokens that are not quantised",
         [](const AskedOf& a) { return a.plan.expert.fp8_dispatch; }),
    keep({"overlap_moe_expert_parallel_comm"}, "with moe_shared_expert_overlap: both overlap the same exchanges",
         [](const AskedOf& a) { return a.plan.expert.overlap_shared; }),
    keep({"overlap_moe_expert_parallel_comm"}, "unless the schedule is 1f1b, interleaved or dualpipev",
         [](const AskedOf& a) {
           using pipeline_parallel::ScheduleKind;
           const ScheduleKind schedule = pipeline_parallel::effective_schedule(a.plan.pipeline);
           return schedule != ScheduleKind::one_f_one_b && schedule != ScheduleKind::interleaved &&
                  schedule != ScheduleKind::dualpipe_v;
         }),
    // With one chunk, a stage would wait for both neighbours in every pair.
    keep({"overlap_moe_expert_parallel_comm"},
         "with pipeline_parallel above 1 and virtual_pipeline 1, as in Megatron-Core", [](const AskedOf& a) {
           const pipeline_parallel::Options& pipeline = a.plan.pipeline;
           return pipeline.degree > 1 && effective_schedule(pipeline) == pipeline_parallel::ScheduleKind::one_f_one_b;
         })};

void check(const Scenario& scenario) {
  const Options& options = scenario.plan.expert;
  const Model& model = scenario.model;
  // The plan's value, or the one that stands for 0.
  const auto fail_tensor = [&](std::int64_t found, const std::string& expected) {
    throw InputError({"", "/plan/expert_tensor_parallel"}, std::to_string(found), expected);
  };
  check_routing(scenario);
  if (!model.has_experts()) return;
  const std::int64_t tensor = expert_tensor_ranks(scenario.plan);
  const std::int64_t ranks = orrery::ranks(scenario) / scenario.plan.pipeline.degree;
  if (model.experts % options.degree != 0)
    refuse(scenario.plan, "expert_parallel", "a divisor of the model's " + std::to_string(model.experts) + " experts");
  if (model.expert_ffn % tensor != 0)
    fail_tensor(tensor, "a divisor of an expert's inner width of " + std::to_string(model.expert_ffn));
  if (ranks % (options.degree * tensor) != 0)
    refuse(scenario.plan, "expert_parallel",
           "a degree whose product with expert_tensor_parallel (" + std::to_string(tensor) + ") divides the " +
               std::to_string(ranks) + " ranks of tensor, context and data parallelism");
  if (scenario.plan.tensor.degree > 1 && !scenario.plan.tensor.sequence_parallel)
    refuse(scenario.plan, "sequence_parallel",
           "true with experts and tensor_parallel above 1: ranks that share a token would all send it to its experts");
  if (const Device& device = scenario.cluster.device;
      device.peak_flops_per_second[static_cast<std::size_t>(Dtype::fp8)] == 0)
    keep_defaults(scenario.plan, {"moe_fp8_dispatch"}, "on " + device.name + ", which does not support fp8");
  if (tensor > 1 && model.expert_bias)
    fail_tensor(tensor, "1 for experts with biases: a bias is added to the complete sum");
}

// Folds the axes ep and etp. Throws InputError where the mesh's digits cannot be cut so.
void fold(const Scenario& scenario, Mesh& mesh) {
  if (!scenario.model.has_experts()) return;
  const std::int64_t tensor = expert_tensor_ranks(scenario.plan), degree = scenario.plan.expert.degree;
  const auto refuse = [](const char* field, std::int64_t found) {
    throw InputError({"", std::string("/plan/") + field}, std::to_string(found),
                     "a degree that divides tensor, context and data ranks into whole groups");
  };
  if (!mesh.fold(MeshAxis::etp, 1, tensor)) refuse("expert_tensor_parallel", tensor);
  if (!mesh.fold(MeshAxis::ep, tensor, degree)) refuse("expert_parallel", degree);
}

double factor_without_drops(const Model& model) {
  return static_cast<double>(model.experts) / static_cast<double>(model.experts_per_token);
}

void rewrite(const Scenario& scenario, Program& program) {
  const Model& model = scenario.model;
  const double factor = scenario.plan.expert.capacity_factor;
  // Slots are executed whether they are filled or not; tokens without a slot are not computed.
  if (model.has_experts() && factor > 0) {
    const double products = model.gated() ? 3 : 2, passes = 3,
                 of_row = 2 * products * static_cast<double>(model.hidden) * static_cast<double>(model.expert_ffn),
                 rows = program.model.tokens_per_step * static_cast<double>(model.experts_per_token);
    const auto layers = static_cast<double>(model.expert_layers() + (model.mtp_has_experts() ? 1 : 0));
    program.model.executed_flops_per_step +=
        (std::min(factor, factor_without_drops(model)) - 1) * passes * of_row * rows * layers;
  }
  if (!scenario.plan.expert.counts_rows()) lay_loads(scenario, program);
}

void rewrite_piece(const Scenario& scenario, const Plan& plan, const Program& program, Piece& piece) {
  if (has_experts(piece)) Experts(plan.expert, scenario.model, program.mesh, program.loads, piece).run();
}

void disable(Plan& plan) {
  const Options whole = plan.expert;
  plan.expert = {};
  plan.expert.capacity_factor = whole.capacity_factor;  // dropped tokens change what is computed
  plan.expert.counted = whole.counted;
}

constexpr PlanWord kWords[]{{"expert", [](const Scenario& s) { return s.plan.expert.degree > 1; }}};

void refuse_padding(const Plan& plan) {
  keep_defaults(plan, {"moe_pad_to_busiest_expert"},
                "in a real run: its slots hold all tokens, whichever experts they choose");
}

// Gives a dropless plan slots for all tokens, and makes it count the filled rows (Options::counted).
void make_runnable(Scenario& scenario) {
  refuse_padding(scenario.plan);
  if (!scenario.model.has_experts()) return;
  Options& options = scenario.plan.expert;
  // A rank that gathers tokens has rows of some alone: all slots are computed.
  if (options.dispatcher == Dispatcher::allgather) {
    if (options.capacity_factor == 0) options.capacity_factor = factor_without_drops(scenario.model);
    return;
  }
  options.counted = true;
  for (LayerRange& range : scenario.plan.layers) range.plan.expert.counted = true;
}

// What one rank can be held against: it has all tokens of as many micro-batches as all replicas together.
void check_runnable_router(const Scenario& scenario) {
  const Model& model = scenario.model;
  const bool divides = scenario.plan.tensor.degree > 1 || scenario.plan.context.degree > 1;
  if (divides && (model.router_type == RouterType::expert_choice || model.router_type == RouterType::base))
    throw InputError(
        {"", "/model/router_type"}, '"' + std::string(name_of(model.router_type)) + '"',
        "\"top_k\" or \"hash\" in a real run that divides sequences: one rank would choose among other tokens");
  const std::int64_t replicas = data_parallel_degree(scenario);
  if (model.aux_loss == 0 || model.load_balancing != LoadBalancing::global_aux_loss || replicas == 1) return;
  const auto refuse = [](const char* reason) {
    throw InputError({"", "/model/moe_router_load_balancing_type"}, "\"global_aux_loss\"", reason);
  };
  if (scenario.workload.global_batch_size != replicas * scenario.plan.batch.micro_batch_size)
    refuse("another one in a real run with several micro-batches and replicas: one rank cannot reproduce it");
  // Dropout and noise are drawn per micro-batch, and one rank has one micro-batch for all replicas.
  if (model.dropout > 0 || model.router_noise)
    refuse("another one in a real run of several replicas with dropout or router_noise: one rank draws other numbers");
}

void check_runnable(const Scenario& scenario) {
  const Model& model = scenario.model;
  const Options& options = scenario.plan.expert;
  check_runnable_router(scenario);
  keep_defaults(scenario.plan, {"moe_fp8_dispatch"}, "in real runs: no kernel quantises by blocks yet");
  refuse_padding(scenario.plan);
  if (!model.has_experts() || options.counts_rows() || options.capacity_factor >= factor_without_drops(model)) return;
  const std::string no_drops = fmt::format("at least {:g}, which drops no token,", factor_without_drops(model));
  const auto fail = [&](const char* why) { refuse(scenario.plan, "moe_expert_capacity_factor", no_drops + why); };
  if (options.capacity_factor == 0) fail(" in a real run: its routing may be unbalanced");
  // One rank counts slots over the same tokens only if sequences, and not their positions, are divided.
  if (scenario.plan.tensor.degree > 1 || scenario.plan.context.degree > 1)
    fail(" in a real run that divides sequences: one rank would drop other tokens");
  if (options.dispatcher == Dispatcher::allgather)
    fail(" in a real run with moe_token_dispatcher \"allgather\", which puts all tokens into slots");
}

constexpr SearchAxis kAxes[]{{.field = "expert_parallel",
                              .label = "ep",
                              .chosen_with = ChosenWith::mesh,
                              .usual = true,
                              .set = [](Plan& plan, std::int64_t value) { plan.expert.degree = value; },
                              .values = [](const Scenario& chosen) -> AxisValues {
                                AxisValues values = divisors_of(chosen.model.experts);
                                // Stages and replicas are chosen later.
                                std::erase_if(values,
                                              [&](std::int64_t e) { return chosen.cluster.devices() % e != 0; });
                                return values;
                              },
                              .turns_of = [](const Model& model) { return model.has_experts(); }},
                             {.field = "expert_tensor_parallel",
                              .label = "etp",
                              .chosen_with = ChosenWith::mesh,
                              .usual = true,
                              .set = [](Plan& plan, std::int64_t value) { plan.expert.tensor_degree = value; },
                              .values = [](const Scenario& chosen) -> AxisValues {
                                const std::int64_t tensor = chosen.plan.tensor.degree;
                                return tensor > 1 ? AxisValues{1, tensor} : AxisValues{1};
                              },
                              .turns_of = [](const Model& model) { return model.has_experts(); }}};

}  // namespace

Strategy describe() {
  return {.name = "expert_parallel",
          .summary = "experts divided over ranks, with tokens sent to them and back",
          .paper = "Lepikhin et al. 2020, arXiv 2006.16668; Liu et al. 2025, arXiv 2504.14960",
          .excludes = kExcludes,
          .idle = kIdle,
          .check = check,
          .rewrite = rewrite,
          .control = control,
          .rewrite_piece = rewrite_piece,
          .fold = fold,
          .disable = disable,
          .words = kWords,
          .make_runnable = make_runnable,
          .check_runnable = check_runnable,
          .figure_kinds = figure_kinds(),
          .figures = figures,
          .search_axes = kAxes,
          .topics = topics()};
}

}  // namespace orrery::expert_parallel
