#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "sim/base/fields.h"

namespace orrery::lora {

// Matrices of a layer, by Megatron's names, and by those of Hugging Face models where these are other names for the
// same matrix. The five from q_proj on are parts of a fused matrix, the last five are those of latent attention.
enum class Target : std::uint8_t {
  qkv,
  attention_output,
  mlp_in,
  mlp_out,
  o_proj,
  down_proj,
  q_proj,
  k_proj,
  v_proj,
  gate_proj,
  up_proj,
  query,
  query_down,
  query_up,
  key_value_down,
  key_value_up
};
inline constexpr std::array<std::string_view, 16> kTargetNames{"linear_qkv",
                                                               "linear_proj",
                                                               "linear_fc1",
                                                               "linear_fc2",
                                                               "o_proj",
                                                               "down_proj",
                                                               "q_proj",
                                                               "k_proj",
                                                               "v_proj",
                                                               "gate_proj",
                                                               "up_proj",
                                                               "linear_q_proj",
                                                               "linear_q_down_proj",
                                                               "linear_q_up_proj",
                                                               "linear_kv_down_proj",
                                                               "linear_kv_up_proj"};

struct Options {
  std::int64_t rank = 0;
  double alpha = 32;  // Megatron Bridge's
  double dropout = 0;
  std::vector<std::int64_t> targets;  // values of Target; empty: qkv and attention_output

  bool names(Target target) const {
    return std::ranges::find(targets, static_cast<std::int64_t>(target)) != targets.end();
  }

  void visit_fields(FieldVisitor& v) {
    v.field("lora_rank", rank, IntegerRange{.least = 0, .most = 1 << 16},
            "fine-tuning: train adapters of this rank beside the layers' matrices, and nothing else; 0: none",
            Scope::layer);
    v.field("lora_alpha", alpha, positive(), "adapters' results are scaled by lora_alpha / lora_rank", Scope::layer);
    v.field("lora_dropout", dropout, NumberRange{.least = 0, .most = 0.99},
            "probability that an adapter's input is dropped", Scope::layer);
    v.field("lora_targets", targets, kTargetNames,
            "matrices with an adapter, by Megatron's or Hugging Face's names; none: linear_qkv and linear_proj",
            Scope::layer);
  }
};

}  // namespace orrery::lora
