// Megatron-LM tensor parallelism (Shoeybi et al. 2019, arXiv 1909.08053) and sequence parallelism (Korthikanti et al.
// 2022, arXiv 2205.05198), as a partitioning pass: dimensions along the heads, the MLP's inner width and the vocabulary
// are divided over the tensor-parallel ranks; a product that contracts a divided dimension yields a partial sum, which
// is all-reduced, or with sequence parallelism reduce-scattered along the sequence; a product that needs a
// sequence-sharded input gathers it first. Which layer is column- and which row-parallel follows from the shapes.
#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>

#include "models/layers.h"
#include "sim/base/error.h"
#include "sim/program/rewrite.h"
#include "strategies/framework/framework.h"
#include "strategies/layer_plans.h"
#include "strategies/strategy.h"

namespace orrery::tensor_parallel {
namespace {

// Transformer Engine's default number of splits of an overlapped product (num_splits of its userbuffers pipeline).
constexpr int kOverlapChunks = 4;

// The digit of ranks that share a key/value head.
constexpr const char* kSharing = "tp.shared";

constexpr unsigned bit_of(Axis axis) { return 1u << static_cast<unsigned>(axis); }
constexpr bool is_divided(Axis axis) {
  return (bit_of(axis) & (bit_of(Axis::groups) | bit_of(Axis::ffn) | bit_of(Axis::vocab))) != 0;
}
bool is_logits(const Tensor& t) { return t.rank >= 3 && t.find(Axis::vocab) == t.rank - 1; }

class Partition {
 public:
  // `group_heads`: query heads per key/value group. `keeps_gathered`: gathered inputs also serve the weight gradient.
  Partition(const Options& options, bool keeps_gathered, const Mesh& mesh, std::int64_t group_heads, Piece& piece)
      : options_(options),
        keeps_gathered_(keeps_gathered),
        all_(mesh.group(MeshAxis::tp)),
        sharing_(mesh.group(kSharing)),
        degree_(options.degree),
        ranks_per_group_(mesh.size(sharing_)),
        group_heads_(group_heads),
        piece_(piece) {}

  void run() {
    shard_tensors();
    rewrite_block(piece_.forward);
    rewrite_block(piece_.backward);
    keep_exponentials();
    PackedGradients summed;
    summed.gradients = replicated_;
    sum_packed(piece_, std::move(summed), "replicated_gradients", "replicated_gradients.all_reduce",
               Stream::tensor_communication, all_, replicated_elements_);
    PackedGradients shared;
    shared.shared_heads = true;
    for (const ParameterGradient& p : piece_.parameters)
      if (std::find(shared_.begin(), shared_.end(), p.parameter) != shared_.end())
        shared.gradients.push_back(p.gradient);
    sum_packed(piece_, std::move(shared), "key_value_gradients", "key_value_gradients.all_reduce",
               Stream::tensor_communication, sharing_, shared_elements_);
  }

 private:
  enum Layout : std::uint8_t { replicated, divided, sequence_sharded };

  // Returns true if the ranks divide this tensor along the vocabulary. A piece looks tokens up or predicts them.
  bool divides_vocabulary(const Tensor& t) const {
    if (is_logits(t)) return options_.loss_parallel;
    const bool looks_up = std::ranges::any_of(piece_.forward.ops, [&](const Op& op) {
      return op.kind == OpKind::embedding && piece_.tensors[op.reads[1]].find(Axis::vocab) == 0;
    });
    return !looks_up || options_.vocab_parallel_embedding;
  }

  void shard_tensors() {
    layout_.reserve(2 * piece_.tensors.size());
    gathered_.reserve(2 * piece_.tensors.size());
    layout_.assign(piece_.tensors.size(), replicated);
    for (std::size_t id = 0; id < piece_.tensors.size(); ++id) {
      Tensor& t = piece_.tensors[id];
      bool divided_here = false;
      for (int d = 0; d < t.rank; ++d) {
        if (!is_divided(t.axes[d]) || (t.axes[d] == Axis::vocab && !divides_vocabulary(t))) continue;
        divided_here = true;
        if (t.axes[d] == Axis::groups && t.sizes[d] < degree_) {
          shard_heads_within_groups(t, d);
        } else {
          t.sizes[d] /= degree_;
          t.over[d].append(all_);
        }
      }
      layout_[id] = divided_here ? divided : replicated;
    }
    if (!options_.sequence_parallel) return;
    for (std::size_t id = 0; id < piece_.tensors.size(); ++id) {
      Tensor& t = piece_.tensors[id];
      const int d = t.find(Axis::sequence);
      // Token ids, targets and the loss (rank 2, or the statistics that begin with the loss's rows) stay whole.
      const bool per_token = t.category == Category::activation && t.rank >= 3 && t.axes[0] == Axis::batch;
      if (layout_[id] != replicated || d < 0 || !per_token || is_logits(t)) continue;
      t.sizes[d] /= degree_;
      t.over[d].append(all_);
      layout_[id] = sequence_sharded;
    }
  }

