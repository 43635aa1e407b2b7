// The members of a JSON object as they stand in its text, without reading what they hold.
#pragma once

#include <string_view>
#include <vector>

namespace orrery {

struct JsonMember {
  std::string_view key, text;  // views of the object's text; the key without its quotes
};

// Fills `members` with those of the object that `object` is. False where that takes a parser: what is no object, or
// not a well-formed one as far as it was looked at; keys with escapes, or that come twice; comments. Values are only
// passed over: they may be wrong inside.
bool split_members(std::string_view object, std::vector<JsonMember>& members);

}  // namespace orrery
