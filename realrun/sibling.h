// Programs that the same build or installation puts beside the running one.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

namespace orrery {

// The running program itself; none where /proc does not say.
std::optional<std::filesystem::path> running_program();

// The program of this name in the folder of the running one; none where it is missing, not executable, or the running
// one itself.
std::optional<std::filesystem::path> sibling_program(std::string_view name);

// Goes on as `program`, with this process's arguments. Throws std::system_error when it cannot be started.
[[noreturn]] void become(const std::filesystem::path& program);

}  // namespace orrery
