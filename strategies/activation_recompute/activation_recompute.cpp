// Activation recomputation: the backward repeats forward ops instead of keeping their results.
//   full       each layer, from its input (Chen et al. 2016, arXiv 1604.06174). Megatron-LM's uniform method keeps
//              every n-th input only; its block method recomputes only the first n layers of each chunk
//   all_but_attention  each layer, but the results of attention are kept (Gu et al. 2024, arXiv 2406.18485, section 5)
//   selective  only the attention core, whose activations are large and cheap to compute (Korthikanti et al. 2022,
//              section 5). FlashAttention does this inside its kernel: then there is nothing left to recompute.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "sim/program/rewrite.h"
#include "strategies/layer_plans.h"
#include "strategies/pipeline_parallel/schedules.h"
#include "strategies/strategy.h"

namespace orrery::activation_recompute {
namespace {

// Whether the result of a forward op that runs once for all micro-batches (fp8 weights) still exists in the backward.
bool stays(const Piece& piece, const Op& op) {
  const TensorId id = op.writes[0];
  return id != kNoTensor && piece.tensors[id].resident;
}

// Clones of the tensors that repeated ops write, and of their views.
class Clones {
 public:
  explicit Clones(Piece& piece) : piece_(piece), copy_(piece.tensors.size(), kNoTensor) {}

  void add(const std::vector<Op>& repeated) {
    for (const Op& op : repeated)
      for (const TensorId id : op.writes) {
        if (id == kNoTensor) continue;
        // A tensor written in parts (overlapped products) is cloned whole; its parts become views of the one clone.
        const TensorId root = storage_of(piece_, id);
        if (copy_[root] == kNoTensor) copy_[root] = clone_tensor(piece_, root);
      }
    // Views of cloned tensors become views of the clones.
    for (std::size_t id = 0; id < copy_.size(); ++id) {
      const TensorId base = piece_.tensors[id].alias_of;
      if (base == kNoTensor || base >= copy_.size() || copy_[base] == kNoTensor || copy_[id] != kNoTensor) continue;
      Tensor view = piece_.tensors[id];
      view.alias_of = copy_[base];
      copy_[id] = piece_.add(view);
    }
  }
  // Tensors without a clone are read as they are.
  TensorId of(TensorId id) const {
    return id == kNoTensor || id >= copy_.size() || copy_[id] == kNoTensor ? id : copy_[id];
  }
  void read_by(Op& op) const {
    for (TensorId& id : op.reads) id = of(id);
  }
  Op repeated(Op op) const {
    read_by(op);
    for (TensorId& id : op.writes) id = of(id);
    op.phase = Phase::recompute;
    return op;
  }

 private:
  Piece& piece_;
  std::vector<TensorId> copy_;
};

// Drops casts of a repeated forward that only weight gradients read (columns in nvfp4): these read the repeated casts.
void drop_unread_casts(Piece& piece) {
  Storages read(piece);
  for (const Block* block : {&piece.forward, &piece.backward, &piece.weight_gradient})
    for (const Op& op : block->ops) read.add_all(op.reads);
  const auto is_handed_on = [&](const Op& op) {
    return op.writes[0] == piece.output ||
           std::ranges::any_of(piece.sides, [&](const SideStream& side) { return side.output == op.writes[0]; });
  };
  std::erase_if(piece.forward.ops, [&](const Op& op) {
    return op.kind == OpKind::cast && !stays(piece, op) && !is_handed_on(op) && !read.has(op.writes[0]);
  });
}

// Prepends to the backward a copy of the forward ops that `wanted` picks, on new tensors. The backward ops that it
// picks read the new tensors. What only the copied ops produced for the backward is then no longer kept; what the
// forward hands on is kept (as torch.utils.checkpoint does).
template <class Wanted>
void recompute(Piece& piece, Wanted wanted) {
  Clones clones(piece);
  std::vector<Op> again;
  for (const Op& op : piece.forward.ops)
    if (!stays(piece, op) && wanted(op)) again.push_back(op);
  clones.add(again);
  for (Op& op : piece.backward.ops)
    if (wanted(op)) clones.read_by(op);
  for (Op& op : again) op = clones.repeated(op);
  piece.backward.ops.insert(piece.backward.ops.begin(), again.begin(), again.end());
  drop_unread_casts(piece);
}

// ---- by ops ---------------------------------------------------------------------------------------------------------

// A range of a product's result along the dimension that holds several matrices side by side.
struct Part {
  std::int64_t begin = 0, count = 1;
  bool kept = false;
};

// Returns the dimension of a fused projection that counts its matrices, and the matrices as `parts`: each group's query
// heads, key and value; or a gate and what it gates. -1: there is one matrix, or ranks divide the fused dimension.
int find_parts(const Tensor& result, std::vector<Part>& parts) {
  parts.assign(1, {});
  for (int d = 0; d < result.rank; ++d) {
    if (!result.over[d].group().empty() || result.kept != 0) continue;
    if (result.axes[d] == Axis::group_qkv && result.sizes[d] > 2) {
      const std::int64_t heads = result.sizes[d] - 2;
      parts = {{0, heads}, {heads, 1}, {heads + 1, 1}};
      return d;
    }
    if (result.axes[d] == Axis::none && result.sizes[d] == 2 && d + 1 < result.rank &&
        result.axes[d + 1] == Axis::ffn) {
      parts = {{0, 1}, {1, 1}};
      return d;
    }
  }
  return -1;
}

// Chooses which results of a layer are kept: those of attention (of all steps of a ring together) and, as in
// torchtitan's selective checkpointing per op, those of reduce-scatters and of every second product, beginning with the
// first. Separate matrices are separate products. Repeats what the backward needs of the rest.
class ByOps {
 public:
  ByOps(Piece& piece, Mode mode)
      : piece_(piece), of_attention_alone_(mode == Mode::all_but_attention), fates_(piece.forward.ops.size()) {}

