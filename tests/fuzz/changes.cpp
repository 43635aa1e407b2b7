#include "tests/fuzz/changes.h"

#include "sim/base/error.h"

namespace orrery::fuzz {

std::optional<std::string> Changes::run(std::string_view input) {
  if (target_.form == Form::json) documents_.learn(input);
  try {
    target_.run(input);
  } catch (const InputError& error) {
    require(!error.expected().empty(), "what was expected is said");
    return error.what();
  }
  return std::nullopt;
}

std::optional<std::string> Changes::change(std::string_view input, std::size_t most_bytes, unsigned seed) {
  if (target_.form == Form::text || seed % 8 == 0) return std::nullopt;
  return documents_.mutate(input, most_bytes, seed);
}

}  // namespace orrery::fuzz
