// Lists of elements that are gathered and scattered: of parts of a tensor along a dimension, of what two layouts have
// in common. Each is made once and stays where it is, as backends keep copies by its address (Slice::index).
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

  // Of a part along one dimension. A flat buffer's last part may reach beyond it: it has fewer.
  const Elements& part(const Tensor& whole, int dim, std::int64_t begin, std::int64_t size);
  // Of what a group's collective gathers or scatters along a dimension, those that a rank has, at `place` in the group.
  const Elements& of_member(const Tensor& whole, const Tensor& part, int dim, std::size_t rank, std::int64_t place);
  // Of the elements that `rank` has in one layout those that `other` has in another one, as elements of the first and
  // in the order of the whole; the number of what any member sends another, of all of `from` together.
  const Elements& exchanged(const Tensor& tensor, std::size_t rank, const Tensor& in, std::size_t other);
  std::int64_t longest_exchange(std::span<const Tensor* const> from, const Tensor& to, const Members& members);
  // Elements of a rank's rows that no index has (DealTables::by_runs).
  std::int64_t rows_without_index(const Tensor& tensor, std::size_t rank) const;
  // So many of a list, from the first on.
  const Elements& stretch(const Elements& of, std::int64_t first, std::int64_t count);

 private:
  // Of a dimension, those that both ranks have, each in its layout: as indices of the first.
  Elements common(const Tensor& tensor, std::size_t rank, const Tensor& in, std::size_t other, int dim) const;

  const Mesh& mesh_;
  std::map<Elements, Elements> parts_, exchanged_;
  std::map<std::pair<const Elements*, std::int64_t>, Elements> stretches_;
};

}  // namespace orrery::realrun