  void run() {
    decide();
    find_needed();
    keep_parts();
    repeat();
    drop_unread_casts(piece_);
  }

 private:
  enum class What : std::uint8_t { repeated, kept, kept_in_parts, unneeded };
  struct Fate {
    What what = What::repeated;
    int dim = -1;  // for kept_in_parts: dimension of the result
    std::vector<Part> parts;
    std::vector<TensorId> kept;  // parts that are kept
  };

  void decide() {
    std::int64_t products = 0;
    std::vector<std::pair<TensorId, What>> counted;  // results of overlapped products, which write a part each
    for (std::size_t i = 0; i < fates_.size(); ++i) {
      const Op& op = piece_.forward.ops[i];
      Fate& fate = fates_[i];
      if (stays(piece_, op)) {
        fate.what = What::unneeded;
      } else if (op.kind == OpKind::attention || op.kind == OpKind::merge_attention ||
                 (op.kind == OpKind::reduce_scatter && !of_attention_alone_)) {
        fate.what = What::kept;
      } else if (op.kind == OpKind::linear && !of_attention_alone_) {
        const TensorId root = storage_of(piece_, op.writes[0]);
        const auto known = std::ranges::find(counted, root, &std::pair<TensorId, What>::first);
        if (known != counted.end()) {
          fate.what = known->second;
          continue;
        }
        fate.dim = find_parts(piece_.tensors[root], fate.parts);
        bool any = false, all = true;
        for (Part& part : fate.parts) {
          part.kept = ++products % 2 == 1;
          any = any || part.kept;
          all = all && part.kept;
        }
        const bool whole = op.writes[0] == root;
        if (any) fate.what = all || !whole ? What::kept : What::kept_in_parts;
        counted.emplace_back(root, fate.what);
      }
    }
  }

  void find_needed() {
    Storages needed(piece_);
    for (const Block* block : {&piece_.backward, &piece_.weight_gradient})
      for (const Op& op : block->ops) needed.add_all(op.reads);
    for (std::size_t i = fates_.size(); i-- > 0;) {
      const Op& op = piece_.forward.ops[i];
      if (fates_[i].what == What::kept) continue;
      if (!needed.has_any(op.writes)) fates_[i].what = What::unneeded;
      if (fates_[i].what != What::unneeded) needed.add_all(op.reads);
    }
  }

  // Returns a view of a part of a tensor that is laid out like a fused projection's result, matrix or bias. The
  // dimension is counted from the last one.
  TensorId view_of(TensorId id, int from_behind, const Part& part) {
    Tensor view = piece_.tensors[id];
    const int dim = view.rank - from_behind;
    view.alias_of = id;
    view.alias_begin = part.begin;
    view.resident = false;
    view.input = Input::none;
    view.sizes[dim] = part.count;
    if (view.axes[dim] == Axis::none) {  // one of two matrices: it has no such dimension
      for (int d = dim; d + 1 < view.rank; ++d) {
        view.sizes[d] = view.sizes[d + 1];
        view.axes[d] = view.axes[d + 1];
        view.over[d] = view.over[d + 1];
        view.set_deal(d, view.deal(d + 1));
      }
      view.over[view.rank - 1] = {};
      view.set_deal(view.rank - 1, {});
      view.axes[view.rank - 1] = Axis::none;
      view.truncate(view.rank - 1);
    }
    return piece_.add(view);
  }

