// Is an object cut where a parser would cut it, and left to the parser where it is not that simple?
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "sim/base/json_reader.h"

namespace orrery {
namespace {

TEST(JsonMembers, AreThoseThatAParserFinds) {
  for (const std::string text :
       {R"({})", R"( { } )", R"({"a":1})", R"({"a": {"b": [1, {"c": "}"}], "d": "\"]"}, "e" : [ ] , "f":"x\\" })",
        "\t{\"a\"\n:\r -1.5e3 ,\"\": null, \"b\\\\\": 2}", R"({"a":"/* no comment */", "b": "\u00e9é"})"}) {
    std::vector<JsonMember> members;
    const nlohmann::json parsed = nlohmann::json::parse(text);
    const bool split = split_members(text, members);
    EXPECT_EQ(split, text.find("b\\\\") == std::string::npos) << text << ": a key with an escape is the parser's";
    if (!split) continue;
    ASSERT_EQ(members.size(), parsed.size()) << text;
    for (const JsonMember& member : members)
      EXPECT_EQ(nlohmann::json::parse(member.text), parsed.at(std::string(member.key))) << text;
  }
}

TEST(JsonMembers, LeaveToTheParserWhatIsNotAsSimple) {
  for (const char* text : {"",
                           " ",
                           "1",
                           "[]",
                           "\"a\"",
                           "{",
                           "}",
                           "{\"a\"",
                           "{\"a\":",
                           "{\"a\":}",
                           "{\"a\":1",
                           "{\"a\":1,",
                           "{\"a\":1,}",
                           "{,}",
                           "{\"a\" 1}",
                           "{a:1}",
                           "{\"a\":1}}",
                           "{\"a\":1} x",
                           "{\"a\":[1}",
                           "{\"a\":1]}",
                           "{\"a\":{\"b\":1}",
                           "{\"a\":\"b}",
                           "{\"a\":\"b\\",
                           "{\"a\":1,\"a\":2}",
                           "{\"a\":1 /* c */}",
                           "{\"a\":1} // c",
                           "/**/{}",
                           "\xef\xbb\xbf{}"}) {
    std::vector<JsonMember> members;
    EXPECT_FALSE(split_members(text, members)) << text;
  }
}

}  // namespace
}  // namespace orrery
