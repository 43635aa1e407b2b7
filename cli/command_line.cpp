#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <string_view>

#include "cli/commands.h"
#include "cli/output.h"
#include "realrun/backend.h"
#include "realrun/communicator.h"
#include "sim/base/error.h"
#include "sim/base/one_line.h"

namespace orrery {
namespace {

int fail(const char* program, int code, std::string_view message) {
  const std::string line = fmt::format("{}: error: {}\n", program, one_line(message));
  std::fputs(line.c_str(), stderr);  // if standard error is closed, the exit code must do
  return code;
}

}  // namespace

int run_command_line(const char* program, const std::function<void()>& parse) {
  try {
    try {
      parse();
    } catch (const Exit& end) {
      print(end.text);
      return end.code;
    }
  } catch (const UsageError& error) {
    return fail(program, 2, error.what());
  } catch (const InputError& error) {
    return fail(program, 2, error.what());
  } catch (const ExecutionError& error) {
    return fail(program, 1, error.what());
  } catch (const DeviceError& error) {
    return fail(program, 1, error.what());
  } catch (const std::bad_alloc&) {
    return fail(program, 1,
                "out of memory: this takes more than the process may have (ulimit -v); fewer --threads take less");
  } catch (const std::exception& error) {
    return fail(program, 1, error_text(error));
  }
  return 0;
}

}  // namespace orrery
