#include "strategies/context_parallel/context_parallel.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

#include "models/layers.h"
#include "sim/base/error.h"
#include "sim/program/rewrite.h"
#include "sim/program/work.h"
#include "strategies/layer_plans.h"

namespace orrery::context_parallel {
namespace {

// Returns a part of a fused tensor.
TensorId part_of_fused(Piece& piece, TensorId base, std::int64_t begin, std::int64_t width, Axis axis) {
  Tensor t = piece.tensors[base];
  t.sizes[3] = width;
  t.axes[3] = axis;
  t.set_deal(3, Deal::contiguous);
  if (axis == Axis::none) t.over[3] = {};  // keys and values: every rank has all of them
  t.alias_of = base;
  t.alias_begin = begin;
  return piece.add(t);
}

class Ring {
 public:
  Ring(Piece& piece, const Mesh& mesh, const RingGroups& groups, bool fp32_gradients, std::vector<Op>& out)
      : groups_(groups),
        inner_ranks_(mesh.size(groups.inner)),
        outer_ranks_(mesh.size(groups.outer)),
        fp32_gradients_(fp32_gradients),
        mesh_(mesh),
        piece_(piece),
        out_(out) {}

 private:
  TensorId ring_buffer(TensorId like) {
    const TensorId id = clone_tensor(piece_, like);
    piece_.tensors[id].category = Category::communication_buffer;
    return id;
  }

  void shift(const char* name, MeshGroup group, TensorId from, TensorId to, const Op& cause, std::int64_t places = 1) {
    const Stream stream = group == groups_.inner ? groups_.stream : Stream::outer_ring_communication;
    Op op = communication(OpKind::ring_shift, name, cause.phase, stream, group, from, to);
    op.distance = static_cast<std::int32_t>(places);
    op.algorithm = groups_.algorithm;
    out_.push_back(op);
  }

  Op step_of(const Op& whole, TensorId q, TensorId keys, std::int64_t round, std::int64_t step) const {
    const Tensor& queries = piece_.tensors[q];
    const std::int64_t parts = mesh_.size(queries.over[queries.find(Axis::sequence)].group());
    Op op = attention_of_parts(whole, q, keys, parts);
    op.keys_before = static_cast<std::int32_t>(round * inner_ranks_ + step);
    op.inner_parts = static_cast<std::int32_t>(inner_ranks_ == parts ? 1 : inner_ranks_);
    return op;
  }

  // For each round of the outer ring, the steps of the inner ring up to the last one in which any rank attends to
  // something; only rounds up to the last one with such steps. With a zigzag deal, neighbouring chunks lie on
  // neighbouring ranks in both directions, so that even a short window needs the ring's last step.
  struct Steps {
    std::vector<std::vector<bool>> attended;  // [round][step]
    std::size_t rounds() const { return attended.size(); }
    std::size_t of(std::size_t round) const { return attended[round].size(); }
    bool is_last(std::size_t round, std::size_t step) const { return round + 1 == rounds() && step + 1 == of(round); }
    bool only() const { return rounds() == 1 && of(0) == 1; }
  };
  Steps steps(const Op& whole, TensorId q, TensorId keys) const {
    Steps steps;
    steps.attended.resize(static_cast<std::size_t>(outer_ranks_));
    for (std::size_t round = 0; round < steps.rounds(); ++round) {
      std::vector<bool>& attended = steps.attended[round];
      for (std::int64_t i = 0; i < inner_ranks_; ++i)
        attended.push_back(attends(step_of(whole, q, keys, static_cast<std::int64_t>(round), i), piece_.tensors));
      while (!attended.empty() && !attended.back()) attended.pop_back();
    }
    while (steps.attended.back().empty()) steps.attended.pop_back();
    return steps;
  }

