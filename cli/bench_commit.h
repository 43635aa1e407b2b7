// What this program was built from.
#pragma once

namespace orrery {

// The git commit, "+" behind it where files differed from it; empty where there was none.
const char* build_commit();

}  // namespace orrery
