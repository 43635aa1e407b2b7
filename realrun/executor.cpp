#include "realrun/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <nlohmann/json.hpp>

#include "realrun/rank/rank.h"
#include "sim/base/error.h"
#include "sim/report/terms.h"
#include "strategies/lower.h"
#include "strategies/strategy.h"

namespace orrery {
namespace {

using realrun::CarriedParameter;
using realrun::WholeParameter;

// Assembles the ranks' parts in the layout of one rank.
class Assembly {
 public:
  explicit Assembly(const std::vector<WholeParameter>& parameters) {
    for (const WholeParameter& p : parameters) {
      const std::vector<float> none(static_cast<std::size_t>(p.tensor.elements()));
      parts_.push_back({{p.name, {p.tensor.sizes.begin(), p.tensor.sizes.begin() + p.tensor.rank}, none},
                        std::vector<bool>(none.size()),
                        none,
                        none});
    }
  }
  void add(std::size_t parameter, const std::vector<std::int64_t>& element, const std::vector<float>& values) {
    auto& [whole, known, least, most] = parts_[parameter];
    for (std::size_t i = 0; i < element.size(); ++i) {
      const auto e = static_cast<std::size_t>(element[i]);
      if (!known[e]) whole.values[e] = least[e] = most[e] = values[i];
      known[e] = true;
      least[e] = std::min(least[e], values[i]);
      most[e] = std::max(most[e], values[i]);
    }
  }
  // `trained`: omits frozen parameters.
  std::vector<WholeTensor> take(const std::vector<WholeParameter>& parameters, bool trained, double& disagreement) {
    std::vector<WholeTensor> tensors;
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      auto& [whole, known, least, most] = parts_[p];
      if (parameters[p].values_of != static_cast<std::int64_t>(p) || (trained && parameters[p].frozen)) continue;
      if (std::find(known.begin(), known.end(), false) != known.end())
        throw ExecutionError("no rank holds all of \"" + whole.name + "\"");
      double largest = 0, difference = 0;
      for (std::size_t e = 0; e < known.size(); ++e) {
        largest = std::max(largest, std::abs(static_cast<double>(whole.values[e])));
        difference = std::max(difference, static_cast<double>(most[e]) - static_cast<double>(least[e]));
      }
      if (difference > 0) disagreement = std::max(disagreement, largest > 0 ? difference / largest : 1);
      tensors.push_back(std::move(whole));
    }
    return tensors;
  }

 private:
  struct Parts {
    WholeTensor whole;
    std::vector<bool> known;         // by element
    std::vector<float> least, most;  // of the ranks' values
  };
  std::vector<Parts> parts_;  // by parameter
};

}  // namespace

void check_runnable(const Scenario& scenario) {
  const Model& model = scenario.model;
  if (model.kind == ModelKind::swin)
    throw InputError({"", "/model/kind"}, "swin",
                     "another kind: real runs have no ops for shifted windows and their tables yet");
  if (model.kind == ModelKind::encoder_decoder) {
    if (model.positions == Positions::learned)
      throw InputError({"", "/model/positions"}, "learned",
                       "relative, rotary or none in an encoder-decoder: real runs do not support a table of positions "
                       "that two stacks share yet");
    if (model.embedding_norm)
      throw InputError({"", "/model/embedding_norm"}, "true",
                       "false in an encoder-decoder: real runs do not support it yet");
  }
  if (model.relative_projection)
    throw InputError({"", "/model/relative_projection"}, "true", "false: real runs do not support it yet");
  for (const Strategy& strategy : all_strategies())
    if (strategy.check_runnable != nullptr) strategy.check_runnable(scenario);
}

void check_gpus_store(const Program& program) {
  for (const Piece& piece : program.pieces) {
    for (const Block* block : {&piece.forward, &piece.backward})
      for (const Op& op : block->ops)
        if (is_attention(op.kind) &&
            bits_of(piece.tensors[op.reads[queries_operand(op.kind)]].dtype) < bits_of(Dtype::bf16))
          throw InputError({"", "/plan"}, "a plan with attention in fp8", "another: no kernel of a GPU attends so yet");
    for (const Tensor& t : piece.tensors)
      if (block_of(t.dtype) > 0)
        throw InputError({"", "/plan"}, std::string("a plan that keeps \"") + t.name + "\" in " + name_of(t.dtype),
                         "another: no kernel of a GPU stores such numbers yet");
  }
}

