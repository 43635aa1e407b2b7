#include "strategies/context_parallel/context_parallel.h"

#include <string>

#include "sim/base/error.h"
#include "sim/program/rewrite.h"

namespace orrery::context_parallel {
namespace {

class Ring {
 public:
  Ring(const Options& options, Piece& piece) : steps_(options.degree), balance_(options.balance), piece_(piece) {}

  void run() {
    for (Tensor& t : piece_.tensors)
      for (int d = 0; d < t.rank; ++d)
        if (t.axes[d] == Axis::sequence) t.sizes[d] /= steps_;
    rewrite_block(piece_.forward);
    rewrite_block(piece_.backward);
  }

 private:
  void rewrite_block(Block& block) {
    out_.clear();
    for (const Op& op : block.ops) {
      if (op.kind == OpKind::attention) {
        forward(op);
      } else if (op.kind == OpKind::attention_backward) {
        backward(op);
      } else {
        out_.push_back(op);
      }
    }
    block.ops = out_;
  }

  TensorId view(TensorId base, std::int64_t begin, std::int64_t width, Axis axis) {
    Tensor t = piece_.tensors[base];
    t.sizes[3] = width;
    t.axes[3] = axis;
    t.alias_of = base;
    t.alias_begin = begin;
    return piece_.add(t);
  }

  struct QueryAndKeys {
    TensorId query, keys;
  };
  // A fused QKV tensor as its query part and its key-value part; what is apart stays so.
  QueryAndKeys split(TensorId first, TensorId second) {
    if (second != kNoTensor) return {first, second};
    const std::int64_t heads = piece_.tensors[first].sizes[3] - 2;
    const TensorId q = view(first, 0, heads, Axis::group_heads);
    return {q, view(first, heads, 2, Axis::none)};
  }

  TensorId ring_buffer(TensorId like) {
    const TensorId id = clone_tensor(piece_, like);
    piece_.tensors[id].category = Category::communication_buffer;
    return id;
  }

  void shift(const char* name, TensorId from, TensorId to, const Op& cause) {
    Op op = communication(OpKind::ring_shift, name, Stream::context_communication, MeshAxis::cp, from, to);
    op.phase = cause.phase;
    out_.push_back(op);
  }

  // The keys of step i that this rank's queries see. Step 0 is the causal square on the diagonal. Later steps: without
  // a mask, all; zigzag, half of the square on every rank; contiguous, the last rank sees all and the ring waits for it.
  TensorId visible_keys(TensorId keys, int step, const Op& whole) {
    if (step == 0 || !whole.causal || whole.window > 0 || balance_ == Balance::contiguous) return keys;
    Tensor half = piece_.tensors[keys];
    half.sizes[1] = std::max<std::int64_t>(1, half.sizes[1] / 2);
    half.alias_of = keys;
    half.alias_begin = 0;
    return piece_.add(half);
  }

  // Keys per query, on average, that a sliding window of w leaves of the block i places back, with n positions a rank:
  // the integral over t in [0, n) of clamp(w - (i - 1) n - t, 0, n), divided by n. 0: the window ends before the block.
  static std::int64_t keys_in_window(std::int64_t window, std::int64_t n, int step) {
    const double a = static_cast<double>(window) - static_cast<double>(step - 1) * static_cast<double>(n), m = static_cast<double>(n);
    if (a <= 0) return 0;
    const double pairs = a <= m ? a * a / 2 : a <= 2 * m ? m * m - (2 * m - a) * (2 * m - a) / 2 : m * m;
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(pairs / m));
  }

  // Ring steps with anything to see.
  int steps(const Op& whole, TensorId keys) const {
    int n = 1;
    while (n < steps_ && (whole.window == 0 || keys_in_window(whole.window, piece_.tensors[keys].sizes[1], n) > 0)) ++n;
    return n;
  }

  Op step_of(const Op& whole, TensorId keys, int step) const {
    Op op = whole;
    op.causal = whole.causal && step == 0;
    if (whole.window > 0 && step > 0) op.window = keys_in_window(whole.window, piece_.tensors[keys].sizes[1], step);
    return op;
  }

