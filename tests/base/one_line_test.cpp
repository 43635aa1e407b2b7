// Does nothing of a text act on a terminal, whoever wrote it?
#include "sim/base/one_line.h"

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

namespace orrery {
namespace {

using namespace std::string_view_literals;

TEST(OneLine, WritesControlCharactersOut) {
  EXPECT_EQ(one_line("a\x1b[31mb"), "a\\x1b[31mb");
  EXPECT_EQ(one_line("a\0b\x7f"sv), "a\\x00b\\x7f");
  EXPECT_EQ(one_line("first\nsecond\tthird"), "first second\\x09third");
  EXPECT_EQ(one_line("\xc2\x9b[31m"), "\\x9b[31m") << "C1, as UTF-8";
  EXPECT_EQ(one_line("Z\xc3\xbcrich \xc2\xa0"), "Z\xc3\xbcrich \xc2\xa0") << "no control characters";
  EXPECT_EQ(one_line("\xe2\x80\xae"
                     "a\xe2\x81\xa6"
                     "b\xe2\x80\x8f\xd8\x9c"),
            "\\u202ea\\u2066b\\u200f\\u061c");
  EXPECT_EQ(one_line("\xe2\x80\x94 \xe2\x82\xac \xf0\x9f\x8c\x8d"), "\xe2\x80\x94 \xe2\x82\xac \xf0\x9f\x8c\x8d");
  // No UTF-8: cut off, a surrogate, overlong, beyond Unicode.
  EXPECT_EQ(one_line("\xc2"), "\\xc2");
  EXPECT_EQ(one_line("\xed\xa0\x80"), "\\xed\\xa0\\x80");
  EXPECT_EQ(one_line("\xe0\x80\xae|\xf4\x90\x80\x80"), "\\xe0\\x80\\xae|\\xf4\\x90\\x80\\x80");
}

TEST(WrittenOut, KeepsWhatItIsToldAndKnowsJson) {
  EXPECT_EQ(written_out("a\n\tb\x7f", "\n\t"), "a\n\tb\\x7f");
  EXPECT_EQ(written_out("\"\x7f\xc2\x9b\xe2\x80\xae\"", "\n", true), "\"\\u007f\\u009b\\u202e\"");
}

TEST(Escaped, ReplacesEachCharacterOnce) {
  EXPECT_EQ(escaped("a<b&&c", {{'<', "&lt;"}, {'&', "&amp;"}}), "a&lt;b&amp;&amp;c");
  EXPECT_EQ(escaped("", {{'<', "&lt;"}}), "");
}

TEST(OneLine, HasAnEnd) {
  EXPECT_EQ(one_line(std::string(4000, 'x')), std::string(4000, 'x'));
  EXPECT_EQ(one_line(std::string(1 << 20, 'x')), std::string(4000, 'x') + "...");
  EXPECT_EQ(clipped("a\xc3\xa9", 2), "a...") << "no half a character";
  EXPECT_EQ(clipped("a\xc3\xa9", 3), "a\xc3\xa9");
}

TEST(ErrorText, SaysThatMemoryIsShortAndWhatIsInternal) {
  EXPECT_EQ(error_text(std::bad_alloc()).rfind("out of memory: ", 0), 0U) << error_text(std::bad_alloc());
  EXPECT_EQ(error_text(std::logic_error("a fault")), "internal: a fault");
}

TEST(OneLine, KnowsControlCharacters) {
  for (const std::string_view text : {"\n"sv, "a\0"sv, "\x1b"sv, "a\x7f"sv, "\xc2\x80"sv, "\xc2\x9f"sv,
                                      "a\xe2\x80\xae"sv, "\xe2\x81\xa9"sv, "\xff"sv})
    EXPECT_TRUE(has_control_characters(text)) << one_line(text);
  for (const std::string_view text : {""sv, "a name, (8 B)"sv, "\xc2\xa0"sv, "\xc3\x80"sv, "\xe2\x80\x94"sv})
    EXPECT_FALSE(has_control_characters(text)) << text;
}

}  // namespace
}  // namespace orrery
