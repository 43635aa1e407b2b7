#include <stdexcept>

#include "tests/fuzz/targets.h"

void orrery::fuzz::require(bool holds, const char* promise) {
  if (!holds) throw std::logic_error(promise);
}
