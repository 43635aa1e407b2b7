// How much kernels and copies between host and device slow each other down while both run: the "overlap" of a
// calibration.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "sim/base/error.h"
#include "sim/cost/kernel_cost.h"

namespace orrery {

// Slowdowns are shares: 0.1 means 1.1 times as long while the other runs.
struct CopyOverlap {
  double product_slowdown = 0, copy_slowdown = 0;
  Residual product_residual, copy_residual;  // of the measured pairs, around the fitted share
};

// An attention kernel next to a copy in the direction that a step hides behind it: each alone, and by what share longer
// when together.
struct AttentionOverlap {
  std::string attention, copy;  // kinds and sizes
  double attention_seconds = 0, attention_slowdown = 0;
  double copy_bytes_per_second = 0, copy_slowdown = 0;
};

struct CopyOverlaps {
  CopyOverlap to_device, to_host;
  std::vector<AttentionOverlap> attention;
  std::string source;
};

// Reads the object below, or {"not_measured": why}, which gives nothing. Throws InputError.
//   "overlap": {"source": ..., "copy_to_device": {"product_slowdown": 0.03, "copy_slowdown": 0.01,
//   "product_residual": {...}, "copy_residual": {...}}, "copy_to_host": {...}, "attention": [{"attention":
//   "attention bf16 1 x 32768 x 2 x 128 causal", "copy": "copy_to_host 65536 KiB", "attention_seconds": ...,
//   "attention_slowdown": ..., "copy_bytes_per_second": ..., "copy_slowdown": ...}]}
std::optional<CopyOverlaps> read_copy_overlaps(const nlohmann::json& json, const InputError::Where& where);

}  // namespace orrery
