// The programs beside this one. `orrery` starts quickly because it links neither SimGrid nor CBC, MPI or CUDA: what
// needs one of these is done by another program of the same folder, which it becomes, with the same arguments.
#pragma once

#include <string>

namespace orrery {

enum class Part { simgrid, cbc, cuda, mpi };

// Becomes the program that has the part, unless this one has it. Call it before anything is read from standard input.
// If that program is missing, throws InputError: `option` found `asked` without it, expected `instead`.
void become_program_with(Part part, const char* option, const std::string& asked, const char* instead);

// Becomes orrery-gpu if the arguments ask for --device cuda, and orrery-mpi if they ask for a sweep with --mpi. If that
// program is missing, it returns, and the command reports what is missing. Ranks of an MPI job after the first end
// then (Exit).
void become_program_for(char** argv);

}  // namespace orrery
