#include "realrun/executor.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <thread>

#include "realrun/cpu/rank.h"
#include "sim/base/error.h"
#include "strategies/lower.h"

namespace orrery {
namespace {

using cpu::HeldPart;
using cpu::Rank;
using cpu::WholeParameter;

void check_runnable(const Scenario& scenario) {
  const Model& model = scenario.model;
  if (model.kind != ModelKind::decoder && model.kind != ModelKind::encoder)
    throw InputError({"", "/model/kind"}, "a model with images or two stacks",
                     "a decoder or an encoder: others are not run yet");
  if (model.attention == AttentionKind::latent)
    throw InputError({"", "/model/attention"}, "\"latent\"",
                     "\"multi_head\": the Program of latent attention leaves out its rotary key");
  if (model.relative_projection) throw InputError({"", "/model/relative_projection"}, "true", "false: not run yet");
  if (model.pooler &&
      (scenario.plan.context.degree > 1 || (scenario.plan.tensor.sequence_parallel && scenario.plan.tensor.degree > 1)))
    throw InputError({"", "/model/pooler"}, "true on parts of a sequence",
                     "false: only one rank would hold the first token");
}

// Puts the ranks' parts into the layout of one rank.
class Assembly {
 public:
  explicit Assembly(const std::vector<WholeParameter>& parameters) {
    for (const WholeParameter& p : parameters) {
      whole_.push_back({p.name, {p.tensor.sizes.begin(), p.tensor.sizes.begin() + p.tensor.rank}, {}});
      const auto n = static_cast<std::size_t>(p.tensor.elements());
      known_.emplace_back(n, false);
      least_.emplace_back(n, 0.0f);
      most_.emplace_back(n, 0.0f);
      whole_.back().values.assign(n, 0.0f);
    }
  }
  void add(std::size_t parameter, const std::vector<std::int64_t>& element, const std::vector<float>& values) {
    for (std::size_t i = 0; i < element.size(); ++i) {
      const auto e = static_cast<std::size_t>(element[i]);
      if (!known_[parameter][e]) {
        whole_[parameter].values[e] = least_[parameter][e] = most_[parameter][e] = values[i];
        known_[parameter][e] = true;
      } else {
        least_[parameter][e] = std::min(least_[parameter][e], values[i]);
        most_[parameter][e] = std::max(most_[parameter][e], values[i]);
      }
    }
  }
  std::vector<WholeTensor> take(const std::vector<WholeParameter>& parameters, double& disagreement) {
    std::vector<WholeTensor> tensors;
    for (std::size_t p = 0; p < whole_.size(); ++p) {
      if (parameters[p].values_of != static_cast<std::int64_t>(p)) continue;
      if (std::find(known_[p].begin(), known_[p].end(), false) != known_[p].end())
        throw ExecutionError("no rank holds all of \"" + whole_[p].name + "\"");
      double largest = 0, difference = 0;
      for (std::size_t e = 0; e < known_[p].size(); ++e) {
        largest = std::max(largest, std::abs(static_cast<double>(whole_[p].values[e])));
        difference = std::max(difference, static_cast<double>(most_[p][e]) - static_cast<double>(least_[p][e]));
      }
      if (difference > 0) disagreement = std::max(disagreement, largest > 0 ? difference / largest : 1);
      tensors.push_back(std::move(whole_[p]));
    }
    return tensors;
  }

 private:
  std::vector<WholeTensor> whole_;
  std::vector<std::vector<bool>> known_;
  std::vector<std::vector<float>> least_, most_;
};

}  // namespace

Scenario on_one_rank(const Scenario& scenario) {
  Scenario one = scenario;
  one.plan.tensor = {};
  one.plan.context = {};
  one.plan.pipeline = {};
  one.plan.data = {};
  one.plan.data.degree = 1;
  one.plan.recompute = {};
  one.plan.offload = {};
  return one;
}

Execution execute(const Scenario& scenario, const ExecutionOptions& options) {
  Program program;
  lower(scenario, program);
  return execute(scenario, program, options);
}

Execution execute(const Scenario& scenario, const Program& program, const ExecutionOptions& options) {
  check_runnable(scenario);
  Program one;
  lower(on_one_rank(scenario), one);
  const bool tied = scenario.model.tied_embeddings && scenario.model.vocab > 0;
  const std::vector<WholeParameter> parameters = cpu::whole_parameters(one, tied);
  const Piece& first = one.pieces[one.line.front().piece];
  const cpu::RunSetup setup{scenario, program, options, parameters, first.tensors[first.output].sizes[1]};

  const auto ranks = static_cast<std::size_t>(program.mesh.ranks());
  cpu::Exchange exchange(ranks, options.watchdog_seconds);
  std::vector<std::unique_ptr<Rank>> all;
  for (std::size_t r = 0; r < ranks; ++r) all.push_back(std::make_unique<Rank>(r, setup, exchange));
  {
    std::vector<std::jthread> threads;
    for (const auto& rank : all)
      threads.emplace_back([&exchange, &rank] {
        try {
          rank->run();
        } catch (...) {
          exchange.fail(std::current_exception());
        }
      });
  }
  exchange.rethrow();
  if (exchange.undelivered() > 0)
    throw ExecutionError(std::to_string(exchange.undelivered()) + " messages between stages were never received");

  Execution result;
  for (std::int64_t step = 0; step < options.steps; ++step) {
    double loss = 0;
    for (const auto& rank : all) loss += rank->loss(step);
    result.losses.push_back(loss);
    result.gradient_norms.push_back(all[0]->gradient_norm(step));
  }
  Assembly gradients(parameters), values(parameters);
  for (const auto& rank : all)
    for (const HeldPart& part : rank->held()) {
      gradients.add(part.parameter, part.element, part.gradient);
      values.add(part.parameter, part.element, part.value);
    }
  result.gradients = gradients.take(parameters, result.gradient_disagreement);
  result.parameters = values.take(parameters, result.parameter_disagreement);
  return result;
}

}  // namespace orrery