  // Fewer key/value groups than ranks: every rank keeps one group whole and a part of its query heads; keys and
  // values are replicated over the degree / groups ranks that share a group. Each computes their gradients from its own
  // query heads; the parameters' are summed once a step.
  void shard_heads_within_groups(Tensor& t, int groups_dim) {
    t.sizes[groups_dim] = 1;
    t.over[groups_dim].append(all_.without(sharing_));
    const std::int64_t heads = group_heads_ / ranks_per_group_;
    bool has_heads = false;
    std::int64_t shared = t.elements();  // the part that all ranks of the group hold
    for (int d = 0; d < t.rank; ++d) {
      const bool of_group =
          t.axes[d] == Axis::group_qkv || (t.axes[d] == Axis::group_heads && t.sizes[d] >= group_heads_);
      if (!of_group) continue;
      has_heads = true;
      const std::int64_t keys = t.sizes[d] - group_heads_;  // after the query heads: nothing, the key, or key and value
      t.sizes[d] = heads + keys;
      t.over[d].append(sharing_);
      if (keys > 0) {
        t.set_deal(d, Deal::query_heads);
        t.kept = static_cast<std::uint8_t>(keys);
      }
      shared = t.elements() / t.sizes[d] * keys;
    }
    const auto id = static_cast<TensorId>(&t - piece_.tensors.data());
    const bool trained = std::ranges::any_of(
        piece_.parameters, [&](const ParameterGradient& p) { return p.parameter == id && p.gradient != kNoTensor; });
    if (trained && shared > 0) {
      shared_elements_ += shared;
      shared_.push_back(id);
    }
    // A view of the key or the value, which now comes after fewer heads.
    if (t.alias_of != kNoTensor && !has_heads && t.alias_begin >= group_heads_ &&
        piece_.tensors[t.alias_of].find(Axis::group_qkv) >= 0)
      t.alias_begin -= group_heads_ - heads;
  }

  Layout layout(TensorId id) const { return id == kNoTensor ? replicated : static_cast<Layout>(layout_[id]); }

  TensorId add_tensor(const Tensor& t, Layout layout) {
    layout_.push_back(layout);
    gathered_.push_back(kNoTensor);
    return piece_.add(t);
  }

  Op collective(OpKind kind, TensorId read, TensorId write, const Op& cause) const {
    const char* const name = kind == OpKind::all_gather       ? "sequence.all_gather"
                             : kind == OpKind::reduce_scatter ? "sequence.reduce_scatter"
                                                              : "tensor.all_reduce";
    return communication(kind, name, cause.phase, Stream::tensor_communication, all_, read, write);
  }

  // Returns a tensor like `id` that owns its memory, and has the whole sequence if `id` is a shard of it.
  TensorId add_whole(TensorId id, Category category) {
    Tensor whole = piece_.tensors[id];
    whole.alias_of = kNoTensor;
    whole.category = category;
    if (layout(id) == sequence_sharded) {
      const int d = whole.find(Axis::sequence);
      whole.sizes[d] *= degree_;
      whole.over[d] = {};
    }
    return add_tensor(whole, replicated);
  }

  // Returns the whole sequence of a sharded tensor; gathered once per block.
  TensorId gather(TensorId id, const Op& cause) {
    if (gathered_[id] != kNoTensor) return gathered_[id];
    const TensorId w = add_whole(id, keeps_gathered_ ? piece_.tensors[id].category : Category::communication_buffer);
    gathered_[id] = w;
    out_.push_back(collective(OpKind::all_gather, id, w, cause));
    return w;
  }

