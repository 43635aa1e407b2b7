#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "sim/base/fields.h"

namespace orrery::gradient_accumulation {

// How a micro-batch's gradients are added to those of earlier ones; automatic: as the stack does.
//   fused     the kernel that computes a gradient also adds it (Megatron-LM's gradient_accumulation_fusion)
//   separate  the gradient is a separate tensor, which another kernel adds (autograd's AccumulateGrad; hooks on
//             main_grad)
enum class Accumulation : std::uint8_t { automatic, fused, separate };
inline constexpr std::array<std::string_view, 3> kAccumulationNames{"automatic", "fused", "separate"};

struct Options {
  Accumulation accumulation = Accumulation::automatic;

  void visit_fields(FieldVisitor& v) {
    v.field("gradient_accumulation", accumulation, kAccumulationNames,
            "gradients of earlier micro-batches: added to by the products (fused, Megatron's "
            "gradient-accumulation-fusion) or by a kernel for each parameter (separate); automatic: the stack's");
  }
};

}  // namespace orrery::gradient_accumulation
