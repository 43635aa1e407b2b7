// Topics of `--explain` that strategies bring: texts on a scenario and what an engine says of it.
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

// A scenario as an engine has evaluated it. Strategies know no engine: whoever asks for a topic hands them this.
class Evaluated {
 public:
  virtual ~Evaluated() = default;
  virtual const Scenario& scenario() const = 0;
  virtual const Program& program() const = 0;
  virtual const Report& report() const = 0;
  // An op by itself, by the cost models, with operands of these sizes; no time for a collective over one rank.
  struct Time {
    double seconds = 0, flops = 0;
  };
  virtual Time time(const Op& op, std::span<const Tensor> tensors) const = 0;
  virtual double forward_seconds(const Piece& piece) const = 0;  // of one micro-batch
};
// Evaluates another scenario by the same engine. The result is valid until the next call. Throws InputError.
using Evaluate = std::function<std::unique_ptr<Evaluated>(const Scenario&)>;

struct Topic {
  // What it is asked for by: its own name, and behind it lines of the report by their labels and by their names in
  // JSON.
  std::span<const std::string_view> names;
  std::string_view summary;  // one line
  // Throws InputError ("--explain") where the plan has nothing of the kind.
  std::string (*text)(const Evaluated& here, const Evaluate& evaluate);
};

}  // namespace orrery
