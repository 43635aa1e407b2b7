#include "sim/base/byte_size.h"

#include <gtest/gtest.h>

namespace orrery {
namespace {

TEST(ByteSize, ReadsPowersOf1024) {
  EXPECT_EQ(bytes_of_text("8"), 8);
  EXPECT_EQ(bytes_of_text("1K"), 1024);
  EXPECT_EQ(bytes_of_text("64m"), 64.0 * 1024 * 1024);
  EXPECT_EQ(bytes_of_text("70.5GiB"), 70.5 * 1024 * 1024 * 1024);
  EXPECT_EQ(bytes_of_text("1024T"), 1125899906842624.0);
}

TEST(ByteSize, NothingElseIsASize) {
  for (const char* text :
       {"", "G", "5Q", "1e3", "8 G", "8GG", "8Gi", "8GB", "-1", "0", "0.5", "1025T", "inf", "nan", "0x10"})
    EXPECT_EQ(bytes_of_text(text), std::nullopt) << text;
}

}  // namespace
}  // namespace orrery
