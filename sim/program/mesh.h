// The mesh: digits over which ranks are laid. Rank r has coordinate (r / stride) mod size on each digit; the first
// digit counts neighbouring ranks.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

namespace orrery {

// The purpose of a digit. `dp_replicate` x `dp_shard` together are data parallelism: a ZeRO/FSDP shard group, and
// (HSDP) its replicas. Each worker, of the ranks that share the digits of `worker`, trains a copy of the model of its
// own. Workers divide the batch, but no gradient is summed over them. Every few steps they exchange their copies
// (Program::tasks). Experts are
// divided over digits of other axes (Mesh::fold): over ep into whole experts, over etp within an expert.
enum class MeshAxis : std::uint8_t { tp, cp, ep, dp_shard, dp_replicate, worker, pp, etp };
inline constexpr int kMeshAxes = 8;
const char* name_of(MeshAxis axis);

struct Digit {
  // An axis may have several digits: for example tensor ranks that share a key/value head, and the groups of these.
  MeshAxis axis = MeshAxis::tp;
  std::int64_t size = 1, stride = 1;
  const char* name = "";  // static storage; the axis's name, or one such as "tp.shared" of several digits
};

// A set of digits. It names a group (communicator): the ranks that differ in these coordinates only. It has no meaning
// without its mesh. Two groups of the same digits are equal, whatever they were named by.
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
  constexpr MeshGroup operator|(MeshGroup other) const {
    return from_bits(static_cast<std::uint16_t>(bits_ | other.bits_));
  }
  constexpr MeshGroup operator&(MeshGroup other) const {
    return from_bits(static_cast<std::uint16_t>(bits_ & other.bits_));
  }
  constexpr MeshGroup without(MeshGroup other) const {
    return from_bits(static_cast<std::uint16_t>(bits_ & ~other.bits_));
  }
  constexpr bool operator==(const MeshGroup&) const = default;

 private:
  explicit constexpr MeshGroup(std::uint16_t bits) : bits_(bits) {}
  std::uint16_t bits_ = 0;
};

class Mesh {
 public:
  static constexpr int kMaxDigits = 15;  // a digit's number, or "none", fits in four bits (Division)

  // Adds a digit outside of the present ones: its stride is the number of ranks so far. A digit of size 1 is not added,
  // so no group names it. Throws std::logic_error beyond kMaxDigits.
  void add(MeshAxis axis, std::int64_t size) { add(axis, size, name_of(axis)); }
  void add(MeshAxis axis, std::int64_t size, const char* name);

  // Lays `axis` over digits of other axes, for tensors that are divided differently from the rest of a layer (Liu et
  // al. 2025, arXiv 2504.14960, section 3.2). Ranks are counted from the innermost digit outwards without pp: the axis
  // takes `size` ranks that are `inner` apart. Digits are cut where it begins and ends; the parts keep their axis and
  // name. Returns false, and changes nothing, if a digit cannot be cut there.
  bool fold(MeshAxis axis, std::int64_t inner, std::int64_t size);

  std::span<const Digit> digits() const { return {digits_.data(), count_}; }  // innermost first
  std::int64_t ranks() const { return ranks_; }

  // The group of all digits of the axes, folded ones included; or of the digits with this name.
  MeshGroup group(MeshAxis axis) const { return group(std::initializer_list<MeshAxis>{axis}); }
  MeshGroup group(std::initializer_list<MeshAxis> axes) const;
  MeshGroup group(std::string_view digit) const;

  // The digits over which ranks have sequences of their own.
  MeshGroup replicas() const { return group({MeshAxis::dp_shard, MeshAxis::dp_replicate, MeshAxis::worker}); }

  std::int64_t size(MeshGroup group) const;
  std::int64_t size(MeshAxis axis) const { return size(group(axis)); }
  // Distance in ranks between neighbours along the axis; ranks() for an axis without a digit.
  std::int64_t stride(MeshAxis axis) const;
  // The place of `rank` among the ranks of its group, which are ordered as ranks are.
  std::int64_t coordinate(std::int64_t rank, MeshGroup group) const;
  std::int64_t coordinate(std::int64_t rank, MeshAxis axis) const { return coordinate(rank, group(axis)); }
  // The ranks that differ from rank 0 in these digits only, in the order of their coordinates: what the members of any
  // group over them are behind its first rank.
  std::vector<std::int64_t> offsets(MeshGroup group) const;
  // The innermost digits of a group that have at least `ranks` ranks together; all of them if the group has fewer.
  MeshGroup innermost(MeshGroup group, std::int64_t ranks) const;
  // All digits but these.
  MeshGroup digits_beside(MeshGroup group) const {
    return MeshGroup::from_bits(static_cast<std::uint16_t>((1u << count_) - 1)).without(group);
  }

 private:
  // The first digit that begins `inner` ranks out, not counting pp; a digit is cut there if necessary. -1: impossible.
  int digit_behind(std::int64_t inner);

  std::array<MeshGroup, kMeshAxes> folded_{};
  std::array<Digit, kMaxDigits> digits_{};
  std::size_t count_ = 0;
  std::int64_t ranks_ = 1;
};

}  // namespace orrery
