// Import of Hugging Face `config.json` files (transformers).
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "models/model.h"
#include "sim/base/error.h"

namespace orrery {

// Returns the architecture that `config` describes, chosen by its "model_type" (or the class in "architectures").
// Ignores keys that do not concern the architecture. Absent keys take the default of the family's configuration class
// if all sizes share one; otherwise they are missing: InputError with the pointer.
// Throws InputError that names the family for: unknown families; experts in a family that is read as dense; keys that
// contradict the family; classes in "architectures" of another known family or with another head than the modelled one;
// and keys of an architecture that is not modelled (state-space layers, linear and sparse attention, and the like).
// If hidden and attention dropout differ, takes the hidden one. Omits layers of multi-token prediction (DeepSeek-V3),
// attention sinks (gpt-oss), and query and key norms without weights (Llama 4). The result is not complete yet:
// read_model completes it.
Model import_huggingface(const nlohmann::json& config, const InputError::Where& where);

}  // namespace orrery
