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
// All parts of memory.peak_bytes in a fixed order; then "host" and "storage", which are no part of it.
std::vector<MemoryTerm> terms_of(const MemoryBreakdown& memory);
// What of each category lies in one place, in a fixed order.
std::vector<MemoryTerm> terms_of(const CategoryBytes& bytes);

// The same without the numbers: what a term is called, and where a breakdown has it.
struct TimeTerm {
  std::string name, label;
  std::string key;  // "exposed_tensor_communication_seconds"
  double TimeBreakdown::*field = nullptr;
  std::size_t stream = 0;  // of `exposed`, where there is no field

  // Of a TimeBreakdown, const or not.
  auto& of(auto& time) const { return field != nullptr ? time.*field : time.exposed[stream]; }
};
const std::vector<TimeTerm>& time_terms();
void add_terms(const TimeBreakdown& from, TimeBreakdown& to);

struct MemoryPart {
  std::string name, label;
  std::string key;  // "optimizer_state_bytes"
  double MemoryBreakdown::*field = nullptr;
  // Of `bytes`, where there is no field: of all categories in a place, or of one on the device.
  Place place = Place::device;
  std::size_t category = 0;

  double of(const MemoryBreakdown& memory) const {
    if (field != nullptr) return memory.*field;
    return place == Place::device ? memory.bytes.at(place)[category] : memory.bytes.in(place);
  }
};
const std::vector<MemoryPart>& memory_parts();

// How the report's FLOPs are counted, in a sentence.
std::string_view flop_convention();

}  // namespace orrery
