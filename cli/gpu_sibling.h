// `orrery` is built without CUDA; what needs a GPU is run by `orrery-gpu`, beside it.
#pragma once

namespace orrery {

// If the arguments ask for --device cuda, this program is built without CUDA and orrery-gpu exists: becomes it, with
// the same arguments. Otherwise returns (a backend then reports what is missing).
void become_gpu_sibling(char** argv);

}  // namespace orrery