  static Op cast(const Op& of, TensorId from, TensorId to) {
    return computation(OpKind::cast, of.name, of.phase, {from}, {to});
  }

  // Stores the kept parts of a fused result in a tensor of their own.
  void keep_parts() {
    std::vector<Op> ops;
    ops.reserve(piece_.forward.ops.size());
    for (std::size_t i = 0; i < fates_.size(); ++i) {
      const Op op = piece_.forward.ops[i];
      ops.push_back(op);
      Fate& fate = fates_[i];
      if (fate.what != What::kept_in_parts) continue;
      const int behind = piece_.tensors[op.writes[0]].rank - fate.dim;
      for (const Part& part : fate.parts) {
        if (!part.kept) continue;
        const TensorId view = view_of(op.writes[0], behind, part);
        fate.kept.push_back(clone_tensor(piece_, view));
        ops.push_back(cast(op, view, fate.kept.back()));
      }
    }
    forward_ = std::move(piece_.forward.ops);
    piece_.forward.ops = std::move(ops);
  }

  void repeat() {
    const auto is_again = [&](std::size_t i) {
      return fates_[i].what == What::repeated || fates_[i].what == What::kept_in_parts;
    };
    std::vector<Op> repeated, again;
    for (std::size_t i = 0; i < fates_.size(); ++i)
      if (is_again(i)) repeated.push_back(forward_[i]);
    Clones clones(piece_);
    clones.add(repeated);
    for (Block* block : {&piece_.backward, &piece_.weight_gradient})
      for (Op& op : block->ops) clones.read_by(op);
    auto next = repeated.begin();
    for (std::size_t i = 0; i < fates_.size(); ++i) {
      if (!is_again(i)) continue;
      const Op op = clones.repeated(*next++);
      if (fates_[i].what == What::repeated) {
        again.push_back(op);
      } else {
        repeat_parts(op, fates_[i], again);
      }
    }
    piece_.backward.ops.insert(piece_.backward.ops.begin(), again.begin(), again.end());
  }

  void repeat_parts(const Op& whole, const Fate& fate, std::vector<Op>& again) {
    const int behind = piece_.tensors[whole.writes[0]].rank - fate.dim;
    std::size_t kept = 0;
    for (const Part& part : fate.parts) {
      const TensorId result = view_of(whole.writes[0], behind, part);
      if (part.kept) {
        again.push_back(cast(whole, fate.kept[kept++], result));
        continue;
      }
      Op op = whole;
      op.reads[1] = view_of(op.reads[1], behind, part);
      if (op.reads[2] != kNoTensor) op.reads[2] = view_of(op.reads[2], behind, part);
      op.writes[0] = result;
      again.push_back(op);
    }
  }

  Piece& piece_;
  const bool of_attention_alone_;
  std::vector<Fate> fates_;  // by forward op
  std::vector<Op> forward_;  // the forward before the rewrite
};

// ---- by modules -----------------------------------------------------------------------------------------------------

// Finds the ops of Megatron-Core's modules by what they do. Norms are those of the residual stream. An MLP is the
// activation function and what surrounds it, up to casts and collectives that serve something else too.
class ByModules {
 public:
  ByModules(Piece& piece, const Options& options)
      : piece_(piece), ops_(piece.forward.ops), options_(options), chosen_(ops_.size()), of_norm_(ops_.size()) {}

  void run() {
    if (options_.repeats(Module::core_attention))
      for (std::size_t i = 0; i < ops_.size(); ++i) chosen_[i] = ops_[i].core_attention;
    if (options_.repeats(Module::mlp) && !has_experts()) choose_mlp();
    if (options_.repeats(Module::norms)) choose_norms();
    if (options_.repeats(Module::latent_projections)) choose_latent_projections();
    if (has_experts()) {
      if (options_.repeats(Module::experts)) choose_experts();
      if (options_.repeats(Module::expert_activations)) choose_expert_activations();
      if (options_.repeats(Module::shared_experts)) choose_shared_experts();
    }
    repeat();
    drop_unread_casts(piece_);
  }