 public:
  // The keys of a round are sent to the next inner ring before they go round this one.
  void forward(const Op& whole) {
    const auto [q, local] = queries_and_keys(piece_, whole.reads[0], whole.reads[1]);
    TensorId context = kNoTensor, lse = kNoTensor;
    const Steps steps = this->steps(whole, q, local);
    TensorId of_round = local;
    for (std::size_t round = 0; round < steps.rounds(); ++round) {
      TensorId keys = of_round;
      if (round + 1 < steps.rounds()) {
        of_round = ring_buffer(local);
        shift("ring.outer_keys", groups_.outer, keys, of_round, whole);
      }
      for (std::size_t i = 0; i < steps.of(round); ++i) {
        const TensorId next = i + 1 == steps.of(round) ? kNoTensor : ring_buffer(local);
        if (next != kNoTensor) shift("ring.keys", groups_.inner, keys, next, whole);
        if (steps.attended[round][i]) {
          const bool last = steps.is_last(round, i);
          const TensorId part = steps.only() ? whole.writes[0] : clone_tensor(piece_, whole.writes[0]);
          const TensorId part_lse = steps.only() ? whole.writes[1] : clone_tensor(piece_, whole.writes[1]);
          Op op = step_of(whole, q, keys, static_cast<std::int64_t>(round), static_cast<std::int64_t>(i));
          op.writes = {part, part_lse, kNoTensor, kNoTensor};
          out_.push_back(op);
          if (context == kNoTensor) {
            context = part;
            lse = part_lse;
          } else {
            const TensorId merged = last ? whole.writes[0] : clone_tensor(piece_, whole.writes[0]);
            const TensorId merged_lse = last ? whole.writes[1] : clone_tensor(piece_, whole.writes[1]);
            out_.push_back(computation(OpKind::merge_attention, "ring.merge", whole.phase,
                                       {context, lse, part, part_lse}, {merged, merged_lse}));
            context = merged;
            lse = merged_lse;
          }
        }
        keys = next;
      }
    }
  }

  // Keys go round once more. Their gradients travel with them round an inner ring and return after its last step,
  // directly to their owner if the ring ends early. Sums of rounds travel from ring to ring during the next round.
  void backward(const Op& whole) {
    const auto [q, local] = queries_and_keys(piece_, whole.reads[3], whole.reads[4]);
    const auto [dq, dlocal] = queries_and_keys(piece_, whole.writes[0], whole.writes[1]);
    const Steps steps = this->steps(whole, q, local);
    const bool rounds = steps.rounds() > 1;
    TensorId of_round = local, dquery = kNoTensor, sums = kNoTensor;
    for (std::size_t round = 0; round < steps.rounds(); ++round) {
      TensorId keys = of_round, travelling = kNoTensor;
      const bool last_round = round + 1 == steps.rounds();
      if (!last_round) {
        of_round = ring_buffer(local);
        shift("ring.outer_keys", groups_.outer, keys, of_round, whole);
      }
      for (std::size_t i = 0; i < steps.of(round); ++i) {
        const bool last = i + 1 == steps.of(round);
        const TensorId next = last ? kNoTensor : ring_buffer(local);
        if (!last) shift("ring.keys", groups_.inner, keys, next, whole);
        if (steps.attended[round][i]) {
          const TensorId part_q = steps.only() ? dq : clone_tensor(piece_, dq);
          const TensorId part_k = steps.only() ? dlocal : ring_buffer(dlocal);
          Op op = step_of(whole, q, keys, static_cast<std::int64_t>(round), static_cast<std::int64_t>(i));
          op.writes = {part_q, part_k, kNoTensor, kNoTensor};
          out_.push_back(op);
          if (steps.only()) return;  // no rank has read another rank's keys
          dquery = dquery == kNoTensor
                       ? exact(part_q, whole)
                       : sum(dquery, part_q, steps.is_last(round, i) ? dq : summed(clone_tensor(piece_, dq)), whole);
          travelling = travelling == kNoTensor ? exact(part_k, whole)
                                               : sum(travelling, part_k, summed(ring_buffer(dlocal)), whole);
        }
        if (steps.of(round) > 1 && travelling != kNoTensor)
          travelling = send(groups_.inner, "ring.key_gradients", travelling,
                            last ? inner_ranks_ - static_cast<std::int64_t>(i) : 1,
                            last && !rounds ? dlocal : kNoTensor, dlocal, whole);
        keys = next;
      }
      if (!rounds) return;
      if (sums == kNoTensor) {
        sums = travelling;
      } else if (travelling != kNoTensor) {
        sums = sum(sums, travelling, summed(ring_buffer(dlocal)), whole);
      }
      sums = send(groups_.outer, "ring.outer_key_gradients", sums,
                  last_round ? outer_ranks_ - static_cast<std::int64_t>(round) : 1, last_round ? dlocal : kNoTensor,
                  dlocal, whole);
    }
  }

 private:
  // Sends gradients of keys on; the last time into `home`.
  TensorId send(MeshGroup group, const char* name, TensorId sums, std::int64_t places, TensorId home, TensorId like,
                const Op& cause) {
    const bool as_it_comes = home != kNoTensor && !sums_apart(home);
    const TensorId arrived = as_it_comes ? home : summed(ring_buffer(like));
    shift(name, group, sums, arrived, cause, places);
    if (home != kNoTensor && !as_it_comes) cast(arrived, home, cause);
    return arrived;
  }

