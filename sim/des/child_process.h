// SimGrid keeps one simulation a process, and ends the process when one goes wrong: runs happen in a child.
#pragma once

#include <functional>
#include <string>

namespace orrery {

// Runs `work` in a fork of this process and returns what it returned. What `work` changes is lost. Throws
// std::runtime_error with the child's message when it threw, or with its signal when it died.
std::string run_in_child(const std::function<std::string()>& work);
// Most memory that the last child held; for benchmarks.
double last_child_peak_bytes();
// In the child: ends it at once, from any depth of the stack.
[[noreturn]] void return_from_child(const std::string& result);

}  // namespace orrery
