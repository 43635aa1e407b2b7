// Runs ops and whole pieces on the CPU kernels, with every result poisoned before it is written.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "realrun/cpu/kernels.h"
#include "sim/program/piece.h"

namespace orrery::cpu {

using RunKernel = void(const Op&, std::span<const orrery::Operand>, std::span<const orrery::Operand>,
                       const KernelContext&);
// What tests run kernels by: the CPU's, unless a test is asked of others (kernel_devices.h).
inline RunKernel*& kernel_runner() {
  static RunKernel* runner = run_kernel;
  return runner;
}

inline Tensor shaped(std::initializer_list<Dim> dims, Category category = Category::activation,
                     Dtype dtype = Dtype::fp32) {
  Tensor t;
  t.name = "tensor";
  t.dtype = dtype;
  t.category = category;
  for (const Dim& d : dims) t.append(d);
  return t;
}
inline Tensor plain(std::initializer_list<Dim> dims) { return shaped(dims); }
inline Tensor parameter(std::initializer_list<Dim> dims) { return shaped(dims, Category::parameter); }

using Values = std::vector<float>;

inline Values random_values(std::int64_t n, std::uint32_t seed, double scale = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal(0, scale);
  Values values(static_cast<std::size_t>(n));
  for (float& v : values) v = static_cast<float>(normal(generator));
  return values;
}

inline Op op_of(OpKind kind) {
  Op op;
  op.kind = kind;
  op.name = "test";
  return op;
}

struct Operand {
  Tensor tensor;
  Values values;
};
// One call of a kernel on given operands; results are poisoned before.
inline std::vector<Values> call(const Op& op, std::vector<Operand> reads, const std::vector<Tensor>& results,
                                const KernelContext& context = {}) {
  std::vector<Values> values;
  std::vector<orrery::Operand> in, out;
  for (const Tensor& t : results)
    values.emplace_back(static_cast<std::size_t>(t.elements()), std::numeric_limits<float>::quiet_NaN());
  for (Operand& r : reads) in.push_back({r.values.empty() ? nullptr : r.values.data(), &r.tensor});
  for (std::size_t i = 0; i < results.size(); ++i) out.push_back({values[i].data(), &results[i]});
  kernel_runner()(op, in, out, context);
  return values;
}

inline constexpr double kFp32 = 2e-5;  // of sums of some tens of products of normal numbers
inline void expect_equal(const Values& actual, const std::vector<double>& expected, double tolerance = kFp32) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i)
    ASSERT_NEAR(actual[i], expected[i], tolerance * (1 + std::abs(expected[i]))) << i;
}

// A piece and its tensors in memory. Views must be the beginning of what they view.
class Machine {
 public:
  explicit Machine(Piece p, std::uint64_t first_dropout_stream = 0)
      : piece(std::move(p)), stream_(first_dropout_stream) {
    for (const Tensor& t : piece.tensors)
      storage_.emplace_back(static_cast<std::size_t>(t.alias_of == kNoTensor ? t.elements() : 0));
  }

  Values& values(TensorId id) {
    return storage_[piece.tensors[id].alias_of == kNoTensor ? id : piece.tensors[id].alias_of];
  }

  void forward() { run(piece.forward); }
  // Sums into gradients begin at zero, as after zero_fill.
  void backward() {
    for (const Op& op : piece.backward.ops)
      for (TensorId id : op.writes)
        if (op.accumulate && id != kNoTensor) std::ranges::fill(values(id), 0.0f);
    run(piece.backward);
  }

  // Of what the head's cross_entropy ops measured: the sum over tokens.
  double loss() {
    double total = 0;
    for (const Op& op : piece.forward.ops) {
      if (op.kind != OpKind::cross_entropy) continue;
      const Values& s = values(op.writes[0]);
      const std::size_t tokens = s.size() / 3;
      for (std::size_t t = 0; t < tokens; ++t)
        total += s[t] + std::log(static_cast<double>(s[tokens + t])) - s[2 * tokens + t];
    }
    return total;
  }

  Piece piece;
  KernelContext context;

