// Seconds of one kernel on one device: a roofline with measured efficiency curves.
//
//   matmul     fixed + max(compute, memory) + overlap_loss * min(compute, memory)
//   grouped    the same of all groups' tiles at once, and what a group costs by itself
//   attention  fixed + max(compute, memory)
//   others     fixed + bytes / (memory rate * efficiency), with numbers of the kind where it has been measured
//
// The curves are relative to the device's peaks, so they carry over to a device that has none of its own.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/hardware/cluster.h"
#include "sim/program/op.h"
#include "sim/program/tensor.h"
#include "sim/program/work.h"

namespace orrery {

// How well a curve meets the points it was fitted to; errors are fitted / measured - 1.
struct Residual {
  std::int64_t points = 0;
  double median = 0;         // of the absolute errors
  double percentile_90 = 0;  // of the absolute errors
  double geometric_std = 0;  // exp(root mean square of log(fitted / measured)) - 1
  double bias = 0;           // exp(mean of log(fitted / measured)) - 1
};

// Output tile of one multiprocessor: tiles are dealt out in waves, and a last, partly filled wave takes a full one's
// time. With fewer tiles than half the multiprocessors the inner dimension is split over those that idle.
struct MatmulTile {
  std::int64_t m = 128, n = 128;
};

// compute = min over tiles of
//   ceil(tiles / multiprocessors) * t(k + half_k)                            or, when it fits twice,
//   t(k / floor(multiprocessors / tiles) + half_k + split_k)
// with t(k) = 2 tm tn k (1 + operand_cost (1/tm + 1/tn)) / (efficiency * peak / multiprocessors),
// slowed by the power limit towards sustained_efficiency as it grows past sustained_seconds.
struct MatmulCurve {
  double efficiency = 1;            // of the peak, for an endless inner loop over endless tiles
  double half_k = 0;                // prologue and epilogue of a tile, in steps of k
  double operand_cost = 0;          // loading a tile's operands, in rows of a tile
  double split_k = 0;               // reducing over split inner dimensions, in steps of k
  double sustained_efficiency = 0;  // 0: as efficiency
  double sustained_seconds = 0;     // compute time at which half the slow-down has come
  double memory_efficiency = 1;     // of the memory rate
  double overlap_loss = 0;          // share of the shorter of compute and memory that the longer does not hide
  double fixed_seconds = 0;         // on the device, per kernel
  // The measured points hold, beside the product, the quantising of its activations, which a Program has as an op of
  // its own: seconds, and bytes moved per element. Part of the residual, not of the cost.
  double point_quantise_seconds = 0, point_quantise_bytes = 0;
  std::vector<MatmulTile> tiles;
  Residual residual;
  bool measured = true;  // false: taken over from another dtype, or from another board with the same die
};

// A product for each expert, against one batched product of the same shapes: compute / relative, and group_seconds on
// the device for every group but the first. What rows per group cost beyond that follows from tiles, waves and the
// weights that each group reads.
struct GroupedCurve {
  double relative = 1;       // of the rate of products
  double group_seconds = 0;  // a kernel's beginning and end that its neighbours on other streams do not hide
  std::string source;        // empty: as products, nothing was measured
  std::string borrowed_from;
  Residual residual;
};

// Query rows of one FlashAttention tile (Dao 2023, section 3.3): the unit in which its work is dealt to
// multiprocessors.
inline constexpr std::int64_t kAttentionRows = 128;

// compute = flops per (query, key) pair * (pairs + masked_share * masked pairs + queries * half_sequence
//                                          + last_wave * multiprocessors * 128 * keys)
//           / (peak * efficiency * head_dim / (head_dim + half_head_dim))
// Within documents of a sequence (document_pairs): in place of `queries` those of whole tiles, and the pairs that the
// last tiles compute beyond the end of each.
struct AttentionCurve {
  std::string name;  // generation of the kernel: "flash_attention_2", "cudnn"
  std::string source;
  double forward_efficiency = 1, backward_efficiency = 1;  // of the matrix peak
  double half_sequence = 0;                                // keys at which half of it is reached
  double half_head_dim = 0;                                // head_dim at which half of it is reached
  double backward_half_head_dim = -1;                      // the same of the backward; below 0: as the forward
  double masked_share = 0;  // of the masked pairs that the kernel computes all the same: 0 FlashAttention, 1 all
  // Tiles of 128 queries over all keys for whose time the multiprocessors idle at the end, on average.
  double forward_last_wave = 0, backward_last_wave = 0;
  double fixed_seconds = 0;  // on the device, per kernel
  Residual residual;
};

// Of memory-bound kernels of one kind, where they differ from the others: bound by their arithmetic, or by how they
// reach memory. Some kinds have variants, named by what tells them apart: "norm+bias", "activation.gelu",
// "activation.gelu+bias". Variants without numbers of their own have those of the name without "+bias", then of the
// kind.
struct MemoryCurve {
  std::string name;
  double efficiency = 1;  // of the memory rate
  double fixed_seconds = 0;
  Residual residual;
};

struct MeasuredShape {  // of a calibration's GEMM sweep, to tell whether a shape lies near a measured one
  Dtype dtype = Dtype::bf16;
  std::int64_t m = 1, n = 1, k = 1;
};
struct MeasuredAttention {
  std::int64_t sequence = 1, head_dim = 1;
};

// Efficiency curves of one device type, fitted on measured kernels of that type alone. Every number is in the file
// with its source and residual; see results/calibration/README.md for how each was obtained.
struct Calibration {
  std::string name;  // "A100-SXM4-80GB"
  std::string source;
  std::string date;
  std::string note;
  bool measured = true;  // false: no measured kernels of this device; curves of `borrowed_from`
  std::string borrowed_from, borrowed_from_vendor;
  std::vector<MatmulCurve> matmul;    // by Dtype index; without points of their own bf16's, nvfp4 fp8's
  std::vector<GroupedCurve> grouped;  // by Dtype index, as matmul; empty: grouped products are batched ones
  // Host's time to launch one group's kernel from within a grouped product's op, of stacks that launch each expert's
  // product by itself; below 0: not measured, as long as an op.
  double group_issue_seconds = -1;
  AttentionCurve attention;                       // the one in use
  std::vector<AttentionCurve> attention_kernels;  // all that were measured
  std::string attention_borrowed_from;            // device whose attention curves these are; empty: its own
  double memory_efficiency = 0.85;                // of the datasheet rate, memory-bound kernels
  double kernel_fixed_seconds = 0;                // on the device, per memory-bound kernel
  std::string memory_source;
  Residual memory_residual;
  std::vector<MemoryCurve> memory_kinds;  // instead of the three above, for the kinds they name
  double overlap_slowdown = 0;            // share by which kernels slow down while a collective runs beside them
  std::string overlap_source;
  // In a training step, relative to kernels alone (sim/cost/step_calibration.h): products and attention; other kernels
  // but the optimizer's.
  double step_slowdown = 1, memory_bound_slowdown = 1;
  // In a training step, of the rates at which devices of this type multiply matrices (sim/cost/scale_cost.h).
  double device_spread = 0;
  // Of ranks that are threads or processes on a CPU: hardware threads of the measured host (0: not a CPU), and the
  // share of its speed that a rank keeps while all of them are busy.
  std::int64_t host_processors = 0;
  double busy_share = 1;
  std::vector<MeasuredShape> measured_shapes, measured_groups;  // of a group m, n and k
  std::vector<MeasuredAttention> measured_attention;

