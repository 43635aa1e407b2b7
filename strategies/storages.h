// A set of the storages of a piece's tensors: a view is in it with the tensor that owns its memory.
#pragma once

#include <algorithm>
#include <vector>

#include "sim/program/rewrite.h"

namespace orrery {

// Tensors that the piece gets after the set was made are not in it.
class Storages {
 public:
  explicit Storages(const Piece& piece) : piece_(piece), in_(piece.tensors.size()) {}

  // kNoTensor is in no set.
  void add(TensorId id) {
    if (id != kNoTensor) in_[storage_of(piece_, id)] = 1;
  }
  template <class Ids>
  void add_all(const Ids& ids) {
    for (const TensorId id : ids) add(id);
  }
  bool has(TensorId id) const {
    if (id == kNoTensor) return false;
    const TensorId storage = storage_of(piece_, id);
    return storage < in_.size() && in_[storage] != 0;
  }
  template <class Ids>
  bool has_any(const Ids& ids) const {
    return std::ranges::any_of(ids, [&](TensorId id) { return has(id); });
  }

 private:
  const Piece& piece_;
  std::vector<std::uint8_t> in_;
};

}  // namespace orrery
