#include "strategies/fpdt/chunks.h"

#include <algorithm>

#include "sim/program/rewrite.h"
#include "strategies/context_parallel/context_parallel.h"
#include "strategies/usp/exchange.h"

namespace orrery::fpdt {
namespace {

template <class Visit>
void for_each_operand(const Op& op, Visit visit) {
  for (const TensorId id : op.reads)
    if (id != kNoTensor) visit(id);
  for (const TensorId id : op.writes)
    if (id != kNoTensor) visit(id);
}

bool is_of_residual_width(const Piece& piece, TensorId id) { return piece.tensors[id].find(Axis::hidden) >= 0; }

// Returns the ops of attention: those that compute its operands from tensors of the residual stream's width, and in the
// backward its derivative and what follows up to such tensors. Empty: the piece has no attention.
Region region_of_attention(const Piece& piece) {
  Region region;
  const std::vector<Op>&forward = piece.forward.ops, &backward = piece.backward.ops;
  const auto attention = std::ranges::find(forward, OpKind::attention, &Op::kind);
  if (attention == forward.end()) return region;
  Storages wanted(piece), made(piece);
  const auto mark = [&](const auto& ids, Storages& marked) {
    for (const TensorId id : ids)
      if (id != kNoTensor && piece.tensors[id].find(Axis::sequence) >= 0 && !is_of_residual_width(piece, id))
        marked.add(id);
  };
  for (auto i = static_cast<std::size_t>(attention - forward.begin()) + 1; i-- > 0;) {
    const Op& op = forward[i];
    if (op.kind != OpKind::attention && !wanted.has_any(op.writes)) continue;
    mark(op.reads, wanted);
    region.forward.push_back(i);
  }
  std::ranges::reverse(region.forward);
  // Casts of what is made here that only the backward reads: second copies for weight gradients.
  Storages inside(piece);
  for (const std::size_t i : region.forward) inside.add_all(forward[i].writes);
  for (std::size_t i = 0, end = region.forward.back(); i < end; ++i)
    if (forward[i].kind == OpKind::cast && inside.has(forward[i].reads[0]) && !inside.has(forward[i].writes[0]))
      region.forward.push_back(i);
  std::ranges::sort(region.forward);
  for (std::size_t i = 0; i < backward.size(); ++i) {
    const Op& op = backward[i];
    if (op.kind != OpKind::attention_backward && !made.has_any(op.reads)) continue;
    mark(op.writes, made);
    region.backward.push_back(i);
  }
  return region;
}

class ChunkedAttention {
 public:
  ChunkedAttention(Piece& piece, const Mesh& mesh, const ChunkedAttentionOptions& options)
      : piece_(piece),
        options_(options),
        chunks_(options.chunks),
        offload_(options.offload && options.chunks > 1),
        ranks_(mesh.size(usp::exchanging_ranks(mesh))),
        region_(region_of_attention(piece)),
        inside_(piece, region_),
        exchange_(mesh, {}, piece, out_) {}

  void run() {
    if (region_.forward.empty()) return;
    find_saved();
    for (std::int64_t m = 0; m < chunks_; ++m) forward(m);
    const std::vector<Op> forward_ops = out_;
    out_.clear();
    if (!region_.backward.empty()) backward();
    replace(piece_.forward, piece_, region_.forward, forward_ops);
    replace(piece_.backward, piece_, region_.backward, out_);
  }

 private:
  // A tensor of a chunk while it waits: on the host, or where it is.
  struct Waiting {
    TensorId device = kNoTensor, host = kNoTensor;
  };
  // What the forward of a chunk leaves.
  struct Left {
    Waiting queries, keys, context, log_sum_exp;
    std::vector<Waiting> saved;  // saved_, in the same order
  };
  // What the backward of a chunk of queries works on.
  struct Queries {
    TensorId queries = kNoTensor, context = kNoTensor, log_sum_exp = kNoTensor, context_gradient = kNoTensor,
             gradient = kNoTensor;
  };
  struct Step {
    std::int64_t keys = 0, queries = 0;
  };