  // Whether products narrower than 16 bits have the curve of another type, relative to their own peak.
  bool lends_to(Dtype dtype) const {
    return bits_of(dtype) < bits_of(Dtype::bf16) && !matmul[static_cast<std::size_t>(dtype)].measured;
  }
};

// How many of them a kind can have: one for each activation function, with a bias and without.
constexpr int curves_of(const OpTraits& traits) {
  return (traits.functions ? kActivationFunctions : 1) * (traits.bias_read >= 0 || traits.bias_write >= 0 ? 2 : 1);
}
// The names that a MemoryCurve can have.
std::vector<std::string> memory_curve_names();
// That of an op that is no product and no attention, most special first: "activation.gelu+bias".
std::string memory_curve_name(const Op& op);

// What a kernel's time is made of.
struct KernelCost {
  double seconds = 0;
  double flops = 0;
  double bytes = 0;
  enum class Bound : std::uint8_t { compute, memory, fixed } bound = Bound::memory;
};

class KernelModel {
 public:
  // Keeps references: both must outlive the model.
  KernelModel(const Device& device, const Calibration& calibration);

  // Any op that runs on the device (not communication, copies or host). Pure; ~50 ns. `documents`: of attention that
  // stays within them, of a sequence in the mean.
  KernelCost cost(const Op& op, std::span<const Tensor> tensors, const DocumentPairs* documents = nullptr) const;

