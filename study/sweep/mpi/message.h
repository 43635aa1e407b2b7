// Messages between ranks about a sweep, as bytes: numbers as in memory, texts and lists preceded by their lengths. Only
// for ranks of one build on machines of one kind.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "study/sweep/work.h"

namespace orrery {

class MessageWriter {
 public:
  template <class Number>
  requires std::is_arithmetic_v<Number> || std::is_enum_v<Number> MessageWriter& put(Number number) {
    bytes_.append(reinterpret_cast<const char*>(&number), sizeof number);
    return *this;
  }
  MessageWriter& put(const std::string& text) {
    put(text.size());
    bytes_ += text;
    return *this;
  }
  template <class Item>
  MessageWriter& put(const std::vector<Item>& items) {
    put(items.size());
    for (const Item& item : items) put(item);
    return *this;
  }
  MessageWriter& put(const SweepPoint& point) { return put(point.number).put(point.choices); }
  MessageWriter& put(const SweepRow& row);

  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Throws std::runtime_error if a message ends before the requested item.
class MessageReader {
 public:
  explicit MessageReader(const std::string& bytes) : bytes_(bytes) {}

  template <class Item>
  Item get() {
    Item item{};
    read(item);
    return item;
  }

 private:
  template <class Number>
  requires std::is_arithmetic_v<Number> || std::is_enum_v<Number>
  void read(Number& number) { std::memcpy(&number, next(sizeof number), sizeof number); }
  void read(std::string& text) {
    const auto size = get<std::size_t>();
    text.assign(next(size), size);
  }
  template <class Item>
  void read(std::vector<Item>& items) {
    const auto size = get<std::size_t>();
    if (size > bytes_.size()) fail();  // each item has at least one byte
    items.reserve(size);
    for (std::size_t i = 0; i < size; ++i) items.push_back(get<Item>());
  }
  void read(SweepPoint& point) {
    read(point.number);
    read(point.choices);
  }
  void read(SweepRow& row);

  const char* next(std::size_t size) {
    if (size > bytes_.size() - at_) fail();
    at_ += size;
    return bytes_.data() + (at_ - size);
  }
  [[noreturn]] static void fail() { throw std::runtime_error("a truncated message between ranks"); }

  const std::string& bytes_;
  std::size_t at_ = 0;
};

}  // namespace orrery
