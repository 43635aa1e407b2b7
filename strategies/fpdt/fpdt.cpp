// FPDT: long sequences in chunks. Ulysses' exchanges, online attention, MLP and loss run chunk by chunk, and chunks
// wait in host memory between their uses (also called Ulysses-Offload: Yao et al. 2024, arXiv 2408.16978;
// deepspeed/sequence/fpdt_layer.py).
#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "models/layers.h"
#include "sim/program/rewrite.h"
#include "strategies/context_parallel/context_parallel.h"
#include "strategies/fpdt/chunks.h"
#include "strategies/layer_plans.h"
#include "strategies/strategy.h"
#include "strategies/usp/exchange.h"

namespace orrery::fpdt {
namespace {

// Names of context_parallel_type.
constexpr std::array<std::string_view, 1> kTypes{"fpdt"};

// Megatron-DeepSpeed, megatron/model/transformer.py: fpdt_FFN_chunk_size = chunk size / sequence-parallel ranks / 2.
constexpr std::int64_t kMlpChunksOfAChunk = 2;

// Steps of attention grow with the square of the chunks; with more chunks, ids for their tensors run out.
constexpr std::int64_t kMostChunks = 64;

bool is_used(const Scenario& scenario) { return context_parallel::has_layers_of_type(scenario, kTypes); }

std::int64_t chunks_of(const Scenario& scenario) {
  return std::max<std::int64_t>(1,
                                sequence_length(scenario.model, scenario.workload) / scenario.plan.fpdt.chunk_tokens);
}

// Chunk m of all ranks is the m-th piece of the sequence, in which they have their parts in order: an all-to-all of
// chunks then gives chunks that are causal to each other.
Deal deal_of(std::int64_t chunks, std::int64_t ranks, const DealTables& tables) {
  if (chunks == 1) return Deal::contiguous;
  std::vector<std::int64_t> owners;
  for (std::int64_t m = 0; m < chunks; ++m)
    for (std::int64_t r = 0; r < ranks; ++r) owners.push_back(r);
  return tables.by_blocks(owners);
}

// Runs the ops along an axis chunk by chunk. The backward repeats the forward's ops on it (FPDT_FFN, FPDT_LogitsLoss).
class ChunkedOps {
 public:
  ChunkedOps(Piece& piece, Axis axis, std::int64_t chunks, std::int64_t ranks)
      : piece_(piece),
        axis_(axis),
        chunks_(chunks),
        ranks_(ranks),
        region_(ops_along(piece, axis)),
        inside_(piece, region_) {}

  void run() {
    if (region_.forward.empty()) return;
    find_repeated();
    std::vector<Op> forward, backward;
    for (std::int64_t c = 0; c < chunks_; ++c) {
      SequenceChunk own(piece_, inside_, chunks_, c, ranks_, false);
      for (const std::size_t i : region_.forward) forward.push_back(own.part(Op(piece_.forward.ops[i])));
      if (region_.backward.empty()) continue;
      SequenceChunk again(piece_, inside_, chunks_, c, ranks_, false);
      for (std::size_t id = 0; id < axes_.size(); ++id)
        if (const auto t = static_cast<TensorId>(id); !axes_[id] && own.has(t)) again.set(t, own.part(t));
      for (const std::size_t i : repeated_) {
        backward.push_back(again.part(Op(piece_.forward.ops[i])));
        backward.back().phase = Phase::recompute;
      }
      for (const std::size_t i : region_.backward) backward.push_back(again.part(Op(piece_.backward.ops[i])));
    }
    replace(piece_.forward, piece_, region_.forward, forward);
    replace(piece_.backward, piece_, region_.backward, backward);
  }

 private:
  void find_repeated() {
    for (const Tensor& t : piece_.tensors) axes_.push_back(t.find(axis_) >= 0);
    Storages wanted(piece_);
    const auto want = [&](const Op& op) {
      for (const TensorId id : op.reads)
        if (id != kNoTensor && axes_[id] && inside_.contains(piece_, id)) wanted.add(id);
    };
    for (const std::size_t i : region_.backward) want(piece_.backward.ops[i]);
    for (auto at = region_.forward.rbegin(); at != region_.forward.rend(); ++at) {
      const Op& op = piece_.forward.ops[*at];
      if (!wanted.has_any(op.writes)) continue;
      want(op);
      repeated_.insert(repeated_.begin(), *at);
    }
  }

