#pragma once

#include "sim/base/fields.h"

namespace orrery::fpdt {

struct Options {
  std::int64_t chunk_tokens = 65536;  // DeepSpeed's default (ds_sequence_parallel_fpdt_chunk_size)
  bool offload = true;

  void visit_fields(FieldVisitor& v) {
    v.field("fpdt_chunk_tokens", chunk_tokens, degree(),
            "fpdt: sequence positions per chunk, all ranks together; a shorter sequence is one chunk", Scope::mesh);
    v.field("fpdt_offload", offload,
            "fpdt: chunks of queries, keys, values and contexts wait in host memory between their uses; false: they "
            "stay on the device",
            Scope::mesh);
  }
};

}  // namespace orrery::fpdt
