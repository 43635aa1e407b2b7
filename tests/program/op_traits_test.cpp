// What does the table of kinds lack, and do ops look as it says?
#include "sim/program/op_traits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "sim/program/piece.h"
#include "strategies/lower.h"
#include "strategies/read_scenario.h"

namespace orrery {
namespace {

const auto& kTable = op_traits::kTable;

template <std::size_t N>
unsigned operands(const std::array<TensorId, N>& ids) {
  unsigned mask = 0;
  for (std::size_t i = 0; i < N; ++i) mask |= ids[i] != kNoTensor ? 1u << i : 0u;
  return mask;
}

// Everything that must be there is, and nothing that may not be.
bool fits(unsigned there, unsigned must, unsigned may) {
  return (there & must) == must && (there & ~(must | may)) == 0;
}

void expect_fits(const Op& op, const std::string& where) {
  const OpTraits& t = traits_of(op.kind);
  EXPECT_TRUE(fits(operands(op.reads), t.reads, t.may_read)) << where << ": " << t.name << " " << op.name << " reads";
  EXPECT_TRUE(fits(operands(op.writes), t.writes, t.may_write))
      << where << ": " << t.name << " " << op.name << " writes";
  EXPECT_TRUE(!op.accumulate || t.accumulates != 0) << where << ": " << t.name << " " << op.name << " accumulates";
}

TEST(OpTraits, EachKindHasANameOfItsOwn) {
  std::set<std::string> names;
  for (const OpTraits& t : kTable) {
    EXPECT_TRUE(names.insert(t.name).second) << t.name;
    EXPECT_STREQ(name_of(t.kind), t.name);
  }
}

TEST(OpTraits, EachRowAgreesWithItself) {
  for (const OpTraits& t : kTable) {
    EXPECT_EQ(t.reads & t.may_read, 0) << t.name;
    EXPECT_EQ(t.writes & t.may_write, 0) << t.name;
    EXPECT_EQ(t.accumulates & ~(t.writes | t.may_write), 0) << t.name << " adds to what it does not write";
    EXPECT_TRUE(t.writes != 0) << t.name << " has no result";
    if (t.bias_read >= 0) {
      EXPECT_TRUE(t.may_read >> t.bias_read & 1) << t.name;
    }
    if (t.bias_write >= 0) {
      EXPECT_TRUE(t.may_write >> t.bias_write & 1) << t.name;
    }
    EXPECT_EQ(t.queries_read >= 0, is_attention(t.kind)) << t.name;
    if (t.norm_read >= 0) {
      EXPECT_TRUE(t.may_read >> t.norm_read & 1) << t.name;
    }
    EXPECT_EQ(t.moved == MovedBytes::payload, is_communication(t.kind)) << t.name;
    EXPECT_EQ(t.moved == MovedBytes::source, is_copy(t.kind)) << t.name;
  }
}

TEST(OpTraits, RulesOfDividedOperandsAreOfOperandsThatThereAre) {
  for (const OpTraits& t : kTable) {
    const unsigned reads = t.reads | t.may_read, writes = t.writes | t.may_write;
    for (const OperandMask mask : {t.linear, t.added, t.takes_positions, t.whole_rows})
      EXPECT_EQ(mask & ~reads, 0u) << t.name;
    for (const OperandMask mask : {t.independent, t.gives_positions}) EXPECT_EQ(mask & ~writes, 0u) << t.name;
    EXPECT_TRUE(!t.product || t.linear == 0b11) << t.name << " multiplies two factors";
    EXPECT_TRUE(t.independent == 0 || t.linear != 0) << t.name << " has results that owe nothing anyway";
    EXPECT_TRUE(t.added == 0 || t.sums) << t.name << " adds to no sum";
    EXPECT_EQ(t.added & t.linear, 0) << t.name;
    if (is_computation(t.kind)) continue;
    EXPECT_EQ(t.linear | t.takes_positions | t.gives_positions | t.whole_rows, 0) << t.name << " moves, and no more";
    EXPECT_FALSE(t.sums || t.whole_heads || t.masks_rows) << t.name;
  }
}

// An op of this kind on parameters, with all operands that it may have or those alone that it must, in a piece that
// hands on its first result.
Piece piece_of(const OpTraits& t, bool optional = true) {
  const unsigned reads = t.reads | (optional ? t.may_read : 0u), writes = t.writes | (optional ? t.may_write : 0u);
  Piece piece;
  Op op;
  op.kind = t.kind;
  op.name = t.name;
  Tensor tensor;
  tensor.rank = 2;
  tensor.sizes = {4, 4, 1, 1, 1, 1};
  tensor.category = Category::parameter;
  for (std::size_t i = 0; i < op.reads.size(); ++i)
    if ((reads >> i & 1) != 0) op.reads[i] = piece.add(tensor);
  tensor.category = Category::activation;
  for (std::size_t i = 0; i < op.writes.size(); ++i)
    if ((writes >> i & 1) != 0) op.writes[i] = piece.add(tensor);
  piece.forward.ops.push_back(op);
  if (t.kind != OpKind::cross_entropy) piece.output = op.writes[0];
  return piece;
}

// Whether `kind` without what it may read is the derivative of `of`, and `of` that of `kind`: each moves back what the
// other moves.
bool are_each_others_derivative(OpKind kind, OpKind of) {
  const auto is_derivative = [](OpKind derivative, OpKind of_kind) {
    Piece piece = piece_of(traits_of(of_kind), false);
    differentiate(piece, Dtype::fp32);
    return piece.backward.ops.size() == 1 && piece.backward.ops[0].kind == derivative;
  };
  return is_derivative(kind, of) && is_derivative(of, kind);
}

TEST(OpTraits, EachKindHasADerivativeOrAReasonForNone) {
  for (const OpTraits& t : kTable) {
    const Derivative& rule = t.derivative;
    EXPECT_EQ(rule.ops[0].kind == OpKind::end && rule.passes == 0, t.why_none != nullptr) << t.name;
    if (t.writes == 0) continue;
    Piece piece = piece_of(t);
    if (t.why_none != nullptr) {
      try {
        differentiate(piece, Dtype::fp32);
        ADD_FAILURE() << t.name << " was differentiated";
      } catch (const std::logic_error& error) {
        EXPECT_THAT(error.what(), ::testing::HasSubstr(t.why_none));
      }
      continue;
    }
    differentiate(piece, Dtype::fp32);
    EXPECT_FALSE(piece.parameters.empty()) << t.name;
    bool found = rule.ops[0].kind == OpKind::end;  // the operands share dy itself
    for (const Op& op : piece.backward.ops) {
      expect_fits(op, std::string("derivative of ") + t.name);
      found = found || op.kind == rule.ops[0].kind;
      const bool by_slopes = t.kind == OpKind::add_noise;  // which the op has written
      EXPECT_TRUE(by_slopes || op.kind == t.kind || traits_of(op.kind).why_none != nullptr ||
                  are_each_others_derivative(op.kind, t.kind))
          << t.name;
    }
    EXPECT_TRUE(found) << t.name;
  }
}

TEST(OpTraits, OpsOfAllBundledScenariosFitTheirRows) {
  for (const BundledDocument& bundled : bundled_scenarios()) {
    ScenarioSource source;
    const nlohmann::json document = load_scenario_document(bundled.name, {}, source);
    if (has_jobs(document)) continue;
    Program program;
    lower(read_scenario(document, source), program);
    for (const Piece& piece : program.pieces)
      for (const Block* block : {&piece.forward, &piece.backward, &piece.weight_gradient, &piece.update})
        for (const Op& op : block->ops) expect_fits(op, bundled.name + " " + piece.name);
  }
}

TEST(Inputs, AreWrittenByNobody) {
  int met = 0;
  for (const BundledDocument& bundled : bundled_scenarios()) {
    ScenarioSource source;
    const nlohmann::json document = load_scenario_document(bundled.name, {}, source);
    if (has_jobs(document)) continue;
    Program program;
    lower(read_scenario(document, source), program);
    for (const Piece& piece : program.pieces) {
      for (const Tensor& t : piece.tensors) met += t.input != Input::none;
      for (const Block* block : {&piece.forward, &piece.backward, &piece.weight_gradient, &piece.update})
        for (const Op& op : block->ops)
          for (const TensorId id : op.writes) {
            if (id == kNoTensor) continue;
            EXPECT_EQ(piece.tensors[id].input, Input::none) << bundled.name << " " << op.name;
          }
    }
  }
  EXPECT_GE(met, 2) << "tokens and targets at the least";
}

TEST(Dtypes, TakeTheirBitsRoundedUpToBytes) {
  EXPECT_EQ(bits_of(Dtype::fp32), 32);
  EXPECT_EQ(bits_of(Dtype::fp8), 8);
  EXPECT_EQ(bits_of(Dtype::nvfp4), 4);
  EXPECT_EQ(bits_of(Dtype::int4), 4);
  EXPECT_EQ(bits_of(Dtype::fp8_blocks), 8);
  EXPECT_EQ(bytes_of(Dtype::fp8_blocks, 7168), 7168 + 56 * 4) << "a scale in fp32 for each 128";
  EXPECT_EQ(bytes_of(Dtype::bf16, 3), 6);
  EXPECT_EQ(bytes_of(Dtype::int4, 1), 1);
  EXPECT_EQ(bytes_of(Dtype::int4, 0), 0);
  EXPECT_EQ(bytes_of(Dtype::int4, 3), 2);
  Tensor t;
  t.rank = 2;
  t.sizes = {3, 5, 1, 1, 1, 1};
  t.dtype = Dtype::int4;
  EXPECT_EQ(t.bytes(), 8) << "15 elements of half a byte";
}

// NVIDIA 2025, arXiv 2509.25149, section 2: 16 elements of 4 bits share a scale of 8.
TEST(Dtypes, Nvfp4TakesFourAndAHalfBits) {
  EXPECT_EQ(bytes_of(Dtype::nvfp4, 0), 0);
  EXPECT_EQ(bytes_of(Dtype::nvfp4, 16), 9);
  EXPECT_EQ(bytes_of(Dtype::nvfp4, 17), 11) << "the 17th has a byte and a scale to itself";
  EXPECT_EQ(bytes_of(Dtype::nvfp4, 4096 * 14336), 33030144) << "4.5 / 8 of 58720256";
  Tensor t;
  t.rank = 2;
  t.sizes = {3, 5, 1, 1, 1, 1};
  t.dtype = Dtype::nvfp4;
  EXPECT_EQ(t.bytes(), 9) << "15 elements of half a byte, and a scale";
}

// Dettmers et al. 2023, arXiv 2305.14314, section 3: double quantisation leaves 0.127 bits of scales a parameter.
TEST(Dtypes, Nf4TakesFourBitsAndScalesOfScales) {
  EXPECT_EQ(bytes_of(Dtype::nf4, 0), 0);
  EXPECT_EQ(bytes_of(Dtype::nf4, 64), 32 + 1 + 4);
  EXPECT_EQ(bytes_of(Dtype::nf4, 65), 33 + 2 + 4);
  EXPECT_EQ(bytes_of(Dtype::nf4, 64 * 256), 8192 + 256 + 4);
  EXPECT_EQ(bytes_of(Dtype::nf4, 64 * 257), 8224 + 257 + 8);
  EXPECT_NEAR(8.0 * static_cast<double>(bytes_of(Dtype::nf4, 4096 * 4096)) / (4096.0 * 4096), 4.127, 5e-4);
}

}  // namespace
}  // namespace orrery
