// orrery: one subcommand a file. Exit codes: 0 done, 2 what was given cannot be used, 1 anything else, such as a step
// that does not end.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/gpu_sibling.h"
#include "realrun/backend.h"
#include "realrun/communicator.h"
#include "sim/base/error.h"
#include "sim/des/engine.h"

namespace {

constexpr const char* kExamples = R"(Examples:
  orrery simulate llama-3-70b-512-h100
  orrery simulate scenario.json --set plan.tensor_parallel=4 --set cluster.nodes=8
  orrery simulate scenario.json --json - --trace step.json --svg schedule.svg
  orrery simulate straggler --engine des
  orrery compare scenario.json --set-b plan.virtual_pipeline=1 --set-b plan.pipeline_schedule=1f1b
  orrery list models
  orrery show dgx-h100

Exit codes: 0 done; 2 the input cannot be used (one line on standard error says why); 1 the step does not end (a
perturbation stops it), or an internal error.)";

int fail(int code, std::string message) {
  for (char& c : message)
    if (c == '\n') c = ' ';
  fmt::print(stderr, "orrery: error: {}\n", message);
  return code;
}

// The option or subcommand that a mistyped word was meant to be.
std::string suggestion(const CLI::App& app, int argc, char** argv) {
  const CLI::App* command = &app;
  for (const CLI::App* used : app.get_subcommands()) command = used;
  std::vector<std::string> known;
  for (const CLI::Option* option : command->get_options())
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  for (const CLI::App* subcommand : command->get_subcommands([](const CLI::App*) { return true; }))
    known.push_back(subcommand->get_name());
  for (int i = 1; i < argc; ++i) {
    const std::string word = std::string(argv[i]).substr(0, std::string(argv[i]).find('='));
    const bool is_known = std::find(known.begin(), known.end(), word) != known.end();
    if (is_known || (command != &app && !word.starts_with("--"))) continue;
    const std::string nearest = orrery::nearest_name(word, known);
    if (!nearest.empty()) return fmt::format(" (did you mean \"{}\"?)", nearest);
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Orrery: how long a training step of a deep network takes on a cluster, and why."};
  app.set_version_flag("--version", "orrery " ORRERY_VERSION);
  app.require_subcommand(1);
  app.footer(kExamples);
  orrery::add_simulate(app);
  orrery::add_compare(app);
  orrery::add_collective(app);
  orrery::add_run(app);
  orrery::add_calibrate(app);
  orrery::add_bench(app);
  orrery::add_list(app);
  orrery::add_show(app);
  orrery::add_schema(app);
  try {
    orrery::become_gpu_sibling(argv);
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    return app.exit(asked);
  } catch (const CLI::RuntimeError& done) {  // nothing failed, but the answer is no
    return done.get_exit_code();
  } catch (const CLI::ParseError& error) {
    return fail(2, error.what() + suggestion(app, argc, argv));
  } catch (const orrery::InputError& error) {
    return fail(2, error.what());
  } catch (const orrery::StalledError& error) {  // may list the waiting ranks line by line
    fmt::print(stderr, "orrery: error: {}\n", error.what());
    return 1;
  } catch (const orrery::ExecutionError& error) {
    return fail(1, error.what());
  } catch (const orrery::DeviceError& error) {
    return fail(1, error.what());
  } catch (const std::exception& error) {
    return fail(1, fmt::format("internal: {}", error.what()));
  }
  return 0;
}
