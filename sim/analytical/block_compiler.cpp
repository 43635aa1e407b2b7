#include <algorithm>
#include <limits>
#include <numeric>

#include "sim/analytical/block_clock.h"

namespace orrery {
namespace {

constexpr std::int32_t kNobody = -1;

Account account_of(const Op& op, BlockKind kind) {
  if (is_communication(op.kind)) return waiting_for(op.stream == Stream::compute ? op.account : op.stream);
  if (is_of_update(kind)) return kOptimizer;
  if (op.phase == Phase::recompute) return kRecompute;
  if (is_matmul(op.kind)) return kMatmul;
  return is_attention(op.kind) ? kAttention : kMemoryBound;
}

// The chunks of its storage that a tensor holds: all of them unless it is a view of some.
struct ChunkRange {
  std::int64_t begin = 0, end = std::numeric_limits<std::int64_t>::max();
  bool meets(const ChunkRange& other) const { return begin < other.end && other.begin < end; }
};
ChunkRange chunks_of(std::span<const Tensor> tensors, TensorId id) {
  for (; tensors[id].alias_of != kNoTensor; id = tensors[id].alias_of) {
    const Tensor &view = tensors[id], &base = tensors[view.alias_of];
    const int d = view.find(Axis::chunks), of = base.find(Axis::chunks);
    if (d < 0 || of < 0) break;
    if (view.sizes[d] < base.sizes[of]) return {view.alias_begin, view.alias_begin + view.sizes[d]};
  }
  return {};
}

constexpr std::uint16_t bit_of(Stream s) { return static_cast<std::uint16_t>(1u << static_cast<unsigned>(s)); }

}  // namespace

void BlockCompiler::link(std::size_t to, const CompileContext& context, TensorId entry, BlockCode& code) {
  const Op& op = code.ops[to];
  const bool on_compute = op.stream == Stream::compute;
  const bool waits = waits_for_compute(op);
  // A wait that only some lines pass cannot replace later waits.
  const bool always = op.when == When::every_micro_batch && op.every == 1 && op.covers == Covers::own;
  const auto add = [&](std::int32_t from) {
    const Op& producer = code.ops[static_cast<std::size_t>(from)];
    if (producer.stream == op.stream) return;
    std::uint16_t& waited = waited_[static_cast<std::size_t>(from)];
    if ((waited & bit_of(op.stream)) != 0 && op.count == 1) return;
    if (always) waited |= bit_of(op.stream);
    if (producer.stream == Stream::compute) needed_[static_cast<std::size_t>(from)] = 1;
    links_.push_back({static_cast<std::uint16_t>(from), static_cast<std::uint16_t>(to)});
  };
  const auto depend = [&](TensorId id) {
    const TensorId root = context.root[id];
    std::int32_t compute = last_compute_[root], other = last_other_[root];
    // A chunk (a dimension after that of experts) waits only for its own writers.
    if (code.piece->tensors[id].axes[1] == Axis::chunks) {
      const std::span<const Tensor> tensors = code.piece->tensors;
      const ChunkRange read = chunks_of(tensors, id);
      compute = other = kNobody;
      for (std::size_t i = to; i-- > 0 && (compute == kNobody || other == kNobody);)
        for (const TensorId w : code.ops[i].writes) {
          if (w == kNoTensor || context.root[w] != root || code.costs[i].absent) continue;
          std::int32_t& last = code.ops[i].stream == Stream::compute ? compute : other;
          if (last == kNobody && read.meets(chunks_of(tensors, w))) last = static_cast<std::int32_t>(i);
        }
    }
    if (compute != kNobody && !on_compute && !waits) add(compute);  // otherwise it runs after these kernels anyway
    if (other != kNobody) add(other);
    if (compute == kNobody && other == kNobody && entry != kNoTensor && root == context.root[entry]) {
      if ((entry_waited_ & bit_of(op.stream)) != 0) return;
      if (always) entry_waited_ |= bit_of(op.stream);
      links_.push_back({BlockCode::kEntry, static_cast<std::uint16_t>(to)});
    }
  };
  // For a piece of the instance before: that instance's tensors are ready before the first kernel of this one starts,
  // and the stream does not reach the op earlier, because pieces come after an op that reads such a kernel's result.
  if (op.covers == Covers::before) return;
  for (TensorId id : op.reads)
    if (id != kNoTensor) depend(id);
  if (op.accumulate)
    for (TensorId id : op.writes)
      if (id != kNoTensor) depend(id);
}

void BlockCompiler::build_nodes(BlockKind kind, const CompileContext& context, BlockCode& code) {
  const Runtime& runtime = *context.runtime;
  const std::span<const Tensor> tensors = code.piece->tensors;
  const auto issue_of = [&](const Op& op) {
    const Tensor* const rows = find_tensor(op, tensors, [](const Tensor& t) { return t.find(Axis::slots) > 0; });
    const bool in_graph =
        runtime.cuda_graphs && !is_of_update(kind) && (rows == nullptr || !runtime.graphs_leave_experts);
    if (in_graph || runs_beside_device(op.stream)) return 0.0;
    if (is_communication(op.kind)) return runtime.host_seconds_per_collective;
    if (is_of_update(kind))  // one launch for all layers, or launches layer by layer
      return op.every == kAllInstances ? runtime.host_seconds_per_update_op : runtime.host_seconds_per_op * op.share;
    const bool each = rows != nullptr && runtime.launches_each_expert && op.group_dims > 0;
    return each ? context.costs->kernels().issue_seconds(rows->sizes[0], runtime.host_seconds_per_op)
                : op.passes * runtime.host_seconds_per_op;
  };
  ClockNode* open = nullptr;
  code.host.resize(code.ops.size());
  auto next = links_.begin();
  std::size_t cuts = 0;
  const auto cut_before = [&](std::size_t op) {
    for (; context.cuts != nullptr && cuts < code.cuts.size() && (*context.cuts)[cuts] <= op; ++cuts) {
      code.cuts[cuts] = static_cast<std::uint16_t>(code.nodes.size());
      open = nullptr;
    }
  };
  for (std::size_t i = 0; i < code.ops.size(); ++i) {
    cut_before(i);
    const Op& op = code.ops[i];
    const OpCost& cost = code.costs[i];
    if (cost.absent) continue;
    code.conditions |= bit(op.when);
    const auto first_link = next;
    while (next != links_.end() && next->to == i) ++next;

    const double host = code.host[i] = issue_of(op);
    const bool kernel = op.stream == Stream::compute && !is_communication(op.kind);
    const bool plain = kernel && op.count == 1 && op.every == 1;
    const Account account = account_of(op, kind);
    if (kernel && op.every == 1) {
      code.busy[static_cast<std::size_t>(op.when)][account] += cost.seconds - cost.waiting;
      code.busy[static_cast<std::size_t>(op.when)][kSlowestDevice] += cost.waiting;
    }

    const bool host_waits = runtime.reads_row_counts && op.kind == OpKind::permute && host > 0 &&
                            (op.phase == Phase::forward || op.phase == Phase::recompute);
    if (op.issues_ahead) code.issues_ahead_from = static_cast<std::uint16_t>(i);
    if (op.issues_ahead || host_waits) open = nullptr;
    if (plain && open != nullptr && next == first_link && open->when == bit(op.when)) {
      open->host += host;
      open->host_bound = std::max(open->host_bound, open->host) + cost.seconds;
      open->seconds += cost.seconds;
    } else {
      ClockNode node;
      node.seconds = cost.seconds;
      node.last_seconds = cost.last_seconds;
      node.host_first = host;
      node.host = host * op.count;
      node.host_bound = std::max(host + cost.seconds, node.host + cost.last_seconds);
      node.op = static_cast<std::uint16_t>(i);
      node.every = op.every;
      node.covers = op.covers;
      node.count = op.count;
      node.prefetch = !ahead_.empty() && ahead_[i] ? op.prefetch : 0;
      node.buffers = op.buffers;
      code.takes_turns |= op.buffers > 0;
      node.stream = op.stream;
      node.when = bit(op.when);
      node.waits_for_compute = waits_for_compute(op);
      node.host_waits = host_waits;
      node.once = is_communication(op.kind) && i >= once_from_;
      code.once |= node.once;
      node.moves = is_communication(op.kind);
      node.account = account;
      node.counted = kernel && op.every == 1;
      node.first_dep = static_cast<std::uint16_t>(code.deps.size());
      for (auto l = first_link; l != next; ++l)
        code.deps.push_back(l->from == BlockCode::kEntry ? BlockCode::kEntry : node_of_[l->from]);
      node.deps = static_cast<std::uint16_t>(code.deps.size() - node.first_dep);
      if (op.every > 1 && op.every != kAllInstances)
        code.period = std::min<std::int64_t>(std::lcm(code.period, op.every), 1 << 20);
      if (node.prefetch > 0) code.prefetched.push_back(static_cast<std::uint16_t>(code.nodes.size()));
      code.nodes.push_back(node);
      open = &code.nodes.back();
    }
    if (account < kHostIssue) {
      code.nodes.back().kernel_seconds[account] += cost.seconds - cost.waiting;
      code.nodes.back().kernel_seconds[kSlowestDevice] += cost.waiting;
    }
    node_of_[i] = static_cast<std::uint16_t>(code.nodes.size() - 1);
    if (!plain || needed_[i]) open = nullptr;
    StreamsByLevel& on_level = code.on_level[static_cast<std::size_t>(op.when)];
    for (std::size_t l = 0; l < kFabricLevels; ++l)
      if (cost.on_level[l]) on_level[l] |= bit_of(op.stream);
  }
  cut_before(code.ops.size());
  // Stacks capture forwards and backwards. The optimizer's few kernels are issued without graphs.
  if (runtime.cuda_graphs && !is_of_update(kind) && !code.nodes.empty())
    code.graph_host_seconds = runtime.host_seconds_per_op;
}

void BlockCompiler::compile(const Piece& piece, BlockKind kind, const CompileContext& context, BlockCode& code) {
  std::span<const Op> ops;
  if (is_of_update(kind)) {
    const auto part = static_cast<UpdatePart>(static_cast<int>(kind) - static_cast<int>(BlockKind::gradients));
    const auto [begin, end] = context.update.range(part);
    ops = std::span<const Op>(piece.update.ops).subspan(begin, end - begin);
  } else {
    ops = (piece.*kBlocks[static_cast<std::size_t>(kind)]).ops;
  }
  code.piece = &piece;
  code.model = context.costs;
  if (ops.empty() && code.ops.empty()) return;
  code.ops = ops;
  code.nodes.clear();
  code.deps.clear();
  code.prefetched.clear();
  static_cast<BlockFacts&>(code) = {};

  const Boundary boundary = boundary_of(piece, static_cast<std::size_t>(kind));
  const TensorId entry = boundary.input, exit = boundary.output;
  const std::size_t n = code.ops.size();
  code.costs.resize(n);
  if (n == 0) return;
  last_compute_.assign(piece.tensors.size(), kNobody);
  last_other_.assign(piece.tensors.size(), kNobody);
  needed_.assign(n, 0);
  waited_.assign(n, 0);
  node_of_.resize(n);
  links_.clear();
  entry_waited_ = 0;

  ahead_ = find_ahead(code.ops, context.root, entry);
  // Collectives of the gradient norm come after the first norm, and run once for all instances.
  once_from_ = n;
  if (kind == BlockKind::norm)
    for (std::size_t i = n; i-- > 0;)
      if (code.ops[i].kind == OpKind::gradient_norm) once_from_ = i;

  for (std::size_t i = 0; i < n; ++i) {
    const Op& op = code.ops[i];
    code.costs[i] = context.costs->cost(op, piece.tensors, op.every == kAllInstances ? 1 : op.every);
    if (code.costs[i].absent) {  // a collective over one rank: its result is its operand
      if (op.reads[0] == kNoTensor || op.writes[0] == kNoTensor) continue;
      const TensorId from = context.root[op.reads[0]], to = context.root[op.writes[0]];
      last_compute_[to] = last_compute_[from];
      last_other_[to] = last_other_[from];
      continue;
    }
    link(i, context, entry, code);
    auto& last = op.stream == Stream::compute ? last_compute_ : last_other_;
    for (TensorId id : op.writes)
      if (id != kNoTensor) last[context.root[id]] = static_cast<std::int32_t>(i);
  }
  const std::int32_t exit_compute = exit == kNoTensor ? kNobody : last_compute_[context.root[exit]];
  const std::int32_t exit_other = exit == kNoTensor ? kNobody : last_other_[context.root[exit]];
  if (exit_compute != kNobody) needed_[static_cast<std::size_t>(exit_compute)] = 1;
  build_nodes(kind, context, code);
  if (exit_compute != kNobody) code.exit_compute = node_of_[static_cast<std::size_t>(exit_compute)];
  if (exit_other != kNobody) code.exit_other = node_of_[static_cast<std::size_t>(exit_other)];
}

}  // namespace orrery