 private:
  void run(const Block& block) {
    std::uint64_t stream = stream_;
    for (const Op& op : block.ops) {
      std::vector<orrery::Operand> reads, writes;
      for (const TensorId id : op.reads) reads.push_back(buffer(id));
      for (const TensorId id : op.writes) writes.push_back(buffer(id));
      if (!op.accumulate)
        for (const orrery::Operand& b : writes)
          if (b.data != nullptr) std::ranges::fill(floats(b), std::numeric_limits<float>::quiet_NaN());
      context.dropout_stream = stream++;
      kernel_runner()(op, reads, writes, context);
      for (const orrery::Operand& b : writes)
        if (b.data != nullptr && std::ranges::any_of(floats(b), [](float x) { return std::isnan(x); }))
          throw std::runtime_error(std::string(name_of(op.kind)) + " left a result unwritten");
    }
  }
  orrery::Operand buffer(TensorId id) {
    if (id == kNoTensor) return {};
    const Tensor& t = piece.tensors[id];
    if (t.alias_of != kNoTensor && (t.alias_begin != 0 || t.elements() > piece.tensors[t.alias_of].elements()))
      throw std::runtime_error("a view that is not the beginning of its tensor");
    return {values(id).data(), &t};
  }

  std::uint64_t stream_;
  std::vector<Values> storage_;
};

// A piece of one op. Operands of category parameter are differentiated.
inline Machine machine_of(Op op, const std::vector<Tensor>& reads, const std::vector<Tensor>& writes) {
  Piece piece;
  for (std::size_t i = 0; i < reads.size(); ++i)
    if (reads[i].rank > 0) op.reads[i] = piece.add(reads[i]);
  for (std::size_t i = 0; i < writes.size(); ++i) {
    op.writes[i] = piece.add(writes[i]);
    piece.tensors.back().category = Category::activation;
  }
  piece.forward.ops.push_back(op);
  if (op.kind != OpKind::cross_entropy) piece.output = op.writes[0];
  differentiate(piece, Dtype::fp32);
  return Machine(std::move(piece));
}

// Derivative of `loss` along `direction` of `values`, by central differences.
inline double slope_along(Values& values, const Values& direction, const std::function<double()>& loss, double step) {
  const Values saved = values;
  const auto at = [&](double distance) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(saved[i] + distance * direction[i]);
    return loss();
  };
  const double slope = (at(step) - at(-step)) / (2 * step);
  values = saved;
  return slope;
}

inline double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

// Every parameter's gradient against differences of the loss along random directions. The slope along a normal
// direction is of the size of the gradient's norm.
inline void expect_gradients(Machine& m, const std::function<double()>& loss, double tolerance, std::uint32_t seed,
                             double step = 5e-3) {
  ASSERT_FALSE(m.piece.parameters.empty());
  for (const ParameterGradient& p : m.piece.parameters) {
    const Values gradient = m.values(p.gradient);
    const Values direction = random_values(static_cast<std::int64_t>(gradient.size()), seed + p.parameter);
    const double expected = slope_along(m.values(p.parameter), direction, loss, step),
                 size = std::sqrt(dot(gradient, gradient));
    EXPECT_NEAR(dot(gradient, direction), expected, tolerance * size)
        << m.piece.name << " " << m.piece.tensors[p.parameter].name << " " << p.parameter << " gradient of norm "
        << size << " seed " << seed;
    EXPECT_GT(size, 0) << m.piece.tensors[p.parameter].name;
  }
}

// Fills operands of an op with random numbers, runs it and its derivative, and compares with differences of a random
// combination of the first output.
inline void expect_derivative(
    Machine m, const std::function<void(Machine&)>& prepare = [](Machine&) {}, double tolerance = 3e-3) {
  for (const std::uint32_t seed : {1u, 2u, 3u}) {
    for (const ParameterGradient& p : m.piece.parameters)
      m.values(p.parameter) =
          random_values(static_cast<std::int64_t>(m.values(p.parameter).size()), seed + 10 * p.parameter);
    prepare(m);
    const TensorId output = m.piece.output;
    Values weights;
    const auto loss = [&] {
      m.forward();
      return output == kNoTensor ? m.loss() : dot(m.values(output), weights);
    };
    if (output != kNoTensor) {
      weights = random_values(static_cast<std::int64_t>(m.values(output).size()), seed + 1000);
      m.values(m.piece.output_gradient) = weights;
    }
    loss();
    m.backward();
    expect_gradients(m, loss, tolerance, seed);
  }
}

}  // namespace orrery::cpu
