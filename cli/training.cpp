#include "cli/training.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/output.h"
#include "cli/title.h"
#include "sim/base/json_writer.h"
#include "study/answers/inputs.h"
#include "study/training/training_report.h"

namespace orrery {

void simulate_training(const Asked& asked, TrainingRequest request, const TrainingOutputs& wanted) {
  check_outputs({wanted.json == "-" ? "" : wanted.json, wanted.csv == "-" ? "" : wanted.csv,
                 wanted.svg == "-" ? "" : wanted.svg});
  TrainingAnswer answer;
  {
    ProgressLine line;
    request.progress = [&](std::int64_t done, std::int64_t predicted) {
      if (line.is_due()) line.show(fmt::format("{} of {} steps, {} of them predicted", done, request.steps, predicted));
    };
    answer = training_answer(asked, request);
  }
  const Training& training = answer.training;
  const std::vector<std::string> title = title_of(answer.scenario);
  Outputs outputs;
  outputs.add_wanted(wanted.json, [&] { return json_text(training_answer_json(asked, training), 2) + "\n"; });
  outputs.add_wanted(wanted.csv, [&] {
    const std::uint64_t digest = scenario_digest(written_out(asked.document, asked.source));
    return training_csv(training, wanted.row_name, kInputColumns, InputsOfMany(asked.calibrations).columns(digest));
  });
  outputs.add_wanted(wanted.svg, [&] { return training_svg(training, title); });
  if (!outputs.on_standard_output()) outputs.add("-", training_table(training, title));
  outputs.commit();
}

}  // namespace orrery
