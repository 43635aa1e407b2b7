// Bundled profiles as the tests take them.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

#include "sim/base/json_reader.h"
#include "study/galvatron/planner.h"

namespace orrery::galvatron {

inline nlohmann::json bundled_document(const std::string& name) {
  const std::vector<BundledDocument> all = bundled_profiles();
  return find_bundled(all, name)->json();
}
inline Profile bundled_profile(const std::string& name) { return read_profile(bundled_document(name), name); }

inline nlohmann::json test_data(const std::string& name) {
  return parse_json_file(std::string(ORRERY_SOURCE_DIR) + "/tests/galvatron/data/" + name);
}

}  // namespace orrery::galvatron