  // Whether sums of this gradient have another dtype than the gradient.
  bool sums_apart(TensorId gradient) const { return fp32_gradients_ && piece_.tensors[gradient].dtype != Dtype::fp32; }
  TensorId summed(TensorId gradient) {
    if (fp32_gradients_) piece_.tensors[gradient].dtype = Dtype::fp32;
    return gradient;
  }
  // Returns the result of a first step in the dtype of the sums, for others to be added.
  TensorId exact(TensorId part, const Op& cause) {
    if (!sums_apart(part)) return part;
    const TensorId sums = summed(clone_tensor(piece_, part));
    cast(part, sums, cause);
    return sums;
  }
  void cast(TensorId from, TensorId to, const Op& cause) {
    out_.push_back(computation(OpKind::cast, "ring.gradient_cast", cause.phase, {from}, {to}));
  }
  TensorId sum(TensorId a, TensorId b, TensorId result, const Op& cause) {
    out_.push_back(computation(OpKind::add, "ring.gradient_sum", cause.phase, {a, b}, {result}));
    return result;
  }

  const RingGroups groups_;
  const std::int64_t inner_ranks_, outer_ranks_;
  const bool fp32_gradients_;
  const Mesh& mesh_;
  Piece& piece_;
  std::vector<Op>& out_;
};

constexpr const char* kBlocks = "context_parallel_blocks";

// Checks a plan that deals by a table: every rank has equally many blocks, and the blocks divide the sequence.
void check_table(const Plan& plan, const std::string& at, std::int64_t ranks, std::int64_t length) {
  const auto fail = [&](const std::string& found, const std::string& expected) {
    throw InputError({"", at + kBlocks}, found, expected);
  };
  const std::vector<std::int64_t>& blocks = plan.context.blocks;
  const auto n = static_cast<std::int64_t>(blocks.size());
  if (blocks.empty()) fail("none", "the rank of each block, with context_parallel_balance \"table\"");
  if (length % n != 0)
    fail(std::to_string(n) + " blocks", "a divisor of the sequence of " + std::to_string(length) + " tokens");
  std::vector<std::int64_t> of_rank(static_cast<std::size_t>(ranks));
  for (const std::int64_t rank : blocks) {
    if (rank >= ranks) fail(std::to_string(rank), "one of the ranks 0 to " + std::to_string(ranks - 1));
    ++of_rank[static_cast<std::size_t>(rank)];
  }
  for (std::size_t r = 0; r < of_rank.size(); ++r)
    if (of_rank[r] * ranks != n)
      fail(std::to_string(of_rank[r]) + " of " + std::to_string(n) + " blocks for rank " + std::to_string(r),
           "equally many for each of the " + std::to_string(ranks) + " ranks");
}

constexpr FieldRule kIdle[]{keep({kBlocks}, "unless context_parallel_balance is \"table\"", [](const AskedOf& a) {
  return a.plan.context.degree == 1 || a.layers.context.balance == Balance::table;
})};

void check(const Scenario& scenario) {
  const std::int64_t c = scenario.plan.context.degree;
  if (c == 1) return;
  const auto fail = [&](const std::string& expected) { refuse(scenario.plan, "context_parallel", expected); };
  if (scenario.model.vision()) fail("1 for a vision model, whose sequences are the patches of one image");
  if (scenario.model.relative_buckets > 0)
    fail("1 for a model with a table of relative positions, which is not divided");
  if (scenario.model.relative_projection)
    fail("1 for a model with projected relative positions, whose attention stores the scores");
  if (scenario.model.pooler) fail("1 for a model with a pooler, which reads the first token that one rank alone has");
  for_each_plan(scenario, [&](const Plan& plan, const std::string& at) {
    if (plan.framework.flash_attention) return;
    const std::string reason = "attention over divided sequences never stores the scores";
    if (&plan == &scenario.plan) fail("1 without flash_attention: " + reason);
    refuse(plan, "flash_attention", "true with context_parallel above 1: " + reason, at);
  });
  for (const std::int64_t length :
       {sequence_length(scenario.model, scenario.workload), scenario.workload.decoder_sequence_length})
    if (length % c != 0) fail("a divisor of the sequence of " + std::to_string(length) + " tokens");
  check_deal(scenario, kTypes, c);
}

}  // namespace

Type type_named(std::string_view name) {
  const std::span<const std::string_view> names = type_names();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) throw std::logic_error("no context_parallel_type is named " + std::string(name));
  return static_cast<Type>(found - names.begin());
}

