#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "sim/base/fields.h"

namespace orrery::activation_recompute {

enum class Mode : std::uint8_t { none, selective, full, selective_op, all_but_attention };
inline constexpr std::array<std::string_view, 5> kModeNames{"none", "selective", "full", "selective_op",
                                                            "all_but_attention"};

// Parts of a layer by Megatron-Core's names (its --recompute-modules).
enum class Module : std::uint8_t {
  core_attention,
  mlp,
  norms,
  latent_projections,
  experts,
  expert_activations,
  shared_experts
};
inline constexpr std::array<std::string_view, 7> kModuleNames{"core_attn", "mlp",     "layernorm",     "mla_up_proj",
                                                              "moe",       "moe_act", "shared_experts"};

struct Options {
  Mode mode = Mode::none;
  std::int64_t every = 1;
  std::int64_t layers = -1;
  std::vector<std::int64_t> modules;  // values of Module; empty: core_attention

  bool repeats(Module module) const {
    const auto number = static_cast<std::int64_t>(module);
    return modules.empty() ? module == Module::core_attention
                           : std::find(modules.begin(), modules.end(), number) != modules.end();
  }

  void visit_fields(FieldVisitor& v) {
    v.field(
        "recompute", mode, kModeNames,
        "what the backward recomputes: nothing (none), the attention core (selective; nothing where flash_attention "
        "does so inside its kernel), each layer from its input (full), a layer without its attention results "
        "(all_but_attention: LoongTrain's Selective Checkpoint++), or a layer without its attention results, "
        "reduce-scatter results and every second product's result (selective_op: torchtitan)",
        Scope::layer);
    v.field("recompute_modules", modules, kModuleNames,
            "selective: the parts of a layer to recompute, by Megatron-Core's names; empty: core_attn", Scope::layer);
    v.field("recompute_every", every, IntegerRange{.least = 1, .most = 64},
            "full: keep the input of every n-th layer only (Megatron's uniform method)", Scope::layer);
    v.field("recompute_layers", layers, degree(-1),
            "full: recompute only the first n layers of each stage's chunk (Megatron's block method); -1: all");
  }
};

}  // namespace orrery::activation_recompute
