// The commit and build type of this program.
#pragma once

#include <string>

namespace orrery {

// The git commit, followed by "+" if files differed from it; empty if there was none.
const char* build_commit();
// The day of the commit, YYYY-MM-DD; empty if there was none.
const char* build_date();
// The version followed by the commit.
std::string version_and_commit();
// CMake's build type: "Release", "Debug"; empty if none was chosen.
const char* build_type();

}  // namespace orrery
