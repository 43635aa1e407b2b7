// `orrery` has no MPI in it; a sweep on the ranks of an MPI job is run by `orrery-mpi`, which the same build puts
// beside it where CMake finds MPI.
#pragma once

namespace orrery {

// Where the arguments ask for a sweep with --mpi and this program has the sibling: becomes it, with the same arguments.
// Returns otherwise: the command then says what is missing, once, as ranks but the first end here (Exit).
void become_mpi_sibling(char** argv);

}  // namespace orrery
