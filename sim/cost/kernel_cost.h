// Seconds of one kernel on one device: a roofline with measured efficiency curves.
//
//   matmul     fixed + max(compute, memory) + overlap_loss * min(compute, memory)
//   grouped    the same for the tiles of all groups together, plus seconds per group
//   attention  fixed + max(compute, memory)
//   others     fixed + bytes / (memory rate * efficiency), with numbers of the op's kind where it was measured
//
// The curves are relative to the device's peaks, so that a device without curves can borrow those of another.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sim/hardware/cluster.h"
#include "sim/program/op.h"
#include "sim/program/tensor.h"
#include "sim/program/work.h"

namespace orrery {

// How well a curve fits the points that it was fitted to; errors are fitted / measured - 1.
struct Residual {
  std::int64_t points = 0;
  double median = 0;         // of the absolute errors
  double percentile_90 = 0;  // of the absolute errors
  double geometric_std = 0;  // exp(root mean square of log(fitted / measured)) - 1
  double bias = 0;           // exp(mean of log(fitted / measured)) - 1
};

// The output tile of one multiprocessor. Tiles run in waves; a last, partly filled wave takes as long as a full one. If
// at most half of the multiprocessors have a tile, the inner dimension may be split over the others.
struct MatmulTile {
  std::int64_t m = 128, n = 128;
};

// compute = min over tile shapes (tm, tn), where tiles = batch * ceil(m / tm) * ceil(n / tn), of
//   ceil(tiles / multiprocessors) * t(k + half_k)                            and, if 2 tiles <= multiprocessors,
//   t(k / floor(multiprocessors / tiles) + half_k + split_k)
// with t(k) = 2 tm tn k (1 + operand_cost (1/tm + 1/tn)) / (efficiency * peak / multiprocessors) seconds.
// The power limit multiplies it by 1 + (efficiency / sustained_efficiency - 1) * compute / (compute +
// sustained_seconds).
struct MatmulCurve {
  double efficiency = 1;            // share of the peak, for an endless inner loop over endless tiles
  double half_k = 0;                // prologue and epilogue of a tile, in steps of k
  double operand_cost = 0;          // cost of loading a tile's operands, in rows of a tile
  double split_k = 0;               // cost of reducing over split inner dimensions, in steps of k
  double sustained_efficiency = 0;  // 0: equal to `efficiency`
  double sustained_seconds = 0;     // compute time at which half of the slow-down is reached
  double memory_efficiency = 1;     // share of the memory rate
  double overlap_loss = 0;          // share of the shorter of compute and memory time that the longer one does not hide
  double fixed_seconds = 0;         // on the device, per kernel
  // The measured points include the quantisation of the product's activations, which a Program has as an op of its own.
  // These are its seconds, and its bytes per element. They enter the residual, not the cost.
  double point_quantise_seconds = 0, point_quantise_bytes = 0;
  std::vector<MatmulTile> tiles;
  Residual residual;
  bool measured = true;  // false: taken from another dtype, or from another board with the same die
};

// A grouped product (one product per expert), relative to one batched product of the same shapes: its compute time is
// divided by `relative`, and every group but the first adds group_seconds. Other costs of unequal rows per group follow
// from tiles, waves and the weights that each group reads.
struct GroupedCurve {
  double relative = 1;       // share of the rate of batched products
  double group_seconds = 0;  // start and end of a group's kernel that kernels on other streams do not hide
  std::string source;        // empty: nothing was measured; as batched products
  std::string borrowed_from;
  Residual residual;
};

// Query rows of one FlashAttention tile (Dao 2023, section 3.3): the unit in which work goes to multiprocessors.
inline constexpr std::int64_t kAttentionRows = 128;

// compute = flops per (query, key) pair * (pairs + masked_share * masked pairs + queries * half_sequence
//                                          + queries * (1 - window / keys of the sequence) * window_edge
//                                          + last_wave * multiprocessors * min(128, queries of a head) * keys)
//           / (peak * efficiency * head_dim / (head_dim + half_head_dim))
// Pairs and queries are summed over batch and heads; `keys` are one head's, at most the window. Within the documents of
// a sequence (document_pairs), the queries of whole tiles replace `queries`, the longest document's keys replace
// `keys`, and the pairs that last tiles compute beyond the documents' ends are added.
struct AttentionCurve {
  std::string name;           // generation of the kernel: "flash_attention_2", "cudnn"
  Dtype dtype = Dtype::bf16;  // of queries, keys and values: fp8, mxfp8, or bf16 for all wider ones
  std::string source;
  double forward_efficiency = 1, backward_efficiency = 1;  // share of the matrix peak
  double half_sequence = 0;                                // number of keys at which half of the efficiency is reached
  double half_head_dim = 0;                                // head_dim at which half of the efficiency is reached
  double backward_half_head_dim = -1;                      // the same for the backward; below 0: as the forward
  // Below this head_dim a forward's rate is also proportional to head_dim: its softmax does not shrink (Blackwell).
  double forward_least_head_dim = 0;
  double masked_share = 0;  // share of masked pairs that are computed nevertheless: 0 FlashAttention, 1 all
  double backward_masked_share = -1;  // the same for the backward; below 0: as the forward
  // Keys of each query that a window costs beside its own. Tiles at its early edge are computed whole and masked, and
  // each tile of queries reads so few of keys that the kernel's pipeline does not fill.
  double forward_window_edge = 0, backward_window_edge = 0;
  // Idle time of multiprocessors at the end of a kernel, on average, in tiles of 128 queries over all keys.
  double forward_last_wave = 0, backward_last_wave = 0;
  double fixed_seconds = 0;  // on the device, per kernel
  Residual residual;
};

// The curve of one kind of memory-bound kernels that differs from the common one: bound by arithmetic, or by its access
// pattern. Some kinds have variants, with names such as "norm+bias", "activation.gelu", "activation.gelu+bias". A
// variant without numbers uses those of its name without "+bias", and then those of the kind.
struct MemoryCurve {
  std::string name;
  double efficiency = 1;  // share of the memory rate
  double fixed_seconds = 0;
  Residual residual;
};

struct MeasuredShape {  // of a calibration's GEMM sweep, to tell whether a shape is near a measured one
  Dtype dtype = Dtype::bf16;
  std::int64_t m = 1, n = 1, k = 1;
};
struct MeasuredAttention {
  std::int64_t sequence = 1, head_dim = 1;
};

// Efficiency curves of one device type, fitted only on measured kernels of that type. The calibration file holds every
// number with its source and residual; results/calibration/README.md says how each was obtained.
struct Calibration {
  std::string name;  // "A100-SXM4-80GB"
  std::string source;
  std::string date;
  std::string note;
  bool measured = true;  // false: no kernel of this device was measured; these are the curves of `borrowed_from`
  std::string borrowed_from, borrowed_from_vendor;
  std::vector<MatmulCurve> matmul;    // by Dtype index; without measured points bf16's curve, for nvfp4 fp8's
  std::vector<GroupedCurve> grouped;  // by Dtype index, as `matmul`; empty: as batched products
  // Host seconds to launch one group's kernel within the op of a grouped product, for stacks that launch each expert's
  // product separately. Below 0: not measured; then as long as an op.
  double group_issue_seconds = -1;
  AttentionCurve attention;                       // the one in use
  std::vector<AttentionCurve> attention_kernels;  // all that were measured
  std::vector<AttentionCurve> narrow_attention;   // of operands below 16 bits, one for each dtype that was measured
  std::string attention_borrowed_from;            // device that the attention curves were measured on; empty: this one
  double memory_efficiency = 0.85;                // share of the datasheet's rate, for memory-bound kernels
  double kernel_fixed_seconds = 0;                // on the device, per memory-bound kernel
  std::string memory_source;
  Residual memory_residual;
  // For the kinds that they name, these replace memory_efficiency, kernel_fixed_seconds and memory_residual.
  std::vector<MemoryCurve> memory_kinds;
  double overlap_slowdown = 0;  // share by which kernels slow down while a collective runs
  std::string overlap_source;
  // Seconds in a training step over seconds of kernels alone (sim/cost/step_calibration.h): of products and attention,
  // and of all other kernels except the optimizer's.
  double step_slowdown = 1, memory_bound_slowdown = 1;
  // Spread of the rates at which devices of this type multiply matrices in a training step
  // (sim/cost/step_calibration.h).
  double device_spread = 0;
  // For ranks that are threads or processes on a CPU: the hardware threads of the measured host (0: not a CPU), and the
  // share of its speed that a rank keeps while all of them are busy.
  std::int64_t host_processors = 0;
  double busy_share = 1;
  std::vector<MeasuredShape> measured_shapes, measured_groups;  // of groups: m, n and k of one group
  std::vector<MeasuredAttention> measured_attention;

