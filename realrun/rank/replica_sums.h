// Gradients of experts with copies (Program::expert_of_slot): before the update, each expert's gradients are summed
// over its copies, within the group of ranks that hold it. The update then keeps copies equal.
#pragma once

#include <deque>
#include <vector>

#include "realrun/communicator.h"
#include "realrun/rank/tensor_memory.h"

namespace orrery::realrun {

class ReplicaSums : RankShared {
 public:
  explicit ReplicaSums(const RankShared& rank);

  // Sums an instance's gradients, which were already summed over ranks with the same slots.
  void run(const Instance& instance);

 private:
  // A slot on this rank: elements of the held gradients, and their places in the expert's buffer.
  struct Slot {
    std::vector<std::int64_t> held, buffer;
  };
  struct Expert {
    std::int64_t number = 0, elements = 0;  // expert in the model; elements of its gradients in a set
    Members members;                        // ranks with copies of it, or with parts of them
    std::vector<Slot> slots;
  };
  using BySet = std::vector<std::vector<Expert>>;

  std::vector<Expert> experts_of(const Instance& instance, std::size_t set) const;
  void sum(const Expert& expert, const Slice& gradients);

  std::deque<BySet> known_;  // by instance; index lists keep their addresses
};

}  // namespace orrery::realrun
