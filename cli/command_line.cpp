#include "cli/command_line.h"

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <string>

#include "cli/command.h"
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

}  // namespace

int run_command_line(const char* program, const std::function<void()>& parse) {
  try {
    parse();
  } catch (const Exit& end) {
    fmt::print("{}", end.text);
    return end.code;
  } catch (const UsageError& error) {
    return fail(program, 2, error.what());
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
