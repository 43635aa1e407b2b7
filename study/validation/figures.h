// Published figures other than steps, of mixtures of experts and of long contexts (results/published/moe.json and
// long_context.json, compiled in): times of ops, rates of exchanges, what fits, speed-ups. Each has its prediction, or
// the reason why there is none. results/published/README.md describes the format.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "sim/base/error.h"
#include "study/simulation/simulation.h"

namespace orrery {

struct PublishedFigure {
  std::string about;  // what its file is about: "mixtures of experts"
  std::string id, source, what, unit;
  double value = 0;           // as published, in `unit`
  double predicted = 0;       // in the same unit
  std::string not_predicted;  // the reason; empty: predicted
  std::string in_sample;      // the part of the prediction that was fitted to this very figure; empty: none
  bool is_predicted() const { return not_predicted.empty(); }
  bool has_error() const { return is_predicted() && value != 0; }
  double error() const { return predicted / value - 1; }
};

// Reads a document of figures and predicts each of them; `file` names it in errors. Throws InputError, with the
// pointer, for unknown keys, for ids that come twice and for ops that the step does not have.
std::vector<PublishedFigure> predicted_figures(const nlohmann::json& document, const std::string& file,
                                               Simulator& simulator);
// Returns the predicted figures of all bundled files.
std::vector<PublishedFigure> predicted_figures(Simulator& simulator);

// These group figures by what they are about. The table has a row for each predicted figure, and then says why others
// are not predicted.
std::string figures_table(std::span<const PublishedFigure> figures);
std::string figures_line(std::span<const PublishedFigure> figures);  // a summary in one line
std::string figures_markdown(std::span<const PublishedFigure> figures);

}  // namespace orrery
