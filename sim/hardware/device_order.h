// Which of two devices can be no slower than the other, whatever was measured of either.
#pragma once

#include "sim/hardware/cluster.h"

namespace orrery {

// Whether `device` is of `other`'s architecture or a revision of it ("Blackwell Ultra" of "Blackwell"), and at least as
// good in all that the time of a kernel depends on: matrix rates of every type, of the device and of a multiprocessor;
// vector rate; memory bandwidth; L2; multiprocessors; power. Memory's size is no rate, and links are the node's.
// Devices of one die that differ in those alone are no slower than each other.
bool is_no_slower(const Device& device, const Device& other);

}  // namespace orrery
