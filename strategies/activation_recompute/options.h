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
        "what the backward recomputes: nothing, the attention core (selective), each layer from its input (full), all "
        "but the results of attention (all_but_attention: LoongTrain's Selective Checkpoint++), or all but those, the "
        "results of every second product and of reduce-scatters (selective_op: torchtitan); "
        "flash_attention repeats the core inside its kernel, selective then adds nothing",
        Scope::layer);
    v.field("recompute_modules", modules, kModuleNames,
            "selective: these parts of a layer (Megatron-Core's names); none: core_attn", Scope::layer);
    v.field("recompute_every", every, IntegerRange{.least = 1, .most = 64},
            "full: keep the input of every n-th layer only (Megatron's uniform method)", Scope::layer);
    v.field("recompute_layers", layers, degree(-1),
            "full: recompute only this many layers of each stage's chunk (Megatron's block method); -1: all");
  }
};

}  // namespace orrery::activation_recompute