namespace {

// Data that all ranks of a run share.
struct Whole {
  explicit Whole(const Scenario& scenario) {
    check_runnable(scenario);
    Program one;
    lower(on_one_rank(scenario), one);
    parameters = realrun::whole_parameters(one, scenario.model.tied_embeddings && scenario.model.vocab > 0);
    const Piece& first = one.pieces[one.line.front().piece];
    const Piece& head = one.pieces[one.line.back().piece];
    sequences = {first.tensors[first.output].sizes[1], head.tensors[head.input].sizes[1]};
  }
  std::vector<WholeParameter> parameters;
  realrun::SequenceLengths sequences;
};

// A parameter of `after` is that of `before` at its place, or new (a router), or copies of what was the only expert.
std::vector<CarriedParameter> carried_parameters(const std::vector<WholeParameter>& before,
                                                 const std::vector<WholeParameter>& after) {
  const auto same = [](const Tensor& a, const Tensor& b, int from) {
    if (b.rank != a.rank + from) return false;
    for (int d = 0; d < a.rank; ++d)
      if (a.sizes[d] != b.sizes[d + from]) return false;
    return true;
  };
  std::vector<CarriedParameter> carried(after.size());
  std::size_t next = 0;
  for (std::size_t p = 0; p < after.size(); ++p) {
    if (next == before.size()) break;
    const Tensor &was = before[next].tensor, &is = after[p].tensor;
    if (same(was, is, 0) || (is.rank > 0 && is.axes[0] == Axis::experts && same(was, is, 1)))
      carried[p] = {before[next++].values_of, was.elements()};
  }
  if (next < before.size())
    throw ExecutionError("\"" + before[next].name + "\" has no place in the run's next Program");
  return carried;
}

// Data about the parts of a run that its ranks need.
class Parts {
 public:
  Parts(std::span<const RunPart> parts, const ExecutionOptions& options) {
    std::int64_t before = 0;
    for (const RunPart& part : parts) {
      Own& own = own_.emplace_back(Own{Whole(part.scenario), options, {}});
      own.options.warmup_steps = std::clamp<std::int64_t>(options.warmup_steps - before, 0, part.steps);
      own.options.steps = part.steps - own.options.warmup_steps;
      own.options.keep_tensors = options.keep_tensors && &part == &parts.back();
      if (own_.size() > 1)
        own.carried = carried_parameters(own_[own_.size() - 2].whole.parameters, own.whole.parameters);
      setups_.push_back(
          {part.scenario, part.program, own.options, own.whole.parameters, own.whole.sequences, before, own.carried});
      before += part.steps;
    }
  }
  std::span<const realrun::RunSetup> setups() const { return setups_; }

 private:
  struct Own {
    Whole whole;
    ExecutionOptions options;
    std::vector<CarriedParameter> carried;
  };
  std::deque<Own> own_;
  std::vector<realrun::RunSetup> setups_;
};

}  // namespace

std::vector<RunPart> parts_of(const Scenario& scenario, std::int64_t steps) {
  std::vector<RunPart> parts;
  Scenario at = scenario;
  for (std::int64_t step = 0; step < std::max<std::int64_t>(steps, 1); ++step, ++at.workload.step) {
    if (step > 0 && !begins_anew(at)) {
      ++parts.back().steps;
      continue;
    }
    parts.push_back({at, {}, 1});
    lower(at, parts.back().program);
    if (parts.size() > 1 && !parts.back().program.tasks.empty())
      throw InputError({"", "/plan"}, "a run whose Programs change from step to step, with tasks beside the step",
                       "one or the other: what tasks keep from step to step is not carried into another Program yet");
  }
  return parts;
}

Execution execute(const Scenario& scenario, const ExecutionOptions& options) {
  const std::vector<RunPart> parts = parts_of(runnable(scenario), options.warmup_steps + options.steps);
  return assemble(parts.back().scenario, execute_ranks(parts, options, [](std::size_t) { return make_cpu_backend(); }));
}

Execution execute(const Scenario& scenario, const Program& program, const ExecutionOptions& options) {
  return assemble(scenario, execute_ranks(scenario, program, options, [](std::size_t) { return make_cpu_backend(); }));
}

std::vector<RankResult> execute_ranks(const Scenario& scenario, const Program& program, const ExecutionOptions& options,
                                      const BackendFactory& factory) {
  const RunPart part{scenario, program, options.warmup_steps + options.steps};
  return execute_ranks(std::span(&part, 1), options, factory);
}

