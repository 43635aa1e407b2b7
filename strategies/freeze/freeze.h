// Frozen parameters, which a step does not train (requires_grad False): by ranges of layers, and at the model's ends. A
// frozen parameter has no gradient (ParameterGradient::gradient). It lies in a parameter set that has only weights,
// which are divided and gathered like others. The backward keeps only what gradients of trained parameters need: input
// gradients through frozen layers, and nothing before the first trained parameter, where layers run forward only.
#pragma once

#include "sim/program/program.h"
#include "strategies/strategy.h"

namespace orrery::freeze {

void check(const Scenario& scenario);
// Runs before everything that rewrites the backward. Subtracts the omitted backward FLOPs from Program::model.
void rewrite(const Scenario& scenario, Program& program);
std::span<const PlanWord> words();

}  // namespace orrery::freeze