  // The same from bare shapes: what cost() and the calibration's residuals are made of. `bytes` are moved.
  double matmul_seconds(const GemmShape& shape, Dtype dtype, double bytes) const;
  double grouped_seconds(const GemmShape& shape, Dtype dtype, double bytes) const;
  double attention_seconds(const AttentionShape& shape, Dtype dtype, bool backward, double flops, double bytes) const;
  // Host's time to launch `groups` kernels of one op, each of which takes op_seconds where it is an op.
  double issue_seconds(std::int64_t groups, double op_seconds) const {
    const double each = calibration_.group_issue_seconds, n = static_cast<double>(groups);
    return op_seconds + (n - 1) * (each < 0 ? op_seconds : each);
  }
  double memory_seconds(double bytes) const { return kernel_fixed_seconds_ + bytes * seconds_per_byte_; }
  double memory_seconds(const Op& op, double bytes) const {
    const Memory& curve = memory_[memory_slot(op)];
    return curve.fixed_seconds + bytes * curve.seconds_per_byte;
  }
  // Whether a measured efficiency lies within a factor 2 of each dimension; always of kernels without a curve.
  bool near_measured(const Op& op, std::span<const Tensor> tensors) const;
  bool near_measured(const GemmShape& shape, Dtype dtype, bool grouped = false) const;
  bool near_measured(const AttentionShape& shape) const;

  // The formula of cost() with its numbers and sources, for --explain.
  std::string explain(const Op& op, std::span<const Tensor> tensors, const DocumentPairs* documents = nullptr) const;

 private:
  static constexpr int kMostTiles = 8;
  static constexpr int kMatrixDtypes = 5;  // fp32, fp16, bf16, fp8, nvfp4: those that matrix units multiply
  struct Tile {
    double rows, columns;        // tm, tn
    double per_row, per_column;  // 1 / tm, 1 / tn
    double seconds_per_k;        // t(1)
  };
  struct Matmul {  // a MatmulCurve with the device's rates folded in
    std::array<Tile, kMostTiles> tiles{};
    int tile_count = 0;
    double half_k = 0, split_k = 0;
    double slow_down = 0, sustained_seconds = 0;  // slow_down = efficiency / sustained_efficiency - 1
    double seconds_per_byte = 0, overlap_loss = 0, fixed_seconds = 0;
    double group_slowdown = 1, group_seconds = 0;  // 1 / relative
    bool measured = false;
  };
  struct Times {
    double compute = 0, memory = 0;
  };
  struct Memory {  // of a kind of memory-bound kernels
    double seconds_per_byte = 0, fixed_seconds = 0;
  };
  // A slot for each kind, or (OpTraits::functions, bias_read, bias_write) for each variant of it.
  static constexpr int kMemorySlots = [] {
    int slots = 0;
    for (const OpTraits& traits : op_traits::kTable) slots += curves_of(traits);
    return slots;
  }();
  static std::size_t memory_slot(const Op& op);
  static Op op_of_slot(int slot);
  // Which of the measured shapes lie within a factor 2 of a size, by dimension and power of 2.
  struct NearIndex {
    static constexpr int kPowers = 40;
    int words = 0;
    std::vector<std::uint64_t> bits;  // [dimension m, n, k][power][words]
    std::vector<std::array<std::int64_t, 3>> shapes;
    void build();
    bool near(std::int64_t m, std::int64_t n, std::int64_t k) const;
  };

  static std::size_t matrix_index(Dtype dtype);
  Times matmul_times(const Matmul& curve, const GemmShape& shape, double bytes) const;
  Times grouped_times(const Matmul& curve, const GemmShape& shape, double bytes) const;
  Times attention_times(const AttentionShape& shape, Dtype dtype, bool backward, double flops, double bytes) const;
  Times document_times(const AttentionShape& shape, Dtype dtype, bool backward, const DocumentPairs& pairs,
                       double bytes) const;

  const Device& device_;
  const Calibration& calibration_;
  std::array<Matmul, kMatrixDtypes> matmul_;
  std::array<NearIndex, kMatrixDtypes> near_, near_groups_;
  // [backward][dtype], for endless head_dim.
  std::array<std::array<double, kMatrixDtypes>, 2> attention_seconds_per_flop_{};
  std::array<double, 2> idle_tiles_{};  // [backward]: last_wave * multiprocessors
  double multiprocessors_ = 1, per_multiprocessor_ = 1;
  double seconds_per_byte_ = 0, kernel_fixed_seconds_ = 0;
  std::array<Memory, kMemorySlots> memory_{};
  std::array<double, 2> half_head_dim_{};  // [backward]
};

}  // namespace orrery
