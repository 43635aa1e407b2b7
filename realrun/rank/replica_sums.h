// Gradients of experts that have copies (Program::expert_of_slot): each expert's are summed over its copies, in the
// group of the ranks that hold it, before the update, which then leaves copies equal.
#pragma once

#include <deque>
#include <vector>

#include "realrun/communicator.h"
#include "realrun/rank/tensor_memory.h"

namespace orrery::realrun {

class ReplicaSums {
 public:
  ReplicaSums(const Position& position, const RankModel& model, TensorMemory& memory, Communicator& communicator);

  // Of an instance, whose gradients are summed over ranks that hold the same slots.
  void run(const Instance& instance);

 private:
  // Of a slot on this rank: elements of the held gradients, and where in the expert's buffer they belong.
  struct Slot {
    std::vector<std::int64_t> held, buffer;
  };
  struct Expert {
    std::int64_t number = 0, elements = 0;  // of the model; of its gradients in a set
    Members members;                        // that have copies of it, or parts of them
    std::vector<Slot> slots;
  };
  using BySet = std::vector<std::vector<Expert>>;

  BySet experts_of(const Instance& instance) const;
  std::vector<Expert> experts_of(const Instance& instance, std::size_t set) const;
  void sum(const Expert& expert, const Slice& gradients);

  const Position& position_;
  TensorMemory& memory_;
  Communicator& communicator_;
  std::deque<BySet> known_;  // by instance; index lists stay where they are
};

}  // namespace orrery::realrun
