// Are files read to their end, and is what is no end said to be none?
#include "sim/base/input_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <string>
#include <vector>

namespace orrery {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// What the kernel hands out of `text`; behind it there is an end, or an error of reading.
class Source {
 public:
  Source(const std::string& text, bool fails) {
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends_.data()), 0);
    EXPECT_EQ(::write(ends_[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
    // A peer that has not read what it was sent leaves an error (ECONNRESET).
    EXPECT_EQ(fails ? ::write(ends_[0], "x", 1) : 1, 1);
    ::close(ends_[1]);
  }
  ~Source() { ::close(ends_[0]); }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  int descriptor() const { return ends_[0]; }

 private:
  std::array<int, 2> ends_{};
};

std::vector<std::string> lines_of(const std::string& text, bool fails = false) {
  const Source source(text, fails);
  LineReader reader(source.descriptor(), "lines", "a readable file");
  std::vector<std::string> lines;
  for (std::string line; reader.next(line);) {
    lines.push_back(line);
    EXPECT_EQ(reader.number(), static_cast<std::int64_t>(lines.size()));
  }
  return lines;
}
std::string refusal_of(const std::string& text) {
  try {
    lines_of(text, true);
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(LineReader, GivesEachLine) {
  EXPECT_THAT(lines_of(""), ElementsAre());
  EXPECT_THAT(lines_of("a\n\r\nb\r\n"), ElementsAre("a", "", "b"));
  EXPECT_THAT(lines_of("a\nb"), ElementsAre("a", "b")) << "the last one without its end";
  EXPECT_THAT(lines_of("\n"), ElementsAre(""));
  const std::string longer(100000, 'x');  // than what is read at once
  EXPECT_THAT(lines_of(longer + "\n" + longer), ElementsAre(longer, longer));
}

TEST(LineReader, AnErrorOfReadingIsNoEnd) {
  EXPECT_THAT(refusal_of(""), HasSubstr("lines: found nothing (Connection reset by peer), expected a readable file"));
  EXPECT_THAT(refusal_of("a\nb\n"), HasSubstr("lines: found 2 lines, and then an error of reading (Connection reset"));
  EXPECT_THAT(refusal_of("a\nb\nc"), HasSubstr("found 2 lines, and then")) << "a line that is cut is none";
}

TEST(LineReader, ALineHasAnEnd) {
  LineReader zeros("/dev/zero", "a readable file");
  std::string line;
  EXPECT_THROW(zeros.next(line), InputError);
  EXPECT_LT(line.size(), 2 * LineReader::kMostLineBytes);
}

TEST(LineReader, SaysWhatCannotBeOpened) {
  EXPECT_THROW(LineReader("/nowhere/lines", "a readable file"), InputError);
  LineReader folder("/", "a readable file");
  std::string line;
  EXPECT_THROW(folder.next(line), InputError);
}

}  // namespace
}  // namespace orrery
