#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "sim/des/simulation.h"

namespace orrery {
namespace {

// Visits all parts of an outcome, in the order in which they are packed.
template <class Visit>
void for_each_part(Outcome& o, Visit&& visit) {
  visit(o.stalled);
  visit(o.classes);
  visit(o.flows);
  visit(o.events);
  visit(o.exchanges);
  visit(o.waits);
  visit(o.activities);
  visit(o.seconds);
}

template <class Part>
std::string_view bytes_of(const Part& part) {
  if constexpr (requires { part.data(); }) {
    static_assert(std::is_trivially_copyable_v<typename Part::value_type>);
    return {reinterpret_cast<const char*>(part.data()), part.size() * sizeof(typename Part::value_type)};
  } else {
    return {reinterpret_cast<const char*>(&part), sizeof part};
  }
}

}  // namespace

std::string Outcome::pack() && {
  std::size_t total = 0;
  for_each_part(*this, [&](const auto& part) { total += sizeof(std::size_t) + bytes_of(part).size(); });
  std::string packed;
  packed.reserve(total);
  for_each_part(*this, [&]<class Part>(Part& part) {
    const std::string_view bytes = bytes_of(part);
    const std::size_t size = bytes.size();
    packed.append(bytes_of(size)).append(bytes);
    part = Part();
  });
  return packed;
}

Outcome Outcome::unpack(const std::string& packed) {
  Outcome outcome;
  std::string_view left = packed;
  const auto take = [&left](std::size_t size, void* to) {
    if (size > 0) std::memcpy(to, left.data(), size);
    left.remove_prefix(size);
  };
  for_each_part(outcome, [&]<class Part>(Part& part) {
    std::size_t size = 0;
    take(sizeof size, &size);
    if constexpr (requires { part.data(); }) {
      part.resize(size / sizeof(typename Part::value_type));
      take(size, part.data());
    } else {
      take(size, &part);
    }
  });
  return outcome;
}

}  // namespace orrery
