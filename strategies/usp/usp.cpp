// Ulysses and USP as a strategy (exchange.h).
#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "sim/base/error.h"
#include "sim/program/rewrite.h"
#include "strategies/context_parallel/context_parallel.h"
#include "strategies/layer_plans.h"
#include "strategies/strategy.h"
#include "strategies/usp/exchange.h"

namespace orrery::usp {
namespace {

constexpr std::span<const std::string_view> kUlysses{kTypes.data(), 2}, kUsp{kTypes.data() + 2, 2};

constexpr const char* kRing = "cp.ring";

// Number of ranks that exchange in layers of this plan.
std::int64_t ulysses_ranks(const Scenario& scenario, const Plan& layers) {
  const Plan& plan = scenario.plan;
  if (!context_parallel::is_of_type(scenario, layers, kTypes)) return 1;
  if (context_parallel::is_of_type(scenario, layers, kUlysses)) return plan.context.degree;
  if (plan.usp.ulysses_degree > 0) return plan.usp.ulysses_degree;
  return std::gcd(plan.context.degree, heads_of(scenario).key_value);
}

// The same for all layers of this strategy's types, which agree (check()).
std::int64_t ulysses_ranks(const Scenario& scenario) {
  std::int64_t ranks = 1;
  for_each_plan(scenario,
                [&](const Plan& plan, const std::string&) { ranks = std::max(ranks, ulysses_ranks(scenario, plan)); });
  return ranks;
}

std::int64_t ring_ranks(const Scenario& scenario) { return scenario.plan.context.degree / ulysses_ranks(scenario); }

// The number of exchanging ranks that have different key/value heads.
std::int64_t head_ranks(const Scenario& scenario) {
  return std::gcd(ulysses_ranks(scenario), heads_of(scenario).key_value);
}

// The number of mesh digits that they form: one for each part with more than one rank.
int groups(const Scenario& scenario) {
  const std::int64_t heads = head_ranks(scenario);
  return (ring_ranks(scenario) > 1) + (heads > 1) + (ulysses_ranks(scenario) > heads);
}

// Around each attention, the ranks of a group trade sequence positions for heads.
class ExchangedAttention {
 public:
  ExchangedAttention(const Mesh& mesh, Division ring, Piece& piece)
      : piece_(piece), exchange_(mesh, ring, piece, out_) {}

  void run() { context_parallel::replace_attention(piece_, out_, *this); }

  void forward(const Op& whole) {
    const auto [q, kv] = context_parallel::queries_and_keys(piece_, whole.reads[0], whole.reads[1]);
    Attention a;
    a.local_context = whole.writes[0];
    a.queries = exchange_.with_all_positions(q);
    exchange_.give_positions("ulysses.queries", q, a.queries, whole);
    const Exchange::Keys keys = exchange_.with_all_positions_of_keys(kv, a.queries);
    exchange_.give_keys(kv, keys, whole);
    a.keys = keys.all;
    a.context = exchange_.with_all_positions(whole.writes[0]);
    a.log_sum_exp = exchange_.with_all_positions(whole.writes[1]);
    Op op = whole;
    op.reads[0] = a.queries;
    op.reads[1] = a.keys;
    op.writes = {a.context, a.log_sum_exp, kNoTensor, kNoTensor};
    out_.push_back(op);
    exchange_.take_positions("ulysses.context", a.context, a.local_context, whole);
    attentions_.push_back(a);
  }

  void backward(const Op& whole) {
    const auto found = std::find_if(attentions_.begin(), attentions_.end(),
                                    [&](const Attention& a) { return a.local_context == whole.reads[1]; });
    if (found == attentions_.end()) throw std::logic_error("a backward of an attention that no forward has");
    const Attention a = *found;
    const auto [dq, dkv] = context_parallel::queries_and_keys(piece_, whole.writes[0], whole.writes[1]);
    const TensorId dcontext = exchange_.with_all_positions(whole.reads[0]);
    exchange_.give_positions("ulysses.context_gradient", whole.reads[0], dcontext, whole);
    const TensorId dqueries = exchange_.with_all_positions(dq);
    const Exchange::Keys dkeys = exchange_.with_all_positions_of_keys(dkv, dqueries);
    Op op = whole;
    op.reads = {dcontext, a.context, a.log_sum_exp, a.queries, a.keys, kNoTensor};
    op.writes = {dqueries, dkeys.all, kNoTensor, kNoTensor};
    out_.push_back(op);
    exchange_.take_positions("ulysses.query_gradient", dqueries, dq, whole);
    exchange_.take_key_gradients(dkeys, dkv, whole);
  }

