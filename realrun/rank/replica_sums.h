// Sums over copies of experts (Reduction::copies): each expert's gradients are summed within the group of ranks that
// hold the expert. The update then keeps copies equal.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "realrun/communicator.h"
#include "realrun/rank/tensor_memory.h"

namespace orrery::realrun {

class ReplicaSums : RankShared {
 public:
  explicit ReplicaSums(const RankShared& rank) : RankShared(rank) {}

  // REQUIRES: the op reads and writes the gradients of a parameter set that this rank updates.
  void run(const OpCall& call);

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

  std::vector<Expert> experts_of(const Instance& instance, std::size_t set) const;
  void sum(const Expert& expert, const Slice& gradients, Stream stream);

  // By instance and set. Index lists keep their addresses.
  std::map<std::pair<std::size_t, std::size_t>, std::vector<Expert>> known_;
};

}  // namespace orrery::realrun