 private:
  TensorId root(TensorId id) const { return storage_of(piece_, id); }
  bool writes(const Op& op, TensorId storage) const {
    return std::ranges::any_of(op.writes, [&](TensorId id) { return id != kNoTensor && root(id) == storage; });
  }
  bool reads(const Op& op, TensorId storage) const {
    return std::ranges::any_of(op.reads, [&](TensorId id) { return id != kNoTensor && root(id) == storage; });
  }
  // Calls visit(i) for each op that reads what op i writes, or writes what it reads.
  template <class Visit>
  void for_each_reader(std::size_t i, Visit visit) const {
    for (std::size_t j = i + 1; j < ops_.size(); ++j)
      for (const TensorId id : ops_[i].writes)
        if (id != kNoTensor && reads(ops_[j], root(id))) visit(j);
  }
  template <class Visit>
  void for_each_writer(std::size_t i, Visit visit) const {
    for (std::size_t j = 0; j < i; ++j)
      for (const TensorId id : ops_[i].reads)
        if (id != kNoTensor && writes(ops_[j], root(id))) visit(j);
  }

  // Returns the input of an activation function before the casts to the same dtype that stand for clamps: these belong
  // to the function.
  TensorId input_before_clamps(std::size_t activation) const {
    TensorId input = ops_[activation].reads[0];
    for (std::size_t j = activation; j-- > 0;) {
      const Op& op = ops_[j];
      if (op.kind == OpKind::cast && writes(op, root(input)) &&
          piece_.tensors[op.reads[0]].dtype == piece_.tensors[op.writes[0]].dtype)
        input = op.reads[0];
    }
    return input;
  }
  // Calls visit(j) for each cast of the tensor, or of what such a cast has written: clamps, and narrow copies that the
  // backward reads.
  template <class Visit>
  void for_each_cast_of(TensorId tensor, const Visit& visit) const {
    for (std::size_t j = 0; j < ops_.size(); ++j) {
      if (ops_[j].kind != OpKind::cast || !reads(ops_[j], root(tensor))) continue;
      visit(j);
      for_each_cast_of(ops_[j].writes[0], visit);
    }
  }
  static bool passes_on(const Op& op) { return op.kind == OpKind::cast || is_communication(op.kind); }

  void choose(const std::vector<std::uint8_t>& ops) {
    for (std::size_t i = 0; i < ops_.size(); ++i) chosen_[i] |= ops[i];
  }

  void choose_mlp() {
    std::vector<std::uint8_t> mlp(ops_.size());
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      if (ops_[i].kind != OpKind::activation) continue;
      mlp[i] = 1;
      const TensorId product = input_before_clamps(i);
      for (std::size_t j = 0; j < i; ++j) mlp[j] |= ops_[j].kind == OpKind::linear && writes(ops_[j], root(product));
      for_each_cast_of(product, [&](std::size_t j) { mlp[j] = 1; });
    }
    // What follows from the activation, up to the products and their sums over ranks.
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      if (mlp[i] == 0) continue;
      const bool product = ops_[i].kind == OpKind::linear;
      for_each_reader(i, [&](std::size_t j) {
        const OpKind kind = ops_[j].kind;
        const bool goes_on = kind == OpKind::multiply || kind == OpKind::linear || passes_on(ops_[j]);
        mlp[j] |= product ? is_communication(kind) : goes_on;
      });
    }
    // What only the first products read.
    for (std::size_t i = ops_.size(); i-- > 0;) {
      if (mlp[i] != 0 || !passes_on(ops_[i]) || stays(piece_, ops_[i])) continue;
      bool any = false, all = true;
      for_each_reader(i, [&](std::size_t j) {
        any = true;
        all = all && mlp[j] != 0;
      });
      // For a result that no forward op reads, looks at its operand's other readers: columns of what is quantised by
      // rows.
      if (!any)
        for (std::size_t j = i + 1; j < ops_.size(); ++j)
          any |= mlp[j] != 0 && ops_[j].kind == OpKind::cast && ops_[j].reads[0] == ops_[i].reads[0];
      mlp[i] = any && all;
    }
    choose(mlp);
  }

  bool is_like_the_stream(TensorId id) const {
    const Tensor &t = piece_.tensors[id], &stream = piece_.tensors[piece_.input];
    return t.rank == stream.rank && t.sizes == stream.sizes;
  }

