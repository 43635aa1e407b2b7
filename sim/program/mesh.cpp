#include "sim/program/mesh.h"

#include <algorithm>
#include <stdexcept>

namespace orrery {

void Mesh::add(MeshAxis axis, std::int64_t size, const char* name) {
  if (size == 1) return;
  if (count_ == digits_.size()) throw std::logic_error("a mesh of more digits than there is room for");
  digits_[count_++] = {.axis = axis, .size = size, .stride = ranks_, .name = name};
  ranks_ *= size;
}

MeshGroup Mesh::group(std::initializer_list<MeshAxis> axes) const {
  MeshGroup group;
  for (std::size_t d = 0; d < count_; ++d)
    if (std::find(axes.begin(), axes.end(), digits_[d].axis) != axes.end())
      group = group | MeshGroup::of_digit(static_cast<int>(d));
  return group;
}

MeshGroup Mesh::group(std::string_view digit) const {
  MeshGroup group;
  for (std::size_t d = 0; d < count_; ++d)
    if (digits_[d].name == digit) group = group | MeshGroup::of_digit(static_cast<int>(d));
  return group;
}

std::int64_t Mesh::size(MeshGroup group) const {
  std::int64_t n = 1;
  for (std::size_t d = 0; d < count_; ++d)
    if (group.contains(static_cast<int>(d))) n *= digits_[d].size;
  return n;
}

std::int64_t Mesh::stride(MeshAxis axis) const {
  for (const Digit& digit : digits())
    if (digit.axis == axis) return digit.stride;
  return ranks_;
}

std::int64_t Mesh::coordinate(std::int64_t rank, MeshGroup group) const {
  std::int64_t at = 0, inner = 1;
  for (std::size_t d = 0; d < count_; ++d) {
    if (!group.contains(static_cast<int>(d))) continue;
    at += rank / digits_[d].stride % digits_[d].size * inner;
    inner *= digits_[d].size;
  }
  return at;
}

}  // namespace orrery
