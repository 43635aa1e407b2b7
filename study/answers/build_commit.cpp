#include "study/answers/build_commit.h"

#include "orrery_commit.h"  // written by cmake/commit.cmake

namespace orrery {

const char* build_commit() { return ORRERY_COMMIT; }
const char* build_date() { return ORRERY_COMMIT_DATE; }
std::string version_and_commit() {
  std::string text = ORRERY_VERSION;
  if (*build_commit() != '\0') text += std::string(" ") + build_commit();
  return text;
}
const char* build_type() { return ORRERY_BUILD_TYPE; }

}  // namespace orrery
