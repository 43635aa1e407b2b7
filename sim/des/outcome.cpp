#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "sim/des/simulation.h"

namespace orrery {
namespace {

template <class T>
std::size_t packed_size(const std::vector<T>& values) {
  return sizeof(std::size_t) + values.size() * sizeof(T);
}
template <class T>
void put(std::string& bytes, std::vector<T> values) {
  static_assert(std::is_trivially_copyable_v<T>);
  const std::size_t count = values.size();
  bytes.append(reinterpret_cast<const char*>(&count), sizeof count);
  bytes.append(reinterpret_cast<const char*>(values.data()), count * sizeof(T));
}
template <class T>
void get(const std::string& bytes, std::size_t& at, std::vector<T>& values) {
  std::size_t count = 0;
  std::memcpy(&count, bytes.data() + at, sizeof count);
  at += sizeof count;
  values.resize(count);
  if (count > 0) std::memcpy(static_cast<void*>(values.data()), bytes.data() + at, count * sizeof(T));
  at += count * sizeof(T);
}

}  // namespace

std::string Outcome::pack() && {
  std::vector<char> text(stalled.begin(), stalled.end());
  std::vector<std::int64_t> counts{activities};
  std::vector<double> numbers{seconds};
  std::string bytes;
  bytes.reserve(packed_size(text) + packed_size(classes) + packed_size(flows) + packed_size(events) +
                packed_size(exchanges) + packed_size(waits) + packed_size(counts) + packed_size(numbers));
  put(bytes, std::move(text));
  put(bytes, std::move(classes));
  put(bytes, std::move(flows));
  put(bytes, std::move(events));
  put(bytes, std::move(exchanges));
  put(bytes, std::move(waits));
  put(bytes, std::move(counts));
  put(bytes, std::move(numbers));
  return bytes;
}

Outcome Outcome::unpack(const std::string& bytes) {
  Outcome out;
  std::size_t at = 0;
  std::vector<char> text;
  std::vector<std::int64_t> counts;
  std::vector<double> numbers;
  get(bytes, at, text);
  out.stalled.assign(text.begin(), text.end());
  get(bytes, at, out.classes);
  get(bytes, at, out.flows);
  get(bytes, at, out.events);
  get(bytes, at, out.exchanges);
  get(bytes, at, out.waits);
  get(bytes, at, counts);
  get(bytes, at, numbers);
  out.activities = counts.front();
  out.seconds = numbers.front();
  return out;
}

}  // namespace orrery
