#include "realrun/rank/buckets.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace orrery::realrun {

std::vector<Buckets::Waiting> Buckets::add(std::size_t block, std::size_t number, const InLine& at, std::size_t op) {
  auto bucket = std::find_if(buckets_.begin(), buckets_.end(),
                             [&](const Bucket& b) { return b.block == block && b.number == number; });
  if (bucket == buckets_.end()) bucket = buckets_.insert(buckets_.end(), Bucket{block, number, {}});
  bucket->ops.push_back({at.instance, op});
  const std::int64_t instances = instances_covered(at.instance->plan->ops(block)[op].every, at.place);
  if (instances == 0) return {};
  std::vector<Waiting> covered = std::move(bucket->ops);
  buckets_.erase(bucket);
  if (static_cast<std::int64_t>(covered.size()) != instances)
    throw std::logic_error("a bucket of " + std::to_string(instances) + " layers holds " +
                           std::to_string(covered.size()));
  return covered;
}

}  // namespace orrery::realrun
