// One thing that Orrery knows by name, with all its figures and where they come from.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace orrery {

// What `name` is, by kind: the same name may be a node's and a cluster's. Of a path that ends in .json the model in
// that file. Throws InputError for a name that nothing has.
nlohmann::ordered_json shown_json(const std::string& name);

}  // namespace orrery
