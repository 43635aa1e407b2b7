// Ops that run once for several instances (Op::every): each waits until the last of its instances is reached.
#pragma once

#include <cstddef>
#include <vector>

#include "realrun/rank/rank_model.h"

namespace orrery::realrun {

class Buckets {
 public:
  struct Waiting {
    const Instance* instance = nullptr;
    std::size_t op = 0;  // index in the block
  };
  // Adds an instance's op to bucket number `bucket` of the block; variants of a piece have the same buckets. Returns
  // the ops to run now: none while the bucket fills. Throws std::logic_error if the bucket lacks an instance that it
  // covers.
  std::vector<Waiting> add(std::size_t block, std::size_t bucket, const InLine& at, std::size_t op);

 private:
  struct Bucket {
    std::size_t block, number;
    std::vector<Waiting> ops;
  };
  std::vector<Bucket> buckets_;
};

}  // namespace orrery::realrun
