// The abstract cost of an op: FLOPs and bytes, derived from kind and shapes.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "sim/program/op.h"
#include "sim/program/tensor.h"

namespace orrery {

// `batch` products of an m x k by a k x n matrix.
struct GemmShape {
  std::int64_t batch = 1, m = 1, n = 1, k = 1;
};
// Returns the product that a matmul op computes; for `linear`, m counts tokens.
GemmShape gemm_shape(const Op& op, std::span<const Tensor> tensors);

// The attention that a kernel computes. For a later step of a ring, `keys` is the mean number of keys that a query
// sees, and there is no mask.
struct AttentionShape {
  std::int64_t batch = 1, heads = 1, kv_heads = 1, queries = 1, keys = 1, head_dim = 1, value_head_dim = 1;
  bool causal = false;
  std::int64_t window = 0;
};
// Returns the shape of an `attention` or `attention_backward` op.
AttentionShape attention_shape(const Op& op, std::span<const Tensor> tensors);

// Returns the pairs that the op computes on the rank with part `part` of the queries. The second form takes the rank
// that computes the most pairs in all steps of a ring together. This rank decides how long the ring takes: ranks wait
// for their neighbours' keys, not for the slowest rank of each step.
AttendedPairs attended_pairs(const Op& op, std::span<const Tensor> tensors, std::int64_t part);
AttendedPairs attended_pairs(const Op& op, std::span<const Tensor> tensors);

// The pairs within documents, in one head of a sequence. Kernels compute each document by itself, in tiles of queries.
// The last tile of a document is not full but takes the time of a full one.
struct DocumentPairs {
  double counted = 0;                       // as AttendedPairs::counted
  double rectangle = 0;                     // the pairs without the causal mask, of the queries that see any key
  double queries = 0;                       // the queries that see any key
  double idle_queries = 0, idle_pairs = 0;  // those that last tiles compute beyond the ends of documents
  double longest = 0;                       // largest number of keys in a document
  void add(const DocumentPairs& other, double times);
};
// Returns the pairs of the queries of part `part`. `ends`: the ends of the sequence's documents
// (PackedSequences::ends_of); `tile`: queries per tile. REQUIRES: op.causal.
DocumentPairs document_pairs(const Op& op, std::span<const Tensor> tensors, std::int64_t part,
                             std::span<const std::int64_t> ends, std::int64_t tile);
// Returns the counted pairs of the part's queries with the keys of all ring steps together.
double document_pairs_of_part(const Op& op, std::span<const Tensor> tensors, std::int64_t part,
                              std::span<const std::int64_t> ends);

// Returns the FLOPs per pair of a query and a key in one head. The forward computes two products, the backward five;
// each is over the width of q and k, or of v.
double flops_per_pair(const AttentionShape& shape, bool backward);

// Whether any rank has any pair to compute.
bool attends(const Op& op, std::span<const Tensor> tensors);

// The memories between which a copy runs.
struct Direction {
  Place from = Place::device, to = Place::host;
  bool operator==(const Direction&) const = default;
};
Direction direction_of(const Op& copy, std::span<const Tensor> tensors);
std::string name_of(Direction direction);  // "copy_to_host": the name in benchmarks and calibrations

// Returns the FLOPs of the op; a multiply-add counts two. Attention counts the pairs that its mask leaves (what
// FlashAttention executes); attention_backward includes the recomputation of the scores (5 products against the
// forward's 2).
double flops(const Op& op, std::span<const Tensor> tensors);

// Returns the bytes that the kernel must move between device memory and the processor: each tensor is read once and
// written once; an accumulating write is also read. For communication ops: the full (unsharded) payload in bytes,
// nccl-tests' "size".
double bytes(const Op& op, std::span<const Tensor> tensors);

}  // namespace orrery