  SequenceChunk chunk(std::int64_t m) { return SequenceChunk(piece_, inside_, chunks_, m, ranks_, chunks_ > 1); }
  const Op& attention() const { return piece_.forward.ops[region_.forward.back()]; }

  // Finds what the backward reads of the forward besides attention's operands: the projection's operand.
  void find_saved() {
    Storages made(piece_);
    made.add(piece_.input);
    for (const Op& op : piece_.forward.ops) made.add_all(op.writes);
    for (const std::size_t i : region_.backward) {
      const Op& op = piece_.backward.ops[i];
      if (op.kind == OpKind::attention_backward) continue;
      for (const TensorId id : op.reads)
        if (made.has(id) && piece_.tensors[id].find(Axis::sequence) >= 0 &&
            std::ranges::find(saved_, id) == saved_.end())
          saved_.push_back(id);
    }
  }

  // ---- between memories ----

  TensorId copy(const char* name, Stream stream, TensorId from, Place to, Phase phase) {
    const TensorId copied = clone_tensor(piece_, from);
    piece_.tensors[copied].place = to;
    out_.push_back(communication(OpKind::copy, name, phase, stream, {}, from, copied));
    return copied;
  }
  Waiting put(TensorId id, Phase phase) {
    if (!offload_) return {.device = id};
    return {.host = copy("fpdt.to_host", Stream::device_to_host, id, Place::host, phase)};
  }
  TensorId fetch(const Waiting& from, Phase phase) {
    if (from.host == kNoTensor) return from.device;
    return copy("fpdt.to_device", Stream::host_to_device, from.host, Place::device, phase);
  }

  // ---- forward ----

  void forward(std::int64_t m) {
    SequenceChunk own = chunk(m);
    const Op whole = attention();
    for (const std::size_t i : region_.forward)
      if (const Op op = piece_.forward.ops[i]; op.kind != OpKind::attention) out_.push_back(own.part(op));
    const bool goes_back = !region_.backward.empty();
    Left left;
    if (goes_back)
      for (const TensorId id : saved_) left.saved.push_back(put(own.part(id), whole.phase));
    const auto [q, kv] = context_parallel::queries_and_keys(piece_, own.part(whole.reads[0]), own.part(whole.reads[1]));
    const TensorId queries = exchange_.with_all_positions(q);
    exchange_.give_positions("ulysses.queries", q, queries, whole);
    const usp::Exchange::Keys keys = exchange_.with_all_positions_of_keys(kv, queries);
    exchange_.give_keys(kv, keys, whole);
    left.keys = goes_back || m + 1 < chunks_ ? put(keys.all, whole.phase) : Waiting{.device = keys.all};
    if (goes_back) left.queries = put(queries, whole.phase);

    const TensorId local = own.part(whole.writes[0]), local_sums = own.part(whole.writes[1]);
    const auto attend = [&](TensorId to, bool own_keys) {
      Op op = whole;
      op.reads[0] = queries;
      op.reads[1] = to;
      op.writes = {exchange_.with_all_positions(local), exchange_.with_all_positions(local_sums), kNoTensor, kNoTensor};
      op.causal = own_keys;
      return op;
    };
    // Its own keys first: then only the next step's keys are on the device beside those of the current step.
    TensorId next = m > 0 ? fetch(left_[0].keys, whole.phase) : kNoTensor;
    Op merged = attend(keys.all, true);
    out_.push_back(merged);
    for (std::int64_t i = 0; i < m; ++i) {
      const TensorId at = next;
      if (i + 1 < m) next = fetch(left_[static_cast<std::size_t>(i + 1)].keys, whole.phase);
      const Op step = attend(at, false);
      out_.push_back(step);
      merged = computation(OpKind::merge_attention, "fpdt.merge", whole.phase,
                           {merged.writes[0], merged.writes[1], step.writes[0], step.writes[1]},
                           {clone_tensor(piece_, merged.writes[0]), clone_tensor(piece_, merged.writes[1])});
      out_.push_back(merged);
    }
    exchange_.take_positions("ulysses.context", merged.writes[0], local, whole);
    if (goes_back) {
      left.context = put(merged.writes[0], whole.phase);
      left.log_sum_exp = put(merged.writes[1], whole.phase);
    }
    left_.push_back(left);
  }

