#include "cli/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "realrun/backend.h"
#include "realrun/communicator.h"
#include "sim/base/error.h"

namespace orrery {
namespace {

int fail(const char* program, int code, std::string message) {
  for (char& c : message)
    if (c == '\n') c = ' ';
  fmt::print(stderr, "{}: error: {}\n", program, message);
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
    const std::string nearest = nearest_name(word, known);
    if (!nearest.empty()) return fmt::format(" (did you mean \"{}\"?)", nearest);
  }
  return {};
}

}  // namespace

int run_command_line(const char* program, const CLI::App& app, int argc, char** argv,
                     const std::function<void()>& parse) {
  try {
    parse();
  } catch (const CLI::Success& asked) {  // --help, --version
    return app.exit(asked);
  } catch (const CLI::RuntimeError& done) {  // nothing failed, but the answer is no
    return done.get_exit_code();
  } catch (const CLI::ParseError& error) {
    return fail(program, 2, error.what() + suggestion(app, argc, argv));
  } catch (const InputError& error) {
    return fail(program, 2, error.what());
  } catch (const ExecutionError& error) {
    return fail(program, 1, error.what());
  } catch (const DeviceError& error) {
    return fail(program, 1, error.what());
  } catch (const std::exception& error) {
    return fail(program, 1, fmt::format("internal: {}", error.what()));
  }
  return 0;
}

}  // namespace orrery