 private:
  // Tensors of a forward with all positions of a rank's heads, and the context by which the backward finds them.
  struct Attention {
    TensorId local_context, queries, keys, context, log_sum_exp;
  };

  Piece& piece_;
  std::vector<Op> out_;
  Exchange exchange_;
  std::vector<Attention> attentions_;
};

constexpr FieldRule kIdle[]{
    keep({"ulysses_inner"}, "without context_parallel_type \"usp\", whose groups it orders",
         [](const AskedOf& a) { return context_parallel::has_layers_of_type(a.scenario, kUsp); })};

void check(const Scenario& scenario) {
  const std::int64_t whole = scenario.plan.context.degree, given = scenario.plan.usp.ulysses_degree;
  // The plan's value, or the one that stands for 0.
  const auto fail = [](std::int64_t found, const std::string& expected) {
    throw InputError({"", "/plan/ulysses_degree"}, std::to_string(found), expected);
  };
  const bool usp = context_parallel::has_layers_of_type(scenario, kUsp);
  const std::int64_t ranks = ulysses_ranks(scenario), heads = heads_of(scenario).query;
  if (given > 1 && whole == 1) fail(given, "0 or 1 with context_parallel 1: there is no other rank to exchange with");
  if (given > 0 && !usp && given != ranks)
    fail(given, "0 without context_parallel_type \"usp\", whose groups it divides");
  if (usp && whole % ranks != 0) fail(ranks, "a divisor of context_parallel, " + std::to_string(whole));
  const bool mixed = !context_parallel::is_all_of_type(scenario, kTypes);
  for_each_plan(scenario, [&](const Plan& plan, const std::string& at) {
    if (!context_parallel::is_of_type(scenario, plan, kTypes)) return;
    const auto fail_type = [&](const std::string& expected) { refuse(plan, "context_parallel_type", expected, at); };
    if (heads % ranks != 0) {
      const std::string expected =
          "a divisor of the " + std::to_string(heads) + " attention heads of a rank, which are exchanged";
      if (usp && given > 0) fail(ranks, expected);
      refuse(scenario.plan, "context_parallel", expected);
    }
    if (ulysses_ranks(scenario, plan) != ranks)
      fail_type("a type with " + std::to_string(ranks) + " ranks that exchange heads, as in the other layers");
    if (mixed && groups(scenario) > 1)
      fail_type("the type of the other layers, where all " + std::to_string(whole) +
                " ranks form one group: here rings, exchanging ranks and ranks that share a key/value head form "
                "separate groups");
  });
  context_parallel::check_deal(scenario, kTypes, ring_ranks(scenario));
}

void add_digits(const Scenario& scenario, Mesh& mesh) {
  if (!context_parallel::has_layers_of_type(scenario, kTypes)) return;
  const bool inner = scenario.plan.usp.ulysses_inner;
  if (!inner) context_parallel::add_ring(scenario, mesh, ring_ranks(scenario), kRing);
  add_exchange_digits(scenario, ulysses_ranks(scenario), mesh);
  if (inner) context_parallel::add_ring(scenario, mesh, ring_ranks(scenario), kRing);
}

void rewrite_piece(const Scenario& scenario, const Plan& plan, const Program& program, Piece& piece) {
  if (!context_parallel::is_of_type(scenario, plan, kTypes)) return;
  const Mesh& mesh = program.mesh;
  const MeshGroup ring = mesh.group(kRing), exchanging = exchanging_ranks(mesh);
  const Deal deal = context_parallel::deal_over(scenario, plan, ring_ranks(scenario), program.tables);
  // A ring's part of the sequence is divided further over the ranks that exchange.
  context_parallel::divide_sequence(piece, mesh, {ring, exchanging}, deal);
  if (!exchanging.empty()) ExchangedAttention(mesh, {ring}, piece).run();  // otherwise a plain ring
  if (ring.empty()) return;
  context_parallel::ring_attention(piece, mesh, context_parallel::ring_groups(scenario, mesh, ring),
                                   plan.context.fp32_gradients);
}

constexpr PlanWord kWords[]{
    {"ulysses", [](const Scenario& s) { return ulysses_ranks(s) > 1; }},
};

}  // namespace

Strategy describe() {
  return {.name = "usp",
          .summary = "sequences divided over ranks that exchange heads for positions, alone or in rings",
          .paper = "Jacobs et al. 2023, arXiv 2309.14509; Fang & Zhao 2024, arXiv 2405.07719",
          .idle = kIdle,
          .check = check,
          .rewrite_piece = rewrite_piece,
          .add_digits = add_digits,
          .disable = reset<&Plan::usp>,
          .words = kWords,
          .context_types = kTypes};
}

}  // namespace orrery::usp
