#include "cli/batch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/output.h"
#include "sim/base/json_reader.h"
#include "sim/report/format.h"
#include "sim/report/json.h"

namespace orrery {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson error_json(const InputError& error) {
  return {{"error",
           {{"message", error.what()},
            {"file", error.where().file},
            {"pointer", error.where().pointer},
            {"found", error.found()},
            {"expected", error.expected()},
            {"nearest", error.nearest()}}}};
}

// On a terminal, how far a batch has come: not before it has taken a second, and a few times a second from then on.
class Progress {
 public:
  explicit Progress(std::size_t total) : total_(total) {}

  void advance() {
    ++done_;
    if (!line_.on_terminal()) return;
    const auto now = Clock::now();
    if (now < next_) return;
    next_ = now + std::chrono::milliseconds(200);
    const double elapsed = std::chrono::duration<double>(now - start_).count();
    std::string left_over;
    if (total_ > 0)
      left_over = fmt::format(" of {}, {} to go", total_,
                              seconds_text(elapsed / static_cast<double>(done_) * static_cast<double>(total_ - done_)));
    line_.show(fmt::format("{} scenarios{}", done_, left_over));
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::size_t total_, done_ = 0;
  ProgressLine line_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point next_ = start_ + std::chrono::seconds(1);
};

std::size_t count_lines(std::ifstream& file) {
  std::size_t lines = 0;
  for (std::string line; std::getline(file, line);) ++lines;
  file.clear();
  file.seekg(0);
  return file.fail() ? 0 : lines;
}

}  // namespace

OrderedJson result_json(const Report& report, bool ops) {
  OrderedJson json = report_json(report);
  if (!ops) json.erase("ops");
  json["version"] = ORRERY_VERSION;
  return json;
}

OrderedJson jobs_json(const std::vector<JobResult>& jobs, bool ops) {
  OrderedJson list = OrderedJson::array();
  for (const JobResult& result : jobs) {
    OrderedJson together = report_json(result.together);
    if (!ops) together.erase("ops");
    list.push_back({{"name", result.job.name},
                    {"nodes", result.job.scenario.cluster.nodes},
                    {"first_node", result.job.placement.first_node},
                    {"node_stride", result.job.placement.node_stride},
                    {"slowdown", result.slowdown()},
                    {"alone_seconds", result.alone_seconds},
                    {"most_shared_link", result.most_shared_link},
                    {"together", std::move(together)}});
  }
  return {{"jobs", std::move(list)}, {"version", ORRERY_VERSION}};
}

void run_batch(const std::string& input, const std::vector<std::string>& sets, const std::string& output,
               SimulationOptions options, bool ops, UserCalibration user) {
  const bool standard_input = input == "-";
  const std::string name = standard_input ? "<stdin>" : input;
  std::ifstream file;
  if (!standard_input) {
    file.open(input);
    if (!file || file.peek() == std::ifstream::traits_type::eof()) {
      const char* reason = file ? "the file is empty" : std::strerror(errno);
      if (!file || file.bad())
        throw InputError({name, ""}, fmt::format("nothing ({})", reason), "a readable file of JSON lines");
      file.clear();
    }
  }
  Progress progress(!standard_input && ::isatty(STDERR_FILENO) != 0 ? count_lines(file) : 0);
  std::istream& lines = standard_input ? std::cin : file;
  OutputStream results(output);
  options.timeline = false;
  options.ops = true;
  Simulator simulator(std::move(user));
  std::size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    const ScenarioSource source{fmt::format("{}:{}", name, ++number), sets};
    OrderedJson result;
    try {
      nlohmann::json document = parse_json(line, source.file);
      for (const std::string& set : sets) apply_set(document, set, source.file);
      result = options.engine == Engine::des && has_jobs(document)
                   ? jobs_json(simulator.evaluate_jobs(document, source, options), ops)
                   : result_json(simulator.evaluate(document, source, options).report, ops);
    } catch (const InputError& error) {
      result = error_json(error);
    } catch (const StalledError& error) {
      result = {{"error", {{"message", error.what()}, {"file", source.file}, {"stalled", true}}}};
    }
    results.write(result.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n");
    progress.advance();
  }
  results.commit();
}

}  // namespace orrery