  // Returns this rank's part of the gradient of whole logits, copied once: a product reads it as a matrix of its own.
  TensorId own_logits(TensorId id, const Op& cause) {
    if (!is_logits(piece_.tensors[id]) || layout(id) == divided) return id;
    const auto [part, is_new] = own_logits_.try_emplace(id, kNoTensor);
    if (is_new) {
      part->second = add_own(id, kNoTensor);
      out_.push_back(computation(OpKind::cast, "logits.split", cause.phase, {add_own(id, id)}, {part->second}));
    }
    return part->second;
  }

  // Emits the head's product, and gathers its result over the ranks. A collective stacks the ranks' parts, so a copy
  // puts them side by side (torch.cat in all_gather_tensor() of PyTorch's _functional_collectives.py and in
  // _gather_along_last_dim() of Megatron-LM's mappings.py).
  void gather_logits(Op op) {
    const TensorId result = op.writes[0], stacked = add_whole(result, Category::communication_buffer);
    op.writes[0] = add_own(result, kNoTensor);
    out_.push_back(op);
    Op gather = collective(OpKind::all_gather, op.writes[0], stacked, op);
    gather.name = "logits.all_gather";
    out_.push_back(gather);
    out_.push_back(computation(OpKind::cast, "logits.concatenate", op.phase, {stacked}, {result}));
  }

  // Adds this rank's part of a tensor like `id` along the vocabulary; `base`: what it is a view of, or none.
  TensorId add_own(TensorId id, TensorId base) {
    Tensor part = piece_.tensors[id];
    part.sizes[part.rank - 1] /= degree_;
    part.over[part.rank - 1].append(all_);
    part.alias_of = base;
    part.alias_begin = 0;
    return add_tensor(part, divided);
  }

  TensorId whole(TensorId id, const Op& cause) { return layout(id) == sequence_sharded ? gather(id, cause) : id; }

  // Emits `op`, whose first output is a partial sum over the tensor-parallel ranks, and then the reduction.
  void emit_partial(Op op) {
    const TensorId result = op.writes[0];
    // A row-parallel bias is added once, after the reduction.
    TensorId bias = kNoTensor;
    if (op.kind == OpKind::linear) std::swap(bias, op.reads[2]);
    const TensorId p = add_whole(result, piece_.tensors[result].category);
    op.writes[0] = p;
    out_.push_back(op);
    if (deferred_to_sum(result)) {
      partial_of_.push_back({result, p, bias});
      return;
    }
    reduce(p, result, {bias, kNoTensor}, op);
  }

  // Sums over the ranks, and then adds each bias once.
  void reduce(TensorId partial, TensorId result, std::array<TensorId, 2> biases, const Op& cause) {
    if (biases[0] == kNoTensor) std::swap(biases[0], biases[1]);
    const auto before_bias = [&] { return add_tensor(piece_.tensors[result], layout(result)); };
    TensorId sum = biases[0] == kNoTensor ? result : before_bias();
    const bool scatter = layout(result) == sequence_sharded;
    out_.push_back(collective(scatter ? OpKind::reduce_scatter : OpKind::all_reduce, partial, sum, cause));
    for (std::size_t i = 0; i < biases.size() && biases[i] != kNoTensor; ++i) {
      const bool last = i + 1 == biases.size() || biases[i + 1] == kNoTensor;
      const TensorId before = std::exchange(sum, last ? result : before_bias());
      out_.push_back(computation(OpKind::add, cause.name, cause.phase, {before, kNoTensor, biases[i]}, {sum}));
    }
  }

  // One of kOverlapChunks parts of a tensor along the sequence.
  TensorId chunk(TensorId id, int index) {
    Tensor part = piece_.tensors[id];
    const int d = part.find(Axis::sequence);
    part.alias_of = id;
    part.alias_begin = index * (part.sizes[d] / kOverlapChunks);
    part.sizes[d] /= kOverlapChunks;
    return add_tensor(part, layout(id));
  }

