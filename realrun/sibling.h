// Programs of the same build or installation, in the folder of the running one.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

namespace orrery {

// Path of the running program; nothing if /proc does not say.
std::optional<std::filesystem::path> running_program();

// Path of this program in the running one's folder. Nothing if missing, not executable, or the running program itself.
std::optional<std::filesystem::path> sibling_program(std::string_view name);

// Replaces this process by `program`, with the same arguments. Throws std::system_error if it cannot be started.
[[noreturn]] void become(const std::filesystem::path& program);

}  // namespace orrery
