#include <gtest/gtest.h>

#include "sim/base/error.h"
#include "sim/base/words.h"

namespace orrery {
namespace {

TEST(Argument, BytesArePowersOf1024) {
  EXPECT_EQ(bytes_of_text("8"), 8);
  EXPECT_EQ(bytes_of_text("1K"), 1024);
  EXPECT_EQ(bytes_of_text("64m"), 64.0 * 1024 * 1024);
  EXPECT_EQ(bytes_of_text("70.5GiB"), 70.5 * 1024 * 1024 * 1024);
  EXPECT_EQ(bytes_of_text("1024T"), 1125899906842624.0);
}

TEST(Argument, NothingElseIsASize) {
  for (const char* text :
       {"", "G", "5Q", "1e3", "8 G", "8GG", "8Gi", "8GB", "-1", "0", "0.5", "1025T", "inf", "nan", "0x10"})
    EXPECT_EQ(bytes_of_text(text), std::nullopt) << text;
}

TEST(Argument, SharesAreInPercentOrNot) {
  EXPECT_EQ(share_of_text("5%", "--threshold"), 0.05);
  EXPECT_EQ(share_of_text("0.05", "--threshold"), 0.05);
  EXPECT_EQ(share_of_text("0", "--threshold"), 0);
  for (const char* text : {"", "%", "-1%", "5 %", "5%%", "inf", "nan", "x"})
    EXPECT_THROW(share_of_text(text, "--threshold"), InputError) << text;
}

TEST(Argument, ListsAreBetweenCommas) {
  EXPECT_EQ(list_of_text("a"), std::vector<std::string>{"a"});
  EXPECT_EQ(list_of_text(" a ,b c,,"), (std::vector<std::string>{"a", "b c", "", ""}));
  EXPECT_EQ(list_of_text(""), std::vector<std::string>{""});
}

}  // namespace
}  // namespace orrery