  // Includes the casts around a norm that is computed in fp32.
  void choose_norms() {
    const Dtype stored = piece_.tensors[piece_.input].dtype;
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      if (ops_[i].kind != OpKind::norm || !is_like_the_stream(ops_[i].reads[0])) continue;
      of_norm_[i] = 1;
      const auto around = [&](std::size_t j) {
        const Op& op = ops_[j];
        const Dtype from = piece_.tensors[op.reads[0]].dtype, to = piece_.tensors[op.writes[0]].dtype;
        of_norm_[j] |= op.kind == OpKind::cast && is_like_the_stream(op.reads[0]) && from != to &&
                       (from == stored || to == stored) && (from == Dtype::fp32 || to == Dtype::fp32);
      };
      for_each_writer(i, [&](std::size_t j) {
        if (ops_[j].kind == OpKind::cast) around(j);
      });
      for_each_reader(i, [&](std::size_t j) {
        if (ops_[j].kind == OpKind::cast) around(j);
      });
    }
    choose(of_norm_);
  }

  // ---- experts, latent attention ----

  bool has_experts() const { return permuting() < ops_.size(); }
  bool is_of_slots(TensorId id) const { return id != kNoTensor && piece_.tensors[id].find(Axis::slots) >= 0; }
  std::size_t first_of(std::initializer_list<OpKind> kinds) const {
    const auto is_one = [&](const Op& op) { return std::ranges::find(kinds, op.kind) != kinds.end(); };
    return static_cast<std::size_t>(std::ranges::find_if(ops_, is_one) - ops_.begin());
  }
  std::size_t permuting() const { return first_of({OpKind::permute, OpKind::mask_permute}); }

  // Marks all ops that lead from what `from` reads first to any op of `to`.
  std::vector<std::uint8_t> between(const std::vector<std::uint8_t>& from, const std::vector<std::uint8_t>& to) const {
    std::vector<std::uint8_t> reached = from, wanted = to;
    for (std::size_t i = 0; i < ops_.size(); ++i)
      if (reached[i] != 0) for_each_reader(i, [&](std::size_t j) { reached[j] = 1; });
    for (std::size_t i = ops_.size(); i-- > 0;)
      if (wanted[i] != 0) for_each_writer(i, [&](std::size_t j) { wanted[j] = 1; });
    for (std::size_t i = 0; i < ops_.size(); ++i) reached[i] &= wanted[i];
    return reached;
  }

  // The output of the norm before the experts, not yet quantised and gathered for them: the router's tokens.
  TensorId tokens_of_experts() const {
    TensorId tokens = ops_[permuting()].reads[0];
    for (std::size_t i = permuting(); i-- > 0;) {
      const Op& op = ops_[i];
      const bool gathers = op.kind == OpKind::all_gather && op.account == Stream::expert_communication,
                 quantises = op.kind == OpKind::cast && piece_.tensors[op.writes[0]].dtype == Dtype::fp8_blocks;
      if ((gathers || quantises) && op.writes[0] == tokens) tokens = op.reads[0];
    }
    return tokens;
  }
  // The op whose result is added to the residual stream.
  std::size_t last_of_experts() const {
    std::size_t routed = first_of({OpKind::unpermute, OpKind::mask_unpermute});
    for (std::size_t i = routed + 1; i < ops_.size(); ++i)
      if (ops_[i].kind == OpKind::reduce_scatter && ops_[i].reads[0] == ops_[routed].writes[0]) routed = i;
    std::size_t last = routed;
    for_each_reader(routed, [&](std::size_t j) {
      bool stream = false;  // the other addend is the stream itself
      for_each_writer(j,
                      [&](std::size_t k) { stream |= k < first_of({OpKind::route}) && ops_[k].kind == OpKind::add; });
      if (ops_[j].kind == OpKind::add && ops_[j].reads[1] != kNoTensor && !stream &&
          root(ops_[j].reads[1]) != root(piece_.input))
        last = j;
    });
    return last;
  }

  // The ops that lead from the experts' tokens to these.
  void choose_from_tokens_to(const std::vector<std::uint8_t>& last) {
    std::vector<std::uint8_t> first(ops_.size());
    for (std::size_t i = 0; i < ops_.size(); ++i) first[i] = reads(ops_[i], root(tokens_of_experts())) ? 1 : 0;
    choose(between(first, last));
  }

  void choose_experts() {
    std::vector<std::uint8_t> last(ops_.size());
    last[last_of_experts()] = 1;
    choose_from_tokens_to(last);
  }

  void choose_shared_experts() {
    const std::size_t sum = last_of_experts();
    if (ops_[sum].kind != OpKind::add) return;
    std::vector<std::uint8_t> last(ops_.size());
    for (std::size_t i = 0; i < sum; ++i) last[i] = writes(ops_[i], root(ops_[sum].reads[1])) ? 1 : 0;
    choose_from_tokens_to(last);
  }

  // Includes what is derived from them for the products that follow; nothing of it is kept.
  void choose_discarded(std::size_t i) {
    chosen_[i] = of_norm_[i] = 1;
    for_each_reader(i, [&](std::size_t j) {
      if (ops_[j].kind == OpKind::cast || ops_[j].kind == OpKind::multiply) choose_discarded(j);
    });
  }
  void choose_expert_activations() {
    for (std::size_t i = 0; i < ops_.size(); ++i)
      if (ops_[i].kind == OpKind::activation && is_of_slots(ops_[i].writes[0])) {
        choose_discarded(i);
        for_each_cast_of(input_before_clamps(i), [&](std::size_t j) { choose_discarded(j); });
      }
  }

  // The ops from the latents of latent attention to its queries, keys and values.
  void choose_latent_projections() {
    const bool latent =
        std::ranges::any_of(ops_, [](const Op& op) { return op.kind == OpKind::rotary && op.reads[1] != kNoTensor; });
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      const bool fused = ops_[i].kind == OpKind::attention && ops_[i].reads[1] != kNoTensor,
                 stores_scores = latent && ops_[i].kind == OpKind::batched_matmul && ops_[i].core_attention;
      if (!fused && !stores_scores) continue;
      std::vector<std::size_t> open{i};
      while (!open.empty()) {
        const std::size_t at = open.back();
        open.pop_back();
        for_each_writer(at, [&](std::size_t j) {
          const bool made = ops_[j].kind == OpKind::rotary || ops_[j].kind == OpKind::linear || passes_on(ops_[j]);
          const bool projected = ops_[at].kind == OpKind::linear;  // its operand is the latent
          if (!made || projected || of_norm_[j] != 0) return;
          // A key that all heads share comes from the joint projection, which also computes the latent.
          bool feeds_norm = false;
          for_each_reader(j, [&](std::size_t k) { feeds_norm |= ops_[k].kind == OpKind::norm; });
          if (feeds_norm) return;
          chosen_[j] = of_norm_[j] = 1;
          open.push_back(j);
        });
      }
    }
  }

  // What a module hands on is kept, except by norms: their results are computed again before they are used.
  void repeat() {
    Storages handed_on(piece_), discarded(piece_);
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      if (of_norm_[i] != 0) discarded.add_all(ops_[i].writes);
      if (chosen_[i] == 0) handed_on.add_all(ops_[i].reads);
    }
    handed_on.add(piece_.output);
    const auto originals = piece_.tensors.size();
    Clones clones(piece_);
    std::vector<Op> again;
    for (std::size_t i = 0; i < ops_.size(); ++i)
      if (chosen_[i] != 0 && !stays(piece_, ops_[i])) again.push_back(ops_[i]);
    clones.add(again);
    for (Block* block : {&piece_.backward, &piece_.weight_gradient})
      for (Op& op : block->ops)
        for (TensorId& id : op.reads)
          if (id < originals && (!handed_on.has(id) || discarded.has(id))) id = clones.of(id);
    for (Op& op : again) op = clones.repeated(op);
    piece_.backward.ops.insert(piece_.backward.ops.begin(), again.begin(), again.end());
  }

  Piece& piece_;
  const std::vector<Op>& ops_;  // of the forward
  const Options& options_;
  std::vector<std::uint8_t> chosen_, of_norm_;
};

