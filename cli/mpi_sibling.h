// `orrery` has no MPI; a sweep over the ranks of an MPI job is run by `orrery-mpi` beside it (if CMake finds MPI).
#pragma once

namespace orrery {

// If the arguments ask for a sweep with --mpi and orrery-mpi exists: becomes it, with the same arguments. Otherwise
// returns on the first rank, whose command then reports what is missing; the other ranks end here (Exit).
void become_mpi_sibling(char** argv);

}  // namespace orrery
