// Threads where the machine may refuse them: limits of processes (ulimit -u, a container's pids) and of address space.
#pragma once

#include <cstddef>
#include <functional>
#include <system_error>

#include "sim/base/error.h"

namespace orrery {

// How many of `most` threads can be at work at once: `most`, or where a limit stops them short a part of what it allows,
// which leaves them room to work in. 0: none. Tries it, so another process may take their place afterwards.
int startable_threads(int most);

// Calls work(i) for each i below `count` on so many threads, this one among them; on fewer where the machine starts
// fewer. Throws what the call with the lowest i has thrown, when all that were under way have ended.
void for_each_index(std::size_t count, int threads, const std::function<void(std::size_t)>& work);

// That a thread cannot be started. `option`: with which the user says how many, "--threads".
InputError no_thread(const char* option, const std::system_error& why);

}  // namespace orrery
