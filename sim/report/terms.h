// The terms of a TimeBreakdown by name, so that tables, files and comparisons list the same ones in the same order.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/report/report.h"

namespace orrery {

// A term of the step's time: its names, and the member of TimeBreakdown that holds it.
struct TimeTerm {
  std::string name;        // "exposed_tensor_communication": for --explain
  std::string label;       // "exposed tensor-parallel communication": in words
  std::string key;         // "exposed_tensor_communication_seconds": in JSON and CSV
  std::string definition;  // what it consists of, in words
  std::string bound;       // what a step is bound by if this is its largest term
  double TimeBreakdown::*field = nullptr;
  std::size_t stream = 0;  // index into `exposed` if `field` is null

  // Whether the compute stream waits for the fabric.
  bool is_communication() const { return field == nullptr && kStreamRows[stream].occupies == Occupies::fabric; }
  // Returns the term's seconds in a TimeBreakdown, const or not.
  auto& of(auto& time) const { return field != nullptr ? time.*field : time.exposed[stream]; }
};
// Returns all terms in a fixed order; their sum is TimeBreakdown::total().
const std::vector<TimeTerm>& time_terms();
void add_terms(const TimeBreakdown& from, TimeBreakdown& to);

struct MemoryPart {
  std::string name, label;  // as in TimeTerm
  std::string key;          // "optimizer_state_bytes"
  double MemoryBreakdown::*field = nullptr;
  // If `field` is null, the part belongs to `bytes`: one category on the device, or all bytes of the host or storage.
  Place place = Place::device;
  std::size_t category = 0;

  double of(const MemoryBreakdown& memory) const {
    if (field != nullptr) return memory.*field;
    return place == Place::device ? memory.bytes.at(place)[category] : memory.bytes.in(place);
  }
};
// Returns all parts of memory.peak_bytes in a fixed order, followed by "host" and "storage", which are not part of it.
const std::vector<MemoryPart>& memory_parts();
// Returns the first of these parts, one for each category on the device. Other places have the same categories.
std::span<const MemoryPart> category_parts();

// Returns a sentence that says how the report's FLOPs are counted.
std::string_view flop_convention();

// Returns the figures of a report that fall as the step takes longer: throughputs and utilisations.
inline std::array<double*, 7> rates(Report& r) {
  return {&r.tokens_per_second,
          &r.tokens_per_second_per_device,
          &r.sequences_per_second,
          &r.model_flops_per_second_per_device,
          &r.mfu,
          &r.mfu_full_attention,
          &r.hfu};
}

// Summarises a report's bounding stage in one line: computes bubble_fraction, exposed_communication_seconds and
// bound_by from the bounding stage's terms and step_seconds. bound_by is the largest term in words, where all exposed
// communication counts as one term. For communication it names the fewest exposed terms, largest first, that together
// exceed every other term ("exposed gradient reduction + parameter gathering"). REQUIRES: report.stages and
// bounding_stage are filled.
void summarise_bounding_stage(Report& report);

}  // namespace orrery
