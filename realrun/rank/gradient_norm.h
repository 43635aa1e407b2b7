// Computes the norm of a step's gradients, or in a task of a buffer that lies as the optimizer's parameters do or is a
// part of one that does: the ops of kind gradient_norm, and the exchange of their results. Each instance leaves the
// square of the norm of what the Program counts for it (sim/program/step_end.h). One exchange for all pieces of a stage
// (UpdatePart::norm) sums these squares.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "realrun/rank/tensor_memory.h"

namespace orrery::realrun {

class GradientNorm : RankShared {
 public:
  explicit GradientNorm(const RankShared& rank) : RankShared(rank), counted_(model_.instances()) {}

  // REQUIRES: OpKind::gradient_norm, on a set's held gradients, on results of other norms, or, one after the other, on
  // buffers that lie as the parameters of the piece's trained sets do.
  void run(const OpCall& call);
  // Runs the exchange after the instances' norms, by `run`; afterwards ops of the update can read its result. Returns
  // the norm without the loss scale; 0 if the Program has no norm.
  double exchange(const std::function<void(const OpCall&)>& run);

 private:
  // The elements of a set's held gradients, or of the buffer in their place, that are counted.
  struct Counted {
    std::vector<std::pair<std::int64_t, std::int64_t>> ranges;  // first, one past the last
    std::vector<std::int64_t> scattered;                        // scattered ones, as elements of their storage
  };
  const Counted& counted(const Instance& instance, std::size_t set, TensorId buffer);
  Counted find_counted(const Instance& instance, std::size_t set, TensorId buffer) const;
  void add_first_copies(const Tensor& t, int dim, std::int64_t begin, std::pair<std::int64_t, std::int64_t> range,
                        const ElementMap& gradients, Counted& counted) const;
  StoragePtr square_of(const OpCall& call, void* data, std::int64_t elements, Dtype dtype);
  // Sums single numbers in their order; none: zero.
  void add_up(std::span<const void* const> parts, const Slice& to, Stream stream);

  std::vector<std::vector<std::optional<Counted>>> counted_;  // by instance and set
};

}  // namespace orrery::realrun
