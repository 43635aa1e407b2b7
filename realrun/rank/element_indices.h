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

  // Elements of a part along one dimension. The last part of a flat buffer has fewer if it reaches beyond the end.
  const Elements& part(const Tensor& whole, int dim, std::int64_t begin, std::int64_t size);
  // Elements that `rank`, at index `place` of its group, has of a collective's gather or scatter along a dimension.
  const Elements& of_member(const Tensor& whole, const Tensor& part, int dim, std::size_t rank, std::int64_t place);
  // exchanged: the elements that `rank` has in one layout and `other` in another, as indices in the first, in the order
  // of the whole tensor. longest_exchange: the most that any member sends to another, for all tensors of `from`
  // together.
  const Elements& exchanged(const Tensor& tensor, std::size_t rank, const Tensor& in, std::size_t other);
  std::int64_t longest_exchange(std::span<const Tensor* const> from, const Tensor& to, const Members& members);
  // Number of a rank's rows without an index (DealTables::by_runs).
  std::int64_t rows_without_index(const Tensor& tensor, std::size_t rank) const;
  // `count` elements of a list, from `first` on.
  const Elements& stretch(const Elements& of, std::int64_t first, std::int64_t count);

 private:
  // Indices along a dimension that both ranks have, each in its layout; as indices in the first layout.
  Elements common(const Tensor& tensor, std::size_t rank, const Tensor& in, std::size_t other, int dim) const;

  const Mesh& mesh_;
  std::map<Elements, Elements> parts_, exchanged_;
  std::map<std::pair<const Elements*, std::int64_t>, Elements> stretches_;
};

}  // namespace orrery::realrun
