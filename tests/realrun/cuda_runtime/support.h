// Tensors of a backend and what the CPU makes of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "realrun/backend.h"
#include "realrun/cpu/kernels.h"
#include "tests/realrun/kernel_harness.h"

namespace orrery {

using cpu::random_values;
using cpu::shaped;
using cpu::Values;

inline constexpr double kFp32 = 2e-5, kBf16 = 2e-2, kFp8 = 0.15;

// A tensor in the memory of a backend.
struct Held {
  Held(Backend& backend, Tensor t, const Values& values, Place place = Place::device) : backend_(backend), tensor(t) {
    data = backend.allocate(t.elements(), t.dtype, place, Stream::compute);
    if (!values.empty()) backend.write(slice(), values);
  }
  ~Held() { backend_.release(data); }
  Held(const Held&) = delete;

  Slice slice() const { return {data, tensor.dtype, 0, tensor.elements()}; }
  Operand operand() const { return {data, &tensor}; }
  Values values() const {
    Values v(static_cast<std::size_t>(tensor.elements()));
    backend_.read(slice(), v);
    return v;
  }

 private:
  Backend& backend_;

 public:
  Tensor tensor;
  void* data = nullptr;
};

inline Tensor of(std::initializer_list<Dim> dims, Dtype dtype = Dtype::fp32) {
  return shaped(dims, Category::activation, dtype);
}

inline Op op_of(OpKind kind, Stream stream = Stream::compute) {
  Op op;
  op.kind = kind;
  op.name = "test";
  op.stream = stream;
  return op;
}

// Runs the op on the backend and on the CPU; the results' difference, relative to the largest.
inline double difference(Backend& backend, const Op& op, const std::vector<Tensor>& reads, const Tensor& written,
                         const KernelContext& context = {}) {
  std::vector<std::unique_ptr<Held>> held;
  std::vector<Operand> operands;
  std::vector<Values> values;
  for (std::size_t i = 0; i < reads.size(); ++i) {
    values.push_back(random_values(reads[i].elements(), static_cast<std::uint32_t>(i + 1)));
    held.push_back(std::make_unique<Held>(backend, reads[i], values[i]));
    if (reads[i].dtype != Dtype::fp8) values[i] = held.back()->values();  // as rounded by storage
    operands.push_back(held.back()->operand());
  }
  const Values before = op.accumulate ? random_values(written.elements(), 99) : Values{};
  Held result(backend, written, before);
  const Operand out = result.operand();
  backend.run(op, operands, {&out, 1}, context);

  std::vector<Operand> buffers;
  for (std::size_t i = 0; i < reads.size(); ++i) buffers.push_back({values[i].data(), &reads[i]});
  Values expected = before.empty() ? Values(static_cast<std::size_t>(written.elements())) : before;
  const Operand expected_buffer{expected.data(), &written};
  cpu::run_kernel(op, buffers, {&expected_buffer, 1}, context);

  const Values actual = result.values();
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    worst = std::max(worst, static_cast<double>(std::abs(actual[i] - expected[i])));
    largest = std::max(largest, static_cast<double>(std::abs(expected[i])));
    if (std::isnan(actual[i])) return std::numeric_limits<double>::infinity();
  }
  return worst / largest;
}

}  // namespace orrery