  // ---- backward ----

  void backward() {
    whole_ = *std::ranges::find(piece_.backward.ops, OpKind::attention_backward, &Op::kind);
    const auto n = static_cast<std::size_t>(chunks_);
    for (std::int64_t m = 0; m < chunks_; ++m) own_.push_back(chunk(m));
    context_gradients_.resize(n);
    gradients_.resize(n);
    std::vector<Step> steps;
    for (std::int64_t i = 0; i < chunks_; ++i)
      for (std::int64_t j = i; j < chunks_; ++j) steps.push_back({i, j});
    Queries now = fetch_queries(steps.front());
    TensorId keys = fetch(left_[0].keys, whole_.phase), next_keys = kNoTensor, key_gradient = kNoTensor;
    for (std::size_t s = 0; s < steps.size(); ++s) {
      const auto [i, j] = steps[s];
      const bool last_of_keys = j + 1 == chunks_, stays = s + 1 < steps.size() && steps[s + 1].queries == j;
      Queries next;
      if (s + 1 < steps.size() && !stays) next = fetch_queries(steps[s + 1]);
      if (last_of_keys) {
        if (i + 1 < chunks_) next_keys = fetch(left_[static_cast<std::size_t>(i + 1)].keys, whole_.phase);
        for (std::size_t k = 0; k < saved_.size(); ++k)
          own_[static_cast<std::size_t>(i)].set(saved_[k],
                                                fetch(left_[static_cast<std::size_t>(i)].saved[k], whole_.phase));
      }
      step(now, keys, i == j, key_gradient);
      if (last_of_keys) {
        give_back(i, i == j ? now.gradient : finished_, key_gradient);
        key_gradient = kNoTensor;
        keys = next_keys;
      }
      if (i == j && !last_of_keys) finished_ = now.gradient;
      if (stays) continue;
      // Until the next chunk of keys.
      if (j > i && s + 1 < steps.size()) {
        const auto at = static_cast<std::size_t>(j);
        gradients_[at] = put(now.gradient, whole_.phase);
        if (i == 0) context_gradients_[at] = put(now.context_gradient, whole_.phase);
      }
      now = next;
    }
  }

  // Fetches the queries of a step; in the first round the gradient of their context comes from all ranks.
  Queries fetch_queries(const Step& at) {
    const auto j = static_cast<std::size_t>(at.queries);
    const Phase phase = whole_.phase;
    Queries q{.queries = fetch(left_[j].queries, phase),
              .context = fetch(left_[j].context, phase),
              .log_sum_exp = fetch(left_[j].log_sum_exp, phase)};
    if (at.keys == 0) {
      const TensorId local = own_[j].part(whole_.reads[0]);
      q.context_gradient = exchange_.with_all_positions(local);
      exchange_.give_positions("ulysses.context_gradient", local, q.context_gradient, whole_);
    } else {
      q.context_gradient = fetch(context_gradients_[j], phase);
      q.gradient = fetch(gradients_[j], phase);
    }
    return q;
  }

  void step(Queries& q, TensorId keys, bool own_keys, TensorId& key_gradient) {
    const TensorId part = clone_tensor(piece_, q.queries), key_part = clone_tensor(piece_, keys);
    // Attention may read narrow queries and keys; their gradients have the activations' dtype.
    for (const TensorId id : {part, key_part}) piece_.tensors[id].dtype = piece_.tensors[whole_.writes[0]].dtype;
    Op op = whole_;
    op.reads = {q.context_gradient, q.context, q.log_sum_exp, q.queries, keys, kNoTensor};
    op.writes = {part, key_part, kNoTensor, kNoTensor};
    op.causal = own_keys;
    out_.push_back(op);
    q.gradient = add(q.gradient, part);
    key_gradient = add(key_gradient, key_part);
  }