  Piece& piece_;
  const Axis axis_;
  const std::int64_t chunks_, ranks_;
  const Region region_;
  const Inside inside_;
  std::vector<bool> axes_;             // by tensor: whether it has the axis
  std::vector<std::size_t> repeated_;  // by op of the forward
};

constexpr bool (*kUsed)(const AskedOf&) = [](const AskedOf& a) { return is_used(a.scenario); };

constexpr FieldRule kIdle[]{
    keep({"fpdt_chunk_tokens", "fpdt_offload"}, ", the default, unless context_parallel_type is \"fpdt\"", kUsed)};
constexpr FieldRule kExcludes[]{
    keep({"context_parallel_balance"}, "with context_parallel_type \"fpdt\", which divides sequences by chunks", kUsed),
    keep({"tensor_parallel_overlap"}, "with context_parallel_type \"fpdt\": both divide sequences into chunks", kUsed),
    keep({"sequence_parallel"},
         "with context_parallel_type \"fpdt\" for latent attention: chunks would gather keys that are not there yet",
         [](const AskedOf& a) {
           return kUsed(a) && a.plan.tensor.degree > 1 && a.model.attention == AttentionKind::latent;
         }),
    keep({"recompute"}, "or \"full\" with context_parallel_type \"fpdt\", which recomputes the MLP itself",
         [](const AskedOf& a) {
           return is_used(a.scenario) && a.layers.recompute.mode != activation_recompute::Mode::full;
         })};

void check_chunks(const Scenario& scenario) {
  const std::int64_t length = sequence_length(scenario.model, scenario.workload),
                     given = scenario.plan.fpdt.chunk_tokens, ranks = scenario.plan.context.degree,
                     chunk = std::min(length, given), parts = kMlpChunksOfAChunk * ranks;
  const auto fail = [&](const std::string& expected) { refuse(scenario.plan, "fpdt_chunk_tokens", expected); };
  if (length % chunk != 0) fail("a divisor of the sequence of " + std::to_string(length) + " tokens");
  if (chunk % parts != 0)
    fail("a multiple of " + std::to_string(parts) + " tokens: " + std::to_string(ranks) +
         " ranks divide a chunk, and MLPs halve each part");
  if (length / chunk > kMostChunks)
    fail("at least " + std::to_string((length + kMostChunks - 1) / kMostChunks) + " tokens, " +
         std::to_string(kMostChunks) + " chunks of the sequence of " + std::to_string(length));
}

void check(const Scenario& scenario) {
  if (!is_used(scenario)) return;
  const Plan& plan = scenario.plan;
  const std::int64_t heads = usp::heads_of(scenario).query, chunks = chunks_of(scenario);
  if (heads % plan.context.degree != 0)
    refuse(plan, "context_parallel",
           "a divisor of the " + std::to_string(heads) + " attention heads of a rank, which are exchanged");
  for_each_plan(scenario, [](const Plan& layers, const std::string& at) {
    if (layers.context.type != context_parallel::type_named(kTypes[0]))
      refuse(layers, "context_parallel_type", "\"fpdt\", as in the other layers: it divides sequences by chunks", at);
  });
  const auto fail_type = [&](const char* expected) { refuse(plan, "context_parallel_type", expected); };
  if (scenario.model.kind != ModelKind::decoder)
    fail_type("another type for a model that is not a decoder: chunks attend to earlier chunks");
  if (scenario.model.sliding_window > 0)
    fail_type("another type for a model with a sliding window: chunks attend to all earlier chunks");
  if (scenario.workload.has_documents())
    fail_type("another type for packed documents: chunks attend to all earlier chunks");
  check_chunks(scenario);
  for_each_plan(scenario, [&](const Plan& layers, const std::string& at) {
    if (chunks * chunks * layers.recompute.every > kMostChunks * kMostChunks)
      refuse(layers, "recompute_every",
             "at most " + std::to_string(kMostChunks * kMostChunks / (chunks * chunks)) + " with " +
                 std::to_string(chunks) + " chunks of the sequence",
             at);
  });
}

void add_digits(const Scenario& scenario, Mesh& mesh) {
  if (is_used(scenario)) usp::add_exchange_digits(scenario, scenario.plan.context.degree, mesh);
}

void rewrite_piece(const Scenario& scenario, const Plan& plan, const Program& program, Piece& piece) {
  if (!context_parallel::is_of_type(scenario, plan, kTypes)) return;
  const std::int64_t ranks = scenario.plan.context.degree, chunks = chunks_of(scenario);
  context_parallel::divide_sequence(piece, program.mesh, {usp::exchanging_ranks(program.mesh)},
                                    deal_of(chunks, ranks, program.tables));
  chunk_attention(piece, program.mesh,
                  {.chunks = chunks, .offload = plan.fpdt.offload, .fp32_gradients = plan.context.fp32_gradients});
  for (const Axis axis : {Axis::ffn, Axis::vocab}) ChunkedOps(piece, axis, kMlpChunksOfAChunk * chunks, ranks).run();
}

constexpr PlanWord kWords[]{{"fpdt", is_used}};

}  // namespace

Strategy describe() {
  return {.name = "fpdt",
          .summary = "sequences in chunks that exchange heads, attend online and are kept in host memory",
          .paper = "Yao et al. 2024, arXiv 2408.16978",
          .excludes = kExcludes,
          .idle = kIdle,
          .check = check,
          .rewrite_piece = rewrite_piece,
          .add_digits = add_digits,
          .disable = reset<&Plan::fpdt>,
          .words = kWords,
          .context_types = kTypes};
}

}  // namespace orrery::fpdt
