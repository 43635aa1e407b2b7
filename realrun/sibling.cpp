#include "realrun/sibling.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

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

void become(const std::filesystem::path& program) {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string words{std::istreambuf_iterator<char>(file), {}};  // each ends with a NUL
  std::vector<char*> arguments;
  for (std::size_t at = 0; at < words.size(); at = words.find('\0', at) + 1) arguments.push_back(words.data() + at);
  arguments.push_back(nullptr);
  std::fflush(nullptr);
  execv(program.c_str(), arguments.data());
  throw std::system_error(errno, std::generic_category(), "cannot start " + program.string());
}

}  // namespace orrery
