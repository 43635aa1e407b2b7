// What this program was built from.
#pragma once

#include <string>

namespace orrery {

// The git commit, "+" behind it where files differed from it; empty where there was none.
const char* build_commit();
// The commit's day, YYYY-MM-DD; empty where there was none.
const char* build_date();
// The version, and the commit behind it.
std::string version_and_commit();
// CMake's: "Release", "Debug"; empty where none was chosen.
const char* build_type();

}  // namespace orrery
