// `orrery` has no CUDA in it; what needs a GPU is run by `orrery-gpu`, which the same build puts beside it.
#pragma once

namespace orrery {

// Where the arguments ask for --device cuda, this program is built without CUDA and has the sibling: becomes it, with
// the same arguments. Returns otherwise (a backend then says what is missing).
void become_gpu_sibling(char** argv);

}  // namespace orrery
