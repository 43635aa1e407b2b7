#include <nlohmann/json.hpp>

#include "sim/base/json_reader.h"
#include "study/validation/errors.h"
#include "tests/fuzz/targets.h"

void orrery::fuzz::accuracy_baseline(std::string_view input) {
  PublishedSource source;
  source.name = "aws_torchtitan";
  PublishedPoint point;
  point.value = 2;
  PredictedPoint predicted;
  predicted.source = &source;
  predicted.point = &point;
  predicted.predicted = 3;
  moved_table(moved_groups({&predicted, 1}, parse_json(input, "accuracy.json"), "accuracy.json"));
}
