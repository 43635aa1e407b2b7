#pragma once

#include <array>

#include "sim/base/fields.h"
#include "sim/program/tensor.h"

namespace orrery::precision {

enum class Mix : std::uint8_t { bf16, fp16, fp32, fp8, nvfp4 };
inline constexpr std::array<std::string_view, 5> kMixNames{"bf16", "fp16", "fp32", "fp8", "nvfp4"};
// The elements that share a scale in fp8 (Transformer Engine's recipes by Megatron-LM's names of them):
//   delayed     a tensor; the scale follows from the largest magnitudes of earlier steps
//   tensorwise  a tensor; the scale follows from its own largest magnitude ("current scaling")
//   blockwise   128 elements of a row, or 128 x 128 of a weight, as in DeepSeek-V3
//   mxfp8       32 elements of a row, or of a column
// automatic: the stack's (framework::StackPreset).
enum class Recipe : std::uint8_t { automatic, delayed, tensorwise, blockwise, mxfp8 };
inline constexpr std::array<std::string_view, 5> kRecipeNames{"automatic", "delayed", "tensorwise", "blockwise",
                                                              "mxfp8"};
// automatic: the stack's dtype (framework::gradient_dtype).
enum class GradientDtype : std::uint8_t { automatic, fp32, bf16, fp16 };
inline constexpr std::array<std::string_view, 4> kGradientDtypeNames{"automatic", "fp32", "bf16", "fp16"};

struct Options {
  Mix mix = Mix::bf16;
  Recipe recipe = Recipe::automatic;
  GradientDtype gradients = GradientDtype::automatic;
  double loss_scale = 65536;
  bool fp8_activation_inputs = false;
  bool fp8_attention = false;

  // Returns the dtype of parameters and activations.
  Dtype storage() const;
  // Returns the dtype of the layers' matrix products, which MFU is measured against.
  Dtype compute() const;
  // Returns the factor by which gradients are scaled until the update: the loss scale.
  double gradient_factor() const { return mix == Mix::fp16 ? loss_scale : 1; }

  void visit_fields(FieldVisitor& v) {
    v.field("precision", mix, kMixNames,
            "dtype of matrix products and activations; fp8, nvfp4: layers' products only, the rest bf16", Scope::layer);
    v.field("fp8_recipe", recipe, kRecipeNames,
            "what shares a scale in fp8: a tensor (delayed: known before; tensorwise), 128 elements (blockwise) or 32 "
            "(mxfp8); automatic: the framework's");
    v.field("gradient_dtype", gradients, kGradientDtypeNames,
            "dtype in which gradients are accumulated and reduced; automatic: the framework's, else fp32");
    v.field("loss_scale", loss_scale, positive(),
            "fp16: factor by which the loss is multiplied and gradients are divided");
    v.field("activation_func_fp8_input_store", fp8_activation_inputs,
            "keep the input of the MLP's SwiGLU in fp8 for the backward", Scope::layer);
    v.field("fp8_dot_product_attention", fp8_attention,
            "attention over queries, keys and values in fp8; its result has 16 bits", Scope::layer);
  }
};

}  // namespace orrery::precision
