// SimGrid allows one simulation per process, and ends the process when it fails. Runs therefore happen in a child
// process.
#pragma once

#include <functional>
#include <string>

namespace orrery {

// Runs `work` in a fork of this process and returns its result. Other changes that `work` makes are lost. Throws
// std::runtime_error with the child's message if it threw, or with its signal if it died.
std::string run_in_child(const std::function<std::string()>& work);
// The largest memory of the last child, for benchmarks.
double last_child_peak_bytes();
// In the child: ends it at once, from any depth of the stack.
[[noreturn]] void return_from_child(const std::string& result);

}  // namespace orrery
