// The mesh: digits over which ranks are laid. Rank r has coordinate (r / stride) mod size on each digit; the first
// digit counts neighbouring ranks.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

namespace orrery {

// What a digit is for, in the field's usual words. `dp_replicate` x `dp_shard` together are data parallelism: a
// ZeRO/FSDP shard group, and (HSDP) its replicas. Experts are divided over digits of other axes (Mesh::fold): over ep
// whole, over etp within an expert.
enum class MeshAxis : std::uint8_t { tp, cp, ep, dp_shard, dp_replicate, pp, etp };
inline constexpr int kMeshAxes = 7;
const char* name_of(MeshAxis axis);

struct Digit {
  MeshAxis axis = MeshAxis::tp;  // an axis may have several digits: tensor ranks that share a key/value head, and these
  std::int64_t size = 1, stride = 1;
  const char* name = "";  // static storage; of a single digit its axis's, of several for example "tp.shared"
};

// A set of digits: names a group, the ranks that differ in these coordinates only (a communicator). Of a mesh: without
// it, it means nothing. The same group is the same set, whatever it was named by.
class MeshGroup {
 public:
  constexpr MeshGroup() = default;
  static constexpr MeshGroup of_digit(int digit) { return MeshGroup(static_cast<std::uint16_t>(1u << digit)); }
  static constexpr MeshGroup from_bits(std::uint16_t bits) { return MeshGroup(bits); }
  constexpr std::uint16_t bits() const { return bits_; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr bool contains(int digit) const { return (bits_ >> digit & 1u) != 0; }
  constexpr bool contains(MeshGroup other) const { return (other.bits_ & ~bits_) == 0; }
  constexpr bool meets(MeshGroup other) const { return (other.bits_ & bits_) != 0; }
  constexpr MeshGroup operator|(MeshGroup other) const { return from_bits(static_cast<std::uint16_t>(bits_ | other.bits_)); }
  constexpr MeshGroup operator&(MeshGroup other) const { return from_bits(static_cast<std::uint16_t>(bits_ & other.bits_)); }
  constexpr MeshGroup without(MeshGroup other) const { return from_bits(static_cast<std::uint16_t>(bits_ & ~other.bits_)); }
  constexpr bool operator==(const MeshGroup&) const = default;

 private:
  explicit constexpr MeshGroup(std::uint16_t bits) : bits_(bits) {}
  std::uint16_t bits_ = 0;
};

class Mesh {
 public:
  static constexpr int kMaxDigits = 15;  // a digit's number, and none, in four bits (Division)

  // Lays a digit around those that are there. One of size 1 is none: no group ever names it. Throws std::logic_error
  // for more than kMaxDigits.
  void add(MeshAxis axis, std::int64_t size) { add(axis, size, name_of(axis)); }
  void add(MeshAxis axis, std::int64_t size, const char* name);

  // Lays `axis` over digits of other axes, for tensors that are divided otherwise than the rest of a layer (Liu et al.
  // 2025, arXiv 2504.14960, section 3.2): of all ranks but those of pp, counted from neighbours outwards, over `size`
  // ranks that are `inner` apart. Digits are cut where that begins and ends; the parts keep axis and name. False, and
  // nothing is laid, where a digit cannot be cut there.
  bool fold(MeshAxis axis, std::int64_t inner, std::int64_t size);

  std::span<const Digit> digits() const { return {digits_.data(), count_}; }  // innermost first
  std::int64_t ranks() const { return ranks_; }

  // Of all digits of the axes, folded ones too; of those with this name.
  MeshGroup group(MeshAxis axis) const { return group(std::initializer_list<MeshAxis>{axis}); }
  MeshGroup group(std::initializer_list<MeshAxis> axes) const;
  MeshGroup group(std::string_view digit) const;

  std::int64_t size(MeshGroup group) const;
  std::int64_t size(MeshAxis axis) const { return size(group(axis)); }
  // Between neighbouring ranks of the axis; ranks() of one that has no digit.
  std::int64_t stride(MeshAxis axis) const;
  // Place of a rank among its group's, which are ordered as ranks are.
  std::int64_t coordinate(std::int64_t rank, MeshGroup group) const;
  std::int64_t coordinate(std::int64_t rank, MeshAxis axis) const { return coordinate(rank, group(axis)); }

 private:
  // The digits in pp's place left out: the first behind `inner` ranks, cut out of one if need be; -1: impossible.
  int digit_behind(std::int64_t inner);

  std::array<MeshGroup, kMeshAxes> folded_{};
  std::array<Digit, kMaxDigits> digits_{};
  std::size_t count_ = 0;
  std::int64_t ranks_ = 1;
};

}  // namespace orrery
