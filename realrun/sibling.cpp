#include "realrun/sibling.h"

#include <unistd.h>

#include <system_error>

namespace orrery {

std::optional<std::filesystem::path> running_program() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return std::nullopt;
  return self;
}

std::optional<std::filesystem::path> sibling_program(std::string_view name) {
  const auto self = running_program();
  if (!self) return std::nullopt;
  const std::filesystem::path sibling = self->parent_path() / name;
  if (sibling == *self || access(sibling.c_str(), X_OK) != 0) return std::nullopt;
  return sibling;
}

}  // namespace orrery
