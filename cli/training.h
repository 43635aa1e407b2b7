// orrery simulate --steps: many steps of one scenario.
#pragma once

#include <string>

#include "study/answers/results.h"
#include "study/answers/training_answer.h"

namespace orrery {

struct TrainingOutputs {
  std::string json, csv, svg;  // files; empty: none
  std::string row_name;        // of the CSV
};

void simulate_training(const Asked& asked, TrainingRequest request, const TrainingOutputs& outputs);

}  // namespace orrery
