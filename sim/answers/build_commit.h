// What this program was built from.
#pragma once

namespace orrery {

// The git commit, "+" behind it where files differed from it; empty where there was none.
const char* build_commit();
// The commit's day, YYYY-MM-DD; empty where there was none.
const char* build_date();
// CMake's: "Release", "Debug"; empty where none was chosen.
const char* build_type();

}  // namespace orrery
