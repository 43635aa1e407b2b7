#include "cli/command_line.h"

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <string>
#include <string_view>

#include "cli/command.h"
#include "cli/output.h"
#include "realrun/backend.h"
#include "realrun/communicator.h"
#include "sim/base/error.h"

namespace orrery {
namespace {

constexpr std::size_t kMostBytes = 4000;  // of a message: what was found may be a megabyte of it

// One line whatever was found: control characters, which would act on a terminal, are written out.
std::string one_line(std::string_view message) {
  std::string line;
  for (const char c : message.substr(0, kMostBytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      line += ' ';
    } else if (byte < 0x20 || byte == 0x7f) {
      line += fmt::format("\\x{:02x}", byte);
    } else {
      line += c;
    }
  }
  return message.size() > kMostBytes ? line + " ..." : line;
}

int fail(const char* program, int code, std::string_view message) {
  const std::string line = fmt::format("{}: error: {}\n", program, one_line(message));
  std::fputs(line.c_str(), stderr);  // where nobody can be told, the exit code tells
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
  } catch (const std::exception& error) {
    return fail(program, 1, fmt::format("internal: {}", error.what()));
  }
  return 0;
}

}  // namespace orrery
