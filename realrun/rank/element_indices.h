// Lists of elements to gather or scatter: parts of a tensor along a dimension, and the elements that two layouts share.
// Each list is made once and keeps its address, as backends keep copies by address (Slice::index).
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "realrun/communicator.h"
#include "sim/program/mesh.h"
#include "sim/program/tensor.h"

namespace orrery::realrun {

class ElementIndices {
 public:
  using Elements = std::vector<std::int64_t>;
  explicit ElementIndices(const Mesh& mesh) : mesh_(mesh) {}

  // Returns the elements of a part along one dimension. The last part of a flat buffer has fewer if it reaches beyond
  // the end.
  const Elements& part(const Tensor& whole, int dim, std::int64_t begin, std::int64_t size);
  // Returns the elements of `whole` that `rank` gives to a gather along a dimension, or takes from a scatter. `place`:
  // the index of the rank in its group.
  const Elements& of_member(const Tensor& whole, const Tensor& part, int dim, std::size_t rank, std::int64_t place);
  // exchanged() returns the elements that `rank` has in one layout and `other` has in another, as indices in the first
  // layout, in the order of the whole tensor. longest_exchange() returns the largest number of elements that any member
  // sends to another one, for all tensors of `from` together.
  const Elements& exchanged(const Tensor& tensor, std::size_t rank, const Tensor& in, std::size_t other);
  std::int64_t longest_exchange(std::span<const Tensor* const> from, const Tensor& to, const Members& members);
  // Returns the number of a rank's rows that have no index (DealTables::by_runs).
  std::int64_t rows_without_index(const Tensor& tensor, std::size_t rank) const;
  // Returns `count` elements of a list, from `first` on.
  const Elements& stretch(const Elements& of, std::int64_t first, std::int64_t count);

 private:
  // Indices along a dimension that both ranks have, each in its layout; as indices in the first layout.
  Elements common(const Tensor& tensor, std::size_t rank, const Tensor& in, std::size_t other, int dim) const;

  const Mesh& mesh_;
  std::map<Elements, Elements> parts_, exchanged_;
  std::map<std::pair<const Elements*, std::int64_t>, Elements> stretches_;
};

}  // namespace orrery::realrun
