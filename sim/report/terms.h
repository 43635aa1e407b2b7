// The terms of a TimeBreakdown by name, so that tables, files and comparisons list the same ones in the same order.
#pragma once

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

// How the report's FLOPs are counted, in a sentence.
std::string_view flop_convention();

}  // namespace orrery