std::vector<RankResult> execute_ranks(std::span<const RunPart> run, const ExecutionOptions& options,
                                      const BackendFactory& factory) {
  const Parts parts(run, options);
  const auto ranks = static_cast<std::size_t>(run.front().program.mesh.ranks());
  std::vector<RankResult> results(ranks);
  run_in_threads(ranks, options.watchdog_seconds, factory, [&](Backend& backend, Communicator& communicator) {
    results[communicator.rank()] = realrun::run_rank(parts.setups(), backend, communicator);
  });
  return results;
}

RankResult execute_rank(std::span<const RunPart> run, const ExecutionOptions& options, Backend& backend,
                        Communicator& communicator) {
  if (backend.facts().kind == "cuda") check_gpus_store(run.front().program);
  const Parts parts(run, options);
  const auto ranks = static_cast<std::size_t>(run.front().program.mesh.ranks());
  if (communicator.ranks() != ranks)
    throw InputError({"", "/plan"}, std::to_string(ranks) + " ranks",
                     std::to_string(communicator.ranks()) + ", the number of ranks that were started");
  return realrun::run_rank(parts.setups(), backend, communicator);
}

Execution assemble(const Scenario& scenario, const std::vector<RankResult>& ranks) {
  Execution result;
  if (ranks.empty()) return result;
  result.losses.assign(ranks.front().losses.size(), 0);
  for (const RankResult& rank : ranks)
    for (std::size_t s = 0; s < result.losses.size(); ++s) result.losses[s] += rank.losses.at(s);
  result.gradient_norms = ranks.front().gradient_norms;
  const bool kept = std::any_of(ranks.begin(), ranks.end(), [](const RankResult& r) { return !r.parts.empty(); });
  if (!kept) return result;
  const Whole whole(scenario);
  Assembly gradients(whole.parameters), values(whole.parameters);
  std::vector<const RankResult*> ordered;
  for (const RankResult& rank : ranks) ordered.push_back(&rank);
  std::sort(ordered.begin(), ordered.end(), [](const auto* a, const auto* b) { return a->rank < b->rank; });
  for (const RankResult* rank : ordered)
    for (const HeldPart& part : rank->parts) {
      if (!part.gradient.empty()) gradients.add(part.parameter, part.element, part.gradient);
      values.add(part.parameter, part.element, part.value);
    }
  result.gradients = gradients.take(whole.parameters, true, result.gradient_disagreement);
  result.parameters = values.take(whole.parameters, false, result.parameter_disagreement);
  return result;
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(HeldPart, parameter, element, gradient, value)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MeasuredOp, piece, op, block, times_per_step, seconds)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RoutedRows, layers, computed, slots, sent, slots_sent, busiest_rank, busiest_expert,
                                   sum_of_busiest_ranks)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PlacedBytes, places)
inline void to_json(nlohmann::json& json, const TimeBreakdown& time) {
  for (const TimeTerm& term : time_terms()) json.push_back(term.of(time));
}
inline void from_json(const nlohmann::json& json, TimeBreakdown& time) {
  for (std::size_t i = 0; i < json.size(); ++i) json[i].get_to(time_terms().at(i).of(time));
}
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankResult, rank, stage, losses, gradient_norms, active_experts, routed_tokens,
                                   parts, seconds_by_step, step_seconds, marked_step_seconds, ops, time, bytes_at_peak,
                                   peak_bytes, rows)

std::vector<std::uint8_t> to_bytes(const RankResult& result) { return nlohmann::json::to_cbor(result); }

RankResult result_of_bytes(std::span<const std::uint8_t> bytes) {
  return nlohmann::json::from_cbor(bytes.begin(), bytes.end());
}

std::vector<RankResult> gather_results(const RankResult& own, Communicator& communicator) {
  const std::vector<std::uint8_t> bytes = to_bytes(own);
  std::vector<double> numbers(2 + bytes.size() / sizeof(double));  // the number of bytes, and the bytes
  numbers[0] = static_cast<double>(bytes.size());
  std::memcpy(&numbers[1], bytes.data(), bytes.size());
  std::vector<RankResult> results;
  for (const auto& of_rank : communicator.gather_values(communicator.everyone(), "results", std::move(numbers)))
    results.push_back(
        result_of_bytes({reinterpret_cast<const std::uint8_t*>(&of_rank[1]), static_cast<std::size_t>(of_rank[0])}));
  return results;
}

}  // namespace orrery
