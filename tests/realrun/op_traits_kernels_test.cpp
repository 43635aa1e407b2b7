// Do the CPU's kernels do what the table of kinds says of them? On the benchmark's cases, which hold every kind.
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "realrun/backend.h"
#include "realrun/bench/cases.h"
#include "realrun/cpu/kernels.h"
#include "realrun/stand_alone.h"

namespace orrery::bench {
namespace {

using Values = std::vector<float>;

// What the op leaves in its results; those that may be absent are.
std::vector<Values> results(const KernelCase& c) {
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  Operands operands(*backend, c);
  operands.run();
  std::vector<Values> values;
  for (const Operand& written : operands.writes()) {
    Values& v = values.emplace_back();
    if (written.data == nullptr) continue;
    v.resize(static_cast<std::size_t>(written.tensor->elements()));
    backend->read({written.data, written.tensor->dtype, 0, written.tensor->elements(), nullptr}, v);
  }
  return values;
}

TEST(OpTraitsOfKernels, EveryComputationRuns) {
  std::set<OpKind> run;
  for (const KernelCase& c : kernel_cases(DeviceKind::cpu, false)) run.insert(c.op.kind);
  for (const OpTraits& traits : op_traits::kTable) {
    EXPECT_TRUE(is_communication(traits.kind) || run.contains(traits.kind)) << traits.name << " is not among the cases";
    Op op;
    op.kind = traits.kind;
    op.name = "test";
    try {
      cpu::run_kernel(op, {}, {}, {});
      ADD_FAILURE() << traits.name << " does nothing";
    } catch (const std::logic_error& error) {
      const bool no_kernel = std::string(error.what()).find("is not a kernel") != std::string::npos;
      EXPECT_EQ(no_kernel, !is_computation(traits.kind)) << traits.name;
    }
  }
}

TEST(OpTraitsOfKernels, AccumulatingAddsToWhatTheTableNamesAndToNothingElse) {
  constexpr float kBefore = 3;
  std::set<OpKind> met;
  for (KernelCase c : kernel_cases(DeviceKind::cpu, false)) {
    const OpTraits& traits = traits_of(c.op.kind);
    if (!is_computation(c.op.kind)) continue;
    c.op.accumulate = false;
    const std::vector<Values> once = results(c);
    c.op.accumulate = true;
    if (traits.accumulates == 0) {
      EXPECT_THROW(results(c), std::logic_error) << c.name;
      continue;
    }
    met.insert(c.op.kind);
    for (const TensorId id : c.op.writes)
      if (id != kNoTensor) c.contents[id] = {Contents::Kind::constant, kBefore};
    const std::vector<Values> added = results(c);
    ASSERT_EQ(added.size(), once.size());
    for (std::size_t i = 0; i < once.size(); ++i)
      for (std::size_t e = 0; e < once[i].size(); ++e)
        ASSERT_NEAR(added[i][e], once[i][e] + (accumulates(c.op.kind, i) ? kBefore : 0),
                    1e-4 * (1 + std::abs(once[i][e])))
            << c.name << ", result " << i << ", element " << e;
  }
  for (const OpTraits& traits : op_traits::kTable)
    EXPECT_EQ(met.contains(traits.kind), traits.accumulates != 0 && is_computation(traits.kind)) << traits.name;
}

TEST(OpTraitsOfKernels, InPlaceKernelsGiveTheSameNumbersThere) {
  std::set<OpKind> met;
  for (const KernelCase& c : kernel_cases(DeviceKind::cpu, false)) {
    if (!traits_of(c.op.kind).in_place || !is_computation(c.op.kind)) continue;
    const std::vector<Values> apart = results(c);
    for (std::size_t w = 0; w < apart.size(); ++w) {
      if (c.op.writes[w] == kNoTensor) continue;
      for (std::size_t r = 0; r < c.op.reads.size(); ++r) {
        if (c.op.reads[r] == kNoTensor) continue;
        const Tensor &in = c.tensors[c.op.reads[r]], &out = c.tensors[c.op.writes[w]];
        if (in.elements() != out.elements() || in.dtype != out.dtype) continue;
        if (is_optimizer(c.op.kind) && c.op.writes[w] != c.op.reads[r]) continue;  // a state lies where it lay
        KernelCase in_place = c;
        in_place.op.writes[w] = c.op.reads[r];
        const std::vector<Values> there = results(in_place);
        ASSERT_EQ(there, apart) << c.name << ", result " << w << " where operand " << r << " is";
        met.insert(c.op.kind);
      }
    }
  }
  for (const OpTraits& traits : op_traits::kTable)
    EXPECT_EQ(met.contains(traits.kind), traits.in_place && is_computation(traits.kind)) << traits.name;
}

}  // namespace
}  // namespace orrery::bench
