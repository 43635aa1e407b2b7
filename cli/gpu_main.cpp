// orrery-gpu: the subcommands of `orrery` that run something, for a machine with an NVIDIA GPU, the CUDA libraries and
// nothing else. Exit codes as orrery's.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <exception>
#include <string>

#include "cli/commands.h"
#include "realrun/backend.h"
#include "realrun/communicator.h"
#include "sim/base/error.h"

namespace {

constexpr const char* kExamples = R"(Examples:
  orrery-gpu run small-gpt --device cuda --check
  orrery-gpu calibrate --device cuda --output h200.json
  orrery-gpu run gpt2-124m-h200 --device cuda --predict --calibration h200.json
  orrery-gpu bench --device cuda --output kernels.json

Exit codes: 0 done; 2 the input cannot be used (one line on standard error says why); 1 the GPU or a rank failed, or an
internal error.)";

int fail(int code, std::string message) {
  for (char& c : message)
    if (c == '\n') c = ' ';
  fmt::print(stderr, "orrery-gpu: error: {}\n", message);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Orrery on a GPU: runs training steps, kernels and their calibration."};
  app.set_version_flag("--version", "orrery-gpu " ORRERY_VERSION);
  app.require_subcommand(1);
  app.footer(kExamples);
  orrery::add_run(app);
  orrery::add_calibrate(app);
  orrery::add_bench(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    return app.exit(asked);
  } catch (const CLI::RuntimeError& done) {  // nothing failed, but the answer is no
    return done.get_exit_code();
  } catch (const CLI::ParseError& error) {
    return fail(2, error.what());
  } catch (const orrery::InputError& error) {
    return fail(2, error.what());
  } catch (const orrery::ExecutionError& error) {
    return fail(1, error.what());
  } catch (const orrery::DeviceError& error) {
    return fail(1, error.what());
  } catch (const std::exception& error) {
    return fail(1, fmt::format("internal: {}", error.what()));
  }
  return 0;
}
