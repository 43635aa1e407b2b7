// The mesh: named axes over which ranks are laid, innermost first. Rank r has coordinate
// (r / stride(axis)) mod degree(axis) on each axis; strides follow from the order.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace orrery {

// The field's usual axes. `dp_replicate` x `dp_shard` together are data parallelism: a ZeRO/FSDP shard group, and
// (HSDP) its replicas. Expert parallelism folds over data and context ranks and has an axis of its own.
enum class MeshAxis : std::uint8_t { tp, cp, ep, dp_shard, dp_replicate, pp };
inline constexpr int kMeshAxes = 6;
const char* name_of(MeshAxis axis);

// A set of mesh axes: names a group (communicator).
class MeshAxes {
 public:
  constexpr MeshAxes() = default;
  constexpr MeshAxes(MeshAxis axis) : bits_(bit(axis)) {}  // NOLINT: an axis is a set of one
  constexpr MeshAxes operator|(MeshAxes other) const { return MeshAxes(static_cast<std::uint8_t>(bits_ | other.bits_)); }
  constexpr bool contains(MeshAxis axis) const { return (bits_ & bit(axis)) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr bool operator==(const MeshAxes&) const = default;
  constexpr std::uint8_t bits() const { return bits_; }
  static constexpr MeshAxes from_bits(std::uint8_t bits) { return MeshAxes(bits); }

 private:
  explicit constexpr MeshAxes(std::uint8_t bits) : bits_(bits) {}
  static constexpr std::uint8_t bit(MeshAxis axis) { return static_cast<std::uint8_t>(1u << static_cast<unsigned>(axis)); }
  std::uint8_t bits_ = 0;
};
constexpr MeshAxes operator|(MeshAxis a, MeshAxis b) { return MeshAxes(a) | MeshAxes(b); }
inline constexpr MeshAxes kDataAxes = MeshAxis::dp_shard | MeshAxis::dp_replicate;

struct Mesh {
  std::array<std::int64_t, kMeshAxes> degree{1, 1, 1, 1, 1, 1};
  // Axes from the innermost (neighbouring ranks) to the outermost. Megatron's default: tp-cp-ep-dp-pp.
  std::array<MeshAxis, kMeshAxes> order{MeshAxis::tp,       MeshAxis::cp,           MeshAxis::ep,
                                        MeshAxis::dp_shard, MeshAxis::dp_replicate, MeshAxis::pp};

  std::int64_t size(MeshAxis axis) const { return degree[static_cast<std::size_t>(axis)]; }
  std::int64_t& size(MeshAxis axis) { return degree[static_cast<std::size_t>(axis)]; }
  std::int64_t stride(MeshAxis axis) const;
  std::int64_t ranks() const;                    // product of all degrees
  std::int64_t group_size(MeshAxes axes) const;  // product of the degrees of `axes`
};

// The same ranks with the innermost axis cut into groups of `neighbours`: what it loses is the next axis's.
// REQUIRES: `neighbours` divides the innermost degree; the axis behind it belongs to no group that is asked for.
Mesh cut_innermost(const Mesh& mesh, std::int64_t neighbours);

}  // namespace orrery
