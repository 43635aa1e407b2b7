// How far are the predictions from what was measured? Prints the table that the README shows, and holds the README to it.
#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "sim/base/json_reader.h"
#include "strategies/read_scenario.h"
#include "tests/simulation/support.h"

namespace orrery {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(Korthikanti2022, TheReadmeShowsTheErrorsAsTheyAre) {
  const std::string path = ORRERY_SOURCE_DIR "/results/published/korthikanti_2022.json";
  const nlohmann::json data = parse_json_file(path);
  std::string table =
      "| model and recomputation | measured | predicted | error |\n"
      "|---|---:|---:|---:|\n";
  double sum = 0, worst = 0;
  for (const auto& point : data.at("points")) {
    const Scenario scenario = read_scenario(point.at("scenario"), {path, {}});
    const double measured = point.at("measured_step_seconds"), predicted = simulate(scenario).step_seconds;
    const double error = predicted / measured - 1;
    sum += std::abs(error);
    worst = std::max(worst, std::abs(error));
    table += fmt::format("| {} | {:.2f} s | {:.2f} s | {:+.1f} % |\n", point.at("name").get<std::string>(), measured, predicted, 100 * error);
  }
  table += fmt::format("| mean of the absolute errors, worst | | | {:.1f} %, {:.1f} % |\n",
                       100 * sum / static_cast<double>(data.at("points").size()), 100 * worst);
  fmt::print("{}", table);
  ASSERT_EQ(data.at("points").size(), 8u);
  EXPECT_NE(read_file(ORRERY_SOURCE_DIR "/README.md").find(table), std::string::npos) << "README.md does not show this table";
}

}  // namespace
}  // namespace orrery
