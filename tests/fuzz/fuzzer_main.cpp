// libFuzzer's side of all targets: the environment variable ORRERY_FUZZ_TARGET names the one to run.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "sim/base/error.h"
#include "tests/fuzz/json_mutator.h"
#include "tests/fuzz/targets.h"

namespace {

using orrery::fuzz::Form;
using orrery::fuzz::Target;

const Target& target() {
  static const Target& chosen = [&]() -> const Target& {
    const char* const name = std::getenv("ORRERY_FUZZ_TARGET");
    for (const Target& candidate : orrery::fuzz::kTargets) {
      if (name != nullptr && candidate.name == name) return candidate;
    }
    std::fprintf(stderr, "ORRERY_FUZZ_TARGET: found %s, expected a target of tests/fuzz/targets.h\n",
                 name == nullptr ? "nothing" : name);
    std::exit(2);
  }();
  return chosen;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  if (target().form == Form::json) orrery::fuzz::JsonMutator::instance().learn(input);
  try {
    target().run(input);
  } catch (const orrery::InputError& error) {
    orrery::fuzz::require(!error.expected().empty(), "what was expected is said");
  }
  return 0;
}

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

// Bytes changed at random are hardly ever JSON, and then test the parser alone: seven of eight changes to a document
// leave it one.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  if (target().form == Form::text || seed % 8 == 0) return LLVMFuzzerMutate(data, size, most);
  const auto mutated = orrery::fuzz::JsonMutator::instance().mutate({reinterpret_cast<const char*>(data), size}, most, seed);
  if (!mutated) return LLVMFuzzerMutate(data, size, most);
  mutated->copy(reinterpret_cast<char*>(data), mutated->size());
  return mutated->size();
}
