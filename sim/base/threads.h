// Threads on a machine that may refuse to start them, because processes (ulimit -u, a container's pids) or address
// space (ulimit -v) are limited.
#pragma once

#include <cstddef>
#include <functional>
#include <system_error>

#include "sim/base/error.h"

namespace orrery {

// The threads that the machine runs at the same time; at least 1.
int hardware_threads();

// Returns how many of `most` threads to start. It finds out by starting them: `most` if all of them start. If a limit
// stops some, it returns a quarter of those that started, because threads also need memory for their work. 0: none
// started. This is not a guarantee: another process may use up the limit before the caller starts its threads.
int startable_threads(int most);

// Calls work(i, thread) for each i below `count` on `threads` threads, one of which is the caller's; on fewer if the
// machine starts fewer. `thread`: the number of the calling thread, below `threads`. After a call has thrown, no new
// call begins. When the running calls have ended, it throws the exception of the lowest i.
void for_each_index(std::size_t count, int threads, const std::function<void(std::size_t, std::size_t)>& work);

// The error to throw if a thread cannot be started. `option`: the option that sets the number of threads, "--threads".
InputError no_thread(const char* option, const std::system_error& why);

}  // namespace orrery
