// The terms of a TimeBreakdown by name, so that tables, files and comparisons list the same ones in the same order.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "sim/report/report.h"

namespace orrery {

struct Term {
  std::string name;   // "exposed_tensor_communication": the key in JSON and CSV (with "_seconds"), and for --explain
  std::string label;  // "exposed tensor-parallel communication": in words
  double seconds = 0;
};

// All terms, zero or not, in a fixed order; their sum is time.total().
std::vector<Term> terms_of(const TimeBreakdown& time);

struct MemoryTerm {
  std::string name;   // "optimizer_state"
  std::string label;  // "optimizer states"
  double bytes = 0;
};
// All parts of memory.peak_bytes in a fixed order, followed by "host" and "storage", which are not part of it.
std::vector<MemoryTerm> terms_of(const MemoryBreakdown& memory);
// The bytes of each category in one place, in a fixed order.
std::vector<MemoryTerm> terms_of(const CategoryBytes& bytes);

// A term without a value: its names, and where a breakdown has it.
struct TimeTerm {
  std::string name, label;
  std::string key;  // "exposed_tensor_communication_seconds"
  double TimeBreakdown::*field = nullptr;
  std::size_t stream = 0;  // index into `exposed` if `field` is null

  // Of a TimeBreakdown, const or not.
  auto& of(auto& time) const { return field != nullptr ? time.*field : time.exposed[stream]; }
};
const std::vector<TimeTerm>& time_terms();
void add_terms(const TimeBreakdown& from, TimeBreakdown& to);

struct MemoryPart {
  std::string name, label;
  std::string key;  // "optimizer_state_bytes"
  double MemoryBreakdown::*field = nullptr;
  // If `field` is null, a part of `bytes`: all categories of a host or storage place, or one category on the device.
  Place place = Place::device;
  std::size_t category = 0;

  double of(const MemoryBreakdown& memory) const {
    if (field != nullptr) return memory.*field;
    return place == Place::device ? memory.bytes.at(place)[category] : memory.bytes.in(place);
  }
};
const std::vector<MemoryPart>& memory_parts();

// A sentence that says how the report's FLOPs are counted.
std::string_view flop_convention();

}  // namespace orrery
