// A target with the changes that fuzzers make to its inputs, whichever fuzzer it is.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tests/fuzz/json_mutator.h"
#include "tests/fuzz/targets.h"

namespace orrery::fuzz {

class Changes {
 public:
  explicit Changes(const Target& target) : target_(target) {}

  // Runs the target. Returns a refusal's sentence, and nothing if the input was read. Throws what is Orrery's fault.
  std::optional<std::string> run(std::string_view input);

  // Returns the input with other values, by the seed. None: the caller should change bytes. Bytes changed at random are
  // hardly ever JSON, and then test the parser alone, so seven of eight changes to a document leave it one.
  std::optional<std::string> change(std::string_view input, std::size_t most_bytes, unsigned seed);

 private:
  const Target& target_;
  JsonMutator documents_;
};

}  // namespace orrery::fuzz
