// An order of devices by their data sheets: which of two devices cannot be the slower one, whatever was measured.
#pragma once

#include "sim/hardware/cluster.h"

namespace orrery {

// Returns whether `device` has the architecture of `other` or a revision of it ("Blackwell Ultra" of "Blackwell"), and
// is at least as good in all that the time of a kernel depends on: the matrix rate of every type, for the device and
// for a multiprocessor; vector rate; memory bandwidth; L2; number of multiprocessors; power. Rates may differ by 0.1 %,
// as data sheets round. The size of memory does not count, nor do links, which belong to the node: two devices that
// differ in these alone are each no slower than the other.
bool is_no_slower(const Device& device, const Device& other);

}  // namespace orrery
