// Linked in place of sim/des/simgrid by programs that are built without SimGrid.
#include <stdexcept>

#include "sim/des/simulation.h"

namespace orrery {

namespace {
[[noreturn]] void refuse() { throw std::logic_error("this program is built without SimGrid; orrery-des has it"); }
}  // namespace

bool built_with_simgrid() { return false; }

Outcome simulate_steps(const RunPlan&) { refuse(); }

Outcome simulate_exchange(const RunPlan&, std::uint32_t) { refuse(); }

}  // namespace orrery