  // Splits a product and the collective before or behind it into chunks: while one is computed, the next one is sent.
  // Returns false if the product has no collective, or its collective has already run.
  bool overlap(const Op& op) {
    const TensorId x = op.reads[0], y = op.writes[0];
    if (layout(x) == sequence_sharded && gathered_[x] == kNoTensor && !contracts_divided(op)) {
      const TensorId w = gathered_[x] =
          add_whole(x, keeps_gathered_ ? piece_.tensors[x].category : Category::communication_buffer);
      // Part after part: a product waits for its own part, the gathers only for their data.
      for (int i = 0; i < kOverlapChunks; ++i) {
        Op part = op;
        part.reads[0] = chunk(w, i);
        part.writes[0] = chunk(y, i);
        Op gather = collective(OpKind::all_gather, chunk(x, i), part.reads[0], op);
        gather.free_running = true;
        out_.push_back(gather);
        out_.push_back(part);
      }
      return true;
    }
    if (contracts_divided(op) && layout(y) == sequence_sharded && !deferred_to_sum(y) && op.reads[2] == kNoTensor) {
      for (int i = 0; i < kOverlapChunks; ++i) {
        const TensorId result = chunk(y, i);
        Op part = op;
        part.reads[0] = chunk(x, i);
        part.writes[0] = add_whole(result, piece_.tensors[result].category);
        out_.push_back(part);
        out_.push_back(collective(OpKind::reduce_scatter, part.writes[0], result, op));
      }
      return true;
    }
    return false;
  }

  // Whether two partial sums meet in an addition (parallel attention and MLP): they are added first and reduced once.
  bool deferred_to_sum(TensorId id) const {
    for (const Op& op : block_->ops) {
      if (op.kind != OpKind::add || (op.reads[0] != id && op.reads[1] != id)) continue;
      const TensorId other = op.reads[0] == id ? op.reads[1] : op.reads[0];
      return other != kNoTensor && is_partial(other);
    }
    return false;
  }
  bool is_partial(TensorId id) const {
    for (const Op& op : block_->ops)
      if (op.writes[0] == id) return contracts_divided(op);
    return false;
  }
  bool contracts_divided(const Op& op) const {
    switch (op.kind) {
      case OpKind::linear:
      case OpKind::linear_input_gradient:
        return layout(op.reads[0]) == divided && layout(op.reads[1]) == divided;
      case OpKind::embedding:
        return layout(op.reads[1]) == divided && piece_.tensors[op.reads[1]].find(Axis::vocab) >= 0;
      default:
        return false;
    }
  }

  void rewrite_block(Block& block) {
    block_ = &block;
    out_.clear();
    out_.reserve(2 * block.ops.size());
    partial_of_.clear();
    if (keeps_gathered_)
      gathered_.resize(piece_.tensors.size(), kNoTensor);
    else
      gathered_.assign(piece_.tensors.size(), kNoTensor);
    const Op* const end = block.ops.data() + block.ops.size();
    for (const Op* op = block.ops.data(); op != end; ++op) rewrite_op(*op, op + 1 != end ? op + 1 : nullptr);
    block.ops.swap(out_);
  }

  void rewrite_op(Op op, const Op* next) {
    for (const auto& [from, to] : replaced_) replace_reads(op, from, to);
    switch (op.kind) {
      case OpKind::linear:
      case OpKind::linear_input_gradient:
        return rewrite_product(op, next);
      case OpKind::linear_weight_gradient:
        if (layout(op.writes[0]) == divided) {
          op.reads[0] = whole(op.reads[0], op);
          op.reads[1] = whole(own_logits(op.reads[1], op), op);
        } else {
          note_replicated(op.writes[0], op.reads[1]);
        }
        break;
      case OpKind::embedding:
        if (contracts_divided(op)) return emit_partial(op);
        break;
      case OpKind::embedding_backward:
        op.reads[1] = whole(op.reads[1], op);
        break;
      case OpKind::rotary:  // a key that all heads share, for this rank's heads
        if (op.reads[1] != kNoTensor && layout(op.reads[0]) == divided) op.reads[1] = whole(op.reads[1], op);
        break;
      case OpKind::rotary_backward:
        if (op.writes[1] != kNoTensor && layout(op.reads[0]) == divided) return sum_shared_key_gradient(op);
        break;
      case OpKind::pool:  // on every rank, over the whole sequence: Megatron-LM's pooler gathers it
        op.reads[0] = whole(op.reads[0], op);
        break;
      case OpKind::pool_backward:  // on every rank for the whole sequence; each takes its own part
        if (const TensorId dx = op.writes[0]; layout(dx) == sequence_sharded) {
          op.writes[0] = add_whole(dx, piece_.tensors[dx].category);
          piece_.tensors[dx].alias_of = op.writes[0];
        }
        break;
      case OpKind::norm_backward:
        note_replicated(op.writes[1], op.reads[0]);
        note_replicated(op.writes[2], op.reads[0]);
        break;
      case OpKind::bias_gradient:
        if (layout(op.writes[0]) == divided) op.reads[0] = own_logits(op.reads[0], op);
        note_replicated(op.writes[0], op.reads[0]);
        break;
      case OpKind::add:
        if (op.reads[1] != kNoTensor && add_partials(op)) return;
        break;
      case OpKind::cross_entropy:
        if (layout(op.reads[0]) == divided) return merge_cross_entropy(op);
        break;
      default:
        break;
    }
    out_.push_back(op);
  }

