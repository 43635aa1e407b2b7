// Linked in place of sim/memory/cbc by programs that are built without its solver.
#include <stdexcept>

#include "sim/memory/address_layout.h"

namespace orrery {

bool built_with_cbc() { return false; }

AddressLayout smallest_layout(std::span<const StorageLife>, const LayoutLimits&) {
  throw std::logic_error("this program is built without COIN-OR CBC; orrery-des has it");
}

}  // namespace orrery
