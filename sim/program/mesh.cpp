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

int Mesh::digit_behind(std::int64_t inner) {
  std::size_t d = 0;
  for (; d < count_ && inner > 1; ++d) {
    Digit& digit = digits_[d];
    if (digit.axis == MeshAxis::pp) continue;
    if (inner % digit.size == 0) {
      inner /= digit.size;
      continue;
    }
    if (digit.size % inner != 0 || count_ == digits_.size()) return -1;
    std::copy_backward(digits_.begin() + d, digits_.begin() + count_, digits_.begin() + count_ + 1);
    ++count_;
    digits_[d].size = inner;
    digits_[d + 1].size /= inner;
    digits_[d + 1].stride *= inner;
    for (MeshGroup& group : folded_) {  // doubles the cut digit's bit, and moves the bits behind it by one
      const unsigned bits = group.bits(), low = bits & ((2u << d) - 1), high = bits >> d << (d + 1);
      group = MeshGroup::from_bits(static_cast<std::uint16_t>(low | high));
    }
    return static_cast<int>(d) + 1;
  }
  return inner == 1 ? static_cast<int>(d) : -1;
}

bool Mesh::fold(MeshAxis axis, std::int64_t inner, std::int64_t size) {
  if (size == 1) return true;
  Mesh cut = *this;
  const int end = cut.digit_behind(inner * size);
  if (end < 0) return false;
  const std::size_t before = cut.count_;
  const int begin = cut.digit_behind(inner);
  if (begin < 0) return false;
  MeshGroup group;
  for (int d = begin; d < end + static_cast<int>(cut.count_ - before); ++d)
    if (cut.digits_[static_cast<std::size_t>(d)].axis != MeshAxis::pp) group = group | MeshGroup::of_digit(d);
  cut.folded_[static_cast<std::size_t>(axis)] = group;
  *this = cut;
  return true;
}

MeshGroup Mesh::innermost(MeshGroup group, std::int64_t ranks) const {
  MeshGroup inner;
  for (int d = 0; d < kMaxDigits && size(inner) < ranks; ++d)
    if (group.contains(d)) inner = inner | MeshGroup::of_digit(d);
  return inner;
}

MeshGroup Mesh::group(std::initializer_list<MeshAxis> axes) const {
  MeshGroup group;
  for (std::size_t d = 0; d < count_; ++d)
    if (std::find(axes.begin(), axes.end(), digits_[d].axis) != axes.end())
      group = group | MeshGroup::of_digit(static_cast<int>(d));
  for (const MeshAxis axis : axes) group = group | folded_[static_cast<std::size_t>(axis)];
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
  const MeshGroup of_axis = group(axis);
  for (std::size_t d = 0; d < count_; ++d)
    if (of_axis.contains(static_cast<int>(d))) return digits_[d].stride;
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

std::vector<std::int64_t> Mesh::offsets(MeshGroup group) const {
  std::vector<std::int64_t> ranks{0};
  ranks.reserve(static_cast<std::size_t>(size(group)));
  for (std::size_t d = 0; d < count_; ++d) {
    if (!group.contains(static_cast<int>(d))) continue;
    const std::size_t inner = ranks.size();
    for (std::int64_t c = 1; c < digits_[d].size; ++c)
      for (std::size_t i = 0; i < inner; ++i) ranks.push_back(ranks[i] + c * digits_[d].stride);
  }
  return ranks;
}

}  // namespace orrery
