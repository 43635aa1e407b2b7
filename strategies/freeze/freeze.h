// Parameters that a step does not train (requires_grad False): by ranges of layers, and the ends of the model. A frozen
// parameter has no gradient (ParameterGradient::gradient), so that it lies in a parameter set of weights alone, which
// are divided and gathered as others are. Of the backward stays what the gradients of trained parameters need: input
// gradients through frozen layers, and nothing in front of the first trained parameter, where layers run forward only.
#pragma once

#include "sim/program/program.h"
#include "strategies/strategy.h"

namespace orrery::freeze {

void check(const Scenario& scenario);
// Comes before everything that rewrites the backward; takes what the backward spares off Program::model.
void rewrite(const Scenario& scenario, Program& program);
std::span<const PlanWord> words();

}  // namespace orrery::freeze