// Joins `copies` instances of a layer into one piece; each reads what the one before wrote.
void concatenate(Piece& piece, std::int64_t copies) {
  const Piece one = piece;
  piece.layers *= copies;
  piece.variant_of = kNoPiece;  // other parameters
  std::vector<std::vector<TensorId>> names{{}};
  names[0].resize(one.tensors.size());
  for (std::size_t id = 0; id < one.tensors.size(); ++id) names[0][id] = static_cast<TensorId>(id);
  for (std::int64_t c = 1; c < copies; ++c) {
    std::vector<TensorId> map(one.tensors.size(), kNoTensor);
    for (std::size_t id = 0; id < one.tensors.size(); ++id) {
      const auto t = static_cast<TensorId>(id);
      const bool side_input =
          std::any_of(one.sides.begin(), one.sides.end(), [t](const SideStream& side) { return side.input == t; });
      if (t == one.input) {
        map[id] = names.back()[one.output];
      } else if (side_input) {
        map[id] = t;
      } else {
        map[id] = piece.add(one.tensors[id]);
      }
    }
    names.push_back(std::move(map));
  }
  const auto renamed = [](const std::vector<TensorId>& map, TensorId id) { return id == kNoTensor ? id : map[id]; };
  const auto append = [&](Block& block, const Block& from, const std::vector<TensorId>& map) {
    for (Op op : from.ops) {
      for (TensorId& id : op.reads) id = renamed(map, id);
      for (TensorId& id : op.writes) id = renamed(map, id);
      block.ops.push_back(op);
    }
  };
  // Instance c's output gradient is instance c+1's input gradient. Side streams have none if all before c is frozen.
  for (std::size_t c = 0; c + 1 < names.size(); ++c) {
    names[c][one.output_gradient] = names[c + 1][one.input_gradient];
    for (const SideStream& side : one.sides)
      if (side.input != kNoTensor && side.output_gradient != kNoTensor)
        names[c][side.output_gradient] = renamed(names[c + 1], side.input_gradient);
  }
  for (const auto& map : names)
    for (std::size_t id = 0; id < one.tensors.size(); ++id)
      if (const TensorId base = one.tensors[id].alias_of; base != kNoTensor)
        piece.tensors[map[id]].alias_of = map[base];
  for (Block Piece::*block : {&Piece::forward, &Piece::update}) {
    (piece.*block).ops.clear();
    for (const auto& map : names) append(piece.*block, one.*block, map);
  }
  for (Block Piece::*block : {&Piece::backward, &Piece::weight_gradient}) {
    (piece.*block).ops.clear();
    for (std::size_t c = names.size(); c-- > 0;) append(piece.*block, one.*block, names[c]);
  }
  piece.parameters.clear();
  for (const auto& map : names)
    for (const ParameterGradient& p : one.parameters)
      piece.parameters.push_back({map[p.parameter], renamed(map, p.gradient), p.set});
  piece.packed.clear();
  for (const auto& map : names)
    for (PackedGradients packed : one.packed) {
      packed.buffer = map[packed.buffer];
      for (TensorId& id : packed.gradients) id = map[id];
      piece.packed.push_back(std::move(packed));
    }
  piece.output = names.back()[one.output];
  piece.output_gradient = names.back()[one.output_gradient];
  piece.input_gradient = names.front()[one.input_gradient];
  for (SideStream& side : piece.sides) {
    if (side.input == kNoTensor) continue;
    side.output_gradient = renamed(names.back(), side.output_gradient);
    side.input_gradient = renamed(names.front(), side.input_gradient);
  }
}

