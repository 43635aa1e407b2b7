// Topics of `--explain` that strategies define. A topic is a text about a scenario and an engine's result for it.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "sim/program/program.h"
#include "sim/report/report.h"
#include "strategies/scenario.h"

namespace orrery {

// A scenario and its evaluation by an engine. Strategies must not know the engines, so the caller of a topic passes
// this interface (study/simulation/simulation.h implements it).
class Evaluated {
 public:
  virtual ~Evaluated() = default;
  virtual const Scenario& scenario() const = 0;
  virtual const Program& program() const = 0;
  virtual const Report& report() const = 0;
  struct Time {
    double seconds = 0, flops = 0;
  };
  // Returns the cost of one op that runs alone, by the cost models. Op::reads and writes index `tensors`. A collective
  // over one rank takes 0 seconds.
  virtual Time time(const Op& op, std::span<const Tensor> tensors) const = 0;
  // Returns the time of a piece's forward for one micro-batch.
  virtual double forward_seconds(const Piece& piece) const = 0;
};
// Evaluates another scenario by the same engine. The result is valid until the next call. Throws InputError.
using Evaluate = std::function<std::unique_ptr<Evaluated>(const Scenario&)>;

struct Topic {
  // The words that ask for the topic. The first is its own name. The others are lines of the report that it explains,
  // by their labels and by their names in JSON.
  std::span<const std::string_view> names;
  std::string_view summary;  // one line
  // Returns the text. `here` is the scenario asked about; `evaluate` evaluates variants of it. Throws InputError
  // ("--explain") if the plan does not use what the topic explains.
  std::string (*text)(const Evaluated& here, const Evaluate& evaluate);
};

}  // namespace orrery
