// Changes to a JSON document that leave it one.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace orrery::fuzz {

class JsonMutator {
 public:
  // Keeps the keys of a document's objects, each with the values it was seen with. A text is one document, or one a
  // line.
  void learn(std::string_view text);
  // One to four values changed, removed, repeated, or added under a key that was learnt. None: it met no JSON, or
  // what it becomes is longer than `most`.
  std::optional<std::string> mutate(std::string_view text, std::size_t most, unsigned seed);

 private:
  std::map<std::string, std::vector<std::string>> values_;  // by key: texts
  std::vector<std::string> keys_;                           // in the order in which they were learnt
  std::size_t learnt_ = 0;                                  // inputs
  std::minstd_rand random_;

  std::size_t below(std::size_t end) { return random_() % end; }
  void learn_value(const nlohmann::json& value);
  nlohmann::json other_value(const std::string& key, const nlohmann::json& before);
  void change(nlohmann::json& document);
};

}  // namespace orrery::fuzz