bool is_of_type(const Scenario& scenario, const Plan& plan, std::span<const std::string_view> names) {
  if (scenario.plan.context.degree == 1) return false;
  const std::string_view type = type_names()[static_cast<std::size_t>(plan.context.type)];
  return std::find(names.begin(), names.end(), type) != names.end();
}

bool has_layers_of_type(const Scenario& scenario, std::span<const std::string_view> names) {
  return any_plan(scenario, [&](const Plan& plan) { return is_of_type(scenario, plan, names); });
}

bool is_all_of_type(const Scenario& scenario, std::span<const std::string_view> names) {
  return !any_plan(scenario, [&](const Plan& plan) { return !is_of_type(scenario, plan, names); });
}

Deal deal_over(const Scenario& scenario, const Plan& plan, std::int64_t ranks, const DealTables& tables) {
  if (ranks == 1 || scenario.model.kind != ModelKind::decoder) return Deal::contiguous;
  switch (plan.context.balance) {
    case Balance::contiguous:
      return Deal::contiguous;
    case Balance::zigzag:
      return Deal::zigzag;
    case Balance::striped:
      return Deal::striped;
    case Balance::table:
      break;
  }
  return tables.by_blocks(plan.context.blocks);
}

void check_deal(const Scenario& scenario, std::span<const std::string_view> names, std::int64_t ranks) {
  const std::int64_t length = sequence_length(scenario.model, scenario.workload);
  DealTables tables;
  for_each_plan(scenario, [&](const Plan& plan, const std::string& at) {
    if (!is_of_type(scenario, plan, names)) return;
    if (plan.context.balance == Balance::table && ranks > 1) check_table(plan, at, ranks, length);
    if (deal_over(scenario, plan, ranks, tables) != Deal::zigzag || length % (2 * ranks) == 0) return;
    const std::string blocks = "zigzag deal of " + std::to_string(2 * ranks) + " blocks divides the sequence of " +
                               std::to_string(length) + " tokens";
    if (&plan != &scenario.plan)
      refuse(plan, "context_parallel_balance", "another deal, or a degree whose " + blocks, at);
    refuse(plan, "context_parallel", "a degree whose " + blocks);
  });
}

void divide_sequence(Piece& piece, const Mesh& mesh, Division over, Deal deal) {
  const std::int64_t ranks = mesh.size(over.group());
  // A part of the sequence (a chunk of an overlapped product) begins at a part of this rank's positions.
  for (Tensor& t : piece.tensors) {
    const int d = t.find(Axis::sequence),
              of = t.alias_of == kNoTensor ? -1 : piece.tensors[t.alias_of].find(Axis::sequence);
    if (d >= 0 && of >= 0 && t.sizes[d] != piece.tensors[t.alias_of].sizes[of]) t.alias_begin /= ranks;
  }
  for (Tensor& t : piece.tensors)
    for (int d = 0; d < t.rank; ++d) {
      if (t.axes[d] != Axis::sequence) continue;
      t.sizes[d] /= ranks;
      Division divided = over;
      for (int n = 0; n < t.over[d].count(); ++n) divided.append(MeshGroup::of_digit(t.over[d].digit(n)));
      t.over[d] = divided;
      t.set_deal(d, deal);
    }
}

QueriesAndKeys queries_and_keys(Piece& piece, TensorId first, TensorId second) {
  if (second != kNoTensor) return {first, second};
  const std::int64_t heads = piece.tensors[first].sizes[3] - 2;
  const TensorId q = part_of_fused(piece, first, 0, heads, Axis::group_heads);
  return {q, part_of_fused(piece, first, heads, 2, Axis::none)};
}

Op attention_of_parts(const Op& whole, TensorId queries, TensorId keys, std::int64_t parts) {
  Op op = whole;
  const std::size_t first = queries_operand(whole.kind);
  op.reads[first] = queries;
  op.reads[first + 1] = keys;
  op.parts = static_cast<std::int32_t>(parts);
  return op;
}

namespace {

std::int64_t inner_ring(const Scenario& scenario, std::int64_t ranks) {
  for (const Strategy& strategy : all_strategies())
    if (strategy.inner_ring != nullptr) return strategy.inner_ring(scenario, ranks);
  return 1;
}

}  // namespace

