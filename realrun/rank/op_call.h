// A call of an op: the op, and the instance and micro-batch for which it runs.
#pragma once

#include <cstddef>

#include "realrun/rank/tensor_memory.h"

namespace orrery::realrun {

struct OpCall : Work {
  OpCall(const Instance& of, std::int64_t of_micro_batch, std::size_t of_block, std::size_t number)
      : Work{of, of_micro_batch, of.plan->ops(of_block)[number].stream},
        op(of.plan->ops(of_block)[number]),
        block(of_block),
        index(number) {}

  const Op& op;
  std::size_t block, index;  // the op's block, and its index in it

  const PiecePlan& plan() const { return *instance.plan; }
  const Tensor& read(std::size_t i) const { return instance.tensor(op.reads[i]); }
  const Tensor& written(std::size_t i) const { return instance.tensor(op.writes[i]); }
};

}  // namespace orrery::realrun
