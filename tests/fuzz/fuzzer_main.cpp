// libFuzzer's side of one target, ORRERY_FUZZ_TARGET.
#include <cstddef>
#include <cstdint>

#include "sim/base/error.h"
#include "tests/fuzz/targets.h"
#ifdef ORRERY_FUZZ_JSON
#include "tests/fuzz/json_mutator.h"
#endif

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
#ifdef ORRERY_FUZZ_JSON
  orrery::fuzz::JsonMutator::instance().learn(input);
#endif
  try {
    orrery::fuzz::ORRERY_FUZZ_TARGET(input);
  } catch (const orrery::InputError& error) {
    orrery::fuzz::require(!error.expected().empty(), "what was expected is said");
  }
  return 0;
}

#ifdef ORRERY_FUZZ_JSON
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

// Bytes changed at random are no JSON any more nearly always, and then test the parser alone.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  const auto mutated = seed % 8 == 0 ? std::nullopt
                                     : orrery::fuzz::JsonMutator::instance().mutate(
                                           {reinterpret_cast<const char*>(data), size}, most, seed);
  if (!mutated) return LLVMFuzzerMutate(data, size, most);
  mutated->copy(reinterpret_cast<char*>(data), mutated->size());
  return mutated->size();
}
#endif