  void forward(const Op& whole) {
    const auto [q, local] = split(whole.reads[0], whole.reads[1]);
    TensorId keys = local, context = kNoTensor, lse = kNoTensor;
    const int steps = this->steps(whole, local);
    for (int i = 0; i < steps; ++i) {
      const bool last = i + 1 == steps;
      const TensorId next = last ? kNoTensor : ring_buffer(local);
      if (!last) shift("ring.keys", keys, next, whole);
      const bool only = i == 0 && last;
      const TensorId part = only ? whole.writes[0] : clone_tensor(piece_, whole.writes[0]);
      const TensorId part_lse = only ? whole.writes[1] : clone_tensor(piece_, whole.writes[1]);
      Op op = step_of(whole, keys, i);
      op.reads = {q, visible_keys(keys, i, whole), kNoTensor, kNoTensor, kNoTensor, kNoTensor};
      op.writes = {part, part_lse, kNoTensor, kNoTensor};
      out_.push_back(op);
      if (i == 0) {
        context = part;
        lse = part_lse;
      } else {
        const TensorId merged = last ? whole.writes[0] : clone_tensor(piece_, whole.writes[0]);
        const TensorId merged_lse = last ? whole.writes[1] : clone_tensor(piece_, whole.writes[1]);
        Op merge;
        merge.kind = OpKind::merge_attention;
        merge.phase = whole.phase;
        merge.name = "ring.merge";
        merge.reads = {context, lse, part, part_lse, kNoTensor, kNoTensor};
        merge.writes = {merged, merged_lse, kNoTensor, kNoTensor};
        out_.push_back(merge);
        context = merged;
        lse = merged_lse;
      }
      keys = next;
    }
  }

  // Keys go round once more; their gradients travel with them and come home after the last step.
  void backward(const Op& whole) {
    const auto [q, local] = split(whole.reads[3], whole.reads[4]);
    const auto [dq, dlocal] = split(whole.writes[0], whole.writes[1]);
    TensorId keys = local, dquery = kNoTensor, travelling = kNoTensor;
    const int steps = this->steps(whole, local);
    for (int i = 0; i < steps; ++i) {
      const bool last = i + 1 == steps;
      const TensorId next = last ? kNoTensor : ring_buffer(local);
      if (!last) shift("ring.keys", keys, next, whole);
      const TensorId part_q = i == 0 && last ? dq : clone_tensor(piece_, dq);
      const TensorId part_k = ring_buffer(local);
      Op op = step_of(whole, keys, i);
      op.reads[3] = q;
      op.reads[4] = visible_keys(keys, i, whole);
      op.writes = {part_q, part_k, kNoTensor, kNoTensor};
      out_.push_back(op);
      dquery = i == 0 ? part_q : sum(dquery, part_q, last ? dq : clone_tensor(piece_, dq), whole);
      const TensorId gradient = i == 0 ? part_k : sum(travelling, part_k, ring_buffer(local), whole);
      const TensorId arrived = last ? dlocal : ring_buffer(local);
      shift("ring.key_gradients", gradient, arrived, whole);
      travelling = arrived;
      keys = next;
    }
  }

  TensorId sum(TensorId a, TensorId b, TensorId result, const Op& cause) {
    Op op;
    op.kind = OpKind::add;
    op.phase = cause.phase;
    op.name = "ring.gradient_sum";
    op.reads[0] = a;
    op.reads[1] = b;
    op.writes[0] = result;
    out_.push_back(op);
    return result;
  }

  const std::int64_t steps_;
  const Balance balance_;
  Piece& piece_;
  std::vector<Op> out_;
};

}  // namespace

void check(const Scenario& scenario) {
  const std::int64_t c = scenario.plan.context.degree;
  if (c == 1) return;
  const auto fail = [&](const std::string& expected) {
    throw InputError({"", "/plan/context_parallel"}, std::to_string(c), expected);
  };
  if (scenario.model.kind == ModelKind::vit || scenario.model.kind == ModelKind::swin)
    fail("1 for a vision model, whose sequences are the patches of one image");
  if (!scenario.plan.framework.flash_attention) fail("1 without flash_attention: ring attention never stores the scores");
  const std::int64_t length = scenario.workload.sequence_length > 0 ? scenario.workload.sequence_length : scenario.model.max_positions;
  const bool zigzag = scenario.plan.context.balance == Balance::zigzag && scenario.model.kind == ModelKind::decoder;
  const std::int64_t parts = zigzag ? 2 * c : c;
  if (length % parts != 0)
    fail((zigzag ? "a degree of which twice divides" : "a divisor of") + std::string(" the sequence of ") + std::to_string(length) + " tokens");
}

void rewrite(const Scenario& scenario, Program& program) {
  const Options& options = scenario.plan.context;
  program.mesh.size(MeshAxis::cp) = options.degree;
  if (options.degree == 1) return;
  for (Piece& piece : program.pieces) Ring(options, piece).run();
}

}  // namespace orrery::context_parallel
