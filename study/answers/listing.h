// The names that Orrery knows, by kind: models, clusters, scenarios, fields and more.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

namespace orrery {

struct ListRow {
  std::string name;
  std::string summary;
};

struct Listing {
  const char* name;
  std::vector<ListRow> (*rows)();
  std::vector<std::string> (*names)();  // the names alone, if that is faster; or null
};
std::span<const Listing> listings();

std::vector<std::string> names_of(const Listing& listing);
// [{ "name", "summary" }, ...]
nlohmann::ordered_json listing_json(const Listing& listing);

}  // namespace orrery