bool keeps_activations(const Piece& piece) {
  return is_layer(piece) && !is_joint(piece) && !piece.backward.ops.empty();
}

constexpr auto everything = [](const Op&) { return true; };
constexpr auto in_core_attention = [](const Op& op) { return op.core_attention; };

constexpr FieldRule kIdle[]{keep({"recompute_every"}, "unless recompute is \"full\"",
                                 [](const AskedOf& a) { return a.layers.recompute.mode == Mode::full; }),
                            keep({"recompute_modules"}, "unless recompute is \"selective\"",
                                 [](const AskedOf& a) { return a.layers.recompute.mode == Mode::selective; }),
                            keep({"recompute_layers"}, "unless recompute is \"full\"",
                                 [](const AskedOf& a) { return a.plan.recompute.mode == Mode::full; })};
constexpr FieldRule kExcludes[]{keep({"recompute_every"}, "with recompute_layers: the two are different methods",
                                     [](const AskedOf& a) { return a.plan.recompute.layers >= 0; })};

void check(const Scenario& scenario) {
  const Options& options = scenario.plan.recompute;
  for_each_plan(scenario, [&](const Plan& plan, const std::string& at) {
    if (options.layers >= 0 && plan.recompute.mode != options.mode)
      refuse(plan, "recompute", "no recompute for a range of layers with recompute_layers: both choose layers", at);
  });
  pipeline_parallel::check_layers_of_chunks(scenario, "recompute_layers", options.layers);
}

// recompute_layers: the first layers of each chunk.
void plan_layers(const Scenario& scenario, LayerPlans& plans) {
  const Options& options = scenario.plan.recompute;
  if (options.mode != Mode::full || options.layers < 0) return;
  pipeline_parallel::for_each_chunk(scenario, [&](std::int64_t begin, std::int64_t end) {
    plans.change(std::min(begin + options.layers, end), end, 1, [](Plan& plan) { plan.recompute.mode = Mode::none; });
  });
}

void rewrite_piece(const Scenario&, const Plan& plan, const Program&, Piece& piece) {
  const Options& options = plan.recompute;
  if (options.mode == Mode::none || !keeps_activations(piece)) return;
  if (options.mode == Mode::selective_op || options.mode == Mode::all_but_attention) {
    ByOps(piece, options.mode).run();
  } else if (options.mode == Mode::selective && !options.modules.empty()) {
    ByModules(piece, options).run();
  } else if (options.mode == Mode::selective) {
    recompute(piece, in_core_attention);
  } else if (options.every == 1) {  // each layer from its own input
    recompute(piece, everything);
  }
}

