// How Galvatron divides a layer over the GPUs of a pipeline stage (Miao et al. 2022, arXiv 2211.13878): its decision
// tree of data, sharded data, tensor and pipeline parallelism.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace orrery::galvatron {

// A leaf of the tree: degrees, and which of the two dimensions within a stage has neighbouring ranks.
struct Hybrid {
  std::int64_t pipeline = 1, tensor = 1, data = 1;
  bool sharded = false;             // data parallelism shards parameters, gradients and states, as ZeRO-3
  bool tensor_consecutive = false;  // tensor parallelism has neighbouring ranks; false if it is the only dimension

  bool has_order() const { return tensor > 1 && data > 1; }
  std::int64_t ranks() const { return tensor * data; }  // of a stage
  bool operator==(const Hybrid&) const = default;
};

// "1-2*-4f": pipeline, tensor and data degree; f: sharded; * marks the dimension with neighbouring ranks.
std::string text_of(const Hybrid& hybrid);
// The reverse. Throws InputError for other text.
Hybrid read_hybrid(const std::string& text);

// The dimensions that a system may use.
struct Dimensions {
  bool data = true, sharded = true, tensor = true, pipeline = true;
};
// Reads "dp+tp", some of dp, sdp, tp, pp. Throws InputError for other text.
Dimensions read_dimensions(const std::string& text);

// The hybrids over `devices`, a power of two, in the authors' order: by pipeline and tensor degree, first without
// sharding, first with neighbouring ranks in data parallelism. Ties between plans are broken by this order.
std::vector<Hybrid> hybrids(std::int64_t devices, const Dimensions& dimensions = {});
// The number of leaves without the third takeaway, by which no layer has both kinds of data parallelism.
std::int64_t unpruned_hybrids(std::int64_t devices);

// "2-1-4 x 11, 2-2-2* x 1": equal neighbours in runs.
std::string runs_text(const std::vector<Hybrid>& layers);

}  // namespace orrery::galvatron
