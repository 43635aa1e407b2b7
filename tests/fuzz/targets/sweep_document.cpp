#include <nlohmann/json.hpp>

#include "sim/base/json_reader.h"
#include "study/sweep/document.h"
#include "tests/fuzz/targets.h"

void orrery::fuzz::sweep_document(std::string_view input) {
  const SweepDocument sweep = read_sweep(parse_json(input, "sweep.json"), "sweep.json");
  require(count_points(sweep) > 0, "a sweep has points");
  constexpr std::int64_t kLooked = 200;
  SweepLines lines(sweep);
  SweepCursor cursor(sweep.axes);
  do {
    require(nlohmann::json::parse(lines.fields(cursor.choices())).is_object(), "a point's fields are an object");
    try {
      const std::string& line = lines.line(cursor.choices());
      require(nlohmann::json::parse(line).is_object() && line.find('\n') == line.npos, "a point is a line of JSON");
    } catch (const InputError&) {  // a value that cannot be set beside the others: its row says so
    }
  } while (cursor.advance() && cursor.number() < kLooked);
}
