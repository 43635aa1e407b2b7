// nlohmann/json.hpp without the body of "..."_json, which nothing here uses: an inline function, it would have every
// source that begins with the precompiled header instantiate the parser, for most of a second each.
#define JSON_USE_GLOBAL_UDLS 0
#define _json _json(const char*, std::size_t); template <class> nlohmann::json parsed_literal
#include <nlohmann/json.hpp>
#undef _json
