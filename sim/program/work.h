// What an op costs in the abstract: FLOPs and bytes, derived from kind and shapes.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "sim/program/op.h"
#include "sim/program/tensor.h"

namespace orrery {

struct GemmShape {
  std::int64_t batch = 1, m = 1, n = 1, k = 1;
};
// Of a matmul op; m runs over tokens for `linear`.
GemmShape gemm_shape(const Op& op, std::span<const Tensor> tensors);

// What a kernel computes: of a ring's later step as many keys as a query sees on average, and no mask.
struct AttentionShape {
  std::int64_t batch = 1, heads = 1, kv_heads = 1, queries = 1, keys = 1, head_dim = 1, value_head_dim = 1;
  bool causal = false;
  std::int64_t window = 0;
};
// Of an `attention` or `attention_backward` op.
AttentionShape attention_shape(const Op& op, std::span<const Tensor> tensors);

// Of attention, those of the rank that has this part of the queries; of the one that sees the most in all steps of a
// ring together, for which the others wait: neighbours wait for each other's keys, not all for the slowest in each
// step.
AttendedPairs attended_pairs(const Op& op, std::span<const Tensor> tensors, std::int64_t part);
AttendedPairs attended_pairs(const Op& op, std::span<const Tensor> tensors);

// What documents leave of attention in one head of a sequence. Kernels take each by itself, in tiles of queries: the
// last tile of each is not full, but computes as if it were.
struct DocumentPairs {
  double counted = 0;                       // as AttendedPairs
  double rectangle = 0;                     // without the causal mask, of the queries that see any key
  double queries = 0;                       // of them
  double idle_queries = 0, idle_pairs = 0;  // of the last tiles, behind the ends of documents
  double longest = 0;                       // most keys of a document
  void add(const DocumentPairs& other, double times);
};
// `ends`: of the documents in the sequence (PackedSequences::ends_of). REQUIRES: op.causal.
DocumentPairs document_pairs(const Op& op, std::span<const Tensor> tensors, std::int64_t part,
                             std::span<const std::int64_t> ends, std::int64_t tile);
// The pairs, as counted, of the part's queries with all keys, those of all ring steps together.
double document_pairs_of_part(const Op& op, std::span<const Tensor> tensors, std::int64_t part,
                              std::span<const std::int64_t> ends);

// FLOPs of a pair of a query and a key in one head. Forward: two products; backward: five, over q and k or v.
double flops_per_pair(const AttentionShape& shape, bool backward);

// Whether any rank sees anything.
bool attends(const Op& op, std::span<const Tensor> tensors);

// The way that a copy takes.
struct Direction {
  Place from = Place::device, to = Place::host;
  bool operator==(const Direction&) const = default;
};
Direction direction_of(const Op& copy, std::span<const Tensor> tensors);
std::string name_of(Direction direction);  // "copy_to_host": for benchmarks and calibrations

// Multiply-adds count two. Attention counts the pairs that its mask leaves (what FlashAttention executes);
// attention_backward counts the recomputation of the scores (5 products against the forward's 2).
double flops(const Op& op, std::span<const Tensor> tensors);

// Bytes the kernel must move between device memory and the processor: each tensor read once, written once; an
// accumulating write is also read. For communication ops: the full (unsharded) payload in bytes, nccl-tests' "size".
double bytes(const Op& op, std::span<const Tensor> tensors);

}  // namespace orrery