  // ---- sums ----

  bool sums_apart(TensorId id) const { return options_.fp32_gradients && piece_.tensors[id].dtype != Dtype::fp32; }
  TensorId add(TensorId sum, TensorId part) {
    if (sum == kNoTensor && (chunks_ == 1 || !sums_apart(part))) return part;
    const TensorId result = clone_tensor(piece_, part);
    if (sums_apart(part)) piece_.tensors[result].dtype = Dtype::fp32;
    if (sum == kNoTensor) {
      out_.push_back(computation(OpKind::cast, "fpdt.gradient_cast", whole_.phase, {part}, {result}));
    } else {
      out_.push_back(computation(OpKind::add, "fpdt.gradient_sum", whole_.phase, {sum, part}, {result}));
    }
    return result;
  }
  // Returns the sum in the dtype of the activations.
  TensorId rounded(TensorId sum, Dtype dtype) {
    if (piece_.tensors[sum].dtype == dtype) return sum;
    const TensorId result = clone_tensor(piece_, sum);
    piece_.tensors[result].dtype = dtype;
    out_.push_back(computation(OpKind::cast, "fpdt.gradient_cast", whole_.phase, {sum}, {result}));
    return result;
  }

  // Sends the gradients of a chunk's queries, keys and values to the ranks with their positions, and runs what follows.
  void give_back(std::int64_t i, TensorId query_gradient, TensorId key_gradient) {
    SequenceChunk& own = own_[static_cast<std::size_t>(i)];
    const auto [dq, dkv] =
        context_parallel::queries_and_keys(piece_, own.part(whole_.writes[0]), own.part(whole_.writes[1]));
    const Dtype dtype = piece_.tensors[dq].dtype;
    const TensorId queries = rounded(query_gradient, dtype), keys = rounded(key_gradient, dtype);
    exchange_.take_positions("ulysses.query_gradient", queries, dq, whole_);
    usp::Exchange::Keys gradients = exchange_.with_all_positions_of_keys(dkv, queries);
    if (gradients.own == gradients.all) gradients.own = keys;
    gradients.all = keys;
    exchange_.take_key_gradients(gradients, dkv, whole_);
    for (const std::size_t at : region_.backward)
      if (const Op op = piece_.backward.ops[at]; op.kind != OpKind::attention_backward) out_.push_back(own.part(op));
  }

  Piece& piece_;
  const ChunkedAttentionOptions options_;
  const std::int64_t chunks_;
  const bool offload_;
  const std::int64_t ranks_;
  const Region region_;
  const Inside inside_;
  std::vector<Op> out_;
  usp::Exchange exchange_;
  std::vector<TensorId> saved_;
  std::vector<Left> left_;  // by chunk