// recompute_every: joins this many instances within each chunk into one piece.
void rewrite(const Scenario& scenario, Program& program) {
  const auto grouped = [](const Plan& plan) { return plan.recompute.mode == Mode::full && plan.recompute.every > 1; };
  if (!any_plan(scenario, grouped)) return;
  const LayerPlans plans = layer_plans(scenario);
  struct Group {
    std::uint16_t of = 0;
    std::int64_t copies = 1;
    std::uint16_t piece = 0;
  };
  std::vector<Group> groups;
  std::vector<PieceRun> runs;
  const auto group = [&](std::uint16_t of, std::int64_t copies) {
    for (const Group& g : groups)
      if (g.of == of && g.copies == copies) return g.piece;
    Piece piece = program.pieces[of];
    if (copies > 1) concatenate(piece, copies);
    recompute(piece, everything);
    program.pieces.push_back(std::move(piece));
    groups.push_back({of, copies, static_cast<std::uint16_t>(program.pieces.size() - 1)});
    return groups.back().piece;
  };
  program.for_each_class([&](auto&, std::vector<std::vector<Chunk>>& stages) {
    for (auto& stage : stages) {
      for (Chunk& chunk : stage) {
        runs.clear();
        for (const PieceRun& run : chunk.runs) {
          const Piece& piece = program.pieces[run.piece];
          const Options& options = plans.of(piece).recompute;
          if (!keeps_activations(piece) || options.mode != Mode::full || options.every == 1) {
            runs.push_back(run);
            continue;
          }
          const std::int64_t copies = std::min(options.every, run.count);
          runs.push_back({group(run.piece, copies), run.count / copies});
          if (run.count % copies != 0) runs.push_back({group(run.piece, run.count % copies), 1});
        }
        chunk.runs = runs;
      }
    }
  });
}

bool spares_activations(const Plan& plan) { return plan.recompute.mode != Mode::none; }

bool recomputes(const Scenario& scenario, Mode mode) {
  return any_plan(scenario, [&](const Plan& plan) { return plan.recompute.mode == mode; });
}

constexpr PlanWord kWords[]{
    {"recompute-selective", [](const Scenario& s) { return recomputes(s, Mode::selective); }},
    {"recompute-full", [](const Scenario& s) { return recomputes(s, Mode::full); }},
    {"recompute-op", [](const Scenario& s) { return recomputes(s, Mode::selective_op); }},
    {"recompute-all-but-attention", [](const Scenario& s) { return recomputes(s, Mode::all_but_attention); }}};

constexpr SearchAxis kAxes[]{
    {.field = "recompute",
     .label = "recompute",
     .chosen_with = ChosenWith::activations,
     .usual = true,
     .set = [](Plan& plan, std::int64_t value) { plan.recompute.mode = static_cast<Mode>(value); },
     .values = [](const Scenario& chosen) -> AxisValues {
       AxisValues values;
       const Plan& plan = chosen.plan;
       // all_but_attention is left out: no common framework has it.
       for (const Mode mode : {Mode::none, Mode::selective, Mode::full, Mode::selective_op}) {
         // Skip modes that repeat only what the kernel repeats anyway.
         const bool nothing = mode == Mode::selective && plan.framework.flash_attention &&
                              plan.recompute.repeats(Module::core_attention);
         if (!nothing) values.push_back(static_cast<std::int64_t>(mode));
       }
       return values;
     }},
    {.field = "recompute_layers",
     .label = "of layers",
     .chosen_with = ChosenWith::activations,
     .set = [](Plan& plan, std::int64_t value) { plan.recompute.layers = value; },
     .values = [](const Scenario& chosen) -> AxisValues {
       AxisValues values{-1};
       if (chosen.plan.recompute.mode != Mode::full || chosen.plan.recompute.every > 1) return values;
       for (std::int64_t n = 1; n < pipeline_parallel::most_layers_of_chunks(chosen); ++n) values.push_back(n);
       return values;
     },
     .acts =
         [](const Scenario& chosen) {
           return chosen.plan.recompute.mode == Mode::full && chosen.plan.recompute.every <= 1;
         }}};

}  // namespace

Strategy describe() {
  return {.name = "activation_recompute",
          .summary = "activations recomputed in the backward",
          .paper = "Chen et al. 2016, arXiv 1604.06174; Korthikanti et al. 2022",
          .excludes = kExcludes,
          .idle = kIdle,
          .check = check,
          .rewrite = rewrite,
          .rewrite_piece = rewrite_piece,
          .plan_layers = plan_layers,
          .disable = reset<&Plan::recompute>,
          .relax = reset<&Plan::recompute>,
          .spares_activations = spares_activations,
          .words = kWords,
          .search_axes = kAxes};
}

}  // namespace orrery::activation_recompute
