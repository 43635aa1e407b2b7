// libFuzzer's side of all targets: the environment variable ORRERY_FUZZ_TARGET names the one to run.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "tests/fuzz/changes.h"

namespace {

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

orrery::fuzz::Changes& changes() {
  static orrery::fuzz::Changes of_target(target());
  return of_target;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  changes().run({reinterpret_cast<const char*>(data), size});
  return 0;
}

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  const auto changed = changes().change({reinterpret_cast<const char*>(data), size}, most, seed);
  if (!changed) return LLVMFuzzerMutate(data, size, most);
  changed->copy(reinterpret_cast<char*>(data), changed->size());
  return changed->size();
}
