// Ops that run once for several instances (Op::every): they wait until the last of them is reached.
#pragma once

#include <cstddef>
#include <vector>

#include "realrun/rank/rank_model.h"

namespace orrery::realrun {

class Buckets {
 public:
  struct Waiting {
    const Instance* instance = nullptr;
    std::size_t op = 0;  // of the block
  };
  // Adds an instance's op to the block's `bucket`-th bucket: variants of a piece have the same buckets. Returns what
  // runs now: nothing while the bucket fills. Throws std::logic_error where it does not hold what it covers.
  std::vector<Waiting> add(std::size_t block, std::size_t bucket, const InLine& at, std::size_t op);

 private:
  struct Bucket {
    std::size_t block, number;
    std::vector<Waiting> ops;
  };
  std::vector<Bucket> buckets_;
};

}  // namespace orrery::realrun