  // Whether products of a type narrower than 16 bits use the curve of another type, relative to their own peak.
  bool lends_to(Dtype dtype) const {
    return bits_of(dtype) < bits_of(Dtype::bf16) && !matmul[static_cast<std::size_t>(dtype)].measured;
  }
  // Returns the curve of attention over operands of a dtype. A narrow one without a curve of its own has that of
  // 16 bits, relative to the peak of 16 bits.
  const AttentionCurve& attention_of(Dtype dtype) const {
    for (const AttentionCurve& curve : narrow_attention)
      if (curve.dtype == dtype) return curve;
    return attention;
  }
};

// The number of curves that a kind can have: one per activation function, each with and without a bias.
constexpr int curves_of(const OpTraits& traits) {
  return (traits.functions ? kActivationFunctions : 1) * (traits.bias_read >= 0 || traits.bias_write >= 0 ? 2 : 1);
}
// All names that a MemoryCurve can have.
std::vector<std::string> memory_curve_names();
// The curve name of an op that is neither a product nor attention, the most specific one: "activation.gelu+bias".
std::string memory_curve_name(const Op& op);

// The time of a kernel and its terms.
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

  // Cost of any op that runs on the device (not communication, copies or host ops). Pure; cost ~50 ns. `documents`: for
  // attention within documents, the pairs of a sequence (the mean).
  KernelCost cost(const Op& op, std::span<const Tensor> tensors, const DocumentPairs* documents = nullptr) const;

