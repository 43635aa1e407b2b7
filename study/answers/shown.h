// One item that Orrery knows by name, with all its figures and their sources.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace orrery {

// The items called `name`, by kind: a node and a cluster may have the same name. A path that ends in .json refers to
// the model in that file. Throws InputError for an unknown name.
nlohmann::ordered_json shown_json(const std::string& name);

}  // namespace orrery
