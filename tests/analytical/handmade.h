// Blocks with round durations, for timelines worked out by hand: one byte takes one second, on the device's memory as
// over PCIe, and nothing has a latency.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <nlohmann/json.hpp>

#include "sim/analytical/block_clock.h"
#include "sim/cost/collective_calibration.h"
#include "sim/hardware/read_cluster.h"
#include "sim/program/liveness.h"

namespace orrery {

// A DGX A100 pair (for its collectives) with a memory and PCIe rate of one byte per second.
struct SlowCluster {
  SlowCluster() : cluster(read_cluster({{"node", "dgx-a100"}, {"nodes", 2}}, {})) {
    cluster.device.memory_bytes_per_second = 1;
    cluster.device.pcie_bytes_per_second = cluster.node.pcie_bytes_per_second = 1;
    cluster.node.host_memory_bytes_per_second = static_cast<double>(cluster.node.devices);
    kernels.matmul.resize(kDtypes);
    for (MatmulCurve& curve : kernels.matmul) curve.tiles = {{128, 128}};
    kernels.memory_efficiency = 1;
    kernels.kernel_fixed_seconds = 0;
    collectives = find_collective_calibration(cluster);
  }
  Cluster cluster;
  Calibration kernels;
  CollectiveCalibration collectives;
};

// A piece built op by op; each op writes a tensor of its own.
struct Handmade {
  Piece piece;

  TensorId tensor(std::int64_t bytes, Category category = Category::activation, bool resident = false) {
    Tensor t;
    t.rank = 1;
    t.sizes[0] = bytes;
    t.dtype = Dtype::uint8;
    t.category = category;
    t.resident = resident;
    return piece.add(t);
  }
  // A kernel of `seconds` that waits for `reads`, which cost it nothing: it writes `seconds` bytes.
  Op& kernel(Block& block, std::int64_t seconds, std::initializer_list<TensorId> reads = {}) {
    return emit(block, OpKind::zero_fill, Stream::compute, seconds, reads);
  }
  // A copy of `seconds` on any stream: what it writes has `seconds` bytes, as has a tensor of its own that it reads
  // first.
  Op& copy(Block& block, Stream stream, std::int64_t seconds, std::initializer_list<TensorId> reads = {}) {
    const TensorId payload = tensor(seconds);
    Op& op = emit(block, OpKind::copy, stream, seconds, {});
    piece.tensors[op.writes[0]].place = Place::host;
    op.reads[0] = payload;
    std::size_t i = 1;
    for (TensorId id : reads) op.reads[i++] = id;
    return op;
  }

 private:
  Op& emit(Block& block, OpKind kind, Stream stream, std::int64_t seconds, std::initializer_list<TensorId> reads) {
    Op op;
    op.kind = kind;
    op.stream = stream;
    op.name = "op";
    std::size_t i = 0;
    for (TensorId id : reads) {
      op.reads[i++] = view_of(id);
    }
    op.writes[0] = tensor(seconds);
    block.ops.push_back(op);
    return block.ops.back();
  }
  // A view of no bytes, so that waiting for a tensor costs no time.
  TensorId view_of(TensorId id) {
    Tensor t = piece.tensors[id];
    t.sizes[0] = 0;
    t.alias_of = id;
    return piece.add(t);
  }
};

// Compiles and clocks blocks of handmade pieces.
class Clockwork {
 public:
  Clockwork() : costs(world.cluster, world.kernels, world.collectives) { costs.set_mesh(mesh); }

  void set_mesh(const Mesh& m) {
    mesh = m;
    costs.set_mesh(m);
  }
  const BlockCode& compile(const Piece& piece, BlockKind kind = BlockKind::forward) {
    Liveness lives;
    lives.find(piece);
    codes.emplace_back();
    const CompileContext context(piece, costs, runtime, lives.storage(), /*sums_over_stages=*/false);
    BlockCompiler().compile(piece, kind, context, codes.back());
    return codes.back();
  }
  LineResult run(const std::vector<LineItem>& line, WhenSet when = kUsual, bool drain = false, bool jump = true) {
    LineResult result;
    std::vector<LineOp> every_op;  // to list them, the clock walks every instance
    clock.run(line, when, overlap_slowdown, drain, result, {}, jump ? nullptr : &every_op);
    return result;
  }
  LineResult run(const Piece& piece, std::int64_t count = 1, WhenSet when = kUsual, bool drain = false) {
    return run({{&compile(piece), count}}, when, drain);
  }

  SlowCluster world;
  Mesh mesh;
  Runtime runtime;
  double overlap_slowdown = 0;
  OpCostModel costs;
  LineClock clock;
  std::deque<BlockCode> codes;
};

inline double exposed(const LineResult& r, Stream stream) {
  return r.accounts[kExposed + static_cast<std::size_t>(stream)];
}
inline double total(const LineResult& r) {
  double sum = 0;
  for (double a : r.accounts) sum += a;
  return sum;
}

}  // namespace orrery