  // The same from bare shapes, for cost() and for the calibrations' residuals. `bytes`: moved bytes.
  double matmul_seconds(const GemmShape& shape, Dtype dtype, double bytes) const {
    return matmul_times(shape, dtype, false, bytes).seconds();
  }
  double grouped_seconds(const GemmShape& shape, Dtype dtype, double bytes) const {
    return matmul_times(shape, dtype, true, bytes).seconds();
  }
  double attention_seconds(const AttentionShape& shape, Dtype dtype, bool backward, double flops, double bytes) const {
    return attention_times(shape, dtype, backward, flops, bytes).seconds();
  }
  // Host seconds to launch `groups` kernels of one op. op_seconds: host seconds of an op that is one kernel.
  double issue_seconds(std::int64_t groups, double op_seconds) const {
    const double each = calibration_.group_issue_seconds, n = static_cast<double>(groups);
    return op_seconds + (n - 1) * (each < 0 ? op_seconds : each);
  }
  double memory_seconds(double bytes) const { return kernel_fixed_seconds_ + bytes * seconds_per_byte_; }
  double memory_seconds(const Op& op, double bytes) const {
    const Memory& curve = memory_[memory_slot(op)];
    return curve.fixed_seconds + bytes * curve.seconds_per_byte(op);
  }
  // Whether a measured shape lies within a factor of 2 in each dimension: m, n and k of a product; keys and head_dim of
  // attention. False for batched products that are not grouped, and for a curve taken from another dtype. True for
  // memory-bound kernels, whose measured sizes are not recorded.
  bool near_measured(const Op& op, std::span<const Tensor> tensors) const;
  bool near_measured(const GemmShape& shape, Dtype dtype, bool grouped = false) const;
  bool near_measured(const AttentionShape& shape) const;

  // The formula of cost() with its numbers and sources, for --explain.
  std::string explain(const Op& op, std::span<const Tensor> tensors, const DocumentPairs* documents = nullptr) const;

