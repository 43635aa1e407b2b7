// Splits a JSON object's text into its members, without parsing their values.
#pragma once

#include <string_view>
#include <vector>

namespace orrery {

struct JsonMember {
  std::string_view key, text;  // views of the object's text; the key without its quotes
};

// Fills `members` with the members of the JSON object `object`. Returns false if this needs a real parser: the text is
// not an object, is not well-formed as far as this looks, or has keys with escapes, repeated keys or comments. Values
// are skipped, not checked: they may be invalid inside.
bool split_members(std::string_view object, std::vector<JsonMember>& members);

}  // namespace orrery
