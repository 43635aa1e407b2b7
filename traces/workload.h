// What is fed to the model each step.
#pragma once

#include <cstdint>

#include "sim/base/fields.h"

namespace orrery {

struct Workload {
  std::int64_t sequence_length = 0;          // tokens; 0: the model's own (max_positions, image patches)
  std::int64_t decoder_sequence_length = 0;  // encoder-decoder models; 0: as sequence_length
  std::int64_t global_batch_size = 1;        // sequences (or images) per optimizer step

  void visit_fields(FieldVisitor& v) {
    constexpr std::int64_t kMost = std::int64_t{1} << 32;
    v.field("sequence_length", sequence_length, IntegerRange{0, kMost}, "tokens per sequence; 0 takes the model's own length");
    v.field("decoder_sequence_length", decoder_sequence_length, IntegerRange{0, kMost}, "encoder-decoder models: tokens of the target");
    v.field("global_batch_size", global_batch_size, IntegerRange{1, kMost}, "sequences per optimizer step, over all data-parallel ranks");
  }
};

}  // namespace orrery
