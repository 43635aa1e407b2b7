#include "sim/base/json_members.h"

#include <algorithm>
#include <cstddef>

namespace orrery {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  bool take(char c) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool at_end() {
    skip_space();
    return at_ == text_.size();
  }

  // Reads a string, without its quotes. Returns false if it does not end.
  bool text(std::string_view& inside) {
    if (!take('"')) return false;
    const std::size_t begin = at_;
    for (;; ++at_) {
      at_ = text_.find_first_of("\"\\", at_);
      if (at_ == std::string_view::npos) return false;
      if (text_[at_] == '"') break;
      if (++at_ == text_.size()) return false;  // the escaped character
    }
    inside = text_.substr(begin, at_++ - begin);
    return true;
  }

  // Skips any value, up to the comma or brace after it.
  bool value(std::string_view& whole) {
    skip_space();
    const std::size_t begin = at_;
    std::size_t depth = 0, end = begin;
    std::string_view ignored;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (depth == 0 && (c == ',' || c == '}')) break;
      if (c == '/') return false;  // a comment
      if (c == '"') {
        if (!text(ignored)) return false;
      } else {
        if (c == '{' || c == '[') ++depth;
        if ((c == '}' || c == ']') && depth-- == 0) return false;
        ++at_;
      }
      if (kSpace.find(c) == std::string_view::npos) end = at_;
    }
    whole = text_.substr(begin, end - begin);
    return !whole.empty() && depth == 0;
  }

 private:
  void skip_space() { at_ = std::min(text_.find_first_not_of(kSpace, at_), text_.size()); }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

bool split_members(std::string_view object, std::vector<JsonMember>& members) {
  members.clear();
  Scanner scanner(object);
  if (!scanner.take('{')) return false;
  if (scanner.take('}')) return scanner.at_end();
  do {
    JsonMember member;
    if (!scanner.text(member.key) || member.key.find('\\') != std::string_view::npos) return false;
    const auto same = [&](const JsonMember& other) { return other.key == member.key; };
    if (std::any_of(members.begin(), members.end(), same)) return false;
    if (!scanner.take(':') || !scanner.value(member.text)) return false;
    members.push_back(member);
  } while (scanner.take(','));
  return scanner.take('}') && scanner.at_end();
}

}  // namespace orrery
