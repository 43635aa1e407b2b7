// What this program was built from.
#pragma once

namespace orrery {

// The git commit, "+" behind it where files differed from it; empty where there was none.
const char* build_commit();
// CMake's: "Release", "Debug"; empty where none was chosen.
const char* build_type();

}  // namespace orrery