 private:
  static constexpr int kMostTiles = 8;
  static constexpr int kMatrixDtypes = 5;  // types that matrix units multiply: fp32, fp16, bf16, fp8, nvfp4
  struct Tile {
    double rows, columns;        // tm, tn
    double per_row, per_column;  // 1 / tm, 1 / tn
    double seconds_per_k;        // t(1)
  };
  struct Matmul {  // a MatmulCurve multiplied with the device's rates
    std::array<Tile, kMostTiles> tiles{};
    int tile_count = 0;
    double half_k = 0, split_k = 0;
    double slow_down = 0, sustained_seconds = 0;  // slow_down = efficiency / sustained_efficiency - 1
    double seconds_per_byte = 0, overlap_loss = 0, fixed_seconds = 0;
    double group_slowdown = 1, group_seconds = 0;  // 1 / relative
    bool measured = false;
    Dtype curve_dtype = Dtype::bf16;  // the type whose curve this is
  };
  struct Times {
    double compute = 0, memory = 0, fixed = 0, overlap_loss = 0;
    double seconds() const { return fixed + std::max(compute, memory) + overlap_loss * std::min(compute, memory); }
  };
  struct Memory {  // of one kind of memory-bound kernels; `alone`: without Calibration::memory_bound_slowdown
    double in_step = 0, alone = 0, fixed_seconds = 0;
    double seconds_per_byte(const Op& op) const { return op.phase == Phase::update ? alone : in_step; }
  };
  // One slot for each kind, or for each variant of a kind (OpTraits::functions, bias_read, bias_write).
  static constexpr int kMemorySlots = [] {
    int slots = 0;
    for (const OpTraits& traits : op_traits::kTable) slots += curves_of(traits);
    return slots;
  }();
  struct Attention {  // an AttentionCurve multiplied with the device's rates; arrays: forward, backward
    const AttentionCurve* curve = nullptr;
    double peak = 0;                           // that the curve's efficiencies are shares of
    std::array<double, 2> seconds_per_flop{};  // for an endless head_dim
    std::array<double, 2> idle_tiles{};        // last_wave * multiprocessors
    std::array<double, 2> half_head_dim{}, least_head_dim{}, masked_share{}, window_edge{};
    // Keys of each query that a window costs beside its own: none of queries that see all keys before them.
    double edge_of_window(std::size_t way, double window, double keys) const {
      return window > 0 ? window_edge[way] * std::max(0.0, 1 - window / keys) : 0;
    }
    // Seconds of a FLOP at a head_dim, over those at an endless one.
    double of_head_dim(std::size_t way, double head_dim) const {
      return (1 + half_head_dim[way] / head_dim) * std::max(1.0, least_head_dim[way] / head_dim);
    }
  };
  static std::size_t memory_slot(const Op& op);
  static std::size_t matrix_index(Dtype dtype);
  const Attention& attention_of(Dtype dtype) const {
    return attention_[dtype == Dtype::mxfp8 ? kMatrixDtypes : matrix_index(dtype)];
  }
  Times matmul_times(const GemmShape& shape, Dtype dtype, bool grouped, double bytes) const;
  Times attention_times(const AttentionShape& shape, Dtype dtype, bool backward, double flops, double bytes) const;
  Times document_times(const AttentionShape& shape, Dtype dtype, bool backward, const DocumentPairs& pairs,
                       double bytes) const;
  // Sets the op's FLOPs, too.
  Times times_of(const Op& op, std::span<const Tensor> tensors, const DocumentPairs* documents, double bytes,
                 double& flops) const;

  const Device& device_;
  const Calibration& calibration_;
  std::array<Matmul, kMatrixDtypes> matmul_;
  std::array<Attention, kMatrixDtypes + 1> attention_;  // the last: mxfp8
  double multiprocessors_ = 1, per_multiprocessor_ = 1;
  double seconds_per_byte_ = 0, kernel_fixed_seconds_ = 0;
  std::array<Memory, kMemorySlots> memory_{};
};

}  // namespace orrery