  void rewrite_product(Op op, const Op* next) {
    const bool divided_weight = layout(op.reads[1]) == divided;
    if (divided_weight && op.kind == OpKind::linear_input_gradient) op.reads[0] = own_logits(op.reads[0], op);
    // The weight gradient's gather is issued before the input gradient, which overlaps it, as in Megatron-LM.
    if (divided_weight && next != nullptr && next->kind == OpKind::linear_weight_gradient) whole(next->reads[0], op);
    const TensorId result = op.writes[0];
    const bool gathers = divided_weight && is_logits(piece_.tensors[result]) && layout(result) != divided;
    if (options_.overlap && divided_weight && !op.plain && !gathers && overlap(op)) return;
    if (divided_weight) op.reads[0] = whole(op.reads[0], op);
    if (gathers) return gather_logits(op);
    if (contracts_divided(op)) return emit_partial(op);
    out_.push_back(op);
  }

  // The gradient of a key that all heads share is a sum over the ranks' heads.
  void sum_shared_key_gradient(Op op) {
    const TensorId key = op.writes[1];
    op.writes[1] = add_whole(key, piece_.tensors[key].category);
    out_.push_back(op);
    reduce(op.writes[1], key, {kNoTensor, kNoTensor}, op);
  }

  // Returns false unless two partial sums are added (deferred_to_sum()).
  bool add_partials(Op op) {
    Partial a, b;
    if (!take_partial(op.reads[0], a) || !take_partial(op.reads[1], b)) return false;
    const TensorId result = op.writes[0];
    const Tensor partial = piece_.tensors[a.tensor];
    op.reads[0] = a.tensor;
    op.reads[1] = b.tensor;
    op.writes[0] = add_tensor(partial, replicated);
    out_.push_back(op);
    reduce(op.writes[0], result, {a.bias, b.bias}, op);
    return true;
  }

  // For logits divided along the vocabulary: one reduction each of maximum, sum of exponentials, target's logit.
  void merge_cross_entropy(const Op& op) {
    out_.push_back(op);
    const TensorId local = op.writes[0];
    const TensorId global = add_tensor(Tensor(piece_.tensors[local]), replicated);
    Op reduction = collective(OpKind::all_reduce, local, global, op);
    reduction.name = "cross_entropy.all_reduce";
    reduction.reduction = Reduction::merge;
    reduction.count = 3;
    out_.push_back(reduction);
    replaced_.push_back({local, global});
  }

  // PyTorch makes the gradient of log-probabilities a separate tensor (zeros that the loss's gradient is added to).
  // With a divided vocabulary the exponentials are another one: torch/distributed/tensor/parallel/loss.py,
  // _nll_loss_and_log_softmax_backward: (grad_input + torch.exp(x)) * grad_output.
  void keep_exponentials() {
    auto& ops = piece_.backward.ops;
    const auto loss = std::ranges::find(ops, OpKind::cross_entropy_backward, &Op::kind);
    if (loss == ops.end() || layout(loss->reads[0]) != divided) return;
    const auto zeros = std::find_if(ops.begin(), loss, [](const Op& op) { return op.kind == OpKind::zero_fill; });
    const auto sum = std::find_if(loss, ops.end(), [&](const Op& op) {
      return op.kind == OpKind::add && zeros != loss && op.reads[1] == zeros->writes[0];
    });
    if (zeros == loss || sum == ops.end()) return;
    Op fill = *zeros, product = *sum;
    fill.writes[0] = product.reads[1] = add_tensor(Tensor(piece_.tensors[zeros->writes[0]]), divided);
    product.reads[0] = sum->writes[0] = add_tensor(Tensor(piece_.tensors[sum->writes[0]]), divided);
    const auto at = zeros - ops.begin();
    ops.insert(sum + 1, product);
    ops.insert(ops.begin() + at, fill);
  }

