// The points that `orrery calibrate` measures: ops as in Programs, with the shapes of training steps.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "realrun/stand_alone.h"

namespace orrery {

struct KernelPoint : StandAloneOp {
  std::string id;  // unique in a sweep, the same in every run: "linear fp32 512 x 1024 x 256"
  // Points that one curve is fitted to: "matmul fp32", "attention fp32", "memory norm+bias", "copy".
  std::string group;
  bool held_out = false;  // left out of the fit, to test it on other shapes
};

struct SweepOptions {
  std::vector<Dtype> dtypes{Dtype::fp32};  // of products and attention; memory-bound kernels use only the first
  std::int64_t least_hidden = 64, most_hidden = 1024;
  std::int64_t least_tokens = 64, most_tokens = 2048;
  std::int64_t most_vocabulary = 8192;
  std::int64_t most_sequence = 512;
  double most_flops = 4e9;       // of one product or attention
  double most_elements = 2e6;    // of one memory-bound tensor
  std::int64_t products = 160;   // points per dtype
  std::int64_t attentions = 40;  // points per dtype and direction
  std::int64_t of_a_kind = 11;   // points per memory-bound kind
  std::int64_t held_out_every = 5;
  std::vector<std::int64_t> overlap_sequences;  // of attention beside copies
};
SweepOptions cpu_sweep();
SweepOptions gpu_sweep(std::vector<Dtype> dtypes);

// Returns points in the order of measurement: any prefix covers every group, and each group's shapes evenly.
std::vector<KernelPoint> sweep(const SweepOptions& options);

// The points that run at the same time (overlap.h): large products of the first dtype, attention at overlap_sequences
// forward and backward, large copies of both directions.
std::vector<KernelPoint> overlap_products(const SweepOptions& options);
std::vector<KernelPoint> overlap_attentions(const SweepOptions& options);
std::vector<KernelPoint> overlap_copies(const SweepOptions& options);

}  // namespace orrery
