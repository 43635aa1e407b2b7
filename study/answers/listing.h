// The things that Orrery knows by name, by kind: models, clusters, scenarios, fields and more.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

namespace orrery {

struct Listing {
  const char* name;  // of the kind: "models"
  const char* one;   // what shown_json() calls one of them: "model"; null: it shows none
  std::vector<std::string> (*names)();
  std::string (*summary)(const std::string& name);  // in a line
  // All figures, with their sources. Throws InputError, without a file, if none has the name. Null: there are none.
  nlohmann::ordered_json (*figures)(const std::string& name);
};
std::span<const Listing> listings();

// [{ "name", "summary" }, ...]
nlohmann::ordered_json listing_json(const Listing& listing);

// The things called `name`, by kind: a node and a cluster may have the same name. A path that ends in .json refers to
// the model in that file. Throws InputError for an unknown name.
nlohmann::ordered_json shown_json(const std::string& name);

}  // namespace orrery