  // The gradient of a replicated parameter is a partial sum if its source is sharded.
  void note_replicated(TensorId gradient, TensorId source) {
    if (gradient == kNoTensor || layout(gradient) != replicated || layout(source) == replicated) return;
    replicated_elements_ += piece_.tensors[gradient].elements();
    replicated_.push_back(gradient);
  }

  struct Partial {
    TensorId result = kNoTensor, tensor = kNoTensor, bias = kNoTensor;
  };
  bool take_partial(TensorId result, Partial& out) const {
    for (const Partial& p : partial_of_)
      if (p.result == result) {
        out = p;
        return true;
      }
    return false;
  }

  struct Replacement {
    TensorId from, to;
  };

  const Options& options_;
  const bool keeps_gathered_;
  const MeshGroup all_, sharing_;
  const std::int64_t degree_, ranks_per_group_, group_heads_;
  Piece& piece_;
  std::vector<Op> out_;
  const Block* block_ = nullptr;
  std::vector<std::uint8_t> layout_;
  std::vector<TensorId> gathered_;
  std::map<TensorId, TensorId> own_logits_;  // by whole logits
  std::vector<Partial> partial_of_;
  std::vector<Replacement> replaced_;
  std::vector<TensorId> replicated_, shared_;  // gradients; parameters
  std::int64_t replicated_elements_ = 0, shared_elements_ = 0;
};

void check(const Scenario& scenario) {
  const Options& options = scenario.plan.tensor;
  const Model& model = scenario.model;
  const std::int64_t t = options.degree;
  const auto fail = [&](const std::string& expected) { refuse(scenario.plan, "tensor_parallel", expected); };
  if (t == 1) return;  // sequence_parallel has no effect then
  const auto check_heads = [&](std::int64_t heads) {
    if (heads % t != 0) fail("a divisor of the model's " + std::to_string(heads) + " attention heads");
  };
  check_heads(model.heads);
  for (std::int64_t heads : model.stage_heads) check_heads(heads);
  const std::int64_t groups = model.effective_kv_heads();
  if (groups % t != 0 && t % groups != 0)
    fail("a divisor or a multiple of the model's " + std::to_string(groups) + " key/value heads");
  if (!options.vocab_parallel_embedding && (model.tied_embeddings || model.mtp_num_layers > 0))
    refuse(scenario.plan, "vocab_parallel_embedding",
           "true where the embedding shares its table with the head, which is divided");
  if (model.ffn % t != 0) fail("a divisor of the MLP's width of " + std::to_string(model.ffn));
  if (model.shared_expert_ffn % t != 0)
    fail("a divisor of the shared experts' width of " + std::to_string(model.shared_expert_ffn));
  const std::int64_t length = sequence_length(model, scenario.workload),
                     decoder_length = decoder_sequence_length(model, scenario.workload);
  // The sequence is divided by both degrees: the only rule here that involves two strategies.
  const std::int64_t parts = t * scenario.plan.context.degree;
  if (options.sequence_parallel) {
    if (model.vision())
      refuse(scenario.plan, "sequence_parallel", "false for a vision model, whose patches do not divide evenly");
    for (const std::int64_t tokens : {length, decoder_length})
      if (tokens % parts != 0)
        throw InputError(
            {"", "/plan/sequence_parallel"}, "sequences of " + std::to_string(tokens) + " tokens",
            "a sequence length that tensor_parallel x context_parallel = " + std::to_string(parts) + " divides");
  }
  for_each_plan(scenario, [&](const Plan& plan, const std::string& at) {
    if (!plan.tensor.overlap) return;
    if (!options.sequence_parallel)
      refuse(plan, "tensor_parallel_overlap", "false without sequence_parallel, whose gathers and scatters it overlaps",
             at);
    for (const std::int64_t tokens : {length, decoder_length})
      if (tokens % (parts * kOverlapChunks) != 0)
        throw InputError({"", at + "tensor_parallel_overlap"}, "sequences of " + std::to_string(tokens) + " tokens",
                         "a sequence length that " + std::to_string(parts * kOverlapChunks) + " divides");
  });
}

// One digit, or where there are fewer key/value heads than ranks two: the ranks that share a head ("tp.shared"), which
// are neighbours, and the heads ("tp.groups").
void add_digits(const Scenario& scenario, Mesh& mesh) {
  const std::int64_t degree = scenario.plan.tensor.degree, groups = scenario.model.effective_kv_heads();
  if (degree <= groups) {
    mesh.add(MeshAxis::tp, degree);
  } else {
    mesh.add(MeshAxis::tp, degree / groups, kSharing);
    mesh.add(MeshAxis::tp, groups, "tp.groups");
  }
}

void rewrite_piece(const Scenario& scenario, const Plan& plan, const Program& program, Piece& piece) {
  if (plan.tensor.degree == 1) return;
  Partition(plan.tensor, framework::stack_of(scenario.plan).keeps_gathered_inputs, program.mesh,
            scenario.model.heads / scenario.model.effective_kv_heads(), piece)
      .run();
}

std::int64_t ranks(const Plan& plan) { return plan.tensor.degree; }

constexpr PlanWord kWords[]{{"tensor", [](const Scenario& s) { return s.plan.tensor.degree > 1; }},
                            {"sequence", [](const Scenario& s) { return s.plan.tensor.sequence_parallel; }}};

void check_runnable(const Scenario& scenario) {
  const Model& model = scenario.model;
  const Workload& workload = scenario.workload;
  const Options& plan = scenario.plan.tensor;
  if (model.kind == ModelKind::encoder_decoder && plan.overlap && workload.decoder_sequence_length > 0 &&
      workload.decoder_sequence_length != workload.sequence_length)
    throw InputError({"", "/plan/tensor_parallel_overlap"}, "true with sequences of two lengths",
                     "false, or equal lengths: chunks of the longer sequence are not supported yet");
}

constexpr SearchAxis kAxes[]{
    {.field = "tensor_parallel",
     .label = "tp",
     .chosen_with = ChosenWith::mesh,
     .usual = true,
     .set = [](Plan& plan, std::int64_t value) { plan.tensor.degree = value; },
     // Within a node: every layer waits for its collectives.
     .values = [](const Scenario& chosen) -> AxisValues {
       AxisValues values = divisors_of(chosen.cluster.devices());
       std::erase_if(values, [&](std::int64_t t) {
         return t > chosen.cluster.node.devices || chosen.model.heads % t != 0 || chosen.model.ffn % t != 0;
       });
       return values;
     }},
    {.field = "sequence_parallel",
     .label = "sp",
     .chosen_with = ChosenWith::kernels,
     .usual = true,
     .set = [](Plan& plan, std::int64_t value) { plan.tensor.sequence_parallel = value != 0; },
     .values = [](const Scenario& s) { return flags(s.plan.tensor.degree > 1 && !s.model.vision()); },
     .acts = [](const Scenario& chosen) { return chosen.plan.tensor.degree > 1; }},
    {.field = "tensor_parallel_overlap",
     .label = "overlap",
     .chosen_with = ChosenWith::kernels,
     .set = [](Plan& plan, std::int64_t value) { plan.tensor.overlap = value != 0; },
     .values = [](const Scenario& s) { return flags(s.plan.tensor.degree > 1 && s.plan.tensor.sequence_parallel); },
     .acts =
         [](const Scenario& chosen) { return chosen.plan.tensor.degree > 1 && chosen.plan.tensor.sequence_parallel; }}};

}  // namespace

Strategy describe() {
  return {.name = "tensor_parallel",
          .summary = "matrices divided over ranks, with sequence parallelism",
          .paper = "Shoeybi et al. 2019, arXiv 1909.08053; Korthikanti et al. 2022, arXiv 2205.05198",
          .check = check,
          .rewrite_piece = rewrite_piece,
          .add_digits = add_digits,
          .disable = reset<&Plan::tensor>,
          .ranks = ranks,
          .words = kWords,
          .check_runnable = check_runnable,
          .search_axes = kAxes};
}

}  // namespace orrery::tensor_parallel