void add_ring(const Scenario& scenario, Mesh& mesh, std::int64_t ranks, const char* name) {
  const std::int64_t inner = inner_ring(scenario, ranks);
  mesh.add(MeshAxis::cp, inner, name);
  mesh.add(MeshAxis::cp, ranks / inner, name);
}

RingGroups ring_groups(const Scenario& scenario, const Mesh& mesh, MeshGroup ring) {
  const std::int64_t inner_ranks = inner_ring(scenario, mesh.size(ring));
  const MeshGroup inner = inner_ranks == 1 ? ring : mesh.innermost(ring, inner_ranks);
  return {.inner = inner, .outer = ring.without(inner)};
}

void ring_attention(Piece& piece, const Mesh& mesh, const RingGroups& ring, bool fp32_gradients) {
  std::vector<Op> out;
  replace_attention(piece, out, Ring(piece, mesh, ring, fp32_gradients, out));
}

void append_ring(Piece& piece, const Mesh& mesh, const RingGroups& ring, bool fp32_gradients, const Op& whole,
                 std::vector<Op>& out) {
  Ring of(piece, mesh, ring, fp32_gradients, out);
  whole.kind == OpKind::attention ? of.forward(whole) : of.backward(whole);
}

namespace {

void add_digits(const Scenario& scenario, Mesh& mesh) {
  // A ring takes ranks as others, of whom layers may be, have divided them.
  if (is_all_of_type(scenario, kTypes)) add_ring(scenario, mesh, scenario.plan.context.degree, name_of(MeshAxis::cp));
}

void rewrite_piece(const Scenario& scenario, const Plan& plan, const Program& program, Piece& piece) {
  if (!is_of_type(scenario, plan, kTypes)) return;
  const MeshGroup ring = program.mesh.group(MeshAxis::cp);
  divide_sequence(piece, program.mesh, {ring}, deal_over(scenario, plan, scenario.plan.context.degree, program.tables));
  ring_attention(piece, program.mesh, ring_groups(scenario, program.mesh, ring), plan.context.fp32_gradients);
}

std::int64_t ranks(const Plan& plan) { return plan.context.degree; }

constexpr PlanWord kWords[]{{"context", [](const Scenario& s) { return s.plan.context.degree > 1; }}};

void check_runnable(const Scenario& scenario) {
  if (scenario.model.kind == ModelKind::encoder_decoder)
    keep_defaults(scenario.plan, {"context_parallel"},
                  "for an encoder-decoder: real runs do not divide two sequences yet");
}

constexpr SearchAxis kAxes[]{
    {.field = "context_parallel",
     .label = "cp",
     .chosen_with = ChosenWith::mesh,
     .usual = true,
     .set = [](Plan& plan, std::int64_t value) { plan.context.degree = value; },
     // Only degrees that leave each rank at least kLeastTokens of a sequence.
     .values = [](const Scenario& chosen) -> AxisValues {
       constexpr std::int64_t kLeastTokens = 1024;
       if (!chosen.plan.framework.flash_attention || chosen.model.vision()) return {1};
       const std::int64_t length = sequence_length(chosen.model, chosen.workload);
       AxisValues values = divisors_of(chosen.cluster.devices() / chosen.plan.tensor.degree);
       std::erase_if(values,
                     [&](std::int64_t c) { return c > 1 && (length % (2 * c) != 0 || length / c < kLeastTokens); });
       return values;
     }},
    {.field = "context_parallel_type",
     .label = "cp type",
     .chosen_with = ChosenWith::kernels,
     .set = [](Plan& plan, std::int64_t value) { plan.context.type = static_cast<Type>(value); },
     .values = [](const Scenario& chosen) -> AxisValues {
       AxisValues values(chosen.plan.context.degree > 1 ? type_names().size() : 1);
       std::iota(values.begin(), values.end(), 0);
       return values;
     },
     .acts = [](const Scenario& chosen) { return chosen.plan.context.degree > 1; }}};

}  // namespace

Strategy describe() {
  return {.name = "context_parallel",
          .summary = "sequences divided over ranks, ring attention",
          .paper = "Liu et al. 2023, arXiv 2310.01889",
          .idle = kIdle,
          .check = check,
          .rewrite_piece = rewrite_piece,
          .add_digits = add_digits,
          .disable = reset<&Plan::context>,
          .ranks = ranks,
          .words = kWords,
          .context_types = kTypes,
          .check_runnable = check_runnable,
          .search_axes = kAxes};
}

}  // namespace orrery::context_parallel