  // State of the backward; vectors are by chunk.
  Op whole_;
  std::vector<SequenceChunk> own_;
  std::vector<Waiting> context_gradients_, gradients_;
  TensorId finished_ = kNoTensor;  // gradient of the queries whose own keys are this round's
};

}  // namespace

Region ops_along(const Piece& piece, Axis axis) {
  Region region;
  const auto find = [&](const Block& block, std::vector<std::size_t>& found) {
    for (std::size_t i = 0; i < block.ops.size(); ++i) {
      bool any = false;
      for_each_operand(block.ops[i], [&](TensorId id) {
        const Tensor& t = piece.tensors[id];
        any = any || (t.find(axis) >= 0 && t.find(Axis::sequence) >= 0);
      });
      if (any) found.push_back(i);
    }
  };
  find(piece.forward, region.forward);
  find(piece.backward, region.backward);
  return region;
}

Inside::Inside(const Piece& piece, const Region& region) : inside_(piece.tensors.size()) {
  const auto mark = [&](const Block& block, const std::vector<std::size_t>& ops, bool in_region) {
    for (std::size_t i = 0; i < block.ops.size(); ++i)
      if (std::ranges::binary_search(ops, i) == in_region)
        for_each_operand(block.ops[i], [&](TensorId id) { inside_[storage_of(piece, id)] = in_region ? 1 : 0; });
  };
  mark(piece.forward, region.forward, true);
  mark(piece.backward, region.backward, true);
  mark(piece.forward, region.forward, false);
  mark(piece.backward, region.backward, false);
  const auto handed = [&](TensorId id) {
    if (id != kNoTensor) inside_[storage_of(piece, id)] = 0;
  };
  for (const TensorId id : {piece.input, piece.output, piece.input_gradient, piece.output_gradient}) handed(id);
  for (const SideStream& side : piece.sides)
    for (const TensorId id : {side.input, side.output, side.input_gradient, side.output_gradient}) handed(id);
  for (std::size_t id = 0; id < inside_.size(); ++id)
    if (piece.tensors[id].input != Input::none) handed(static_cast<TensorId>(id));
}

bool Inside::contains(const Piece& piece, TensorId id) const {
  const TensorId root = storage_of(piece, id);
  return root < inside_.size() && inside_[root] != 0;
}

SequenceChunk::SequenceChunk(Piece& piece, const Inside& inside, std::int64_t count, std::int64_t index,
                             std::int64_t ranks, bool of_sequence)
    : piece_(&piece),
      inside_(&inside),
      count_(count),
      index_(index),
      ranks_(ranks),
      of_sequence_(of_sequence),
      parts_(piece.tensors.size(), kNoTensor) {}

void SequenceChunk::cut(Tensor& t) const {
  const int d = t.find(Axis::sequence);
  t.sizes[d] /= count_;
  t.set_deal(d, Deal::contiguous);
  if (of_sequence_) t.sequence_begin = index_ * t.sizes[d] * ranks_;
}

TensorId SequenceChunk::part(TensorId id) {
  if (id == kNoTensor || piece_->tensors[id].find(Axis::sequence) < 0) return id;
  if (has(id)) return parts_[id];
  Tensor t = piece_->tensors[id];
  if (!inside_->contains(*piece_, id)) {
    t.alias_of = id;
    t.alias_begin = index_ * (t.sizes[t.find(Axis::sequence)] / count_);
    t.input = Input::none;
  } else if (t.alias_of != kNoTensor) {
    t.alias_of = part(t.alias_of);
  }
  t.resident = t.shared = t.lent = false;
  cut(t);
  const TensorId made = piece_->add(t);
  parts_[id] = made;
  return made;
}

Op SequenceChunk::part(Op op) {
  for (TensorId& id : op.reads) id = part(id);
  for (TensorId& id : op.writes) id = part(id);
  return op;
}

void replace(Block& block, const Piece& piece, const std::vector<std::size_t>& region, const std::vector<Op>& by) {
  if (region.empty()) return;
  Storages waits(piece);  // those that do not exist before the region has run
  std::vector<Op> ops, behind;
  for (std::size_t i = 0; i < block.ops.size(); ++i) {
    const Op& op = block.ops[i];
    if (std::ranges::binary_search(region, i)) {
      waits.add_all(op.writes);
      if (i == region.back()) {
        ops.insert(ops.end(), by.begin(), by.end());
        ops.insert(ops.end(), behind.begin(), behind.end());
      }
      continue;
    }
    const bool between = i > region.front() && i < region.back();
    const bool late = between && waits.has_any(op.reads);
    if (late) waits.add_all(op.writes);
    (late ? behind : ops).push_back(op);
  }
  block.ops = std::move(ops);
}

void chunk_attention(Piece& piece, const Mesh& mesh, const ChunkedAttentionOptions& options) {
  ChunkedAttention(piece, mesh, options).run();
}

}  // namespace orrery::fpdt
